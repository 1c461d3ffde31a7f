package cmd_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/rogpeppe/go-internal/txtar"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/cmd"
)

// server is a real API server, hub and cluster in one; nil without
// KUBEBUILDER_ASSETS.
var server *rest.Config

// kubeconfig is that of server, with the context prod.
var kubeconfig string

// schemas are parsed once for the package: every command would parse the same documents
// again.
var schemas = applier.NewShared()

// versions are the newest and the oldest Kubernetes that Keelson is tested with.
var versions []apiservertest.Kubernetes

// patience ends a wait for what must happen. It is not a bound: only a test that hangs
// reaches it.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"controller", "render-worker", "preview-worker"}, os.Args[1]) { // a process under test
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt) // as main does
		context.AfterFunc(ctx, stop)
		os.Exit(cmd.Run(ctx, cmd.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Now: time.Now}, os.Args[1:]))
	}
	// controller-runtime sets a logger that says nothing when none was set for 30 seconds,
	// and races with a command that sets one at that moment.
	log.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "keelson-cmd-")
	if err != nil {
		return complain(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// Nothing of the user's may change what tests see, or be changed by them.
	for name, value := range map[string]string{
		"HOME": dir, "XDG_CACHE_HOME": filepath.Join(dir, "cache"), "KUBECONFIG": filepath.Join(dir, "none"),
		"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_SYSTEM": os.DevNull, "NO_COLOR": "",
	} {
		if err := os.Setenv(name, value); err != nil {
			return complain(err)
		}
	}
	versions = apiservertest.Versions() // before KEELSON_* go
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "KEELSON_") {
			_ = os.Unsetenv(name)
		}
	}
	if versions[0].Assets == "" {
		return m.Run()
	}
	s, err := apiservertest.Start(versions[0].Assets, "../components/keelson/template/crds", "../components/workload-controllers/template/crds")
	if err != nil {
		return complain(err)
	}
	defer func() { _ = s.Stop() }()
	if err := s.Share(); err != nil {
		return complain(err)
	}
	server = s.Config
	if kubeconfig, err = writeKubeconfig(s, dir, "prod"); err != nil {
		return complain(err)
	}
	return m.Run()
}

// writeKubeconfig writes the kubeconfig of an administrator, with one context.
func writeKubeconfig(s *apiservertest.Server, dir, context string) (path string, err error) {
	content, err := s.Kubeconfig()
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "kubeconfig")
	named := strings.ReplaceAll(string(content), "envtest", context)
	return path, os.WriteFile(path, []byte(named), 0o600)
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// result is the exit code and the output of a command.
type result struct {
	code     int
	out, err string
	// rename is the replacer of the fleet; nil: the output is not changed.
	rename *strings.Replacer
}

// world is the environment of a command.
type world struct {
	in      string // the input that a person types; "": no person is present
	columns int    // of the terminal; 0: none
	now     time.Time
}

func (w world) run(t *testing.T, args ...string) result {
	t.Helper()
	return w.runContext(t.Context(), args...)
}

func (w world) runContext(ctx context.Context, args ...string) result {
	var out, err bytes.Buffer
	now := w.now
	if now.IsZero() {
		now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	}
	code := cmd.Run(ctx, cmd.Env{
		Schemas: schemas, Completion: patience,
		In: strings.NewReader(w.in), Out: &out, Err: &err,
		Now: func() time.Time { return now }, Version: "v1.2.3",
		Columns: func(io.Writer) int { return w.columns },
		Asks:    func() bool { return w.in != "" },
	}, args)
	return result{code: code, out: out.String(), err: err.String()}
}

func keelson(t *testing.T, args ...string) result {
	t.Helper()
	return world{}.run(t, args...)
}

func (r result) want(t *testing.T, code int) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\nstdout:\n%s\nstderr:\n%s", r.code, code, r.out, r.err)
	}
	return r
}

