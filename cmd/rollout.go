package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
)

// rolloutRun is one run of rollout.
type rolloutRun struct {
	*cli.Invocation
	fleets   *fleetrepo.Opener
	clusters connection.Connector
}

func newRollout(inv *cli.Invocation) *cobra.Command {
	run := &rolloutRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	cmd := &cobra.Command{
		Use:     "rollout",
		GroupID: cli.GroupCluster,
		Short:   "Show how changes go from cluster to cluster, and steer them",
		Long: `A change of a component with a pipeline goes from cluster to cluster, stage by
stage. The Rollout objects in the hub (--kubeconfig and --context) show the
progress.

Freezes, approvals and reverts are commits in git. Use pause, resume, promote
and abort when a commit takes too long. They write into the Rollout who asked
and why, apply to the current change only, and show in its timeline.`,
		Example: `  keelson rollout list
  keelson rollout explain coredns prod-us-01
  keelson rollout promote coredns --now --reason CVE-2026-1234`,
		Args: cli.Args("list", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newRolloutList(inv), newRolloutShow(inv), newRolloutExplain(inv),
		run.newRolloutWord(saying{
			use: "pause", short: "Release no more clusters", say: rollout.Pause, done: "paused",
			long:    `Pause releases no more clusters, for this change or a later one, until resume. Released clusters still get the change.`,
			example: `  keelson rollout pause coredns --reason "INC-7: odd latency in canary"`,
		}),
		run.newRolloutWord(saying{
			use: "resume", short: "Continue a paused rollout, or try a rolled back one again", say: rollout.Resume, done: "resumed",
			long: `Resume continues a rollout that a person or a failure has paused, and tries a
rolled back change again. The timeouts of released clusters and of checks begin
anew. A failure whose cause remains stops the rollout again.`,
			example: `  keelson rollout resume coredns --reason "INC-7: it was the load balancer"`,
		}),
		newRolloutPromote(inv),
		run.newRolloutWord(saying{
			use: "abort", short: "Take the clusters of the stage back, and end the rollout", say: rollout.Abort, done: "aborted",
			long: `Abort takes the clusters of the stage that the rollout is in back to what they had,
and lets no more go. Stages that have passed keep the change: to take it back there,
revert it in git.`,
			example: `  keelson rollout abort coredns --reason "INC-7: wrong flag"`,
		}),
	)
	return cmd
}

// saying is a command that changes the state of a rollout.
type saying struct {
	use, short, long, example, done string
	say                             func(v1alpha1.RolloutStatus, rollout.Command) (v1alpha1.RolloutStatus, error)
}

func (run *rolloutRun) newRolloutWord(s saying) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:               s.use + " COMPONENT",
		Short:             s.short,
		Long:              s.long + "\n\nExit codes: 0 it is so, 2 it can't be, or makes no sense now.",
		Example:           s.example,
		Args:              cli.Args("COMPONENT", 1, 1),
		ValidArgsFunction: run.completeRollouts(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.sayRollout(cmd.Context(), args[0], reason, s)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "the `REASON`, which the timeline shows")
	return cmd
}

