package applier

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/applier/order"
	"github.com/keelson-io/keelson/differ"
)

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
		if order.WaveOf(c) < before && (!whole || c.Op != differ.OpNone) {
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
	discovery *apis.Discoverer
	reader    observe.Reader
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
	for backoff := observe.MinBackoff; ; backoff = min(2*backoff, observe.MaxBackoff) {
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
		look := time.NewTimer(backoff)
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

const (
	// establishTimeout bounds the wait for new CRDs to be served.
	establishTimeout = time.Minute
	// publishTimeout bounds the wait for their schemas.
	publishTimeout = 10 * time.Second
)

// kindWait waits until the kinds of new CRDs can be used.
type kindWait struct {
	plan      *Prepared
	discovery *apis.Discoverer
	reader    observe.Reader
}

// await waits until new CRDs are served, and then reads their schemas for the rest of the plan.
func (w kindWait) await(ctx context.Context, crds []*differ.Change) error {
	for _, c := range crds {
		if c.Op == differ.OpDelete {
			continue
		}
		err := wait.PollUntilContextTimeout(ctx, pollInterval, establishTimeout, true, func(ctx context.Context) (bool, error) {
			live, err := w.reader.Fresh(ctx, w.plan.mappings[c.ID], c.ID)
			if err != nil || live == nil {
				return false, err
			}
			return w.plan.want.Health.Of(c.ID, live).Health == v1alpha1.HealthHealthy, nil
		})
		if err != nil {
			return fmt.Errorf("%s was not established within %s: %w", c.ID, establishTimeout, err)
		}
	}
	if err := w.published(ctx, crds); err != nil {
		return err
	}
	versions := map[differ.ID]schema.GroupVersionKind{}
	for i := range w.plan.Plan.Changes {
		c := &w.plan.Plan.Changes[i]
		versions[c.ID] = schema.FromAPIVersionAndKind(c.APIVersion, c.ID.Kind)
	}
	schemas, err := schemasOf(ctx, w.discovery, versions)
	if err != nil {
		return err
	}
	w.plan.schemas = schemas
	return nil
}

// published waits until the API server publishes the schemas of new kinds, some moments after it
// serves them. Without schemas types are deduced, so a timeout is no error.
func (w kindWait) published(ctx context.Context, crds []*differ.Change) error {
	var versions []schema.GroupVersion
	var kinds []schema.GroupVersionKind
	var groups []string
	for _, c := range crds {
		for _, gv := range servedVersions(c.Patch) {
			versions, groups = append(versions, gv), append(groups, gv.Group)
			kinds = append(kinds, gv.WithKind(definedKind(c.Patch).Kind))
		}
	}
	err := wait.PollUntilContextTimeout(ctx, pollInterval, publishTimeout, true, func(ctx context.Context) (bool, error) {
		w.discovery.Rediscover(groups...)
		schemas, err := w.discovery.Schemas(ctx, versions)
		if err != nil {
			return false, err
		}
		unknown := func(gvk schema.GroupVersionKind) bool { return !schemas.Knows(gvk) }
		return !slices.ContainsFunc(kinds, unknown), nil
	})
	if err != nil && (!wait.Interrupted(err) || ctx.Err() != nil) {
		return fmt.Errorf("schemas of new kinds: %w", err)
	}
	// Discovered now, so that the next plan of a settled cluster needs no request.
	if _, err := w.discovery.Surface(ctx); err != nil {
		return err
	}
	return nil
}

// servedVersions returns the served versions of the kind that a CRD defines.
func servedVersions(crd map[string]any) []schema.GroupVersion {
	spec, _ := crd["spec"].(map[string]any)
	versions, _ := spec["versions"].([]any)
	group := definedKind(crd).Group
	var out []schema.GroupVersion
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if name, ok := version["name"].(string); ok && version["served"] == true {
			out = append(out, schema.GroupVersion{Group: group, Version: name})
		}
	}
	return out
}
