package nodes_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
)

// configured is a component whose ConfigMap reaches running containers, in batches of two and four pods.
// KIND, METHOD and BESIDE stand for what differs.
const configured = `apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {version: {{ .Values.text | quote }}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps.kruise.io/v1beta1
kind: KIND
metadata: {name: web, annotations: {keelson.io/hot-reload: ConfigMap/web}}
spec:
  replicas: 6
  selector: {matchLabels: {app: web}}
  updateStrategy:
    rollingUpdate: {podUpdatePolicy: InPlaceOnly, maxUnavailable: 2, batches: {sizes: [30%, 70%], auto: true, interval: 3s}}
  template:
    metadata:
      labels: {app: web}
      annotations: {workloads.keelson.io/reload: 'METHOD'}
    spec:
      shareProcessNamespace: true
      terminationGracePeriodSeconds: 5
      volumes: [{name: configuration, configMap: {name: web}}]
      containers:
      - name: web
        image: REGISTRY/configured:v1
        ports: [{containerPort: 8080}]
        env: [{name: CONFIGURATION, value: /etc/web}]
        volumeMounts: [{name: configuration, mountPath: /etc/web}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1}
BESIDE`

// agent is the container that sends a signal.
const agent = `      - name: agent
        image: REGISTRY/reload-agent:v0.1.0
        args: [--directory=/etc/web, --signal=HUP, --process=configured-program]
        ports: [{containerPort: 7070}]
        volumeMounts: [{name: configuration, mountPath: /etc/web}]
`

// reloadState is the annotation of a pod with its last reload.
type reloadState struct{ Version, Result, Message string }

// reloaded returns the reload state of each pod.
func (n *test) reloaded(pods map[string]corev1.Pod) map[string]reloadState {
	n.Helper()
	out := map[string]reloadState{}
	for name, p := range pods {
		var s reloadState
		if text := p.Annotations["workloads.keelson.io/reload-state"]; text != "" {
			n.Check(json.Unmarshal([]byte(text), &s))
		}
		out[name] = s
	}
	return out
}

// unmoved checks that pods are the same, and that no container was restarted.
func (n *test) unmoved(before map[string]corev1.Pod) {
	n.Helper()
	after := byName(n.Pods("web"))
	if len(after) != len(before) {
		n.Errorf("%d pods; there were %d", len(after), len(before))
	}
	for name, was := range before {
		is := after[name]
		if is.UID != was.UID || is.Status.PodIP != was.Status.PodIP {
			n.Errorf("%s was replaced", name)
		}
		for _, c := range is.Status.ContainerStatuses {
			if c.RestartCount != 0 {
				n.Errorf("%s: container %s was restarted", name, c.Name)
			}
		}
	}
}

// reload describes a component whose configuration reaches running containers.
type reload struct{ component, object, kind, method, beside string }

// begin delivers the component with the text v1, and returns the pods.
func (r reload) begin(n *test) map[string]corev1.Pod {
	n.Helper()
	n.Namespace = r.component
	chart := strings.NewReplacer("KIND", r.kind, "METHOD", r.method, "BESIDE", r.beside).Replace(configured)
	if r.kind == "StatefulSet" {
		chart = strings.NewReplacer("  replicas: 6\n", "  replicas: 6\n  serviceName: web\n  podManagementPolicy: Parallel\n",
			"      shareProcessNamespace", "      readinessGates: [{conditionType: InPlaceUpdateReady}]\n      shareProcessNamespace").Replace(chart)
	}
	folder := "components/" + r.component + "/"
	n.edit("deliver "+r.component, map[string]string{
		folder + "component.yaml":       head + "Component\nnamespace: " + n.Namespace + "\ndependsOn: [workload-controllers]\n",
		folder + "template/Chart.yaml":  "apiVersion: v2\nname: " + r.component + "\nversion: 1.0.0\n",
		folder + "template/values.yaml": "text: v1\n", folder + "template/templates/web.yaml": chart,
		"clusters/e2e/" + r.component + ".yaml": head + "MetaConfig\nversion: HEAD\n",
	})
	n.Until(r.object, "there", func(s workloadtest.Status) bool { return s.AvailableReplicas == 6 && s.UpdatedReplicas == 6 })
	return byName(n.Pods("web"))
}

// write changes only the text of the ConfigMap, in git.
func (r reload) write(n *test, text string) {
	n.Helper()
	n.edit("text "+text, map[string]string{"components/" + r.component + "/template/values.yaml": "text: " + text + "\n"})
}

// delays logs how long pods took from the change of their files to the answer of the container.
func (n *test) delays(before map[string]corev1.Pod) {
	n.Helper()
	var all []time.Duration
	for _, was := range before {
		all = append(all, n.reloadTime(was))
	}
	slices.Sort(all)
	n.Logf("from the new files in a pod's annotations to the answer of its container: %s at least, %s in the middle, %s at most", all[0], all[len(all)/2], all[len(all)-1])
}

