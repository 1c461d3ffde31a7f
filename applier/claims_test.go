package applier_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// among lets a component know what the others want; one without a target can't be
// rendered.
func among(want applier.Desired, others ...applier.Desired) applier.Desired {
	want.Others = func(context.Context) (*applier.Claims, error) {
		claims := applier.NewClaims()
		for _, o := range others {
			claims.SetLimits(o.Component, o.Limits)
			if o.Target == nil {
				claims.AddUnknown(o.Component, "its chart is broken")
				continue
			}
			claims.Add(o.Component, o.Target)
		}
		return claims, nil
	}
	return want
}

// from names the template of a component's objects.
func from(want applier.Desired, file string) applier.Desired {
	for _, o := range want.Target.Objects {
		o.Source = yamlfile.Position{File: file, Line: 1}
	}
	return want
}

func (w *world) uid(name string) types.UID {
	w.t.Helper()
	return w.get(configMaps, name).GetUID()
}

// owner is the component that an object bears the label of.
func (w *world) owner(name string) string {
	w.t.Helper()
	return w.get(configMaps, name).GetLabels()["keelson.io/component"]
}

// An object moves from one component to another: it is never deleted, whichever
// of them comes first and however often.
func TestMove(t *testing.T) {
	for name, turns := range map[string][]string{
		"GiverFirst": {"giver", "giver", "giver", "taker", "giver", "taker"},
		"TakerFirst": {"taker", "giver", "taker", "giver", "giver"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			giver, taker := w.as(w.ns+"-giver"), w.as(w.ns+"-taker")
			giver.apply(giver.want("v1", configMap("a", "x"), configMap("moves", "x")))
			taker.apply(taker.want("v1", configMap("b", "x")))
			uid := w.uid("moves")
			wants := map[string]applier.Desired{
				"giver": giver.want("v2", configMap("a", "x")),
				"taker": taker.want("v2", configMap("b", "x"), configMap("moves", "z")),
			}
			worlds := map[string]*world{"giver": giver, "taker": taker}
			waited := false
			for _, turn := range turns {
				one, other := worlds[turn], map[string]string{"giver": "taker", "taker": "giver"}[turn]
				one.reconnect()
				p := one.apply(among(wants[turn], wants[other]))
				waited = waited || turn == "giver" && strings.Contains(show(p), "waits until component "+w.ns+"-taker has taken it over")
				if w.uid("moves") != uid || w.get(configMaps, "moves").GetDeletionTimestamp() != nil {
					t.Fatalf("the object was deleted when it was the %s's turn", turn)
				}
			}
			if want := name == "GiverFirst"; waited != want {
				t.Errorf("the giver waited for the taker: %v, want %v", waited, want)
			}
			if got := w.owner("moves"); got != taker.component {
				t.Errorf("the object belongs to %s, want the taker", got)
			}
			giver.settled(among(wants["giver"], wants["taker"]))
			taker.settled(among(wants["taker"], wants["giver"]))
			if g, k := len(giver.inventory()), len(taker.inventory()); g != 1 || k != 2 {
				t.Errorf("the records have %d and %d objects, want 1 and 2", g, k)
			}
		})
	}
}

// More objects than the budget move without an approval: nothing is deleted.
func TestMoveOfMany(t *testing.T) {
	w := newWorld(t)
	giver, taker := w.as(w.ns+"-giver"), w.as(w.ns+"-taker")
	stays := configMap("stays", "x")
	many := []string{}
	for _, c := range "abcdefghijklmno" {
		many = append(many, configMap("m-"+string(c), "x"))
	}
	giver.apply(giver.want("v1", append(many, stays)...))
	gives, takes := giver.want("v2", stays), taker.want("v1", many...)
	if p := giver.apply(among(gives, takes)); strings.Contains(show(p), "held") {
		t.Errorf("a move is no deletion:\n%s", show(p))
	}
	taker.apply(among(takes, gives))
	giver.reconnect()
	giver.apply(among(gives, takes))
	giver.settled(among(gives, takes))
	if !w.there("m-a") || w.owner("m-o") != taker.component {
		t.Error("the objects did not move")
	}
}

