package applier_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// A component that brings a CRD makes its own group's schema old, and nothing
// else: another component that is settled is looked at again without asking
// what the API server serves.
func TestNewKindLeavesOthersQuiet(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	var asked []string
	config := rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			path := r.URL.Path
			if strings.HasPrefix(path, "/openapi") || path == "/api" || path == "/apis" || path == "/version" {
				mu.Lock()
				asked = append(asked, path)
				mu.Unlock()
			}
			return next.RoundTrip(r)
		})
	})
	w.connect(config)
	settled := w.want("v1", deployment, networkPolicy)
	w.apply(settled)

	other := *w
	other.component = w.component + "-crd"
	other.apply(other.want("v1", strings.ReplaceAll(gadgets, "NS", w.ns)))

	mu.Lock()
	asked = nil
	mu.Unlock()
	if p := w.plan(settled); !p.Settled() {
		t.Errorf("a second plan is not empty: %s", show(p))
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) > 0 {
		t.Errorf("a settled component asked for %v", asked)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

const gadgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.NS.example.com}
spec:
  group: NS.example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`