// says checks for texts in what went to stdout and stderr.
func (r result) says(t *testing.T, texts ...string) result {
	t.Helper()
	for _, text := range texts {
		if r.rename != nil {
			text = r.rename.Replace(text)
		}
		if !strings.Contains(r.out+r.err, text) {
			t.Errorf("it does not say %q\nstdout:\n%s\nstderr:\n%s", text, r.out, r.err)
		}
	}
	return r
}

func (r result) saysNot(t *testing.T, texts ...string) result {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(r.out+r.err, text) {
			t.Errorf("it says %q\nstdout:\n%s\nstderr:\n%s", text, r.out, r.err)
		}
	}
	return r
}

// fleet is a fleet repository in a temporary folder.
type fleet struct {
	t          *testing.T
	dir        string
	kubeconfig string // "": none
	// rename makes the names in the fixture the test's own, as tests share a
	// cluster.
	rename *strings.Replacer
}

// suffixes are those of [newFleet], with the test that has it.
var suffixes sync.Map

// newFleet is the fleet of testdata/fleet.txtar, committed and tagged v1.0.0.
// With a suffix, web and gadgets are called webSUFFIX and gadgetsSUFFIX, also in what
// the test expects.
func newFleet(t *testing.T, suffix string) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), kubeconfig: kubeconfig, rename: strings.NewReplacer()}
	if suffix != "" {
		// Two tests with one suffix would deliver one component to the API server that they share.
		if other, taken := suffixes.LoadOrStore(suffix, t.Name()); taken && other != t.Name() {
			t.Fatalf("%v has the suffix %s, too", other, suffix)
		}
		f.rename = strings.NewReplacer("web", "web"+suffix, "gadgets", "gadgets"+suffix, "demo.example", suffix+".example")
	}
	fixture, err := txtar.ParseFile("testdata/fleet.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range fixture.Files {
		f.write(file.Name, string(file.Data))
	}
	f.git("init", "-q", "-b", "main")
	f.commit()
	f.tag("web/v1.0.0")
	f.tag("gadgets/v1.0.0")
	return f
}

func (f *fleet) write(name, content string) {
	f.t.Helper()
	path := filepath.Join(f.dir, filepath.FromSlash(f.rename.Replace(name)))
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(f.rename.Replace(content)), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// edit replaces text in a file, which must be there.
func (f *fleet) edit(name, from, to string) {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.dir, filepath.FromSlash(f.rename.Replace(name))))
	if err != nil {
		f.t.Fatal(err)
	}
	from, to = f.rename.Replace(from), f.rename.Replace(to)
	if !strings.Contains(string(data), from) {
		f.t.Fatalf("%s does not say %q", name, from)
	}
	path := filepath.Join(f.dir, filepath.FromSlash(f.rename.Replace(name)))
	if err := os.WriteFile(path, []byte(strings.Replace(string(data), from, to, 1)), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) commit() {
	f.t.Helper()
	f.git("add", "-A")
	f.git("commit", "-q", "-m", "change")
}

func (f *fleet) tag(name string) {
	f.t.Helper()
	f.git("tag", f.rename.Replace(name))
}

func (f *fleet) git(args ...string) {
	f.t.Helper()
	c := exec.CommandContext(f.t.Context(), "git", args...)
	c.Dir = f.dir
	c.Env = append(os.Environ(),
		"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@example.com", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z",
		"GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@example.com", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z")
	if out, err := c.CombinedOutput(); err != nil {
		f.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// keelson runs a command on the fleet.
func (f *fleet) keelson(args ...string) result {
	f.t.Helper()
	return f.in(world{}, args...)
}

func (f *fleet) in(w world, args ...string) result {
	f.t.Helper()
	all := []string{"--repo", f.dir}
	if f.kubeconfig != "" {
		all = append(all, "--kubeconfig", f.kubeconfig)
	}
	for _, arg := range args {
		all = append(all, f.rename.Replace(arg))
	}
	r := w.run(f.t, all...)
	r.rename = f.rename
	return r
}

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithCancel(t.Context())
}
