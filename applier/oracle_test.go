package applier_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
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
	o := &oracle{t: t, seed: envNumber(t, "KEELSON_SEED", seed), schemas: applier.NewSchemaCache()}
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
	schemas *applier.SchemaCache

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

// batch is one component with objects of one kind, each with a history of its own.
type batch struct {
	*oracle
	shape                shape
	component, namespace string
	seed                 uint64

	cluster *applier.Cluster
	policy  applier.Want
	reader  *oracleReader
	objects []*subject

	mu    sync.Mutex
	steps map[differ.ID]error
}

// subject is one object.
type subject struct {
	id      differ.ID
	seed    uint64
	dice    dice   // of what git wants
	target  object // nil: the API server refused it
	skipped bool   // this time
	trace   []string
}

func (b *batch) fail(s *subject, format string, args ...any) {
	b.t.Helper()
	b.oracle.mu.Lock()
	b.violations++
	n := b.violations
	b.oracle.mu.Unlock()
	if n <= 20 {
		b.t.Errorf("KEELSON_SEED=%d, %s: %s\n%s", b.oracle.seed, s.id, fmt.Sprintf(format, args...), strings.Join(s.trace, "\n"))
	}
}

func (b *batch) check(err error) bool {
	b.t.Helper()
	if err != nil {
		b.oracle.mu.Lock()
		b.violations++
		b.oracle.mu.Unlock()
		b.t.Errorf("KEELSON_SEED=%d, %s of kind %s: %v", b.oracle.seed, b.component, b.shape.kind, err)
	}
	return err == nil
}

// oracleReader is a direct reader whose autoscalers are drawn.
type oracleReader struct {
	dynamic dynamic.Interface
	scaled  map[differ.ID]differ.Scaling
}

func (r *oracleReader) Get(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	return applier.Get(ctx, r.dynamic, m, id)
}

func (r *oracleReader) Fresh(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	return applier.Get(ctx, r.dynamic, m, id)
}

func (r *oracleReader) Scaled(context.Context, []schema.GroupVersionResource) (map[differ.ID]differ.Scaling, error) {
	return r.scaled, nil
}

func (r *oracleReader) Wrote(differ.ID, map[string]any) {}

func (b *batch) restart() bool {
	b.t.Helper()
	c, err := applier.New(applier.Options{Name: "test", Config: b.config, Schemas: b.schemas, Reader: b.reader, Progress: b.progress})
	if !b.check(err) {
		return false
	}
	b.cluster = c
	return b.check(c.Prepare(b.t.Context()))
}

func (b *batch) progress(s applier.Step) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.steps[s.ID] = s.Err
}

func (b *batch) client(id differ.ID) dynamic.ResourceInterface {
	r := b.dynamic.Resource(b.shape.gvr())
	if id.Namespace == "" {
		return r
	}
	return r.Namespace(id.Namespace)
}

func (b *batch) run(size int) {
	rules, err := differ.NewRules(b.drawRules())
	if !b.check(err) {
		return
	}
	r := roll(b.seed, "policy")
	b.reader = &oracleReader{dynamic: b.dynamic, scaled: map[differ.ID]differ.Scaling{}}
	b.policy = applier.Want{
		Component: b.component, Namespace: b.namespace, Rules: rules, Adopt: r.IntN(2) == 0,
		Drift: []v1alpha1.Drift{"", v1alpha1.DriftRestore, v1alpha1.DriftReport}[r.IntN(3)],
	}
	if !b.restart() || !b.check(b.ensureNamespace()) {
		return
	}
	defer b.clean()
	for i := range size {
		s := &subject{id: b.shape.id(b.namespace, fmt.Sprintf("%s-%d", b.component, i)), seed: roll(b.seed, fmt.Sprint("object ", i)).Uint64()}
		s.dice = dice{layers: []layer{{seed: s.seed}}}
		s.target = b.draw(s, s.dice)
		if b.shape.scale && roll(s.seed, "autoscaled").IntN(4) == 0 {
			b.reader.scaled[s.id] = differ.ScalesReplicas
		}
		b.objects = append(b.objects, s)
	}
	b.each(b.createdBefore)
	if !b.first() {
		return
	}
	for round := range oracleRounds {
		b.each(func(s *subject) { b.somebody(s, round) })
		if !b.round(round) {
			return
		}
	}
}

