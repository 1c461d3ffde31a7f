// Package cmd implements lab's command line, one file per command.
package cmd

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
)

// Exit codes.
const (
	exitTrouble  = 1
	exitUsage    = 2
	exitNotThere = 3
)

// usageError is an error in the command line.
type usageError struct{ error }

// ExitCode returns the exit code for err: 0 without an error, 1 when something failed, 2 when the
// command line is wrong, 3 when a cluster doesn't exist or programs aren't built.
func ExitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage), errors.Is(err, cluster.ErrOptions), errors.Is(err, cluster.ErrNoComponent), errors.Is(err, binaries.ErrUnknown):
		return exitUsage
	case errors.Is(err, cluster.ErrNotFound), errors.Is(err, binaries.ErrMissing):
		return exitNotThere
	default:
		return exitTrouble
	}
}

// New returns the command tree.
func New() *cobra.Command {
	var dir string
	root := &cobra.Command{
		Use:   "lab",
		Short: "Real Kubernetes clusters on loopback, built from Go modules",
		Long: `lab builds etcd, the Kubernetes control plane and kwok from their Go modules and
runs any number of named clusters with them: no container engine, no registry,
no root. API servers, controllers and the scheduler are the real ones; nodes and
pods are played by kwok.

Clusters outlive the command. Each is a folder under the state directory:
--state-dir, else $KEELSON_LAB_DIR, else $XDG_STATE_HOME/keelson/lab, else
~/.local/state/keelson/lab.

Exit codes: 0 done, 1 failed, 2 wrong command line, 3 no such cluster or
programs that are not built.`,
		Example: `  lab build
  lab up hub --control-plane-only
  lab up testing canary production --nodes 5
  kubectl --kubeconfig "$(lab kubeconfig testing)" get nodes
  lab down --all`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          known,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w\nsee: %s --help", err, c.CommandPath())}
	})
	root.PersistentFlags().StringVar(&dir, "state-dir", "", "where clusters are kept (default: see above)")
	_ = root.MarkPersistentFlagDirname("state-dir") // fails only for an unknown flag

	open := func(c *cobra.Command) (*cluster.Lab, error) {
		if dir == "" {
			var err error
			if dir, err = cluster.DefaultDir(); err != nil {
				return nil, err
			}
		}
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
		return &cluster.Lab{
			Dir: abs,
			Say: func(line string) { fmt.Fprintln(c.ErrOrStderr(), line) },
		}, nil
	}
	root.AddCommand(
		newBuild(), newAssets(),
		newUp(open), newDown(open), newStop(open), newStart(open),
		newStatus(open), newKubeconfig(open), newLogs(open), newOpenAPI(open),
		newFleet(), newNode(),
	)
	return root
}

// opener opens the lab that the flags select.
type opener func(*cobra.Command) (*cluster.Lab, error)

// run returns the function that opens the lab and calls do.
func (open opener) run(do func(c *cobra.Command, l *cluster.Lab, given []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, given []string) error {
		l, err := open(c)
		if err != nil {
			return err
		}
		return do(c, l, given)
	}
}

// known rejects unknown commands; cobra calls it with arguments only for these.
func known(c *cobra.Command, given []string) error {
	if len(given) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q", given[0])
	if similar := c.SuggestionsFor(given[0]); len(similar) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(similar, " or "))
	}
	return usageError{fmt.Errorf("%w\nsee: %s --help", err, c.CommandPath())}
}

// args converts the errors of a cobra validator into usage errors.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		if err := check(c, given); err != nil {
			return usageError{fmt.Errorf("%w\nusage: %s", err, c.UseLine())}
		}
		return nil
	}
}

// complete completes cluster names. If parts is set, it completes names of components after the
// first argument.
func complete(open opener, parts bool) cobra.CompletionFunc {
	return func(c *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if parts && len(given) > 0 {
			return cluster.Components(), cobra.ShellCompDirectiveNoFileComp
		}
		l, err := open(c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		names, err := l.Names()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
