package applier_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// What left the chart is marked by one pass and deleted by the next, once, and
// stays in the inventory until it is gone.
func TestPrune(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x"), configMap("b", "x")))
	want := w.want("v2", configMap("a", "x"))
	p := w.plan(want)
	outcome, err := w.cluster.Apply(t.Context(), p, applier.ApplyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Plan.Count(differ.OpDelete) != 1 || outcome.Deleted != 0 || outcome.Again == 0 {
		t.Errorf("want a deletion that is only planned, and another look; %+v:\n%s", outcome, show(p))
	}
	if !w.there("b") {
		t.Fatal("the first pass deleted it")
	}
	outcome, err = w.cluster.Apply(t.Context(), w.plan(want), applier.ApplyOptions{})
	if err != nil || outcome.Deleted != 1 {
		t.Errorf("the second pass deleted %d objects, want 1 (%v)", outcome.Deleted, err)
	}
	going := w.get(configMaps, "b").GetResourceVersion()
	p = w.apply(want)
	if got := p.Plan.Changes[1]; got.Op != differ.OpNone || !strings.Contains(got.Because, "waits for the finalizers foregroundDeletion") {
		t.Errorf("the plan does not say what the deletion waits for:\n%s", show(p))
	}
	if got := w.get(configMaps, "b").GetResourceVersion(); got != going {
		t.Error("what is being deleted was written again")
	}
	if n := len(w.inventory()); n != 2 {
		t.Errorf("the record has %d objects while one is being deleted, want 2", n)
	}
	w.collect()
	w.apply(want) // it is gone: forget it
	w.settled(want)
	list, err := w.resource(configMaps).List(t.Context(), metav1.ListOptions{LabelSelector: "keelson.io/component"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d ConfigMaps left, want 1 (%v)", len(list.Items), err)
	}
}

// inventory is what the record has.
func (w *world) inventory() []records.Object {
	w.t.Helper()
	r, err := w.cluster.Record(w.t.Context(), w.component)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Objects
}

// An object is deleted when two passes for the same target agree that it is gone:
// another target begins anew, and one that has it again takes the mark off.
func TestPruneNeedsTheSameTargetTwice(t *testing.T) {
	w := newWorld(t)
	a, b := configMap("a", "x"), configMap("b", "x")
	w.apply(w.want("v1", a, b))
	w.apply(w.want("v2", a))
	w.apply(w.want("v3", configMap("a", "y")))
	if !w.there("b") {
		t.Fatal("it was deleted at the first pass of another target")
	}
	w.apply(w.want("v1", a, b))
	w.settled(w.want("v1", a, b))
	for _, o := range w.inventory() {
		if o.Pruning != nil {
			t.Errorf("%s is wanted again, and still marked", o.ID)
		}
	}
	w.apply(w.want("v2", a))
	if !w.there("b") {
		t.Error("a mark of before the object was wanted again counted")
	}
	w.apply(w.want("v2", a))
	if w.there("b") {
		t.Error("it was not deleted")
	}
}

// As long as something of the target can't be applied, nothing is marked.
func TestPruneNotAfterAFailure(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x"), configMap("b", "x")))
	refused := strings.Replace(configMap("new", "x"), "namespace: NS", `namespace: NS, labels: {x: "no label"}`, 1)
	for range 3 {
		_, err := w.cluster.Apply(t.Context(), w.plan(w.want("v2", configMap("a", "x"), refused)), applier.ApplyOptions{})
		if !apierrors.IsInvalid(err) {
			t.Fatalf("error is %v, want a refusal", err)
		}
		w.reconnect()
	}
	if !w.there("b") || w.inventory()[1].Pruning != nil {
		t.Error("an object was marked or deleted although its target was not applied")
	}
}

// A new name in the chart: the new object is there before the old one goes.
func TestPruneAfterRename(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("old", "x")))
	want := w.want("v2", configMap("new", "x"))
	w.apply(want)
	if !w.there("old") || !w.there("new") {
		t.Error("after the first pass both should be there")
	}
	w.apply(want)
	if w.there("old") || !w.there("new") {
		t.Error("after the second pass the new one alone should be there")
	}
}

