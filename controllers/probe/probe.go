// Package probe runs black-box tests on clusters. It creates, upgrades, scales and deletes objects
// as a user would. It waits after each step until the cluster has carried it out, and stores the
// result in the hub.
//
// The objects of a run have fixed names and marks. The next run finds leftovers by them, however
// the run ended. It touches no object without its marks.
package probe

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// retry is the wait after a failure of the hub, or of a cluster that does not remove leftovers.
const retry = 30 * time.Second

// Options are the settings of a [Prober]. All but Asked are required.
type Options struct {
	Cluster string
	Store   *Store
	Metrics *Metrics
	Log     *slog.Logger
	Now     func() time.Time
	// Chance returns a random number from 0 to 1. It spreads the runs of clusters.
	Chance func() float64
	// Asked returns since when a check waits for runs of a probe; zero: no check does.
	Asked func(f *registry.Fleet, c *registry.Cluster, probe string) time.Time
}

// Prober runs the probes of one cluster, one run at a time.
type Prober struct {
	Options
	soon chan struct{}

	mu      sync.Mutex
	fleet   *registry.Fleet // nil: nothing was read yet
	cluster *registry.Cluster
}

// New prepares a prober.
func New(o Options) *Prober {
	return &Prober{Options: o, soon: make(chan struct{}, 1)}
}

// Update sets the state of git. It returns at once.
func (p *Prober) Update(f *registry.Fleet, c *registry.Cluster) {
	p.mu.Lock()
	p.fleet, p.cluster = f, c
	p.mu.Unlock()
	p.Look()
}

// Look schedules a check whether a run is due. It returns at once.
func (p *Prober) Look() {
	select {
	case p.soon <- struct{}{}:
	default:
	}
}

// kept is the state of one probe.
type kept struct {
	is, shown v1alpha1.ProbeResultStatus // shown is the result in the hub
	wrote     time.Time
	next      time.Time // when the next run is, if no check asks for one
	swept     bool      // leftovers of an earlier process are gone
}

// Run works until the context ends. A run that is interrupted has no result.
func (p *Prober) Run(ctx context.Context, c Cluster) {
	w := &worker{Prober: p, on: c}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.soon:
		case <-timer.C:
		}
		next := w.pass(ctx)
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(next.Sub(p.Now()), 0))
		}
	}
}

// worker is a running [Prober].
type worker struct {
	*Prober
	on    Cluster
	known map[string]*kept // by probe; nil: not read yet
}

// pass does what is due, and returns when to call it again; zero: after a change.
func (w *worker) pass(ctx context.Context) (next time.Time) {
	w.mu.Lock()
	f, c := w.fleet, w.cluster
	w.mu.Unlock()
	if f == nil || c.Spec.Paused {
		return time.Time{}
	}
	probes, sure := f.Probed(c)
	if !sure {
		return time.Time{} // Update is called once git can be read
	}
	if err := w.recall(ctx, f); err != nil {
		w.failed(ctx, "the results of probes can't be read", "", err)
		return w.Now().Add(retry)
	}
	sooner := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for name, k := range w.known {
		if !slices.ContainsFunc(probes, func(p *registry.Probe) bool { return p.Name == name }) {
			sooner(w.remove(ctx, f, name, k))
		}
	}
	for _, p := range probes {
		if len(p.Problems) == 0 && ctx.Err() == nil {
			sooner(w.probe(ctx, work{f, c, p}))
		}
	}
	return next
}

// recall reads the results in the hub, once.
func (w *worker) recall(ctx context.Context, f *registry.Fleet) error {
	if w.known != nil {
		return nil
	}
	shown, err := w.Store.Of(ctx, f, w.Cluster)
	if err != nil {
		return err
	}
	w.known = map[string]*kept{}
	for name, s := range shown {
		s.Cluster, s.Probe = w.Cluster, name
		w.known[name] = &kept{is: s, shown: s}
	}
	return nil
}

// remove deletes the leftovers and the result of a probe that git no longer wants here.
func (w *worker) remove(ctx context.Context, f *registry.Fleet, name string, k *kept) (again time.Time) {
	r := runner{Cluster: w.on, probe: name, fleet: f.Spec.Name, timeout: retry, now: w.Now}
	err := r.sweep(ctx, k.is.Objects)
	if err == nil {
		err = w.Store.Delete(ctx, w.Cluster, name)
	}
	if err != nil {
		w.failed(ctx, "the objects of a probe can't be removed; trying again", name, err)
		return w.Now().Add(retry)
	}
	delete(w.known, name)
	w.Metrics.removed(w.Cluster, name)
	w.Log.Info("a probe does not run here any more; nothing of it is left", "probe", name)
	return time.Time{}
}

