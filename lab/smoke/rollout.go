package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// Versions of the ferry. Version bad crashes on the canary cluster only.
const (
	good, bad = "v1.1.0", "v1.2.0"
	last      = "v1.3.0"
)

// rollout rolls a version out to all clusters, one stage after the other.
func rollout(ctx context.Context, r *run) string {
	from := r.marks()
	r.ferry.rollOut(ctx, good, "")
	r.ferry.at(ctx, good, r.clusters...)
	var before audit.Event
	for i, c := range r.clusters {
		writes := r.ferry.writes(c, from)
		if len(writes) != 1 {
			must.Failf("%s: %d writes of one change: %v", c, len(writes), writes)
		}
		if gap := writes[0].Received.Sub(before.Time); i > 0 && gap < 2*time.Second {
			must.Failf("%s got it %s after the cluster before it, which bakes for 2s", c, gap)
		}
		before = writes[0]
	}
	r.ferry.status(ctx, "Complete", "")
	return "each cluster got it when the one before had baked, by the audit logs\n" + r.cli.run(ctx, 0, "rollout", "show", ferryName)
}

// rolloutStops rolls out a version that crashes in canary, and reverts it.
func rolloutStops(ctx context.Context, r *run) string {
	from := r.marks()
	r.ferry.rollOut(ctx, bad, "{{ .Values.suffix }}")
	because := r.ferry.status(ctx, "Paused", canary)
	waits := r.ferry.explained(ctx, production)
	must.Sleep(ctx, 3*time.Second)
	r.ferry.runVersion(ctx, good)
	r.ferry.at(ctx, good, r.clusters...)
	r.converged(ctx)
	r.ferry.untouched(from, "by a version that crashes before it")
	return fmt.Sprintf("%s\n%s\nproduction never saw it, by its audit log; the revert brought the others back", because, waits)
}

// freeze freezes production. After the Freeze is removed, the rollout continues.
func freeze(ctx context.Context, r *run) string {
	const (
		file   = "freezes/smoke.yaml"
		reason = "the smoke sells something today"
	)
	r.repo.write(file, apiVersion+"kind: Freeze\nclusterSelector: {matchLabels: {stage: production}}\ncomponents: [ferry]\nreason: "+reason+"\n")
	from := r.marks()
	r.ferry.rollOut(ctx, last, "")
	r.ferry.at(ctx, last, testing, canary)
	waits := ""
	until(ctx, func(ctx context.Context) {
		if waits = r.ferry.explained(ctx, production); !strings.Contains(waits, reason) {
			must.Failf("it does not say why: %s", waits)
		}
	})
	must.Sleep(ctx, 5*time.Second)
	r.ferry.untouched(from, "in a freeze")
	r.repo.remove(file)
	r.repo.push(ctx, "lift the freeze")
	r.ferry.at(ctx, last, production)
	return waits + "\nlifted, it went on"
}
