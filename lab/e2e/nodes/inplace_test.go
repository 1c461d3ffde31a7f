package nodes_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
)

// web is a CloneSet with a volume and two containers, one of which is updated.
const web = `
apiVersion: apps.kruise.io/v1beta1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  updateStrategy:
    rollingUpdate: {podUpdatePolicy: InPlaceOnly, maxUnavailable: 1}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      volumes: [{name: scratch, emptyDir: {}}]
      containers:
      - name: web
        image: IMAGE/web:v1
        volumeMounts: [{name: scratch, mountPath: /scratch}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
      - name: beside
        image: IMAGE/pause:1
`

// kept checks that an update in place of the container web changed nothing else.
func (n *test) kept(app, image string, before map[string]corev1.Pod) {
	n.Helper()
	after := byName(n.Pods(app))
	if len(after) != len(before) {
		n.Errorf("%d pods; there were %d", len(after), len(before))
	}
	for name, was := range before {
		is, ok := after[name]
		if !ok || is.UID != was.UID {
			n.Errorf("%s was replaced", name)
			continue
		}
		if is.Spec.NodeName != was.Spec.NodeName || is.Status.PodIP != was.Status.PodIP {
			n.Errorf("%s: on %s with %s, and was on %s with %s", name, is.Spec.NodeName, is.Status.PodIP, was.Spec.NodeName, was.Status.PodIP)
		}
		if diff := cmp.Diff(was.Spec.Volumes, is.Spec.Volumes); diff != "" {
			n.Errorf("%s: volumes: %s", name, diff)
		}
		// The status may name another tag of the same image.
		if c := workloadtest.Containers(is)["web"]; c.RestartCount != workloadtest.Containers(was)["web"].RestartCount+1 || is.Spec.Containers[0].Image != n.images("IMAGE/"+image) {
			n.Errorf("%s: %s, restarted %d times", name, is.Spec.Containers[0].Image, c.RestartCount)
		}
		if diff := cmp.Diff(workloadtest.Containers(was)["beside"], workloadtest.Containers(is)["beside"]); diff != "" {
			n.Errorf("%s: the container beside it: %s", name, diff)
		}
	}
}

