package kwok_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
	"github.com/keelson-io/keelson/lab/process"
)

// ordered is a CloneSet whose pods prefer separate nodes. Only nodes with the label turn are
// allowed.
const ordered = `
apiVersion: apps.kruise.io/v1beta1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {turn: this}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers: [{name: web, image: "web:v1"}]
`

// queue creates pods of a CloneSet. Each differs from another in one key of the deletion order.
type queue struct {
	*record
	pods  int
	roles map[string]string // by name
}

// Excess pods are deleted in the least harmful order. Each pod differs from the previous one in
// only one key, so a missing or misplaced key changes the order. The scale subresource removes one
// pod at a time.
func TestDeletionOrder(t *testing.T) {
	n := begin(t)
	q := &queue{record: n.follow(), pods: 1, roles: map[string]string{}}
	want := q.line()
	n.Until("clonesets/web", "as it was made", func(s workloadtest.Status) bool {
		return s.Replicas == int64(len(want)) && s.AvailableReplicas == int64(len(want)-4)
	})
	for left := range slices.Backward(make([]struct{}, len(want))) {
		q.scale(left)
	}
	var got []string
	gone := map[types.UID]bool{}
	q.replay(func(_ world, e watch.Event) {
		p, ok := e.Object.(*corev1.Pod)
		if ok && (e.Type == watch.Deleted || !stays(p)) && !gone[p.UID] {
			gone[p.UID] = true
			got = append(got, q.roles[p.Name])
		}
	})
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// line creates the pods, and returns their roles in the expected deletion order. Of the pods that
// differ only in phase or readiness, the first to be deleted is the oldest. By age alone the order
// would be reversed.
func (q *queue) line() []string {
	q.Helper()
	// This pod has a node, but does not run yet.
	q.Apply(ordered)
	q.add("Pending")
	slow := q.pod("Pending")
	q.Do("annotate", "pod", slow, "lab.keelson.io/delay=1h")
	q.open(0)
	q.until("scheduled", func(now world) bool { return now[now.uids()[slow]].Spec.NodeName != "" })
	// Two pods share a node.
	q.move(1)
	q.scale(3)
	q.run("one of two on a node", "one of two on a node")
	// Each further pod has its own node.
	q.move(2, 3, 4, 5, 6, 7, 8, 9, 10)
	for _, role := range []string{"phase Unknown", "not ready", "costs less"} {
		q.later()
		q.scale(q.pods + 1)
		q.run(role)
	}
	q.scale(q.pods + 2)
	q.run("ready for less time", "more restarts")
	for _, role := range []string{"young", "younger", "youngest"} {
		q.later()
		q.scale(q.pods + 1)
		q.run(role)
	}
	q.alone()
	q.differ()
	// The last pod has no node.
	q.move()
	q.scale(q.pods + 1)
	q.add("unassigned")
	return []string{
		"unassigned", "Pending", "phase Unknown", "not ready", "costs less", "one of two on a node", "ready for less time", "more restarts",
		"youngest", "younger", "young", "one of two on a node",
	}
}

// differ gives the available pods their differences.
func (q *queue) differ() {
	q.Helper()
	// All pods became ready in the same second.
	since := metav1.NewTime(time.Now().Truncate(time.Second))
	for name, role := range q.roles {
		if role == "Pending" {
			continue
		}
		q.play(name, fmt.Sprintf(`{"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": %q}]}`, since.UTC().Format(time.RFC3339)))
	}
	q.play(q.pod("more restarts"), `{"containerStatuses": [{"name": "web", "restartCount": 1}]}`)
	q.Do("annotate", "pod", q.pod("costs less"), "controller.kubernetes.io/pod-deletion-cost=-1")

	q.later()
	less := q.pod("ready for less time")
	q.fail(less)
	q.Do("annotate", "pod", less, "lab.keelson.io/ready-")
	q.until("ready again", func(now world) bool { return serves(now[now.uids()[less]]) })
	q.fail(q.pod("phase Unknown"))
	q.play(q.pod("phase Unknown"), `{"phase": "Unknown"}`)
	q.fail(q.pod("not ready"))
}

// add waits for pods without a role, and assigns the roles.
func (q *queue) add(roles ...string) {
	q.Helper()
	var free []string
	q.until("as many pods", func(now world) bool {
		free = slices.DeleteFunc(slices.Sorted(maps.Keys(now.uids())), func(name string) bool { return q.roles[name] != "" })
		return len(free) == len(roles)
	})
	for i, name := range free {
		q.roles[name] = roles[i]
	}
}

// run is add, and waits until all pods but the first are available.
func (q *queue) run(roles ...string) {
	q.Helper()
	q.add(roles...)
	q.until("serving", func(now world) bool { return now.count(serves) == q.pods-1 })
}

// pod returns the name of the pod with a role.
func (q *queue) pod(role string) string {
	for name, has := range q.roles {
		if has == role {
			return name
		}
	}
	q.Fatalf("no pod is %q", role)
	return ""
}

// scale sets the number of pods, and waits until as many are not being deleted.
func (q *queue) scale(to int) {
	q.Helper()
	q.pods = to
	q.Do("scale", "clonesets/web", fmt.Sprint("--replicas=", to))
	q.until(fmt.Sprint(to, " pods"), func(now world) bool { return now.count(stays) == to })
}

// fail makes a pod unready while its container runs.
func (q *queue) fail(name string) {
	q.Helper()
	q.Do("annotate", "pod", name, "lab.keelson.io/ready=false")
	q.until("not ready", func(now world) bool { return !serves(now[now.uids()[name]]) })
}

// later waits for more than a second, because the times of pods have no fractions.
func (q *queue) later() {
	q.Helper()
	q.Check(process.Wait(q.Context(), 1100*time.Millisecond))
}

// open sets the nodes that pods may run on. move replaces the nodes that were open.
func (q *queue) open(numbers ...int) {
	q.Helper()
	args := []string{"label", "nodes"}
	for _, i := range numbers {
		args = append(args, fmt.Sprint(name, "-node-", i))
	}
	q.Do(append(args, "turn=this")...)
}

func (q *queue) move(numbers ...int) {
	q.Helper()
	q.Do("label", "nodes", "--selector=turn", "turn-")
	if len(numbers) > 0 {
		q.open(numbers...)
	}
}

// alone checks that two pods share a node, and all other pods have their own.
func (q *queue) alone() {
	q.Helper()
	on := map[string][]string{}
	for _, p := range q.last() {
		on[p.Spec.NodeName] = append(on[p.Spec.NodeName], q.roles[p.Name])
	}
	crowds := slices.SortedFunc(maps.Values(on), func(a, b []string) int { return cmp.Compare(len(b), len(a)) })
	if len(crowds) != q.pods-1 || len(crowds[0]) != 2 || !strings.HasPrefix(crowds[0][0]+crowds[0][1], "one of two on a nodeone of two") {
		q.Fatalf("this shows nothing: %v", on)
	}
}
