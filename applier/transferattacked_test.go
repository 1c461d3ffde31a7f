package applier_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// Ways around the promise that a deletion approves nothing while git moves an object, as an
// adversary found them.

// transfer is an object that git moves from one component to another, with a change of its
// selector that a rule holds.
type transfer struct {
	giver, taker *world
	from, to     applier.Desired
}

func newTransfer(t *testing.T) (*world, transfer) {
	t.Helper()
	w := newWorld(t)
	m := transfer{giver: w.as(w.ns + "-giver"), taker: w.as(w.ns + "-taker")}
	m.giver.apply(m.giver.want("v1", configMap("a", "x"), deployment))
	m.taker.apply(m.taker.want("v1", configMap("b", "x")))
	from, to := m.giver.want("v3", configMap("a", "x")), m.taker.want("v2", configMap("b", "x"), otherSelector())
	m.from, m.to = among(from, to), among(to, from)
	return w, m
}

// deleted lets both components see that another client has deleted the object. The held change must
// not pass.
func (m transfer) deleted(t *testing.T) {
	t.Helper()
	m.giver.dropDeployment()
	m.giver.apply(m.from)
	m.taker.apply(m.to)
	if app := m.taker.selects(); app != "web" {
		t.Errorf("a held change was applied without an approval: selector %q", app)
	}
}

// through connects a component to the API server by a transport of its own.
func (w *world) through(roundTrip func(next http.RoundTripper, r *http.Request) (*http.Response, error)) {
	w.t.Helper()
	config := rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { return roundTrip(next, r) })
	})
	w.connect(config)
}

// Whatever another client does to the object before it deletes it: the former component's record
// keeps the object.
func TestMoveOfAChangedObjectApprovesNothing(t *testing.T) {
	for name, attack := range map[string]func(w *world, m transfer){
		"Relabelled": func(w *world, m transfer) {
			w.patchDeployment(fmt.Sprintf(`{"metadata":{"labels":{"keelson.io/component":%q}}}`, m.taker.component), "kubectl-edit")
		},
		"Unlabelled": func(w *world, _ transfer) {
			w.patchDeployment(`{"metadata":{"labels":{"keelson.io/component":null}}}`, "kubectl-edit")
		},
		"Kept": func(w *world, _ transfer) {
			w.patchDeployment(`{"metadata":{"annotations":{"helm.sh/resource-policy":"keep"}}}`, "kubectl-edit")
		},
		"Recreated": func(w *world, _ transfer) {
			w.dropDeployment()
			_, err := w.resource(deployments).Create(w.t.Context(), &unstructured.Unstructured{Object: w.object(deployment)}, metav1.CreateOptions{})
			if err != nil {
				w.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, m := newTransfer(t)
			attack(w, m)
			m.giver.apply(m.from)
			m.deleted(t)
		})
	}
}

// The new component is killed between the creation of the object, as it was recorded, and the write
// of its record. The former component sees the new label.
func TestMoveByAKilledTakerApprovesNothing(t *testing.T) {
	w, m := newTransfer(t)
	w.dropDeployment()
	var created atomic.Bool
	m.taker.through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if created.Load() && r.Method != http.MethodGet {
			return nil, errors.New("killed")
		}
		answer, err := next.RoundTrip(r)
		if write(http.MethodPatch, "/deployments/web")(r) {
			created.Store(true)
		}
		return answer, err
	})
	if err := m.taker.try(t.Context(), m.to, applier.ApplyOptions{}); err == nil {
		t.Fatal("it was not killed")
	}
	if app := w.selects(); app != "web" {
		t.Fatalf("the first creation selects %q", app)
	}
	m.giver.reconnect()
	m.giver.apply(m.from)
	m.taker.reconnect()
	m.deleted(t)
}

// A deletion by the former component failed, and left its intent. Then git moves the object instead.
func TestMoveAfterAFailedDeletionApprovesNothing(t *testing.T) {
	_, m := newTransfer(t)
	m.giver.through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if write(http.MethodDelete, "/deployments/web")(r) {
			return refuse(r, http.StatusInternalServerError), nil
		}
		return next.RoundTrip(r)
	})
	dropped := m.giver.want("v2", configMap("a", "x"))
	m.giver.apply(dropped)
	if err := m.giver.try(t.Context(), dropped, applier.ApplyOptions{}); err == nil {
		t.Fatal("the deletion did not fail")
	}
	m.giver.reconnect()
	m.taker.reconnect()
	m.giver.apply(m.from)
	if c := change(t, m.taker.apply(m.to), "Deployment"); c.State != differ.StateHeld {
		t.Fatalf("the change is not held before the deletion: %s", c.State)
	}
	m.deleted(t)
}

// A component that only asks for an object does not get it when another client deletes it.
func TestDeletionGivesNoObjectAway(t *testing.T) {
	w := newWorld(t)
	owner, other := w.as(w.ns+"-owner"), w.as(w.ns+"-other")
	has := owner.want("v1", configMap("a", "x"), deployment)
	owner.apply(has)
	wants := other.want("v1", configMap("b", "x"), deployment)
	has, wants = among(has, wants), among(wants, has)
	other.apply(wants)
	w.dropDeployment()
	other.apply(wants)
	p := owner.apply(has)
	if of := w.get(deployments, "web").GetLabels()[v1alpha1.LabelComponent]; of != owner.component {
		t.Errorf("the deletion gave the object to %s:\n%s", of, show(p))
	}
}

// A project no longer allows an object, and an administrator deletes what its component left there.
// The component's record does not decide what the new owner creates.
func TestRecordOfARefusedObjectSaysNothing(t *testing.T) {
	w := newWorld(t)
	tenant, owner := w.as(w.ns+"-tenant"), w.as(w.ns+"-owner")
	evil := strings.ReplaceAll(strings.ReplaceAll(deployment, "web:v1", "evil:v1"), "{app: web}", "{app: mine}")
	tenant.apply(tenant.want("v1", evil))
	refused := tenant.want("v1", evil)
	refused.Limits = &differ.ProjectLimits{Project: "p"}
	wants := among(owner.want("v1", deployment), refused)
	refused = among(refused, wants)
	tenant.apply(refused)
	w.dropDeployment()
	tenant.apply(refused)
	owner.apply(wants)
	if app := w.selects(); app != "web" {
		t.Errorf("the owner's new object selects %q, as the tenant wrote it", app)
	}
}

// A component that a project does not allow an object can't keep it in another component's record
// by asking for it.
func TestRefusedClaimBlocksNothing(t *testing.T) {
	w := newWorld(t)
	tenant := w.as(w.ns + "-tenant")
	w.apply(w.want("v1", configMap("a", "x"), deployment))
	w.dropDeployment()
	claim := tenant.want("v1", deployment)
	claim.Limits = &differ.ProjectLimits{Project: "p"}
	next := among(w.want("v2", configMap("a", "x")), claim)
	tenant.apply(among(claim, next))
	w.apply(next)
	if p := w.plan(next); !p.Settled() {
		t.Errorf("it is not settled:\n%s", show(p))
	}
}
