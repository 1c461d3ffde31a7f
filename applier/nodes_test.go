package applier_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

const daemonSet = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: NS}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers: [{name: agent, image: agent:1}]
`

// addNode makes a Node with a label of its own, which no other test's pods select.
func (w *world) addNode(name, label string) {
	w.t.Helper()
	n := &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "yes"}},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(n)
	if err != nil {
		w.t.Fatal(err)
	}
	nodes := w.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	if _, err := nodes.Create(w.t.Context(), &unstructured.Unstructured{Object: content}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := nodes.Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) && w.t.Context().Err() == nil {
			w.t.Error(err)
		}
	})
}

// onNodes is the DaemonSet on the nodes with a label.
func onNodes(label string) string {
	return daemonSet + "      nodeSelector: {" + label + ": \"yes\"}\n"
}

// countingNodes counts the lists of nodes. answer, if there is one, answers instead of the API server.
func (w *world) countingNodes(answer func(*http.Request) *http.Response) *atomic.Int32 {
	w.t.Helper()
	lists, config := &atomic.Int32{}, rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != "/api/v1/nodes" {
				return next.RoundTrip(r)
			}
			lists.Add(1)
			if answer != nil {
				return answer(r), nil
			}
			return next.RoundTrip(r)
		})
	})
	w.connect(config)
	return lists
}

// A rule counts the nodes of the cluster, which are read only where a change needs them: a
// DaemonSet that would leave all its nodes is held, and the plan says how many there are.
func TestNodesAreCounted(t *testing.T) {
	w := newWorld(t)
	w.addNode("counted-1", "counted")
	w.addNode("counted-2", "counted")
	lists := w.countingNodes(nil)
	w.apply(w.want("v1", onNodes("counted")))
	w.settled(w.want("v1", onNodes("counted")))
	if n := lists.Load(); n != 0 {
		t.Errorf("nodes were listed %d times for a creation and a settled component", n)
	}
	lists = w.countingNodes(nil)
	next := w.want("v2", onNodes("on-no-node"))
	for range 3 {
		c := change(t, w.apply(next), "DaemonSet")
		if c.State != differ.StateHeld || !strings.Contains(c.Fields[0].Because, "(2 nodes match the pods that run)") {
			t.Fatalf("want it held, with the number of nodes:\n%s", show(w.plan(next)))
		}
	}
	if n := lists.Load(); n != 1 {
		t.Errorf("nodes were listed %d times in a minute", n)
	}
}

// Where Keelson may not list nodes, they are not known, and what git wants is applied. An
// API server that fails is no answer: nothing is planned.
func TestNodesAreNotKnown(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", daemonSet))
	next := w.want("v2", onNodes("on-no-node"))
	w.countingNodes(func(r *http.Request) *http.Response { return refuse(r, http.StatusInternalServerError) })
	if _, err := w.cluster.Plan(t.Context(), next); err == nil || !strings.Contains(err.Error(), "list nodes") {
		t.Errorf("the API server failed, and the plan has the error %v", err)
	}
	lists := w.countingNodes(func(r *http.Request) *http.Response { return refuse(r, http.StatusForbidden) })
	c := change(t, w.apply(next), "DaemonSet")
	if c.Op != differ.OpUpdate || len(c.Warnings) == 0 || c.Warnings[0].Rule != "fewer-nodes" || lists.Load() == 0 {
		t.Errorf("want it updated, with the warning of the selector alone: %s, %v", c.Op, c.Warnings)
	}
	w.settled(next)
}

// Nodes are read wherever a rule turns out to need them: also of an object that is taken over from
// another component, and for a hook.
func TestNodesAreReadLate(t *testing.T) {
	w := newWorld(t)
	w.addNode("late-1", "late")
	giver, taker := w.as(w.ns+"-giver"), w.as(w.ns+"-taker")
	giver.apply(giver.want("v1", configMap("a", "x"), onNodes("late")))
	taker.apply(taker.want("v1", configMap("b", "x")))
	next := among(taker.want("v2", configMap("b", "x"), daemonSet), giver.want("v2", configMap("a", "x")))
	taker.apply(next)
	if c := change(t, taker.plan(next), "DaemonSet"); c.Unread.Nodes || c.State != differ.StateSynced {
		t.Errorf("the object is not taken over:\n%s", show(taker.plan(next)))
	}

	rules, err := differ.NewRules(differ.Scopes{Fleet: []v1alpha1.DangerRule{{
		Name: "mine", Match: v1alpha1.ObjectMatch{Kinds: []string{"ConfigMap"}, Name: "forbidden"}, On: []v1alpha1.Event{v1alpha1.OnCreateObject},
		Effect: v1alpha1.EffectDeny, Because: "no", When: `nodes != null && nodes.matching({}) > 0`,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	hooked := w.withHooks(w.want("v1", configMap("own", "x")), `{apiVersion: v1, kind: ConfigMap, metadata: {name: forbidden, namespace: NS, annotations: {helm.sh/hook: pre-install}}, data: {a: b}}`)
	hooked.Rules = rules
	if err := w.try(t.Context(), hooked, applier.ApplyOptions{}); err == nil || w.there("forbidden") {
		t.Errorf("a hook that the nodes forbid: %v", err)
	}
}
