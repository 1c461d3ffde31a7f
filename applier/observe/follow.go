package observe

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/differ"
)

// The backoff between two reads of an object grows from MinBackoff to MaxBackoff.
const (
	MinBackoff = 250 * time.Millisecond
	MaxBackoff = 2 * time.Second
)

// Follow calls enough with one object after each change, nil while the object does not exist, until
// enough returns true. The error is of ctx or of a read.
//
// It watches instead of polling: a finished Job with a short time to live exists only for a moment.
func Follow(ctx context.Context, d dynamic.Interface, m *meta.RESTMapping, from Object, enough func(live map[string]any) bool) error {
	id, live := from.ID, from.Live
	objects := Resource(d, m, id)
	for backoff := MinBackoff; ; backoff = min(2*backoff, MaxBackoff) {
		if live == nil {
			var err error
			if live, err = Get(ctx, d, m, id); err != nil {
				return err
			}
		}
		if enough(live) {
			return nil
		}
		done, err := watchOne(ctx, objects, id.Name, live, enough)
		live = nil
		if done || err != nil {
			return err
		}
		again := time.NewTimer(backoff)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return fmt.Errorf("wait: %w", ctx.Err())
		}
	}
}

// Object is an object in a known state, after which no change may be missed; nil: it is read first.
type Object struct {
	ID   differ.ID
	Live map[string]any
}

// watchOne calls enough after each change of an object since live, until enough returns true or the
// watch ends, which happens after some minutes.
func watchOne(ctx context.Context, objects dynamic.ResourceInterface, name string, live map[string]any, enough func(map[string]any) bool) (done bool, err error) {
	w, err := objects.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		ResourceVersion: (&unstructured.Unstructured{Object: live}).GetResourceVersion(),
	})
	if err != nil {
		return false, fmt.Errorf("watch %s: %w", name, err)
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("wait: %w", ctx.Err())
		case e, ok := <-w.ResultChan():
			u, _ := e.Object.(*unstructured.Unstructured)
			if !ok || u == nil || e.Type == watch.Error {
				return false, nil
			}
			if enough(u.Object) || e.Type == watch.Deleted && enough(nil) {
				return true, nil
			}
		}
	}
}
