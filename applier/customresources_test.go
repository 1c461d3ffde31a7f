package applier_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// toys is a CRD whose spec has the given schema.
func toys(spec string) string {
	return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: toys.NS.example.com}
spec:
  group: NS.example.com
  scope: Namespaced
  names: {plural: toys, singular: toy, kind: Toy, listKind: ToyList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: ` + spec + `}}}
`
}

// toyBox is a world with a CRD and objects of its kind, which listens to what is
// asked about them.
type toyBox struct {
	*world
	config *rest.Config

	mu    sync.Mutex
	asked []string // METHOD PATH of toys
	fail  error    // of all that is asked of toys
}

func newToyBox(t *testing.T) *toyBox {
	b := &toyBox{world: newWorld(t)}
	b.ns = strings.ReplaceAll(b.ns, "/", "-")
	b.component = b.ns
	config := rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.Contains(r.URL.Path+"/", "/toys/") {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.asked = append(b.asked, r.Method+" "+r.URL.Path)
				if b.fail != nil {
					return nil, b.fail
				}
			}
			return next.RoundTrip(r)
		})
	})
	b.config = config
	b.connect(config)
	if err := b.namespace(); err != nil {
		t.Fatal(err)
	}
	return b
}

// requests returns what was asked since the last time.
func (b *toyBox) requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.asked
	b.asked = nil
	return out
}

func (b *toyBox) toys() dynamic.ResourceInterface {
	return b.resource(schema.GroupVersionResource{Group: b.ns + ".example.com", Version: "v1", Resource: "toys"})
}

func (b *toyBox) toy(name, spec string) *unstructured.Unstructured {
	b.t.Helper()
	return &unstructured.Unstructured{Object: b.object(`{apiVersion: NS.example.com/v1, kind: Toy, metadata: {name: ` + name + `, namespace: NS}, spec: ` + spec + `}`)}
}

func (b *toyBox) create(name, spec string) {
	b.t.Helper()
	if _, err := b.toys().Create(b.t.Context(), b.toy(name, spec), metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *toyBox) delete(name string) {
	b.t.Helper()
	if err := b.toys().Delete(b.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

// crd returns the CRD's resourceVersion.
func (b *toyBox) crd() string {
	b.t.Helper()
	u, err := b.dynamic.Resource(crds).Get(b.t.Context(), "toys."+b.ns+".example.com", metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return u.GetResourceVersion()
}

// TestCRDSchema upgrades CRDs that have custom resources. The API server itself
// says afterwards whether what was held would have been refused or cut, and
// whether what passed is taken.
func TestCRDSchema(t *testing.T) {
	const sizes = `{type: object, properties: {size: {type: integer}, color: {type: string}}}`
	cases := map[string]struct {
		why       string
		old, spec string
		good, bad string // spec of a toy that the new schema takes, and of one that it doesn't
		says      string
	}{
		"Required": {
			why: "A field becomes required.", old: sizes, spec: `{type: object, required: [size], properties: {size: {type: integer}, color: {type: string}}}`,
			good: "{size: 1}", bad: "{color: red}", says: "1 of 2 toys no longer satisfies the schema: NS/bad: .spec.size is required",
		},
		"Enum": {
			why: "An enum is narrowed.", old: sizes, spec: `{type: object, properties: {size: {type: integer}, color: {type: string, enum: [red, blue]}}}`,
			good: "{color: red}", bad: "{color: pink}", says: "NS/bad: .spec.color is none of [red blue]",
		},
		"Removed": {
			why: "A field leaves: what objects have in it would go at the next write.", old: sizes, spec: `{type: object, properties: {size: {type: integer}}}`,
			good: "{size: 1}", bad: "{size: 1, color: pink}", says: "1 of 2 toys loses fields by the schema: NS/bad: .spec.color would be dropped",
		},
		"Rule": {
			why: "A CEL rule comes.", old: sizes,
			spec: `{type: object, properties: {size: {type: integer}, color: {type: string}}, x-kubernetes-validations: [{rule: "!has(self.size) || self.size < 5", message: too large}]}`,
			good: "{size: 4}", bad: "{size: 5}", says: "NS/bad: .spec: too large",
		},
		"Set": {
			why: "A list becomes a set.", old: `{type: object, properties: {tags: {type: array, items: {type: string}}}}`,
			spec: `{type: object, properties: {tags: {type: array, x-kubernetes-list-type: set, items: {type: string}}}}`,
			good: "{tags: [a, b]}", bad: "{tags: [a, b, a]}", says: "NS/bad: .spec.tags[2] is not unique in its list",
		},
		"Type": {
			why: "An int-or-string becomes an integer.", old: `{type: object, properties: {port: {x-kubernetes-int-or-string: true}}}`,
			spec: `{type: object, properties: {port: {type: integer}}}`,
			good: "{port: 80}", bad: "{port: http}", says: "NS/bad: .spec.port must be of type integer",
		},
		"Format": {
			why: "A format is asked for. One that the API server does not know is none.", old: sizes,
			spec: `{type: object, properties: {size: {type: integer, format: huge}, color: {type: string, format: ipv4}}}`,
			good: "{size: 3, color: 10.0.0.1}", bad: "{color: pink}", says: "NS/bad: .spec.color must be of type ipv4",
		},
		"Defaulted": {
			why: "What is required and has a default is no danger; the default is held to the rest of the schema.", old: sizes,
			spec: `{type: object, required: [size], properties: {size: {type: integer, default: 1, maximum: 4}, color: {type: string, nullable: true}}}`,
			good: "{color: red}", bad: "{size: 7}", says: "NS/bad: .spec.size should be less than or equal to 4",
		},
		"Alternatives": {
			why: "One of two fields.", old: sizes,
			spec: `{type: object, properties: {size: {type: integer}, color: {type: string}}, oneOf: [{required: [size]}, {required: [color]}]}`,
			good: "{size: 1}", bad: "{size: 1, color: red}", says: "NS/bad: . fits none, or too many, of the schema's alternatives",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Log(c.why)
			b := newToyBox(t)
			b.apply(b.want("v1", toys(c.old)))
			b.create("good", c.good)
			b.create("bad", c.bad)
			before := b.crd()

			p := b.apply(b.want("v2", toys(c.spec)))
			says := strings.ReplaceAll(c.says, "NS", b.ns)
			if got := p.Plan.Changes[0]; got.State != differ.StateHeld || got.Rule != "crd-schema" || !strings.Contains(got.Because, says) {
				t.Errorf("want it held by crd-schema, because %s:\n%s", says, show(p))
			}
			if b.crd() != before {
				t.Error("what is held was written")
			}

			b.delete("bad")
			next := b.want("v2", toys(c.spec))
			b.apply(next)
			if b.crd() == before {
				t.Error("what no object speaks against was not written")
			}
			b.settled(next)
			b.takes(c.good, c.bad)
		})
	}
}

// takes checks that the API server accepts the good spec and refuses the bad one, once it uses the
// new schema. It tests new objects, because an existing object may keep an invalid value until a
// client changes that value.
func (b *toyBox) takes(good, bad string) {
	b.t.Helper()
	try := func(spec string) error {
		_, err := b.toys().Create(b.t.Context(), b.toy("tried", spec), metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
		})
		return err
	}
	err := wait.PollUntilContextTimeout(b.t.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		err := try(bad)
		return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err), nil
	})
	if err != nil {
		b.t.Errorf("the API server takes %s, which was held", bad)
	}
	if err := try(good); err != nil {
		b.t.Errorf("the API server does not take %s, which passed: %v", good, err)
	}
}

const (
	openToys   = `{type: object, properties: {size: {type: integer}}}`
	closedToys = `{type: object, required: [size], properties: {size: {type: integer}}}`
)

// count says how many requests were LISTs of toys, and how many GETs of one.
func (b *toyBox) count() (lists, gets int) {
	for _, r := range b.requests() {
		switch {
		case strings.HasSuffix(r, "/toys"):
			lists++
		case strings.HasPrefix(r, "GET "):
			gets++
		}
	}
	return lists, gets
}

// Objects are read page by page, up to a limit, and that there are more is said.
func TestCRDSchemaPages(t *testing.T) {
	b := newToyBox(t)
	b.apply(b.want("v1", toys(openToys)))
	for i := range 6 {
		b.create(fmt.Sprint("a", i), "{size: 1}")
	}
	b.create("z", "{}") // names come in order
	next := b.want("v2", toys(closedToys))
	for _, c := range []struct {
		page  int64
		all   int
		lists int
		want  string
	}{
		{500, 10_000, 1, "1 of 7 toys no longer satisfies"},
		{3, 10_000, 3, "1 of 7 toys no longer satisfies"},
		{2, 4, 2, "the first 4 toys satisfy the new schema; there are more"},
		{4, 5, 2, "1 of 7 toys no longer satisfies"}, // a page that was read is looked at
	} {
		b.cluster.ForgetInstances()
		b.cluster.SetInstanceLimits(c.page, c.all)
		b.requests()
		p := b.plan(next)
		if lists, _ := b.count(); lists != c.lists || !strings.Contains(p.Plan.Changes[0].Because, c.want) {
			t.Errorf("%d a page, %d in all: %d lists, want %d and %q:\n%s", c.page, c.all, lists, c.lists, c.want, show(p))
		}
	}
}

// A CRD that is held is planned again and again: its objects are not all read
// again, but for as long as one of them is as it was.
func TestCRDSchemaHeldCostsLittle(t *testing.T) {
	b := newToyBox(t)
	settled := b.want("v1", toys(openToys))
	b.apply(settled)
	b.requests()
	b.settled(settled)
	if lists, gets := b.count(); lists+gets > 0 {
		t.Errorf("a settled CRD costs %d lists and %d gets", lists, gets)
	}

	b.connect(b.config)
	b.create("bad", "{}")
	b.create("good", "{size: 1}")
	next := b.want("v2", toys(closedToys))
	for i, want := range [][2]int{{1, 0}, {0, 1}, {0, 1}} {
		p := b.plan(next)
		if lists, gets := b.count(); [2]int{lists, gets} != want || p.Plan.Changes[0].State != differ.StateHeld {
			t.Errorf("plan %d of what is held: %d lists and %d gets, want %v:\n%s", i, lists, gets, want, show(p))
		}
	}
	b.delete("bad")
	b.requests()
	if p := b.plan(next); p.Plan.Changes[0].Op != differ.OpUpdate {
		t.Errorf("it is still held:\n%s", show(p))
	}
	if lists, gets := b.count(); lists != 1 || gets != 1 {
		t.Errorf("%d lists and %d gets, want one of each", lists, gets)
	}

	// What was found once does not let anything pass.
	b.create("bad", "{}")
	if p := b.plan(next); p.Plan.Changes[0].State != differ.StateHeld {
		t.Errorf("it passes by what was there before:\n%s", show(p))
	}
}

// Objects of a CRD that waits for another reason are not read again either.
func TestCRDSchemaRemembersGood(t *testing.T) {
	b := newToyBox(t)
	b.apply(b.want("v1", toys(openToys)))
	b.create("good", "{size: 1}")
	next := b.want("v2", toys(closedToys))
	hold, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{{Name: "mine", Path: ".spec.versions", Effect: v1alpha1.EffectHold}}})
	if err != nil {
		t.Fatal(err)
	}
	next.Rules = hold
	b.requests()
	b.plan(next)
	b.plan(next)
	if lists, gets := b.count(); lists != 1 || gets != 0 {
		t.Errorf("two plans took %d lists and %d gets, want one list", lists, gets)
	}
	b.create("bad", "{}")
	free := b.want("v2", toys(closedToys))
	if p := b.plan(free); p.Plan.Changes[0].State != differ.StateHeld || p.Plan.Changes[0].Rule != "crd-schema" {
		t.Errorf("what goes out is decided by what was there before:\n%s", show(p))
	}
}

// What the same change puts right is nothing to wait for.
func TestCRDSchemaWithItsObjects(t *testing.T) {
	b := newToyBox(t)
	mine := func(spec string) string {
		return "{apiVersion: NS.example.com/v1, kind: Toy, metadata: {name: mine, namespace: NS}, spec: " + spec + "}"
	}
	b.apply(b.want("v1", toys(openToys), mine("{}")))
	p := b.plan(b.want("v2", toys(closedToys), mine("{}")))
	if !strings.Contains(show(p), "1 of 1 toys no longer satisfies") {
		t.Errorf("want it held:\n%s", show(p))
	}
	next := b.want("v2", toys(closedToys), mine("{size: 2}"))
	b.apply(next)
	b.settled(next)
}

// A list that fails is never taken for an empty one.
func TestCRDSchemaListFails(t *testing.T) {
	b := newToyBox(t)
	b.apply(b.want("v1", toys(openToys)))
	before := b.crd()
	b.mu.Lock()
	b.fail = errors.New("the line is cut")
	b.mu.Unlock()
	_, err := b.cluster.Plan(t.Context(), b.want("v2", toys(closedToys)))
	if err == nil || !strings.Contains(err.Error(), "the line is cut") || !strings.Contains(err.Error(), "toys."+b.ns) {
		t.Errorf("error is %v, want one that names the CRD", err)
	}
	if b.crd() != before {
		t.Error("the CRD was written")
	}
}
