package renderer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// workerArg makes the test binary a worker.
const workerArg = "render-worker"

func newPool(t testing.TB, o renderer.PoolOptions) *renderer.Pool {
	t.Helper()
	o.Args = []string{workerArg}
	if raceDetector {
		// Its shadow memory would be in the way of the limits: workers are built
		// without it.
		o.Program = plainWorker(t)
	}
	p := renderer.NewPool(o)
	t.Cleanup(p.Close)
	return p
}

// plainWorker is the program in testdata/worker, built once and as releases are: without cgo.
func plainWorker(t testing.TB) string {
	t.Helper()
	built.Do(func() {
		dir, err := os.MkdirTemp("", "keelson-worker-") //nolint:usetesting // it outlives the test that needs it first
		if err != nil {
			t.Fatal(err)
		}
		built.path = filepath.Join(dir, "worker")
		build := exec.CommandContext(t.Context(), "go", "build", "-o", built.path, "./testdata/worker")
		build.Env = append(build.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build a worker: %v\n%s", err, out)
		}
	})
	return built.path
}

var built struct {
	sync.Once
	path string
}

// TestPoolLimits: charts that Helm can't be stopped at cost a worker its life,
// and the error names the chart and what to look at.
func TestPoolLimits(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why      string
		template string
		want     string
	}{
		"Endless": {
			"A loop without end is a matter of time.",
			"{{ range 1000000000000 }}{{ end }}", "rendering took longer than 2s and was ended: does a template loop without end? (look at components/demo/template/templates/cm.yaml@demo/v1.0.0:1)",
		},
		"Deep": {"Helm's own limit names the line.", `{{ define "a" }}{{ template "a" . }}{{ end }}{{ template "a" . }}`, "templates/cm.yaml@demo/v1.0.0:1:29: exceeded maximum template depth"},
		"Recursive": {
			"A tpl that renders itself takes all memory, or overflows the stack, which no recover survives.",
			`{{ $t := "{{ tpl .t . }}" }}{{ tpl $t (dict "t" $t "Template" .Template) }}`, "was ended: does a template",
		},
		"Until":  {"A list of 10^8 numbers takes 3 GB.", "{{ range until 100000000 }}{{ end }}", "or render itself?"},
		"Indent": {"One text of 1 GB comes in one allocation, faster than any watchdog.", `{{ "a" | nindent 1000000000 }}`, "or render itself?"},
		"Output": {"1 GB of output is valid YAML, and of no use.", "a: |\n{{ range until 100000 }}  {{ repeat 10000 \"x\" }}\n{{ end }}", "or render itself?"},
		"Long":   {"What is more than a chart may render to is refused by its size.", "a: |\n{{ range until 2000 }}  {{ repeat 10000 \"x\" }}\n{{ end }}", "templates/cm.yaml@demo/v1.0.0: the templates render to 19 MiB, and may render to 16 MiB"},
	}
	impatient := newPool(t, renderer.PoolOptions{Workers: 2, Timeout: 2 * time.Second, Memory: 256 << 20})
	patient := newPool(t, renderer.PoolOptions{Workers: 2, Timeout: time.Minute, Memory: 256 << 20})
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := patient
			if name == "Endless" {
				pool = impatient
			}
			target, err := pool.Render(t.Context(), request(configMapVersion(tc.template), 1))
			var e *renderer.Error
			if !errors.As(err, &e) || target != nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("%s: got %v, want %q", tc.why, err, tc.want)
			}
			// A machine that is too busy to let it loop is not the chart's fault.
			if e.Transient && !strings.Contains(e.Message, "took longer") {
				t.Errorf("%s: the error is transient: it would be tried for ever", tc.why)
			}
			for {
				_, err := pool.Render(t.Context(), request(configMapVersion(configMap), 1))
				if errors.As(err, &e) && e.Transient {
					continue // a busy machine took longer than the limit
				}
				if err != nil {
					t.Errorf("another component does not render any more: %v", err)
				}
				break
			}
		})
	}
}

