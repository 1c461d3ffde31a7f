package applier_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// Git moves an object to another component with a change that a rule holds, and another client
// deletes the object meanwhile. It comes back as it was applied, in its new component, and the
// change waits, whichever component is planned first.
func TestMoveOfADeletedObjectApprovesNothing(t *testing.T) {
	for name, takerFirst := range map[string]bool{"TakerFirst": true, "GiverFirst": false} {
		t.Run(name, func(t *testing.T) {
			w, m := newTransfer(t)
			giver, taker, from, to := m.giver, m.taker, m.from, m.to
			w.dropDeployment()

			waits := &differ.Change{}
			if takerFirst {
				taker.apply(to)
			} else {
				waits = change(t, giver.plan(from), "Deployment")
				giver.apply(from)
				taker.apply(to)
			}
			if app := w.selects(); app != "web" {
				t.Errorf("a held change was applied without an approval: selector %q", app)
			}
			if of := w.get(deployments, "web").GetLabels()[v1alpha1.LabelComponent]; of != taker.component {
				t.Errorf("it has the label of component %s", of)
			}
			if !takerFirst && waits.Op != differ.OpNone {
				t.Errorf("the record does not wait for its new component: %s, %s", waits.Op, waits.Because)
			}
			giver.apply(from)
			if c := change(t, taker.plan(to), "Deployment"); c.State != differ.StateHeld {
				t.Errorf("the change does not wait:\n%s", show(taker.plan(to)))
			}
			if r, err := w.cluster.Record(t.Context(), giver.component); err != nil || len(r.Objects) != 1 {
				t.Errorf("the record of the former component has %d objects, want 1 (%v)", len(r.Objects), err)
			}
		})
	}
}

// An object that Keelson itself deleted, as git wanted, is new wherever it comes back.
func TestMoveAfterPruneIsNew(t *testing.T) {
	w := newWorld(t)
	giver, taker := w.as(w.ns+"-giver"), w.as(w.ns+"-taker")
	giver.apply(giver.want("v1", configMap("a", "x"), deployment))
	for range 2 {
		giver.apply(giver.want("v2", configMap("a", "x")))
	}
	w.collectDeployment()
	giver.apply(giver.want("v2", configMap("a", "x"))) // it sees that its deletion is done
	want := taker.want("v1", otherSelector())
	taker.apply(among(want, giver.want("v2", configMap("a", "x"))))
	if app := w.selects(); app != "api" {
		t.Errorf("it selects %q", app)
	}
}

// What a move may not do to an object that is deleted, it may not do after a restart, either.
func TestMoveIsJudgedAfterRestart(t *testing.T) {
	w := newWorld(t)
	giver, taker := w.as(w.ns+"-giver"), w.as(w.ns+"-taker")
	giver.apply(giver.want("v1", configMap("a", "x"), deployment))
	w.dropDeployment()
	w.reconnect()
	fresh := w.as(taker.component)
	fresh.apply(among(fresh.want("v1", otherSelector()), giver.want("v2", configMap("a", "x"))))
	if app := w.selects(); app != "web" {
		t.Errorf("a held change was applied without an approval: selector %q", app)
	}
}

// A damaged record stops its own component, and no creation of another one.
func TestDamagedRecordStopsNoCreation(t *testing.T) {
	w := newWorld(t)
	damaged := w.as(w.ns + "-damaged")
	damaged.apply(damaged.want("v1", configMap("a", "x")))
	patch := []byte(`{"data": {"record": "aGVsbG8="}}`)
	if _, err := w.dynamic.Resource(secrets).Namespace("keelson-system").Patch(t.Context(), "record-"+damaged.component, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.reconnect()
	w.apply(w.want("v1", configMap("b", "x")))
	if !w.there("b") {
		t.Error("the object was not created")
	}
	own := w.as(damaged.component)
	if _, err := w.cluster.Plan(t.Context(), own.want("v1", configMap("a", "x"))); err == nil || !strings.Contains(err.Error(), "record of "+damaged.component) {
		t.Errorf("the damaged record is not reported: %v", err)
	}
	w.deleteDamaged(damaged.component)
}

// deleteDamaged deletes a record that no other test may find.
func (w *world) deleteDamaged(component string) {
	w.t.Helper()
	if err := w.dynamic.Resource(secrets).Namespace("keelson-system").Delete(w.t.Context(), "record-"+component, metav1.DeleteOptions{}); err != nil {
		w.t.Error(err)
	}
}