// drawRules draws rules on top of the built-in ones.
func (b *batch) drawRules() []v1alpha1.DangerRule {
	var out []v1alpha1.DangerRule
	for _, rule := range []v1alpha1.DangerRule{
		{Name: "keep-label", Path: `.metadata.labels.a`, Effect: v1alpha1.EffectKeep},
		{Name: "keep-env", Path: `.spec.template.spec.containers[*].env[*].value`, Effect: v1alpha1.EffectKeep},
		{Name: "keep-resources", Path: `.spec.template.spec.containers[*].resources`, Effect: v1alpha1.EffectKeep},
		{Name: "hold-annotation", Path: `.metadata.annotations.x`, Effect: v1alpha1.EffectHold},
		{Name: "deny-image", Path: `.spec.template.spec.containers[*].image`, Effect: v1alpha1.EffectDeny},
		{Name: "keep-data", Path: `.data.a`, Effect: v1alpha1.EffectKeep},
		{Name: "keep-drawn", Path: `.spec.f1`, Effect: v1alpha1.EffectKeep},
		{Name: "service-selector", Path: `.spec.selector`, Effect: v1alpha1.EffectAllow},
	} {
		if roll(b.seed, rule.Name).IntN(4) == 0 {
			rule.Because = "it is drawn"
			out = append(out, rule)
		}
	}
	return out
}

func (b *batch) ensureNamespace() error {
	_, err := b.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(b.t.Context(),
		&unstructured.Unstructured{Object: object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": b.namespace}}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// clean deletes in bulk, so that the API server stays small.
func (b *batch) clean() {
	now := int64(0)
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{GracePeriodSeconds: &now, PropagationPolicy: &background}
	for _, s := range b.objects {
		if s.target == nil {
			continue
		}
		if err := b.client(s.id).Delete(b.t.Context(), s.id.Name, options); err != nil && !apierrors.IsNotFound(err) {
			b.check(err)
		}
	}
	_ = b.dynamic.Resource(secrets).Namespace(v1alpha1.Namespace).Delete(b.t.Context(), "record-"+b.component, metav1.DeleteOptions{})
}

func (b *batch) each(do func(*subject)) {
	var g errgroup.Group
	g.SetLimit(8)
	for _, s := range b.objects {
		if s.target != nil {
			g.Go(func() error { do(s); return nil })
		}
	}
	_ = g.Wait()
}

// draw draws an object as a chart renders it.
func (b *batch) draw(s *subject, d dice) object {
	o := b.shape.object(d, b.namespace, s.id.Name)
	m := o["metadata"].(object)
	labels, _ := m["labels"].(object)
	if labels == nil {
		labels = object{}
		m["labels"] = labels
	}
	labels[v1alpha1.LabelComponent] = b.component
	return o
}

// want is what git wants, of all objects that the API server takes.
func (b *batch) want(version int) applier.Want {
	w := b.policy
	w.Version, w.Tree, w.Revision = fmt.Sprintf("v%d", version), fmt.Sprintf("tree-%d", version), "abc"
	w.Target = &renderer.Target{Hash: fmt.Sprintf("%s-%d", b.component, version)}
	for _, s := range b.objects {
		if s.target != nil {
			w.Target.Objects = append(w.Target.Objects, &renderer.Object{Content: s.target})
		}
	}
	return w
}

// carryOut applies a plan. Of each object it says whether the API server
// refused it.
func (b *batch) carryOut(p *applier.Prepared) (ok bool) {
	b.t.Helper()
	b.steps = map[differ.ID]error{}
	foreseen := map[differ.ID]bool{}
	var replaced []differ.ID
	for i := range p.Plan.Changes {
		c := &p.Plan.Changes[i]
		foreseen[c.ID] = c.Op == differ.OpUpdate && c.Probe != nil
		if c.Op == differ.OpReplace {
			replaced = append(replaced, c.ID)
		}
	}
	done := b.collect(replaced)
	_, err := b.cluster.Apply(b.t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0), Timeout: time.Minute})
	done()
	if err == nil {
		return true
	}
	refused := false
	for _, s := range b.objects {
		switch err := b.steps[s.id]; {
		case err == nil:
		case apierrors.IsInvalid(err) && !foreseen[s.id]:
			refused, s.skipped = true, true
			b.skip(b.shape.kind, err)
		default:
			refused, s.skipped = true, true
			b.fail(s, "apply: %v", err)
		}
	}
	return refused || b.check(err)
}

// collect does the garbage collector's part of the foreground deletions of some
// objects, until it is told to stop.
func (b *batch) collect(ids []differ.ID) (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			_ = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
				live, err := b.client(id).Get(ctx, id.Name, metav1.GetOptions{})
				if err != nil || live.GetDeletionTimestamp() == nil {
					return false, nil //nolint:nilerr // asked again
				}
				_, _ = b.client(id).Patch(ctx, id.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				return false, nil
			})
		})
	}
	return func() { cancel(); wg.Wait() }
}

