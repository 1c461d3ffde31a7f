package applier_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// writes counts what a cluster is sent, dry runs apart.
type writes struct {
	mu            sync.Mutex
	real, dryRuns []string
}

// to counts the writes whose path has a part, dry runs apart.
func (c *writes) to(part string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, path := range c.real {
		if strings.Contains(path, part) {
			n++
		}
	}
	return n
}

func (c *writes) take() (real, dryRuns int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	real, dryRuns = len(c.real), len(c.dryRuns)
	c.real, c.dryRuns = nil, nil
	return real, dryRuns
}

// counted connects anew, and counts from then on.
func (w *world) counted(options ...func(*applier.Options)) *writes {
	w.t.Helper()
	counter := &writes{}
	config := rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodGet {
				counter.mu.Lock()
				if r.URL.Query().Get("dryRun") != "" {
					counter.dryRuns = append(counter.dryRuns, r.URL.Path)
				} else {
					counter.real = append(counter.real, r.URL.Path)
				}
				counter.mu.Unlock()
			}
			return next.RoundTrip(r)
		})
	})
	w.connect(config, options...)
	return counter
}

// change is what a plan says of the one object of a kind.
func change(t *testing.T, p *applier.Prepared, kind string) *differ.Change {
	t.Helper()
	i := slices.IndexFunc(p.Plan.Changes, func(c differ.Change) bool { return c.ID.Kind == kind })
	if i < 0 {
		t.Fatalf("no %s in the plan:\n%s", kind, show(p))
	}
	return &p.Plan.Changes[i]
}

// The data of an immutable ConfigMap: only the API server can say that it can't
// change. Nothing is written, and it is asked once. An approval replaces the
// object.
func TestImmutableIsForeseen(t *testing.T) {
	w := newWorld(t)
	counter := w.counted()
	fixed := func(v string) string { return configMap("a", v) + "immutable: true\n" }
	w.apply(w.want("v1", fixed("x")))
	counter.take()
	next := w.want("v2", fixed("z"))
	for range 2 {
		p := w.apply(next)
		c := change(t, p, "ConfigMap")
		if c.State != differ.StateHeld || c.Rule != "immutable" || !strings.HasPrefix(c.Because, "data: ") {
			t.Fatalf("want it held, for its data:\n%s", show(p))
		}
		next.Approved = map[string][]string{c.ID.String(): {strings.Repeat("0", 32)}} // another difference's
	}
	if real, dryRuns := counter.take(); real != 0 || dryRuns != 1 {
		t.Errorf("%d writes and %d dry runs, want one dry run", real, dryRuns)
	}
	c := change(t, w.plan(next), "ConfigMap")
	next.Approved = map[string][]string{c.ID.String(): {c.Hash}}
	old := w.get(configMaps, "a").GetUID()
	ctx, stop := context.WithCancel(t.Context())
	var collected sync.WaitGroup
	collected.Go(func() {
		_ = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			_, err := w.resource(configMaps).Patch(ctx, "a", types.JSONPatchType,
				[]byte(`[{"op":"test","path":"/metadata/uid","value":"`+string(old)+`"},{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{})
			return err == nil, nil
		})
	})
	w.apply(next)
	stop()
	collected.Wait()
	now := w.get(configMaps, "a")
	if v, _, _ := unstructured.NestedString(now.Object, "data", "key"); v != "z" || now.GetUID() == old {
		t.Errorf("it was not replaced: %v, key %s", now.GetUID(), v)
	}
	w.settled(next)
}

// Another manager owns a part of a liveness probe, and git takes another kind:
// what both leave is none that the API server takes. It waits, with the reason.
func TestUnionIsForeseen(t *testing.T) {
	w := newWorld(t)
	probed := func(probe string) string {
		return strings.Replace(deployment, "image: web:v1", "image: web:v1\n        livenessProbe: {"+probe+"}", 1)
	}
	w.apply(w.want("v1", probed("httpGet: {port: 80}")))
	theirs := w.object(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NS}
spec: {template: {spec: {containers: [{name: web, livenessProbe: {httpGet: {port: 80}}}]}}}
`)
	_, err := w.resource(deployments).Apply(t.Context(), "web", &unstructured.Unstructured{Object: theirs}, metav1.ApplyOptions{FieldManager: "my-operator"})
	if err != nil {
		t.Fatal(err)
	}
	before := w.get(deployments, "web").GetResourceVersion()
	p := w.apply(w.want("v2", probed("tcpSocket: {port: 80}")))
	c := change(t, p, "Deployment")
	if c.State != differ.StateHeld || c.Rule != "refused" || !strings.Contains(c.Because, "livenessProbe") {
		t.Errorf("want it held, for its liveness probe:\n%s", show(p))
	}
	if after := w.get(deployments, "web").GetResourceVersion(); after != before {
		t.Error("what is held was written")
	}
}

// An approved replacement is tried before anything is deleted: here the new
// object would be refused, and there would be none.
func TestReplacementIsForeseen(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", deployment))
	next := w.want("v2", strings.Replace(deployment, "{matchLabels: {app: web}}", "{matchLabels: {app: api}}", 1))
	c := change(t, w.plan(next), "Deployment")
	next.Approved = map[string][]string{c.ID.String(): {c.Hash}}
	before := w.get(deployments, "web").GetResourceVersion()
	p := w.apply(next)
	if c := change(t, p, "Deployment"); c.State != differ.StateHeld || c.Rule != "refused" || !strings.Contains(c.Because, "does not match template") {
		t.Errorf("want it held, since it could not be created anew:\n%s", show(p))
	}
	if after := w.get(deployments, "web").GetResourceVersion(); after != before {
		t.Error("it was written")
	}
	valid := w.want("v3", strings.ReplaceAll(deployment, "{app: web}", "{app: api}"))
	c = change(t, w.plan(valid), "Deployment")
	valid.Approved = map[string][]string{c.ID.String(): {c.Hash}}
	if c := change(t, w.plan(valid), "Deployment"); c.Op != differ.OpReplace {
		t.Errorf("want a replacement, and not op %s: %s", c.Op, c.Because)
	}
}

// pin is a policy of the cluster that sets a key of ConfigMaps with a label.
const pin = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: pin}
spec:
  reinvocationPolicy: Never
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]
    objectSelector: {matchLabels: {pin: "yes"}}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: 'Object{data: {"key": "pinned", "added": "by admission"}}'}