// gated checks that each pod was updated to web:v2 in this order: the gate closes, the image
// changes, the kubelet runs the image, the gate opens.
func (n *test) gated(before map[string]corev1.Pod) {
	n.Helper()
	const image = "web:v2"
	const by = "workload-controllers: "
	want := []string{by + "gate False", by + "image " + image, "kubelet: runs " + image, by + "gate True"}
	for name, was := range before {
		if diff := cmp.Diff(want, n.steps(was, "web")); diff != "" {
			n.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

func byName[K comparable](all map[K]corev1.Pod) map[string]corev1.Pod {
	out := map[string]corev1.Pod{}
	for _, p := range all {
		out[p.Name] = p
	}
	return out
}

// An image update in place keeps pod, node, address and volumes, and restarts only the changed
// container, once. The update happens between the closing and the opening of the gate.
func TestCloneSet(t *testing.T) {
	n := begin(t)
	n.apply(web)
	n.Settled("web", 4, 4)
	before := byName(n.Pods("web"))
	n.listen()
	n.image("clonesets/web", "web:v2")
	n.Settled("web", 4, 4)
	n.kept("web", "web:v2", before)
	n.gated(before)
}

// The same for a StatefulSet, one pod after the other from the highest ordinal down.
func TestStatefulSet(t *testing.T) {
	n := begin(t)
	n.apply(strings.NewReplacer("kind: CloneSet", "kind: StatefulSet", "  replicas: 4\n", "  replicas: 3\n  serviceName: web\n",
		"    spec:\n", "    spec:\n      readinessGates: [{conditionType: InPlaceUpdateReady}]\n").Replace(web))
	n.SettledStatefulSet("web", 3, 3)
	before := byName(n.Pods("web"))
	n.listen()
	n.image("statefulsets.apps.kruise.io/web", "web:v2")
	n.SettledStatefulSet("web", 3, 3)
	n.kept("web", "web:v2", before)
	n.gated(before)
	updated := map[string]time.Time{}
	for name, p := range byName(n.Pods("web")) {
		updated[name] = n.updatedAt(p)
	}
	if updated["web-2"].After(updated["web-1"]) || updated["web-1"].After(updated["web-0"]) {
		t.Errorf("%v", updated)
	}
}

// The same for a DaemonSet, which has a pod on each node.
func TestDaemonSet(t *testing.T) {
	n := begin(t)
	n.apply(strings.NewReplacer("kind: CloneSet", "kind: DaemonSet", "  replicas: 4\n", "", "metadata: {name: web}", "metadata: {name: agent}", "app: web", "app: agent",
		"    rollingUpdate: {podUpdatePolicy: InPlaceOnly", "    type: RollingUpdate\n    rollingUpdate: {rollingUpdateType: InPlaceIfPossible",
		"        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}\n", "").Replace(web))
	settled := func(s workloadtest.Status) bool {
		return s.DesiredNumberScheduled == nodes && s.NumberAvailable == nodes && s.UpdatedNumberScheduled == nodes
	}
	n.Until("daemonsets.apps.kruise.io/agent", "on each node", settled)
	before := byName(n.Pods("agent"))
	n.listen()
	n.image("daemonsets.apps.kruise.io/agent", "web:v2")
	n.Until("daemonsets.apps.kruise.io/agent", "updated", settled)
	n.kept("agent", "web:v2", before)
	n.gated(before)
}

// The same image with another name: the kubelet restarts the container, and the imageID stays the
// same.
func TestSameDigest(t *testing.T) {
	n := begin(t)
	n.apply(strings.ReplaceAll(web, "web:v1", "web:v5"))
	n.Settled("web", 4, 4)
	before := byName(n.Pods("web"))
	n.listen()
	n.image("clonesets/web", "web:v5-again")
	n.Settled("web", 4, 4)
	n.kept("web", "web:v5-again", before)
	for name, is := range byName(n.Pods("web")) {
		if was := workloadtest.Containers(before[name])["web"].ImageID; !sameDigest(was, workloadtest.Containers(is)["web"].ImageID) {
			t.Fatalf("%s runs %s, and ran %s: the images differ, and this shows nothing", name, workloadtest.Containers(is)["web"].ImageID, was)
		}
	}
}

func sameDigest(a, b string) bool {
	_, a, _ = strings.Cut(a, "@")
	_, b, _ = strings.Cut(b, "@")
	return a == b && a != ""
}

// An image that can't be pulled stops the update at maxUnavailable, and all other pods stay
// available. A raised partition reverts the update in place.
func TestBrokenImage(t *testing.T) {
	n := begin(t)
	n.apply(web)
	n.Settled("web", 4, 4)
	before := byName(n.Pods("web"))
	n.image("clonesets/web", "web:none")
	n.Until("clonesets/web", "stuck with one", func(s workloadtest.Status) bool { return s.UpdatedReplicas == 1 && s.AvailableReplicas == 3 })
	// Wait long enough for a wrong update of another pod.
	for began := time.Now(); time.Since(began) < 5*time.Second; {
		n.Until("clonesets/web", "stuck with one", func(workloadtest.Status) bool { return true })
		broken := 0
		for _, p := range n.Pods("web") {
			if p.Spec.Containers[0].Image == n.images("IMAGE/web:none") {
				broken++
			}
		}
		if broken != 1 {
			t.Fatalf("%d pods have the image that can't be pulled; maxUnavailable is 1", broken)
		}
	}
	n.Patch("clonesets/web", `{"updateStrategy": {"rollingUpdate": {"partition": "100%"}}}`)
	n.Settled("web", 4, 0)
	for name, is := range byName(n.Pods("web")) {
		if is.UID != before[name].UID {
			t.Errorf("%s was replaced", name)
		}
	}
}

// Clients send requests to a Service continuously while all its pods are updated in place, one at a
// time. No request fails: a pod leaves the Service before its container stops.
func TestService(t *testing.T) {
	n := begin(t)
	n.apply(web + `---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`)
	n.Patch("clonesets/web", `{"updateStrategy": {"rollingUpdate": {"inPlaceUpdateStrategy": {"gracePeriodSeconds": 2}}}}`)
	n.Settled("web", 4, 4)
	before := byName(n.Pods("web"))
	load := n.ask(4)
	n.image("clonesets/web", "web:v2")
	n.Settled("web", 4, 4)
	answers, failed := load()
	n.kept("web", "web:v2", before)
	t.Logf("%d requests were answered, %v, and %d failed", answers["v1"]+answers["v2"], answers, len(failed))
	if len(failed) > 0 {
		t.Errorf("%d requests failed, first: %v", len(failed), failed[0])
	}
	if answers["v1"] == 0 || answers["v2"] == 0 {
		t.Error("the clients didn't see both versions: this shows nothing")
	}
}

// Six pods in batches of 30 % and 70 % are two and four, the highest ordinals first, in place. A batch whose
// image crashes stops at its first failed pod and is taken back; the other pods are not touched.
func TestBatches(t *testing.T) {
	n := begin(t)
	const set = "statefulsets.apps.kruise.io/web"
	n.apply(strings.NewReplacer("kind: CloneSet", "kind: StatefulSet", "  replicas: 4\n", "  replicas: 6\n  serviceName: web\n  podManagementPolicy: Parallel\n",
		"maxUnavailable: 1}", "maxUnavailable: 2, minReadySeconds: 2, batches: {sizes: [30%, 70%], auto: true, interval: 2s}}",
		"    spec:\n", "    spec:\n      readinessGates: [{conditionType: InPlaceUpdateReady}]\n").Replace(web))
	n.SettledStatefulSet("web", 6, 6)
	before := byName(n.Pods("web"))
	n.listen()
	n.image(set, "web:v2")
	first := n.Until(set, "at its first batch", func(s workloadtest.Status) bool { return s.Batches.Reason == "Interval" })
	if first.Batches.Batch != "1/2" || first.UpdatedReplicas != 2 {
		t.Errorf("%+v", first)
	}
	n.Until(set, "done", func(s workloadtest.Status) bool { return s.Batches.Reason == "Done" })
	n.SettledStatefulSet("web", 6, 6)
	n.kept("web", "web:v2", before)
	n.gated(before)
	updated := map[string]time.Time{}
	for name, p := range byName(n.Pods("web")) {
		updated[name] = n.updatedAt(p)
	}
	for _, low := range []string{"web-0", "web-1", "web-2", "web-3"} {
		if since := updated[low].Sub(updated["web-4"]); since < 3*time.Second { // minReadySeconds and the interval, in whole seconds
			t.Errorf("%s was updated %s after the first batch", low, since)
		}
	}

	before = byName(n.Pods("web"))
	n.image(set, "crash:v1")
	failed := n.Until(set, "stopped", func(s workloadtest.Status) bool { return s.Batches.Reason == "Failed" })
	if failed.Batches.Batch != "1/2" || !strings.Contains(failed.Batches.Message, "web-") || failed.AvailableReplicas < 4 {
		t.Errorf("%+v", failed)
	}
	n.image(set, "web:v2")
	n.Until(set, "taken back", func(s workloadtest.Status) bool { return s.Batches.Reason == "Done" })
	n.SettledStatefulSet("web", 6, 6)
	for name, is := range byName(n.Pods("web")) {
		was, broken := before[name], name == "web-4" || name == "web-5"
		if is.UID != was.UID || !broken && workloadtest.Containers(is)["web"].RestartCount != workloadtest.Containers(was)["web"].RestartCount {
			t.Errorf("%s was touched", name)
		}
	}
}

// updatedAt returns when the last update in place of a pod began.
func (n *test) updatedAt(p corev1.Pod) time.Time {
	n.Helper()
	var state struct{ UpdateTimestamp time.Time }
	n.Check(json.Unmarshal([]byte(p.Annotations["apps.kruise.io/inplace-update-state"]), &state))
	return state.UpdateTimestamp
}
