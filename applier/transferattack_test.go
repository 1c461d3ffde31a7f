package applier_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// F1: what another client does to the object before it deletes it makes the former component forget it.
func TestMoveOfAChangedObjectApprovesNothing(t *testing.T) {
	for name, attack := range map[string]func(w *world, taker string){
		"Relabelled": func(w *world, taker string) {
			w.mergeWeb(fmt.Sprintf(`{"metadata":{"labels":{"keelson.io/component":%q}}}`, taker))
		},
		"Unlabelled": func(w *world, _ string) { w.mergeWeb(`{"metadata":{"labels":{"keelson.io/component":null}}}`) },
		"Kept": func(w *world, _ string) {
			w.mergeWeb(`{"metadata":{"annotations":{"helm.sh/resource-policy":"keep"}}}`)
		},
		"Recreated": func(w *world, _ string) {
			w.dropDeployment()
			if _, err := w.resource(deployments).Create(w.t.Context(), &unstructured.Unstructured{Object: w.object(deployment)}, metav1.CreateOptions{}); err != nil {
				w.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			giver, taker := w.as(w.ns+"-giver"), w.as(w.ns+"-taker")
			giver.apply(giver.want("v1", configMap("a", "x"), deployment))
			taker.apply(taker.want("v1", configMap("b", "x")))
			from, to := giver.want("v2", configMap("a", "x")), taker.want("v2", configMap("b", "x"), otherSelector())
			from, to = among(from, to), among(to, from)
			attack(w, taker.component)
			giver.apply(from)
			w.dropDeployment()
			giver.apply(from)
			taker.apply(to)
			if app := w.selects(); app != "web" {
				t.Errorf("a held change was applied without an approval: selector %q", app)
			}
		})
	}
}

func (w *world) mergeWeb(patch string) {
	w.t.Helper()
	if _, err := w.resource(deployments).Patch(w.t.Context(), "web", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
		w.t.Fatal(err)
	}
}

// F5b: a project loses an object (its fence shrinks, or the namespace goes to another project), and an administrator deletes what the
// tenant left. The tenant's component still wants it, is denied, and its record keeps the entry for ever. The new
// owner's object is created as the tenant wrote it, by the new owner's account.
func TestRecordOfARefusedObjectSaysNothing(t *testing.T) {
	w := newWorld(t)
	tenant, owner := w.as(w.ns+"-tenant"), w.as(w.ns+"-owner")
	evil := strings.ReplaceAll(strings.ReplaceAll(deployment, "web:v1", "evil:v1"), "{app: web}", "{app: mine}")
	tenant.apply(tenant.want("v1", evil))
	refused := tenant.want("v1", evil)
	refused.Limits = &differ.ProjectLimits{Project: "p"}
	wants := among(owner.want("v1", deployment), refused)
	_ = tenant.try(t.Context(), among(refused, wants), applier.ApplyOptions{})
	w.dropDeployment()
	_ = tenant.try(t.Context(), among(refused, wants), applier.ApplyOptions{})
	owner.apply(wants)
	list, _, _ := unstructured.NestedSlice(w.get(deployments, "web").Object, "spec", "template", "spec", "containers")
	image := list[0].(map[string]any)["image"]
	if image != "web:v1" {
		t.Errorf("the owner's new object runs the tenant's image %q, with the label of %s", image, w.get(deployments, "web").GetLabels()["keelson.io/component"])
	}
}

