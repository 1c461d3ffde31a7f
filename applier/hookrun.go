package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/deletion"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// runHooks runs the hooks of an event one after another: each starts when the one before has ended.
// Hooks that succeeded for this target don't run again. The error is a [*HookError] when a hook did
// not succeed.
func (a *applying) runHooks(ctx context.Context, event string) error {
	list := hooksOf(a.want.Target, event)
	if len(list) == 0 {
		return nil
	}
	if err := a.clearHooks(ctx); err != nil {
		return err
	}
	for _, h := range list {
		if err := a.runHook(ctx, h); err != nil {
			return err
		}
	}
	for _, h := range slices.Backward(list) {
		r := a.recordedHook(h)
		if err := a.removeHook(ctx, r, deleteSucceeded); err != nil {
			return err
		}
		if removable(&r) {
			r.UID = "" // recorded with the next write; until then a new apply checks it again
			a.putHook(r)
		}
	}
	return nil
}

// removable reports whether the object of a hook that succeeded has yet to be deleted.
func removable(r *records.Hook) bool {
	return r.UID != "" && !r.Contested && slices.Contains(r.Policies, deleteSucceeded)
}

// recordedHook returns the progress of a hook for this target.
func (a *applying) recordedHook(h hook) records.Hook { return a.recordedIn(a.hooks, h) }

func (p *Prepared) recordedIn(hooks []records.Hook, h hook) records.Hook {
	for _, r := range hooks {
		if r.ID == h.id && r.Event == h.event && r.TargetHash == p.want.Target.Hash {
			return r
		}
	}
	return records.Hook{
		ID: h.id, APIVersion: h.gvk.GroupVersion().String(), Event: h.event, TargetHash: p.want.Target.Hash, Policies: h.policies,
	}
}

// keepHook records the progress of a hook.
func (a *applying) keepHook(ctx context.Context, r records.Hook) error {
	r.At = a.now.UTC()
	a.putHook(r)
	return a.writeFacts(ctx, false)
}

func (a *applying) putHook(r records.Hook) {
	a.hooks = append(slices.DeleteFunc(slices.Clone(a.hooks), func(old records.Hook) bool {
		return old.ID == r.ID && old.Event == r.Event && old.TargetHash == r.TargetHash
	}), r)
}

// clearHooks drops the hooks of earlier targets, and deletes the objects of those that succeeded,
// if the policy says so.
func (a *applying) clearHooks(ctx context.Context) error {
	var kept []records.Hook
	for _, r := range a.hooks {
		if r.TargetHash == a.want.Target.Hash {
			kept = append(kept, r)
			continue
		}
		r.Contested = false // requests that were in flight then have arrived
		if r.State == records.HookSucceeded {
			if err := a.removeHook(ctx, r, deleteSucceeded); err != nil {
				return err
			}
		}
	}
	a.hooks = kept
	return nil
}

// hooksLeft reports whether an object of a hook has yet to be deleted although its target is
// applied in whole.
func (p *Prepared) hooksLeft() bool {
	return slices.ContainsFunc(p.record.Hooks, func(r records.Hook) bool { return r.TargetHash == "" })
}

// sweepHooks deletes the leftover hooks of a target that is applied in whole, once no request of a
// replaced session can create them anew.
func (a *applying) sweepHooks(ctx context.Context) error {
	var kept []records.Hook
	for _, r := range a.hooks {
		rest := inFlight - a.now.Sub(r.At)
		if r.TargetHash != "" || rest > 0 {
			kept = append(kept, r)
			if r.TargetHash == "" {
				a.outcome.requeueAfter(rest)
			}
			continue
		}
		r.Contested = false
		if err := a.removeHook(ctx, r, deleteSucceeded); err != nil {
			return err
		}
	}
	a.hooks = kept
	return nil
}

