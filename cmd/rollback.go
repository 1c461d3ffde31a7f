package cmd

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/cmd/internal/planning"
	"github.com/keelson-io/keelson/registry"
)

type rollbackOptions struct {
	apply   applyOptions
	unpin   bool
	because string
}

func newRollback(inv *cli.Invocation) *cobra.Command {
	sessions := planning.NewOpener(inv)
	o := rollbackOptions{apply: applyOptions{wait: true}}
	cmd := &cobra.Command{
		Use:     "rollback CLUSTER COMPONENT [NUMBER]",
		GroupID: cli.GroupCluster,
		Short:   "Go back to an earlier delivery, until git moves on",
		Long: `Rollback delivers again what was delivered before: NUMBER is that of 'keelson
history', by default the newest that was healthy and is not what git wants now.
It is rendered from git at the revision of that delivery, with the same
verification of signatures, and has to come out the same. The danger rules of
today hold.

The component is pinned to it: controllers and 'keelson apply' deliver that,
and say so, until git wants something else of the component than it does now.
So to go forward again, change it in git; --unpin goes forward without.

Exit codes: 0 done and healthy, or with --dry-run the same, 1 something is held,
denied, paused, not healthy, or with --dry-run differs, 2 something failed.`,
		Example: `  keelson rollback prod-us-01 coredns --because INC-321
  keelson rollback prod-us-01 coredns 4 --dry-run
  keelson rollback prod-us-01 coredns --unpin`,
		Args:              cli.Args("CLUSTER COMPONENT [NUMBER]", 2, 3),
		ValidArgsFunction: sessions.Fleets.CompleteNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := inv.CheckFormat(cli.FormatPatch); err != nil {
				return err
			}
			if inv.Output != cli.FormatText && !o.apply.dryRun {
				return cli.Usagef("-o %s is for --dry-run: what was done is told as text", inv.Output)
			}
			number, err := numberOf(args, o.unpin)
			if err != nil {
				return err
			}
			o.apply.wait = !o.apply.noWait
			r := &applyRun{planOutput: planOutput{inv}, sessions: sessions, options: o.apply, results: map[string]applyResult{}}
			return r.rollback(cmd.Context(), args[0], args[1], o, number)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.apply.dryRun, "dry-run", false, "print what would change, as diff does, and exit like it")
	f.BoolVar(&o.unpin, "unpin", false, "end a rollback, and deliver what git says")
	f.StringVar(&o.because, "because", "", "the `REASON`, which status and history show")
	f.BoolVar(&o.apply.noWait, "no-wait", false, "don't wait, not even for dependencies")
	f.DurationVar(&o.apply.timeout, "timeout", 0, "how long to wait for the component\n(default: its component.yaml's, else 5m)")
	sessions.Renders.AddFlags(cmd)
	f.BoolVarP(&o.apply.yes, "yes", "y", false, "don't ask; needed where there is no terminal")
	return cmd
}

// numberOf returns the NUMBER of the command line, 0 if there is none.
func numberOf(args []string, unpin bool) (int, error) {
	switch {
	case len(args) < 3:
		return 0, nil
	case unpin:
		return 0, cli.Usagef("--unpin delivers what git says: leave %q out", args[2])
	}
	n, err := strconv.Atoi(args[2])
	if err != nil || n < 1 {
		return 0, cli.Usagef("%q is no number of a delivery: see 'keelson history %s %s'", args[2], args[0], args[1])
	}
	return n, nil
}

func (r *applyRun) rollback(ctx context.Context, cluster, component string, o rollbackOptions, number int) error {
	r.steps = &stepPrinter{out: r.Env.Out, paint: r.Painter(r.Env.Out)}
	var err error
	if r.Session, err = r.sessions.Open(ctx, cluster, r.steps.step); err != nil {
		return err
	}
	deliveries, err := fleetrepo.FindDeliveries(r.Cluster, []string{component})
	if err != nil {
		return err
	}
	d := deliveries[0]
	record, err := r.Live.Record(ctx, component)
	if err != nil {
		return err
	}
	switch {
	case o.unpin && record.Pin == nil:
		r.Warn("%s is not pinned on %s", component, r.Cluster.Name)
		return nil
	case o.unpin:
		r.Pins[component] = nil
	default:
		if r.Pins[component], err = r.pin(ctx, d, &record, number); err != nil {
			return err
		}
		r.Pins[component].Because = cli.OneLine(o.because)
	}
	return r.deliver(ctx, d)
}

