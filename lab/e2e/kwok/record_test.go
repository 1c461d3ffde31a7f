package kwok_test

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
	"github.com/keelson-io/keelson/lab/harness"
)

// world holds pods by UID at one moment.
type world map[types.UID]*corev1.Pod

// record holds every observed state of every pod of a namespace, in the API server's order.
type record struct {
	*test
	watch *harness.PodWatch
	begin world // before the first event that was not replayed
	seen  int   // number of events that were replayed
}

// follow records the changes of the namespace's pods from now on.
func (n *test) follow() *record {
	n.Helper()
	pods, err := harness.WatchPods(n.Context(), n.Client, n.Namespace)
	n.Check(err)
	n.Cleanup(pods.Stop)
	r := &record{test: n, watch: pods, begin: world{}}
	for i := range pods.Begin {
		r.begin[pods.Begin[i].UID] = &pods.Begin[i]
	}
	return r
}

// replay calls see for each state since the last call, together with the event that led to the
// state. The first call gets the previous state. The replayed events include everything that a list
// shows now. A broken watch fails the test.
func (r *record) replay(see func(now world, e watch.Event)) {
	r.Helper()
	r.caughtUp()
	see(r.begin, watch.Event{})
	events := r.watch.Events()
	for _, e := range events[r.seen:] {
		step(r.begin, e)
		see(r.begin, e)
	}
	r.seen = len(events)
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
	now := maps.Clone(r.begin)
	for _, e := range r.watch.Events()[r.seen:] {
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
		list, err = r.Client.CoreV1().Pods(r.Namespace).List(r.Context(), metav1.ListOptions{})
		r.Check(err)
		return len(list.Items) == len(now) && !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool {
			return now[p.UID] == nil || now[p.UID].ResourceVersion != p.ResourceVersion
		})
	})
}

// serves reports whether a pod is available: it serves, and is not being deleted.
func serves(p *corev1.Pod) bool { return stays(p) && harness.Serves(p) }

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