// leftHooks returns the hooks of a target applied in whole whose objects have yet to be deleted;
// see [applying.sweepHooks].
func leftHooks(hooks []records.Hook) []records.Hook {
	var out []records.Hook
	for _, r := range hooks {
		if r.Contested && r.State == records.HookSucceeded && slices.Contains(r.Policies, deleteSucceeded) {
			r.TargetHash = "" // this run is over: the same target may be applied again
			out = append(out, r)
		}
	}
	return out
}

func (a *applying) runHook(ctx context.Context, h hook) error {
	r := a.recordedHook(h)
	m, err := a.mapping(ctx, h.id, h.gvk.GroupVersion().String())
	if err != nil {
		return fmt.Errorf("hook %s: %w", h.event, err)
	}
	var live map[string]any
	switch r.State {
	case records.HookSucceeded:
		return nil
	case records.HookFailed:
		if again := hookBackoff(&r) - a.now.Sub(r.At); again > 0 && !a.retryHooks {
			a.outcome.requeueAfter(again)
			return &HookError{Event: h.event, ID: h.id, Attempt: r.Attempt, Again: again, Message: r.Message}
		}
	case records.HookIntended: // a session ended before it knew whether it had created the hook
		if live, err = Get(ctx, a.cluster.dynamic, m, h.id); err != nil {
			return fmt.Errorf("hook %s: %w", h.event, err)
		}
		r.Contested = runOf(live) != runIDOf(&r)
	case records.HookRunning:
		return a.awaitHook(ctx, m, awaiting{hook: h, so: r})
	}
	if r.State != records.HookIntended || r.Contested {
		if live, err = a.createHook(ctx, m, h, &r); err != nil {
			return err
		}
	}
	r.UID, r.State, r.Message = uidOf(live), records.HookRunning, ""
	if !comesToEnd(h.id) {
		r.State = records.HookSucceeded
	}
	if err := a.keepHook(ctx, r); err != nil || r.State == records.HookSucceeded {
		return err
	}
	return a.awaitHook(ctx, m, awaiting{hook: h, so: r, live: live})
}

// hookPause returns the error of a failed hook whose pause is not over, if nothing of the apply may
// run before that hook.
func (a *applying) hookPause() error {
	before, _ := a.events()
	for _, h := range hooksOf(a.want.Target, before) {
		r := a.recordedHook(h)
		if again := hookBackoff(&r) - a.now.Sub(r.At); r.State == records.HookFailed && again > 0 && !a.retryHooks {
			a.outcome.requeueAfter(again)
			return &HookError{Event: h.event, ID: h.id, Attempt: r.Attempt, Again: again, Message: r.Message}
		}
		if r.State != records.HookSucceeded {
			return nil
		}
	}
	return nil
}

// hookBackoff returns how long a failed hook waits before its next run.
func hookBackoff(r *records.Hook) time.Duration {
	pause := firstHookPause
	for range min(r.Attempt-1, 16) {
		pause *= 2
	}
	return min(pause, lastHookPause)
}

// comesToEnd reports whether a hook is waited for. Any other hook is done when its object exists.
func comesToEnd(id differ.ID) bool {
	return id.Group == "batch" && id.Kind == "Job" || id.Group == "" && id.Kind == "Pod"
}

func runOf(live map[string]any) string {
	return (&unstructured.Unstructured{Object: live}).GetAnnotations()[v1alpha1.AnnotationHookRun]
}

// createHook makes room for a hook's object, records the intent to create it, and
// creates it.
func (a *applying) createHook(ctx context.Context, m *meta.RESTMapping, h hook, r *records.Hook) (map[string]any, error) {
	if r.State != records.HookIntended { // a new run
		r.Attempt, r.State, r.UID, r.Message, r.Contested = r.Attempt+1, records.HookIntended, "", "", false
	}
	patch, err := a.judgeHook(ctx, h)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("hook %s %s: %w", h.event, h.id, err)
	}
	if err := a.replaceHook(ctx, m, h, r); err != nil {
		return nil, err
	}
	before := a.hooks
	if err := a.keepHook(ctx, *r); err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(patch)}
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationHookRun] = runIDOf(r)
	u.SetAnnotations(annotations)
	answer, err := send(ctx, a.resource(m, h.id), u.Object, nil, v1alpha1.FieldManager)
	a.cluster.progress(Step{Component: a.want.Component, ID: h.id, Op: differ.OpCreate, Hook: h.event, Err: err})
	if err != nil {
		if !unanswered(err) && !errors.Is(err, ErrStale) { // refused for certain
			a.hooks = before
		}
		return nil, fmt.Errorf("hook %s: create %s: %w", h.event, h.id, a.forbidden(ctx, m, h.id, err, "patch", "create"))
	}
	a.cluster.live.Wrote(h.id, answer.Object)
	return answer.Object, nil
}

