package applier

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// objectJudge applies the danger rules to objects outside of a plan: those of hooks and of checks.
type objectJudge struct {
	discovery *apis.Discoverer
	nodes     *nodeReader
}

// creation applies the danger rules to the creation of an object.
func (j objectJudge) creation(ctx context.Context, o *renderer.Object, policy differ.Policy) (*differ.Change, error) {
	id, gvk := differ.Identify(o.Content)
	schemas, err := schemasOf(ctx, j.discovery, map[differ.ID]schema.GroupVersionKind{id: gvk})
	if err != nil {
		return nil, err
	}
	return j.nodes.judge(ctx, policy, func(policy differ.Policy) (*differ.Change, error) {
		plan, err := differ.Compare(ctx, schemas, []differ.State{{ID: id, Target: o}}, policy)
		if err != nil {
			return nil, fmt.Errorf("compare: %w", err)
		}
		return &plan.Changes[0], nil
	})
}

// deletion decides about the deletion of an object in its current state. An object of the plan
// is compared again: it may have been protected, or taken over, since. For any other object only
// the danger rules decide. A hook of this component made it, or Helm did and the component adopts
// Helm's objects.
func (j objectJudge) deletion(ctx context.Context, o observe.Object, planned *differ.State, policy differ.Policy) (*differ.Change, error) {
	schemas, err := schemasOf(ctx, j.discovery, map[differ.ID]schema.GroupVersionKind{o.ID: (&unstructured.Unstructured{Object: o.Live}).GroupVersionKind()})
	if err != nil {
		return nil, err
	}
	return j.nodes.judge(ctx, policy, func(policy differ.Policy) (*differ.Change, error) {
		if planned == nil {
			c, err := differ.JudgeDeletion(ctx, schemas, o.ID, o.Live, policy)
			if err != nil {
				return nil, fmt.Errorf("judge its deletion: %w", err)
			}
			return &c, nil
		}
		state := *planned
		state.Live, state.OwnersRead = o.Live, true
		plan, err := differ.Compare(ctx, schemas, []differ.State{state}, policy)
		if err != nil {
			return nil, fmt.Errorf("compare: %w", err)
		}
		return &plan.Changes[0], nil
	})
}

// refusal returns why danger rules stop a creation; empty: they do not.
func refusal(c *differ.Change) string {
	if c.Op == differ.OpCreate && c.State != differ.StateHeld && c.State != differ.StateDenied {
		return ""
	}
	why := fmt.Sprintf("it is %s: %s (rule %s)", c.State, c.Because, c.Rule)
	for _, f := range c.Fields {
		if f.Action == differ.ActionHold || f.Action == differ.ActionDeny {
			why = fmt.Sprintf("%s is %s: %s (rule %s)", f.Path, c.State, f.Because, f.Rule)
			break
		}
	}
	if c.Approvable() {
		why += "; its hash, for an approval: " + c.Hash
	}
	return why
}
