package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// runKillController kills the controller at every point, one after the other. Each
// process finds the state that earlier processes left, and is killed too.
func runKillController(ctx context.Context, w *world, r *result) {
	m := w.newKillMatrix(r, 1, allPoints(controllerMoments()), w.Controller)
	r.did, r.must = fmt.Sprintf("SIGKILL of keelson controller at %d points, %d components each", len(m.points), m.seeds), m.must()
	m.rounds(ctx, (*round).controls)
}

// controls returns the steps of a round of keelson controller.
func (r *round) controls() []func(context.Context) {
	return []func(context.Context){
		r.publishWhole,
		func(ctx context.Context) { r.killEach(ctx, install) },
		func(ctx context.Context) { r.settle(ctx, install) },
		func(ctx context.Context) { r.check(ctx, install) },
		r.kubectlAll,
		func(ctx context.Context) { r.killEach(ctx, upgrade) },
		func(ctx context.Context) { r.settle(ctx, upgrade) },
		func(ctx context.Context) { r.check(ctx, upgrade) },
		func(ctx context.Context) { r.killEach(ctx, uninstall) },
		func(ctx context.Context) { r.settle(ctx, uninstall) },
		r.checkGone,
		r.cleanUp,
	}
}

// publishWhole commits the undisturbed components and the trials of later applies. killEach
// commits each trial of the apply install later.
func (r *round) publishWhole(ctx context.Context) {
	files := map[string]string{}
	for _, c := range r.whole {
		maps.Copy(files, c.files(c.old))
	}
	for _, t := range r.trials {
		if t.apply != install {
			maps.Copy(files, t.files(t.old))
		}
	}
	r.repo = r.repository(ctx, fmt.Sprintf("control-%02d", r.seed), files)
}

// kubectlAll creates objects as kubectl apply does, in every component. Then it commits
// the next version of all components except the trials of the apply upgrade.
func (r *round) kubectlAll(ctx context.Context) {
	done := slices.Collect(maps.Values(r.whole))
	for _, t := range r.trials {
		if t.apply != upgrade {
			done = append(done, &t.component)
		}
	}
	for _, c := range r.components() {
		r.kubectl(ctx, c)
	}
	r.next(ctx, done...)
}

// killEach commits one trial after the other, and kills the controller that delivers it.
func (r *round) killEach(ctx context.Context, k killedApply) {
	l := <-r.slots
	defer func() { r.slots <- l }()
	for _, t := range r.of(k) {
		r.turn(ctx, t)
		r.killed(t, l.kill(ctx, r.repo, t, controllerArgs("")...))
	}
}

// turn commits the change of a trial.
func (r *round) turn(ctx context.Context, t *trial) {
	switch t.apply {
	case install:
		r.push(ctx, r.repo, t.files(t.old))
	case upgrade:
		r.next(ctx, &t.component)
	default:
		t.allowAbsent(r.ledger, time.Now())
		r.push(ctx, r.repo, t.absentFiles())
	}
}

// settle lets an undisturbed controller finish the work, releases the late requests, and
// waits until everything is synced again.
func (r *round) settle(ctx context.Context, of killedApply) {
	k := r.start(launch{name: "settle", repo: r.repo, kubeconfig: r.direct()}, controllerArgs("")...)
	defer func() { _ = k.Kill() }()
	synced := func(ctx context.Context) { r.synced(ctx, of) }
	must.Wrap(func() { until(ctx, 2*time.Minute, synced) }, "the controller after the kills (its log: %s)", k.Log)
	r.releaseHeld(ctx)
	must.Wrap(func() { until(ctx, time.Minute, synced) }, "the controller after late requests (its log: %s)", k.Log)
	k.stop(ctx)
}

// synced fails unless every component of an apply is delivered and no record has an
// open intent.
func (r *round) synced(ctx context.Context, k killedApply) {
	statuses := must.Get(harness.Deliveries(ctx, r.client, ""))
	records := r.records(ctx)
	gone := map[string]bool{}
	for _, t := range r.trials {
		gone[t.component.name] = k == uninstall && t.apply == uninstall
	}
	for _, c := range r.components() {
		d, record := statuses[target+"."+c.name], records[c.name]
		switch {
		case gone[c.name] && (d.Sync != "Absent" || len(record.objects) > 0):
			must.Failf("%s is %s, and its record has %d objects: %s", c.name, d.Sync, len(record.objects), d.Message)
		case gone[c.name]:
		case d.Sync != "Synced" || d.Health != "Healthy":
			must.Failf("%s is %s and %s: %s", c.name, d.Sync, d.Health, d.Message)
		case len(record.open) > 0:
			must.Failf("the record of %s still intends %v", c.name, record.open)
		case k != install && !slices.Contains(record.objects, "ConfigMap COMPONENT/adopted"):
			must.Failf("%s is not at its next version", c.name)
		}
	}
}
