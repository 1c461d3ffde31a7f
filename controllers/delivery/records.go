package delivery

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
)

// watchRecords queues components whose records another client wrote. A rollback, or its end, need
// not change any object. The watch sees only the metadata of the Secrets.
func (a *agent) watchRecords(ctx context.Context, config *rest.Config, c *applier.Cluster, live *liveCache) error {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("watch records: %w", err)
	}
	from := source{gvr: corev1.SchemeGroupVersion.WithResource("secrets"), namespace: v1alpha1.Namespace, metadata: true}
	secrets := client.Resource(from.gvr).Namespace(from.namespace)
	store := &recordFeed{components: map[string]bool{}, seen: func(component, version string) {
		time.AfterFunc(settle, func() { // by then a write of our own has been answered
			if ctx.Err() == nil && c.RecordSeen(component, version) {
				a.queue.Add(component)
			}
		})
	}}
	var pages pages
	silent := klog.Logger{}
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if err := live.gate.wait(ctx); err != nil {
				return nil, err
			}
			o.LabelSelector = records.Label
			pages.remaining(o)
			list, err := secrets.List(ctx, o)
			if err == nil {
				err = pages.add(len(list.Items))
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if err := live.gate.wait(ctx); err != nil {
				return nil, err
			}
			o.LabelSelector = records.Label
			return live.streamer.watch(ctx, from, o, nil)
		},
	}, client), nil, store, cache.ReflectorOptions{Logger: &silent, Name: "records", TypeDescription: "records", MinWatchTimeout: watchFor})
	go r.RunWithContext(klog.NewContext(ctx, silent))
	return nil
}

// recordFeed handles the events of records. It implements [cache.ReflectorStore], whose methods are
// called one after the other.
type recordFeed struct {
	components map[string]bool // the components with a record; each name is interned
	seen       func(component, version string)
}

// Add implements [cache.ReflectorStore].
func (r *recordFeed) Add(o any) error { return r.Update(o) }

// Update implements [cache.ReflectorStore].
func (r *recordFeed) Update(o any) error {
	component, version, err := recordOf(o)
	if err == nil && len(r.components) >= maxObjects && !r.components[component] {
		return fmt.Errorf("watch records: %w", tooMany())
	}
	if err == nil {
		r.components[component] = true
		r.seen(component, version)
	}
	return err
}

// Delete implements [cache.ReflectorStore].
func (r *recordFeed) Delete(o any) error {
	component, version, err := recordOf(o)
	if err == nil {
		delete(r.components, component)
		r.seen(component, version)
	}
	return err
}

// Replace implements [cache.ReflectorStore].
func (r *recordFeed) Replace(list []any, version string) error {
	before := r.components
	r.components = make(map[string]bool, len(list))
	for _, o := range list {
		if err := r.Update(o); err != nil {
			return err
		}
	}
	for component := range before {
		if !r.components[component] {
			r.seen(component, version)
		}
	}
	return nil
}

// recordOf returns the component that a record belongs to, and the resourceVersion of its Secret.
func recordOf(o any) (component, version string, err error) {
	s, err := meta.Accessor(o)
	if err != nil {
		return "", "", fmt.Errorf("watch records: %w", err)
	}
	return once(s.GetLabels()[records.Label]), s.GetResourceVersion(), nil
}

// Resync implements [cache.ReflectorStore].
func (r *recordFeed) Resync() error { return nil }

// Transformer implements [cache.TransformingStore].
func (r *recordFeed) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if s, err := meta.Accessor(o); err == nil {
			s.SetManagedFields(nil)
			s.SetAnnotations(nil)
		}
		return o, nil
	}
}