// An object is left in place if it lost the label, if another client created it again or owns all
// its fields, or if its annotation disables pruning.
func TestPruneLeavesWhatIsNotOurs(t *testing.T) {
	w := newWorld(t)
	stays := strings.Replace(configMap("stays", "x"), "namespace: NS", "namespace: NS, annotations: {keelson.io/prune: disabled}", 1)
	w.apply(w.want("v1", configMap("a", "x"), configMap("unlabelled", "x"), configMap("anew", "x"), configMap("theirs", "x"), stays))
	_, err := w.resource(configMaps).Patch(t.Context(), "unlabelled", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"keelson.io/component":null}}}`), metav1.PatchOptions{FieldManager: "kubectl-label"})
	if err != nil {
		t.Fatal(err)
	}
	again := w.get(configMaps, "anew")
	if err := w.resource(configMaps).Delete(t.Context(), "anew", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again.SetResourceVersion("")
	again.SetUID("")
	again.SetManagedFields(nil)
	if _, err := w.resource(configMaps).Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = w.resource(configMaps).Apply(t.Context(), "theirs", &unstructured.Unstructured{Object: w.object(strings.Replace(
		configMap("theirs", "other"), "namespace: NS", "namespace: NS, labels: {keelson.io/component: "+w.component+"}", 1))},
		metav1.ApplyOptions{FieldManager: "flux", Force: true})
	if err != nil {
		t.Fatal(err)
	}
	// Keelson gives its last field up, as an apply of nothing does.
	_, err = w.resource(configMaps).Apply(t.Context(), "theirs", &unstructured.Unstructured{Object: w.object(
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs, namespace: NS}}")}, metav1.ApplyOptions{FieldManager: "keelson"})
	if err != nil {
		t.Fatal(err)
	}
	want := w.want("v2", configMap("a", "x"))
	w.prune(want)
	for _, name := range []string{"unlabelled", "anew", "theirs", "stays"} {
		if !w.there(name) {
			t.Errorf("%s was deleted", name)
		}
	}
	w.settled(want)
	if n := len(w.inventory()); n != 1 {
		t.Errorf("the record has %d objects, want 1", n)
	}
}

// More deletions than max(10, 10 %) look like a mistake: held, until git approves
// them one by one.
func TestDeletionBudget(t *testing.T) {
	w := newWorld(t)
	var many []string
	for i := range 12 {
		many = append(many, configMap(fmt.Sprintf("c%d", i), "x"))
	}
	w.apply(w.want("v1", many...))
	want := w.want("v2", many[0])
	w.prune(want)
	p := w.plan(want)
	if p.Plan.Count(differ.OpDelete) != 0 || !strings.Contains(show(p), "deletion-budget") || !w.there("c11") {
		t.Errorf("want every deletion held:\n%s", show(p))
	}
	want.Approved = map[string][]string{}
	for _, c := range p.Plan.Changes {
		if c.Approvable() {
			want.Approved[c.ID.String()] = []string{c.Hash}
		}
	}
	w.prune(want)
	if w.there("c11") || w.there("c1") || !w.there("c0") {
		t.Error("what git approves was not deleted, or more")
	}
}

// An empty render is a mistake, and no wish to delete everything.
func TestEmptyRenderPrunesNothing(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x")))
	for range 3 {
		var want *applier.EmptyTargetError
		if _, err := w.cluster.Plan(t.Context(), w.want("v2")); !errors.As(err, &want) {
			t.Errorf("error is %v, want an EmptyTargetError", err)
		}
	}
	if !w.there("a") {
		t.Error("it was deleted")
	}
}

// Without the right to read an object, Keelson can't know whether it exists.
func TestPruneForbiddenRead(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x"), service))
	want := w.want("v2", service)
	w.apply(want) // marks it
	blind := rest.CopyConfig(server)
	blind.Impersonate = rest.ImpersonationConfig{UserName: "unprivileged", Groups: []string{"system:authenticated"}}
	d, err := dynamic.NewForConfig(blind)
	if err != nil {
		t.Fatal(err)
	}
	c, err := applier.New(applier.Options{Name: "test", Config: server, Reader: readerOf{dynamic: d}})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := c.Plan(t.Context(), want); !apierrors.IsForbidden(err) {
			t.Errorf("error is %v, want a refusal", err)
		}
	}
	if !w.there("a") {
		t.Error("it was deleted")
	}
}

// A part of an object's API group can't be discovered: the object waits and is
// kept in mind, all else goes on.
func TestPrunePartialDiscovery(t *testing.T) {
	w := newWorld(t)
	const crd = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sails.NS.example}
spec:
  group: NS.example
  names: {kind: Sail, plural: sails, singular: sail}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`
	const sail = "{apiVersion: NS.example/v1, kind: Sail, metadata: {name: s, namespace: NS}}"
	w.apply(w.want("v1", crd, sail, configMap("a", "x")))
	broken := w.object(`
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v2.NS.example}
spec: {group: NS.example, version: v2, service: {namespace: NS, name: none}, groupPriorityMinimum: 100, versionPriority: 1, insecureSkipTLSVerify: true}
`)
	services := w.dynamic.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	if _, err := services.Create(t.Context(), &unstructured.Unstructured{Object: broken}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stop := func() error { return services.Delete(t.Context(), "v2."+w.ns+".example", metav1.DeleteOptions{}) }
	sails := schema.GroupVersionResource{Group: w.ns + ".example", Version: "v1", Resource: "sails"}
	want := w.want("v2", crd, configMap("a", "changed"))
	w.eventually("the group is discovered in part", func() bool {
		w.reconnect()
		return strings.Contains(show(w.plan(want)), "waits until the API group")
	})
	for range 3 {
		w.prune(want)
	}
	if w.get(sails, "s").GetDeletionTimestamp() != nil {
		t.Fatal("it was deleted although its group was not known whole")
	}
	if data, _, _ := unstructured.NestedString(w.get(configMaps, "a").Object, "data", "key"); data != "changed" {
		t.Errorf("what is wanted has to go on; the key is %q", data)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.eventually("the group is discovered whole, and it is deleted", func() bool {
		w.prune(want)
		_, err := w.resource(sails).Get(t.Context(), "s", metav1.GetOptions{})
		return apierrors.IsNotFound(err) || err == nil && w.get(sails, "s").GetDeletionTimestamp() != nil
	})
}
