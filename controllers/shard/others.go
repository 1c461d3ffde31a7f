package shard

import (
	"context"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// others are the Leases of the other replicas, from a watch. The watch may lag. So the API server
// checks each decision, or a wrong decision is harmless.
type others struct {
	self string // the name of our own Lease
	now  func() time.Time

	mu     sync.Mutex
	synced bool
	leases map[types.UID]*sighting
	// dead are the replicas whose Leases ran out, or vanished after a long silence.
	dead map[string]bool
}

// sighting is the last seen version of a Lease, and when it was first seen.
type sighting struct {
	lease *coordinationv1.Lease
	since time.Time
}

func newOthers(self string, now func() time.Time) *others {
	return &others{self: self, now: now, leases: map[types.UID]*sighting{}, dead: map[string]bool{}}
}

// watch follows the Leases until the context ends. It calls sees with each change, and with nil
// twice after the first list.
func (o *others) watch(ctx context.Context, client coordinationclient.LeaseInterface, log *slog.Logger, sees func(before, now *coordinationv1.Lease)) {
	leases := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = v1alpha1.LabelShare
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = v1alpha1.LabelShare
			return client.Watch(ctx, options)
		},
	}, &coordinationv1.Lease{}, 0, cache.Indexers{})
	seen := func(obj any) {
		if l, ok := obj.(*coordinationv1.Lease); ok {
			if before, news := o.saw(l); news {
				sees(before, l)
			}
		}
	}
	registration, err := leases.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: seen, UpdateFunc: func(_, obj any) { seen(obj) },
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if l, ok := obj.(*coordinationv1.Lease); ok {
				o.vanished(l)
				sees(l, nil)
			}
		},
	})
	if err != nil {
		log.Error("the leases of other replicas can't be watched", "error", err)
		return
	}
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			o.mu.Lock()
			o.synced = true
			o.mu.Unlock()
			sees(nil, nil)
		}
	}()
	leases.RunWithContext(ctx)
}

// saw stores a Lease, and returns its previous version; nil: it is new. It returns false if the
// version is unchanged or the Lease is our own.
func (o *others) saw(l *coordinationv1.Lease) (*coordinationv1.Lease, bool) {
	if l.Name == o.self {
		return nil, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.leases[l.UID]
	if before != nil && before.lease.ResourceVersion == l.ResourceVersion {
		return nil, false
	}
	o.leases[l.UID] = &sighting{lease: l, since: o.now()}
	if before == nil {
		return nil, true
	}
	return before.lease, true
}

func (o *others) vanished(l *coordinationv1.Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.leases[l.UID]; s != nil && o.silent(s) {
		o.dead[holder(l)] = true
	}
	delete(o.leases, l.UID)
}

// buried notes that this replica deleted a Lease.
func (o *others) buried(l *coordinationv1.Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dead[holder(l)] = true
	delete(o.leases, l.UID)
}

// died reports whether a replica's Lease ran out.
func (o *others) died(identity string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dead[identity]
}

// all returns the known Leases; false: the first list is not complete.
func (o *others) all() ([]*coordinationv1.Lease, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]*coordinationv1.Lease, 0, len(o.leases))
	for _, s := range o.leases {
		out = append(out, s.lease)
	}
	return out, o.synced
}

// ranOut reports whether a Lease did not change for its duration, by the local clock: the clocks of
// different machines need not agree.
func (o *others) ranOut(l *coordinationv1.Lease) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.leases[l.UID]
	return s != nil && s.lease.ResourceVersion == l.ResourceVersion && o.now().Sub(s.since) >= lasts(l)
}

// silent uses three quarters of the duration, because another replica may delete a Lease a little
// earlier.
func (o *others) silent(s *sighting) bool { return o.now().Sub(s.since) >= lasts(s.lease)*3/4 }

func lasts(l *coordinationv1.Lease) time.Duration {
	return time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
}
