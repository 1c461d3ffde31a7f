package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// hookRunner runs the hooks of one apply, and knows their progress.
type hookRunner struct {
	plan      *Prepared
	client    dynamic.Interface // with Keelson's own rights
	discovery *apis.Discoverer
	reader    observe.Reader
	judge     objectJudge
	diagnoser health.Diagnoser
	report    func(Step)
	objects   *appliedObjects
	options   ApplyOptions
	outcome   *Outcome
	// record writes the record, with the hooks as they are now.
	record func(context.Context) error
	hooks  []records.Hook // as they will be recorded
}

// owns reports whether the component's record has an object, with the same UID.
func (hr *hookRunner) owns(id differ.ID, live map[string]any) bool {
	r, _ := hr.objects.get(id)
	return r.UID == uidOf(live)
}

// run runs the hooks of an event one after another: each starts when the one before has ended.
// Hooks that succeeded for this target don't run again. The error is a [*HookError] when a hook did
// not succeed.
func (hr *hookRunner) run(ctx context.Context, event string) error {
	list := hooksOf(hr.plan.want.Target, event)
	if len(list) == 0 {
		return nil
	}
	if err := hr.clear(ctx); err != nil {
		return err
	}
	for _, h := range list {
		if err := hr.runOne(ctx, h); err != nil {
			return err
		}
	}
	for _, h := range slices.Backward(list) {
		r := hr.progress(h)
		if err := hr.remove(ctx, r, deleteSucceeded); err != nil {
			return err
		}
		if removable(&r) {
			r.UID = "" // recorded with the next write; until then a new apply checks it again
			hr.put(r)
		}
	}
	return nil
}

// removable reports whether the object of a hook that succeeded has yet to be deleted.
func removable(r *records.Hook) bool {
	return r.UID != "" && !r.Contested && slices.Contains(r.Policies, deleteSucceeded)
}

// progress returns the progress of a hook for this target.
func (hr *hookRunner) progress(h hook) records.Hook { return hr.plan.recordedIn(hr.hooks, h) }

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

// keep records the progress of a hook.
func (hr *hookRunner) keep(ctx context.Context, r records.Hook) error {
	r.At = hr.options.Now.UTC()
	hr.put(r)
	return hr.record(ctx)
}

func (hr *hookRunner) put(r records.Hook) {
	hr.hooks = append(slices.DeleteFunc(slices.Clone(hr.hooks), func(old records.Hook) bool {
		return old.ID == r.ID && old.Event == r.Event && old.TargetHash == r.TargetHash
	}), r)
}

// clear drops the hooks of earlier targets, and deletes the objects of those that succeeded,
// if the policy says so.
func (hr *hookRunner) clear(ctx context.Context) error {
	var kept []records.Hook
	for _, r := range hr.hooks {
		if r.TargetHash == hr.plan.want.Target.Hash {
			kept = append(kept, r)
			continue
		}
		r.Contested = false // requests that were in flight then have arrived
		if r.State == records.HookSucceeded {
			if err := hr.remove(ctx, r, deleteSucceeded); err != nil {
				return err
			}
		}
	}
	hr.hooks = kept
	return nil
}

// hooksLeft reports whether an object of a hook has yet to be deleted although its target is
// applied in whole.
func (p *Prepared) hooksLeft() bool {
	return slices.ContainsFunc(p.record.Hooks, func(r records.Hook) bool { return r.TargetHash == "" })
}

// sweep deletes the leftover hooks of a target that is applied in whole, once no request of a
// replaced session can create them anew.
func (hr *hookRunner) sweep(ctx context.Context) error {
	var kept []records.Hook
	for _, r := range hr.hooks {
		rest := inFlight - hr.options.Now.Sub(r.At)
		if r.TargetHash != "" || rest > 0 {
			kept = append(kept, r)
			if r.TargetHash == "" {
				hr.outcome.requeueAfter(rest)
			}
			continue
		}
		r.Contested = false
		if err := hr.remove(ctx, r, deleteSucceeded); err != nil {
			return err
		}
	}
	hr.hooks = kept
	return nil
}

// leftHooks returns the hooks of a target applied in whole whose objects have yet to be deleted;
// see [hookRunner.sweep].
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

func (hr *hookRunner) runOne(ctx context.Context, h hook) error {
	r := hr.progress(h)
	m, err := hr.plan.mapping(ctx, hr.discovery, h.id, h.gvk.GroupVersion().String())
	if err != nil {
		return fmt.Errorf("hook %s: %w", h.event, err)
	}
	var live map[string]any
	switch r.State {
	case records.HookSucceeded:
		return nil
	case records.HookFailed:
		if again := hookBackoff(&r) - hr.options.Now.Sub(r.At); again > 0 && !hr.options.RetryHooks {
			hr.outcome.requeueAfter(again)
			return &HookError{Event: h.event, ID: h.id, Attempt: r.Attempt, Again: again, Message: r.Message}
		}
	case records.HookIntended: // a session ended before it knew whether it had created the hook
		if live, err = observe.Get(ctx, hr.client, m, h.id); err != nil {
			return fmt.Errorf("hook %s: %w", h.event, err)
		}
		r.Contested = runOf(live) != runIDOf(&r)
	case records.HookRunning:
		return hr.await(ctx, m, awaiting{hook: h, so: r})
	}
	if r.State != records.HookIntended || r.Contested {
		if live, err = hr.create(ctx, m, h, &r); err != nil {
			return err
		}
	}
	r.UID, r.State, r.Message = uidOf(live), records.HookRunning, ""
	if !comesToEnd(h.id) {
		r.State = records.HookSucceeded
	}
	if err := hr.keep(ctx, r); err != nil || r.State == records.HookSucceeded {
		return err
	}
	return hr.await(ctx, m, awaiting{hook: h, so: r, live: live})
}

