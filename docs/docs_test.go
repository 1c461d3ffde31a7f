// Package docs_test follows the pages of documentation as their readers would, so that
// what they say can be done.
package docs_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // as the program has it

	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/cmd"
)

// assets is the folder of the API server's programs; "" if there is none.
var assets string

// clockEnv is the variable that sets the time for a command of a page, in RFC 3339.
const clockEnv = "DOCS_TEST_NOW"

// TestMain is also the program keelson of the pages, and the programs that keelson starts.
func TestMain(m *testing.M) {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "keelson" {
		os.Exit(run(args[1:]))
	}
	if len(args) > 0 && slices.Contains([]string{"render-worker", "preview-worker"}, args[0]) {
		os.Exit(run(args))
	}
	assets = apiservertest.Versions()[0].Assets
	os.Exit(m.Run())
}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	now := time.Now
	if fixed := os.Getenv(clockEnv); fixed != "" {
		t, err := time.Parse(time.RFC3339, fixed)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		now = func() time.Time { return t }
	}
	return cmd.Run(ctx, cmd.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Now: now, Version: "v0.1.0"}, args)
}

// TestPages follows every page of start/ and guides/, and the README: a command of a page
// runs and prints what the page says, a file of a page is written and read.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, name := range pages(t) {
		t.Run(strings.NewReplacer("../", "", "/", "-", ".md", "").Replace(name), func(t *testing.T) {
			t.Parallel()
			p, err := readPage(name)
			if err != nil {
				t.Fatal(err)
			}
			if len(p.blocks) == 0 {
				return
			}
			follow(t, p)
		})
	}
}

func pages(t *testing.T) []string {
	t.Helper()
	names := []string{"../README.md"}
	for _, folder := range []string{"start", "guides"} {
		found, err := filepath.Glob(filepath.Join(folder, "*.md"))
		if err != nil || len(found) == 0 {
			t.Fatalf("%d pages in %s, error %v", len(found), folder, err)
		}
		names = append(names, found...)
	}
	return names
}

// TestFollowCatches shows what a page can't say without a failure.
func TestFollowCatches(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ page, want string }{
		"exit code":      {"```console\n$ false\n```\n", "exit code 1, want 0"},
		"other code":     {"```console\n$ keelson validate # exit code 1\n```\n", "exit code 0, want 1"},
		"output":         {"```console\n$ echo web\nwebs\n```\n", `no line "webs"`},
		"order":          {"```console\n$ printf 'a\\nb\\n'\nb\na\n```\n", `no line "a"`},
		"command":        {"```sh\nkeelson explode\n```\n", `unknown command "explode"`},
		"flag":           {"```sh\nwhile ! keelson status --colour; do sleep 1; done\n```\n", "unknown flag: --colour"},
		"arguments":      {"```sh\nkeelson explain prod-us-01 | head\n```\n", "an argument is missing"},
		"shell":          {"```sh\nif true; then\n```\n", "syntax error"},
		"file":           {"```yaml\n# clusters/prod-us-01/coredns.yaml\nversion: [\n```\n", "clusters/prod-us-01/coredns.yaml"},
		"no path":        {"```yaml\nversion: v1.0.0\n```\n", "the first line has to be a comment with the path"},
		"outside":        {"```yaml\n# ../../x.yaml\na: b\n```\n", "outside"},
		"part of none":   {"```yaml\n# in clusters/none.yaml\na: b\n```\n", "clusters/none.yaml"},
		"unknown fence":  {"```bash\nls\n```\n", "unknown kind of block"},
		"unknown marker": {"<!-- test: clusters a -->\n```console\n$ true\n```\n", "unknown marker"},
		"no end":         {"```console\n$ true\n", "never ends"},
		"long command":   {"```sh\nkeelson status " + strings.Repeat("a", maxCommand) + "\n```\n", "more than 105 characters"},
		"no command":     {"```console\ntrue\n```\n", "begins without a command"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := parsePage("page.md", test.page)
			if err == nil {
				err = newReader(t, p).follow(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// follow follows a page in a session of its own.
func follow(t *testing.T, p page) {
	t.Helper()
	if p.inClone && os.Getenv(followEnv) == "" {
		t.Skip("builds and runs the demo: make follow")
	}
	if _, err := exec.LookPath(p.needs); p.needs != "" && err != nil {
		t.Skip("needs " + p.needs)
	}
	if p.cluster != "" && assets == "" {
		apiservertest.Need(t, nil)
	}
	if err := newReader(t, p).follow(t.Context()); err != nil {
		t.Error(err)
	}
}