// judgeHook applies the danger rules to the creation of a hook's object, and returns what to
// create.
func (a *applying) judgeHook(ctx context.Context, h hook) (map[string]any, error) {
	c, err := a.cluster.judge.creation(ctx, h.object, a.policy.Among(a.states))
	if err != nil {
		return nil, fmt.Errorf("hook %s: %w", h.event, err)
	}
	if why := refusal(c); why != "" {
		return nil, &HookError{Event: h.event, ID: h.id, Message: why}
	}
	return c.Patch, nil
}

// replaceHook makes room for a hook's object: it deletes what an earlier run left behind, if the
// policy allows.
func (a *applying) replaceHook(ctx context.Context, m *meta.RESTMapping, h hook, r *records.Hook) error {
	live, err := Get(ctx, a.cluster.dynamic, m, h.id)
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
	ours := u.GetLabels()[v1alpha1.LabelComponent] == a.want.Component && (runOf(live) != "" || a.objects[h.id].UID == uidOf(live))
	helms := u.GetLabels()[v1alpha1.LabelComponent] == "" && u.GetAnnotations()[annotationHook] != "" && a.want.Adopt
	switch {
	case runOf(live) == runIDOf(r):
		return fmt.Errorf("%w: hook %s %s was created meanwhile", ErrStale, h.event, h.id)
	case u.GetDeletionTimestamp() != nil:
		return a.awaitGone(ctx, m, h, u)
	case slices.ContainsFunc(a.wanted(), func(c *differ.Change) bool { return c.ID == h.id }):
		return refuse("it is one of the component's, which the chart has beside the hook: rename one of them")
	case !ours && !helms:
		return refuse("it is no hook of this component: delete or rename it")
	case h.id.Kind == "CustomResourceDefinition":
		return refuse("a hook never deletes a CustomResourceDefinition, which would delete all objects of the kind")
	case !slices.Contains(h.policies, deleteBefore):
		return refuse(fmt.Sprintf("its delete policy (%s) does not let it be replaced: delete it, or add %s", strings.Join(h.policies, ","), deleteBefore))
	}
	if err := a.deleteHook(ctx, m, h.event, h.id, u); err != nil {
		return err
	}
	a.disown(h.id)
	return a.awaitGone(ctx, m, h, u)
}

// disown removes an object from the inventory that was an ordinary object, not a hook, in the
// previous version.
func (a *applying) disown(id differ.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.objects, id)
	delete(a.before, id)
}

// removeHook deletes the object of an ended hook, if the policy says so and the object is still the
// one that ran. An object that a danger rule protects stays: the hook is done, and no version waits
// for the deletion.
func (a *applying) removeHook(ctx context.Context, r records.Hook, when string) error {
	if r.UID == "" || r.Contested || !slices.Contains(r.Policies, when) || r.Kind == "CustomResourceDefinition" {
		return nil
	}
	m, err := a.mapping(ctx, r.ID, r.APIVersion)
	if gone, ok := notServed(err); ok && gone.Unknown == nil {
		return nil // the kind is gone, and the object with it
	}
	if err != nil {
		return fmt.Errorf("hook %s: %w", r.Event, err)
	}
	live, err := Get(ctx, a.cluster.dynamic, m, r.ID)
	if err != nil {
		return fmt.Errorf("hook %s: %w", r.Event, err)
	}
	u := &unstructured.Unstructured{Object: live}
	if live == nil || string(u.GetUID()) != r.UID || u.GetDeletionTimestamp() != nil {
		return nil
	}
	err = a.deleteHook(ctx, m, r.Event, r.ID, u)
	if stopped := (*HookError)(nil); errors.As(err, &stopped) {
		a.outcome.Kept = append(a.outcome.Kept, stopped)
		a.cluster.progress(Step{Component: a.want.Component, ID: r.ID, Op: differ.OpDelete, Hook: r.Event, Err: stopped})
		return nil
	}
	return err
}

