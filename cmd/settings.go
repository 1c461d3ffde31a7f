package cmd

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

// defaultConfig is the settings file in the current folder; it may be missing.
const defaultConfig = "keelson.yaml"

// configure sets the flags that were not given, from the environment and the settings file, and
// checks the global settings.
func (a *app) configure(cmd *cobra.Command) error {
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
		if f.Changed || !v.IsSet(f.Name) || !configurable(f.Name) {
			return
		}
		if err := setFlag(f, v.Get(f.Name)); err != nil {
			where := cmp.Or(file, defaultConfig)
			env := "KEELSON_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			if os.Getenv(env) != "" {
				where = env
			}
			wrong = append(wrong, usagef("%s: %s: %w", where, f.Name, err))
		}
	})
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	if cmd.Flags().Changed("trusted-keys") && len(a.trustedKeys) == 0 {
		return usagef("--trusted-keys names no file: is a variable empty?") // it would turn verification off
	}
	if slices.Contains(a.allowExec, "") {
		return usagef("--allow-exec names no program: is a variable empty?")
	}
	if a.verbose {
		a.log = slog.New(slog.NewTextHandler(a.env.Err, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return oneOf("--color", a.color, colorAuto, colorAlways, colorNever)
}

// configurable reports whether a setting may come from the environment or a file. A confirmation
// must be given each time.
func configurable(name string) bool {
	return !slices.Contains([]string{"accept-rewind", "all", "because", "config", "force", "help", "unpin", "version", "yes"}, name)
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
			set.VisitAll(func(f *pflag.Flag) { known[f.Name] = configurable(f.Name) })
		}
	}
	for key := range v.AllSettings() {
		switch {
		case !v.InConfig(key):
		case !known[key]:
			return "", usagef("%s: there is no setting %q: settings bear the names of flags", file, key)
		case !given && !harmless(key):
			return "", usagef("%s: %s is not taken from a file that was not asked for: give --%s or --config %s, or set KEELSON_%s",
				file, key, key, file, strings.ToUpper(strings.ReplaceAll(key, "-", "_")))
		case !given && key == "repo" && os.Getenv("KEELSON_GIT_PASSWORD") != "":
			return "", usagef("%s: it would choose where KEELSON_GIT_PASSWORD is sent, and was not asked for: give --repo or --config %s", file, file)
		}
	}
	return file, nil
}

// harmless says whether a setting may come from a keelson.yaml that merely lies in the
// current folder. A pull request can add such a file to a repository whose CI runs
// keelson. So the file may only choose how results are shown and which fleet is read. It
// may not name a file, a program, a server that gets a login, or a trusted key.
func harmless(name string) bool {
	return slices.Contains([]string{
		"api-versions", "color", "interval", "kube-version", "log-format", "output", "repo", "revision", "timeout", "verbose",
	}, name)
}

// oneOf checks a setting that has a few allowed values.
func oneOf(name, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	last := len(allowed) - 1
	return usagef("%s takes %s or %s, and not %q", name, strings.Join(allowed[:last], ", "), allowed[last], value)
}
