package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// Render renders a delivery from a cluster's files at some revision.
type Render func(context.Context, *registry.Cluster, *registry.Delivery) (*renderer.Target, error)

// EarlierFleets renders what components had at earlier revisions of the fleet. It keeps the fleets
// of the revisions that were used last, and is safe for concurrent use.
type EarlierFleets struct {
	repo *registry.Repo

	mu     sync.Mutex
	fleets []*registry.Fleet // in order of use, the latest last
}

// earlierFleetsKept bounds how many revisions are kept in memory.
const earlierFleetsKept = 8

// NewEarlierFleets returns the earlier fleets of a repository.
func NewEarlierFleets(repo *registry.Repo) *EarlierFleets { return &EarlierFleets{repo: repo} }

func (e *EarlierFleets) at(ctx context.Context, revision string) (*registry.Fleet, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.IndexFunc(e.fleets, func(f *registry.Fleet) bool { return f.Revision == revision })
	if i >= 0 {
		f := e.fleets[i]
		e.fleets = append(slices.Delete(e.fleets, i, i+1), f)
		return f, nil
	}
	f, err := e.repo.LoadCommit(ctx, revision)
	if err != nil {
		return nil, err
	}
	e.fleets = append(e.fleets, f)
	if len(e.fleets) > earlierFleetsKept {
		e.fleets = slices.Delete(e.fleets, 0, 1)
	}
	return f, nil
}

// Delivered returns an earlier delivery, which is to be kept or restored. now is the fleet as git
// has it now, and d the same delivery there. They give the fleet's danger rules, the cluster's
// labels and the approvals. A [*HistoricalError] says why the delivery can't be rendered any more;
// any other error may be temporary.
func (e *EarlierFleets) Delivered(ctx context.Context, now *registry.Fleet, d *registry.Delivery, had records.Delivered, render Render) (Desired, error) {
	then, err := e.at(ctx, had.Revision)
	switch {
	case ctx.Err() != nil:
		return Desired{}, ctx.Err()
	case err != nil:
		return Desired{}, &HistoricalError{Past: had, Component: d.Component, Err: err}
	}
	return historicalDesired{Past: had, Now: now, Delivery: d, Then: then}.build(ctx, render)
}

// Pinned returns the delivery to which a component is pinned, as [EarlierFleets.Delivered] does. A
// [*PinError] says why it can't be rendered any more.
func (e *EarlierFleets) Pinned(ctx context.Context, now *registry.Fleet, d *registry.Delivery, pin *records.Pin, render Render) (Desired, error) {
	want, err := e.Delivered(ctx, now, d, records.Delivered{Version: pin.Version, Revision: pin.Revision, TargetHash: pin.TargetHash}, render)
	var gone *HistoricalError
	switch {
	case errors.As(err, &gone):
		return Desired{}, &PinError{Pin: *pin, Component: d.Component, Err: gone.Err}
	case ctx.Err() != nil:
		return Desired{}, ctx.Err()
	case err != nil:
		return Desired{}, fmt.Errorf("%s: %w", pin, err)
	}
	want.Pin = pin
	return want, nil
}

// historicalDesired is an earlier delivery that is to be kept, or restored.
type historicalDesired struct {
	Past     records.Delivered
	Now      *registry.Fleet
	Delivery *registry.Delivery
	// Then is the fleet at the revision of Past.
	Then *registry.Fleet
}

// build renders the delivery as before.
func (w historicalDesired) build(ctx context.Context, render Render) (Desired, error) {
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
