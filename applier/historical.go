package applier

import (
	"context"
	"fmt"
	"slices"
	"unique"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// Delivered is the last delivery of a component that was applied in whole: its version, revision of
// the fleet repository, and rendered target. The zero value: there was none.
type Delivered struct {
	Version, Revision, TargetHash string
}

// Delivered returns the last delivery of a component that was applied in whole, from its record.
// For a settled component it makes no request.
func (c *Cluster) Delivered(ctx context.Context, component string) (Delivered, error) {
	c.mu.Lock()
	q := c.settledCache[component]
	c.mu.Unlock()
	if q != nil {
		return q.delivered.Value(), nil
	}
	r, err := c.readRecord(ctx, component)
	if err != nil {
		return Delivered{}, err
	}
	return r.delivered(), nil
}

func (r *Record) delivered() Delivered {
	return Delivered{Version: r.Version, Revision: r.Revision, TargetHash: r.TargetHash}
}

// DeliveredAs returns the last delivery of a component that had a target; false: its history has
// none.
func (c *Cluster) DeliveredAs(ctx context.Context, component, targetHash string) (Delivered, bool, error) {
	last, err := c.Delivered(ctx, component)
	if err != nil || last.TargetHash == targetHash {
		return last, err == nil, err
	}
	r, err := c.readRecord(ctx, component)
	if err != nil {
		return Delivered{}, false, err
	}
	i := slices.IndexFunc(r.History, func(e HistoryEntry) bool { return e.TargetHash == targetHash })
	if i < 0 {
		return Delivered{}, false, nil
	}
	e := r.History[i]
	return Delivered{Version: e.Version, Revision: e.Revision, TargetHash: e.TargetHash}, true, nil
}

// once shares one copy of a delivery that many clusters have.
func (d Delivered) once() unique.Handle[Delivered] { return unique.Make(d) }

// Render renders a delivery from a cluster's files at some revision.
type Render func(context.Context, *registry.Cluster, *registry.Delivery) (*renderer.Target, error)

// HistoricalDesired is an earlier delivery that is to be kept, or restored.
type HistoricalDesired struct {
	Past Delivered
	// Now is the fleet as git has it now, and Delivery the same delivery there. They give the
	// fleet's danger rules, the cluster's labels and the approvals.
	Now      *registry.Fleet
	Delivery *registry.Delivery
	// Then is the fleet at the revision of Past.
	Then *registry.Fleet
}

// Build renders the delivery as before. A [*HistoricalError] says why this is no longer possible; any
// other error may be temporary.
func (w HistoricalDesired) Build(ctx context.Context, render Render) (Desired, error) {
	component := w.Delivery.Component
	fail := func(format string, args ...any) (Desired, error) {
		return Desired{}, &HistoricalError{Past: w.Past, Component: component, Err: fmt.Errorf(format, args...)}
	}
	cluster := w.Then.Cluster(w.Delivery.Cluster)
	if cluster == nil {
		return fail("there was no cluster %s at that revision", w.Delivery.Cluster)
	}
	d := cluster.Delivery(component)
	switch {
	case len(cluster.Problems) > 0:
		return fail("%w", cluster.Problems.Err())
	case d == nil:
		return fail("cluster %s did not have it at that revision", cluster.Name)
	case len(d.Problems) > 0:
		return fail("%w", d.Problems.Err())
	case d.Absent:
		return fail("git said at that revision that it is to be removed")
	case d.Version.Name != w.Past.Version:
		return fail("it was %s at that revision", d.Version.Name)
	}
	target, err := render(ctx, cluster, d)
	if err != nil {
		return Desired{}, fmt.Errorf("component %s, %s of %.12s: %w", component, w.Past.Version, w.Past.Revision, err)
	}
	if target.Hash != w.Past.TargetHash {
		return fail("it renders to target %.12s, and was %.12s then: the cluster serves other kinds or versions by now, "+
			"or this Keelson renders it in another way", target.Hash, w.Past.TargetHash)
	}
	then := *d
	then.Approvals = w.Delivery.Approvals
	want, err := NewDesired(w.Now, &then, target)
	if err != nil {
		return Desired{}, err
	}
	want.Revision = w.Past.Revision
	return want, nil
}

// HistoricalError reports that an earlier delivery can't be rendered from git any more. The cluster stays
// as it is.
type HistoricalError struct {
	Past      Delivered
	Component string
	Err       error
}

func (e *HistoricalError) Error() string {
	return fmt.Sprintf("component %s %s can't be had from git at %.12s any more: %v", e.Component, e.Past.Version, e.Past.Revision, e.Err)
}

func (e *HistoricalError) Unwrap() error { return e.Err }
