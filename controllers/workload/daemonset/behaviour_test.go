package daemonset_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
)

// event waits for one of a reason, and returns what it says.
func (w *world) event(reason string) string {
	w.Helper()
	var found *eventsv1.Event
	err := wait.PollUntilContextTimeout(w.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		list, err := w.Pods.EventsV1().Events(w.name).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err == nil && len(list.Items) > 0 {
			found = &list.Items[0]
		}
		return found != nil, err
	})
	if err != nil {
		w.Fatalf("no event %s: %v", reason, err)
	}
	if found.Regarding.Kind != "DaemonSet" || found.Regarding.Name != "agent" {
		w.Errorf("the event %s is of %+v", reason, found.Regarding)
	}
	return found.Note
}

// clock stands still until it is set on, or released.
type clock struct {
	mu    sync.Mutex
	at    time.Time
	since time.Time // it goes; zero: it stands
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		return c.at
	}
	return c.at.Add(time.Since(c.since))
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func (c *clock) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
}

// births counts the pods that were created on the nodes since the last time.
func (w *world) births() int {
	n := 0
	for _, what := range w.Kubelet.Happened() {
		if what == "ADDED" {
			n++
		}
	}
	return n
}

// A pod that has failed is deleted and created anew: at once, after a second, after two.
// Another revision doesn't wait for the trouble of the last one.
func TestFailing(t *testing.T) {
	c := &clock{at: time.Now()}
	w := newWorldAt(t, c.now, 1)
	w.Kubelet.Fail("agent:v1")
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{})
	next := func(pods int) {
		t.Helper()
		born := 0
		came := func(more int) wait.ConditionWithContextFunc {
			return func(context.Context) (bool, error) {
				born += w.births()
				return born >= pods+more, nil
			}
		}
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, came(0))
		if err == nil && wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 1500*time.Millisecond, true, came(1)) == nil {
			err = errors.New("the clock stood")
		}
		if err != nil {
			t.Fatalf("%d pods came, and not %d: %v", born, pods, err)
		}
	}
	next(2) // the second one at once
	c.add(time.Second - time.Millisecond)
	next(0)
	c.add(time.Millisecond)
	next(1)
	c.add(2*time.Second - time.Millisecond)
	next(0)
	c.add(time.Millisecond)
	next(1)
	c.run()
	if note := w.event("FailedDaemonPod"); !strings.HasPrefix(note, "Found failed daemon pod "+w.name+"/agent-") || !strings.HasSuffix(note, "on node "+w.name+"-0, will try to kill it") {
		t.Errorf("the event says %q", note)
	}
	w.change(newImage)
	w.settled(1, 1)
}

// What can't be read is refused, in a condition and an event that name the field, and
// nothing is done until it is mended.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		field       string
		spoil, mend func(*v1beta1.DaemonSetSpec)
	}{
		"Partition": {
			"spec.updateStrategy.rollingUpdate.partition",
			func(s *v1beta1.DaemonSetSpec) {
				s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromString("ten"))
			},
			func(s *v1beta1.DaemonSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = nil },
		},
		"MaxUnavailable": {
			"spec.updateStrategy.rollingUpdate.maxUnavailable",
			func(s *v1beta1.DaemonSetSpec) {
				s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString("5x%"))
			},
			func(s *v1beta1.DaemonSetSpec) { s.UpdateStrategy.RollingUpdate.MaxUnavailable = nil },
		},
		"Selector": {
			"spec.updateStrategy.rollingUpdate.selector",
			func(s *v1beta1.DaemonSetSpec) {
				s.UpdateStrategy.RollingUpdate.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Around"}}}
			},
			func(s *v1beta1.DaemonSetSpec) { s.UpdateStrategy.RollingUpdate.Selector = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.create(v1beta1.DaemonSetRollingUpdateStrategy{})
			before := w.settled(2, 2)
			w.change(func(s *v1beta1.DaemonSetSpec) {
				c.spoil(s)
				newImage(s)
			})
			is := w.eventually("refused", func(s v1beta1.DaemonSetStatus) bool { return len(s.Conditions) == 1 })
			got := is.Conditions[0]
			if got.Type != "FailedScale" || got.Status != corev1.ConditionTrue || got.Reason != "SpecRefused" || !strings.Contains(got.Message, c.field+":") || !strings.HasSuffix(got.Message, "nothing is done") {
				t.Errorf("%+v", got)
			}
			if note := w.event("SpecRefused"); note != got.Message {
				t.Errorf("the event says %q, and the condition %q", note, got.Message)
			}
			if diff := cmp.Diff(before, w.list()); diff != "" {
				t.Errorf("-before +after:\n%s", diff)
			}
			w.change(c.mend)
			w.settled(2, 2)
			if is := w.eventually("followed", func(s v1beta1.DaemonSetStatus) bool { return len(s.Conditions) == 0 }); is.UpdatedNumberScheduled != 2 {
				t.Errorf("%+v", is)
			}
		})
	}
}

// A pod that is ready counts after minReadySeconds, and the next node waits for that.
func TestMinReady(t *testing.T) {
	w := newWorld(t, 3)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{}, func(s *v1beta1.DaemonSetSpec) { s.MinReadySeconds = 3 })
	w.settled(3, 3)
	w.Kubelet.Happened()
	w.change(newImage)
	var born []time.Time
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		for range w.births() {
			born = append(born, time.Now())
		}
		return len(born) >= 3, nil
	})
	if err != nil {
		t.Fatalf("%d of 3 pods were created: %v", len(born), err)
	}
	// A condition's time has no fractions of a second, and a busy machine shows one pod
	// later than another: two seconds less than those three.
	for i := 1; i < len(born); i++ {
		if gap := born[i].Sub(born[i-1]); gap < time.Second {
			t.Errorf("node %d was updated %s after the one before", i, gap)
		}
	}
	w.eventually("ready, and not available", func(s v1beta1.DaemonSetStatus) bool { return s.NumberReady == 3 && s.NumberAvailable == 2 })
	w.settled(3, 3)
}

