package renderer_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// counting counts renders, and holds each until it may go on.
type counting struct {
	next    renderer.Renderer
	renders atomic.Int64
	gate    chan struct{} // nil: open
}

func (c *counting) Render(ctx context.Context, r renderer.Request) (*renderer.Target, error) {
	c.renders.Add(1)
	if c.gate != nil {
		select {
		case <-c.gate:
		case <-ctx.Done():
			return nil, &renderer.Error{Message: "interrupted", Transient: true, Err: ctx.Err()}
		}
	}
	return c.next.Render(ctx, r)
}

func configMapVersion(template string) *registry.Version {
	return &registry.Version{
		Component: "demo", Name: "v1.0.0", Tree: "tree", Spec: v1alpha1.Component{Namespace: "demo"},
		Chart: []registry.File{
			{Name: "Chart.yaml", Data: []byte("apiVersion: v2\nname: demo\nversion: 1.0.0\n")},
			{Name: "templates/cm.yaml", Data: []byte(template)},
		},
		Images: map[string]v1alpha1.Image{"demo": {Repository: "quay.io/demo", Tag: "v1"}},
	}
}

const configMap = `
apiVersion: v1
kind: ConfigMap
metadata: {name: demo}
data: {replicas: {{ .Values.replicas | quote }}, image: {{ .Values.images.demo.ref }}}
`

func request(v *registry.Version, replicas int) renderer.Request {
	return renderer.Request{
		Version:      v,
		Values:       registry.ValuesFrom(map[string]any{"replicas": replicas}),
		Capabilities: renderer.DefaultCapabilities(),
	}
}

// TestCacheShares is the promise of 300 clusters with 5 configurations.
func TestCacheShares(t *testing.T) {
	t.Parallel()
	engine := &counting{next: renderer.New()}
	cache := renderer.NewCache(engine, 1<<20)
	v := configMapVersion(configMap)
	targets := make([]*renderer.Target, 300)
	var wg sync.WaitGroup
	for i := range targets {
		wg.Go(func() {
			r := request(v, i%5)
			if i%2 == 0 { // a mirror that none of the images comes from
				r.ImageMirrors = map[string]string{"registry.k8s.io": fmt.Sprintf("mirror-%d", i)}
			}
			target, err := cache.Render(t.Context(), r)
			if err != nil {
				t.Error(err)
			}
			targets[i] = target
		})
	}
	wg.Wait()
	if got := engine.renders.Load(); got != 5 {
		t.Errorf("300 clusters with 5 configurations took %d renders, want 5", got)
	}
	hashes := map[string]bool{}
	for i, target := range targets {
		if target != targets[i%5] {
			t.Fatal("clusters alike have targets of their own")
		}
		hashes[target.Hash] = true
	}
	if s := cache.Stats(); len(hashes) != 5 || s.Entries != 5 || s.Hits != 295 || s.Misses != 5 {
		t.Errorf("got %d hashes and %+v, want 5, 5 entries, 295 hits and 5 misses", len(hashes), s)
	}
}

func TestCacheKey(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why    string
		change func(*renderer.Request)
		again  bool
	}{
		"Same":        {"Nothing changed.", func(*renderer.Request) {}, false},
		"OtherCommit": {"The commit moved, the component's folder did not.", func(r *renderer.Request) { r.Version.Commit = "other" }, false},
		"OtherOrder": {"Discovery lists versions in any order.", func(r *renderer.Request) {
			v := r.Capabilities.APIVersions
			v[0], v[1] = v[1], v[0]
		}, false},
		"Values":    {"Meta-config changed.", func(r *renderer.Request) { r.Values = registry.ValuesFrom(map[string]any{"replicas": 9}) }, true},
		"NoValues":  {"Meta-config is gone.", func(r *renderer.Request) { r.Values = nil }, true},
		"Tree":      {"The component changed.", func(r *renderer.Request) { r.Version.Tree = "other" }, true},
		"Namespace": {"Objects move.", func(r *renderer.Request) { r.Version.Spec.Namespace = "other" }, true},
		"Version":   {"Sources name the tag.", func(r *renderer.Request) { r.Version.Name = "v2.0.0" }, true},
		"Mirror":    {"The image comes from elsewhere.", func(r *renderer.Request) { r.ImageMirrors = map[string]string{"quay.io": "m.example"} }, true},
		"Kubernetes": {"The chart does not look at it.", func(r *renderer.Request) {
			r.Capabilities.KubeVersion = "v1.35.0"
		}, false},
		"APIVersions": {"The chart does not look at them.", func(r *renderer.Request) {
			r.Capabilities.APIVersions = r.Capabilities.APIVersions[1:]
		}, false},
		"Files": {"Without a tree the files themselves decide.", func(r *renderer.Request) {
			r.Version.Tree = ""
			r.Version.Chart[1].Data = []byte("# nothing")
		}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := &counting{next: renderer.New()}
			cache := renderer.NewCache(engine, 1<<20)
			r := request(configMapVersion(configMap), 1)
			if _, err := cache.Render(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			v := *r.Version
			v.Chart = append([]registry.File(nil), v.Chart...)
			r.Version = &v
			tc.change(&r)
			if _, err := cache.Render(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if got := engine.renders.Load() == 2; got != tc.again {
				t.Errorf("%s rendered again: %v, want %v", tc.why, got, tc.again)
			}
		})
	}
}