// TestPoolStack: with enough memory, a template that renders itself overflows
// the stack, which no recover survives.
func TestPoolStack(t *testing.T) {
	t.Parallel()
	pool := newPool(t, renderer.PoolOptions{Workers: 1, Memory: 8 << 30})
	_, err := pool.Render(t.Context(), request(configMapVersion(
		`{{ $t := "{{ tpl .t . }}" }}{{ tpl $t (dict "t" $t "Template" .Template) }}`), 1))
	want := "the templates call each other without end, and were ended (look at components/demo/template/templates/cm.yaml@demo/v1.0.0:1)"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestPoolAnswersAsEngine: where it runs changes nothing of what comes out.
func TestPoolAnswersAsEngine(t *testing.T) {
	t.Parallel()
	pool := newPool(t, renderer.PoolOptions{Workers: 2})
	for name, template := range map[string]string{
		"Objects": configMap,
		"Numbers": "apiVersion: v1\nkind: X\nmetadata: {name: x}\na: 1\nb: 1.5\nc: 9007199254740993\nd: 1e3\ne: [null, true, \"\"]\n",
		"Lookup":  configMap + `{{ $x := lookup "v1" "Secret" "a" "b" }}`,
		"Empty":   "",
		"Hook":    "apiVersion: v1\nkind: Pod\nmetadata: {name: x, annotations: {helm.sh/hook: pre-install}}\n",
		"Error":   "{{ fail \"no\" }}",
		"Unused":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n",
		"Bytes":   "{{ fail \"\\xff\" }}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := request(configMapVersion(template), 1)
			want, wantErr := renderer.New().Render(t.Context(), r)
			got, err := pool.Render(t.Context(), r)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("target (-engine +pool):\n%s", d)
			}
			if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
				t.Errorf("got error %v, the engine's is %v", err, wantErr)
			}
		})
	}
}