// pin returns the pin to write.
func (r *applyRun) pin(ctx context.Context, d *registry.Delivery, record *records.Record, number int) (*records.Pin, error) {
	if d.Absent {
		return nil, fmt.Errorf("git says that %s is to be removed from %s: take that back in git", d.Component, d.Cluster)
	}
	target, err := r.Targets.Render(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("what git wants now is not known, so that it could not be told when it wants something else: %w", err)
	}
	entry, err := r.entryOf(ctx, d, record, number, target.Hash)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", r.Cluster.Name, err)
	}
	return r.pinTo(entry, target.Hash), nil
}

func (r *applyRun) pinTo(e *records.HistoryEntry, against string) *records.Pin {
	return &records.Pin{
		Number: e.Number, Version: e.Version, Revision: e.Revision, TargetHash: e.TargetHash,
		Against: against, By: cli.CurrentUser(), At: r.Env.Now().UTC(),
	}
}

// entryOf finds the delivery to go back to. The number 0 means the newest one that was healthy, is
// not what git wants, and is not pinned already.
func (r *applyRun) entryOf(ctx context.Context, d *registry.Delivery, record *records.Record, number int, wanted string) (*records.HistoryEntry, error) {
	const see = "see 'keelson history'"
	var others []string
	for i := range record.History {
		e := &record.History[i]
		other := e.TargetHash != wanted && (record.Pin == nil || record.Pin.TargetHash != e.TargetHash)
		switch {
		case number == e.Number && e.TargetHash != wanted:
			return e, nil
		case number == e.Number:
			return nil, fmt.Errorf("delivery %d of %s is what git wants now: 'keelson apply' delivers it, with --unpin of rollback where it is pinned",
				number, record.Component)
		case number != 0 || !other:
			continue
		}
		health, err := r.healthOf(ctx, d, record, e, wanted)
		if err != nil {
			return nil, err
		}
		if health == v1alpha1.HealthHealthy {
			return e, nil
		}
		others = append(others, fmt.Sprintf("%d (%s) was %s", e.Number, e.Version, health))
	}
	switch {
	case number != 0:
		return nil, fmt.Errorf("the record of %s has no delivery %d: %s", record.Component, number, see)
	case len(others) == 0:
		return nil, fmt.Errorf("the record of %s has no other delivery to go back to: %s", record.Component, see)
	}
	return nil, fmt.Errorf("of %s no other delivery is known to have been healthy: %s. To go back to one of them, name its number",
		record.Component, strings.Join(others, ", "))
}

// healthOf returns the health that a delivery had when the next one began. For the newest delivery
// it compares the cluster.
func (r *applyRun) healthOf(ctx context.Context, d *registry.Delivery, record *records.Record, e *records.HistoryEntry, wanted string) (v1alpha1.Health, error) {
	switch {
	case e.Health != "":
		return e.Health, nil
	case e.Number != record.History[0].Number: // recorded by a Keelson that did not store the health
		return v1alpha1.HealthUnknown, nil
	}
	r.Pins[d.Component] = r.pinTo(e, wanted)
	defer delete(r.Pins, d.Component) // afterwards the pin of the record counts again
	plans, err := r.PlanAll(ctx, []*registry.Delivery{d})
	if err != nil {
		return "", err
	}
	if plans[0].Err != nil {
		return v1alpha1.HealthUnknown, nil // the error is reported if its number is given
	}
	health, _ := plans[0].WorstHealth()
	return health, nil
}

// deliver shows the changes, asks, and applies one component.
func (r *applyRun) deliver(ctx context.Context, d *registry.Delivery) error {
	plans, err := r.PlanAll(ctx, []*registry.Delivery{d})
	if err != nil {
		return err
	}
	if r.options.dryRun {
		r.PredictAll(ctx, plans)
		return r.showDiff(r.Cluster.Name, plans)
	}
	p := plans[0]
	if p.Err != nil {
		return p.Err
	}
	if !r.options.yes {
		if err := r.showPlan(&p); err != nil {
			return err
		}
	}
	if err := r.confirm(ctx, plans); err != nil {
		return err
	}
	result := r.component(ctx, p)
	if err := ctx.Err(); err != nil {
		return err
	}
	r.results[p.Component] = result
	r.report(&p, result)
	return r.outcome(plans)
}

// showPlan prints the difference before the question.
func (r *applyRun) showPlan(p *planning.Planned) error {
	var b bytes.Buffer
	if err := p.Plan.WriteText(&b, bool(r.Painter(r.Env.Out))); err != nil {
		return fmt.Errorf("show the difference: %w", err)
	}
	return r.Write([]byte(strings.TrimLeft(b.String(), "\n")))
}
