package applier

import (
	"context"
	"fmt"
	"slices"
	"time"

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
func (p *Prepared) needed(before int) []*differ.Change {
	whole := p.record.TargetHash == p.want.Target.Hash
	var out []*differ.Change
	for _, c := range p.wanted() {
		if waveOf(c) < before && (!whole || c.Op != differ.OpNone) {
			out = append(out, c)
		}
	}
	return out
}

// wanted returns the changes of the target's objects.
func (p *Prepared) wanted() []*differ.Change {
	wanted := make(map[differ.ID]bool, len(p.want.Target.Objects))
	for _, o := range p.want.Target.Objects {
		id, _ := differ.Identify(o.Content)
		wanted[id] = true
	}
	var out []*differ.Change
	for i := range p.Plan.Changes {
		if c := &p.Plan.Changes[i]; wanted[c.ID] {
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

func stillWaited(changes []*differ.Change, unhealthy []health.Unhealthy) []*differ.Change {
	waited := make(map[differ.ID]bool, len(unhealthy))
	for _, p := range unhealthy {
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

// healthWait waits until objects that an apply wrote are healthy.
type healthWait struct {
	plan      *Prepared
	discovery *discoverer
	reader    Reader
	objects   *appliedObjects
	diagnoser health.Diagnoser
	timeout   time.Duration
}

// await waits until objects are healthy, in the generation that was applied or a newer one. A
// degraded object ends the wait at once. The error is an [*UnhealthyError], or a read or context
// error.
func (w healthWait) await(ctx context.Context, before string, changes []*differ.Change) error {
	deadline := time.NewTimer(w.timeout)
	defer deadline.Stop()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		unhealthy, err := w.unhealthy(ctx, changes)
		if err != nil {
			return fmt.Errorf("%s: %w", before, err)
		}
		if len(unhealthy) == 0 {
			return nil
		}
		changes = stillWaited(changes, unhealthy) // a healthy object is not read again
		for _, p := range unhealthy {
			if p.Health == v1alpha1.HealthDegraded {
				return &UnhealthyError{Before: before, Message: w.diagnoser.Diagnose(ctx, unhealthy...)}
			}
		}
		look := time.NewTimer(pause)
		select {
		case <-look.C:
		case <-deadline.C:
			look.Stop()
			return &UnhealthyError{Before: before, Waited: w.timeout, Message: w.diagnoser.Diagnose(ctx, unhealthy...)}
		case <-ctx.Done():
			look.Stop()
			return fmt.Errorf("%s: %w", before, ctx.Err())
		}
	}
}

// unhealthy returns the objects that are not healthy.
func (w healthWait) unhealthy(ctx context.Context, changes []*differ.Change) ([]health.Unhealthy, error) {
	var out []health.Unhealthy
	for _, c := range changes {
		m, err := w.plan.mapping(ctx, w.discovery, c.ID, c.APIVersion)
		if err != nil {
			return nil, err
		}
		live, err := w.reader.Get(ctx, m, c.ID)
		if err != nil {
			return nil, fmt.Errorf("wait for %s: %w", c.ID, err)
		}
		h := w.plan.want.Health.Of(c.ID, live)
		if written, seen := w.objects.observe(c.ID, live); seen < written {
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
