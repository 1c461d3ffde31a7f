package podclient_test

import (
	"slices"
	"strings"
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
	known   *podclient.OwnedIndex[*corev1.Pod]
	expect  *expectations.Expectations
	handler handler.EventHandler
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func newEar(t *testing.T) *ear {
	t.Helper()
	e := &ear{T: t, known: podclient.NewOwnedIndex[*corev1.Pod]("CloneSet"), expect: expectations.New(time.Now)}
	e.handler = podclient.NewEventHandler(e.known, e.expect)
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
	for _, p := range e.known.Since(new(podclient.Mark[*corev1.Pod]), &metav1.ObjectMeta{Namespace: namespace, UID: "web"}).Are {
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

// A write that expectations have seen is in the index: a reconcile that no longer waits finds it.
func TestKnownBeforeSeen(t *testing.T) {
	t.Parallel()
	e := newEar(t)
	written := pod("a", "5", v1beta1.GroupVersion.Group)
	e.expect.Wrote("web", written)
	if !e.expect.Waits("web") {
		t.Fatal("the owner does not wait for its write")
	}
	e.handler.Create(t.Context(), event.CreateEvent{Object: written}, e.queue)
	if e.expect.Waits("web") {
		t.Error("it was seen")
	}
	e.is("it is known", map[string]string{"a": "5"})
}

// Since returns each change once. It returns all pods if the mark is void.
func TestSince(t *testing.T) {
	t.Parallel()
	e, group := newEar(t), v1beta1.GroupVersion.Group
	create := func(uid types.UID, version string) {
		e.handler.Create(t.Context(), event.CreateEvent{Object: pod(uid, version, group)}, e.queue)
	}
	gone := func(uid types.UID) {
		e.handler.Delete(t.Context(), event.DeleteEvent{Object: pod(uid, "9", group)}, e.queue)
	}
	var mark podclient.Mark[*corev1.Pod]
	since := func(why string, anew bool, are, gone string) {
		t.Helper()
		c := e.known.Since(&mark, &metav1.ObjectMeta{Namespace: "shop", UID: "web"})
		var names, left []string
		for _, p := range c.Are {
			names = append(names, p.Name+p.ResourceVersion)
		}
		for _, uid := range c.Gone {
			left = append(left, string(uid))
		}
		slices.Sort(names)
		slices.Sort(left)
		if got := strings.Join(names, " "); c.Anew != anew || got != are || strings.Join(left, " ") != gone {
			t.Errorf("%s: anew %v, %q are, %q gone", why, c.Anew, got, left)
		}
	}
	since("there is no pod", true, "", "")
	create("a", "1")
	create("b", "2")
	since("the first pods", true, "a1 b2", "")
	since("nothing happened", false, "", "")
	create("a", "3")
	create("c", "4")
	gone("b")
	create("d", "5")
	gone("d")
	since("some changed, one came, one went, one came and went", false, "a3 c4", "b d")
	since("the changes were returned already", false, "", "")
	mark = podclient.Mark[*corev1.Pod]{}
	create("a", "6")
	since("a caller without a mark gets all pods", true, "a6 c4", "")
	since("no change is returned twice", false, "", "")
	gone("a")
	gone("c")
	create("e", "7")
	since("no pod was left meanwhile, so the deleted pods were forgotten", true, "e7", "")
	gone("e")
	since("no pod is left", true, "", "")
}

// A pod that needs no action is left alone, also one that waits for its kubelet.
func TestSettled(t *testing.T) {
	t.Parallel()
	waits := pod("b", "4", v1beta1.GroupVersion.Group)
	waits.Spec.Containers = []corev1.Container{{Name: "web", Image: "web:v2"}}
	waits.Annotations = map[string]string{v1beta1.AnnotationInPlaceState: `{"lastContainerStatuses":{"web":{"imageID":"old"}}}`}
	waits.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", ImageID: "old"}}
	broken := waits.DeepCopy()
	broken.Annotations[v1beta1.AnnotationInPlaceState] = "{"
	for name, c := range map[string]struct {
		why     string
		pod     *corev1.Pod
		settled bool
	}{
		"Nothing": {"Nothing was begun.", pod("a", "1", v1beta1.GroupVersion.Group), true},
		"Kubelet": {"The kubelet has to act first.", waits, true},
		"Broken":  {"The state can't be read, so what was begun is unknown.", broken, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settled, after, err := podclient.Client{Owner: "web", Now: time.Unix(0, 0)}.Settle(t.Context(), c.pod)
			if settled != c.settled || after != 0 || (err == nil) != c.settled {
				t.Errorf("%s It is settled: %v; again after %v; %v", c.why, settled, after, err)
			}
		})
	}
}

// A pod that was deleted and created again under its name while the watch had a gap comes as an update
// of another UID: the deleted one does not stay.
func TestRecreatedInAGap(t *testing.T) {
	t.Parallel()
	k := podclient.NewOwnedIndex[*corev1.Pod]("StatefulSet")
	h := podclient.NewEventHandler(k, expectations.New(time.Now))
	set := &v1beta1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "a", UID: "set"}}
	pod := func(uid types.UID) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "db-0", Namespace: "a", UID: uid, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, v1beta1.GroupVersion.WithKind("StatefulSet"))},
		}}
	}
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(q.ShutDown)
	h.Create(t.Context(), event.CreateEvent{Object: pod("one")}, q)
	h.Update(t.Context(), event.UpdateEvent{ObjectOld: pod("one"), ObjectNew: pod("two")}, q)
	if are := k.Since(new(podclient.Mark[*corev1.Pod]), set).Are; len(are) != 1 || are[0].UID != "two" {
		t.Errorf("%v", are)
	}
}
