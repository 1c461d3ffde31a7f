package applier

import (
	"context"
	"fmt"

	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// Render renders a delivery from a cluster's files at some revision.
type Render func(context.Context, *registry.Cluster, *registry.Delivery) (*renderer.Target, error)

// HistoricalDesired is an earlier delivery that is to be kept, or restored.
type HistoricalDesired struct {
	Past records.Delivered
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
	Past      records.Delivered
	Component string
	Err       error
}

func (e *HistoricalError) Error() string {
	return fmt.Sprintf("component %s %s can't be had from git at %.12s any more: %v", e.Component, e.Past.Version, e.Past.Revision, e.Err)
}

func (e *HistoricalError) Unwrap() error { return e.Err }