// TestCacheSeen: what a chart can see of a cluster decides, and no more:
// clusters differ in the kinds that they serve.
func TestCacheSeen(t *testing.T) {
	t.Parallel()
	without := func(name string) func(*renderer.Request) {
		return func(r *renderer.Request) {
			r.Capabilities.APIVersions = slices.DeleteFunc(r.Capabilities.APIVersions, func(v string) bool { return v == name })
		}
	}
	kubernetes := func(r *renderer.Request) { r.Capabilities.KubeVersion = "v1.35.0" }
	cases := map[string]struct {
		why, chart string
		values     map[string]any
		change     func(*renderer.Request)
		again      bool
	}{
		"Asked":        {"The chart asks for the kind that is gone.", `{{ .Capabilities.APIVersions.Has "policy/v1" }}`, nil, without("policy/v1"), true},
		"AskedOther":   {"It asks for another.", `{{ .Capabilities.APIVersions.Has "policy/v1" }}`, nil, without("batch/v1"), false},
		"Parentheses":  {"So does this.", `{{ $.Capabilities.APIVersions.Has ("policy/v1") }}`, nil, without("batch/v1"), false},
		"Computed":     {"It can't be told what it asks for.", `{{ .Capabilities.APIVersions.Has .Values.x }}`, nil, without("batch/v1"), true},
		"Ranges":       {"It looks at all.", `{{ range .Capabilities.APIVersions }}{{ . }}{{ end }}`, nil, without("batch/v1"), true},
		"Whole":        {"All are handed on.", `{{ $c := .Capabilities }}`, nil, kubernetes, true},
		"Index":        {"All are handed on.", `{{ index . "Capabilities" }}`, nil, kubernetes, true},
		"KubeVersion":  {"It looks at the version.", `{{ .Capabilities.KubeVersion }}`, nil, kubernetes, true},
		"NotTheKinds":  {"It looks at the version only.", `{{ .Capabilities.KubeVersion }}`, nil, without("batch/v1"), false},
		"NotTheNumber": {"It looks at the kinds only.", `{{ .Capabilities.APIVersions.Has "policy/v1" }}`, nil, kubernetes, false},
		"Security":     {"Capabilities of Linux are no capabilities of the cluster.", "# allowedCapabilities: []", nil, kubernetes, false},
		"Values":       {"Values may hold templates.", "{{ tpl .Values.t . }}", map[string]any{"t": "{{ .Capabilities.KubeVersion }}"}, kubernetes, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := &counting{next: renderer.New()}
			cache := renderer.NewCache(engine, 1<<20)
			v := configMapVersion("x: " + tc.chart)
			for _, change := range []func(*renderer.Request){func(*renderer.Request) {}, tc.change} {
				r := request(v, 1)
				if tc.values != nil {
					r.Values = registry.ValuesFrom(tc.values)
				}
				change(&r)
				_, _ = cache.Render(t.Context(), r) // what comes out is no object, and no matter
			}
			if got := engine.renders.Load() == 2; got != tc.again {
				t.Errorf("%s rendered again: %v, want %v", tc.why, got, tc.again)
			}
		})
	}
}

// TestCacheErrors: a chart that fails is not rendered once for each cluster,
// and each cluster is told where its own files are wrong.
func TestCacheErrors(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git here")
	}
	fleet := loadFleet(t, originFleet+`-- clusters/two/cluster.yaml --
apiVersion: keelson.io/v1alpha1
kind: Cluster
connection: {context: two}
-- clusters/two/demo.yaml --
apiVersion: keelson.io/v1alpha1
kind: MetaConfig
values: {tolerations: [{key: a}, b]}
`)
	engine := &counting{next: renderer.New()}
	cache := renderer.NewCache(engine, 1<<20)
	for range 2 {
		for cluster, want := range map[string]string{"one": "clusters/one/demo.yaml:6:5: tolerations.1", "two": "clusters/two/demo.yaml:3:34: tolerations.1"} {
			d := fleet.Cluster(cluster).Delivery("demo")
			_, err := cache.Render(t.Context(), renderer.Request{Version: d.Version, Values: d.Values, Capabilities: renderer.DefaultCapabilities()})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error with %q", err, want)
			}
		}
	}
	if got := engine.renders.Load(); got != 1 {
		t.Errorf("the same error took %d renders, want 1", got)
	}
}