// work is a probe on a cluster, at a revision.
type work struct {
	fleet   *registry.Fleet
	cluster *registry.Cluster
	probe   *registry.Probe
}

// probe runs a probe if it is due, stores news, and returns when to call it again.
func (w *worker) probe(ctx context.Context, of work) (again time.Time) {
	p := of.probe
	k := w.known[p.Name]
	if k == nil {
		k = &kept{is: v1alpha1.ProbeResultStatus{Cluster: w.Cluster, Probe: p.Name}}
		w.known[p.Name] = k
	}
	if k.next.IsZero() { // the first time in this process
		k.next = w.Now().Add(time.Duration(w.Chance() * float64(p.Interval)))
		w.Metrics.recalled(&k.is)
	}
	r := runner{Cluster: w.on, probe: p.Name, fleet: of.fleet.Spec.Name, timeout: p.Timeout, now: w.Now, took: w.Metrics.took}
	if !k.swept {
		if err := r.sweep(ctx, k.is.Objects); err != nil {
			w.failed(ctx, "the objects of an earlier run can't be removed; trying again", p.Name, err)
			return w.Now().Add(retry)
		}
		k.swept = true
	}
	asked := w.requestedAt(of)
	if at := due(k.is, p.Hash, k.next, asked); w.Now().Before(at) {
		return w.show(ctx, of, k, at)
	}
	if err := w.run(ctx, of, k, &r); err != nil {
		w.failed(ctx, "a probe can't run; trying again", p.Name, err)
		return w.Now().Add(retry)
	}
	return w.show(ctx, of, k, due(k.is, p.Hash, k.next, w.requestedAt(of)))
}

func (w *worker) requestedAt(of work) time.Time {
	if w.Asked == nil {
		return time.Time{}
	}
	return w.Asked(of.fleet, of.cluster, of.probe.Name)
}

// run runs a probe once. The error means that it could not begin, or was interrupted.
func (w *worker) run(ctx context.Context, of work, k *kept, r *runner) error {
	subjects := Subjects(of.probe, of.fleet.Spec.Name, of.cluster)
	if err := w.intend(ctx, of, k, r, subjects); err != nil {
		return err
	}
	begun := w.Now()
	failed, err := r.run(ctx, subjects)
	if err != nil {
		return err
	}
	was := k.is.Outcome
	k.is = recorded(k.is, of.probe.Hash, begun, w.Now(), failed)
	k.next = begun.Add(time.Duration(float64(of.probe.Interval) * (0.9 + 0.2*w.Chance())))
	w.Metrics.ran(&k.is)
	switch {
	case k.is.Outcome == v1alpha1.ProbeFailed && was != k.is.Outcome:
		w.Log.Warn("a probe fails", "probe", of.probe.Name, "error", k.is.Message)
	case was != "" && was != k.is.Outcome:
		w.Log.Info("a probe passes again", "probe", of.probe.Name)
	}
	return nil
}

// intend stores in the hub what may be left behind, before anything is created.
func (w *worker) intend(ctx context.Context, of work, k *kept, r *runner, subjects []Subject) error {
	wanted := objectsOf(subjects)
	if slices.Equal(k.shown.Objects, wanted) {
		return nil
	}
	gone := slices.DeleteFunc(slices.Clone(k.is.Objects), func(o v1alpha1.ProbeObject) bool { return slices.Contains(wanted, o) })
	if err := r.sweep(ctx, gone); err != nil { // of the former version of the probe
		return err
	}
	k.is.Objects = wanted
	return w.write(ctx, of, k)
}

// show stores a result with news, and returns when to call it again.
func (w *worker) show(ctx context.Context, of work, k *kept, at time.Time) time.Time {
	if ctx.Err() != nil || !needsWrite(k.shown, k.is, !w.requestedAt(of).IsZero(), w.Now().Sub(k.wrote)) {
		return at
	}
	if err := w.write(ctx, of, k); err != nil {
		w.failed(ctx, "the result of a probe can't be written; trying again", of.probe.Name, err)
		if again := w.Now().Add(retry); again.Before(at) {
			return again
		}
	}
	return at
}

func (w *worker) write(ctx context.Context, of work, k *kept) error {
	if equality.Semantic.DeepEqual(k.shown, k.is) {
		return nil
	}
	if err := w.Store.Write(ctx, of.fleet, k.is); err != nil {
		return err
	}
	k.shown, k.wrote = k.is, w.Now()
	return nil
}

func (w *worker) failed(ctx context.Context, what, probe string, err error) {
	if ctx.Err() == nil {
		w.Log.Warn(what, "probe", probe, "error", err)
	}
}