// deleteHook deletes an object in its current state: its controller may write its status meanwhile.
// The danger rules judge each state.
func (a *applying) deleteHook(ctx context.Context, m *meta.RESTMapping, event string, id differ.ID, live *unstructured.Unstructured) error {
	const tries = 8
	for try := 1; ; try++ {
		if live.GetDeletionTimestamp() != nil {
			return nil
		}
		allowed, err := a.permitHook(ctx, event, id, live)
		if err != nil {
			return err
		}
		err = deletion.Send(ctx, allowed, a.resource(m, id), DeleteOptions(live))
		switch {
		case err == nil || apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err) || try == tries:
			return stale(fmt.Errorf("delete hook %s: %w", id, a.forbidden(ctx, m, id, err, "delete")))
		}
		now, err := Get(ctx, a.cluster.dynamic, m, id)
		if err != nil {
			return fmt.Errorf("delete hook %s: %w", id, err)
		}
		if now == nil || uidOf(now) != string(live.GetUID()) {
			return nil
		}
		live = &unstructured.Unstructured{Object: now}
	}
}

// awaiting is a running hook.
type awaiting struct {
	hook
	so   records.Hook
	live map[string]any // the answer to its creation; nil: another apply created it
}

// awaitHook waits until a hook has come to its end, and records it.
func (a *applying) awaitHook(ctx context.Context, m *meta.RESTMapping, h awaiting) error {
	r, live := h.so, h.live
	waiting, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var last map[string]any
	var end health.End
	err := Follow(waiting, a.cluster.dynamic, m, ObservedObject{h.id, live}, func(live map[string]any) bool {
		switch {
		case live == nil && last == nil:
			end = health.End{Over: true, Message: "it was deleted before it was seen to come to its end"}
		case live == nil: // if a time to live ended it, its last state counts
			end = health.EndOf(last)
			if !end.Over {
				end = health.End{Over: true, Message: "it was deleted while it ran"}
			}
		case uidOf(live) != r.UID:
			end = health.End{Over: true, Message: "another client replaced it while it ran"}
		default:
			last, end = live, health.EndOf(live)
		}
		return end.Over
	})
	switch {
	case err != nil && ctx.Err() == nil && waiting.Err() != nil:
		message := fmt.Sprintf("it runs for longer than %s: %s", a.timeout, a.cluster.diagnoser.DiagnoseEnd(ctx, h.id, last, "it runs"))
		return &HookError{Event: h.event, ID: h.id, Running: true, Attempt: r.Attempt, Message: message}
	case err != nil:
		return fmt.Errorf("hook %s %s: %w", h.event, h.id, err)
	case end.Succeeded:
		r.State = records.HookSucceeded
		return a.keepHook(ctx, r)
	}
	r.State, r.Message = records.HookFailed, end.Message
	failed := &HookError{Event: h.event, ID: h.id, Attempt: r.Attempt, Message: a.cluster.diagnoser.DiagnoseEnd(ctx, h.id, last, end.Message)}
	a.outcome.requeueAfter(hookBackoff(&r))
	if err := a.keepHook(ctx, r); err != nil {
		return fmt.Errorf("%w: %w", failed, err)
	}
	if err := a.removeHook(ctx, r, deleteFailed); err != nil {
		return fmt.Errorf("%w: %w", failed, err)
	}
	return failed
}
