package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// scenario is one kind of test. It runs in its own world.
type scenario struct {
	name string
	why  string // the promise that the scenario tries to break
	// cluster are the options of the world's cluster. The zero Change gives a cluster
	// with all components.
	cluster cluster.Change
	// run fills in the result. It fails if the scenario could not be carried out.
	run func(context.Context, *world, *result)
	// alone: the scenario judges its audit log itself, because Keelson doesn't write
	// objects of components there.
	alone bool
	// exclusive: the scenario measures Keelson's time or memory, so no other scenario
	// runs at the same time.
	exclusive bool
}

// allScenarios returns the table of scenarios. Each scenario has a file of its own.
func allScenarios() []scenario {
	return []scenario{
		{name: "kill", why: "a process that is killed at any step loses and doubles nothing", run: runKill},
		{name: "kill-controller", why: "neither does the controller, with all its components in flight", run: runKillController},
		{name: "prune", why: "not knowing is never absence: a broken render or read deletes nothing", run: runPrune},
		{name: "deletions", why: "nothing that is held or denied is deleted without its approval, in whatever way git ends it", run: runDeletions},
		{name: "faults", why: "requests that fail, in any way, lose and double nothing", run: runFaults},
		{name: "disasters", why: "what breaks around Keelson is named, and over when its cause is", run: runDisasters},
		{name: "writers", why: "of two processes only the one that took over last can write", run: runWriters, exclusive: true},
		{name: "shard", why: "what a replica had is soon another's, and never two's", run: runShard, exclusive: true},
		{
			name: "contended", why: "what others write is neither lost nor reverted",
			cluster: cluster.Change{ControlPlaneOnly: new(true)}, run: runContended,
		},
		{
			name: "flood", why: "whoever can reach the port of webhooks can only have git fetched",
			cluster: cluster.Change{ControlPlaneOnly: new(true)}, run: runFlood, exclusive: true,
		},
		{name: "rollouts", why: "a controller that is killed at any transition skips no stage and opens no gate", cluster: cluster.Change{ControlPlaneOnly: new(true)}, run: runRollouts},
		{name: "workloads", why: "a controller of pods that is killed at any moment takes none out of service that is needed, and comes to an end", run: runWorkloads, alone: true},
		{name: "secrets", why: "secrets stay where they were put", run: runSecrets},
	}
}

// result is the result of a scenario. A scenario that could not be carried out is a failure,
// too, with the result so far.
type result struct {
	did  string // the tested action: "SIGKILL at a point of an apply"
	must int    // minimum of number
	// number counts the actions, survived the actions that Keelson survived.
	number, survived int
	// violations are texts of one or more lines. The oracle's findings in the audit log
	// are added.
	violations []string
	// worst is the longest recovery after the end of a fault.
	worst time.Duration
	notes []string // figures to print, one line each
}

// violate adds a violation.
func (r *result) violate(format string, args ...any) {
	r.violations = append(r.violations, fmt.Sprintf(format, args...))
}

// recovered counts a survived action and the duration of its recovery.
func (r *result) recovered(after time.Duration) {
	r.survived++
	r.worst = max(r.worst, after)
}

type options struct {
	sizes
	keelson string
	sops    string
	only    []string
	seed    uint64
	keep    bool
	// parallel is the number of scenarios that run at the same time.
	parallel int
}

// chaos is one run of all scenarios.
type chaos struct {
	options
	folder  string
	set     binaries.Set
	planted *plantedSecrets
}

// outcome is a line of the table.
type outcome struct {
	scenario
	result
	err  error
	took time.Duration
}

func (o outcome) failed() bool {
	return o.err != nil || len(o.violations) > 0 || o.number == 0 || o.number < o.must || o.survived < o.number
}

func runAll(ctx context.Context, o options) error {
	chosen, err := choose(allScenarios(), o.only)
	if err != nil {
		return err
	}
	c, err := must.TryGet(func() *chaos { return prepare(o) })
	if err != nil {
		return err
	}
	harness.Say("seed %d; files of this run: %s", o.seed, c.folder)
	done := c.each(ctx, chosen)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	done = append(done, c.leaks())
	c.table(done)
	failed := slices.DeleteFunc(slices.Clone(done), func(o outcome) bool { return !o.failed() })
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d failed; again with --seed %d --only %s --keep; logs are in %s",
			len(failed), len(done), o.seed, failed[0].name, c.folder)
	}
	if o.keep {
		return nil
	}
	return os.RemoveAll(c.folder) //nolint:wrapcheck // names the file
}