`

// Admission undoes what git wants. The dry run shows that nothing would change:
// nothing is written, and from then on nothing is asked either. What admission
// adds is shown apart.
func TestAdmissionIsForeseen(t *testing.T) {
	w := newWorld(t)
	for _, manifest := range []string{pin, `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: pin}
spec: {policyName: pin}
`} {
		o := &unstructured.Unstructured{Object: w.object(manifest)}
		gvr := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicies"}
		if o.GetKind() != "MutatingAdmissionPolicy" {
			gvr.Resource = "mutatingadmissionpolicybindings"
		}
		if _, err := w.dynamic.Resource(gvr).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = w.dynamic.Resource(gvr).Delete(context.WithoutCancel(t.Context()), o.GetName(), metav1.DeleteOptions{})
		})
	}
	pinned := func(v string) string {
		return strings.Replace(configMap("a", v), "namespace: NS", `namespace: NS, labels: {pin: "yes"}`, 1)
	}
	w.apply(w.want("v0", configMap("other", "x"))) // makes the namespace
	w.policyCounts(pinned("trial"))
	want := w.want("v1", configMap("other", "x"), pinned("x"))
	p := w.plan(want)
	if err := w.cluster.Predict(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(p.Plan.Changes, func(c differ.Change) bool { return c.ID.Name == "a" })
	var predicted []string
	for _, a := range p.Plan.Changes[i].Admission {
		predicted = append(predicted, a.Path)
	}
	if !slices.Equal(predicted, []string{".data.added", ".data.key"}) {
		t.Errorf("the dry run of the create shows %v", predicted)
	}
	w.apply(want)
	w.settled(want)
	if v, _, _ := unstructured.NestedString(w.get(configMaps, "a").Object, "data", "key"); v != "pinned" {
		t.Fatalf("the policy does not count: %q", v)
	}
	version := w.get(configMaps, "a").GetResourceVersion()
	counter := w.counted()
	next := w.want("v2", configMap("other", "x"), pinned("z"))
	w.apply(next)
	if _, dryRuns := counter.take(); dryRuns != 1 {
		t.Errorf("%d dry runs, want one", dryRuns)
	}
	if after := w.get(configMaps, "a").GetResourceVersion(); after != version {
		t.Error("a change that changes nothing was written")
	}
	w.settled(next)
	if _, dryRuns := counter.take(); dryRuns != 0 {
		t.Errorf("the difference was remembered, and %d dry runs more were made", dryRuns)
	}
}

// policyCounts waits until a new admission policy is in force.
func (w *world) policyCounts(manifest string) {
	w.t.Helper()
	o := &unstructured.Unstructured{Object: w.object(manifest)}
	o.SetName("trial")
	err := wait.PollUntilContextTimeout(w.t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		answer, err := w.resource(configMaps).Create(ctx, o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return false, err
		}
		v, _, _ := unstructured.NestedString(answer.Object, "data", "key")
		return v == "pinned", nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// A custom resource's map and list that git empties. Server-side apply makes
// null of them, which its schema refuses.
func TestEmptied(t *testing.T) {
	w := newWorld(t)
	crd := `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: bags.emptied.example.com}
spec:
  group: emptied.example.com
  scope: Namespaced
  names: {plural: bags, singular: bag, kind: Bag, listKind: BagList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              name: {type: string}
              labels: {type: object, additionalProperties: {type: string}}
              items: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [id], items: {type: object, required: [id], properties: {id: {type: string}, v: {type: integer}}}}
              nested: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [id], items: {type: object, required: [id], properties: {id: {type: string}, labels: {type: object, additionalProperties: {type: string}}}}}
