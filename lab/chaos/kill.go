package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/lab/chaos/proxy"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

// proxySlots is the number of processes that are killed concurrently, each with its own
// proxy.
const proxySlots = 2

// lateEvery: points whose request arrives late are tried only on every third seed.
// The refusal of a stale request does not depend on its content.
const lateEvery = 3

// minObjects is the minimum number of objects of an undisturbed component.
const minObjects = 4

// killMatrix is the state of the kill matrix.
type killMatrix struct {
	*world
	client dynamic.Interface // without a proxy
	slots  chan *proxySlot
	points []point
	first  []point // of a cluster's first apply, once each
	seeds  int
	result *result
	tries  map[string]int // number of kills, by point
}

// runKill kills keelson apply at every point, on the components of every seed.
func runKill(ctx context.Context, w *world, r *result) {
	m := w.newKillMatrix(r, proxySlots, allPoints(applyMoments()), w.Seeds)
	m.first = pointsOf(first, few, firstMoments())
	r.did = fmt.Sprintf("SIGKILL of keelson apply at %d points, %d components each, and %d of a cluster's first apply", len(m.points), m.seeds, len(m.first))
	r.must = m.must()
	m.begin(ctx)
	m.rounds(ctx, (*round).applies)
}

// newKillMatrix returns a matrix of points and seeds, of which as many processes are killed at a
// time as there are slots.
func (w *world) newKillMatrix(r *result, slots int, points []point, seeds int) *killMatrix {
	m := &killMatrix{world: w, client: w.dynamic(), result: r, points: points, seeds: seeds, slots: make(chan *proxySlot, slots), tries: map[string]int{}}
	for i := range slots {
		m.slots <- w.newProxySlot(fmt.Sprintf("slot-%d", i))
	}
	return m
}

// rounds carries out the steps for one seed after the other.
func (m *killMatrix) rounds(ctx context.Context, steps func(*round) []func(context.Context)) {
	for seed := range m.seeds {
		started := time.Now()
		for _, step := range steps(m.round(seed)) {
			step(ctx)
		}
		harness.Say("%s: seed %d of %d in %s, %d violations until now", m.name, seed+1, m.seeds, time.Since(started).Round(100*time.Millisecond), len(m.result.violations))
	}
	m.complete()
}

// must returns the minimum number of kills.
func (m *killMatrix) must() int {
	n := 0
	m.each(func(_ point, times int) { n += times })
	return n
}

// each calls do with each point and the number of kills that the point requires.
func (m *killMatrix) each(do func(p point, times int)) {
	for _, p := range m.first {
		do(p, 1)
	}
	for _, p := range m.points {
		times := m.seeds
		if p.when == late {
			times = m.seeds / lateEvery
		}
		do(p, times)
	}
}

// complete fails if a point was hit fewer times than required.
func (m *killMatrix) complete() {
	var missed []string
	m.each(func(p point, times int) {
		if n := m.tries[p.String()]; n < times {
			missed = append(missed, fmt.Sprintf("%s (%d of %d)", p, n, times))
		}
	})
	if len(missed) > 0 {
		must.Failf("points that were not hit: %s", missed)
	}
}

// trial is a kill at one point on one component.
type trial struct {
	point
	component
	started time.Time
	held    *heldRequest // the late request, until it is released
}

// round is the work of one seed. It has one component per point, and one undisturbed
// component of each kind, for comparison with the trials.
type round struct {
	*killMatrix
	seed   int
	prefix string // of the names of its components
	trials []*trial
	whole  map[extra]*component
	repo   string
}

