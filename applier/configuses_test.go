package applier_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer/configversion"
)

var (
	podResource      = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	revisionResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "controllerrevisions"}
)

// configured returns the version of a ConfigMap with a value, and a Deployment that refers to it and
// keeps no earlier revision. name is that of the version.
func (w *world) configured(value string) (name, config, workload string) {
	w.t.Helper()
	object := w.object(configMap("app", value))
	name, err := configversion.Make(object)
	if err != nil {
		w.t.Fatal(err)
	}
	data, err := yaml.Marshal(object)
	if err != nil {
		w.t.Fatal(err)
	}
	return name, string(data), `
apiVersion: apps/v1
kind: Deployment
metadata: {name: app, namespace: NS}
spec:
  revisionHistoryLimit: 0
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec: {containers: [{name: app, image: app, envFrom: [{configMapRef: {name: ` + name + `}}]}]}
`
}

// deliver applies the version of a value, and the deletions that follow from it.
func (w *world) deliver(value string) (name string, _ applier.Desired) {
	w.t.Helper()
	name, config, workload := w.configured(value)
	want := w.want("HEAD", config, workload)
	for range 5 {
		w.apply(want)
		w.collect()
		if w.plan(want).Settled() {
			break
		}
	}
	w.settled(want)
	return name, want
}

func (w *world) create(gvr schema.GroupVersionResource, manifest string) {
	w.t.Helper()
	if _, err := w.resource(gvr).Create(w.t.Context(), &unstructured.Unstructured{Object: w.object(manifest)}, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) remove(gvr schema.GroupVersionResource, name string) {
	w.t.Helper()
	if err := w.resource(gvr).Delete(w.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		w.t.Fatal(err)
	}
}

// podOf is a pod that reads a ConfigMap.
func podOf(config string) string {
	return `
apiVersion: v1
kind: Pod
metadata: {name: old, namespace: NS}
spec: {automountServiceAccountToken: false, serviceAccountName: none, containers: [{name: a, image: a}], volumes: [{name: c, configMap: {name: ` + config + `}}]}
`
}

// An earlier version that a pod or a kept revision refers to stays, and goes with the first change
// after its last user.
func TestConfigVersionInUse(t *testing.T) {
	w := newWorld(t)
	first, _ := w.deliver("one")
	w.create(revisionResource, `
apiVersion: apps/v1
kind: ControllerRevision
metadata: {name: kept, namespace: NS}
revision: 1
data: {spec: {template: {spec: {containers: [{name: a, image: a, envFrom: [{configMapRef: {name: `+first+`}}]}]}}}}
`)
	second, want := w.deliver("two")
	if !w.there(first) {
		t.Fatal("a version was deleted that a kept revision refers to")
	}
	if p := w.plan(want); !strings.Contains(p.Plan.Changes[0].Retained+p.Plan.Changes[1].Retained, "ControllerRevision kept refers to it") {
		t.Errorf("the plan does not say what uses the version: %+v", p.Plan.Changes)
	}
	w.remove(revisionResource, "kept")
	third, _ := w.deliver("three")
	for name, want := range map[string]bool{first: false, second: false, third: true} {
		if w.there(name) != want {
			t.Errorf("%s is there: %t, want %t", name, !want, want)
		}
	}
	back, _ := w.deliver("one")
	if back != first || !w.there(first) {
		t.Errorf("the way back has %s, want %s again", back, first)
	}
}

// A version that a pod begins to use between the two passes of a deletion stays, and its mark goes.
func TestConfigVersionUsedBetweenPasses(t *testing.T) {
	w := newWorld(t)
	serviceAccount(w)
	first, _ := w.deliver("one")
	_, config, workload := w.configured("two")
	want := w.want("HEAD", config, workload)
	w.apply(want) // the workload refers to the first version until now
	w.apply(want) // marks the first version
	if p := w.plan(want); p.Plan.Count(differ.OpDelete) != 1 {
		t.Fatalf("the version is not about to be deleted:\n%s", show(p))
	}
	w.create(podResource, podOf(first))
	w.apply(want)
	if !w.there(first) {
		t.Error("a version was deleted that a pod refers to")
	}
	w.settled(want)
	for _, o := range w.inventory() {
		if o.Pruning != nil {
			t.Errorf("%s stays, and is still marked", o.ID)
		}
	}
}

// Whether a version is used is not known without the right to list pods. So it stays.
func TestConfigVersionUseUnknown(t *testing.T) {
	w := newWorld(t)
	first, _ := w.deliver("one")
	config := rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if !strings.HasSuffix(r.URL.Path, "/pods") {
				return next.RoundTrip(r)
			}
			r = r.Clone(r.Context())
			r.Header.Set("Impersonate-User", "without-rights")
			return next.RoundTrip(r)
		})
	})
	w.connect(config)
	_, object, workload := w.configured("two")
	want := w.want("HEAD", object, workload)
	w.apply(want)
	p := w.apply(want)
	if !w.there(first) {
		t.Fatal("a version was deleted although nothing is known of its use")
	}
	said := ""
	for i := range p.Plan.Changes {
		said += p.Plan.Changes[i].Retained
	}
	if !strings.Contains(said, "it is not known whether a pod or a kept revision refers to it") || !strings.Contains(said, "forbidden") {
		t.Errorf("the plan says %q", said)
	}
}

