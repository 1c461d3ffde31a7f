package main

import (
	"context"
	"fmt"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// maxStep is the highest number of the write at which a process is stopped. The number is
// random.
const maxStep = 25

// moreAfter is the time without a strike after which another commit follows. By then a
// process has made its writes for the last commit.
const moreAfter = 10 * time.Second

// runWriters stops the process that has the cluster in the middle of an apply. The other
// process takes over after the Lease has expired. Then the first process is resumed.
func runWriters(ctx context.Context, w *world, r *result) {
	r.did, r.must = "controllers stopped past their Lease, then resumed", w.Rounds
	g := w.newFixtureFleet(ctx, "writer", 8, fixtureTemplate, target)
	d := &writerPair{controllerSet: controllerSet{fixtureFleet: g}}
	d.rounds(ctx, r, 2, func(ctx context.Context) time.Duration { return d.round(ctx, r.number%2 == 0) })
	if len(r.violations) > 0 {
		return
	}
	verdict, _ := d.judge(r)
	r.notes = append(r.notes, fmt.Sprintf("%d components taken over from a process that then went on; %d of its writes were held back on their way and sent afterwards; %d writes of deposed processes refused by the API server, %d accepted",
		verdict.takeOvers, d.held, verdict.refused, len(verdict.violations)))
}

// writerPair is a controllerSet of two processes that compete for the same cluster.
type writerPair struct {
	controllerSet
	held int // number of writes that the proxy held during a takeover
}

// round carries out one takeover. With hold, the proxy holds the write at which the
// process is stopped until the other process has taken over. round returns the time from
// the strike until the fleet matched git again.
func (d *writerPair) round(ctx context.Context, hold bool) time.Duration {
	holders := d.settled(ctx)
	has := holders[target]
	t := &writeTrap{left: 1 + d.rand.IntN(maxStep), strike: has.freeze, hold: hold}
	_, took := d.strikeAndRecover(ctx, strike{
		victim: has, clusters: []string{target}, trap: t,
		struck: func(ctx context.Context) {
			d.sprung(ctx, t, has)
			if hold {
				d.held++
			}
		},
		end: func(ctx context.Context) { d.resumeAndReplace(ctx, has) },
	})
	return took
}

// sprung waits until a trap has struck. A commit may change too little to cause the
// write at which the trap strikes. So sprung commits again every [moreAfter].
func (d *writerPair) sprung(ctx context.Context, t *writeTrap, wr *writer) {
	ctx, cancel := context.WithTimeoutCause(ctx, recovery,
		fmt.Errorf("%s made too few writes to be stopped at one (its log: %s)", wr.agent, wr.Log))
	defer cancel()
	more := time.NewTicker(moreAfter)
	defer more.Stop()
	for {
		select {
		case <-t.sprung:
			must.Do(t.err)
			return
		case <-more.C:
			d.changeGit(ctx, d.rand, 2*len(d.components))
		case <-ctx.Done():
			must.Do(context.Cause(ctx))
		}
	}
}
