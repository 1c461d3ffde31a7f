package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/chaos/webhook"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// disaster is a failure of the systems around Keelson.
type disaster struct {
	name string
	// begin starts the disaster, and returns the function that ends it.
	begin func(context.Context) (end func(context.Context))
	// says are texts that the status message of one component must contain during
	// the disaster. Empty: the fleet must converge in spite of the disaster.
	says []string
	// later: nothing is checked until the disaster has ended.
	later bool
}

// disasterFleet is a fixture fleet with a controller and the means of disasters.
type disasterFleet struct {
	*fixtureFleet
	controller *keelson
	kubeconfig string
	hook       *webhook.Server
	snapshot   string // a copy of etcd's folder, made earlier
	result     *result
}

// runDisasters strikes the cluster with one disaster after another while git
// and the cluster change.
func runDisasters(ctx context.Context, w *world, r *result) {
	g := w.newFixtureFleet(ctx, "outage", 8, fixtureTemplate, target)
	s := &disasterFleet{fixtureFleet: g, result: r, kubeconfig: w.directNamed(), hook: webhook.New()}
	defer s.hook.Close()
	r.did, r.must = "outages, restores, broken APIs, webhooks, finalizers, namespaces", len(s.disasters())
	s.all(ctx)
}

// all starts the controller, and strikes with all disasters until one is not survived.
func (s *disasterFleet) all(ctx context.Context) {
	s.restart(ctx)
	must.Wrap(func() { s.converged(ctx, hungAfter) }, "before any disaster (its log: %s)", s.controller.Log)
	for _, d := range s.disasters() {
		s.result.number++
		started := time.Now()
		if err := must.Try(func() { s.strike(ctx, d) }); err != nil {
			must.Do(ctx.Err())
			s.result.violate("%s: %v (its log: %s)", d.name, err, s.controller.Log)
			return
		}
		harness.Say("%s: %s: survived, %s in all", s.name, d.name, time.Since(started).Round(10*time.Millisecond))
	}
	s.controller.stop(ctx)
}

// restart kills the controller, if one runs, and starts a new controller, which must
// read the state of the cluster again.
func (s *disasterFleet) restart(ctx context.Context) {
	if s.controller != nil {
		must.Do(s.controller.Kill())
	}
	must.Do(ctx.Err())
	s.controller = s.start(launch{name: "controller", repo: s.repo, kubeconfig: s.kubeconfig}, controllerArgs("")...)
}

// strike begins a disaster, changes the fleet, checks Keelson's statuses, ends the
// disaster, and waits until the fleet has converged.
func (s *disasterFleet) strike(ctx context.Context, d disaster) {
	var end func(context.Context)
	must.Wrap(func() { end = d.begin(ctx) }, "begin")
	during := must.Try(func() { s.during(ctx, d) })
	if err := must.Try(func() { end(context.WithoutCancel(ctx)) }); err != nil {
		must.Failf("end: %w", errors.Join(during, err))
	}
	took, err := must.TryGet(func() time.Duration { return s.converged(ctx, recovery) })
	if err != nil {
		must.Failf("not recovered: %w", errors.Join(during, err))
	}
	must.Do(during)
	s.result.recovered(took)
}

func (s *disasterFleet) during(ctx context.Context, d disaster) {
	if d.later {
		return
	}
	s.changeGit(ctx, s.rand, len(s.components))
	if len(d.says) == 0 {
		must.Wrap(func() { s.converged(ctx, recovery) }, "it should not matter")
		return
	}
	must.Wrap(func() {
		until(ctx, recovery, func(ctx context.Context) { s.statusSays(ctx, d.says) })
	}, "the status must name the cause")
}

// statusSays fails unless the message of a Delivery that is not Synced contains all texts.
func (s *disasterFleet) statusSays(ctx context.Context, texts []string) {
	var others []string
	for name, d := range s.statuses(ctx) {
		if d.Sync == "Synced" {
			continue
		}
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(d.Message, text) }) {
			return
		}
		others = append(others, name+": "+d.String())
	}
	must.Failf("no delivery says %q; those that are not synced say %q", texts, others)
}
