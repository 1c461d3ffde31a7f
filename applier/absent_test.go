package applier_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// gone is the wish that nothing of the component is left.
func (w *world) gone() applier.Desired {
	w.t.Helper()
	want, err := applier.NewDesired(&registry.Fleet{Revision: "abc"}, &registry.Delivery{
		Component: w.component, Absent: true,
		Version: &registry.Version{Component: w.component, Name: "v1", Spec: v1alpha1.Component{Namespace: w.ns}},
	}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return want
}

func (w *world) recorded() bool {
	w.t.Helper()
	names, err := w.cluster.Recorded(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.Contains(names, w.component)
}

// A component that git wants absent goes by the same two passes, its record last.
func TestAbsent(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x"), configMap("b", "x"), service))
	want := w.gone()
	w.apply(want)
	if !w.there("a") || !w.there("b") {
		t.Fatal("the first pass deleted something")
	}
	w.apply(want)
	if w.there("a") || w.there("b") {
		t.Error("the second pass did not delete everything")
	}
	if !w.recorded() {
		t.Error("the record went before the objects")
	}
	w.collect()
	w.collectServices()
	outcome, err := w.cluster.Apply(t.Context(), w.plan(want), applier.ApplyOptions{})
	if err != nil || !outcome.Removed {
		t.Errorf("it is not said that it is removed: %+v (%v)", outcome, err)
	}
	if w.recorded() {
		t.Error("the record is left")
	}
	w.settled(want)
	t.Log("and what comes back begins anew")
	w.apply(w.want("v1", configMap("a", "x")))
	if !w.there("a") {
		t.Error("it can't be installed again")
	}
}

func (w *world) collectServices() {
	w.t.Helper()
	services := configMaps
	services.Resource = "services"
	_, err := w.resource(services).Patch(w.t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

// What was never there is absent, and nothing is written to say so.
func TestAbsentFromTheStart(t *testing.T) {
	w := newWorld(t)
	w.settled(w.gone())
	if w.recorded() {
		t.Error("a record was written")
	}
}

// A large component is held until git approves each deletion, a small one with
// something that holds data in part; its record stays as long.
func TestAbsentIsHeld(t *testing.T) {
	w := newWorld(t)
	var many []string
	for i := range 11 {
		many = append(many, configMap(fmt.Sprintf("c%d", i), "x"))
	}
	w.apply(w.want("v1", many...))
	want := w.gone()
	w.prune(want)
	p := w.plan(want)
	if p.Plan.Count(differ.OpDelete) != 0 || !strings.Contains(show(p), "11 of 11 objects would be deleted at once") || !w.there("c10") {
		t.Fatalf("want every deletion held:\n%s", show(p))
	}
	want.Approved = map[string][]string{}
	for _, c := range p.Plan.Changes {
		want.Approved[c.ID.String()] = []string{c.Hash}
	}
	w.prune(want)
	w.collect()
	w.apply(want)
	if w.there("c0") || w.recorded() {
		t.Error("what git approves was not removed")
	}
}

// Hooks of a component that goes run before anything of it goes, and after all of
// it is gone; none while a deletion waits for an approval; once, and once more when
// it goes another time.
func TestAbsentHooks(t *testing.T) {
	w := newWorld(t)
	hook := func(event string) *renderer.Object {
		return &renderer.Object{Content: w.object(strings.Replace(configMap(event, "x"), "namespace: NS",
			"namespace: NS, labels: {keelson.io/component: "+w.component+"}, annotations: {helm.sh/hook: "+event+"}", 1))}
	}
	for turn := range 2 {
		var many []string
		for i := range 11 {
			many = append(many, configMap(fmt.Sprintf("c%d", i), fmt.Sprintf("turn-%d", turn)))
		}
		w.apply(w.want("v1", many...))
		want := w.gone()
		want.Target = &renderer.Target{Hooks: []*renderer.Object{hook("pre-delete"), hook("post-delete")}}
		w.prune(want)
		if turn == 0 && w.there("pre-delete") {
			t.Fatal("a hook ran ahead of what waits for an approval")
		}
		want.Approved = map[string][]string{}
		for _, c := range w.plan(want).Plan.Changes {
			want.Approved[c.ID.String()] = []string{c.Hash}
		}
		w.apply(want)
		if !w.there("pre-delete") || !w.there("c0") {
			t.Fatal("the first hook should have run, before anything went")
		}
		first := w.uid("pre-delete")
		w.reconnect()
		w.apply(want)
		if w.there("c0") || turn == 0 && w.there("post-delete") || w.uid("pre-delete") != first {
			t.Fatal("the second pass deletes, and runs no hook")
		}
		w.collect()
		w.apply(want)
		if !w.there("post-delete") || w.recorded() {
			t.Fatal("the last hook should have run when all was gone, and then the record have been deleted")
		}
		w.settled(want)
		for _, name := range []string{"pre-delete", "post-delete"} { // no garbage collector would let them be replaced
			if err := w.resource(configMaps).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What another component wants by now is no part of what goes.
func TestAbsentAfterMove(t *testing.T) {
	w := newWorld(t)
	giver, taker := w.as(w.ns+"-giver"), w.as(w.ns+"-taker")
	giver.apply(giver.want("v1", configMap("goes", "x"), configMap("moves", "x")))
	takes := taker.want("v1", configMap("moves", "x"))
	for range 2 {
		giver.reconnect()
		giver.apply(among(giver.gone(), takes))
	}
	if w.there("goes") || !w.there("moves") {
		t.Error("want one gone and one left for the taker")
	}
	taker.apply(among(takes))
	w.collect()
	giver.reconnect()
	giver.apply(among(giver.gone(), takes))
	if giver.recorded() || !w.there("moves") || w.owner("moves") != taker.component {
		t.Error("want the record gone, and the object with the taker")
	}
}