// backoff returns the error of a failed hook whose backoff is not over, if nothing of the apply may
// run before that hook.
func (hr *hookRunner) backoff() error {
	before, _ := hr.plan.events()
	for _, h := range hooksOf(hr.plan.want.Target, before) {
		r := hr.progress(h)
		if again := hookBackoff(&r) - hr.options.Now.Sub(r.At); r.State == records.HookFailed && again > 0 && !hr.options.RetryHooks {
			hr.outcome.requeueAfter(again)
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
	backoff := firstHookBackoff
	for range min(r.Attempt-1, 16) {
		backoff *= 2
	}
	return min(backoff, lastHookBackoff)
}

// comesToEnd reports whether a hook is waited for. Any other hook is done when its object exists.
func comesToEnd(id differ.ID) bool {
	return id.Group == "batch" && id.Kind == "Job" || id.Group == "" && id.Kind == "Pod"
}

func runOf(live map[string]any) string {
	return (&unstructured.Unstructured{Object: live}).GetAnnotations()[v1alpha1.AnnotationHookRun]
}

// create makes room for a hook's object, records the intent to create it, and
// creates it.
func (hr *hookRunner) create(ctx context.Context, m *meta.RESTMapping, h hook, r *records.Hook) (map[string]any, error) {
	if r.State != records.HookIntended { // a new run
		r.Attempt, r.State, r.UID, r.Message, r.Contested = r.Attempt+1, records.HookIntended, "", "", false
	}
	patch, err := hr.judged(ctx, h)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("hook %s %s: %w", h.event, h.id, err)
	}
	if err := hr.replace(ctx, m, h, r); err != nil {
		return nil, err
	}
	before := hr.hooks
	if err := hr.keep(ctx, *r); err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(patch)}
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationHookRun] = runIDOf(r)
	u.SetAnnotations(annotations)
	answer, err := send(ctx, hr.plan.resource(m, h.id), u.Object, nil, v1alpha1.FieldManager)
	hr.report(Step{Component: hr.plan.want.Component, ID: h.id, Op: differ.OpCreate, Hook: h.event, Err: err})
	if err != nil {
		if !unanswered(err) && !errors.Is(err, ErrStale) { // refused for certain
			hr.hooks = before
		}
		return nil, fmt.Errorf("hook %s: create %s: %w", h.event, h.id, hr.plan.forbidden(ctx, m, h.id, err, "patch", "create"))
	}
	hr.reader.Wrote(h.id, answer.Object)
	return answer.Object, nil
}

// judged applies the danger rules to the creation of a hook's object, and returns what to
// create.
func (hr *hookRunner) judged(ctx context.Context, h hook) (map[string]any, error) {
	c, err := hr.judge.creation(ctx, h.object, hr.plan.policy.Among(hr.plan.states))
	if err != nil {
		return nil, fmt.Errorf("hook %s: %w", h.event, err)
	}
	if why := refusal(c); why != "" {
		return nil, &HookError{Event: h.event, ID: h.id, Message: why}
	}
	return c.Patch, nil
}

// awaiting is a running hook.
type awaiting struct {
	hook
	so   records.Hook
	live map[string]any // the answer to its creation; nil: another apply created it
}

// await waits until a hook has come to its end, and records it.
func (hr *hookRunner) await(ctx context.Context, m *meta.RESTMapping, h awaiting) error {
	r, live := h.so, h.live
	waiting, cancel := context.WithTimeout(ctx, hr.options.Timeout)
	defer cancel()
	var last map[string]any
	var end health.End
	err := observe.Follow(waiting, hr.client, m, observe.Object{ID: h.id, Live: live}, func(live map[string]any) bool {
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
		message := fmt.Sprintf("it runs for longer than %s: %s", hr.options.Timeout, hr.diagnoser.DiagnoseEnd(ctx, h.id, last, "it runs"))
		return &HookError{Event: h.event, ID: h.id, Running: true, Attempt: r.Attempt, Message: message}
	case err != nil:
		return fmt.Errorf("hook %s %s: %w", h.event, h.id, err)
	case end.Succeeded:
		r.State = records.HookSucceeded
		return hr.keep(ctx, r)
	}
	r.State, r.Message = records.HookFailed, end.Message
	failed := &HookError{Event: h.event, ID: h.id, Attempt: r.Attempt, Message: hr.diagnoser.DiagnoseEnd(ctx, h.id, last, end.Message)}
	hr.outcome.requeueAfter(hookBackoff(&r))
	if err := hr.keep(ctx, r); err != nil {
		return fmt.Errorf("%w: %w", failed, err)
	}
	if err := hr.remove(ctx, r, deleteFailed); err != nil {
		return fmt.Errorf("%w: %w", failed, err)
	}
	return failed
}
