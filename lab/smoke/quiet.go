package main

import (
	"context"
	"fmt"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// quiet observes a converged fleet while commits without effect are pushed. Each commit makes
// Keelson check every delivery again.
func quiet(ctx context.Context, r *run) string {
	r.converged(ctx)
	// Wait until the last change causes no more requests (status, events).
	must.Sleep(ctx, 5*time.Second)
	from := r.marks()
	before := must.Get(r.controller.Usage())
	const passes = 2
	for i := range passes {
		r.repo.push(ctx, fmt.Sprintf("nothing changes (%d)", i+1))
		must.Sleep(ctx, quietFor/passes)
	}
	watches := onlyWatches(r, from)
	after := must.Get(r.controller.Usage())
	return fmt.Sprintf("%d passes in %s: 0 writes, 0 reads, %d renewed watches on %d API servers\nthe controller used %s of CPU; %s",
		passes, quietFor, watches, len(r.all()), (after.CPU - before.CPU).Round(10*time.Millisecond), memory(ctx, r, after.RSS))
}

// onlyWatches counts the watches that Keelson started since the marks, and fails on any other
// request of Keelson.
func onlyWatches(r *run, from marks) (watches int) {
	for _, c := range r.all() {
		for _, e := range r.since(c, from) {
			if !e.Watch() {
				must.Failf("%s: %s", c, e)
			}
			watches++
		}
	}
	return watches
}

// memory describes the resident memory of the controller and of the clusters.
func memory(ctx context.Context, r *run, ours int64) string {
	all := must.Get(r.lab.Status(ctx, 0))
	var clusters int64
	for _, c := range all {
		clusters += c.RSSBytes
	}
	const mb = 1 << 20
	return fmt.Sprintf("it holds %d MB, the hub and %d clusters %d MB", ours/mb, len(all)-1, clusters/mb)
}
