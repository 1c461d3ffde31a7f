// Package cloneset runs CloneSets: it creates pods, deletes those that are missed
// least, and brings them to new revisions, in place where that can be.
//
// A look at a CloneSet takes its pods as the informer has them, decides in numbers
// (decide), chooses pods (doomed, moved), and writes. Whatever is killed on the way is
// seen by the next look: nothing is remembered but in the objects.
package cloneset

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/host"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

const (
	kind = "CloneSet"
	// burst bounds how many pods one look creates, deletes or updates, so that the
	// status tells how far it is.
	burst = 250
	// statusEvery is how long a status that goes on changing is not written again.
	statusEvery = time.Second
)

// Reconciler brings CloneSets about.
type Reconciler struct {
	objects client.Client // reads are the informers'
	pods    kubernetes.Interface
	known   *podclient.Known
	events  events.EventRecorder
	options inplace.Options
	now     func() time.Time
	expect  *expectations.Expectations
	// revisions keeps those of the templates.
	revisions revision.Store

	mu       sync.Mutex
	statuses map[types.UID]time.Time // when each was written last
}

// Add has a manager run CloneSets.
func Add(m ctrl.Manager, o host.Options) error {
	h, err := host.New(m, kind, "cloneset-controller", o)
	if err != nil {
		return fmt.Errorf("CloneSets: %w", err)
	}
	r := &Reconciler{
		objects: h.Objects, pods: h.Pods, known: h.Known, events: h.Events, options: o.InPlace, now: o.Now,
		expect: h.Expect, revisions: h.Revisions, statuses: map[types.UID]time.Time{},
	}
	if err := h.Watch(m, &v1beta1.CloneSet{}).Complete(r); err != nil {
		return fmt.Errorf("CloneSets: %w", err)
	}
	return nil
}

// Reconcile implements [reconcile.Reconciler].
func (r *Reconciler) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	var set v1beta1.CloneSet
	if err := r.objects.Get(ctx, q.NamespacedName, &set); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) //nolint:wrapcheck // it says what and where
	}
	if set.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // its pods are the garbage collector's
	}
	if r.expect.Waits(set.UID) {
		return reconcile.Result{RequeueAfter: expectations.Patience}, nil
	}
	if err := check(&set.Spec); err != nil {
		return reconcile.Result{}, r.refuse(ctx, &set, err)
	}
	l, err := r.look(ctx, &set)
	if err != nil {
		return reconcile.Result{}, err
	}
	err = l.act(ctx)
	after, statusErr := l.writeStatus(ctx, err)
	if err = errors.Join(err, statusErr); apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: time.Second}, nil // somebody was faster: look again
	}
	if after == 0 || l.after > 0 && l.after < after {
		after = l.after
	}
	return reconcile.Result{RequeueAfter: after}, err
}