// createdBefore lets some objects exist before Keelson comes.
func (b *batch) createdBefore(s *subject) {
	r := roll(s.seed, "exists")
	if r.IntN(4) > 0 {
		return
	}
	o := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(b.draw(s, s.dice.with(r.Uint64(), 0.2)))}
	if r.IntN(2) == 0 {
		labels := o.GetLabels()
		delete(labels, v1alpha1.LabelComponent)
		o.SetLabels(labels)
	}
	manager := []string{"kubectl-create", "my-operator", "kubectl-client-side-apply", "helm"}[r.IntN(4)]
	_, err := b.client(s.id).Create(b.t.Context(), o, metav1.CreateOptions{FieldManager: manager})
	s.trace = append(s.trace, fmt.Sprintf("created by %s: %s (%v)", manager, text(o.Object), err))
}

// first applies what git wanted first, less what the API server refuses.
func (b *batch) first() bool {
	p, err := b.cluster.Plan(b.t.Context(), b.want(0))
	if !b.check(err) || !b.carryOut(p) {
		return false
	}
	var taken []*subject
	for _, s := range b.objects {
		s.trace = append(s.trace, "first target: "+text(s.target))
		if s.skipped {
			s.target, s.skipped = nil, false
			continue
		}
		taken = append(taken, s)
	}
	b.objects = taken
	if len(taken) == 0 {
		return false
	}
	p, err = b.cluster.Plan(b.t.Context(), b.want(0))
	if !b.check(err) {
		return false
	}
	b.settled(p, "the first apply", nil)
	return true
}

// somebody writes to the object, in one of the ways in which people and
// controllers do.
func (b *batch) somebody(s *subject, round int) {
	for i := range roll(s.seed, fmt.Sprint("writes ", round)).IntN(3) {
		r := roll(s.seed, fmt.Sprint("write ", round, i))
		var err error
		var what string
		switch {
		case b.shape.scale && r.IntN(4) == 0:
			what = []string{"kubectl", "kube-controller-manager", "my-autoscaler"}[r.IntN(3)]
			patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, r.IntN(4))
			_, err = b.client(s.id).Patch(b.t.Context(), s.id.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: what}, "scale")
			what += " scales " + patch
		case r.IntN(3) == 0:
			d := dice{layers: []layer{{seed: s.seed}}, sparse: r.IntN(2) == 0}.with(r.Uint64(), 0.3)
			o := b.draw(s, d)
			what = []string{"theirs", "kubectl", "cert-manager-x"}[r.IntN(3)]
			_, err = b.client(s.id).Apply(b.t.Context(), s.id.Name, &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o)}, metav1.ApplyOptions{FieldManager: what, Force: true})
			what += " applies " + text(o)
		default:
			other := b.draw(s, s.dice.with(r.Uint64(), []float64{0.02, 0.1, 0.3}[r.IntN(3)]))
			patch := mergePatch(s.target, other)
			what = []string{"kubectl-edit", "kubectl-client-side-apply", "my-operator", "kube-controller-manager", "before-first-apply"}[r.IntN(5)]
			_, err = b.client(s.id).Patch(b.t.Context(), s.id.Name, types.MergePatchType, []byte(text(patch)), metav1.PatchOptions{FieldManager: what})
			what += " patches " + text(patch)
		}
		if err != nil {
			what += ": " + err.Error()
		}
		s.trace = append(s.trace, what)
	}
}

