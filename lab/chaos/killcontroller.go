package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// runKillController kills the controller at every point, one after the other. Each
// process finds the state that earlier processes left, and is killed too.
func runKillController(ctx context.Context, w *world) (result, error) {
	m := &killMatrix{world: w, points: allPoints(controllerMoments()), seeds: w.Controller, lanes: make(chan *proxySlot, 1), tries: map[string]int{}}
	m.result = result{did: fmt.Sprintf("SIGKILL of keelson controller at %d points, %d components each", len(m.points), m.seeds), must: m.must()}
	l, err := w.newProxySlot(ctx, "controller")
	if err != nil {
		return m.result, err
	}
	defer l.close()
	m.lanes <- l
	return m.rounds(ctx, (*round).controls)
}

// controls returns the steps of a round of keelson controller.
func (r *round) controls() []func(context.Context) error {
	return []func(context.Context) error{
		r.publishWhole,
		func(ctx context.Context) error { return r.killEach(ctx, install) },
		func(ctx context.Context) error { return r.settle(ctx, install) },
		func(ctx context.Context) error { return r.check(ctx, install) },
		r.kubectlAll,
		func(ctx context.Context) error { return r.killEach(ctx, upgrade) },
		func(ctx context.Context) error { return r.settle(ctx, upgrade) },
		func(ctx context.Context) error { return r.check(ctx, upgrade) },
		func(ctx context.Context) error { return r.killEach(ctx, uninstall) },
		func(ctx context.Context) error { return r.settle(ctx, uninstall) },
		r.checkGone,
		r.cleanUp,
	}
}

// publishWhole commits the undisturbed components and the trials of later stages. killEach
// commits each trial of the stage install later.
func (r *round) publishWhole(ctx context.Context) (err error) {
	files := map[string]string{}
	for _, c := range r.whole {
		maps.Copy(files, c.files(c.old))
	}
	for _, t := range r.trials {
		if t.stage != install {
			maps.Copy(files, t.files(t.old))
		}
	}
	r.repo, err = r.repository(ctx, fmt.Sprintf("control-%02d", r.seed), files)
	return err
}

// kubectlAll creates objects as kubectl apply does, in every component. Then it commits
// the next version of all components except the trials of the stage upgrade.
func (r *round) kubectlAll(ctx context.Context) error {
	var done []*component
	for _, c := range r.whole {
		done = append(done, c)
	}
	for _, t := range r.trials {
		if t.stage != upgrade {
			done = append(done, &t.component)
		}
	}
	for _, c := range r.components() {
		if err := r.kubectl(ctx, c); err != nil {
			return err
		}
	}
	return r.next(ctx, done...)
}

// killEach commits one trial after the other, and kills the controller that delivers it.
func (r *round) killEach(ctx context.Context, s stage) error {
	l := <-r.lanes
	defer func() { r.lanes <- l }()
	for _, t := range r.trials {
		if t.stage != s {
			continue
		}
		if err := r.turn(ctx, t); err != nil {
			return err
		}
		if err := r.killed(t, l.kill(ctx, r.repo, t, controllerArgs("")...)); err != nil {
			return err
		}
	}
	return nil
}

// turn commits the change of a trial.
func (r *round) turn(ctx context.Context, t *trial) error {
	switch t.stage {
	case install:
		return r.push(ctx, r.repo, t.files(t.old))
	case upgrade:
		return r.next(ctx, &t.component)
	default:
		t.allowAbsent(r.ledger, time.Now())
		return r.push(ctx, r.repo, t.absentFiles())
	}
}

// settle lets an undisturbed controller finish the work, releases the late requests, and
// waits until everything is synced again.
func (r *round) settle(ctx context.Context, s stage) error {
	k, err := r.start(launch{name: "settle", repo: r.repo, kubeconfig: r.direct}, controllerArgs("")...)
	if err != nil {
		return err
	}
	defer func() { _ = k.kill() }()
	synced := func(ctx context.Context) error { return r.synced(ctx, s) }
	if err := until(ctx, 2*time.Minute, synced); err != nil {
		return fmt.Errorf("the controller after the kills: %w (its log: %s)", err, k.log)
	}
	if err := r.letThrough(ctx); err != nil {
		return err
	}
	if err := until(ctx, time.Minute, synced); err != nil {
		return fmt.Errorf("the controller after late requests: %w (its log: %s)", err, k.log)
	}
	return k.stop(ctx)
}

// synced returns nil if every component of a stage is delivered and no record has an
// open intent.
func (r *round) synced(ctx context.Context, s stage) error {
	statuses, err := r.deliveries(ctx)
	if err != nil {
		return err
	}
	records, err := r.inventories(ctx)
	if err != nil {
		return err
	}
	gone := map[string]bool{}
	for _, t := range r.trials {
		gone[t.component.name] = s == uninstall && t.stage == uninstall
	}
	for _, c := range r.components() {
		d, record := statuses[c.name], records[c.name]
		switch {
		case gone[c.name] && (d.sync != "Absent" || len(record.objects) > 0):
			return fmt.Errorf("%s is %s, and its record has %d objects: %s", c.name, d.sync, len(record.objects), d.message)
		case gone[c.name]:
		case d.sync != "Synced" || d.health != "Healthy":
			return fmt.Errorf("%s is %s and %s: %s", c.name, d.sync, d.health, d.message)
		case len(record.open) > 0:
			return fmt.Errorf("the record of %s still intends %v", c.name, record.open)
		case s != install && !slices.Contains(record.objects, "ConfigMap COMPONENT/adopted"):
			return fmt.Errorf("%s is not at its next version", c.name)
		}
	}
	return nil
}
