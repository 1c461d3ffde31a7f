package kwok_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
)

// statefulSet is a StatefulSet db of an image, with more fields of its spec, separated by "; ", and of
// its rolling update.
func statefulSet(image, spec, rolling string) string {
	return fmt.Sprintf(`
apiVersion: apps.kruise.io/v1beta1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
%s
  updateStrategy: {rollingUpdate: {%s}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: %q}]}
`, "  "+strings.ReplaceAll(spec, "; ", "\n  "), rolling, image)
}

const asts = "statefulsets.apps.kruise.io/db"

// order returns the names of the pods in the order in which a change of each was first seen.
func (r *record) order(is func(p *corev1.Pod) bool) []string {
	r.Helper()
	var out []string
	seen := map[types.UID]bool{}
	r.replay(func(now world, e watch.Event) {
		if e.Object == nil {
			for uid, p := range now {
				seen[uid] = is(p)
			}
			return
		}
		if p := e.Object.(*corev1.Pod); !seen[p.UID] && is(p) { //nolint:forcetypeassert // it was replayed
			seen[p.UID] = true
			out = append(out, p.Name)
		}
	})
	return out
}

// A partition leaves as many pods as it says, by their position among the wanted ordinals, also if
// some are reserved and the first is not 0. The others are updated in place from the highest ordinal
// down.
func TestStatefulSetPartition(t *testing.T) {
	n := begin(t)
	n.Apply(statefulSet("db:v1", `ordinals: {start: 2}; reserveOrdinals: [3, "6-7"]; replicas: 6`, "podUpdatePolicy: InPlaceIfPossible, partition: 3"))
	n.SettledStatefulSet("db", 6, 6)
	before := slices.Sorted(maps.Keys(n.follow().last().uids()))
	if diff := cmp.Diff([]string{"db-10", "db-2", "db-4", "db-5", "db-8", "db-9"}, before); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
	r := n.follow()
	n.Apply(statefulSet("db:v2", `ordinals: {start: 2}; reserveOrdinals: [3, "6-7"]; replicas: 6`, "podUpdatePolicy: InPlaceIfPossible, partition: 3"))
	n.SettledStatefulSet("db", 6, 3)
	if diff := cmp.Diff([]string{"db-10", "db-9", "db-8"}, r.order(runs("db:v2"))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	n.Patch(asts, `{"updateStrategy": {"rollingUpdate": {"partition": 0}}}`)
	n.SettledStatefulSet("db", 6, 6)
	if diff := cmp.Diff([]string{"db-5", "db-4", "db-2"}, r.order(runs("db:v2"))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// With Parallel never more than maxUnavailable pods are out of service because of an update, in place
// or by replacement, and all of them are used.
func TestStatefulSetMaxUnavailable(t *testing.T) {
	for name, c := range map[string]struct {
		why            string
		maxUnavailable string
		policy         string
		want           int // of ten pods
	}{
		"One":       {"One is the default of StatefulSets.", "1", "InPlaceIfPossible", 1},
		"Three":     {"Three pods are updated at once.", "3", "InPlaceIfPossible", 3},
		"Percent":   {"30 % of ten pods are three.", "30%", "InPlaceIfPossible", 3},
		"RoundDown": {"29 % of ten pods are rounded down.", "29%", "InPlaceIfPossible", 2},
		"Replaced":  {"A replaced pod is out of service until its successor serves.", "3", "ReCreate", 3},
	} {
		t.Run(strings.ToLower(name), func(t *testing.T) {
			n := begin(t)
			spec, rolling := "podManagementPolicy: Parallel; replicas: 10", fmt.Sprintf("podUpdatePolicy: %s, maxUnavailable: %s", c.policy, c.maxUnavailable)
			n.Apply(statefulSet("db:v1", spec, rolling))
			n.SettledStatefulSet("db", 10, 10)
			r := n.follow()
			n.Apply(statefulSet("db:v2", spec, rolling))
			n.SettledStatefulSet("db", 10, 10)
			least := 10
			r.replay(func(now world, _ watch.Event) {
				least = min(least, now.count(serves))
				names := map[string]int{}
				for _, p := range now {
					if names[p.Name]++; names[p.Name] > 1 {
						t.Errorf("there are two pods %s", p.Name)
					}
				}
			})
			if least != 10-c.want {
				t.Errorf("%s At least %d were in service, and %d are right", c.why, least, 10-c.want)
			}
		})
	}
}

// A batch begins when all pods of the batches before it are updated and serve, also with reserved ordinals
// and a first ordinal.
func TestStatefulSetBatches(t *testing.T) {
	n := begin(t)
	spec := `podManagementPolicy: Parallel; ordinals: {start: 1}; reserveOrdinals: [4, "7-8"]; replicas: 10`
	const rolling = "podUpdatePolicy: InPlaceIfPossible, maxUnavailable: 3, batches: {sizes: [1, 30%, 60%], auto: true}"
	n.Apply(statefulSet("db:v1", spec, rolling))
	n.SettledStatefulSet("db", 10, 10)
	r := n.follow()
	n.Apply(statefulSet("db:v2", spec, rolling))
	n.Until(asts, "done", func(s workloadtest.Status) bool { return s.Batches.Reason == "Done" })
	n.SettledStatefulSet("db", 10, 10)
	updated := runs("db:v2")
	ends, serving := []int{1, 4, 10}, func(p *corev1.Pod) bool { return updated(p) && serves(p) }
	before, first := 0, ""
	r.replay(func(now world, _ watch.Event) {
		is := now.count(updated)
		for _, p := range now {
			if first == "" && updated(p) {
				first = p.Name
			}
		}
		for _, end := range ends {
			if before <= end && is > end && now.count(serving) < end {
				t.Errorf("a pod after the first %d is updated, while %d of these serve", end, now.count(serving))
			}
		}
		before = is
	})
	if before != 10 || first != "db-13" {
		t.Errorf("%d pods are updated in the end, first %s", before, first)
	}
}

// OrderedReady goes on only while all pods before it are available. A pod below that breaks stops
// creation, update and scale-down; a pod above that a bad revision broke is replaced once the template
// is taken back.
func TestStatefulSetOrderedReady(t *testing.T) {
	n := begin(t)
	r := n.follow()
	n.Apply(statefulSet("db:v1", "replicas: 4", "partition: 0"))
	n.SettledStatefulSet("db", 4, 4)
	if diff := cmp.Diff([]string{"db-0", "db-1", "db-2", "db-3"}, r.order(stays)); diff != "" {
		t.Errorf("created: -want +got:\n%s", diff)
	}
	r.inOrder()

	// Broken below: nothing is taken away, and it goes on when the pod is back.
	n.Do("annotate", "pod", "db-1", "lab.keelson.io/ready=false")
	n.Until(asts, "one less", func(s workloadtest.Status) bool { return s.AvailableReplicas == 3 })
	n.Patch(asts, `{"replicas": 5, "updateStrategy": {"rollingUpdate": {"partition": 2}}, "template": {"spec": {"containers": [{"name": "db", "image": "db:v2"}]}}}`)
	n.Until(asts, "seen", func(s workloadtest.Status) bool { return s.UpdatedReplicas == 0 && s.AvailableReplicas == 3 })
	if got := len(n.follow().last()); got != 4 {
		t.Errorf("%d pods while one below is broken", got)
	}
	n.Do("annotate", "pod", "db-1", "lab.keelson.io/ready-")
	n.SettledStatefulSet("db", 5, 3)

	// Broken above: it is replaced although it is not available.
	n.Do("annotate", "pod", "db-4", "lab.keelson.io/ready=false")
	n.Until(asts, "one less", func(s workloadtest.Status) bool { return s.AvailableReplicas == 4 })
	n.Patch(asts, `{"template": {"spec": {"containers": [{"name": "db", "image": "db:v3"}]}}}`)
	n.SettledStatefulSet("db", 5, 3)

	n.Do("scale", asts, "--replicas=2")
	n.SettledStatefulSet("db", 2, 0)
	if diff := cmp.Diff([]string{"db-0", "db-1"}, slices.Sorted(maps.Keys(n.follow().last().uids()))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// inOrder checks that each pod was created when all pods with lower ordinals served.
func (r *record) inOrder() {
	r.Helper()
	if len(r.last()) == 0 {
		r.Fatal("this shows nothing")
	}
	created := map[string]string{}
	for _, p := range r.last() {
		created[p.Name] = p.CreationTimestamp.UTC().Format("150405")
	}
	names := slices.Sorted(maps.Keys(created))
	for i := 1; i < len(names); i++ {
		if created[names[i]] < created[names[i-1]] {
			r.Errorf("%s was created before %s", names[i], names[i-1])
		}
	}
}

// A scale-down during an update, and a scale-up after it, keep the partition by position: a pod that
// is created again gets the revision of its place.
func TestStatefulSetScaleDuringUpdate(t *testing.T) {
	n := begin(t)
	spec := "podManagementPolicy: Parallel; replicas: %d"
	rolling := "podUpdatePolicy: InPlaceIfPossible, maxUnavailable: 1, partition: 2"
	n.Apply(statefulSet("db:v1", fmt.Sprintf(spec, 8), rolling))
	n.SettledStatefulSet("db", 8, 8)
	n.Apply(statefulSet("db:v2", fmt.Sprintf(spec, 4), rolling))
	n.SettledStatefulSet("db", 4, 2)
	n.Do("delete", "pod", "db-0", "--wait=false")
	n.Do("scale", asts, "--replicas=6")
	n.SettledStatefulSet("db", 6, 4)
	images := map[string]string{}
	for _, p := range n.follow().last() {
		images[p.Name] = p.Spec.Containers[0].Image
	}
	want := map[string]string{"db-0": "db:v1", "db-1": "db:v1", "db-2": "db:v2", "db-3": "db:v2", "db-4": "db:v2", "db-5": "db:v2"}
	if diff := cmp.Diff(want, images); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
