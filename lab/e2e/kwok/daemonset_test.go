package kwok_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
)

const agents = "daemonsets.apps.kruise.io/agent"

// agent returns a DaemonSet on all nodes, with the given annotations, additional spec, and update
// strategy.
func agent(annotations, spec, rolling string) string {
	return fmt.Sprintf(`
apiVersion: apps.kruise.io/v1beta1
kind: DaemonSet
metadata: {name: agent, annotations: {%s}}
spec:
  selector: {matchLabels: {app: agent}}
  %s
  updateStrategy: {type: RollingUpdate, rollingUpdate: {%s}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: agent, image: "agent:v1"}]}
`, annotations, spec, rolling)
}

const newAgent = `{"template": {"spec": {"containers": [{"name": "agent", "image": "agent:v2"}]}}}`

// on waits until the given number of nodes have an available pod, and updated of them an updated
// pod.
func (n *test) on(pods, updated int64) {
	n.Helper()
	n.Until(agents, fmt.Sprintf("on %d nodes, %d of them updated", pods, updated), func(s workloadtest.Status) bool {
		return s.DesiredNumberScheduled == nodes && s.CurrentNumberScheduled == pods && s.NumberReady == pods && s.NumberAvailable == pods &&
			s.NumberUnavailable == nodes-pods && s.NumberMisscheduled == 0 && s.UpdatedNumberScheduled == updated
	})
}

// most holds the highest numbers that a watch observed.
type most struct {
	pods    int // pods not being deleted
	out     int // nodes without an available pod
	beside  int // nodes that run two pods
	updated int // pods of agent:v2
}

// within checks the events since the last call. It fails if a number exceeds its bound, or stays
// below half of it: a rollout should use its bounds.
func (r *record) within(step string, bound most) {
	r.Helper()
	var got most
	r.replay(func(now world, _ watch.Event) {
		pods, serving := map[string]int{}, map[string]bool{}
		beside := 0
		for _, p := range now {
			node := nodeOf(p)
			serving[node] = serving[node] || serves(p)
			if !stays(p) {
				continue
			}
			if pods[node]++; pods[node] == 2 {
				beside++
			}
		}
		out := nodes
		for _, serves := range serving {
			if serves {
				out--
			}
		}
		got = most{max(got.pods, now.count(stays)), max(got.out, out), max(got.beside, beside), max(got.updated, now.count(runs("agent:v2")))}
	})
	for what, n := range map[string][2]int{
		"pods": {got.pods, bound.pods}, "nodes out of service": {got.out, bound.out}, "nodes with two pods": {got.beside, bound.beside}, "updated pods": {got.updated, bound.updated},
	} {
		if n[0] > n[1] || n[0] < n[1]/2 {
			r.Errorf("%s: there were %d %s, at most %d were wanted, and at least half of that", step, n[0], what, n[1])
		}
	}
}

// nodeOf returns the node that a pod is created for.
func nodeOf(p *corev1.Pod) string {
	return p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
}

// byNode returns the pods that are not being deleted, by node and image.
func (r *record) byNode() map[string]types.UID {
	r.Helper()
	r.caughtUp()
	out := map[string]types.UID{}
	for uid, p := range r.last() {
		if stays(p) {
			out[nodeOf(p)+" "+p.Spec.Containers[0].Image] = uid
		}
	}
	return out
}

// zoneA is the number of nodes in the lab's first zone: every third node.
const zoneA = 34

// Only the selected nodes get the new revision, by replacement, a tenth of all nodes at a time.
func TestSelector(t *testing.T) {
	n := begin(t)
	n.Apply(agent("", "", `maxUnavailable: 10%, selector: {matchLabels: {topology.kubernetes.io/zone: lab-a}}`))
	n.on(nodes, nodes)
	r := n.follow()
	before := r.byNode()
	n.Patch(agents, newAgent)
	n.on(nodes, zoneA)
	r.within("the roll", most{pods: nodes, out: 10, updated: zoneA})
	after := r.byNode()
	for i := range nodes {
		node := fmt.Sprint(name, "-node-", i)
		old, now, updated := before[node+" agent:v1"], after[node+" agent:v1"], after[node+" agent:v2"]
		if chosen := i%3 == 0; chosen && (now != "" || updated == "" || updated == old) || !chosen && (now != old || updated != "") {
			t.Errorf("%s: %s of v1 became %q of v1 and %q of v2", node, old, now, updated)
		}
	}
}

// With a surge every node always has an available pod, and a fifth of the nodes run two pods.
func TestSurge(t *testing.T) {
	n := begin(t)
	n.Apply(agent("", "", `maxSurge: 20%, maxUnavailable: 0`))
	n.on(nodes, nodes)
	r := n.follow()
	n.Patch(agents, newAgent)
	n.on(nodes, nodes)
	r.until("all old pods are gone", func(now world) bool { return len(now) == nodes })
	r.within("the roll", most{pods: nodes + 20, out: 0, beside: 20, updated: nodes})
}

// Pods are created only as far as the partition permits, by the field or by the annotation of
// v1alpha1 manifests. Then a partition of 70 % updates 30 nodes in place or by replacement, 30 %
// updates 40 more, and 0 the rest. A quarter of all nodes is updated at a time.
func TestProgressive(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		annotations, spec, kind string
		inPlace                 bool
	}{
		"Field":      {spec: "scaleStrategy: {partitionedScaling: true}", kind: "InPlaceIfPossible", inPlace: true},
		"Annotation": {annotations: `daemonset.kruise.io/progressive-create-pod: "true"`, kind: "InPlaceIfPossible", inPlace: true},
		"Replaced":   {spec: "scaleStrategy: {partitionedScaling: true}", kind: "Standard"}, // a node whose pod was deleted gets another
	} {
		t.Run(name, func(t *testing.T) {
			n := begin(t)
			r := n.follow()
			to := func(percent int) {
				t.Helper()
				n.Patch(agents, fmt.Sprintf(`{"updateStrategy": {"rollingUpdate": {"partition": "%d%%"}}}`, percent))
			}
			n.Apply(agent(c.annotations, c.spec, "maxUnavailable: 25%, partition: 90%, rollingUpdateType: "+c.kind))
			for _, partition := range []int{90, 50, 0} {
				to(partition)
				pods := nodes - partition
				n.on(int64(pods), int64(pods))
				r.within(fmt.Sprint("created to ", partition), most{pods: pods, out: nodes})
			}
			before := r.byNode()
			to(100)
			n.Patch(agents, newAgent)
			n.on(nodes, 0)
			r.within("updated to 100", most{pods: nodes})
			for _, partition := range []int{70, 30, 0} {
				to(partition)
				n.on(nodes, int64(nodes-partition))
				r.within(fmt.Sprint("updated to ", partition), most{pods: nodes, out: 25, updated: nodes - partition})
			}
			for key, uid := range r.byNode() {
				if (before[strings.Replace(key, "v2", "v1", 1)] == uid) != c.inPlace {
					t.Errorf("%s: in place should be %v", key, c.inPlace)
				}
			}
		})
	}
}
