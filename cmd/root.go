// Package cmd is Keelson's command line, with one file for each command.
//
// Every command takes its input from arguments and settings, and its environment
// from an [Env]. It returns its outcome as an error. Settings come from flags, then
// KEELSON_* in the environment, then keelson.yaml, then defaults. Results go to Out
// and messages about them to Err, so that Out can be piped.
package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/rendering"
	"github.com/keelson-io/keelson/cmd/internal/workloadcmd"
)

// Env is the environment of commands.
type Env = cli.Env

// helpColumns is the width of help texts.
const helpColumns = 80

// Run runs one command line and returns the code for the process to exit with.
func Run(ctx context.Context, env Env, args []string) int {
	root, inv := build(env) //nolint:contextcheck // commands take their context from cobra
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	inv.Close()
	if err != nil && !inv.Started && !errors.As(err, new(*cli.UsageError)) {
		err = &cli.UsageError{Err: err} // from cobra: an unknown command, or a bad flag
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, cli.ErrFound):
		return cli.ExitFound
	case ctx.Err() != nil:
		fmt.Fprintln(env.Err, "keelson: stopped by a signal")
		return cli.ExitStopped
	}
	env = inv.Env // it writes through the redactor
	fmt.Fprintln(env.Err, "keelson: "+cli.Clean(strings.TrimSpace(err.Error())))
	if errors.As(err, new(*cli.UsageError)) {
		fmt.Fprintf(env.Err, "See '%s --help'.\n", cmd.CommandPath())
	}
	return cli.ExitTrouble
}

// New returns the whole command tree.
func New(env Env) *cobra.Command {
	root, _ := build(env)
	return root
}

func build(env Env) (*cobra.Command, *cli.Invocation) {
	inv := cli.NewInvocation(env)
	env = inv.Env
	root := &cobra.Command{
		Use:   "keelson",
		Short: "Deliver the components of Kubernetes clusters from git",
		Long: `Keelson delivers the components of Kubernetes clusters from one git repository.
It reads the desired state from git, renders it, compares it with the cluster,
and applies the changes. Dangerous changes wait for an approval.

A setting comes from a flag, else from the environment (--kube-version is
KEELSON_KUBE_VERSION), else from keelson.yaml in the current folder (or
--config). The keys of keelson.yaml are the names of the flags.

For a repository with a password, set KEELSON_GIT_USERNAME and
KEELSON_GIT_PASSWORD, or name the hosts that get a password in
--git-credentials. The host key of an SSH server must be known. With
--trusted-keys, commits of branches and tags of versions must be signed, and a
branch never goes back.`,
		Example: `  keelson validate --trusted-keys allowed_signers
  keelson diff prod-us-01 --repo ssh://git@git.example/fleet.git \
    --git-credentials logins.yaml`,
		Version:       cmp.Or(env.Version, "dev"),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd {
				return nil // completion reads the settings itself, without messages
			}
			if err := inv.Configure(cmd); err != nil {
				return err
			}
			inv.Started = true
			return rendering.CheckAgeKeys(inv.AgeKeyFile)
		},
	}
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &cli.UsageError{Err: err} })
	root.SetVersionTemplate("keelson {{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", helpColumns)))
	inv.AddFlags(root)
	root.AddGroup(
		&cobra.Group{ID: cli.GroupGit, Title: "What git says:"},
		&cobra.Group{ID: cli.GroupCluster, Title: "What clusters run:"},
		&cobra.Group{ID: cli.GroupLoops, Title: "Keep clusters as git says:"},
	)
	root.AddCommand(
		newValidate(inv), newRender(inv), newPreview(inv), newExplain(inv), newPolicy(inv), newVendor(inv),
		newDiff(inv), newApply(inv), newStatus(inv), newHistory(inv), newRollback(inv), newRollout(inv), newProbe(inv), newNotify(inv), newApprove(inv), newRBAC(inv),
		workloadcmd.New(inv), newPause(inv), newResume(inv), newPromote(inv),
		newController(inv), newWorkloads(inv),
		newVersion(inv), newWorker(inv), newPreviewWorker(inv),
	)
	return root, inv
}