// mergePatch takes one object to another.
func mergePatch(from, to object) object {
	out := object{}
	for k := range from {
		if _, ok := to[k]; !ok {
			out[k] = nil
		}
	}
	for k, v := range to {
		old, both := from[k]
		a, aok := old.(object)
		c, cok := v.(object)
		switch {
		case both && reflect.DeepEqual(old, v):
		case aok && cok:
			out[k] = mergePatch(a, c)
		default:
			out[k] = v
		}
	}
	return out
}

func text(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// round lets git change, applies that, and looks at what it did.
func (b *batch) round(round int) bool {
	for _, s := range b.objects {
		s.skipped = false
		r := roll(s.seed, fmt.Sprint("git ", round))
		if rate := []float64{0, 0.02, 0.1, 0.3}[r.IntN(4)]; rate > 0 {
			s.dice = s.dice.with(r.Uint64(), rate)
			s.target = b.draw(s, s.dice)
		}
		s.trace = append(s.trace, fmt.Sprintf("target %d: %s", round+1, text(s.target)))
	}
	switch roll(b.seed, fmt.Sprint("lost ", round)).IntN(6) {
	case 0:
		_ = b.dynamic.Resource(secrets).Namespace(v1alpha1.Namespace).Delete(b.t.Context(), "record-"+b.component, metav1.DeleteOptions{})
		fallthrough
	case 1:
		if !b.restart() {
			return false
		}
	}
	want := b.want(round + 1)
	p, err := b.cluster.Plan(b.t.Context(), want)
	if !b.check(err) {
		return false
	}
	if want.Approved = b.approve(p, round); len(want.Approved) > 0 {
		if p, err = b.cluster.Plan(b.t.Context(), want); !b.check(err) {
			return false
		}
	}
	plan := map[differ.ID]*differ.Change{}
	for i := range p.Plan.Changes {
		c := &p.Plan.Changes[i]
		plan[c.ID] = c
		b.count(c)
	}
	for _, s := range b.objects {
		if plan[s.id] != nil {
			s.trace = append(s.trace, "before: "+text(plan[s.id].Live), "plan: "+showChange(plan[s.id]))
		}
	}
	if !b.carryOut(p) {
		return false
	}
	after, err := b.cluster.Plan(b.t.Context(), want)
	if !b.check(err) {
		return false
	}
	b.settled(after, "the apply", plan)
	if !b.restart() {
		return false
	}
	again, err := b.cluster.Plan(b.t.Context(), want)
	if !b.check(err) {
		return false
	}
	b.settled(again, "a restart", nil)
	return true
}

// approve lets git approve some of what is held.
func (b *batch) approve(p *applier.Prepared, round int) map[string][]string {
	out := map[string][]string{}
	for i := range p.Plan.Changes {
		c := &p.Plan.Changes[i]
		if c.State == differ.StateHeld && roll(b.seed, fmt.Sprint("approved ", round, c.ID)).IntN(2) == 0 {
			out[c.ID.String()] = []string{c.Hash}
		}
	}
	return out
}

func showChange(c *differ.Change) string {
	var w strings.Builder
	fmt.Fprintf(&w, "op %s, state %s %s %s, record stale %v, owners unread %v", c.Op, c.State, c.Rule, c.Because, c.RecordStale, c.OwnersUnread)
	for _, f := range c.Fields {
		fmt.Fprintf(&w, "\n  %s %s: recorded %v, target %v, live %v (%s %s)", f.Action, f.Path, text(f.Recorded), text(f.Target), text(f.Live), f.Rule, f.Because)
	}
	return w.String()
}

// settled checks that a plan writes nothing, and with the plan that was carried
// out what that did.
func (b *batch) settled(p *applier.Prepared, after string, done map[differ.ID]*differ.Change) {
	byID := map[differ.ID]*differ.Change{}
	for i := range p.Plan.Changes {
		byID[p.Plan.Changes[i].ID] = &p.Plan.Changes[i]
	}
	for _, s := range b.objects {
		c := byID[s.id]
		switch {
		case s.skipped:
		case c != nil && c.Live == nil && c.State == differ.StateDenied: // a create, too, can be forbidden
		case c == nil || c.Live == nil:
			b.fail(s, "it is gone after %s", after)
		case c.Op != differ.OpNone || c.RecordStale || c.OwnersUnread || c.State == differ.StateChanged:
			b.fail(s, "the plan after %s is not empty: %s\nlive: %s", after, showChange(c), text(c.Live))
		case done[s.id] != nil:
			b.verify(s, done[s.id], c.Live)
		}
	}
}

// verify compares the object before and after with what the plan said.
func (b *batch) verify(s *subject, c *differ.Change, after object) {
	if c.State == differ.StateHeld || c.State == differ.StateDenied || c.Op == differ.OpNone {
		if version(c.Live) != version(after) {
			b.fail(s, "it is %s, op %s, and it moved", c.State, c.Op)
		}
		return
	}
	if c.State == differ.StateSynced && c.Op != differ.OpNone {
		b.fail(s, "synced, and op %s", c.Op)
	}
	for _, f := range c.Fields {
		b.verifyField(s, &f, c.Live, after, c.Op == differ.OpReplace)
	}
	if c.Live != nil && c.Op != differ.OpReplace {
		b.verifyOthers(s, c, after)
	}
}

func version(o object) string { return (&unstructured.Unstructured{Object: o}).GetResourceVersion() }

func (b *batch) verifyField(s *subject, f *differ.Field, before, after object, replaced bool) {
	got, _, ok := lookup(after, f.Path)
	if !ok {
		b.fail(s, "the path %s can't be followed", f.Path)
		return
	}
	switch f.Action {
	case differ.ActionSet, differ.ActionRestore, differ.ActionAdopt:
		want := f.Target
		if s.id.Kind == "Secret" { // its values are masked in the plan
			if _, plain, _ := lookup(s.target, f.Path); !plain {
				return // it is stringData's
			}
			want, _, _ = lookup(s.target, f.Path)
		}
		if f.Action == differ.ActionAdopt && isZero(want) {
			return // of an empty list only its being there is taken
		}
		if !holds(want, got) {
			b.fail(s, "%s of %s: want %s, got %s", f.Action, f.Path, text(want), text(got))
		}
	case differ.ActionKeep:
		if replaced {
			return // it is created as git wants it
		}
		if was, _, _ := lookup(before, f.Path); !reflect.DeepEqual(was, got) {
			b.fail(s, "%s is kept, and went from %s to %s", f.Path, text(was), text(got))
		}
	case differ.ActionHold, differ.ActionDeny:
		b.fail(s, "%s of %s in an object that is written", f.Action, f.Path)
	case differ.ActionRemove, differ.ActionRelease: // for the owners to tell
	}
}

func isZero(v any) bool {
	switch v := v.(type) {
	case object:
		return len(v) == 0
	case list:
		return len(v) == 0
	}
	return v == nil || v == false || v == "" || v == int64(0) || v == 0.0
}

// verifyOthers checks that what only others own, and the target does not name,
// is as it was.
func (b *batch) verifyOthers(s *subject, c *differ.Change, after object) {
	target := stored(s.target)
	own := []object{} // fields that Keelson applied
	var others []metav1.ManagedFieldsEntry
	for _, e := range (&unstructured.Unstructured{Object: c.Live}).GetManagedFields() {
		switch {
		case e.Manager == v1alpha1.FieldManager && e.Operation == metav1.ManagedFieldsOperationApply:
			own = append(own, fieldsOf(e))
		case e.Manager == differ.HandOverManager(), slices.Contains(c.Migrate, e.Manager) && e.Operation == metav1.ManagedFieldsOperationUpdate:
			own = append(own, fieldsOf(e))
		case e.Subresource != "status":
			others = append(others, e)
		}
	}
	for _, e := range others {
		leaves(fieldsOf(e), nil, func(path []string) {
			if slices.ContainsFunc(own, func(o object) bool { return hasField(o, path) }) {
				return
			}
			if _, named := follow(target, path); named {
				return
			}
			was, there := follow(c.Live, path)
			if !there {
				return // a key whose list was made anew, say
			}
			is, still := follow(after, path)
			if still && reflect.DeepEqual(was, is) || goesWithItem(target, own, path, e.Manager) || isDependent(path) {
				return
			}
			b.fail(s, "%s of %s went from %s to %s (there: %v)\nafter: %s", strings.Join(path, " "), e.Manager, text(was), text(is), still, text(after))
		})
	}
}

// stored is a target as the API server keeps it: a Secret's stringData is data.
func stored(target object) object {
	texts, ok := target["stringData"].(object)
	if !ok {
		return target
	}
	target = maps.Clone(target)
	data, _ := target["data"].(object)
	data = maps.Clone(data)
	if data == nil {
		data = object{}
	}
	maps.Copy(data, texts)
	target["data"] = data
	return target
}

// goesWithItem reports whether a field is a person's in a list item that was
// Keelson's and left git: it goes with it.
func goesWithItem(target object, own []object, path []string, manager string) bool {
	if !strings.HasPrefix(manager, "kubectl") {
		return false
	}
	for i, p := range path {
		if !strings.HasPrefix(p, "k:") {
			continue
		}
		item := path[:i+1]
		_, wanted := follow(target, item)
		if !wanted && slices.ContainsFunc(own, func(o object) bool { return hasField(o, item) }) {
			return true
		}
	}
	return false
}

// isDependent reports whether the API server itself changes a field with
// another one: what belongs to a Service's type or session affinity, the old name
// of the service account's name, and the count of a DaemonSet's templates (and
// the annotations, where somebody applied them empty and so owns them as a whole).
func isDependent(path []string) bool {
	switch last := path[len(path)-1]; last {
	case "f:serviceAccount", "f:deprecated.daemonset.template.generation", "f:externalTrafficPolicy", "f:allocateLoadBalancerNodePorts":
		return true
	case "f:annotations":
		return len(path) == 2
	}
	return slices.Contains(path, "f:sessionAffinityConfig")
}

func fieldsOf(e metav1.ManagedFieldsEntry) object {
	var out object
	if e.FieldsV1 == nil {
		return out
	}
	data, err := json.Marshal(e.FieldsV1)
	if err != nil {
		return out
	}
	_ = json.Unmarshal(data, &out)
	return out
}

// leaves visits the paths of a FieldsV1 below which it names nothing.
func leaves(fields object, path []string, visit func([]string)) {
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		child, _ := fields[k].(object)
		switch {
		case k == ".":
		case len(child) == 0:
			visit(append(slices.Clone(path), k))
		default:
			leaves(child, append(slices.Clone(path), k), visit)
		}
	}
}

