package kwok_test

import (
	"context"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
)

// world holds pods by UID at one moment.
type world map[types.UID]*corev1.Pod

// record holds every observed state of every pod of a namespace, in the API server's order. It is
// safe for concurrent use.
type record struct {
	*test
	mu     sync.Mutex
	begin  world // before the first event
	events []watch.Event
}

// follow records the changes of the namespace's pods from now on.
func (n *test) follow() *record {
	n.Helper()
	pods := n.Client.CoreV1().Pods(n.Namespace)
	list, err := pods.List(n.Context(), metav1.ListOptions{})
	if err != nil {
		n.Fatal(err)
	}
	r := &record{test: n, begin: world{}}
	for i := range list.Items {
		r.begin[list.Items[i].UID] = &list.Items[i]
	}
	follow, err := watchtools.NewRetryWatcherWithContext(n.Context(), list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return pods.Watch(ctx, o) },
	})
	if err != nil {
		n.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range follow.ResultChan() {
			r.mu.Lock()
			r.events = append(r.events, e)
			r.mu.Unlock()
		}
	}()
	n.Cleanup(func() {
		follow.Stop()
		<-ended
	})
	return r
}

// replay calls see for each state since the last call, together with the event that led to the
// state. The first call gets the previous state. The replayed events include everything that a list
// shows now. A broken watch fails the test.
func (r *record) replay(see func(now world, e watch.Event)) {
	r.Helper()
	r.caughtUp()
	r.mu.Lock()
	defer r.mu.Unlock()
	see(r.begin, watch.Event{})
	for _, e := range r.events {
		step(r.begin, e)
		see(r.begin, e)
	}
	r.events = nil
}

func step(now world, e watch.Event) {
	pod, ok := e.Object.(*corev1.Pod)
	if !ok {
		return // caughtUp reports this error
	}
	if e.Type == watch.Deleted {
		delete(now, pod.UID)
	} else {
		now[pod.UID] = pod
	}
}

// last returns the newest observed state.
func (r *record) last() world {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := maps.Clone(r.begin)
	for _, e := range r.events {
		if _, ok := e.Object.(*corev1.Pod); !ok {
			r.Fatalf("the watch broke, and nothing can be said: %v", e.Object)
		}
		step(now, e)
	}
	return now
}

// until waits until the newest state satisfies is.
func (r *record) until(what string, is func(world) bool) {
	r.Helper()
	err := wait.PollUntilContextTimeout(r.Context(), workloadtest.Poll, workloadtest.Patience, true, func(context.Context) (bool, error) { return is(r.last()), nil })
	if err != nil {
		r.Fatalf("never %s: %v", what, err)
	}
}

// caughtUp waits until the watch has shown the same versions of all pods as a list. It requires
// that the pods no longer change.
func (r *record) caughtUp() {
	r.Helper()
	var list *corev1.PodList
	r.until("as a list has it", func(now world) bool {
		var err error
		if list, err = r.Client.CoreV1().Pods(r.Namespace).List(r.Context(), metav1.ListOptions{}); err != nil {
			r.Fatal(err)
		}
		return len(list.Items) == len(now) && !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool {
			return now[p.UID] == nil || now[p.UID].ResourceVersion != p.ResourceVersion
		})
	})
}

// serves reports whether a pod is available: it is ready, not being deleted, and its gate isn't
// closed. The kubelet may not have noticed the closed gate yet.
func serves(p *corev1.Pod) bool {
	ready, open := false, true
	for _, c := range p.Status.Conditions {
		switch c.Type { //nolint:exhaustive // two of many
		case corev1.PodReady:
			ready = c.Status == corev1.ConditionTrue
		case "InPlaceUpdateReady":
			open = c.Status == corev1.ConditionTrue
		}
	}
	return p.DeletionTimestamp == nil && ready && open
}

// count returns the number of pods that satisfy is.
func (w world) count(is func(*corev1.Pod) bool) int {
	n := 0
	for _, p := range w {
		if is(p) {
			n++
		}
	}
	return n
}

func stays(p *corev1.Pod) bool { return p.DeletionTimestamp == nil }

func runs(image string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return stays(p) && p.Spec.Containers[0].Image == image }
}

// uids returns the UIDs of the pods, by name.
func (w world) uids() map[string]types.UID {
	out := map[string]types.UID{}
	for uid, p := range w {
		out[p.Name] = uid
	}
	return out
}
