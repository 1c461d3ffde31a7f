package applier_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/differ"
)

const (
	oracleRounds  = 2 // triples that one object goes through
	oracleWorkers = 4
	oracleCRDs    = 6
)

// TestOracle asks a real API server whether plans are true. It draws what git
// wanted, what others made of it and what git wants now, for every kind that it
// knows; applies the plan; and looks at what the API server has afterwards.
//
// KEELSON_TRIPLES says how many, KEELSON_SEED repeats a run. An object that the
// API server refuses to create (422) is skipped; of an update it must have been
// foreseen.
func TestOracle(t *testing.T) {
	newWorld(t)       // skips, or fails, without an API server
	seed := uint64(1) // a short run is the same each time: it says whether a change broke something
	if os.Getenv("KEELSON_TRIPLES") != "" {
		seed = uint64(rand.Uint32())
	}
	o := &oracle{t: t, seed: envNumber(t, "KEELSON_SEED", seed), shared: applier.NewShared()}
	o.config = rest.CopyConfig(server)
	o.config.WarningHandler = rest.NoWarnings{} // what is drawn need not be wise
	var err error
	if o.dynamic, err = dynamic.NewForConfig(o.config); err != nil {
		t.Fatal(err)
	}
	triples := int(envNumber(t, "KEELSON_TRIPLES", 200))
	shapes := append(builtInShapes(), o.customShapes()...)
	size := min(max(triples/oracleRounds/len(shapes), 3), 40)
	start := time.Now()
	var g errgroup.Group
	g.SetLimit(oracleWorkers)
	for i := 0; o.more(triples); i++ {
		g.Go(func() error {
			b := &batch{
				oracle: o, shape: shapes[(i+int(o.seed%1000))%len(shapes)], component: fmt.Sprintf("oracle-%d", i),
				namespace: fmt.Sprintf("oracle-%d", i%oracleWorkers), seed: roll(o.seed, fmt.Sprint("batch ", i)).Uint64(),
			}
			b.run(size)
			return nil
		})
	}
	_ = g.Wait()
	seconds := time.Since(start).Seconds()
	t.Logf("oracle: %d triples of %d kinds, %d skipped, %d violations, %.0f seconds (KEELSON_SEED=%d)",
		o.triples, len(shapes), o.skipped, o.violations, seconds, o.seed)
	t.Logf("oracle: objects %v; fields %v", o.states, o.actions)
	if 2*o.skipped > o.triples {
		t.Errorf("the API server refused more than half of what was drawn: %v", o.refused)
	}
	if testing.Verbose() {
		for _, kind := range slices.Sorted(maps.Keys(o.refused)) {
			t.Logf("oracle: %d of kind %s refused, the last: %.160v", o.refused[kind].count, kind, o.refused[kind].last)
		}
	}
}

func envNumber(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// oracle is one run of the test.
type oracle struct {
	t       *testing.T
	seed    uint64
	config  *rest.Config
	dynamic dynamic.Interface
	shared  *applier.Shared

	mu                           sync.Mutex
	triples, skipped, violations int
	states, actions              map[string]int
	refused                      map[string]refusals
}

type refusals struct {
	count int
	last  error
}

// more reports whether a run goes on: till it has enough triples, or enough violations.
func (o *oracle) more(triples int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.triples < triples && o.violations < 20
}

func (o *oracle) skip(kind string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.skipped++
	if o.refused == nil {
		o.refused = map[string]refusals{}
	}
	o.refused[kind] = refusals{o.refused[kind].count + 1, err}
}

func (o *oracle) count(c *differ.Change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.states == nil {
		o.states, o.actions = map[string]int{}, map[string]int{}
	}
	o.triples++
	o.states[c.State.String()]++
	for _, f := range c.Fields {
		o.actions[f.Action.String()]++
	}
}

// customShapes creates CRDs with drawn schemas.
func (o *oracle) customShapes() []shape {
	o.t.Helper()
	var out []shape
	crds := o.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for i := range oracleCRDs {
		s, crd := customShape(o.seed, i)
		u, err := crds.Create(o.t.Context(), &unstructured.Unstructured{Object: runtime.DeepCopyJSON(crd)}, metav1.CreateOptions{})
		if err != nil {
			o.t.Fatal(err)
		}
		o.t.Cleanup(func() {
			_ = crds.Delete(context.WithoutCancel(o.t.Context()), u.GetName(), metav1.DeleteOptions{})
		})
		out = append(out, s)
	}
	// Served, and published with their schemas: till then types are deduced.
	err := wait.PollUntilContextTimeout(o.t.Context(), 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		for _, s := range out {
			if _, err := o.dynamic.Resource(s.gvr()).List(ctx, metav1.ListOptions{}); err != nil {
				return false, nil //nolint:nilerr // not served yet
			}
		}
		return o.published(ctx, out)
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return out
}

// published reports whether the OpenAPI document has every drawn kind.
func (o *oracle) published(ctx context.Context, shapes []shape) (bool, error) {
	client, err := discovery.NewDiscoveryClientForConfig(o.config)
	if err != nil {
		return false, err
	}
	data, err := client.RESTClient().Get().AbsPath("/openapi/v3/apis/oracle.example.com/v1").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	for _, s := range shapes {
		if !strings.Contains(string(data), `"kind":"`+s.kind+`"`) {
			return false, err
		}
	}
	return true, err
}

func (s shape) gvr() schema.GroupVersionResource {
	gv, err := schema.ParseGroupVersion(s.apiVersion)
	if err != nil {
		panic(err)
	}
	return gv.WithResource(s.resource)
}

func (s shape) id(namespace, name string) differ.ID {
	if s.cluster {
		namespace = ""
	}
	return differ.ID{Group: s.gvr().Group, Kind: s.kind, Namespace: namespace, Name: name}
}

// oracleReader is a direct reader whose autoscalers are drawn.
type oracleReader struct {
	dynamic dynamic.Interface
	scaled  map[differ.ID]differ.Scaling
}

func (r *oracleReader) Get(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	return observe.Get(ctx, r.dynamic, m, id)
}

func (r *oracleReader) Fresh(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	return observe.Get(ctx, r.dynamic, m, id)
}

func (r *oracleReader) Scaled(context.Context, []schema.GroupVersionResource) (map[differ.ID]differ.Scaling, error) {
	return r.scaled, nil
}

func (r *oracleReader) Wrote(differ.ID, map[string]any) {}
