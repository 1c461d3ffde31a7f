package cmd

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/cmd/internal/planning"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
)

const (
	// maxReplans bounds how often a plan is made again after writes of other clients.
	maxReplans = 5
	// replanPause is the first pause before a new plan; each pause doubles.
	replanPause = 200 * time.Millisecond
	// The pause between two health checks grows from firstLook to lastLook.
	firstLook, lastLook = 250 * time.Millisecond, 2 * time.Second
	// secondPass is the pause before objects that were marked for deletion are deleted.
	secondPass = 10 * time.Millisecond
	// defaultTimeout applies without --timeout and component.yaml's timeout.
	defaultTimeout = 5 * time.Minute
)

type applyOptions struct {
	dryRun, wait, noWait, yes, despiteFreeze bool
	timeout                                  time.Duration
}

func newApply(inv *cli.Invocation) *cobra.Command {
	sessions := planning.NewOpener(inv)
	var o applyOptions
	cmd := &cobra.Command{
		Use:     "apply CLUSTER [COMPONENT...]",
		GroupID: cli.GroupCluster,
		Short:   "Bring a cluster to what git says",
		Long: `Apply makes the components of a cluster match git, each after those that it
depends on, and waits until they are healthy. It does once what the controller
does, and waits for no pipeline. A component that a rollback pinned stays
pinned. Apply lists held, denied and frozen changes, and does not make them. On
a terminal it asks before it writes.

Exit codes: 0 all is as git says and healthy, 1 something is held, denied,
paused, frozen or not healthy, 2 something failed.`,
		Example: `  keelson apply prod-us-01 --dry-run
  keelson apply prod-us-01
  keelson apply prod-us-01 coredns --yes --timeout 2m`,
		Args:              cli.Args("CLUSTER [COMPONENT...]", 1, -1),
		ValidArgsFunction: sessions.Fleets.CompleteNames(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := inv.CheckFormat(cli.FormatPatch); err != nil {
				return err
			}
			if inv.Output != cli.FormatText && !o.dryRun {
				return cli.Usagef("-o %s is for --dry-run: what was done is told as text", inv.Output)
			}
			o.wait = o.wait && !o.noWait
			r := &applyRun{planOutput: planOutput{inv}, sessions: sessions, options: o, results: map[string]applyResult{}}
			return r.run(cmd.Context(), args[0], args[1:])
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would change, as diff does, and exit like it")
	f.BoolVar(&o.wait, "wait", true, "wait until components are healthy")
	f.BoolVar(&o.noWait, "no-wait", false, "don't wait, not even for dependencies")
	f.DurationVar(&o.timeout, "timeout", 0, "how long to wait for a component\n(default: its component.yaml's, else 5m)")
	f.BoolVar(&o.despiteFreeze, "despite-freeze", false, "apply what a freeze in git holds, too")
	sessions.Renders.AddFlags(cmd)
	f.BoolVarP(&o.yes, "yes", "y", false, "don't ask; needed where there is no terminal")
	return cmd
}

// applyResult is the result of a component.
type applyResult struct {
	state   applyState
	message string
}

type applyState uint8

const (
	applyDone      applyState = iota + 1 // as git says, and healthy, unless that was not waited for
	applyHeld                            // a danger rule holds or denies a change
	applyPaused                          // paused in git
	applyFrozen                          // frozen in git
	applyWaiting                         // a dependency is not done, or another component must take over an object first
	applyGives                           // done, except for objects that another component must take over
	applyUnhealthy                       // applied, but not healthy in time
	applyFailed
)

func (s applyState) String() string {
	names := [...]string{"", "synced", "held", "paused", "frozen", "waiting", "waiting", "not healthy", "failed"}
	if int(s) >= len(names) {
		return fmt.Sprintf("applyState(%d)", uint8(s))
	}
	return names[s]
}

func (s applyState) style() cli.Style {
	switch s {
	case applyDone:
		return cli.Green
	case applyHeld, applyPaused, applyFrozen, applyWaiting, applyGives:
		return cli.Yellow
	case applyUnhealthy, applyFailed:
	}
	return cli.Red
}

// applyRun is one run of apply.
type applyRun struct {
	planOutput
	*planning.Session
	sessions planning.Opener
	options  applyOptions
	steps    *stepPrinter
	results  map[string]applyResult
	failed   []error
	// last means that no component follows this one.
	last bool
}

func (r *applyRun) run(ctx context.Context, cluster string, components []string) error {
	r.steps = &stepPrinter{out: r.Env.Out, paint: r.Painter(r.Env.Out)}
	var err error
	if r.Session, err = r.sessions.Open(ctx, cluster, r.steps.step); err != nil {
		return err
	}
	deliveries, err := fleetrepo.FindDeliveries(r.Cluster, components)
	if err != nil {
		return err
	}
	deliveries = planning.InOrder(r.Cluster, deliveries)
	plans, err := r.PlanAll(ctx, deliveries)
	if err != nil {
		return err
	}
	if r.options.dryRun {
		r.PredictAll(ctx, plans)
		return r.showDiff(r.Cluster.Name, plans)
	}
	if err := r.confirm(ctx, plans); err != nil {
		return err
	}
	// A component that waits for a later one is applied again at the end.
	var later []planning.Planned
	for i := range plans {
		result := r.component(ctx, plans[i])
		if err := ctx.Err(); err != nil {
			return err
		}
		if r.results[plans[i].Component] = result; result.state == applyGives {
			later = append(later, plans[i])
			continue
		}
		r.report(&plans[i], result)
	}
	r.last = true
	for i := range later {
		r.results[later[i].Component] = r.component(ctx, r.Plan(ctx, later[i].Delivery))
		r.report(&later[i], r.results[later[i].Component])
	}
	if len(components) == 0 {
		if err := r.tidy(ctx); err != nil {
			return err
		}
	}
	return r.outcome(plans)
}

// tidy removes objects that other components have taken over from the records of components that
// left git.
func (r *applyRun) tidy(ctx context.Context) error {
	orphans, err := r.Orphans(ctx)
	if err != nil {
		return err
	}
	inGit := func(component string) bool { return r.Cluster.Delivery(component) != nil }
	for _, name := range orphans {
		switch _, err := r.Live.Tidy(ctx, name, inGit); {
		case errors.Is(err, applier.ErrStale): // the other writer, or the next apply, goes on with it
			r.Warn("component %s is not in git, and another writer changed its record meanwhile: it stays as it is until the next apply", name)
		case err != nil:
			return err
		}
	}
	return nil
}

// confirm shows the planned changes and asks for permission.
func (r *applyRun) confirm(ctx context.Context, plans []planning.Planned) error {
	paint := r.Painter(r.Env.Err)
	var b strings.Builder
	writes := false
	for i := range plans {
		p := &plans[i]
		summary := ""
		switch {
		case p.Paused:
			summary = "paused in git"
		case r.frozen(p) != "":
			summary = "frozen: " + r.frozen(p)
		case p.Err != nil && !unserved(p.Err):
			summary = "can't be compared"
		case p.Err != nil:
			summary, writes = "its kinds come with what it depends on", true
		default:
			summary, writes = p.Plan.Summary(), writes || !p.Settled()
		}
		if p.Err != nil || p.Paused || !p.Settled() {
			b.WriteString("  " + p.Title() + ": " + summary + "\n")
		}
	}
	if !writes || r.options.yes {
		return nil
	}
	if !r.Env.Asks() {
		return cli.Usagef("there is no terminal to ask whether to write to %s: give --yes, or --dry-run to see what would change", r.Cluster.Name)
	}
	fmt.Fprint(r.Env.Err, paint.Paint(cli.Bold, r.Cluster.Name+":")+"\n"+b.String()+"Apply this to "+r.Cluster.Name+"? [y/N] ")
	answer, err := readLine(ctx, r.Env.In)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer))) {
		return errors.New("nothing was applied")
	}
	return nil
}