// TestCacheScopes: a target says which kinds have no namespace, as far as it
// has objects of them, so a cluster that knows them otherwise has its own, and
// one that knows more kinds shares it.
func TestCacheScopes(t *testing.T) {
	t.Parallel()
	engine := &counting{next: renderer.New()}
	cache := renderer.NewCache(engine, 1<<20)
	v := configMapVersion("apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: x}\n")
	namespace := func(thing, other bool) string {
		r := request(v, 1)
		r.Capabilities.ClusterScoped[schema.GroupKind{Group: "example.com", Kind: "Thing"}] = thing
		r.Capabilities.ClusterScoped[schema.GroupKind{Group: "example.com", Kind: "Other"}] = other
		target, err := cache.Render(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		ns, _, _ := unstructured.NestedString(target.Objects[0].Content, "metadata", "namespace")
		return ns
	}
	for range 2 {
		for _, other := range []bool{false, true} {
			if got := namespace(true, other); got != "" {
				t.Errorf("without namespaces: %q", got)
			}
			if got := namespace(false, other); got != "demo" {
				t.Errorf("with namespaces: %q", got)
			}
		}
	}
	if got := engine.renders.Load(); got != 2 {
		t.Errorf("%d renders, want one with and one without namespaces", got)
	}
}

// TestCacheCancelled: a cancelled caller returns at once. Other callers of the same render still
// get its result.
func TestCacheCancelled(t *testing.T) {
	t.Parallel()
	engine := &counting{next: renderer.New(), gate: make(chan struct{})}
	cache := renderer.NewCache(engine, 1<<20)
	r := request(configMapVersion(configMap), 1)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := cache.Render(ctx, r)
		first <- err
	}()
	second := make(chan error, 1)
	go func() {
		_, err := cache.Render(t.Context(), r)
		second <- err
	}()
	cancel()
	// Whichever of them leads, the first gets its own cancellation.
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled render returned %v", err)
	}
	close(engine.gate)
	if err := <-second; err != nil {
		t.Errorf("another's cancellation was passed on: %v", err)
	}
	before := engine.renders.Load()
	if _, err := cache.Render(t.Context(), r); err != nil || engine.renders.Load() != before {
		t.Errorf("after a cancellation: error %v, %d renders more", err, engine.renders.Load()-before)
	}
}

// TestCacheBounded: the latest used stay, and what is too large is not kept.
func TestCacheBounded(t *testing.T) {
	t.Parallel()
	v := configMapVersion(configMap)
	one := renderer.NewCache(renderer.New(), 1<<20)
	if _, err := one.Render(t.Context(), request(v, 1)); err != nil {
		t.Fatal(err)
	}
	size := one.Stats().Bytes

	engine := &counting{next: renderer.New()}
	cache := renderer.NewCache(engine, 2*size)
	for _, replicas := range []int{1, 2, 1, 3, 1, 2} { // 3 pushes 2 out
		if _, err := cache.Render(t.Context(), request(v, replicas)); err != nil {
			t.Fatal(err)
		}
	}
	if s := cache.Stats(); engine.renders.Load() != 4 || s.Entries != 2 || s.Bytes != 2*size {
		t.Errorf("%d renders and %+v, want 4 and 2 entries of %d bytes", engine.renders.Load(), s, size)
	}
	tiny := renderer.NewCache(renderer.New(), 10)
	if _, err := tiny.Render(t.Context(), request(v, 1)); err != nil {
		t.Fatal(err)
	}
	if s := tiny.Stats(); s.Entries != 0 || s.Bytes != 0 {
		t.Errorf("a target larger than the cache was kept: %+v", s)
	}
}

// TestCachePack: what is kept encoded is the same when it is asked for again, costs no
// render, and takes less room until then.
func TestCachePack(t *testing.T) {
	t.Parallel()
	engine := &counting{next: renderer.New()}
	cache := renderer.NewCache(engine, 1<<20)
	v := configMapVersion(configMap + "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: demo}\n" +
		"spec: {replicas: 3, paused: false, ratio: 1.0, template: {metadata: {labels: {}, annotations: null}, list: [a, 1, 2.5]}}\n")
	before, err := cache.Render(t.Context(), request(v, 1))
	if err != nil {
		t.Fatal(err)
	}
	broken := configMapVersion(`{{ fail "no" }}`)
	broken.Tree = "another"
	if _, err := cache.Render(t.Context(), request(broken, 1)); err == nil {
		t.Fatal("a chart that fails does not")
	}
	whole := cache.Stats().Bytes
	cache.Pack()
	cache.Pack()
	if packed := cache.Stats().Bytes; packed >= whole {
		t.Errorf("it takes %d bytes packed, and %d before", packed, whole)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			after, err := cache.Render(t.Context(), request(v, 1))
			if err != nil {
				t.Error(err)
				return
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("another target than before (-before +after):\n%s", diff)
			}
		})
		wg.Go(cache.Pack)
	}
	wg.Wait()
	if _, err := cache.Render(t.Context(), request(v, 1)); err != nil {
		t.Fatal(err)
	}
	if s := cache.Stats(); s.Bytes != whole || s.Entries != 2 || engine.renders.Load() != 2 {
		t.Errorf("once it is unpacked: %d renders and %+v, want 2, and 2 entries of %d bytes", engine.renders.Load(), s, whole)
	}
}