// hasField reports whether a FieldsV1 names a path, or one above it as a whole.
func hasField(fields object, path []string) bool {
	for i, k := range path {
		child, ok := fields[k].(object)
		if !ok {
			return false
		}
		if len(child) == 0 {
			return true
		}
		if i == len(path)-1 {
			return true
		}
		fields = child
	}
	return false
}

// follow finds a path of a FieldsV1 in an object.
func follow(v any, path []string) (any, bool) {
	for _, k := range path {
		name, ok := strings.CutPrefix(k, "f:")
		if ok {
			m, _ := v.(object)
			if v, ok = m[name]; !ok {
				return nil, false
			}
			continue
		}
		items, _ := v.(list)
		found := false
		for _, it := range items {
			if found = matches(it, k); found {
				v = it
				break
			}
		}
		if !found {
			return nil, false
		}
	}
	return v, true
}

// matches reports whether a list item bears a key of a FieldsV1.
func matches(item any, k string) bool {
	if s, ok := strings.CutPrefix(k, "v:"); ok {
		return text(item) == s
	}
	s, ok := strings.CutPrefix(k, "k:")
	var key object
	if !ok || json.Unmarshal([]byte(s), &key) != nil {
		return false
	}
	return hasKey(item, key)
}

func hasKey(item any, key object) bool {
	m, _ := item.(object)
	for name, v := range key {
		have := m[name]
		if have == nil && name == "protocol" {
			have = "TCP"
		}
		if text(have) != text(v) {
			return false
		}
	}
	return m != nil
}

