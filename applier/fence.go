package applier

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// inFlight is longer than a request of another session can be under way: such a request ends after
// half a minute, and an API server's own limit is one minute.
const inFlight = 2 * time.Minute

// unwritten is a resourceVersion that no object ever has: server-side apply with it creates an
// object, or fails when the object exists.
const unwritten = "1"

// fence takes a component over that another session left in the middle of an apply. That session
// may still run and have writes under way. It can no longer write the record. Every object that it
// was about to write gets a new resourceVersion, which those writes lack. Objects that it was about
// to create stay in the inventory. Afterwards fence returns [ErrStale].
func (a *applying) fence(ctx context.Context) error {
	rec := a.record.Record
	ours := a.cluster.records.Owns(a.record)
	if !rec.Open() || ours && !a.cluster.records.IsUnfenced(a.want.Component) {
		return nil
	}
	if !ours {
		var err error
		if a.record, err = a.cluster.records.Write(ctx, a.record, rec); err != nil {
			return stale(err)
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(observe.Parallel)
	for _, o := range rec.Objects {
		if o.Intent != "" && (o.Intent != records.IntentCreate || o.UID != "") { // a creation changes nothing that exists
			g.Go(func() error { return a.touch(gctx, o.ID, o.APIVersion, a.record.Epoch) })
		}
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("take over from writer %s: %w", rec.Writer, err)
	}
	a.cluster.records.Fenced(a.want.Component)
	return fmt.Errorf("%w: the component was taken over from writer %s, in epoch %d", ErrStale, rec.Writer, a.record.Epoch)
}

// touch gives an object, if it exists, a new resourceVersion.
func (a *applying) touch(ctx context.Context, id differ.ID, apiVersion string, epoch int64) error {
	s, err := a.cluster.discovery.Surface(ctx)
	if err != nil {
		return err
	}
	m, err := s.Mapping(schema.FromAPIVersionAndKind(apiVersion, id.Kind))
	if err != nil {
		if gone, ok := apis.AsNotServed(err); ok && gone.Unknown == nil {
			return nil // its CRD is missing: no write can reach the object
		}
		return fmt.Errorf("%s: %w", id, err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{v1alpha1.AnnotationEpoch: strconv.FormatInt(epoch, 10)},
	}})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	answer, err := a.resource(m, id).Patch(ctx, id.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: v1alpha1.EpochManager})
	if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("annotate %s with its epoch: %w", id, a.forbidden(ctx, m, id, err, "patch"))
	}
	a.cluster.live.Wrote(id, answer.Object)
	return nil
}
