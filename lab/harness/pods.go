package harness

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// PodWatch holds every observed state of every pod of a namespace, in the API server's order. It is
// safe for concurrent use.
type PodWatch struct {
	Begin []corev1.Pod // before the first event

	follow *watchtools.RetryWatcher
	ended  chan struct{}
	mu     sync.Mutex
	events []watch.Event
}

// WatchPods records the changes of the namespace's pods from now on, until the context ends or Stop
// is called.
func WatchPods(ctx context.Context, client kubernetes.Interface, namespace string) (*PodWatch, error) {
	pods := client.CoreV1().Pods(namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	w := &PodWatch{Begin: list.Items, ended: make(chan struct{})}
	w.follow, err = watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return pods.Watch(ctx, o) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	go func() {
		defer close(w.ended)
		for e := range w.follow.ResultChan() {
			w.mu.Lock()
			w.events = append(w.events, e)
			w.mu.Unlock()
		}
	}()
	return w, nil
}

// Events returns the events so far, which the caller must not change. An event without a pod shows
// that the watch broke.
func (w *PodWatch) Events() []watch.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events
}

// Stop ends the watch.
func (w *PodWatch) Stop() {
	w.follow.Stop()
	<-w.ended
}

// Serves reports whether a pod is ready, and its gate InPlaceUpdateReady isn't closed. The kubelet
// may not have seen a closed gate yet.
func Serves(p *corev1.Pod) bool {
	ready, open := false, true
	for _, c := range p.Status.Conditions {
		switch c.Type { //nolint:exhaustive // two of many
		case corev1.PodReady:
			ready = c.Status == corev1.ConditionTrue
		case "InPlaceUpdateReady":
			open = c.Status == corev1.ConditionTrue
		}
	}
	return ready && open
}
