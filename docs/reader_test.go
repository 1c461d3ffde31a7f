package docs_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4" // sigs.k8s.io/yaml reads the key on as true

	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/cmd"
)

// clock is the time of pages that talk to no cluster: a Monday morning.
const clock = "2026-11-02T10:00:00Z"

// patience ends a page whose command hangs. It is not a bound: a page takes some seconds.
const patience = 20 * time.Minute

// followEnv is the variable with which pages that begin in a clone of this repository are
// followed: make follow sets it, as they build the demo and run it.
const followEnv = "DOCS_TEST_FOLLOW"

// reader follows a page in a shell of its own.
type reader struct {
	page page
	// root is a folder for scripts and for the clone of the fleet.
	root string
	// start is the folder in which the shell begins.
	start string
	env   []string
}

// newReader returns the reader of a page, in a clone of the example fleet, or in this
// repository.
func newReader(t *testing.T, p page) *reader {
	t.Helper()
	root := t.TempDir()
	if p.inClone {
		start, err := filepath.Abs("..")
		if err != nil {
			t.Fatal(err)
		}
		return &reader{page: p, root: root, start: start, env: append(userEnv(), "NO_COLOR=1")}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{page: p, root: root, start: filepath.Join(root, "fleet"), env: append(userEnv(),
		"HOME="+root, "XDG_CACHE_HOME="+filepath.Join(root, "cache"), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH")+":"+assets, // kubectl is among the assets
		"KUBECONFIG="+filepath.Join(root, "kubeconfig"), "NO_COLOR=1", "LC_ALL=C.UTF-8",
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.com")}
	if p.cluster == "" {
		r.env = append(r.env, clockEnv+"="+clock, "GIT_AUTHOR_DATE="+clock, "GIT_COMMITTER_DATE="+clock)
	} else {
		startCluster(t, p.cluster, filepath.Join(root, "kubeconfig"))
	}
	r.mustWrite(t, "bin/keelson", "#!/bin/sh\nexec '"+self+"' keelson \"$@\"\n")
	publish := exec.CommandContext(t.Context(), "bash", "-ec", prepare)
	publish.Dir, publish.Env = "..", append(r.env, "FLEET="+r.start)
	if output, err := publish.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return r
}

// prepare publishes the example fleet, as its README says.
const prepare = `
examples/publish.sh "$FLEET"
git init -q --bare -b main "$FLEET.git"
cd "$FLEET"
git remote add origin "$FLEET.git"
git push -q --tags -u origin main
`

// userEnv is the environment without what could change what a command does or prints.
func userEnv() []string {
	foreign := regexp.MustCompile("^(KEELSON_|GIT_|SOPS_|XDG_|HELM_|DOCKER_|SSH_|EDITOR=|VISUAL=|BASH_ENV=)")
	return slices.DeleteFunc(os.Environ(), foreign.MatchString)
}

func startCluster(t *testing.T, name, kubeconfig string) {
	t.Helper()
	server, err := apiservertest.Start(assets, "../components/keelson/template/crds")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	content, err := server.Kubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(string(content), "envtest", name)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *reader) mustWrite(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(r.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o700); err != nil { //nolint:gosec // a program of the test
		t.Fatal(err)
	}
}

// run runs a script in a shell of its own.
func (r *reader) run(ctx context.Context, script string) (code int, output string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "--noprofile", "--norc", script)
	c.Dir, c.Env = r.start, r.env
	out, err := c.CombinedOutput()
	return c.ProcessState.ExitCode(), string(out), err
}

// follow does all that the page says, and returns every difference.
func (r *reader) follow(ctx context.Context) error {
	if !r.page.inClone {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	s, err := r.startShell(ctx)
	if err != nil {
		return err
	}
	var failed error
	for i, b := range r.page.blocks {
		if err := r.followBlock(ctx, s, i, b); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s:%d: %w", r.page.name, b.line, err))
		}
	}
	return errors.Join(failed, s.stop())
}

func (r *reader) followBlock(ctx context.Context, s *shell, i int, b block) error {
	switch b.kind {
	case "console":
		commands, err := b.commands()
		if err != nil {
			return err
		}
		var failed error
		for _, c := range commands {
			failed = errors.Join(failed, s.do(c))
		}
		return failed
	case "yaml":
		return r.writeFile(b, s.cwd)
	case "sh":
		return r.checkCommands(ctx, i, b)
	}
	return nil
}

// writeFile writes the file of a yaml block, whose path is relative to the shell's folder.
func (r *reader) writeFile(b block, cwd string) error {
	if len(b.lines) == 0 || !strings.HasPrefix(b.lines[0], "# ") {
		return errors.New("the first line has to be a comment with the path of the file")
	}
	name, isPart := strings.CutPrefix(strings.TrimPrefix(b.lines[0], "# "), "in ")
	path := filepath.Join(cwd, filepath.FromSlash(name))
	if inside, err := filepath.Rel(r.root, path); !r.page.inClone && (err != nil || !filepath.IsLocal(inside)) {
		return fmt.Errorf("%s is outside of what the page may write", name)
	}
	content := []byte(strings.Join(b.lines[1:], "\n") + "\n")
	var parts any
	for part := range strings.SplitSeq(string(content), "\n---\n") {
		if err := yaml.Unmarshal([]byte(part), &parts); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if isPart {
		existing, err := os.ReadFile(path) //nolint:gosec // below the test's folder
		if err != nil {
			return fmt.Errorf("a part of %s: %w", name, err)
		}
		if content, err = merge(existing, content); err != nil {
			return fmt.Errorf("a part of %s: %w", name, err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

// merge lays a part of a YAML file over the file.
func merge(file, part []byte) ([]byte, error) {
	var under, over map[string]any
	if err := errors.Join(yaml.Unmarshal(file, &under), yaml.Unmarshal(part, &over)); err != nil {
		return nil, err
	}
	return yaml.Marshal(overlay(under, over))
}

func overlay(under, over any) any {
	a, isMap := under.(map[string]any)
	b, isMapToo := over.(map[string]any)
	if !isMap || !isMapToo {
		return over
	}
	for key, value := range b {
		a[key] = overlay(a[key], value)
	}
	return a
}

// record has bash parse a block and call keelson alone: every other program is missing.
const record = `
PATH=
command_not_found_handle() { return 0; }
sleep() { return 0; }
cd() { return 0; }
keelson() { printf '%s\0' "$@" '' >&3; printf '\n' >&3; return 0; }
`

// checkCommands checks a block that the test can't run: its syntax, and that keelson has
// these commands and flags.
func (r *reader) checkCommands(ctx context.Context, i int, b block) error {
	script := strings.Join(b.lines, "\n") + "\n"
	path := filepath.Join(r.root, fmt.Sprintf("block-%d.sh", i))
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		return err
	}
	if output, err := exec.CommandContext(ctx, "bash", "-n", path).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	calls := path + ".calls"
	if err := os.WriteFile(path, []byte("exec 3>'"+calls+"'\n"+record+script), 0o600); err != nil {
		return err
	}
	if _, output, err := r.run(ctx, path); ctx.Err() != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	content, err := os.ReadFile(calls) //nolint:gosec // below the test's folder
	if err != nil {
		return err
	}
	var failed error
	for call := range strings.SplitSeq(strings.TrimSuffix(string(content), "\x00\x00\n"), "\x00\x00\n") { //nolint:contextcheck // no command is run
		args := strings.Split(call, "\x00")
		if err := checkArguments(args); call != "" && err != nil {
			failed = errors.Join(failed, fmt.Errorf("keelson %s: %w", strings.Join(args, " "), err))
		}
	}
	return failed
}

// checkArguments returns an error for a command line that keelson would refuse unread.
func checkArguments(args []string) error {
	root := cmd.New(cmd.Env{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard, Now: time.Now})
	found, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := found.ParseFlags(rest); err != nil {
		return err
	}
	return errors.Join(found.ValidateArgs(found.Flags().Args()), found.ValidateRequiredFlags())
}

// shell is a shell that runs one command after another, as a terminal does.
type shell struct {
	folder string // of its scripts
	cwd    string // where it is now
	in     io.WriteCloser
	out    *bufio.Scanner
	wait   func() error
	n      int
}

func (r *reader) startShell(ctx context.Context) (*shell, error) {
	c := exec.CommandContext(ctx, "bash", "--noprofile", "--norc")
	c.Dir, c.Env = r.start, r.env
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	return &shell{folder: r.root, cwd: r.start, in: in, out: bufio.NewScanner(out), wait: c.Wait}, nil
}

// do runs a command, and compares what it prints and its exit code.
func (s *shell) do(c command) error {
	s.n++
	script := filepath.Join(s.folder, fmt.Sprintf("command-%d.sh", s.n))
	if err := os.WriteFile(script, []byte(c.text+"\n"), 0o600); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.in, ". '%[1]s' >'%[1]s.out' 2>&1 </dev/null; echo $?; pwd\n", script); err != nil {
		return fmt.Errorf("line %d: the shell has ended: %w", c.line, err)
	}
	code, hasCode := s.next()
	cwd, hasCwd := s.next()
	if !hasCode || !hasCwd {
		return fmt.Errorf("line %d: %s\nthe shell ended, or was ended", c.line, c.text)
	}
	s.cwd = cwd
	output, err := os.ReadFile(script + ".out")
	if err != nil {
		return err
	}
	if code != c.exitCode {
		return fmt.Errorf("line %d: %s\nexit code %s, want %s\n%s", c.line, c.text, code, c.exitCode, output)
	}
	if line, isMissing := c.missing(string(output)); isMissing {
		return fmt.Errorf("line %d: %s\nno line %q in this place of\n%s", c.line, c.text, line, output)
	}
	return nil
}

func (s *shell) next() (line string, ok bool) {
	ok = s.out.Scan()
	return s.out.Text(), ok
}

func (s *shell) stop() error {
	return errors.Join(s.in.Close(), s.wait())
}