`
	bag := func(spec string) string {
		return "apiVersion: emptied.example.com/v1\nkind: Bag\nmetadata: {name: b, namespace: NS}\nspec: {name: x, " + spec + "}\n"
	}
	full := `labels: {a: "1", b: "2"}, items: [{id: one, v: 1}, {id: two, v: 2}], nested: [{id: one, labels: {a: "1"}}]`
	w.apply(w.want("v1", crd, bag(full)))
	want := w.want("v2", crd, bag(`labels: {}, items: [], nested: [{id: one, labels: {}}]`))
	w.apply(want)
	w.settled(want)
	spec, _, _ := unstructured.NestedMap(w.get(schema.GroupVersionResource{Group: "emptied.example.com", Version: "v1", Resource: "bags"}, "b").Object, "spec")
	if text(spec) != `{"items":[],"labels":{},"name":"x","nested":[{"id":"one","labels":{}}]}` {
		t.Errorf("the bag is %s", text(spec))
	}
	back := w.want("v3", crd, bag(full))
	w.apply(back)
	w.settled(back)
}

// An object of kubectl apply is taken over: what it had and git has not goes,
// and what leaves git later goes, too. Helm's in the same way.
func TestClientSideHistory(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v0", configMap("other", "x")))
	for _, manager := range []string{"kubectl-client-side-apply", "helm"} {
		name, _, _ := strings.Cut(manager, "-")
		theirs := &unstructured.Unstructured{Object: w.object(configMap(name, "x"))}
		if err := unstructured.SetNestedStringMap(theirs.Object, map[string]string{"key": "x", "old": "x", "later": "x"}, "data"); err != nil {
			t.Fatal(err)
		}
		if name == "kubectl" {
			theirs.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{}"})
		}
		if _, err := w.resource(configMaps).Create(t.Context(), theirs, metav1.CreateOptions{FieldManager: manager}); err != nil {
			t.Fatal(err)
		}
		with := configMap(name, "x") + "binaryData: {}\n"
		want := w.want("v1", configMap("other", "x"), strings.Replace(with, "{key: x}", "{key: x, later: x}", 1))
		if p := w.apply(want); p.Plan.Count(differ.OpUpdate) != 0 {
			t.Fatalf("taken over without being asked to:\n%s", show(p))
		}
		want.Adopt = true
		w.apply(want)
		w.settled(want)
		got := w.get(configMaps, name)
		data, _, _ := unstructured.NestedStringMap(got.Object, "data")
		if len(data) != 2 || data["old"] != "" || len(got.GetAnnotations()) != 0 {
			t.Errorf("after it was taken over from %s: data %v, annotations %v", manager, data, got.GetAnnotations())
		}
		want = w.want("v2", configMap("other", "x"), with)
		w.apply(want)
		w.settled(want)
		if data, _, _ := unstructured.NestedStringMap(w.get(configMaps, name).Object, "data"); len(data) != 1 {
			t.Errorf("what left git later is there still: %v", data)
		}
		w.prune(w.want("v0", configMap("other", "x")))
		w.collect()
	}
}

// A VPA owns the requests of its target, and KEDA the replicas, as long as the
// cluster serves their kinds.
func TestScaled(t *testing.T) {
	w := newWorld(t)
	crd := func(group, version, kind, plural string) string {
		return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ` + plural + "." + group + `, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: ` + group + `
  scope: Namespaced
  names: {plural: ` + plural + `, singular: ` + strings.ToLower(kind) + `, kind: ` + kind + `, listKind: ` + kind + `List}
  versions: [{name: ` + version + `, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`
	}
	sized := strings.Replace(deployment, "resources: {limits: {cpu: 1000m, memory: 1024Mi}}", "resources: {requests: {cpu: 100m}, limits: {cpu: 1000m}}", 1)
	first := []string{
		crd("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler", "verticalpodautoscalers"),
		crd("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"), `
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: web, namespace: NS}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  resourcePolicy: {containerPolicies: [{containerName: "*", controlledValues: RequestsOnly}]}
`, `
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: web, namespace: NS}
spec: {scaleTargetRef: {name: web}}
`,
	}
	w.apply(w.want("v1", append(first, sized)...))
	moved := strings.NewReplacer("cpu: 100m", "cpu: 200m", "cpu: 1000m", "cpu: 2000m", "replicas: 2", "replicas: 1", "web:v1", "web:v2").Replace(sized)
	w.reconnect() // the kinds are new
	want := w.want("v2", append(first, moved)...)
	p := w.apply(want)
	w.settled(want)
	var kept []string
	for _, f := range change(t, p, "Deployment").Fields {
		if f.Action == differ.ActionKeep {
			kept = append(kept, f.Rule)
		}
	}
	if !slices.Equal(kept, []string{"autoscaled-replicas", "autoscaled-requests"}) {
		t.Errorf("kept by %v:\n%s", kept, show(p))
	}
	if n := w.replicas(); n != 2 {
		t.Errorf("%d replicas, want the 2 that KEDA owns", n)
	}
}