// round makes the components of a seed.
func (m *killMatrix) round(seed int) *round {
	r := &round{killMatrix: m, seed: seed, prefix: fmt.Sprintf("k%02d", seed), whole: map[extra]*component{}}
	chance := m.rand.Uint64()
	secret := m.planted.plant("a Secret of the kill matrix")
	build := func(name string, with extra) component {
		c := buildComponent(name, componentInput{seed: chance, with: with, secret: secret})
		c.allow(m.ledger)
		return c
	}
	for i, p := range m.points {
		if p.when == late && (i+seed)%lateEvery != 0 {
			continue
		}
		r.trials = append(r.trials, &trial{point: p, component: build(p.component(seed, i), p.with)})
	}
	for _, with := range []extra{plain, withKind, withHook, few} {
		c := build(r.prefix+string(with), with)
		r.whole[with] = &c
	}
	return r
}

// applies returns the steps of a round of keelson apply.
func (r *round) applies() []func(context.Context) {
	return []func(context.Context){
		r.publish,
		func(ctx context.Context) { r.killAll(ctx, install) },
		r.recover,
		func(ctx context.Context) { r.check(ctx, install) },
		r.meanwhile,
		func(ctx context.Context) { r.killAll(ctx, upgrade) },
		r.recover,
		func(ctx context.Context) { r.check(ctx, upgrade) },
		r.leave,
		func(ctx context.Context) { r.killAll(ctx, uninstall) },
		r.recover,
		r.checkGone,
		r.cleanUp,
	}
}

func (r *round) components() []*component {
	all := slices.Collect(maps.Values(r.whole))
	for _, t := range r.trials {
		all = append(all, &t.component)
	}
	return all
}

func (r *round) publish(ctx context.Context) {
	files := map[string]string{}
	for _, c := range r.components() {
		maps.Copy(files, c.files(c.old))
	}
	r.repo = r.repository(ctx, fmt.Sprintf("kill-%02d", r.seed), files)
}

// meanwhile creates objects as kubectl apply does. Then it commits the next version of all
// components, which contains the same objects.
func (r *round) meanwhile(ctx context.Context) {
	for _, c := range r.components() {
		r.kubectl(ctx, c)
	}
	r.next(ctx, r.components()...)
}

// next commits the next version of components, and permits its deletions in the ledger.
func (r *round) next(ctx context.Context, components ...*component) {
	files := map[string]string{}
	for _, c := range components {
		maps.Copy(files, c.files(c.next))
		c.allowNext(r.ledger, time.Now())
	}
	r.push(ctx, r.repo, files)
}

// leave makes the components of the apply uninstall absent in git.
func (r *round) leave(ctx context.Context) {
	files := map[string]string{}
	for _, t := range r.of(uninstall) {
		maps.Copy(files, t.absentFiles())
		t.allowAbsent(r.ledger, time.Now())
	}
	r.push(ctx, r.repo, files)
}

// checkGone checks that no object and no record is left of the components of the apply
// uninstall, and that each other trial still has objects.
func (r *round) checkGone(ctx context.Context) {
	states := r.states(ctx, r.prefix)
	records := r.records(ctx)
	for _, t := range r.trials {
		name := t.component.name
		if t.apply != uninstall {
			if len(states[name]) == 0 {
				r.result.violate("seed %d, %s: all of %s is gone", r.seed, t.point, name)
			}
			continue
		}
		_, remembered := records[name]
		for key := range states[name] {
			r.result.violate("seed %d, %s (%s): %s is left", r.seed, t.point, name, key)
		}
		if remembered {
			r.result.violate("seed %d, %s (%s): its record is left", r.seed, t.point, name)
		}
		if len(states[name]) == 0 && !remembered {
			r.result.survived++
		}
	}
}

