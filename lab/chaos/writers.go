package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// maxStep is how many writes of an apply a process may make before it is
// stopped; chance draws fewer.
const maxStep = 25

// runWriters stops the process that has the cluster in the middle of applies, past
// its Lease, lets the other one take over, and then lets the first go on.
func runWriters(ctx context.Context, w *world) (result, error) {
	r := result{did: "controllers stopped past their Lease, then let go on", must: w.Rounds}
	g, err := w.newGarden(ctx, "writer", 8)
	if err != nil {
		return r, err
	}
	d := &duel{crew: crew{garden: g}}
	for range 2 {
		if err := d.enlist(ctx); err != nil {
			return r, err
		}
	}
	defer d.dismiss()
	if _, err := g.converged(ctx, 2*time.Minute); err != nil {
		return r, fmt.Errorf("before any round: %w", err)
	}
	for r.number < w.Rounds {
		took, err := d.round(ctx, r.number%2 == 0)
		r.number++
		switch {
		case ctx.Err() != nil:
			return r, ctx.Err()
		case err != nil:
			r.violate("round %d: %v", r.number, err)
			return r, nil
		}
		r.recovered(took)
		if r.number%10 == 0 {
			say("%s: %d rounds, worst take-over %s, %d writes held back and then let go", w.name, r.number, r.worst.Round(10*time.Millisecond), d.held)
		}
	}
	events, err := w.since(0)
	if err != nil {
		return r, err
	}
	verdict := takeOvers(events, g.plots)
	verdict.unlisted(events, g.plots)
	r.violations = append(r.violations, verdict.violations...)
	if verdict.takeOvers < w.Rounds {
		r.violate("the audit log shows %d components taken over in %d rounds: nothing was tested", verdict.takeOvers, w.Rounds)
	}
	r.notes = append(r.notes, fmt.Sprintf("%d components taken over from a process that then went on; %d of its writes were held back on their way and let go afterwards; %d writes of deposed processes refused by the API server, %d accepted",
		verdict.takeOvers, d.held, verdict.refused, len(verdict.violations)))
	return r, nil
}

// duel is two processes that want the same cluster.
type duel struct {
	crew
	held int // writes that were on their way during a take-over
}

// round is one take-over. With hold the write at which the process is stopped
// stays on its way until the other has taken over. It returns how long the fleet
// was without what git says.
func (d *duel) round(ctx context.Context, hold bool) (time.Duration, error) {
	holders, err := d.settled(ctx)
	if err != nil {
		return 0, err
	}
	has := holders[target]
	t := &snare{left: 1 + d.rand.IntN(maxStep), strike: has.freeze, hold: hold}
	let := has.set(t)
	defer let()
	if err := d.grow(ctx, rand.New(rand.NewPCG(d.rand.Uint64(), 0)), 2*len(d.plots)); err != nil { //nolint:gosec // chance to be repeated
		return 0, err
	}
	if err := sprung(ctx, t, has); err != nil {
		return 0, err
	}
	stopped := time.Now()
	if hold {
		d.held++
	}
	// The other takes the cluster, finishes, and then the first goes on.
	err = until(ctx, recovery, func(ctx context.Context) error {
		if err := d.tend(ctx, has); err != nil {
			return err
		}
		if now, err := d.holders(ctx); err != nil || now[target] == nil || now[target] == has {
			return errors.Join(err, errors.New("nobody took the cluster"))
		}
		return errors.Join(d.asGitSays(ctx), d.synced(ctx))
	})
	if err != nil {
		return 0, fmt.Errorf("nobody finished what %s had begun: %w (its log: %s)", has.agent, err, has.log)
	}
	took := time.Since(stopped)
	let()
	if err := has.thaw(); err != nil {
		return 0, err
	}
	if err := d.replace(ctx, has); err != nil {
		return 0, err
	}
	_, err = d.converged(ctx, recovery)
	return took, err
}

func sprung(ctx context.Context, t *snare, wr *writer) error {
	timer := time.NewTimer(recovery)
	defer timer.Stop()
	select {
	case <-t.sprung:
		return t.err
	case <-timer.C:
		return fmt.Errorf("%s made too few writes to be stopped at one (its log: %s)", wr.agent, wr.log)
	case <-ctx.Done():
		return ctx.Err()
	}
}
