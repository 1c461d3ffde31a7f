package applier

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/differ"
)

// The pause between two reads of the health grows from the first to the last.
const firstPause, lastPause = pollInterval, 2 * time.Second

// UnhealthyError reports that an apply stopped because needed objects were not healthy in time, or
// can't become healthy by waiting.
type UnhealthyError struct {
	// Before names the step that waited: a wave, or hooks.
	Before  string
	Waited  time.Duration // 0: waiting does not help
	Message string        // which object, condition, pod and events
}

func (e *UnhealthyError) Error() string {
	if e.Waited == 0 {
		return fmt.Sprintf("%s waits for an object that can't become healthy: %s", e.Before, e.Message)
	}
	return fmt.Sprintf("%s waited %s: %s", e.Before, e.Waited, e.Message)
}

// needed returns the changes of the objects that a wave needs: those of earlier waves. If the
// target was applied in whole before, only objects that change now count: all were healthy once,
// and drift elsewhere must not block a wave.
func (a *applying) needed(before int) []*differ.Change {
	whole := a.record.TargetHash == a.want.Target.Hash
	var out []*differ.Change
	for _, c := range a.wanted() {
		if waveOf(c) < before && (!whole || c.Op != differ.OpNone) {
			out = append(out, c)
		}
	}
	return out
}

// wanted returns the changes of the target's objects.
func (a *applying) wanted() []*differ.Change {
	wanted := make(map[differ.ID]bool, len(a.want.Target.Objects))
	for _, o := range a.want.Target.Objects {
		id, _ := differ.Identify(o.Content)
		wanted[id] = true
	}
	var out []*differ.Change
	for i := range a.Plan.Changes {
		if c := &a.Plan.Changes[i]; wanted[c.ID] {
			out = append(out, c)
		}
	}
	return out
}

// anyHeld reports whether a danger rule keeps one of the changes from being
// applied.
func anyHeld(changes []*differ.Change) bool {
	return slices.ContainsFunc(changes, func(c *differ.Change) bool {
		return c.State == differ.StateHeld || c.State == differ.StateDenied
	})
}

// awaitHealth waits until objects are healthy, in the generation that was applied or a newer one. A
// degraded object ends the wait at once. The error is an [*UnhealthyError], or a read or context
// error.
func (a *applying) awaitHealth(ctx context.Context, before string, changes []*differ.Change) error {
	deadline := time.NewTimer(a.timeout)
	defer deadline.Stop()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		sick, err := a.sick(ctx, changes)
		if err != nil {
			return fmt.Errorf("%s: %w", before, err)
		}
		if len(sick) == 0 {
			return nil
		}
		changes = stillWaited(changes, sick) // a healthy object is not read again
		for _, p := range sick {
			if p.Health == v1alpha1.HealthDegraded {
				return &UnhealthyError{Before: before, Message: a.cluster.diagnoser.Diagnose(ctx, sick...)}
			}
		}
		look := time.NewTimer(pause)
		select {
		case <-look.C:
		case <-deadline.C:
			look.Stop()
			return &UnhealthyError{Before: before, Waited: a.timeout, Message: a.cluster.diagnoser.Diagnose(ctx, sick...)}
		case <-ctx.Done():
			look.Stop()
			return fmt.Errorf("%s: %w", before, ctx.Err())
		}
	}
}

func stillWaited(changes []*differ.Change, sick []health.Unhealthy) []*differ.Change {
	waited := make(map[differ.ID]bool, len(sick))
	for _, p := range sick {
		waited[p.ID] = true
	}
	var out []*differ.Change
	for _, c := range changes {
		if waited[c.ID] {
			out = append(out, c)
		}
	}
	return out
}

// sick returns the objects that are not healthy.
func (a *applying) sick(ctx context.Context, changes []*differ.Change) ([]health.Unhealthy, error) {
	var out []health.Unhealthy
	for _, c := range changes {
		m, err := a.mapping(ctx, c.ID, c.APIVersion)
		if err != nil {
			return nil, err
		}
		live, err := a.cluster.live.Get(ctx, m, c.ID)
		if err != nil {
			return nil, fmt.Errorf("wait for %s: %w", c.ID, err)
		}
		h := a.want.Health.Of(c.ID, live)
		if written, seen := a.recordGeneration(c.ID, live); seen < written {
			h = health.Result{
				ID: c.ID, Health: v1alpha1.HealthProgressing,
				Message: fmt.Sprintf("generation %d was applied, and %d is what was read last", written, seen),
			}
		}
		if h.Health != v1alpha1.HealthHealthy {
			out = append(out, health.Unhealthy{Result: h, Live: live})
		}
	}
	return out, nil
}

// recordGeneration stores what was read of an object. If that is older than the answer to a write, it is not
// stored, and seen returns both generations.
func (a *applying) recordGeneration(id differ.ID, live map[string]any) (written, seen int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, before := unstructured.Unstructured{Object: live}, unstructured.Unstructured{Object: a.live[id]}
	if live == nil || a.live[id] != nil && now.GetUID() == before.GetUID() && now.GetGeneration() < before.GetGeneration() {
		return before.GetGeneration(), now.GetGeneration()
	}
	a.live[id] = live
	return 0, 0
}
