package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/deletion"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// Counts are the writes that were done to objects.
type Counts struct {
	// A replacement counts as a deletion and a creation.
	Created, Updated, Deleted, Restored int
}

// wrote counts a creation or an update.
func (n *Counts) wrote(c *differ.Change) {
	switch {
	case c.Op == differ.OpCreate, c.Op == differ.OpReplace:
		n.Created++
	case slices.ContainsFunc(c.Fields, func(f differ.Field) bool { return f.Action == differ.ActionRestore }):
		n.Restored++
		n.Updated++
	default:
		n.Updated++
	}
}

// objectWriter carries out the changes of a plan, each on its own. It is safe for concurrent use.
type objectWriter struct {
	plan       *Prepared
	discovery  *apis.Discoverer
	live       *observe.Objects
	dryRuns    *dryRuns
	namespaces *namespaces
	objects    *appliedObjects
	timeout    time.Duration // for an object that is replaced to be gone

	mu     sync.Mutex
	counts Counts
}

// write writes one object.
func (w *objectWriter) write(ctx context.Context, c *differ.Change) error {
	m, err := w.plan.mapping(ctx, w.discovery, c.ID, c.APIVersion)
	if err != nil {
		return err
	}
	defer w.dryRuns.forget(c.ID)
	switch c.Op {
	case differ.OpDelete:
		return w.delete(ctx, m, c)
	case differ.OpReplace:
		if err := w.makeRoom(ctx, m, c); err != nil {
			return err
		}
	case differ.OpCreate, differ.OpUpdate, differ.OpNone, differ.OpForget:
	}
	return w.patch(ctx, m, c)
}

// makeRoom deletes an object that is to be created anew, and waits until it is gone. The record
// already has the intent to replace it, so another process can continue after a crash.
func (w *objectWriter) makeRoom(ctx context.Context, m *meta.RESTMapping, c *differ.Change) error {
	old := &unstructured.Unstructured{Object: c.Live}
	err := deletion.Send(ctx, deletion.OfChange(c), w.plan.resource(m, c.ID), DeleteOptions(old))
	if err != nil && !apierrors.IsNotFound(err) {
		return stale(fmt.Errorf("replace %s: delete: %w", c.ID, w.plan.forbidden(ctx, m, c.ID, err, "delete")))
	}
	var left *unstructured.Unstructured
	err = wait.PollUntilContextTimeout(ctx, pollInterval, w.timeout, true, func(ctx context.Context) (bool, error) {
		live, err := w.live.Fresh(ctx, m, c.ID)
		if err != nil {
			return false, err
		}
		left = &unstructured.Unstructured{Object: live}
		return live == nil, nil
	})
	switch {
	case wait.Interrupted(err) && left != nil && left.GetUID() != old.GetUID():
		return fmt.Errorf("%w: replace %s: another client created it anew", ErrStale, c.ID)
	case wait.Interrupted(err) && ctx.Err() == nil && left != nil:
		return fmt.Errorf("replace %s: it is not gone after %s; its finalizers: %v", c.ID, w.timeout, left.GetFinalizers())
	case err != nil:
		return fmt.Errorf("replace %s: wait until it is gone: %w", c.ID, err)
	}
	w.count(func(n *Counts) { n.Deleted++ })
	w.objects.removed(c.ID)
	return nil
}

// patch creates or updates an object.
func (w *objectWriter) patch(ctx context.Context, m *meta.RESTMapping, c *differ.Change) error {
	objects := w.plan.resource(m, c.ID)
	var base *unstructured.Unstructured // an update requires this version
	if c.Op == differ.OpUpdate {
		base = &unstructured.Unstructured{Object: c.Live}
	}
	migrated, err := migrate(ctx, objects, c)
	if err != nil {
		return w.plan.forbidden(ctx, m, c.ID, err, "patch")
	}
	if migrated != nil {
		base = migrated
	}
	for _, step := range Applies(c) {
		answer, err := bind(ctx, c.ID, func() (*unstructured.Unstructured, error) {
			return send(ctx, objects, step.Patch, base, step.Manager)
		})
		if err != nil {
			err = w.unlearn(c, w.plan.forbidden(ctx, m, c.ID, err, verbs(c)...))
			return fmt.Errorf("%s %s%s: %w", c.Op, c.ID, step.Why, err)
		}
		base = answer
	}
	w.live.Wrote(c.ID, base.Object)
	w.objects.wrote(records.Object{
		ID: c.ID, APIVersion: c.APIVersion, UID: string(base.GetUID()), Content: c.Record,
		Normal: differ.Residue(w.plan.schemas, *c, base.Object, w.plan.policy),
	}, base.Object)
	w.count(func(n *Counts) { n.wrote(c) })
	return nil
}

// count changes the counts.
func (w *objectWriter) count(change func(*Counts)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.counts)
}

// total returns the counts so far.
func (w *objectWriter) total() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts
}

// delete removes an object. The record keeps it until it is gone.
func (w *objectWriter) delete(ctx context.Context, m *meta.RESTMapping, c *differ.Change) error {
	err := deletion.Send(ctx, deletion.OfChange(c), w.plan.resource(m, c.ID), DeleteOptions(&unstructured.Unstructured{Object: c.Live}))
	if err != nil && !apierrors.IsNotFound(err) {
		return stale(fmt.Errorf("delete %s: %w", c.ID, w.plan.forbidden(ctx, m, c.ID, err, "delete")))
	}
	w.count(func(n *Counts) { n.Deleted++ })
	return nil
}

// unlearn handles a refused write. If the write had no dry run, the error wraps [ErrStale], and the
// next plan makes one. Errors that may be temporary change nothing.
func (w *objectWriter) unlearn(c *differ.Change, err error) error {
	if unanswered(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return err
	}
	w.dryRuns.unlearn(w.plan.familiar(c))
	if w.plan.unasked != c.ID {
		return err
	}
	return fmt.Errorf("%w: %w: %w", ErrStale, errUnfamiliar, err)
}

// failed withdraws the intent of a write that was refused for certain.
func (w *objectWriter) failed(c *differ.Change, err error) {
	if errors.Is(err, ErrStale) && c.Op == differ.OpCreate {
		w.live.Distrust(c.ID)
	}
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		w.namespaces.forget(c.ID.Namespace) // it may be deleted, or terminating
	}
	if !unanswered(err) {
		w.objects.undo(c.ID)
	}
}
