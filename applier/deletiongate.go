package applier

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// Every object that Keelson deletes passes through this file. An object of a component is
// deleted for three reasons: it left the target (prune), no update can change it
// (replacement), or a hook needs its name or is over. The danger rules judge each of them
// in the same way, and an approval in git is bound to the same hash.

// permit is the permission to delete one object. The zero permit permits nothing.
type permit struct {
	id differ.ID
	// The object must still have uid, version, or both.
	uid     types.UID
	version string
}

// permitChange returns the permission that a plan gives to delete or replace an object. Any other
// change permits nothing.
func permitChange(c *differ.Change) permit {
	if c.Op != differ.OpDelete && c.Op != differ.OpReplace || c.State == differ.StateHeld || c.State == differ.StateDenied {
		return permit{id: c.ID}
	}
	return permit{id: c.ID, uid: types.UID(uidOf(c.Live))}
}

// permitCheck returns the permission to delete the Job of a check, which Keelson made.
func permitCheck(id differ.ID, uid types.UID) permit { return permit{id: id, uid: uid} }

// deleter sends a DELETE, with the dynamic client or a typed one.
type deleter func(ctx context.Context, name string, options metav1.DeleteOptions) error

// sendDelete is the only place that sends a DELETE. The request is valid only for the object that
// the permit names by UID or resourceVersion.
func sendDelete(ctx context.Context, p permit, send deleter, options metav1.DeleteOptions) error {
	if p.uid == "" && p.version == "" {
		return fmt.Errorf("delete %s: the deletion has no permit, which is a defect of Keelson", p.id)
	}
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if p.uid != "" {
		options.Preconditions.UID = &p.uid
	}
	if p.version != "" {
		options.Preconditions.ResourceVersion = &p.version
	}
	return send(ctx, p.id.Name, options)
}

// deleteRecordSecret deletes a Secret of Keelson's own: a record, or a part of a record. It belongs
// to no component, so no rule applies.
func (c *Cluster) deleteRecordSecret(ctx context.Context, name string, uid types.UID, version string) error {
	own := permit{id: differ.ID{Kind: "Secret", Namespace: v1alpha1.Namespace, Name: name}, uid: uid, version: version}
	return sendDelete(ctx, own, c.secrets.Delete, metav1.DeleteOptions{})
}

// dynamicDeleter deletes with a dynamic client.
func dynamicDeleter(objects dynamic.ResourceInterface) deleter {
	return func(ctx context.Context, name string, options metav1.DeleteOptions) error {
		return objects.Delete(ctx, name, options)
	}
}

// permitHook applies the danger rules to the deletion of the object that has a hook's name, in its
// current state. An object of the inventory is in the plan, which shows the deletion and must allow
// it, too. Any other object was left by an earlier run of a hook, or is Helm's.
//
// The error is a [*HookError] with the rule that stops the deletion, and the hash by which git can
// approve it.
func (a *applying) permitHook(ctx context.Context, event string, id differ.ID, live *unstructured.Unstructured) (permit, error) {
	c, state := a.planned(id)
	if c != nil && c.Op == differ.OpDelete && permitChange(c).uid != live.GetUID() {
		return permit{}, fmt.Errorf("%w: hook %s: %s was replaced meanwhile", ErrStale, event, id)
	}
	if c == nil || c.Op == differ.OpDelete {
		var err error
		if c, err = a.judgeDeletion(ctx, id, live, state); err != nil {
			return permit{}, fmt.Errorf("hook %s: %w", event, err)
		}
	}
	if p := permitChange(c); c.Op == differ.OpDelete && p.uid != "" {
		p.version = live.GetResourceVersion()
		return p, nil
	}
	return permit{}, &HookError{Event: event, ID: id, Message: "the object of this name can't be deleted: " + stopReason(c)}
}

// stopReason returns why a plan keeps an object that a hook would delete.
func stopReason(c *differ.Change) string {
	switch {
	case c.State == differ.StateHeld || c.State == differ.StateDenied:
		why := fmt.Sprintf("its deletion is %s: %s (rule %s)", c.State, c.Because, c.Rule)
		if c.Approvable() {
			why += "; its hash, for an approval: " + c.Hash
		}
		return why
	case c.Because != "":
		return c.Because
	}
	return "the component has it, too"
}

// planned returns the plan's change of an object, and its state; nil: the plan has none.
func (p *Prepared) planned(id differ.ID) (*differ.Change, *differ.State) {
	for i := range p.Plan.Changes {
		if c := &p.Plan.Changes[i]; c.ID == id {
			return c, &p.states[i]
		}
	}
	return nil, nil
}

// judgeDeletion decides about the deletion of an object in its current state. An object of the plan
// is compared again: it may have been protected, or taken over, since. For any other object only
// the danger rules decide. A hook of this component made it, or Helm did and the component adopts
// Helm's objects.
func (a *applying) judgeDeletion(ctx context.Context, id differ.ID, live *unstructured.Unstructured, planned *differ.State) (*differ.Change, error) {
	schemas, err := a.cluster.schemas(ctx, map[differ.ID]schema.GroupVersionKind{id: live.GroupVersionKind()})
	if err != nil {
		return nil, err
	}
	return a.cluster.withNodes(ctx, a.policy.Among(a.states), func(policy differ.Policy) (*differ.Change, error) {
		if planned == nil {
			c, err := differ.JudgeDeletion(ctx, schemas, id, live.Object, policy)
			if err != nil {
				return nil, fmt.Errorf("judge its deletion: %w", err)
			}
			return &c, nil
		}
		state := *planned
		state.Live, state.OwnersRead = live.Object, true
		plan, err := differ.Compare(ctx, schemas, []differ.State{state}, policy)
		if err != nil {
			return nil, fmt.Errorf("compare: %w", err)
		}
		return &plan.Changes[0], nil
	})
}

// hooksHeld reports whether a hook of some events can't be created, because a rule holds or
// denies the deletion of the object that has its name.
func (p *Prepared) hooksHeld(events ...string) bool {
	for _, event := range events {
		for _, h := range hooksOf(p.want.Target, event) {
			c, _ := p.planned(h.id)
			if c != nil && (c.State == differ.StateHeld || c.State == differ.StateDenied) && p.recordedIn(p.record.Hooks, h).State != HookSucceeded {
				return true
			}
		}
	}
	return false
}
