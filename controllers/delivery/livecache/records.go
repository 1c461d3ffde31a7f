package livecache

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/records"
)

// WatchRecords calls seen with the component and the resourceVersion of each record that was
// written or deleted, from the first list on. seen must not block. The watch sees only the metadata
// of the Secrets, and ends with the context.
func (l *Cache) WatchRecords(ctx context.Context, seen func(component, version string)) error {
	client, err := metadata.NewForConfig(l.options.Config)
	if err != nil {
		return fmt.Errorf("watch records: %w", err)
	}
	from := source{gvr: corev1.SchemeGroupVersion.WithResource("secrets"), namespace: v1alpha1.Namespace, metadata: true}
	secrets := client.Resource(from.gvr).Namespace(from.namespace)
	store := &recordFeed{components: map[string]bool{}, seen: seen}
	var pages pages
	silent := klog.Logger{}
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if err := l.options.Wait(ctx); err != nil {
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
			if err := l.options.Wait(ctx); err != nil {
				return nil, err
			}
			o.LabelSelector = records.Label
			return l.streamer.watch(ctx, from, o, nil)
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
	return interned(s.GetLabels()[records.Label]), s.GetResourceVersion(), nil
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