// F2: the new component creates the object as it was recorded, and is killed before it writes its record.
// The former component sees the new label and forgets. Then the object is deleted again.
func TestMoveByAKilledTakerApprovesNothing(t *testing.T) {
	w := newWorld(t)
	giver, taker := w.as(w.ns+"-giver"), w.as(w.ns+"-taker")
	giver.apply(giver.want("v1", configMap("a", "x"), deployment))
	taker.apply(taker.want("v1", configMap("b", "x")))
	from, to := giver.want("v2", configMap("a", "x")), taker.want("v2", configMap("b", "x"), otherSelector())
	from, to = among(from, to), among(to, from)
	w.dropDeployment()

	config, created := rest.CopyConfig(server), false
	config.Wrap(func(through http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if created && r.Method != http.MethodGet { // killed
				return nil, fmt.Errorf("killed")
			}
			if write(http.MethodPatch, "/deployments/web")(r) {
				answer, err := through.RoundTrip(r)
				created = true
				return answer, err
			}
			return through.RoundTrip(r)
		})
	})
	taker.connect(config)
	p := taker.plan(to)
	_, err := taker.cluster.Apply(t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0)})
	t.Logf("killed: %v; created %t", err, created)
	if app := w.selects(); app != "web" {
		t.Fatalf("first creation: %s", app)
	}
	giver.reconnect()
	giver.apply(from)
	w.dropDeployment()
	giver.apply(from)
	taker.reconnect()
	taker.apply(to)
	if app := w.selects(); app != "web" {
		t.Errorf("a held change was applied without an approval: selector %q", app)
	}
}

// F8: a deletion that failed leaves its intent. Git then moves the object instead; its deletion by another client approves the change.
func TestMoveAfterAFailedDeletionApprovesNothing(t *testing.T) {
	w := newWorld(t)
	giver, taker := w.as(w.ns+"-giver"), w.as(w.ns+"-taker")
	giver.apply(giver.want("v1", configMap("a", "x"), deployment))
	config := rest.CopyConfig(server)
	config.Wrap(func(through http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if write(http.MethodDelete, "/deployments/web")(r) {
				return refuse(r, http.StatusInternalServerError), nil
			}
			return through.RoundTrip(r)
		})
	})
	giver.connect(config)
	dropped := giver.want("v2", configMap("a", "x"))
	giver.apply(dropped)
	if err := giver.try(t.Context(), dropped, applier.ApplyOptions{}); err == nil {
		t.Fatal("the deletion did not fail")
	}
	giver.reconnect()
	taker.reconnect()
	from, to := giver.want("v3", configMap("a", "y")), taker.want("v2", configMap("b", "x"), otherSelector())
	from, to = among(from, to), among(to, from)
	giver.apply(from)
	p := taker.apply(to)
	if ch := change(t, p, "Deployment"); ch.State.String() != "held" {
		t.Fatalf("not held before the deletion:\n%s", show(p))
	}
	w.dropDeployment()
	giver.apply(from)
	taker.apply(to)
	if app := w.selects(); app != "web" {
		t.Errorf("a held change was applied without an approval: selector %q", app)
	}
}

// F5: a component that never had an object gets it when another client deletes it, although the component
// that has it still wants it.
func TestDeletionGivesNoObjectAway(t *testing.T) {
	w := newWorld(t)
	owner, thief := w.as(w.ns+"-owner"), w.as(w.ns+"-thief")
	has := owner.want("v1", configMap("a", "x"), deployment)
	owner.apply(has)
	wants := thief.want("v1", configMap("b", "x"), deployment)
	has, wants = among(has, wants), among(wants, has)
	thief.apply(wants)
	if of := w.get(deployments, "web").GetLabels()["keelson.io/component"]; of != owner.component {
		t.Fatal(of)
	}
	w.dropDeployment()
	thief.apply(wants)
	p := owner.apply(has)
	if of := w.get(deployments, "web").GetLabels()["keelson.io/component"]; of != owner.component {
		t.Errorf("the deletion gave the object to %s, and the owner that still wants it says:\n%s", of, show(p))
	}
}

// F7: a tenant whose fence refuses an object keeps another component's record for ever by asking for it.
func TestRefusedClaimBlocksNothing(t *testing.T) {
	w := newWorld(t)
	tenant := w.as(w.ns + "-tenant")
	w.apply(w.want("v1", configMap("a", "x"), deployment))
	w.dropDeployment()
	next := w.want("v2", configMap("a", "x"))
	claim := tenant.want("v1", deployment)
	claim.Limits = &differ.ProjectLimits{}
	claim.Limits.Project = "p"
	claim, next = among(claim, next), among(next, claim)
	_ = tenant.try(t.Context(), claim, applier.ApplyOptions{})
	t.Logf("%s", show(tenant.plan(claim)))
	w.apply(next)
	if p := w.plan(next); !p.Settled() {
		t.Errorf("not settled:\n%s", show(p))
	}
}
