package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// step shows one promise of Keelson.
type step struct {
	name   string
	always bool   // run despite --only, because other steps depend on it
	shows  string // the promise
	// run fails the step where the promise is broken. It returns a line about what it observed.
	run func(context.Context, *run) string
}

func allSteps() []step {
	return []step{
		{name: "kill", run: kill, shows: "a controller that is killed during the first convergence creates no object twice, and the next controller finishes"},
		{name: "converge", run: converge, always: true, shows: "fresh clusters get what git says, each with its own meta-config"},
		{name: "quiet", run: quiet, shows: "a converged fleet causes no request, not even after a commit that changes nothing"},
		{name: "push", run: push, shows: "a new version changes the fields that differ, and no others"},
		{name: "rollout", run: rollout, shows: "a new version goes from stage to stage, each after the bake of the one before"},
		{name: "rollout-stops", run: rolloutStops, shows: "a version that crashes in canary never reaches production, and is reverted"},
		{name: "freeze", run: freeze, shows: "a freeze stops a rollout, which goes on when the freeze is removed"},
		{name: "gates", run: blockers, shows: "windows, approvals, Jobs and metrics close production until they pass"},
		{name: "probe", run: blackBox, shows: "a black-box test passes a working image, and pauses a rollout of one that crashes"},
		{name: "partition", run: partition, shows: "a DaemonSet is updated in place, by as many pods as git says"},
		{name: "own-component", run: ownComponent, shows: "Keelson's own component rolls out as any other, and its pods stay"},
		{name: "drift", run: drift, shows: "what a person changes is set back"},
		{name: "autoscaler", run: autoscaler, shows: "replicas belong to a HorizontalPodAutoscaler while there is one"},
		{name: "selector", run: selector, shows: "a dangerous change is held until git approves it"},
		{name: "broken-template", run: blocked("broken-template"), shows: "a version that does not render"},
		{name: "endless-template", run: blocked("endless-template"), shows: "a template that never ends"},
		{name: "broken-values", run: blocked("broken-values"), shows: "a value that the chart's schema rejects"},
		{name: "unknown-key", run: blocked("unknown-key"), shows: "a misspelt key"},
		{name: "moved-tag", run: blocked("moved-tag"), shows: "a tag that moved"},
		{name: "missing-tag", run: blocked("missing-tag"), shows: "a version that was never published"},
		{name: "symlink", run: blocked("symlink"), shows: "a version with a symbolic link: each of these mistakes is reported where it is, and changes nothing"},
		{name: "dead-git", run: deadGit, shows: "without its git server, Keelson still sets drift back"},
		{name: "dead-cluster", run: deadCluster, shows: "a dead API server delays no other cluster"},
		{name: "quiet-again", run: quiet, shows: "after all of that the fleet is as quiet as before"},
	}
}

// do runs the step, prints its line, and reports whether the promise was kept.
func (s step) do(ctx context.Context, r *run) bool {
	started := time.Now()
	line, err := must.TryGet(func() string { return s.run(ctx, r) })
	verdict := "ok   "
	if err != nil {
		verdict, line = "FAIL ", err.Error()
	}
	fmt.Printf("%s %-16s %s (%s)\n", verdict, s.name, strings.ReplaceAll(line, "\n", "\n      "), time.Since(started).Round(100*time.Millisecond))
	return err == nil
}

const (
	// patience is the time limit for something that must happen. It is not a performance bound.
	patience = 3 * time.Minute
	// quietFor is how long a converged fleet is observed.
	quietFor = 60 * time.Second
)

// until waits for a condition, which fails as long as it does not hold.
func until(ctx context.Context, condition func(context.Context)) {
	must.Limits{Patience: patience, Every: 100 * time.Millisecond}.Until(ctx, condition)
}

// converged waits until every delivery is healthy and in sync with git.
func (r *run) converged(ctx context.Context) {
	until(ctx, func(ctx context.Context) {
		all := r.deliveries(ctx)
		for name, d := range all {
			if d.Sync != "Synced" || d.Health != "Healthy" {
				must.Failf("%s: %s", name, d)
			}
		}
		if want := r.wanted(ctx); len(all) != want {
			must.Failf("the hub shows %d deliveries of %d", len(all), want)
		}
		r.components = len(all)
	})
}

// wanted returns the number of deliveries that git asks for.
func (r *run) wanted(ctx context.Context) int {
	if r.components > 0 {
		return r.components
	}
	n := 0
	for _, c := range r.clusters {
		components := map[string]bool{}
		for _, u := range r.cli.render(ctx, c) {
			components[u.GetLabels()[componentLabel]] = true
		}
		n += len(components)
	}
	return n
}

// undo is what takes the change of a step back, in addition to its commits.
type undo struct {
	git      func(context.Context) // before the commit of the files as they were; may be nil
	clusters func(context.Context) // after it, so that the clusters follow; may be nil
}

// withChange runs a step that changes git, and takes the change back afterwards.
func (r *run) withChange(ctx context.Context, do func(*undo) string) string {
	before, u := r.repo.head(ctx), undo{}
	line, err := must.TryGet(func() string { return do(&u) })
	back := must.Try(func() {
		r.repo.restore(ctx, before)
		if u.git != nil {
			u.git(ctx)
		}
		r.repo.push(ctx, "take the last change back")
		if u.clusters != nil {
			u.clusters(ctx)
		}
	})
	must.Do(errors.Join(err, back))
	r.converged(ctx)
	return line
}
