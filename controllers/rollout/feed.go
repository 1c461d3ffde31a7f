package rollout

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// watchFor is the minimum duration of one watch.
const watchFor = 30 * time.Minute

// watched passes one kind of Keelson's objects in the hub to a feed until the context ends. It
// begins with the latest state, and not with an older state from a cache of the API server.
func watched[T client.Object](ctx context.Context, c client.WithWatch, list client.ObjectList, selector string, to feed[T]) {
	silent := klog.Logger{}
	fresh := func() client.ObjectList {
		is, _ := list.DeepCopyObject().(client.ObjectList)
		return is
	}
	r := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			if o.ResourceVersion == "0" {
				o.ResourceVersion = ""
			}
			is := fresh()
			err := c.List(ctx, is, &client.ListOptions{Namespace: v1alpha1.Namespace, Raw: &o})
			return is, err //nolint:wrapcheck // the reflector looks at it
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return c.Watch(ctx, fresh(), &client.ListOptions{Namespace: v1alpha1.Namespace, Raw: &o})
		},
	}, nil, to, cache.ReflectorOptions{Logger: &silent, Name: "keelson", TypeDescription: "rollouts", MinWatchTimeout: watchFor})
	r.RunWithContext(klog.NewContext(ctx, silent))
}

// feed receives objects. It implements [cache.ReflectorStore], whose methods are called one after
// the other.
type feed[T client.Object] struct {
	// one is called for each object that changed or is gone; all is called with a full list.
	one func(o T, gone bool)
	all func([]T)
	// slim removes unused fields from an object; nil: none.
	slim func(T)
}

// Add implements [cache.ReflectorStore].
func (f feed[T]) Add(o any) error { return f.Update(o) }

// Update implements [cache.ReflectorStore].
func (f feed[T]) Update(o any) error { return f.deliver(o, false) }

// Delete implements [cache.ReflectorStore].
func (f feed[T]) Delete(o any) error { return f.deliver(o, true) }

func (f feed[T]) deliver(o any, gone bool) error {
	is, ok := o.(T)
	if !ok {
		return fmt.Errorf("watch: a %T", o)
	}
	f.one(is, gone)
	return nil
}

// Replace implements [cache.ReflectorStore].
func (f feed[T]) Replace(list []any, _ string) error {
	found := make([]T, 0, len(list))
	for _, o := range list {
		is, ok := o.(T)
		if !ok {
			return fmt.Errorf("list: a %T", o)
		}
		found = append(found, is)
	}
	f.all(found)
	return nil
}

// Resync implements [cache.ReflectorStore].
func (f feed[T]) Resync() error { return nil }

// Transformer implements [cache.TransformingStore].
func (f feed[T]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if is, ok := o.(client.Object); ok {
			is.SetManagedFields(nil)
		}
		if is, ok := o.(T); ok && f.slim != nil {
			f.slim(is)
		}
		return o, nil
	}
}