func newRolloutPromote(inv *cli.Invocation) *cobra.Command {
	run := &rolloutRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	var (
		stage, reason string
		now           bool
	)
	cmd := &cobra.Command{
		Use:   "promote COMPONENT",
		Short: "Release a stage at once, in an emergency",
		Long: `Promote ends the waits of the stage that the rollout is in, or of --stage:
windows, silences, bakes and checks. The order of the clusters, the pipeline's
limits, the health of earlier clusters and freezes still apply. --now confirms
the command. It applies to the current change only.

Exit codes: 0 done, 2 it can't be done, or has no meaning now.`,
		Example: `  keelson rollout promote coredns --now --reason CVE-2026-1234
  keelson rollout promote coredns --stage production --now --reason CVE-2026-1234`,
		Args:              cli.Args("COMPONENT", 1, 1),
		ValidArgsFunction: run.completeRollouts(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !now {
				return cli.Usagef("give --now: promote waits for no window, silence, bake or check")
			}
			return run.sayRollout(cmd.Context(), args[0], reason, saying{
				done: "promoted",
				say: func(s v1alpha1.RolloutStatus, w rollout.Command) (v1alpha1.RolloutStatus, error) {
					return rollout.Promote(s, stage, w)
				},
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&now, "now", false, "this is meant")
	f.StringVar(&stage, "stage", "", "the `STAGE` (default: the first that has not passed)")
	f.StringVar(&reason, "reason", "", "the `REASON`, which the timeline shows")
	return cmd
}

// sayTries bounds how often a write is tried after a conflict with the controller.
const sayTries = 5

func (run *rolloutRun) sayRollout(ctx context.Context, component, reason string, s saying) error {
	if err := run.CheckFormat(); err != nil {
		return err
	}
	if reason = cli.OneLine(reason); reason == "" {
		return cli.Usagef("give --reason: others will ask")
	}
	hub, err := run.clusters.HubClient()
	if err != nil {
		return err
	}
	for range sayTries {
		var r *v1alpha1.Rollout
		if r, err = run.rolloutOf(ctx, hub, component); err != nil {
			return err
		}
		if r.Status, err = s.say(r.Status, rollout.Command{By: cli.CurrentUser(), Because: reason, At: run.Env.Now().UTC()}); err != nil {
			return fmt.Errorf("rollout of %s: %w", component, err)
		}
		err = hub.Status().Update(ctx, r) // the resourceVersion makes a concurrent write a conflict
		switch {
		case err == nil && run.Output == cli.FormatText:
			fmt.Fprintf(run.Env.Out, "the rollout of %s to %s is %s\n", component, cli.OneLine(r.Status.To), s.done)
			return nil
		case err == nil:
			return run.Encode(connection.Bare(r, "Rollout"))
		case !apierrors.IsConflict(err):
			return fmt.Errorf("write Rollout %s: %w", component, err)
		}
	}
	return fmt.Errorf("write Rollout %s: %w", component, err)
}

// rolloutOf reads one Rollout of the hub.
func (run *rolloutRun) rolloutOf(ctx context.Context, hub client.Client, component string) (*v1alpha1.Rollout, error) {
	r := &v1alpha1.Rollout{}
	err := hub.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: component}, r)
	switch {
	case connection.ServesNone(err):
		return nil, errNoRollouts
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("the hub has no rollout of %q: no change of it was on its way through a pipeline; see 'keelson rollout list'", component)
	case err != nil:
		return nil, fmt.Errorf("read Rollout %s: %w", component, err)
	}
	return r, nil
}

var errNoRollouts = errors.New("the hub knows no Rollouts: either no component of the fleet has a pipeline, " +
	"or 'keelson controller' never ran there, or --context names another cluster than the hub")

func newRolloutList(inv *cli.Invocation) *cobra.Command {
	run := &rolloutRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	var moving bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the rollouts of all components",
		Long: `List prints the last change of each component with a pipeline: the versions,
the phase, the first stage that has not passed, and how many clusters have it.

Exit codes: 0 printed, 2 the hub can't be read.`,
		Example: `  keelson rollout list
  keelson rollout list --moving -o json`,
		Args: cli.Args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return run.listRollouts(cmd.Context(), moving) },
	}
	cmd.Flags().BoolVar(&moving, "moving", false, "leave out those that are complete")
	return cmd
}

func (run *rolloutRun) listRollouts(ctx context.Context, moving bool) error {
	var list v1alpha1.RolloutList
	if err := run.clusters.ListHub(ctx, &list, "rollouts", errNoRollouts); err != nil {
		return err
	}
	list.Items = slices.DeleteFunc(list.Items, func(r v1alpha1.Rollout) bool {
		return r.Status.Change == "" || moving && r.Status.Phase == v1alpha1.RolloutComplete
	})
	slices.SortFunc(list.Items, func(x, y v1alpha1.Rollout) int { return cmp.Compare(x.Name, y.Name) })
	t := run.NewTable("COMPONENT", "PIPELINE", "FROM", "TO", "PHASE", "STAGE", "CLUSTERS", "AGE", "BECAUSE")
	for i := range list.Items {
		s := &list.Items[i].Status
		t.Rows = append(t.Rows, cli.Row{Cells: []cli.Cell{
			{Text: cli.OneLine(s.Component)},
			{Text: cli.OneLine(s.Pipeline)},
			{Text: cli.OneLine(s.From)},
			{Text: cli.OneLine(s.To)},
			{Text: cli.OneLine(string(s.Phase)), Style: phaseStyle(s.Phase)},
			{Text: cli.OneLine(s.Stage)},
			{Text: cli.OneLine(s.Progress)},
			{Text: run.Age(s.Begun)},
			{Text: cli.OneLine(s.Because)},
		}})
	}
	return run.Show(connection.BareList(&list, list.Items, "Rollout"), t.TextOr("no rollouts\n"))
}

