package rollout

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// ErrUnknown reports that the hub was not read yet: no cluster may be released.
var ErrUnknown = errors.New("the rollouts of the hub are not known yet")

// Cache caches the Rollouts that are stored in the hub. After the first read it serves the last
// known ones, whether the hub answers or not: a released cluster stays released. It is safe for
// concurrent use.
type Cache struct {
	client client.WithWatch
	// changed is called for each Rollout that changed, one call at a time. A nil argument means
	// that the Rollout did not exist before, or does not exist now. Two nils mean that all Rollouts
	// are known.
	changed func(before, now *v1alpha1.Rollout)

	hearing  sync.Mutex // changed is called one at a time, in order
	mu       sync.Mutex
	rollouts map[string]*v1alpha1.Rollout // by component; nil: not known
}

// NewCache returns an empty cache; it makes no call.
func NewCache(hub *rest.Config, changed func(before, now *v1alpha1.Rollout)) (*Cache, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	m := meta.NewDefaultRESTMapper(nil) // discovery lags behind a CRD
	m.Add(v1alpha1.GroupVersion.WithKind("Rollout"), meta.RESTScopeNamespace)
	m.Add(v1alpha1.GroupVersion.WithKind("Delivery"), meta.RESTScopeNamespace)
	c, err := client.NewWithWatch(hub, client.Options{Scheme: scheme, Mapper: m})
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return &Cache{client: c, changed: changed}, nil
}

// isOf reports whether a Rollout belongs to a fleet: several fleets may share a hub.
func isOf(r *v1alpha1.Rollout, f *registry.Fleet) bool {
	return r.Annotations[v1alpha1.AnnotationFleet] == f.Spec.Name
}

// Of returns the Rollout of a component of a fleet; nil: there is none. The caller must not modify
// it. The error is [ErrUnknown].
func (b *Cache) Of(f *registry.Fleet, component string) (*v1alpha1.Rollout, error) {
	r, err := b.named(component)
	if r != nil && !isOf(r, f) {
		return nil, nil //nolint:nilnil // as said
	}
	return r, err
}

// named returns the Rollout of a name, of any fleet. The error is [ErrUnknown].
func (b *Cache) named(component string) (*v1alpha1.Rollout, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rollouts == nil {
		return nil, ErrUnknown
	}
	return b.rollouts[component], nil
}

// Now reads the status of a component's Rollout from the hub, bypassing the cache. The status is
// zero if there is no Rollout.
func (b *Cache) Now(ctx context.Context, component string) (*v1alpha1.RolloutStatus, error) {
	var r v1alpha1.Rollout
	if err := b.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: component}, &r); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read Rollout %s: %w", component, err)
	}
	return &r.Status, nil
}

// all returns the Rollouts by component; nil: they are not known yet.
func (b *Cache) all() map[string]*v1alpha1.Rollout {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rollouts == nil {
		return nil
	}
	return copied(b.rollouts)
}

// Watch updates the board from the hub until the context ends.
func (b *Cache) Watch(ctx context.Context) {
	watched(ctx, b.client, &v1alpha1.RolloutList{}, "", feed[*v1alpha1.Rollout]{all: b.replace, one: func(r *v1alpha1.Rollout, gone bool) {
		if gone {
			b.set(r.Name, nil)
		} else {
			b.set(r.Name, r)
		}
	}})
}

// wrote stores a Rollout that was just written, since the watch may deliver it later.
func (b *Cache) wrote(r *v1alpha1.Rollout) { b.set(r.Name, r) }

// set stores a Rollout, unless the board has a newer one; nil: the Rollout is gone.
func (b *Cache) set(component string, now *v1alpha1.Rollout) {
	b.hearing.Lock()
	defer b.hearing.Unlock()
	b.mu.Lock()
	before := b.rollouts[component]
	if now != nil && before != nil && !newer(now, before) {
		b.mu.Unlock()
		return
	}
	if now == nil {
		delete(b.rollouts, component)
	} else if b.rollouts != nil {
		b.rollouts[component] = now
	}
	known := b.rollouts != nil
	b.mu.Unlock()
	if known && (before != nil || now != nil) {
		b.changed(before, now)
	}
}

// newer reports whether now is a later version of the Rollout than before.
func newer(now, before *v1alpha1.Rollout) bool {
	if now.UID != before.UID {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(now.ResourceVersion, before.ResourceVersion)
	return err != nil || order > 0
}

// replace stores a full list, even over newer versions: a hub that was restored from a backup
// counts resourceVersions anew.
func (b *Cache) replace(list []*v1alpha1.Rollout) {
	found := make(map[string]*v1alpha1.Rollout, len(list))
	for _, r := range list {
		found[r.Name] = r
	}
	b.hearing.Lock()
	defer b.hearing.Unlock()
	b.mu.Lock()
	before := b.rollouts
	b.rollouts = copied(found)
	b.mu.Unlock()
	if before == nil {
		b.changed(nil, nil)
		return
	}
	for name, now := range found {
		if was := before[name]; was == nil || was.UID != now.UID || was.ResourceVersion != now.ResourceVersion {
			b.changed(was, now)
		}
	}
	for name, was := range before {
		if found[name] == nil {
			b.changed(was, nil)
		}
	}
}
