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
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Env is the environment of commands.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	Now      func() time.Time
	// Version is Keelson's version.
	Version string
	// Redactor knows the secrets; Out and Err are written through it. Nil: a new one.
	Redactor *redact.Redactor
	// Columns returns the width of a writer's terminal; 0: it is no terminal. Nil: there is none.
	Columns func(io.Writer) int
	// Asks reports whether a person reads Err and can answer on In. Nil: no.
	Asks func() bool
	// SetLog makes the libraries of the process log through a logger, too. Nil: they keep their
	// logs.
	SetLog func(*slog.Logger)
	// Completion bounds the time of a shell completion; 0: 3 seconds.
	Completion time.Duration
	// Schemas are shared by all connections to clusters. Nil: a new cache.
	Schemas *applier.SchemaCache
}

// The exit codes of all commands.
const (
	exitFound   = 1   // for example, validate found problems, or diff found differences
	exitTrouble = 2   // the command failed, or the answer is unknown
	exitStopped = 130 // stopped by a signal
)

// helpColumns is the width of help texts.
const helpColumns = 80

// errFound ends a command with exitFound; the output has shown the reason.
var errFound = errors.New("found")

// usageError is a mistake in the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

// Run runs one command line and returns the code for the process to exit with.
func Run(ctx context.Context, env Env, args []string) int {
	root, a := build(env) //nolint:contextcheck // commands take their context from cobra
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	a.rendering.close()
	if err != nil && !a.started && !errors.As(err, new(*usageError)) {
		err = &usageError{err: err} // from cobra: an unknown command, or a bad flag
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFound):
		return exitFound
	case ctx.Err() != nil:
		fmt.Fprintln(env.Err, "keelson: stopped by a signal")
		return exitStopped
	}
	env = a.env // it writes through the redactor
	fmt.Fprintln(env.Err, "keelson: "+clean(strings.TrimSpace(err.Error())))
	if errors.As(err, new(*usageError)) {
		fmt.Fprintf(env.Err, "See '%s --help'.\n", cmd.CommandPath())
	}
	return exitTrouble
}

// New returns the whole command tree.
func New(env Env) *cobra.Command {
	root, _ := build(env)
	return root
}

// app is the state that all commands share.
type app struct {
	env     Env
	log     *slog.Logger
	started bool // the command line is valid

	// The global settings.
	repo, revision      string
	output              string
	kubeconfig, context string
	color, config       string
	allowExec           []string
	ageKeyFile          string
	trustedKeys         []string
	acceptRewind        string
	gitCredentials      string
	verbose             bool
	// delivers means that content of the repository is delivered.
	delivers bool

	rendering rendering
}

func build(env Env) (*cobra.Command, *app) {
	if env.Columns == nil {
		env.Columns = func(io.Writer) int { return 0 }
	}
	if env.SetLog == nil {
		env.SetLog = func(*slog.Logger) {}
	}
	if env.Asks == nil {
		env.Asks = func() bool { return false }
	}
	env.Schemas = cmp.Or(env.Schemas, applier.NewSchemaCache())
	if env.Redactor == nil {
		env.Redactor = redact.New()
	}
	env = env.behind()
	a := &app{log: slog.New(slog.DiscardHandler)}
	a.env = env
	root := &cobra.Command{
		Use:   "keelson",
		Short: "Deliver the components of Kubernetes clusters from git",
		Long: `Keelson delivers the components of Kubernetes clusters from one git
repository: what should run where is read from git, rendered, compared with
what runs, and applied without the dangerous part.

Settings come from flags, then from the environment (--kube-version is
KEELSON_KUBE_VERSION), then from keelson.yaml in the current folder (or
--config), where they bear the names of the flags.

For a repository behind a password, set KEELSON_GIT_USERNAME and
KEELSON_GIT_PASSWORD, or name the hosts that get one in --git-credentials. Of a
server behind SSH the host key has to be known. With --trusted-keys, commits of
branches and tags of versions have to be signed, and branches never go back.`,
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
			if err := a.configure(cmd); err != nil {
				return err
			}
			a.started = true
			return a.checkAgeKeys()
		},
	}
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err: err} })
	root.SetVersionTemplate("keelson {{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", helpColumns)))
	a.globalFlags(root)
	root.AddGroup(
		&cobra.Group{ID: groupGit, Title: "What git says:"},
		&cobra.Group{ID: groupCluster, Title: "What clusters run:"},
		&cobra.Group{ID: groupLoops, Title: "Keep clusters as git says:"},
	)
	root.AddCommand(
		newValidate(a), newRender(a), newPreview(a), newExplain(a), newPolicy(a), newVendor(a),
		newDiff(a), newApply(a), newStatus(a), newHistory(a), newRollback(a), newRollout(a), newProbe(a), newNotify(a), newApprove(a), newRBAC(a),
		newWorkload(a), newPause(a), newResume(a), newPromote(a),
		newController(a), newWorkloads(a),
		newVersion(a), newWorker(a), newPreviewWorker(a),
	)
	return root, a
}

// The groups of commands in the help.
const (
	groupGit     = "git"
	groupCluster = "cluster"
	groupLoops   = "loops"
)

func (a *app) globalFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&a.repo, "repo", ".", "fleet repository: a `PATH|URL`")
	f.StringVar(&a.revision, "revision", "", "branch, tag or commit `REV` of it (default its HEAD)")
	f.StringSliceVar(&a.trustedKeys, "trusted-keys", nil, "`FILE` of keys that have to sign the repository: SSH\nallowed_signers, armored OpenPGP; may be repeated")
	f.StringVar(&a.acceptRewind, "accept-rewind", "", "let a signed branch go back, or aside, to `COMMIT`, once")
	f.StringVar(&a.gitCredentials, "git-credentials", "", "`FILE` of logins for git servers, by exact address")
	f.StringVarP(&a.output, "output", "o", outputText, "`FORMAT` of the output: text, json or yaml;\ndiff has patch and markdown, too")
	f.StringVar(&a.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: KUBECONFIG, as kubectl)")
	f.StringVar(&a.context, "context", "", "`CONTEXT` of the hub in the kubeconfig")
	f.StringSliceVar(&a.allowExec, "allow-exec", nil, "`PROGRAM` that the kubeconfig may get credentials from:\nits command or absolute path; may be repeated")
	f.StringVar(&a.ageKeyFile, "age-key-file", "", "`FILE` of age keys for values that SOPS encrypted\n(default: as sops, SOPS_AGE_KEY_FILE and so on)")
	f.StringVar(&a.color, "color", colorAuto, "`WHEN` to color the output: auto, always or never")
	f.StringVar(&a.config, "config", "", "settings `FILE` (default: keelson.yaml, if it exists)")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "say on stderr what is being done")
	for name, values := range map[string][]string{
		"output": {outputText, outputJSON, outputYAML},
		"color":  {colorAuto, colorAlways, colorNever},
	} {
		// It only fails for a flag that does not exist.
		_ = root.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// args checks the number of a command's arguments; a wrong number is a usage error.
func args(names string, least, most int) cobra.PositionalArgs {
	return func(_ *cobra.Command, got []string) error {
		switch {
		case len(got) < least:
			return usagef("an argument is missing: give %s", names)
		case most >= 0 && len(got) > most && most == 0:
			return usagef("it takes no arguments, and got %q", got[0])
		case most >= 0 && len(got) > most:
			return usagef("too many arguments: give %s, and not %q", names, got[most])
		}
		return nil
	}
}
