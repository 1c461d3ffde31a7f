package cmd

import (
	"bytes"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/registry/edit"
)

// pauseRun is one run of pause.
type pauseRun struct {
	*cli.Invocation
	fleets *fleetrepo.Opener
}

func newPause(inv *cli.Invocation) *cobra.Command {
	run := &pauseRun{Invocation: inv, fleets: fleetrepo.New(inv)}
	var because string
	cmd := &cobra.Command{
		Use:     "pause CLUSTER [COMPONENT]",
		GroupID: cli.GroupGit,
		Short:   "Say in git that nothing is to change on a cluster",
		Long: `Pause writes "paused: true" into the work tree of --repo: into the cluster's
cluster.yaml, or into the component's file beside it, which is made where only
layers set the component. Every other byte stays as it is. Commit and push it:
from then on nothing is changed there, not even drift, and status says Paused.

Exit codes: 0 it is paused, 2 it can't be written.`,
		Example: `  keelson pause prod-us-01 --because "INC-321: etcd is being mended"
  keelson pause prod-us-01 coredns`,
		Args:              cli.Args("CLUSTER [COMPONENT]", 1, 2),
		ValidArgsFunction: run.fleets.CompleteNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.pause(cmd.Context(), args, true, because)
		},
	}
	cmd.Flags().StringVar(&because, "because", "", "the `REASON`, for a comment on the line")
	return cmd
}

func newResume(inv *cli.Invocation) *cobra.Command {
	run := &pauseRun{Invocation: inv, fleets: fleetrepo.New(inv)}
	return &cobra.Command{
		Use:     "resume CLUSTER [COMPONENT]",
		GroupID: cli.GroupGit,
		Short:   "Take back what pause said",
		Long: `Resume removes the line "paused: true" from the work tree of --repo, whether
'keelson pause' or a person wrote it. Commit and push the change: from then on
Keelson applies git to the cluster again.

Exit codes: 0 it is not paused, 2 it can't be written.`,
		Example: `  keelson resume prod-us-01
  keelson resume prod-us-01 coredns`,
		Args:              cli.Args("CLUSTER [COMPONENT]", 1, 2),
		ValidArgsFunction: run.fleets.CompleteNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.pause(cmd.Context(), args, false, "")
		},
	}
}

// newMeta returns an empty meta-config file.
func newMeta() []byte {
	return []byte("apiVersion: " + v1alpha1.GroupVersion.String() + "\nkind: " + v1alpha1.KindMetaConfig + "\n")
}

// pause sets or removes paused in a file of the work tree.
func (run *pauseRun) pause(ctx context.Context, names []string, paused bool, because string) error {
	command := map[bool]string{true: "pause", false: "resume"}[paused]
	if err := run.CheckFormat(); err != nil {
		return err
	}
	tree, err := run.fleets.OpenWorkTree(ctx, command)
	if err != nil {
		return err
	}
	defer tree.Close()
	c, err := tree.Cluster(names[0])
	if err != nil {
		return err
	}
	e := fleetrepo.Edited{Cluster: c.Name, File: "clusters/" + c.Name + "/cluster.yaml"}
	what := c.Name
	if len(names) > 1 {
		e.Component, what = names[1], names[1]+" on "+c.Name
		e.File = "clusters/" + c.Name + "/" + e.Component + ".yaml"
		if err := tree.Component(c, e.Component); err != nil {
			return err
		}
	}
	e.Changed, err = tree.Edit(e.File, func(data []byte) ([]byte, error) { return pauseFile(data, e.Component, paused, because) })
	if err != nil {
		return err
	}
	if !paused && e.Component != "" && c.Spec.Paused {
		run.Warn("%s itself is paused, with all its components: 'keelson resume %s'", c.Name, c.Name)
	}
	if run.Output != cli.FormatText {
		return run.Encode(e)
	}
	state := map[bool]string{true: "paused", false: "not paused"}[paused]
	if !e.Changed {
		fmt.Fprintf(run.Env.Out, "%s is %s already (%s)\n", what, state, e.File)
		return nil
	}
	fmt.Fprintf(run.Env.Out, "%s: %s is %s\n", e.File, what, state)
	message := command + " " + what
	if because != "" {
		message += ": " + because
	}
	run.fleets.Commit(e, message)
	return nil
}

// pauseFile returns the new content of a file; nil data: there is no file. If resume leaves a
// component's file empty, it is removed: pause created it.
func pauseFile(data []byte, component string, paused bool, because string) ([]byte, error) {
	if data == nil {
		if !paused || component == "" {
			return nil, nil
		}
		data = newMeta()
	}
	after, err := edit.Paused(data, paused, because)
	if err != nil {
		return nil, err
	}
	if !paused && component != "" && !bytes.Equal(after, data) && bytes.Equal(after, newMeta()) {
		return nil, nil
	}
	return after, nil
}