func prepare(o options) *chaos {
	o.keelson, o.sops = must.Get(filepath.Abs(o.keelson)), must.Get(filepath.Abs(o.sops))
	if _, err := os.Stat(o.keelson); err != nil {
		must.Failf("find keelson (make build): %w", err)
	}
	set := must.Get(binaries.Find())
	return &chaos{options: o, folder: must.Get(os.MkdirTemp("", "keelson-chaos-")), set: set, planted: newPlantedSecrets(o.seed)}
}

func choose(all []scenario, only []string) ([]scenario, error) {
	if len(only) == 0 {
		return all, nil
	}
	var names []string
	for _, s := range all {
		names = append(names, s.name)
	}
	for _, name := range only {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("there is no scenario %q: there are %s", name, strings.Join(names, ", "))
		}
	}
	return slices.DeleteFunc(all, func(s scenario) bool { return !slices.Contains(only, s.name) }), nil
}

// each runs the scenarios, several at the same time. Exclusive scenarios follow, one after
// the other. The outcomes are in the order of the scenarios.
func (c *chaos) each(ctx context.Context, chosen []scenario) []outcome {
	done := make([]outcome, len(chosen))
	var together errgroup.Group
	together.SetLimit(c.parallel)
	for i, s := range chosen {
		if !s.exclusive {
			together.Go(func() error {
				if ctx.Err() == nil {
					done[i] = c.one(ctx, s)
				}
				return nil
			})
		}
	}
	_ = together.Wait() // a failure is an outcome
	for i, s := range chosen {
		if s.exclusive && ctx.Err() == nil {
			done[i] = c.one(ctx, s)
		}
	}
	return done
}

// one runs a scenario in a new world, and lets the oracle judge the audit log unless the
// scenario is alone.
func (c *chaos) one(ctx context.Context, s scenario) (o outcome) {
	harness.Say("%s: %s", s.name, s.why)
	started := time.Now()
	o = outcome{scenario: s}
	defer func() {
		o.took = time.Since(started)
		for _, v := range o.violations {
			harness.Say("%s: VIOLATION %s", s.name, v)
		}
		if o.err != nil {
			harness.Say("%s: %v", s.name, o.err)
		}
	}()
	w, err := must.TryGet(func() *world { return c.newWorld(ctx, s) })
	if err != nil {
		o.err = err
		return o
	}
	o.err = must.Try(func() { s.run(ctx, w, &o.result) })
	// The logs are judged even if the context has ended.
	ctx = context.WithoutCancel(ctx)
	if !s.alone {
		found, err := must.TryGet(w.judge)
		o.violations = append(o.violations, found...)
		o.err = errors.Join(o.err, err)
	}
	o.err = errors.Join(o.err, must.Try(func() { w.capture(ctx) }), w.close(ctx))
	return o
}

// table prints the outcomes.
func (c *chaos) table(done []outcome) {
	w := tabwriter.NewWriter(os.Stdout, 2, 2, 2, ' ', 0)
	fmt.Fprintf(w, "\nSCENARIO\tWHAT WAS DONE\tNUMBER\tSURVIVED\tVIOLATIONS\tWORST RECOVERY\tTOOK\t\n")
	for _, o := range done {
		verdict := "ok"
		switch {
		case o.err != nil:
			verdict = "FAILED: " + strings.SplitN(o.err.Error(), "\n", 2)[0]
		case o.number < max(o.must, 1):
			verdict = fmt.Sprintf("FAILED: %d are not the %d that must be", o.number, o.must)
		case o.failed():
			verdict = "FAILED"
		}
		worst := "-"
		if o.worst > 0 {
			worst = o.worst.Round(10 * time.Millisecond).String()
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", o.name, o.did, o.number, o.survived, len(o.violations),
			worst, o.took.Round(100*time.Millisecond), verdict)
	}
	_ = w.Flush() // to stdout
	for _, o := range done {
		for _, n := range o.notes {
			fmt.Printf("%s: %s\n", o.name, n)
		}
	}
	fmt.Printf("seed %d\n", c.seed)
}

// chance returns the random source of a scenario. The same seed gives the same sequence.
func (c *chaos) chance(name string) *rand.Rand {
	var b [32]byte
	copy(b[:], fmt.Sprintf("%d %s", c.seed, name))
	return rand.New(rand.NewChaCha8(b)) //nolint:gosec // chance that can be repeated, no secret
}