// Two components want the same object: the one that has it keeps it, and the other
// says which and where. It is written by one alone.
func TestContested(t *testing.T) {
	w := newWorld(t)
	one, two := w.as(w.ns+"-one"), w.as(w.ns+"-two")
	first, second := from(one.want("v1", configMap("a", "one")), "components/one/template/a.yaml"), from(two.want("v1", configMap("a", "two")), "components/two/template/b.yaml")
	one.apply(among(first, second))
	p := two.apply(among(second, first))
	if p.Plan.Changes[0].State != differ.StateHeld {
		t.Errorf("want it held:\n%s", show(p))
	}
	for _, says := range []string{one.component, "components/one/template/a.yaml:1", "components/two/template/b.yaml:1"} {
		if !strings.Contains(show(p), says) {
			t.Errorf("the conflict does not name %s:\n%s", says, show(p))
		}
	}
	one.settled(among(first, second))
	if got := w.owner("a"); got != one.component {
		t.Errorf("it belongs to %s by now", got)
	}
}

// A component that can't be rendered may want any object. Until it can be rendered, Keelson deletes
// no object and takes none over.
func TestUnknownComponent(t *testing.T) {
	w := newWorld(t)
	giver, taker := w.as(w.ns+"-giver"), w.as(w.ns+"-taker")
	giver.apply(giver.want("v1", configMap("a", "x"), configMap("goes", "x"), configMap("moves", "x")))
	gives, takes := giver.want("v2", configMap("a", "x")), taker.want("v1", configMap("moves", "x"))
	for range 3 {
		giver.reconnect()
		p := giver.plan(among(gives, takes, applier.Desired{Component: "broken"}))
		outcome, err := giver.cluster.Apply(t.Context(), p, applier.ApplyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(show(p), "waits until it is known whether component broken wants it: its chart is broken") || outcome.Again == 0 {
			t.Errorf("the plan does not name the component it waits for, or the apply is not repeated (%s):\n%s", outcome.Again, show(p))
		}
	}
	if p := taker.apply(among(takes, applier.Desired{Component: giver.component})); p.Plan.Changes[0].State != differ.StateHeld {
		t.Errorf("an object that the broken component may want was taken over:\n%s", show(p))
	}
	if !w.there("goes") || w.owner("moves") != giver.component {
		t.Error("an object was deleted or taken over")
	}
	giver.prune(among(gives, takes))
	if w.there("goes") || !w.there("moves") {
		t.Error("once all components are known, unwanted objects must go and wanted ones must stay")
	}
}

// If the objects that other components want can't be determined, there is no plan and no object is
// deleted.
func TestClaimsFail(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x"), configMap("b", "x")))
	want := w.want("v2", configMap("a", "x"))
	broken := errors.New("broken")
	want.Others = func(context.Context) (*applier.Claims, error) { return nil, broken }
	for range 3 {
		if _, err := w.cluster.Plan(t.Context(), want); !errors.Is(err, broken) {
			t.Errorf("error is %v, want %v", err, broken)
		}
	}
	if !w.there("b") {
		t.Error("it was deleted")
	}
}

// A plan that deletes and takes over nothing does not ask for the objects of other components.
func TestClaimsAreNotAskedFor(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", configMap("a", "x"))
	want.Others = func(context.Context) (*applier.Claims, error) {
		t.Error("the objects of other components were asked for")
		return applier.NewClaims(), nil
	}
	w.apply(want)
	w.settled(want)
}

// alone has the world's component in git, and no other one.
func (w *world) alone(component string) bool { return component == w.component }

// A component gets another name: all of its objects move to the new one, although
// git knows nothing of the old one any more, and then its record goes.
func TestRenamedComponent(t *testing.T) {
	w := newWorld(t)
	before, after := w.as(w.ns+"-before"), w.as(w.ns+"-after")
	before.apply(before.want("v1", configMap("a", "x"), configMap("b", "x")))
	uid := w.uid("a")
	renamed := among(after.want("v1", configMap("a", "x"), configMap("b", "x")))
	outcome, err := after.cluster.Apply(t.Context(), after.plan(renamed), applier.ApplyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(outcome.TransferredFrom) != 1 || outcome.TransferredFrom[0] != before.component {
		t.Errorf("taken from %v, want %s", outcome.TransferredFrom, before.component)
	}
	if w.uid("a") != uid || w.owner("a") != after.component || w.owner("b") != after.component {
		t.Error("the objects did not move as they were")
	}
	for why, inGit := range map[string]func(string) bool{
		"neither name": func(string) bool { return false }, "the old name": before.alone,
	} {
		if left, err := after.cluster.Tidy(t.Context(), after.component, inGit); err != nil || left != 2 {
			t.Errorf("a client whose commit has %s left %d objects (%v) to the new one, want 2", why, left, err)
		}
	}
	left, err := after.cluster.Tidy(t.Context(), before.component, after.alone)
	if err != nil || left != 0 {
		t.Errorf("the old name has %d objects left (%v)", left, err)
	}
	after.settled(renamed)
	names, err := after.cluster.Recorded(t.Context())
	if err != nil || strings.Contains(strings.Join(names, " "), before.component) {
		t.Errorf("the old record is left: %v (%v)", names, err)
	}
}

// An object moves, and then the record can't be written: the next apply finds the object
// where it is to be, and says all the same from which component it came. Else the old
// component would keep what it no longer has.
func TestRenamedWhileRecordFails(t *testing.T) {
	w := newWorld(t)
	before, after := w.as(w.ns+"-before"), w.as(w.ns+"-after")
	before.apply(before.want("v1", configMap("a", "x")))
	config, refuse := rest.CopyConfig(server), false
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			switch {
			case r.Method == http.MethodPatch && !r.URL.Query().Has("dryRun"):
				refuse = true // what follows is the record
			case refuse && strings.Contains(r.URL.Path, "/keelson-system/secrets") && r.Method != http.MethodGet:
				return nil, errKilled
			}
			return next.RoundTrip(r)
		})
	})
	after.connect(config)
	renamed := among(after.want("v1", configMap("a", "x")))
	if _, err := after.cluster.Apply(t.Context(), after.plan(renamed), applier.ApplyOptions{}); !errors.Is(err, errKilled) {
		t.Fatalf("error is %v, want that the record could not be written", err)
	}
	if w.owner("a") != after.component {
		t.Fatal("the object did not move")
	}
	if left, err := after.cluster.Tidy(t.Context(), before.component, after.alone); err != nil || left != 1 {
		t.Fatalf("the old name has %d objects (%v), want 1: no other record has it yet", left, err)
	}
	refuse = false
	outcome, err := after.cluster.Apply(t.Context(), after.plan(renamed), applier.ApplyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(outcome.TransferredFrom) != 1 || outcome.TransferredFrom[0] != before.component {
		t.Errorf("taken from %v, want %s", outcome.TransferredFrom, before.component)
	}
	if left, err := after.cluster.Tidy(t.Context(), before.component, after.alone); err != nil || left != 0 {
		t.Errorf("the old name has %d objects left (%v)", left, err)
	}
}

// An object with the label of another component is not taken over if that component's record does
// not list the object.
func TestLabelOfAnotherIsNoMove(t *testing.T) {
	w := newWorld(t)
	if err := w.namespace(); err != nil {
		t.Fatal(err)
	}
	_, err := w.resource(configMaps).Create(t.Context(), &unstructured.Unstructured{Object: w.object(
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: NS, labels: {keelson.io/component: unrecorded}}, data: {key: theirs}}")}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := w.apply(among(w.want("v1", configMap("a", "x"))))
	if !strings.Contains(show(p), "component unrecorded, whose record does not have it") || w.owner("a") != "unrecorded" {
		t.Errorf("want it held, with the reason:\n%s", show(p))
	}
}
