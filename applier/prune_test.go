package applier_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// What left the chart is deleted, once, and only that.
func TestPrune(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x"), configMap("b", "x")))
	want := w.want("v2", configMap("a", "x"))
	p := w.apply(want)
	if p.Plan.Count(differ.OpDelete) != 1 {
		t.Errorf("want one deletion:\n%s", show(p))
	}
	w.collect()
	w.apply(want) // it is gone: forget it
	w.settled(want)
	list, err := w.resource(configMaps).List(t.Context(), metav1.ListOptions{LabelSelector: "keelson.io/component"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d ConfigMaps left, want 1 (%v)", len(list.Items), err)
	}
}

// An object that lost the label, or was made anew by somebody else, is not ours
// to delete.
func TestPruneLeavesWhatIsNotOurs(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x"), configMap("b", "x"), configMap("c", "x")))
	_, err := w.resource(configMaps).Patch(t.Context(), "b", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"keelson.io/component":null}}}`), metav1.PatchOptions{FieldManager: "kubectl-label"})
	if err != nil {
		t.Fatal(err)
	}
	again := w.get(configMaps, "c")
	if err := w.resource(configMaps).Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again.SetResourceVersion("")
	again.SetUID("")
	again.SetManagedFields(nil)
	if _, err := w.resource(configMaps).Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want := w.want("v2", configMap("a", "x"))
	p := w.apply(want)
	if p.Plan.Count(differ.OpDelete) != 0 {
		t.Errorf("want no deletion:\n%s", show(p))
	}
	w.get(configMaps, "b")
	w.get(configMaps, "c")
	w.settled(want)
}

// More deletions than max(10, 10 %) look like a mistake: held.
func TestDeletionBudget(t *testing.T) {
	w := newWorld(t)
	var many []string
	for i := range 12 {
		many = append(many, configMap(fmt.Sprintf("c%d", i), "x"))
	}
	w.apply(w.want("v1", many...))
	p := w.apply(w.want("v2", many[0]))
	if p.Plan.Count(differ.OpDelete) != 0 || !strings.Contains(show(p), "deletion-budget") {
		t.Errorf("want every deletion held:\n%s", show(p))
	}
	w.get(configMaps, "c11")
}

// An empty render is a mistake, and no wish to delete everything.
func TestEmptyRenderPrunesNothing(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x")))
	var want *applier.EmptyTargetError
	if _, err := w.cluster.Plan(t.Context(), w.want("v2")); !errors.As(err, &want) {
		t.Errorf("error is %v, want an EmptyTargetError", err)
	}
	w.get(configMaps, "a")
}