func phaseStyle(p v1alpha1.RolloutPhase) cli.Style {
	switch p {
	case v1alpha1.RolloutComplete:
		return cli.Green
	case v1alpha1.RolloutProgressing:
		return cli.Cyan
	case v1alpha1.RolloutPaused, v1alpha1.RolloutRollingBack:
		return cli.Yellow
	case v1alpha1.RolloutRolledBack:
		return cli.Red
	}
	return cli.Plain
}

func newRolloutShow(inv *cli.Invocation) *cobra.Command {
	run := &rolloutRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	var all bool
	cmd := &cobra.Command{
		Use:   "show COMPONENT",
		Short: "Show the stages, clusters and timeline of a rollout",
		Long: `Show prints the progress of a change:
  - its stages, each with the hash that an approval must name
  - its checks, with their answers and what they wait for
  - its clusters in the order of their turn, and why the others wait
  - its last 20 events, or all with --all

Exit codes: 0 printed, 2 the hub can't be read, or has no such rollout.`,
		Example: `  keelson rollout show coredns
  keelson rollout show coredns --all -o yaml`,
		Args:              cli.Args("COMPONENT", 1, 1),
		ValidArgsFunction: run.completeRollouts(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.withRollout(cmd.Context(), args[0], func(r *v1alpha1.Rollout) error {
				return run.Show(connection.Bare(r, "Rollout"), run.rolloutText(&r.Status, all))
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "the whole timeline that is remembered")
	return cmd
}

// withRollout calls show with the component's rollout.
func (run *rolloutRun) withRollout(ctx context.Context, component string, show func(*v1alpha1.Rollout) error) error {
	hub, err := run.clusters.OpenHub()
	if err != nil {
		return err
	}
	r, err := run.rolloutOf(ctx, hub, component)
	if err != nil {
		return err
	}
	return show(r)
}

// linesShown is the number of lines of a timeline.
const linesShown = 20

func (run *rolloutRun) rolloutText(s *v1alpha1.RolloutStatus, all bool) string {
	var b strings.Builder
	paint := run.Painter(run.Env.Out)
	fmt.Fprintf(&b, "%s: %s → %s, pipeline %s, revision %.12s, change %s\n", cli.OneLine(s.Component), cmp.Or(cli.OneLine(s.From), "nothing"), cli.OneLine(s.To),
		cli.OneLine(s.Pipeline), cli.OneLine(s.Revision), cli.OneLine(s.Change))
	because := ""
	if s.Because != "" {
		because = ": " + cli.OneLine(s.Because)
	}
	fmt.Fprintf(&b, "%s, %s clusters%s\n\n", paint.Paint(phaseStyle(s.Phase), cli.OneLine(string(s.Phase))), cli.OneLine(s.Progress), because)

	stages := run.NewTable("STAGE", "OPENED", "PASSED", "HASH", "PROMOTED")
	for _, stage := range s.Stages {
		stages.Rows = append(stages.Rows, cli.Row{Cells: []cli.Cell{
			{Text: cli.OneLine(stage.Name)}, {Text: cli.Timestamp(stage.Opened)}, {Text: cli.Timestamp(stage.Passed)}, {Text: cli.OneLine(stage.Evidence)}, {Text: cli.OneLine(stage.Promoted)},
		}})
	}
	b.WriteString(stages.String() + "\n")
	if checks := run.checksTable(s); len(checks.Rows) > 0 {
		b.WriteString(checks.String() + "\n")
	}

	clusters := run.NewTable("CLUSTER", "STAGE", "RELEASED", "SETTLED", "WHY NOT YET")
	for _, c := range s.Clusters {
		r := cli.Row{Cells: []cli.Cell{{Text: cli.OneLine(c.Name)}, {Text: cli.OneLine(c.Stage)}, {}, {}, {Text: cli.OneLine(c.Because)}}}
		if c.Released != nil {
			r.Cells[2].Text = cli.Timestamp(&metav1.Time{Time: c.Released.Time})
		}
		if c.Settled != nil {
			r.Cells[3].Text = cli.Timestamp(&metav1.Time{Time: c.Settled.Time})
		}
		clusters.Rows = append(clusters.Rows, r)
	}
	b.WriteString(clusters.String() + "\n")

	lines := s.Timeline
	if !all && len(lines) > linesShown {
		lines = lines[len(lines)-linesShown:]
		fmt.Fprintf(&b, "… %d lines before; --all shows them\n", len(s.Timeline)-linesShown)
	}
	for _, e := range lines {
		where := strings.Join(strings.Fields(cli.OneLine(e.Stage)+" "+cli.OneLine(e.Cluster)), " ")
		if where != "" {
			where += ": "
		}
		fmt.Fprintf(&b, "%s  %s%s\n", cli.Timestamp(&e.Time), where, cli.OneLine(e.Message))
	}
	return b.String()
}

// checksTable shows the checks that were asked.
func (run *rolloutRun) checksTable(s *v1alpha1.RolloutStatus) *cli.Table {
	t := run.NewTable("CHECK", "STAGE", "WHEN", "ASKED", "STATE", "WHY")
	for _, stage := range s.Stages {
		for _, c := range stage.Checks {
			when, state := "before", cli.Cell{Text: "waits", Style: cli.Cyan}
			if c.After {
				when = "after"
			}
			switch {
			case c.Passed != nil:
				state = cli.Cell{Text: "passed", Style: cli.Green}
			case c.Failed != nil:
				state = cli.Cell{Text: "failed", Style: cli.Red}
			}
			t.Rows = append(t.Rows, cli.Row{Cells: []cli.Cell{
				{Text: cli.OneLine(c.Name)}, {Text: cli.OneLine(stage.Name)}, {Text: when}, {Text: cli.Timestamp(&c.Asked)}, state, {Text: cli.OneLine(c.Message)},
			}})
		}
	}
	return t
}

// waiting is one entry of explain.
type waiting struct {
	Cluster string `json:"cluster"`
	Stage   string `json:"stage"`
	// Has means that the cluster does not wait; else Because has the reason.
	Has bool `json:"has"`
	// Absent means that the change removes the component.
	Absent  bool   `json:"absent,omitempty"`
	Because string `json:"because,omitempty"`
}

func newRolloutExplain(inv *cli.Invocation) *cobra.Command {
	run := &rolloutRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	return &cobra.Command{
		Use:   "explain COMPONENT [CLUSTER]",
		Short: "Say in one sentence why a cluster has not got a change",
		Long: `Explain prints why one cluster, or each waiting cluster, does not have the
current change yet: the stage before it, the check that has not passed, the
next window, the freeze that holds it, or the person who paused it.

Exit codes: 0 printed, 2 the hub can't be read, or has no such rollout or
cluster.`,
		Example: `  keelson rollout explain coredns prod-us-01
  keelson rollout explain coredns -o json`,
		Args:              cli.Args("COMPONENT [CLUSTER]", 1, 2),
		ValidArgsFunction: run.completeRollouts(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.withRollout(cmd.Context(), args[0], func(r *v1alpha1.Rollout) error { return run.explainRollout(&r.Status, args[1:]) })
		},
	}
}

func (run *rolloutRun) explainRollout(s *v1alpha1.RolloutStatus, only []string) error {
	out := []waiting{}
	for _, c := range s.Clusters {
		one := waiting{Cluster: c.Name, Stage: c.Stage, Because: cli.OneLine(c.Because), Has: c.Because == "", Absent: c.Want == v1alpha1.HashAbsent}
		if len(only) > 0 && c.Name == only[0] || len(only) == 0 && !one.Has {
			out = append(out, one)
		}
	}
	if len(only) > 0 && len(out) == 0 {
		return fmt.Errorf("the rollout of %s has no cluster %q: no stage of pipeline %s selects it, or git does not have the component there",
			s.Component, only[0], s.Pipeline)
	}
	var b strings.Builder
	for _, one := range out {
		switch {
		case one.Has && one.Absent:
			fmt.Fprintf(&b, "%s has %s no longer, as git says.\n", cli.OneLine(one.Cluster), cli.OneLine(s.Component))
		case one.Has:
			fmt.Fprintf(&b, "%s has %s.\n", one.Cluster, cli.OneLine(s.To))
		default:
			fmt.Fprintf(&b, "%s (stage %s) waits: %s.\n", cli.OneLine(one.Cluster), cli.OneLine(one.Stage), one.Because)
		}
	}
	return run.Show(out, cmp.Or(b.String(), "no cluster waits\n"))
}

// completeRollouts completes a component with a pipeline, then up to so many clusters that have the
// component.
func (run *rolloutRun) completeRollouts(clusters int) cobra.CompletionFunc {
	return run.fleets.Complete(func(f *registry.Fleet, args []string) []string {
		if len(args) > clusters {
			return nil
		}
		var out []string
		for _, c := range f.Clusters {
			for _, d := range c.Deliveries {
				switch {
				case len(args) == 1 && d.Component == args[0]:
					out = append(out, c.Name)
				case len(args) == 0 && f.PipelineOf(d.Component) != nil:
					out = append(out, d.Component)
				}
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	})
}
