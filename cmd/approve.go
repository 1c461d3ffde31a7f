package cmd

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/cmd/internal/planning"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry/edit"
)

type approveOptions struct {
	file, because string
	all           bool
}

// approveRun is one run of approve.
type approveRun struct {
	*cli.Invocation
	fleets   *fleetrepo.Opener
	sessions planning.Opener
}

func newApprove(inv *cli.Invocation) *cobra.Command {
	run := &approveRun{Invocation: inv, fleets: fleetrepo.New(inv), sessions: planning.NewOpener(inv)}
	var o approveOptions
	cmd := &cobra.Command{
		Use:     "approve CLUSTER [COMPONENT] [OBJECT]",
		GroupID: cli.GroupCluster,
		Short:   "Show what is held on a cluster, and approve it in git",
		Long: `Approve compares the cluster with git, as diff does, and prints the changes
that danger rules hold. With an OBJECT, or with --all, it writes approvals into
the work tree of --repo. An approval is bound to the exact difference that is
printed. Review, commit and push it. When git or the cluster changes later, it
approves nothing. A change that a rule denies can't be approved.

Exit codes: 0 nothing is held, or approvals were written; 1 something is held,
and nothing was written; 2 the cluster can't be compared, or the file not
written.`,
		Example: `  keelson approve prod-us-01
  keelson approve prod-us-01 coredns 'Deployment.apps kube-system/coredns' \
    --because CHG-1234
  keelson approve prod-us-01 coredns --all --because CHG-1234 \
    --file approvals/2026-11-coredns.yaml`,
		Args:              cli.Args("CLUSTER [COMPONENT] [OBJECT]", 1, 3),
		ValidArgsFunction: run.fleets.CompleteNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := run.CheckFormat(); err != nil {
				return err
			}
			if err := o.validate(args); err != nil {
				return err
			}
			return run.approve(cmd.Context(), args, o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.all, "all", false, "approve all that is held and shown")
	f.StringVar(&o.because, "because", "", "the `REASON`, for those who review and read it")
	f.StringVar(&o.file, "file", "", "`FILE` to write (default approvals/CLUSTER.yaml)")
	run.sessions.Renders.AddFlags(cmd)
	return cmd
}

func (o *approveOptions) validate(args []string) error {
	o.because = cli.OneLine(o.because)
	writes := o.all || len(args) == 3
	switch {
	case o.all && len(args) == 3:
		return cli.Usagef("give an object, or --all")
	case writes && o.because == "":
		return cli.Usagef("--because is missing: say why it may pass")
	case !writes && (o.because != "" || o.file != ""):
		return cli.Usagef("name the object to approve, or give --all")
	case o.file == "":
		o.file = "approvals/" + args[0] + ".yaml"
	case path.Dir(path.Clean(o.file)) != "approvals" || path.Ext(o.file) != ".yaml":
		return cli.Usagef("--file takes approvals/NAME.yaml, in the fleet repository, and not %q", o.file)
	}
	return nil
}

// heldChange is a change that an approval would release.
type heldChange struct {
	planned *planning.Planned
	change  differ.Change
}

func (run *approveRun) approve(ctx context.Context, args []string, o approveOptions) error {
	tree, err := run.fleets.OpenWorkTree(ctx, "approve")
	if err != nil {
		return err
	}
	defer tree.Close()
	s, err := run.sessions.Open(ctx, args[0], nil)
	if err != nil {
		return err
	}
	deliveries, err := fleetrepo.FindDeliveries(s.Cluster, args[1:min(len(args), 2)])
	if err != nil {
		return err
	}
	plans, err := s.PlanAll(ctx, deliveries)
	if err != nil {
		return err
	}
	held, err := run.held(plans, args)
	if err != nil {
		return err
	}
	if err := run.showHeld(s.Cluster.Name, held); err != nil {
		return err
	}
	switch {
	case len(held) == 0:
		return nil
	case !o.all && len(args) < 3:
		if run.Output == cli.FormatText {
			run.Warn("nothing was written: name the object, or give --all, and --because")
		}
		return cli.ErrFound
	}
	return run.writeApprovals(tree, s.Cluster.Name, held, o)
}

// held returns the changes that an approval would release; if args name an object, its changes
// alone.
func (run *approveRun) held(plans []planning.Planned, args []string) ([]heldChange, error) {
	var held []heldChange
	for i := range plans {
		p := &plans[i]
		if p.Err != nil && len(plans) == 1 {
			return nil, p.Err
		}
		if p.Err != nil {
			if unserved(p.Err) {
				run.Warn("%v", beforeDependencies(p.Component, p.Err))
				continue
			}
			run.Warn("%s can't be compared: %v", p.Component, p.Err)
			continue
		}
		for _, c := range p.Plan.Changes {
			if c.Approvable() && (len(args) < 3 || c.ID.String() == args[2]) {
				held = append(held, heldChange{planned: p, change: c})
			}
		}
	}
	if len(args) == 3 && len(held) == 0 {
		return nil, fmt.Errorf("%s of %s is not held on %s: 'keelson approve %s %s' shows what is", args[2], args[1], args[0], args[0], args[1])
	}
	return held, nil
}

// showHeld prints the held changes, with their differences and hashes.
func (run *approveRun) showHeld(cluster string, held []heldChange) error {
	if run.Output != cli.FormatText {
		all := differ.Plan{Changes: []differ.Change{}}
		for _, h := range held {
			all.Changes = append(all.Changes, h.change)
		}
		return run.Encode(all)
	}
	paint := run.Painter(run.Env.Out)
	var b bytes.Buffer
	for i, h := range held {
		if i == 0 || held[i-1].planned != h.planned {
			b.WriteString(paint.Paint(cli.Bold, h.planned.Title()) + "\n\n")
		}
		if err := (differ.Plan{Changes: []differ.Change{h.change}}).WriteText(&b, bool(paint)); err != nil {
			return fmt.Errorf("show what is held: %w", err)
		}
	}
	b.WriteString(paint.Paint(cli.OutcomeStyle(len(held) == 0), cluster+": "+cli.Plural(len(held), "object is", "objects are")+" held") + "\n")
	return run.Write(b.Bytes())
}

func (run *approveRun) writeApprovals(tree *fleetrepo.WorkTree, cluster string, held []heldChange, o approveOptions) error {
	var lines []v1alpha1.Approval
	for _, h := range held {
		line := v1alpha1.Approval{
			Cluster: cluster, Component: h.planned.Component, Object: h.change.ID.String(), Hash: h.change.Hash, Because: o.because,
		}
		if !tree.Approved(line) {
			lines = append(lines, line)
		}
	}
	e := fleetrepo.Edited{Cluster: cluster, File: path.Clean(o.file)}
	if len(lines) > 0 {
		var err error
		if e.Changed, err = tree.Edit(e.File, func(data []byte) ([]byte, error) { return edit.Approve(data, lines) }); err != nil {
			return err
		}
	}
	if run.Output != cli.FormatText {
		return nil // showHeld has printed the plan, with its hashes
	}
	if !e.Changed {
		fmt.Fprintln(run.Env.Out, "the work tree approves it already: commit and push it")
		return nil
	}
	fmt.Fprintf(run.Env.Out, "%s: %s\n", e.File, cli.Plural(len(lines), "approval added", "approvals added"))
	run.fleets.Commit(e, "approve "+strings.Join(componentsOf(held), ", ")+" on "+cluster+": "+o.because)
	return nil
}

func componentsOf(held []heldChange) []string {
	var names []string
	for _, h := range held {
		names = append(names, h.planned.Component)
	}
	return slices.Compact(names)
}
