package applier_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// batch is one component with objects of one kind, each with a history of its own.
type batch struct {
	*oracle
	shape                shape
	component, namespace string
	seed                 uint64

	cluster *applier.Cluster
	policy  applier.Desired
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

func (b *batch) restart() bool {
	b.t.Helper()
	c, err := applier.New(applier.Options{Name: "test", Config: b.config, Shared: b.shared, Reader: b.reader, Progress: b.progress})
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
	rules, err := differ.NewRules(differ.Scopes{Component: b.drawRules()})
	if !b.check(err) {
		return
	}
	r := roll(b.seed, "policy")
	b.reader = &oracleReader{dynamic: b.dynamic, scaled: map[differ.ID]differ.Scaling{}}
	b.policy = applier.Desired{
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
		b.each(func(s *subject) { b.otherClient(s, round) })
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
func (b *batch) want(version int) applier.Desired {
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
		foreseen[c.ID] = c.Op == differ.OpUpdate && c.DryRunBody != nil
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

// otherClient scales, applies or patches the object, as a person or a controller would.
func (b *batch) otherClient(s *subject, round int) {
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

// round changes the objects in git, applies them, and checks the result.
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
	fmt.Fprintf(&w, "op %s, state %s %s %s, record stale %v, owners unread %v", c.Op, c.State, c.Rule, c.Because, c.RecordStale, c.Unread.Owners)
	for _, f := range c.Fields {
		fmt.Fprintf(&w, "\n  %s %s: recorded %v, target %v, live %v (%s %s)", f.Action, f.Path, text(f.Recorded), text(f.Target), text(f.Live), f.Rule, f.Because)
	}
	return w.String()
}