// readLine reads one line, or stops with ctx and abandons the read.
func readLine(ctx context.Context, in io.Reader) (string, error) {
	line := make(chan string, 1)
	go func() {
		text, err := bufio.NewReader(in).ReadString('\n')
		if err != nil {
			text = "" // a line without its end is no answer
		}
		line <- text
	}()
	select {
	case text := <-line:
		return text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// unserved reports whether a plan failed only because a kind is not served yet.
func unserved(err error) bool {
	var not *apis.NotServedError
	return errors.As(err, &not) && not.Unknown == nil
}

// component applies one component and returns the result.
func (r *applyRun) component(ctx context.Context, p planning.Planned) applyResult {
	if err := p.Blocked(); err != nil {
		return r.fail(err)
	}
	if result, ok := r.dependencies(ctx, p.Delivery); !ok {
		return result
	}
	if p.Err != nil && unserved(p.Err) {
		p = r.Plan(ctx, p.Delivery) // its dependencies are applied now
	}
	if p.Err != nil {
		return r.fail(p.Err)
	}
	if p.Paused {
		if p.Plan.Differs() {
			return applyResult{state: applyPaused, message: p.Plan.Summary()}
		}
		return applyResult{state: applyDone, message: "paused in git"}
	}
	if reason := r.frozen(&p); reason != "" && !p.Settled() {
		return applyResult{state: applyFrozen, message: reason + ": " + p.Plan.Summary()}
	}
	r.steps.begin(&p)
	if !p.Settled() {
		var err error
		if p, err = r.apply(ctx, p); err != nil {
			return r.fail(err)
		}
	}
	return r.settle(ctx, p)
}

// frozen returns why no change of a component may be applied now; empty: changes may be applied.
func (r *applyRun) frozen(p *planning.Planned) string {
	if r.options.despiteFreeze {
		return ""
	}
	reason, _ := r.Fleet.Frozen(r.Cluster, p.Component, r.Env.Now())
	return reason
}

func (r *applyRun) fail(err error) applyResult {
	r.failed = append(r.failed, err)
	return applyResult{state: applyFailed}
}

// dependencies reports whether all dependencies are as git says and healthy. With --no-wait it
// skips those outside this run.
func (r *applyRun) dependencies(ctx context.Context, d *registry.Delivery) (applyResult, bool) {
	if d.Absent {
		return r.dependents(ctx, d)
	}
	for _, name := range d.Version.Spec.DependsOn {
		if result, ok := r.results[name]; ok {
			if result.state != applyDone && result.state != applyGives {
				return applyResult{state: applyWaiting, message: name + " is " + result.state.String()}, false
			}
			continue
		}
		if r.options.noWait {
			continue
		}
		p := r.Plan(ctx, r.Cluster.Delivery(name))
		if p.Err != nil {
			return r.fail(p.Err), false
		}
		if p.Plan.Differs() {
			return applyResult{state: applyWaiting, message: fmt.Sprintf("it depends on %s, which is not as git says (%s): apply that, too", name, p.Plan.Summary())}, false
		}
		if health, why := p.WorstHealth(); health != v1alpha1.HealthHealthy {
			return applyResult{state: applyWaiting, message: fmt.Sprintf("it depends on %s, which is %s: %s", name, strings.ToLower(string(health)), why)}, false
		}
	}
	return applyResult{}, true
}

// dependents reports whether all that depend on a delivery to be removed are gone.
func (r *applyRun) dependents(ctx context.Context, d *registry.Delivery) (applyResult, bool) {
	for _, o := range r.Cluster.Deliveries {
		if o.Version == nil || !slices.Contains(o.Version.Spec.DependsOn, d.Component) {
			continue
		}
		if result, ok := r.results[o.Component]; ok && result.state == applyDone && !r.options.noWait {
			continue
		}
		if p := r.Plan(ctx, o); p.Err != nil {
			return r.fail(p.Err), false
		} else if !p.Settled() {
			return applyResult{state: applyWaiting, message: o.Component + " depends on it, and is not gone yet"}, false
		}
	}
	return applyResult{}, true
}

// apply carries out a plan, and makes a new one after a write of another client. It returns the
// plan that was carried out last.
func (r *applyRun) apply(ctx context.Context, p planning.Planned) (planning.Planned, error) {
	pause := replanPause
	for try := 0; ; try++ {
		_, err := r.Live.Apply(ctx, p.Prepared, applier.ApplyOptions{
			Now: r.Env.Now(), Timeout: r.timeout(p.Delivery), RetryHooks: true,
		})
		if err == nil {
			if definesKinds(p.Plan) {
				r.Live.Forget()
				err = r.Learn(ctx)
			}
			return p, err
		}
		if !errors.Is(err, applier.ErrStale) || try == maxReplans {
			return p, err
		}
		r.Log.Debug("planning again", "component", p.Component, "reason", err)
		if err := cli.Sleep(ctx, pause); err != nil {
			return p, err
		}
		pause *= 2
		if p = r.Plan(ctx, p.Delivery); p.Err != nil {
			return p, p.Err
		}
		r.steps.begin(&p)
	}
}

// definesKinds reports whether a plan changes what the API server serves.
func definesKinds(p differ.Plan) bool {
	return slices.ContainsFunc(p.Changes, func(c differ.Change) bool {
		return c.Op != differ.OpNone && (c.ID.Kind == "CustomResourceDefinition" || c.ID.Kind == "APIService")
	})
}

func (r *applyRun) timeout(d *registry.Delivery) time.Duration {
	if t := d.Version.Spec.Timeout; r.options.timeout == 0 && t != nil && t.Duration > 0 {
		return t.Duration
	}
	return cmp.Or(r.options.timeout, defaultTimeout)
}

// settle waits until the applied objects exist and are healthy.
func (r *applyRun) settle(ctx context.Context, p planning.Planned) applyResult {
	if held := planning.Stopped(p.Plan); len(held) > 0 {
		if result := r.finish(ctx, p); result.state != applyDone {
			return result
		}
		return applyResult{state: applyHeld, message: p.Plan.Summary()}
	}
	if !r.options.wait {
		return r.finish(ctx, p)
	}
	progress := r.NewProgress()
	defer progress.Clear()
	timeout := r.timeout(p.Delivery)
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	var err error
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		if p = r.Plan(ctx, p.Delivery); p.Err != nil {
			return r.fail(p.Err)
		}
		var soon bool
		if p, soon, err = r.secondPass(ctx, p); err != nil {
			return r.fail(err)
		}
		if soon {
			pause = secondPass
		}
		result, why := r.resultOf(ctx, p)
		if why == "" {
			return result
		}
		progress.Print(p.Component + ": waiting for " + r.lasting(ctx, p, pause, why))
		look := time.NewTimer(pause)
		select {
		case <-look.C:
		case <-deadline.C:
			look.Stop()
			if !p.Plan.Differs() {
				why = cmp.Or(r.Live.Diagnose(ctx, p.Prepared), why)
			}
			return applyResult{state: applyUnhealthy, message: fmt.Sprintf("not after %s: %s", timeout, why)}
		case <-ctx.Done():
			look.Stop()
			return r.fail(ctx.Err())
		}
	}
}

// lasting returns why a component is still not healthy after several checks.
func (r *applyRun) lasting(ctx context.Context, p planning.Planned, pause time.Duration, why string) string {
	if pause < lastLook || p.Plan.Differs() {
		return why
	}
	return cmp.Or(r.Live.PodTrouble(ctx, p.Prepared), why)
}

// secondPass carries out or records the deletions of a plan. The result soon means that the next
// check should follow at once.
func (r *applyRun) secondPass(ctx context.Context, p planning.Planned) (after planning.Planned, soon bool, err error) {
	if !leaves(p) {
		return p, false, nil
	}
	after, err = r.apply(ctx, p)
	return after, after.Absent || after.Plan.Count(differ.OpDelete) > 0, err
}

// resultOf returns the result of a component, or why it has none yet.
func (r *applyRun) resultOf(ctx context.Context, p planning.Planned) (result applyResult, why string) {
	health, why := p.WorstHealth()
	switch {
	case len(planning.Stopped(p.Plan)) > 0:
		return applyResult{state: applyHeld, message: p.Plan.Summary()}, ""
	case p.Waits() != "" && r.last:
		return applyResult{state: applyWaiting, message: p.Waits()}, ""
	case p.Waits() != "" && p.OnlyDeletions() && health == v1alpha1.HealthHealthy:
		return applyResult{state: applyGives}, ""
	case p.Plan.Differs(), p.Absent && !p.Settled():
		return applyResult{}, unfinished(p.Plan)
	case health == v1alpha1.HealthHealthy:
		return applyResult{state: applyDone}, ""
	case health == v1alpha1.HealthDegraded:
		return applyResult{state: applyUnhealthy, message: r.Live.Diagnose(ctx, p.Prepared)}, ""
	}
	return applyResult{}, cmp.Or(why, "health")
}

// leaves reports whether a plan has deletions to carry out or to record.
func leaves(p planning.Planned) bool {
	return p.Absent && !p.Settled() && len(p.Plan.Changes) == 0 || slices.ContainsFunc(p.Plan.Changes, func(c differ.Change) bool {
		return c.Op == differ.OpDelete || c.Op == differ.OpForget
	})
}

// unfinished describes the part of a plan that is not done.
func unfinished(p differ.Plan) string {
	for i := range p.Changes {
		if c := &p.Changes[i]; c.Op == differ.OpNone && c.State == differ.StateChanged {
			return c.ID.String() + ": " + c.Because
		}
	}
	if !p.Differs() {
		return "its record"
	}
	return p.Summary()
}

// finish runs the second pass of deletions, and does not wait for their end.
func (r *applyRun) finish(ctx context.Context, p planning.Planned) applyResult {
	if p.Plan.Count(differ.OpDelete) == 0 {
		return applyResult{state: applyDone}
	}
	if p = r.Plan(ctx, p.Delivery); p.Err != nil {
		return r.fail(p.Err)
	}
	if _, err := r.apply(ctx, p); err != nil {
		return r.fail(err)
	}
	return applyResult{state: applyDone}
}

// report prints the result of a component.
func (r *applyRun) report(p *planning.Planned, result applyResult) {
	line := r.steps.paint.Paint(cli.Bold, p.Title()) + " " + r.steps.paint.Paint(result.state.style(), result.state.String())
	if result.message != "" {
		line += ": " + cli.OneLine(result.message)
	}
	if n := r.steps.unchanged; n > 0 && r.steps.component == p.Component {
		line += fmt.Sprintf(" (%d unchanged)", n)
	}
	fmt.Fprintln(r.Env.Out, line)
	if p.Prepared == nil {
		return
	}
	if pin := p.Pin(); pin != nil && result.state != applyFailed {
		r.Warn("%s is %s; 'keelson rollback %s %s --unpin' delivers what git says", p.Component, pin, r.Cluster.Name, p.Component)
	}
}

func (r *applyRun) outcome(plans []planning.Planned) error {
	if err := errors.Join(r.failed...); err != nil {
		return err
	}
	for i := range plans {
		if r.results[plans[i].Component].state != applyDone {
			return cli.ErrFound
		}
	}
	return nil
}
