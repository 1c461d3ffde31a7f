package cmd_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/keelson-io/keelson/cmd"
	"github.com/keelson-io/keelson/cmd/internal/cli"
)

var update = flag.Bool("update", false, "rewrite docs/reference")

const (
	commandPages = "../docs/reference/cli"
	settingsPage = "../docs/reference/settings.md"
)

// commandTree returns the commands that users see, with the one for shell completion.
func commandTree() *cobra.Command {
	root := cmd.New(cmd.Env{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	root.DisableAutoGenTag = true
	root.InitDefaultCompletionCmd()
	return root
}

// commands calls each with a command and all visible ones below it.
func commands(c *cobra.Command, each func(*cobra.Command)) {
	each(c)
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			commands(below, each)
		}
	}
}

// TestReference checks docs/reference/cli, a page for each command, against the command tree;
// -update rewrites the folder.
func TestReference(t *testing.T) {
	t.Parallel()
	want := map[string]string{"README.md": commandIndex(commandTree())}
	commands(commandTree(), func(c *cobra.Command) {
		want[pageOf(c)] = commandPage(t, c)
	})
	have := map[string]string{}
	files, err := filepath.Glob(commandPages + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		have[filepath.Base(file)] = string(text)
	}
	if !*update {
		if diff := cmp.Diff(have, want); diff != "" {
			t.Errorf("%s (-have +want); go test ./cmd -run TestReference -update rewrites it:\n%s", commandPages, diff)
		}
		return
	}
	if err := os.MkdirAll(commandPages, 0o755); err != nil { //nolint:gosec // documentation
		t.Fatal(err)
	}
	for name := range have {
		if _, is := want[name]; !is {
			if err := os.Remove(filepath.Join(commandPages, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, text := range want {
		if err := os.WriteFile(filepath.Join(commandPages, name), []byte(text), 0o644); err != nil { //nolint:gosec // documentation
			t.Fatal(err)
		}
	}
}

func pageOf(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "_") + ".md" }

// commandIndex lists all commands, in the groups of the help.
func commandIndex(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Commands\n\n" + madeByTest + `
Each command has a page of its own. [Settings](../settings.md) explains the flags that all commands take, the variables
` + "`KEELSON_*`, `keelson.yaml`" + ` and exit codes.
`)
	group := func(title, id string) {
		fmt.Fprintf(&b, "\n## %s\n\n| Command | What it does |\n|---|---|\n", title)
		for _, c := range root.Commands() {
			if c.GroupID != id {
				continue
			}
			if c.IsAvailableCommand() {
				commands(c, func(c *cobra.Command) {
					fmt.Fprintf(&b, "| [%s](%s) | %s |\n", c.CommandPath(), pageOf(c), c.Short)
				})
			}
		}
	}
	for _, g := range root.Groups() {
		group(strings.TrimSuffix(g.Title, ":"), g.ID)
	}
	group("Other commands", "")
	return b.String()
}

const madeByTest = "<!-- Made from the command tree: go test ./cmd -run TestReference -update -->\n"

// inherited is the section about the flags of the root and of parents, which cobra prints on each page.
var inherited = regexp.MustCompile("(?s)### Options inherited from parent commands\n\n```\n(.*?)```\n")

// commandPage returns the page of a command.
func commandPage(t *testing.T, c *cobra.Command) string {
	t.Helper()
	c.Long = helpInMarkdown(c.Long)
	var b bytes.Buffer
	if err := doc.GenMarkdown(c, &b); err != nil {
		t.Fatal(err)
	}
	text := inherited.ReplaceAllString(b.String(), "### Options of all commands\n\n[Settings](../settings.md#options-of-all-commands) lists them.\n")
	if parent := ownPersistentFlags(c.Parent()); parent != "" {
		text = strings.Replace(text, "### Options of all commands", "### Options of "+c.Parent().CommandPath()+"\n\n```\n"+parent+"```\n\n### Options of all commands", 1)
	}
	if !c.HasParent() {
		text = regexp.MustCompile("(?s)### Options\n\n```\n(.*?)```\n").ReplaceAllString(text, "### Options of all commands\n\n[Settings](../settings.md#options-of-all-commands) lists them.\n")
	}
	text = strings.NewReplacer("### SEE ALSO", "### See also", "\t - ", ": ", "### Synopsis\n\n", "").Replace(text)
	text = strings.ReplaceAll(text, "\n### ", "\n## ")
	title, rest, _ := strings.Cut(strings.TrimPrefix(text, "#"), "\n")
	return title + "\n\n" + madeByTest + strings.TrimRight(rest, "\n") + "\n"
}

// ownPersistentFlags returns the flags that a command below the root gives to those below it.
func ownPersistentFlags(c *cobra.Command) string {
	if c == nil || !c.HasParent() || !c.HasPersistentFlags() {
		return ""
	}
	return c.PersistentFlags().FlagUsages()
}

// helpInMarkdown returns a help text so that Markdown shows it as the terminal does: indented
// paragraphs are code, and characters with a meaning in Markdown are escaped.
func helpInMarkdown(text string) string {
	paragraphs := strings.Split(strings.Trim(text, "\n"), "\n\n")
	escaped := strings.NewReplacer(`<`, `\<`, `*`, `\*`, `[`, `\[`)
	for i, p := range paragraphs {
		if regexp.MustCompile(`(?m)^[ \t]`).MatchString(p) {
			paragraphs[i] = "```text\n" + p + "\n```"
			continue
		}
		paragraphs[i] = escaped.Replace(p)
	}
	return strings.Join(paragraphs, "\n\n")
}

// TestSettingsReference checks the tables of docs/reference/settings.md against the flags of all
// commands and the exit codes; -update rewrites them.
func TestSettingsReference(t *testing.T) {
	t.Parallel()
	root := commandTree()
	data, err := os.ReadFile(settingsPage)
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	for name, table := range map[string]string{
		"options": globalFlags(root), "all flags": allFlags(root), "exit codes": exitCodes(), "harmless": harmlessSettings(root), "not configurable": flagsOfPeople(root),
	} {
		begin, end := "<!-- begin: "+name+" -->\n", "<!-- end -->"
		before, rest, found := strings.Cut(page, begin)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("%s has no table %q: it stands between %q and %q", settingsPage, name, begin, end)
		}
		page = before + begin + table + end + after
	}
	if *update {
		if err := os.WriteFile(settingsPage, []byte(page), 0o644); err != nil { //nolint:gosec // documentation
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(data), page); diff != "" {
		t.Errorf("%s (-have +want); go test ./cmd -run TestSettingsReference -update rewrites it:\n%s", settingsPage, diff)
	}
}

// variable is the name of the variable for a flag.
func variable(f *pflag.Flag) string {
	if !cli.Configurable(f.Name) && f.Name != "config" { // which is read before the settings file
		return ""
	}
	return "`KEELSON_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")) + "`"
}

func globalFlags(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("| Flag | Variable | Default | Meaning |\n|---|---|---|---|\n")
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		name, usage := pflag.UnquoteUsage(f)
		flags := "--" + f.Name
		if f.Shorthand != "" {
			flags = "-" + f.Shorthand + ", " + flags
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", cell(strings.TrimSpace(flags+" "+name)), variable(f), defaultOf(f), cell(strings.ReplaceAll(usage, "\n", " ")))
	})
	return b.String()
}

// cell escapes a text for a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func defaultOf(f *pflag.Flag) string {
	if slices.Contains([]string{"", "[]", "false"}, f.DefValue) {
		return ""
	}
	return "`" + f.DefValue + "`"
}

// allFlags lists the flags of commands: those of the root are in a table of their own.
func allFlags(root *cobra.Command) string {
	of := map[string][]string{}
	flags := map[string]*pflag.Flag{}
	inFile := map[string]bool{}
	commands(root, func(c *cobra.Command) {
		if !c.HasParent() {
			return
		}
		own := pflag.NewFlagSet("", pflag.ContinueOnError)
		own.AddFlagSet(c.LocalNonPersistentFlags())
		own.AddFlagSet(c.PersistentFlags())
		own.VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Hidden {
				return
			}
			flags[f.Name] = f
			of[f.Name] = append(of[f.Name], fmt.Sprintf("[%s](cli/%s)", strings.TrimPrefix(c.CommandPath(), "keelson "), pageOf(c)))
			inFile[f.Name] = inFile[f.Name] || !c.Parent().HasParent() // readConfig knows the flags of these
		})
	})
	var b strings.Builder
	b.WriteString("| Flag | Commands | Variable | In `keelson.yaml` |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		file := "no"
		switch {
		case !cli.Configurable(name) || !inFile[name]:
		case cli.Harmless(name):
			file = "yes"
		default:
			file = "with `--config`"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s |\n", name, strings.Join(of[name], ", "), variable(flags[name]), file)
	}
	return b.String()
}

func exitCodes() string {
	var b strings.Builder
	b.WriteString("| Code | Meaning |\n|---|---|\n")
	for _, row := range []struct {
		code    int
		meaning string
	}{
		{0, "The command succeeded, and found nothing to report."},
		{cli.ExitFound, "The command worked, and found something: a problem, a difference, a held change, an unhealthy object."},
		{cli.ExitTrouble, "The command failed, the answer is unknown, or the command line has a mistake. The error is on stderr."},
		{cli.ExitStopped, "A signal stopped the command."},
	} {
		fmt.Fprintf(&b, "| %d | %s |\n", row.code, row.meaning)
	}
	return b.String()
}

// harmlessSettings lists the settings that a keelson.yaml may have that no flag names.
func harmlessSettings(root *cobra.Command) string { return listFlags(root, cli.Harmless) }

// flagsOfPeople lists the flags that come from the command line alone.
func flagsOfPeople(root *cobra.Command) string {
	return listFlags(root, func(name string) bool { return !cli.Configurable(name) && name != "config" })
}

func listFlags(root *cobra.Command, is func(string) bool) string {
	names := map[string]bool{}
	commands(root, func(c *cobra.Command) {
		for _, set := range []*pflag.FlagSet{c.LocalFlags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) {
				if is(f.Name) && !f.Hidden && f.Name != "help" {
					names["`"+f.Name+"`"] = true
				}
			})
		}
	})
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ") + "\n"
}