// burstReplicas bounds what one look does: its event says how many pods that were.
func TestBurst(t *testing.T) {
	w := newWorld(t, 36)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{}, func(s *v1beta1.DaemonSetSpec) { s.BurstReplicas = new(intstr.FromInt32(12)) })
	w.settled(36, 36)
	note := w.event("SuccessfulCreate")
	var n int
	if _, err := fmt.Sscanf(note, "Created %d pods", &n); err != nil || n > 12 {
		t.Errorf("the event says %q: %v", note, err)
	}
}

// One that is paused, or updates on deletion, leaves its pods alone. Whoever deletes one
// gets a new one of the newest revision.
func TestAtRest(t *testing.T) {
	for name, rest := range map[string]func(*v1beta1.DaemonSetSpec){
		"Paused":   func(s *v1beta1.DaemonSetSpec) { s.UpdateStrategy.RollingUpdate.Paused = new(true) },
		"OnDelete": func(s *v1beta1.DaemonSetSpec) { s.UpdateStrategy.Type = v1beta1.DaemonSetOnDelete },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			w.create(v1beta1.DaemonSetRollingUpdateStrategy{}, rest)
			before := w.settled(3, 3)
			w.change(newImage)
			if diff := cmp.Diff(before, w.settled(3, 0)); diff != "" {
				t.Errorf("-before +after:\n%s", diff)
			}
			w.deleteOn(w.name + "-1")
			after := w.settled(3, 1)
			for _, node := range []string{"-0", "-2"} {
				if key := w.name + node + " agent:v1"; after[key] == "" || after[key] != before[key] {
					t.Errorf("%s was touched: %v", node, after)
				}
			}
			if after[w.name+"-1 agent:v2"] == "" {
				t.Errorf("%v", after)
			}
			w.change(func(s *v1beta1.DaemonSetSpec) {
				s.UpdateStrategy.Type, s.UpdateStrategy.RollingUpdate.Paused = v1beta1.DaemonSetRollingUpdate, nil
			})
			if got := w.settled(3, 3); len(got) != 3 || got[w.name+"-1 agent:v2"] != after[w.name+"-1 agent:v2"] {
				t.Errorf("%v", got)
			}
		})
	}
}

// A pod that a label holds back stays until a client removes the label. The hook takes it out of its
// Services. No other node is updated meanwhile.
func TestPreDelete(t *testing.T) {
	const hold = "example.com/drain"
	w := newWorld(t, 3)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{}, func(s *v1beta1.DaemonSetSpec) {
		s.Lifecycle = &v1beta1.Lifecycle{PreDelete: &v1beta1.LifecycleHook{LabelsHandler: map[string]string{hold: "true"}, MarkPodNotReady: true}}
		s.Template.Labels[hold] = "true"
	})
	before := w.settled(3, 3)
	w.change(newImage)
	for updated := range int32(3) {
		var held *corev1.PodList
		w.eventually("one held back", func(s v1beta1.DaemonSetStatus) bool {
			var err error
			held, err = w.Pods.CoreV1().Pods(w.name).List(t.Context(), metav1.ListOptions{LabelSelector: v1beta1.LabelLifecycle + "=" + string(v1beta1.LifecyclePreparingDelete)})
			if err != nil {
				t.Fatal(err)
			}
			// The pod that came for the last one may not be available yet.
			return s.UpdatedNumberScheduled == updated && s.NumberAvailable == 2 && len(held.Items) > 0 && held.Items[0].DeletionTimestamp == nil
		})
		if len(held.Items) != 1 {
			t.Fatalf("%d pods are held back", len(held.Items))
		}
		p := held.Items[0]
		if key := p.Spec.NodeName + " agent:v1"; before[key] != string(p.UID) {
			t.Errorf("%s isn't the pod that was there", key)
		}
		if podclient.Ready(&p) || !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == v1beta1.KruisePodReady && c.Status == corev1.ConditionFalse
		}) {
			t.Errorf("%s serves: %+v", p.Name, p.Status.Conditions)
		}
		if len(w.list()) != 3 {
			t.Errorf("%v", w.list())
		}
		patch := `{"metadata":{"labels":{"` + hold + `":null}}}`
		if _, err := w.Pods.CoreV1().Pods(w.name).Patch(t.Context(), p.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	after := w.settled(3, 3)
	for key := range maps.Keys(after) {
		if !strings.HasSuffix(key, " agent:v2") {
			t.Errorf("%s", key)
		}
	}
}

// A node has no new pod while the last one is on its way out.
func TestLeaving(t *testing.T) {
	const holds = "example.com/holds"
	w := newWorld(t, 1)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{}, func(s *v1beta1.DaemonSetSpec) { s.Template.Finalizers = []string{holds} })
	w.settled(1, 1)
	w.change(newImage)
	w.eventually("none", func(s v1beta1.DaemonSetStatus) bool { return s.CurrentNumberScheduled == 0 })
	list, err := w.Pods.CoreV1().Pods(w.name).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].DeletionTimestamp == nil {
		t.Fatalf("%d pods: %v", len(list.Items), err)
	}
	patch := `{"metadata":{"finalizers":null}}`
	if _, err := w.Pods.CoreV1().Pods(w.name).Patch(t.Context(), list.Items[0].Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	w.settled(1, 1)
}