// lookup finds a path as plans show it. It is not ok when it can't be read.
func lookup(v any, path string) (found any, there, ok bool) {
	for path != "" {
		if path[0] == '.' {
			m, isMap := v.(object)
			if !isMap {
				return nil, false, true
			}
			name := ""
			for k := range m {
				if rest, fits := strings.CutPrefix(path[1:], k); fits && (rest == "" || rest[0] == '.' || rest[0] == '[') && len(k) > len(name) {
					name = k
				}
			}
			if name == "" {
				return nil, false, true
			}
			v, path = m[name], path[1+len(name):]
			continue
		}
		end := strings.IndexByte(path, ']')
		if path[0] != '[' || end < 0 {
			return nil, false, false
		}
		key, err := itemKey(path[1:end])
		if err != nil {
			return nil, false, false
		}
		path = path[end+1:]
		items, _ := v.(list)
		at := slices.IndexFunc(items, func(it any) bool {
			if value, isValue := key[""]; isValue {
				return text(it) == text(value)
			}
			return hasKey(it, key)
		})
		if at < 0 {
			return nil, false, true
		}
		v = items[at]
	}
	return v, true, true
}

var errKey = errors.New("no key of a list item")

// itemKey reads name="web",port=80 or ="x".
func itemKey(s string) (object, error) {
	out := object{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(part, "=")
		var v any
		if !ok || json.Unmarshal([]byte(value), &v) != nil {
			return nil, errKey
		}
		out[name] = v
	}
	return out, nil
}