// kubectl creates an object as client-side kubectl apply does.
func (r *round) kubectl(ctx context.Context, c *component) {
	u := object(`apiVersion: v1
kind: ConfigMap
metadata: {name: adopted, annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}}
data: {key: by hand, old: x}`)
	configMaps := r.client.Resource(harness.Resource("v1/configmaps"))
	must.Get(configMaps.Namespace(c.name).Create(ctx, u, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"}))
}

// of returns the trials of an apply.
func (r *round) of(k killedApply) []*trial {
	return slices.DeleteFunc(slices.Clone(r.trials), func(t *trial) bool { return t.apply != k })
}

// killAll runs an apply for each trial of an apply and kills the apply at the trial's
// point.
func (r *round) killAll(ctx context.Context, k killedApply) {
	trials := r.of(k)
	errs := make([]error, len(trials))
	must.All(len(trials), func(i int) {
		l := <-r.slots
		defer func() { r.slots <- l }()
		errs[i] = l.kill(ctx, r.repo, trials[i], "apply", target, trials[i].component.name, "--yes", "--timeout", "30s")
	})
	for i, t := range trials {
		r.killed(t, errs[i])
	}
}

// killed counts a trial whose process was killed. It logs a process that never reached
// its point.
func (r *round) killed(t *trial, err error) {
	switch {
	case errors.Is(err, errNotHit):
		harness.Say("%s: %s was not hit: %v", r.name, t.point, err)
	case err != nil:
		must.Failf("%s: %w", t.point, err)
	default:
		r.tries[t.String()]++
		r.result.number++
	}
}

// recover lets a new process finish the work. Then it releases the late requests and
// runs one more process, because only a later run observes that deleted objects are
// gone.
func (r *round) recover(ctx context.Context) {
	r.apply(ctx, "recover")
	r.releaseHeld(ctx)
	r.apply(ctx, "look")
}

// releaseHeld releases the late requests.
func (r *round) releaseHeld(ctx context.Context) {
	now := time.Now()
	for _, t := range r.trials {
		if t.held != nil {
			must.Wrap(func() { t.held.release(ctx) }, "%s", t.point)
			t.held = nil
		}
		if !t.started.IsZero() {
			r.result.worst = max(r.result.worst, now.Sub(t.started))
			t.started = time.Time{}
		}
	}
}

func (r *round) apply(ctx context.Context, name string) {
	code, out := r.run(ctx, launch{name: name, repo: r.repo, kubeconfig: r.direct()}, "apply", target, "--yes", "--timeout", "60s")
	if code != 0 {
		r.result.violate("seed %d: the process after the kills (%s) ended with exit code %d:\n%s", r.seed, name, code, tail(out))
	}
}

// check compares each trial with the undisturbed component of its kind. It counts trials
// of the given apply without a difference as survived.
func (r *round) check(ctx context.Context, k killedApply) {
	states := r.states(ctx, r.prefix)
	records := r.records(ctx)
	for _, c := range r.whole {
		if n := len(states[c.name]); n < minObjects {
			must.Failf("the component %s, which was not killed, has %d objects: there is nothing to compare with", c.name, n)
		}
	}
	for _, t := range r.trials {
		want := states[r.whole[t.with].name]
		have := states[t.component.name]
		for _, key := range records[t.component.name].lasting {
			delete(have, key)
		}
		wrong := append(have.differences(want), records[t.component.name].whole(have)...)
		for _, line := range wrong {
			r.result.violate("seed %d, %s (%s): %s", r.seed, t.point, t.component.name, line)
		}
		if t.apply == k && len(wrong) == 0 {
			r.result.survived++
		}
	}
}

// cleanUp removes the components of the seed, outside the audit window.
func (r *round) cleanUp(ctx context.Context) {
	crds := r.client.Resource(harness.Resource("apiextensions.k8s.io/v1/customresourcedefinitions"))
	for _, c := range r.components() {
		for _, p := range c.next {
			if p.Resource == "customresourcedefinitions" {
				must.Do(crds.Delete(ctx, p.Name, metav1.DeleteOptions{}))
			}
		}
		must.Do(r.client.Resource(harness.Resource("v1/namespaces")).Delete(ctx, c.name, metav1.DeleteOptions{}))
		secrets := r.client.Resource(harness.Resource("v1/secrets")).Namespace(systemNS)
		if err := secrets.Delete(ctx, "record-"+c.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			must.Failf("remove the record of %s: %w", c.name, err)
		}
	}
}

func tail(text string) string {
	const enough = 3000
	return text[max(0, len(text)-enough):]
}

// proxySlot is a proxy through which one process at a time works and is killed.
type proxySlot struct {
	*world
	proxy      *proxy.Proxy
	kubeconfig string
}

func (w *world) newProxySlot(name string) *proxySlot {
	p, kubeconfig := w.proxied(name, proxy.Options{})
	return &proxySlot{world: w, proxy: p, kubeconfig: kubeconfig}
}

// errNotHit is returned for a process that ended before it reached its point.
var errNotHit = errors.New("the point was never reached")

// killTrap kills a process at the request of a point.
type killTrap struct {
	trial *trial

	mu    sync.Mutex
	seen  int
	shut  bool
	ready chan struct{} // closed when kill is set
	kill  func() error
	err   error // returned by kill
}

// heldRequest is a request that the proxy holds until another process has done the work.
type heldRequest struct {
	forward func() // forwards the request, unless that has happened
	done    chan struct{}
}

// release forwards the request, and returns when the API server has answered it.
func (h *heldRequest) release(ctx context.Context) {
	h.forward()
	ctx, cancel := context.WithTimeout(ctx, hungAfter)
	defer cancel()
	select {
	case <-h.done:
	case <-ctx.Done():
		must.Failf("a request that was let through late was not answered: %w", ctx.Err())
	}
}

// verdict returns what happens to the request at which strike kills the process. A late
// request is held.
func (w when) verdict(strike func()) (proxy.Verdict, *heldRequest) {
	switch w {
	case before:
		go strike()
		return proxy.Verdict{Fault: proxy.Hang}, nil
	case late:
		// Kill in the Before hook: by then the proxy has read the whole request.
		let, done := make(chan struct{}), make(chan struct{})
		return proxy.Verdict{Fault: proxy.DropAnswer, Before: func() { strike(); <-let }, Answered: func() { close(done) }},
			&heldRequest{forward: sync.OnceFunc(func() { close(let) }), done: done}
	default:
		return proxy.Verdict{Fault: proxy.DropAnswer, Answered: strike}, nil
	}
}

// kill starts keelson ARGS and kills it at the trial's point.
func (l *proxySlot) kill(ctx context.Context, repo string, t *trial, args ...string) error {
	tr := &killTrap{trial: t, ready: make(chan struct{})}
	l.proxy.Use(tr.decide)
	k := l.start(launch{name: t.component.name, repo: repo, kubeconfig: l.kubeconfig}, args...)
	tr.kill = k.Kill
	close(tr.ready)
	code, err := k.wait(ctx)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch {
	case tr.err != nil:
		return tr.err
	case !tr.shut:
		return fmt.Errorf("%w: exit code %d (%v), its log: %s", errNotHit, code, err, k.Log) //nolint:errorlint // it may be nil
	case err == nil:
		return fmt.Errorf("the process ended with exit code %d though it was killed", code)
	case !errors.Is(err, process.ErrSignaled):
		return err
	}
	t.started = time.Now()
	return nil
}

// decide kills the process at the request of the point.
func (tr *killTrap) decide(r proxy.Request) proxy.Verdict {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.shut {
		return proxy.Verdict{Fault: proxy.Hang} // until the process has ended
	}
	if !tr.trial.match(&tr.trial.component, r) {
		return proxy.Verdict{}
	}
	if tr.seen++; tr.seen != tr.trial.nth {
		return proxy.Verdict{}
	}
	tr.shut = true
	v, held := tr.trial.when.verdict(tr.strike)
	tr.trial.held = held
	return v
}

// strike kills the process.
func (tr *killTrap) strike() {
	<-tr.ready
	err := tr.kill()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.err = err
}