// An absent component leaves no version behind, also if a pod refers to one.
func TestConfigVersionsOfAbsentComponent(t *testing.T) {
	w := newWorld(t)
	serviceAccount(w)
	first, _ := w.deliver("one")
	w.create(podResource, podOf(first))
	second, want := w.deliver("two")
	if !w.there(first) {
		t.Fatal("a version was deleted that a pod refers to")
	}
	want.Absent = true
	w.apply(want)
	w.apply(want)
	for _, name := range []string{first, second} {
		if w.there(name) {
			t.Errorf("%s is left", name)
		}
	}
}

// Ten versions stay by default, without a request about their use.
func TestConfigVersionHistoryAsksNothing(t *testing.T) {
	w := newWorld(t)
	asked := 0
	config := rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/controllerrevisions") {
				asked++
			}
			return next.RoundTrip(r)
		})
	})
	w.connect(config)
	var names []string
	for i := range 5 {
		name, object, workload := w.configured(fmt.Sprint("value ", i))
		want := w.want("HEAD", object, strings.Replace(workload, "revisionHistoryLimit: 0", "paused: false", 1))
		w.apply(want)
		if p := w.plan(want); !p.Settled() {
			t.Fatalf("version %d is not settled:\n%s", i, show(p))
		}
		names = append(names, name)
	}
	for _, name := range names {
		if !w.there(name) {
			t.Errorf("%s is gone", name)
		}
	}
	if asked > 0 {
		t.Errorf("revisions were listed %d times for versions that stay in any case", asked)
	}
}

// serviceAccount makes the account of podOf, which the API server asks for.
func serviceAccount(w *world) {
	w.t.Helper()
	w.apply(w.want("HEAD", configMap("namespace", "x"))) // makes the namespace
	w.create(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: none, namespace: NS}}")
}

// A ConfigMap that is no longer versioned leaves no version behind: those that are in use wait, and go
// after their last user.
func TestConfigVersionsEnded(t *testing.T) {
	w := newWorld(t)
	serviceAccount(w)
	first, _ := w.deliver("one")
	w.create(podResource, podOf(first))
	_, _, workload := w.configured("one")
	want := w.want("HEAD", configMap("app", "one"), strings.Replace(workload, "name: "+first, "name: app", 1))
	w.apply(want)
	p := w.plan(want)
	outcome, err := w.cluster.Apply(t.Context(), p, applier.ApplyOptions{})
	if err != nil || outcome.Again == 0 || !strings.Contains(p.Waits(), first+": waits: Pod old refers to it") {
		t.Errorf("it waits for %q, and another pass comes after %s (%v)", p.Waits(), outcome.Again, err)
	}
	if !w.there(first) {
		t.Fatal("a version was deleted that a pod refers to")
	}
	w.remove(podResource, "old")
	w.reconnect() // what was read of pods is kept for a minute
	for range 3 {
		w.apply(want)
		w.collect()
	}
	if w.there(first) {
		t.Error("the version is left, and nothing refers to it")
	}
	w.settled(want)
}