// holds reports whether a wanted value is there: equal scalars, lists of the same
// length, and maps that have at least what is wanted. Go's zero values need not
// be there.
func holds(want, got any) bool {
	if isZero(want) && got == nil {
		return true
	}
	switch want := want.(type) {
	case object:
		g, _ := got.(object)
		for k, v := range want {
			if !holds(v, g[k]) {
				return false
			}
		}
		return g != nil
	case list:
		g, _ := got.(list)
		if len(g) != len(want) {
			return false
		}
		for i, v := range want {
			if !holds(v, g[i]) {
				return false
			}
		}
		return true
	}
	return sameScalar(want, got)
}

// sameScalar compares by value: the API server writes quantities and times its
// own way.
func sameScalar(want, got any) bool {
	if text(want) == text(got) {
		return true
	}
	a, aerr := resource.ParseQuantity(fmt.Sprint(want))
	b, berr := resource.ParseQuantity(fmt.Sprint(got))
	if aerr == nil && berr == nil {
		return a.Cmp(b) == 0
	}
	at, aerr := time.Parse(time.RFC3339Nano, fmt.Sprint(want))
	bt, berr := time.Parse(time.RFC3339Nano, fmt.Sprint(got))
	return aerr == nil && berr == nil && at.Equal(bt)
}
