package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/deletion"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// replace makes room for a hook's object: it deletes what an earlier run left behind, if the
// policy allows.
func (hr *hookRunner) replace(ctx context.Context, m *meta.RESTMapping, h hook, r *records.Hook) error {
	live, err := observe.Get(ctx, hr.client, m, h.id)
	if err != nil {
		return fmt.Errorf("hook %s: %w", h.event, err)
	}
	if live == nil {
		return nil
	}
	refuse := func(why string) error {
		return &HookError{Event: h.event, ID: h.id, Message: "an object of this name exists, and " + why}
	}
	u := &unstructured.Unstructured{Object: live}
	ours := u.GetLabels()[v1alpha1.LabelComponent] == hr.plan.want.Component && (runOf(live) != "" || hr.owns(h.id, live))
	helms := u.GetLabels()[v1alpha1.LabelComponent] == "" && u.GetAnnotations()[annotationHook] != "" && hr.plan.want.Adopt
	switch {
	case runOf(live) == runIDOf(r):
		return fmt.Errorf("%w: hook %s %s was created meanwhile", ErrStale, h.event, h.id)
	case u.GetDeletionTimestamp() != nil:
		return hr.awaitGone(ctx, m, h, u)
	case slices.ContainsFunc(hr.plan.wanted(), func(c *differ.Change) bool { return c.ID == h.id }):
		return refuse("it is one of the component's, which the chart has beside the hook: rename one of them")
	case !ours && !helms:
		return refuse("it is no hook of this component: delete or rename it")
	case h.id.Kind == "CustomResourceDefinition":
		return refuse("a hook never deletes a CustomResourceDefinition, which would delete all objects of the kind")
	case !slices.Contains(h.policies, deleteBefore):
		return refuse(fmt.Sprintf("its delete policy (%s) does not let it be replaced: delete it, or add %s", strings.Join(h.policies, ","), deleteBefore))
	}
	if err := hr.delete(ctx, m, h.event, h.id, u); err != nil {
		return err
	}
	hr.objects.disown(h.id)
	return hr.awaitGone(ctx, m, h, u)
}

// remove deletes the object of an ended hook, if the policy says so and the object is still the
// one that ran. An object that a danger rule protects stays: the hook is done, and no version waits
// for the deletion.
func (hr *hookRunner) remove(ctx context.Context, r records.Hook, when string) error {
	if r.UID == "" || r.Contested || !slices.Contains(r.Policies, when) || r.Kind == "CustomResourceDefinition" {
		return nil
	}
	m, err := hr.plan.mapping(ctx, hr.discovery, r.ID, r.APIVersion)
	if gone, ok := apis.AsNotServed(err); ok && gone.Unknown == nil {
		return nil // the kind is gone, and the object with it
	}
	if err != nil {
		return fmt.Errorf("hook %s: %w", r.Event, err)
	}
	live, err := observe.Get(ctx, hr.client, m, r.ID)
	if err != nil {
		return fmt.Errorf("hook %s: %w", r.Event, err)
	}
	u := &unstructured.Unstructured{Object: live}
	if live == nil || string(u.GetUID()) != r.UID || u.GetDeletionTimestamp() != nil {
		return nil
	}
	err = hr.delete(ctx, m, r.Event, r.ID, u)
	if stopped := (*HookError)(nil); errors.As(err, &stopped) {
		hr.outcome.Kept = append(hr.outcome.Kept, stopped)
		hr.report(Step{Component: hr.plan.want.Component, ID: r.ID, Op: differ.OpDelete, Hook: r.Event, Err: stopped})
		return nil
	}
	return err
}

// delete deletes an object in its current state: its controller may write its status meanwhile.
// The danger rules judge each state.
func (hr *hookRunner) delete(ctx context.Context, m *meta.RESTMapping, event string, id differ.ID, live *unstructured.Unstructured) error {
	const tries = 8
	for try := 1; ; try++ {
		if live.GetDeletionTimestamp() != nil {
			return nil
		}
		allowed, err := hr.permit(ctx, event, id, live)
		if err != nil {
			return err
		}
		err = deletion.Send(ctx, allowed, hr.plan.resource(m, id), DeleteOptions(live))
		switch {
		case err == nil || apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err) || try == tries:
			return stale(fmt.Errorf("delete hook %s: %w", id, hr.plan.forbidden(ctx, m, id, err, "delete")))
		}
		now, err := observe.Get(ctx, hr.client, m, id)
		if err != nil {
			return fmt.Errorf("delete hook %s: %w", id, err)
		}
		if now == nil || uidOf(now) != string(live.GetUID()) {
			return nil
		}
		live = &unstructured.Unstructured{Object: now}
	}
}

// awaitGone waits until a deleted object is gone.
func (hr *hookRunner) awaitGone(ctx context.Context, m *meta.RESTMapping, h hook, old *unstructured.Unstructured) error {
	waiting, cancel := context.WithTimeout(ctx, hr.options.Timeout)
	defer cancel()
	finalizers := old.GetFinalizers()
	err := observe.Follow(waiting, hr.client, m, observe.Object{ID: h.id}, func(live map[string]any) bool {
		u := unstructured.Unstructured{Object: live}
		finalizers = u.GetFinalizers()
		return live == nil || u.GetUID() != old.GetUID()
	})
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		return &HookError{Event: h.event, ID: h.id, Message: fmt.Sprintf("the hook object of an earlier run still exists after %s; its finalizers: %v", hr.options.Timeout, finalizers)}
	}
	if err != nil {
		return fmt.Errorf("hook %s %s: %w", h.event, h.id, err)
	}
	return nil
}

// permit applies the danger rules to the deletion of the object that has a hook's name, in its
// current state. An object of the inventory is in the plan, which shows the deletion and must allow
// it, too. Any other object was left by an earlier run of a hook, or is Helm's.
//
// The error is a [*HookError] with the rule that stops the deletion, and the hash by which git can
// approve it.
func (hr *hookRunner) permit(ctx context.Context, event string, id differ.ID, live *unstructured.Unstructured) (deletion.Permit, error) {
	c, state := hr.plan.planned(id)
	if c != nil && c.Op == differ.OpDelete && deletion.OfChange(c).UID() != live.GetUID() {
		return deletion.Permit{}, fmt.Errorf("%w: hook %s: %s was replaced meanwhile", ErrStale, event, id)
	}
	if c == nil || c.Op == differ.OpDelete {
		var err error
		if c, err = hr.judge.deletion(ctx, observe.Object{ID: id, Live: live.Object}, state, hr.plan.policy.Among(hr.plan.states)); err != nil {
			return deletion.Permit{}, fmt.Errorf("hook %s: %w", event, err)
		}
	}
	if p, allowed := deletion.OfState(c, live); allowed {
		return p, nil
	}
	return deletion.Permit{}, &HookError{Event: event, ID: id, Message: "the object of this name can't be deleted: " + stopReason(c)}
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

// hooksHeld reports whether a hook of some events can't be created, because a rule holds or
// denies the deletion of the object that has its name.
func (p *Prepared) hooksHeld(events ...string) bool {
	for _, event := range events {
		for _, h := range hooksOf(p.want.Target, event) {
			c, _ := p.planned(h.id)
			if c != nil && (c.State == differ.StateHeld || c.State == differ.StateDenied) && p.recordedIn(p.record.Hooks, h).State != records.HookSucceeded {
				return true
			}
		}
	}
	return false
}
