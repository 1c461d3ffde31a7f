package examples_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/renderer"
)

// patience ends a wait for what must happen. It is not a bound: only a test that hangs
// reaches it.
const patience = 3 * time.Minute

// TestAPIServer applies what every cluster gets to a real API server, strictly:
// a field that it does not know is an error, a warning too, and the second
// time changes nothing.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, apiservertest.Versions()[:1], applyStrictly)
}

func applyStrictly(t *testing.T, start func(*testing.T) *apiservertest.Server) {
	config := start(t).Config
	said := &warnings{}
	config.WarningHandler = said
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fleet := load(t, publish(t))
	for _, cluster := range fleet.Clusters {
		targets := renderCluster(t, renderer.New(), cluster)
		first := apply(t, c, targets)
		for id, version := range apply(t, c, targets) {
			if version != first[id] {
				t.Errorf("%s: applying %s again changed it", cluster.Name, id)
			}
		}
	}
	for _, text := range said.texts {
		t.Error("the API server warns: " + text)
	}
}

type warnings struct {
	mu    sync.Mutex
	texts []string
}

var _ rest.WarningHandler = (*warnings)(nil)

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// apply sends all objects, those first that others need, and returns the
// resource versions.
func apply(t *testing.T, c client.Client, targets map[string]*renderer.Target) map[string]string {
	t.Helper()
	versions := map[string]string{}
	send := func(component string, o *renderer.Object) {
		u := (&unstructured.Unstructured{Object: o.Content}).DeepCopy()
		namespace(t, c, u.GetNamespace())
		id := component + " " + u.GetKind() + " " + u.GetName()
		data, err := json.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		err = c.Patch(t.Context(), u, client.RawPatch(types.ApplyPatchType, data), client.ForceOwnership,
			client.FieldOwner(v1alpha1.FieldManager), client.FieldValidation(metav1.FieldValidationStrict))
		if err != nil {
			t.Errorf("%s: %s: %v", o.Source, id, err)
			return
		}
		versions[id] = u.GetResourceVersion()
		if u.GetKind() == "CustomResourceDefinition" {
			established(t, c, u)
			delete(versions, id) // its controller writes the status
		}
	}
	for _, component := range []string{
		"coredns", "metrics-server", "kube-state-metrics", "node-exporter", "ingress-nginx", "cert-manager", "cluster-issuers",
		"workload-controllers", "asi-proxy",
	} {
		if targets[component] == nil {
			t.Fatalf("there is no component %s", component)
		}
		for _, o := range targets[component].Objects {
			send(component, o)
		}
	}
	return versions
}

func namespace(t *testing.T, c client.Client, name string) {
	t.Helper()
	if name == "" {
		return
	}
	ns := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name},
	}}
	if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(ns), client.FieldOwner("test")); err != nil {
		t.Fatal(err)
	}
}

func established(t *testing.T, c client.Client, crd *unstructured.Unstructured) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
			return false, err
		}
		for _, condition := range list(crd.Object, "status", "conditions") {
			if m, ok := condition.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		t.Fatalf("%s is not established: %v", crd.GetName(), err)
	}
}
