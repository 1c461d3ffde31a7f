package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// Settings are the global flags.
type Settings struct {
	// Repo is a folder or a URL, and Revision a revision of it; empty: its HEAD.
	Repo, Revision string
	// TrustedKeys are files. Without any, no signature is verified.
	TrustedKeys    []string
	AcceptRewind   string // a commit
	GitCredentials string // a file
	AgeKeyFile     string
	// Output is the format of -o. A command says which ones it has (CheckFormat).
	Output string
	// Kubeconfig and KubeContext name the hub.
	Kubeconfig, KubeContext string
	// AllowExec are the programs that a kubeconfig may run.
	AllowExec     []string
	Verbose       bool
	color, config string
}

// AddFlags adds the global flags to the root of the command tree.
func (inv *Invocation) AddFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&inv.Repo, "repo", ".", "fleet repository: a `PATH|URL`")
	f.StringVar(&inv.Revision, "revision", "", "branch, tag or commit `REV` of it (default its HEAD)")
	f.StringSliceVar(&inv.TrustedKeys, "trusted-keys", nil, "`FILE` of keys that have to sign the repository: SSH\nallowed_signers, armored OpenPGP; may be repeated")
	f.StringVar(&inv.AcceptRewind, "accept-rewind", "", "let a signed branch go back, or aside, to `COMMIT`, once")
	f.StringVar(&inv.GitCredentials, "git-credentials", "", "`FILE` of logins for git servers, by exact address")
	f.StringVarP(&inv.Output, "output", "o", FormatText, "`FORMAT` of the output: text, json or yaml;\ndiff has patch and markdown, too")
	f.StringVar(&inv.Kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: KUBECONFIG, as kubectl)")
	f.StringVar(&inv.KubeContext, "context", "", "`CONTEXT` of the hub in the kubeconfig")
	f.StringSliceVar(&inv.AllowExec, "allow-exec", nil, "`PROGRAM` that the kubeconfig may get credentials from:\nits command or absolute path; may be repeated")
	f.StringVar(&inv.AgeKeyFile, "age-key-file", "", "`FILE` of age keys for values that SOPS encrypted\n(default: as sops, SOPS_AGE_KEY_FILE and so on)")
	f.StringVar(&inv.color, "color", colorAuto, "`WHEN` to color the output: auto, always or never")
	f.StringVar(&inv.config, "config", "", "settings `FILE` (default: keelson.yaml, if it exists)")
	f.BoolVarP(&inv.Verbose, "verbose", "v", false, "say on stderr what is being done")
	for name, values := range map[string][]string{
		"output": {FormatText, FormatJSON, FormatYAML},
		"color":  {colorAuto, colorAlways, colorNever},
	} {
		// It only fails for a flag that does not exist.
		_ = root.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// defaultConfig is the settings file in the current folder; it may be missing.
const defaultConfig = "keelson.yaml"

// Configure sets the flags that were not given, from the environment and the settings file, and
// checks the global settings.
func (inv *Invocation) Configure(cmd *cobra.Command) error {
	v := viper.New()
	v.SetEnvPrefix("KEELSON")
	v.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	v.AutomaticEnv()
	if err := v.BindPFlags(cmd.Flags()); err != nil {
		return fmt.Errorf("bind flags: %w", err)
	}
	file, err := readConfig(v, v.GetString("config"), cmd.Root())
	if err != nil {
		return err
	}
	var wrong []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || !v.IsSet(f.Name) || !Configurable(f.Name) {
			return
		}
		if err := setFlag(f, v.Get(f.Name)); err != nil {
			where := cmp.Or(file, defaultConfig)
			env := "KEELSON_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			if os.Getenv(env) != "" {
				where = env
			}
			wrong = append(wrong, Usagef("%s: %s: %w", where, f.Name, err))
		}
	})
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	if cmd.Flags().Changed("trusted-keys") && len(inv.TrustedKeys) == 0 {
		return Usagef("--trusted-keys names no file: is a variable empty?") // it would turn verification off
	}
	if slices.Contains(inv.AllowExec, "") {
		return Usagef("--allow-exec names no program: is a variable empty?")
	}
	if inv.Verbose {
		inv.Log = slog.New(slog.NewTextHandler(inv.Env.Err, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return OneOf("--color", inv.color, colorAuto, colorAlways, colorNever)
}

// Configurable reports whether a setting may come from the environment or a file. A confirmation
// must be given each time.
func Configurable(name string) bool {
	return !slices.Contains([]string{"accept-rewind", "all", "approve", "because", "config", "despite-freeze", "force", "help", "now", "reason", "show-secrets", "unpin", "version", "yes"}, name)
}

func setFlag(f *pflag.Flag, value any) error {
	if list, ok := value.([]any); ok {
		slice, ok := f.Value.(pflag.SliceValue)
		if !ok {
			return errors.New("it takes one value and not a list")
		}
		items := make([]string, len(list))
		for i, item := range list {
			items[i] = fmt.Sprint(item)
		}
		return slice.Replace(items) //nolint:wrapcheck // the caller says where
	}
	if _, ok := value.(map[string]any); ok {
		return errors.New("it takes one value and not a map")
	}
	return f.Value.Set(fmt.Sprint(value)) //nolint:wrapcheck // the caller says where
}

// readConfig reads the settings file, strictly, and returns its name; "" if there is none.
func readConfig(v *viper.Viper, file string, root *cobra.Command) (string, error) {
	given := file != ""
	if !given {
		file = defaultConfig
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
	}
	v.SetConfigFile(file)
	v.SetConfigType("yaml")
	if err := v.ReadInConfig(); err != nil {
		return "", fmt.Errorf("read settings from %s: %w", file, err)
	}
	known := map[string]bool{}
	for _, c := range append(root.Commands(), root) {
		for _, set := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { known[f.Name] = Configurable(f.Name) })
		}
	}
	for key := range v.AllSettings() {
		switch {
		case !v.InConfig(key):
		case !known[key]:
			return "", Usagef("%s: there is no setting %q: settings bear the names of flags", file, key)
		case !given && !Harmless(key):
			return "", Usagef("%s: %s is not taken from a file that was not asked for: give --%s or --config %s, or set KEELSON_%s",
				file, key, key, file, strings.ToUpper(strings.ReplaceAll(key, "-", "_")))
		case !given && key == "repo" && os.Getenv("KEELSON_GIT_PASSWORD") != "":
			return "", Usagef("%s: it would choose where KEELSON_GIT_PASSWORD is sent, and was not asked for: give --repo or --config %s", file, file)
		}
	}
	return file, nil
}

// Harmless reports whether a setting may come from a keelson.yaml that merely lies in the
// current folder. A pull request can add such a file to a repository whose CI runs
// keelson. So the file may only choose how results are shown and which fleet is read. It
// may not name a file, a program, a server that gets a login, or a trusted key.
func Harmless(name string) bool {
	return slices.Contains([]string{
		"api-versions", "color", "interval", "kube-version", "log-format", "output", "repo", "revision", "timeout", "verbose",
	}, name)
}

// OneOf checks a setting that has a few allowed values.
func OneOf(name, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	last := len(allowed) - 1
	return Usagef("%s takes %s or %s, and not %q", name, strings.Join(allowed[:last], ", "), allowed[last], value)
}
