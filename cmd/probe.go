package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/registry"
)

// probeRun is one run of probe.
type probeRun struct {
	*cli.Invocation
	fleets   *fleetrepo.Opener
	clusters connection.Connector
}

func newProbe(inv *cli.Invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "probe",
		GroupID: cli.GroupCluster,
		Short:   "Show what came of black-box tests on clusters",
		Long: `Probes are black-box tests that run all the time on the clusters that they
select. They create, upgrade, scale and delete workloads as a user would.
probes/NAME.yaml defines a probe. Its results are ProbeResults in the hub
(--kubeconfig and --context), and a check of a pipeline can require them.`,
		Example: `  keelson probe list --failing
  keelson probe show workloads prod-us-01`,
		Args: cli.Args("list", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newProbeList(inv), newProbeShow(inv))
	return cmd
}

var errNoProbeResults = errors.New("the hub knows no ProbeResults: either no probe of the fleet has run yet, " +
	"or 'keelson controller' never ran there, or --context names another cluster than the hub")

func newProbeList(inv *cli.Invocation) *cobra.Command {
	run := &probeRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	var failing bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the results of all probes on all clusters",
		Long: `List prints how the last run of each probe on each cluster ended, since when it
is so, and when a run passed last. While nothing changes, that is written once
an hour.

Exit codes: 0 printed, 2 the hub can't be read.`,
		Example: `  keelson probe list
  keelson probe list --failing -o json`,
		Args: cli.Args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return run.listProbes(cmd.Context(), failing) },
	}
	cmd.Flags().BoolVar(&failing, "failing", false, "leave out those that pass")
	return cmd
}

func (run *probeRun) listProbes(ctx context.Context, failing bool) error {
	var list v1alpha1.ProbeResultList
	if err := run.clusters.ListHub(ctx, &list, "results of probes", errNoProbeResults); err != nil {
		return err
	}
	list.Items = slices.DeleteFunc(list.Items, func(r v1alpha1.ProbeResult) bool { return failing && r.Status.Outcome == v1alpha1.ProbePassed })
	slices.SortFunc(list.Items, func(x, y v1alpha1.ProbeResult) int {
		return cmp.Or(cmp.Compare(x.Status.Cluster, y.Status.Cluster), cmp.Compare(x.Status.Probe, y.Status.Probe))
	})
	t := run.NewTable("CLUSTER", "PROBE", "OUTCOME", "SINCE", "LAST PASSED", "MESSAGE")
	for i := range list.Items {
		s := &list.Items[i].Status
		t.Rows = append(t.Rows, cli.Row{Cells: []cli.Cell{
			{Text: cli.OneLine(s.Cluster)}, {Text: cli.OneLine(s.Probe)}, outcome(s.Outcome), {Text: run.Age(s.Since)}, {Text: run.Age(s.Passed)}, {Text: cli.OneLine(s.Message)},
		}})
	}
	return run.Show(connection.BareList(&list, list.Items, "ProbeResult"), t.TextOr("no results\n"))
}

// outcome returns a cell for an outcome; an empty one means that the first run has not ended.
func outcome(o v1alpha1.ProbeOutcome) cli.Cell {
	c := cli.Cell{Text: cmp.Or(cli.OneLine(string(o)), "Unknown")}
	switch o {
	case v1alpha1.ProbePassed:
		c.Style = cli.Green
	case v1alpha1.ProbeFailed:
		c.Style = cli.Red
	}
	return c
}

func newProbeShow(inv *cli.Invocation) *cobra.Command {
	run := &probeRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	return &cobra.Command{
		Use:   "show PROBE CLUSTER",
		Short: "Show the last runs of a probe on a cluster, and what failed",
		Long: `Show prints the last runs of a probe on a cluster, at most 10, and what failed
in the last one: object, condition, pod and last events.

Exit codes: 0 it passes, 1 it fails, or has not run yet, 2 the hub can't be
read, or has no such result.`,
		Example: `  keelson probe show workloads prod-us-01
  keelson probe show workloads prod-us-01 -o yaml`,
		Args:              cli.Args("PROBE CLUSTER", 2, 2),
		ValidArgsFunction: run.fleets.Complete(completeProbes),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.showProbe(cmd.Context(), args[0], args[1])
		},
	}
}

func (run *probeRun) showProbe(ctx context.Context, probe, cluster string) error {
	hub, err := run.clusters.OpenHub()
	if err != nil {
		return err
	}
	r := &v1alpha1.ProbeResult{}
	err = hub.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: cluster + "." + probe}, r)
	switch {
	case connection.ServesNone(err):
		return errNoProbeResults
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the hub has no result of probe %q on cluster %q: it does not run there, or did not yet; see 'keelson probe list'", probe, cluster)
	case err != nil:
		return fmt.Errorf("read ProbeResult %s.%s: %w", cluster, probe, err)
	}
	err = run.Show(connection.Bare(r, "ProbeResult"), run.probeText(&r.Status))
	if err == nil && r.Status.Outcome != v1alpha1.ProbePassed {
		return cli.ErrFound
	}
	return err
}

func (run *probeRun) probeText(s *v1alpha1.ProbeResultStatus) string {
	var b strings.Builder
	paint := run.Painter(run.Env.Out)
	how := outcome(s.Outcome)
	fmt.Fprintf(&b, "%s on %s: %s", cli.OneLine(s.Probe), cli.OneLine(s.Cluster), paint.Paint(how.Style, how.Text))
	if s.Since != nil {
		fmt.Fprintf(&b, " since %s", cli.Timestamp(s.Since))
	}
	if s.Passed != nil && s.Outcome != v1alpha1.ProbePassed {
		fmt.Fprintf(&b, ", passed last at %s", cli.Timestamp(s.Passed))
	}
	b.WriteString("\n")
	if s.Message != "" {
		fmt.Fprintf(&b, "%s\n", cli.OneLine(s.Message))
	}
	b.WriteString("\n")
	t := run.NewTable("BEGUN", "TOOK", "OUTCOME", "FAILED")
	for _, run := range s.Runs {
		t.Rows = append(t.Rows, cli.Row{Cells: []cli.Cell{
			{Text: cli.Timestamp(&metav1.Time{Time: run.Begun.Time})},
			{Text: run.Ended.Sub(run.Begun.Time).Round(time.Second).String()},
			outcome(run.Outcome),
			{Text: cli.OneLine(strings.Join(run.Failed, ", "))},
		}})
	}
	b.WriteString(t.String())
	return b.String()
}

// completeProbes completes a probe, then a cluster that runs it.
func completeProbes(f *registry.Fleet, args []string) (out []string) {
	switch len(args) {
	case 0:
		for _, p := range f.Probes {
			out = append(out, p.Name)
		}
	case 1:
		p := f.Probe(args[0])
		for _, c := range f.Clusters {
			if p != nil && p.Selects(c) {
				out = append(out, c.Name)
			}
		}
	}
	return out
}