// TestPoolInterrupted: who gives up does not wait for the chart.
func TestPoolInterrupted(t *testing.T) {
	t.Parallel()
	pool := newPool(t, renderer.PoolOptions{Workers: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := pool.Render(ctx, request(configMapVersion("{{ range 1000000000000 }}{{ end }}"), 1))
	var e *renderer.Error
	if !errors.As(err, &e) || !e.Transient || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a transient *Error that is context.DeadlineExceeded", err)
	}
}

// TestPoolSlowSlots: a chart that never ends does not block other charts, even if it occupies
// all slots.
func TestPoolSlowSlots(t *testing.T) {
	t.Parallel()
	pool := newPool(t, renderer.PoolOptions{Workers: 1, Timeout: 20 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := pool.Render(ctx, request(configMapVersion("{{ range 1000000000000 }}{{ end }}"), 1))
		ended <- err
	}()
	if _, err := pool.Render(t.Context(), request(configMapVersion(configMap), 1)); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		t.Errorf("the other chart had to end first: %v", err)
	default:
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestPoolReuses: charts that behave share workers.
func TestPoolReuses(t *testing.T) {
	t.Parallel()
	pool := newPool(t, renderer.PoolOptions{Workers: 2})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if _, err := pool.Render(t.Context(), request(configMapVersion(configMap), i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// On a busy machine as many again take the places of those that are slow.
	if s := pool.Stats(); s.Renders != 40 || s.Started > 2*2 || s.Killed != 0 {
		t.Errorf("got %+v, want 40 renders by 2 workers, or 4", s)
	}
}

// TestPoolSparesTheNext: a worker that a chart has left with little memory is
// replaced, or the next chart would be ended for what this one took.
func TestPoolSparesTheNext(t *testing.T) {
	t.Parallel()
	pool := newPool(t, renderer.PoolOptions{Workers: 1, Memory: 224 << 20})
	deep := `{{ define "a" }}{{ template "a" . }}{{ end }}{{ template "a" . }}` // on a stack of 64 MiB, and its copy
	if _, err := pool.Render(t.Context(), request(configMapVersion(deep), 1)); err == nil {
		t.Fatal("a template without end renders")
	}
	if _, err := pool.Render(t.Context(), request(configMapVersion(configMap), 1)); err != nil {
		t.Error(err)
	}
	if s := pool.Stats(); s.Renders != 2 || s.Started != 2 || s.Killed != 0 {
		t.Errorf("got %+v, want 2 renders by a worker each", s)
	}
}

// TestWorkerIsConfined asks the kernel what a worker may still do: a hole in Helm
// must lead nowhere.
func TestWorkerIsConfined(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has these limits")
	}
	t.Setenv("KEELSON_TEST_SECRET", "in the environment")
	pool := newPool(t, renderer.PoolOptions{Workers: 1, Memory: 256 << 20, Timeout: 10 * time.Second})
	if _, err := pool.Render(t.Context(), request(configMapVersion(configMap), 1)); err != nil {
		t.Fatal(err)
	}
	proc := fmt.Sprintf("/proc/%d/", pool.Workers()[0])
	limits, err := os.ReadFile(proc + "limits")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^Max open files +0 +0 `, `(?m)^Max file size +0 +0 `, `(?m)^Max core file size +0 +0 `,
		`(?m)^Max cpu time +201 +201 `,
	} {
		if !regexp.MustCompile(want).Match(limits) {
			t.Errorf("no line %q in\n%s", want, limits)
		}
	}
	data := regexp.MustCompile(`(?m)^Max data size +(\d+) `).FindSubmatch(limits)
	if data == nil {
		t.Fatalf("memory is not limited:\n%s", limits)
	}
	if n, err := strconv.ParseInt(string(data[1]), 10, 64); err != nil || n < 256<<20 || n > 1<<30 {
		t.Errorf("the limit of memory is %d bytes, %v", n, err)
	}
	if env, err := os.ReadFile(proc + "environ"); err == nil && len(env) > 0 {
		t.Errorf("the environment is %q", env)
	}
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err := os.Readlink(proc + "ns/net"); err == nil && theirs == ours && os.Geteuid() == 0 {
		t.Log("this kernel gives no network namespace, not even to root")
	}
}

// TestWorkerNeedsAParent: a worker without a greeting from its parent process does nothing.
func TestWorkerNeedsAParent(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := renderer.Work(strings.NewReader(""), &out); err == nil || out.Len() > 0 {
		t.Errorf("got %v and %d bytes", err, out.Len())
	}
}

func FuzzWorkerProtocol(f *testing.F) {
	for _, seed := range renderer.Frames(f, request(configMapVersion(configMap), 1)) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) { renderer.ReadAnswer(data) })
}

// FuzzChartLoading: whatever a chart's files hold, loading it ends in a chart or
// in an error that names one of its files.
func FuzzChartLoading(f *testing.F) {
	for name, text := range map[string]string{
		"Chart.yaml":            "apiVersion: v2\nname: demo\nversion: 1.0.0\ndependencies: [{name: a, version: 1.0.0, alias: b}]\n",
		"values.yaml":           "a: {b: [1, null, x]}\n",
		"values.schema.json":    `{"properties": {"a": {"type": "object"}}}`,
		".helmignore":           "*.bak\n!x\n/dir/\n",
		"templates/x.yaml":      configMap,
		"charts/a/Chart.yaml":   "apiVersion: v1\nname: a\nversion: 0.1.0\n",
		"charts/a.tgz":          packed(f, entry{name: "a/Chart.yaml", text: "apiVersion: v2\nname: a\nversion: 1.0.0\n"}),
		"requirements.yaml":     "dependencies: []\n",
		"crds/a.yaml":           "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n",
		"Chart.lock":            "digest: sha256:0\n",
		"charts/_a/x":           "",
		"templates/NOTES.txt":   "{{ .Release.Name }}",
		"../../etc/passwd":      "x",
		"charts/a/charts/b.tgz": "x",
	} {
		f.Add(name, []byte(text))
	}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		files := []registry.File{{Name: "Chart.yaml", Data: []byte("apiVersion: v2\nname: demo\nversion: 1.0.0\n")}, {Name: name, Data: data}}
		if name == "Chart.yaml" {
			files = files[1:]
		}
		if err := renderer.LoadChart(files); err != nil && !strings.Contains(err.Error(), "components/demo/template/") {
			t.Errorf("the error names no file: %v", err)
		}
	})
}
