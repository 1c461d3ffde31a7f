package podclient_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
)

// ear is an informer's events, and what is known by them.
type ear struct {
	*testing.T
	known   *podclient.Known
	expect  *expectations.Expectations
	handler handler.EventHandler
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func newEar(t *testing.T) *ear {
	t.Helper()
	e := &ear{T: t, known: podclient.NewKnown("CloneSet"), expect: expectations.New(time.Now)}
	e.handler = podclient.Heard(e.known, e.expect)
	e.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(e.queue.ShutDown)
	return e
}

// pod is one of the workload "web" of a group.
func pod(uid types.UID, version, group string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), Namespace: "shop", UID: uid, ResourceVersion: version}}
	if group != "" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: group + "/v1beta1", Kind: "CloneSet", Name: "web", UID: "web", Controller: new(true)}}
	}
	return p
}

// versions are those of the pods that a workload of a namespace has.
func (e *ear) versions(namespace string) map[string]string {
	out := map[string]string{}
	for _, p := range e.known.Of(&metav1.ObjectMeta{Namespace: namespace, UID: "web"}) {
		out[p.Name] = p.ResourceVersion
	}
	return out
}

func (e *ear) is(what string, want map[string]string) {
	e.Helper()
	got := e.versions("shop")
	if len(got) != len(want) {
		e.Errorf("%s: %v", what, got)
	}
	for name, version := range want {
		if got[name] != version {
			e.Errorf("%s: %v", what, got)
		}
	}
}

// What is known of a workload's pods is what the last event of each said.
func TestKnown(t *testing.T) {
	t.Parallel()
	e, group := newEar(t), v1beta1.GroupVersion.Group
	e.handler.Create(t.Context(), event.CreateEvent{Object: pod("a", "1", group)}, e.queue)
	e.handler.Create(t.Context(), event.CreateEvent{Object: pod("b", "2", group)}, e.queue)
	e.handler.Create(t.Context(), event.CreateEvent{Object: pod("c", "3", "example.com")}, e.queue)
	e.handler.Create(t.Context(), event.CreateEvent{Object: pod("d", "4", "")}, e.queue)
	e.is("those of others aren't its own", map[string]string{"a": "1", "b": "2"})
	e.handler.Update(t.Context(), event.UpdateEvent{ObjectOld: pod("a", "1", group), ObjectNew: pod("a", "5", group)}, e.queue)
	e.is("one changed", map[string]string{"a": "5", "b": "2"})
	e.handler.Update(t.Context(), event.UpdateEvent{ObjectOld: pod("a", "5", group), ObjectNew: pod("a", "6", "")}, e.queue)
	e.is("one was set free", map[string]string{"b": "2"})
	e.handler.Update(t.Context(), event.UpdateEvent{ObjectOld: pod("d", "4", ""), ObjectNew: pod("d", "7", group)}, e.queue)
	e.is("one was taken in", map[string]string{"b": "2", "d": "7"})
	e.handler.Delete(t.Context(), event.DeleteEvent{Object: pod("b", "8", group)}, e.queue)
	e.is("one has gone", map[string]string{"d": "7"})

	foreign := pod("e", "9", group)
	foreign.Namespace = "elsewhere"
	e.handler.Create(t.Context(), event.CreateEvent{Object: foreign}, e.queue)
	e.is("one of another namespace only says that it is its own", map[string]string{"d": "7"})
}

// What expectations have seen is known: a look that no longer waits finds what it wrote.
func TestKnownBeforeSeen(t *testing.T) {
	t.Parallel()
	e := newEar(t)
	written := pod("a", "5", v1beta1.GroupVersion.Group)
	e.expect.Wrote("web", written)
	if !e.expect.Waits("web") {
		t.Fatal("nobody waits for what was written")
	}
	e.handler.Create(t.Context(), event.CreateEvent{Object: written}, e.queue)
	if e.expect.Waits("web") {
		t.Error("it was seen")
	}
	e.is("it is known", map[string]string{"a": "5"})
}

// A pod about which nothing was to be done is left alone until it changes, or until the
// workload does.
func TestUnsettled(t *testing.T) {
	t.Parallel()
	e, group := newEar(t), v1beta1.GroupVersion.Group
	client := podclient.Client{Known: e.known, Expect: e.expect, Owner: "web", Generation: 1, Now: time.Unix(0, 0)}
	settle := func(want int) {
		t.Helper()
		unsettled := client.Unsettled(e.known.Of(&metav1.ObjectMeta{Namespace: "shop", UID: "web"}))
		if len(unsettled) != want {
			t.Errorf("%d pods are unsettled, and not %d", len(unsettled), want)
		}
		for _, p := range unsettled {
			if _, err := client.Settle(t.Context(), p); err != nil {
				t.Error(err)
			}
		}
	}
	first := pod("a", "1", group)
	e.handler.Create(t.Context(), event.CreateEvent{Object: first}, e.queue)
	e.handler.Create(t.Context(), event.CreateEvent{Object: pod("b", "2", group)}, e.queue)
	settle(2)
	settle(0)
	e.handler.Update(t.Context(), event.UpdateEvent{ObjectOld: first, ObjectNew: pod("a", "3", group)}, e.queue)
	settle(1)
	settle(0)
	client.Generation = 2
	settle(2)
	settle(0)

	// One that waits for its kubelet does so until that has done something.
	waits := pod("b", "4", group)
	waits.Spec.Containers = []corev1.Container{{Name: "web", Image: "web:v2"}}
	waits.Annotations = map[string]string{v1beta1.AnnotationInPlaceState: `{"lastContainerStatuses":{"web":{"imageID":"old"}}}`}
	waits.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", ImageID: "old"}}
	e.handler.Update(t.Context(), event.UpdateEvent{ObjectOld: pod("b", "2", group), ObjectNew: waits}, e.queue)
	settle(1)
	settle(0)
	runs := waits.DeepCopy()
	runs.Status.ContainerStatuses[0].ImageID = "new"
	e.handler.Update(t.Context(), event.UpdateEvent{ObjectOld: waits, ObjectNew: runs}, e.queue)
	settle(1)
}