// A commit that changes only the text of a ConfigMap reaches running containers: two pods, and then four.
// Nothing is restarted, and no request of continuous clients fails. A text that the program refuses stops
// at the first batch. The way back reaches the same pods.
func TestReload(t *testing.T) {
	n := begin(t)
	r := reload{"reloaded", "statefulsets.apps.kruise.io/web", "StatefulSet", `{"http": {"port": 8080}}`, ""}
	before := r.begin(n)
	n.listen()
	load := n.ask(2)
	r.write(n, "v2")
	first := n.Until(r.object, "at its first batch", func(s workloadtest.Status) bool { return s.Batches.Reason == "Interval" })
	if first.Batches.Batch != "1/2" || first.UpdatedReplicas != 2 {
		t.Errorf("%+v", first)
	}
	if all := n.reloaded(byName(n.Pods("web"))); all["web-5"].Result != "Reloaded" || all["web-4"].Result != "Reloaded" || all["web-3"].Result != "" {
		t.Errorf("%+v", all)
	}
	n.Until(r.object, "done", func(s workloadtest.Status) bool { return s.Batches.Reason == "Done" && s.AvailableReplicas == 6 })
	answers, failed := load()
	t.Logf("%v, and %d failed", answers, len(failed))
	if len(failed) > 0 || answers["v1"] == 0 || answers["v2"] == 0 {
		t.Errorf("answers %v, failed %v", answers, failed)
	}
	n.serves("web", "v2")
	n.unmoved(before)
	n.delays(before)

	load = n.ask(2)
	r.write(n, "broken")
	stopped := n.Until(r.object, "stopped", func(s workloadtest.Status) bool { return s.Batches.Reason == "Failed" })
	if stopped.Batches.Batch != "1/2" || !strings.Contains(stopped.Batches.Message, "web-") {
		t.Errorf("%+v", stopped)
	}
	for name, s := range n.reloaded(byName(n.Pods("web"))) {
		if low := name < "web-4"; low && s.Result != "Reloaded" || s.Result == "Failed" && !strings.Contains(s.Message, "422") {
			t.Errorf("%s: %+v", name, s)
		}
	}
	r.write(n, "v2")
	n.Until(r.object, "taken back", func(s workloadtest.Status) bool { return s.Batches.Reason == "Done" && s.AvailableReplicas == 6 })
	answers, failed = load()
	if len(failed) > 0 || len(answers) != 1 || answers["v2"] == 0 {
		t.Errorf("answers %v, failed %v", answers, failed)
	}
	n.unmoved(before)
}

// The same with a program that knows only a signal, and an agent beside it. A signal has no answer: a text
// that the program can't use shows in its readiness probe, and stops at the first batch, too.
func TestReloadSignal(t *testing.T) {
	n := begin(t)
	r := reload{"signalled", "clonesets.apps.kruise.io/web", "CloneSet", `{"http": {"port": 7070}}`, strings.ReplaceAll(agent, "configured-program", "testimage")}
	before := r.begin(n)
	load := n.ask(2)
	r.write(n, "v2")
	first := n.Until(r.object, "at its first batch", func(s workloadtest.Status) bool { return s.Batches.Reason == "Interval" })
	if first.Batches.Batch != "1/2" || first.UpdatedReplicas != 2 {
		t.Errorf("%+v", first)
	}
	n.Until(r.object, "done", func(s workloadtest.Status) bool { return s.Batches.Reason == "Done" && s.AvailableReplicas == 6 })
	answers, failed := load()
	t.Logf("%v, and %d failed", answers, len(failed))
	if len(failed) > 0 || answers["v1"] == 0 || answers["v2"] == 0 {
		t.Errorf("answers %v, failed %v", answers, failed)
	}
	n.serves("web", "v2")
	n.unmoved(before)

	r.write(n, "broken")
	n.Until(r.object, "stuck", func(s workloadtest.Status) bool {
		return s.Batches.Batch == "1/2" && s.Batches.Reason == "Updating" && s.UpdatedReplicas == 2 && s.AvailableReplicas == 4
	})
	r.write(n, "v2")
	n.Until(r.object, "taken back", func(s workloadtest.Status) bool { return s.Batches.Reason == "Done" && s.AvailableReplicas == 6 })
	n.serves("web", "v2")
	n.unmoved(before)
}

// serves checks that each pod of an app answers with a version.
func (n *test) serves(app, version string) {
	n.Helper()
	for _, p := range n.Pods(app) {
		if got, err := n.answer(p); err != nil || got != version {
			n.Errorf("%s answers %q, %v", p.Name, got, err)
		}
	}
}
