//go:build !race

// The race detector takes several times the memory that is measured here.

package cmd_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/keelson-io/keelson/applier/apiservertest"
)

// hostile are kinds of changes, each of which would take all memory or minutes of the
// process that previews it.
func hostile() map[string]func(f *fleet) {
	component := func(f *fleet, name, spec, template string) {
		f.write("components/"+name+"/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: "+name+"\n"+spec)
		f.write("components/"+name+"/template/Chart.yaml", "apiVersion: v2\nname: "+name+"\nversion: 1.0.0\n")
		f.write("components/"+name+"/template/templates/all.yaml", template)
	}
	on := func(f *fleet, names ...string) {
		var b strings.Builder
		b.WriteString("apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {}\ncomponents:\n")
		for _, name := range names {
			b.WriteString("  " + name + ": {version: HEAD}\n")
		}
		f.write("layers/90-hostile.yaml", b.String())
	}
	return map[string]func(f *fleet){
		"memory": func(f *fleet) {
			var names []string
			for i := range 5 {
				names = append(names, fmt.Sprint("hog", i))
				component(f, names[i], "", "{{ range $i := until 3000 }}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c{{ $i }}}\ndata:\n{{ range $k := until 60 }}  key{{ $k }}: value {{ $i }}\n{{ end }}{{ end }}")
			}
			on(f, names...)
		},
		"processor": func(f *fleet) {
			component(f, "endless", "", "{{ range 1000000000000 }}{{ end }}")
			on(f, "endless")
		},
		"rules": func(f *fleet) {
			var rules strings.Builder
			for i := range 200 {
				fmt.Fprintf(&rules, "- {name: r%d, path: .data, when: '[0,1,2,3,4,5,6,7,8,9].all(a,[0,1,2,3,4,5,6,7,8,9].all(b,[0,1,2,3,4,5,6,7].all(c, a+b+c < 99))) && new == \"never\"', effect: deny, because: x}\n", i)
			}
			component(f, "ruled", "danger:\n"+rules.String(), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n{{- range $i := until 5000 }}\n  k{{ $i }}: v\n{{- end }}\n")
			on(f, "ruled")
		},
		"definitions": func(f *fleet) {
			// The CRD and one of its objects are there already: it is judged by the new rules.
			f.edit("components/gadgets/template/crds/gadgets.yaml", "            spec:\n              type: object\n",
				"            spec:\n              type: object\n              x-kubernetes-validations: ["+strings.TrimSuffix(strings.Repeat("{rule: 'self.size > 0'},", 10_000), ",")+"]\n")
		},
		"secrets": func(f *fleet) {
			component(f, "secrets", "", "{{- range $i := until 3 }}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: large-{{ $i }}}\nstringData: {a: {{ repeat 400 (repeat 1024 (toString $i)) | quote }}}\n{{- end }}\n")
			on(f, "secrets")
		},
	}
}

// forgeOfTest is a Gitea that has open pull requests.
type forgeOfTest struct {
	mu       sync.Mutex
	heads    []string
	statuses map[string][]map[string]any
	comments map[string]int
}

func (s *forgeOfTest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var answer any = []any{}
	code := http.StatusOK
	path := strings.TrimPrefix(r.URL.Path, "/api/v1")
	parts := strings.Split(path, "/")
	switch {
	case path == "/user":
		answer = map[string]any{"id": 1, "login": "keelson"}
	case strings.HasSuffix(path, "/pulls"):
		list := []any{}
		for i, head := range s.heads {
			list = append(list, map[string]any{"number": i + 1, "head": map[string]any{"sha": head, "ref": fmt.Sprint("topic-", i+1)}, "base": map[string]any{"ref": "main"}})
		}
		answer = list
	case strings.HasSuffix(path, "/comments") && r.Method == http.MethodPost:
		code = http.StatusCreated
		s.comments[parts[len(parts)-2]]++
		answer = map[string]any{"id": 1}
	case strings.HasSuffix(path, "/statuses"):
		if all := s.statuses[parts[len(parts)-2]]; all != nil {
			answer = all
		}
	case strings.Contains(path, "/statuses/"):
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body)
		sha := parts[len(parts)-1]
		one := map[string]any{"id": len(s.statuses[sha]) + 1, "status": body["state"], "context": body["context"], "description": body["description"]}
		s.statuses[sha] = append(s.statuses[sha], one)
		code, answer = http.StatusCreated, one
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer)
}

// final are the last statuses of the pull requests that have one that is not pending.
func (s *forgeOfTest) final() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for i, head := range s.heads {
		all := s.statuses[head]
		if len(all) == 0 || all[len(all)-1]["status"] == "pending" {
			continue
		}
		last := all[len(all)-1]
		out = append(out, fmt.Sprintf("%d: %v, %v", i+1, last["status"], last["description"]))
	}
	return out
}

// Twenty hostile pull requests at once against a controller that delivers: each gets a
// status that is final, one that is not hostile has its preview, the controller takes no more
// memory than it did, and what is pushed meanwhile is delivered.
func TestHostilePullRequests(t *testing.T) {
	t.Parallel()
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("needs the limits of Linux")
	}
	// An API server of its own: the controller clears away what other fleets have left in
	// the hub.
	apiservertest.Each(t, versions[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		testHostilePullRequests(t, start(t))
	})
}

func testHostilePullRequests(t *testing.T, hub *apiservertest.Server) {
	t.Helper()
	const most, pulls = 100 << 20, 20
	f := newFleet(t, "hostile")
	var err error
	if f.kubeconfig, err = writeKubeconfig(hub, t.TempDir(), "prod"); err != nil {
		t.Fatal(err)
	}
	f.edit("layers/10-base.yaml", "gadgets:\n    version: v1.0.0", "gadgets:\n    version: HEAD")
	f.write("components/steady-hostile/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: steady-hostile\n")
	f.write("components/steady-hostile/template/Chart.yaml", "apiVersion: v2\nname: steady\nversion: 1.0.0\n")
	f.write("components/steady-hostile/template/templates/all.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: steady}\ndata: {count: {{ .Values.count | quote }}}\n")
	steady := func(n int) {
		f.write("layers/20-steady.yaml", fmt.Sprintf("apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {}\ncomponents:\n  steady-hostile: {version: HEAD, values: {count: %d}}\n", n))
		f.commit()
	}
	f.write("components/gadgets/template/templates/gadget.yaml", "apiVersion: demo.example/v1\nkind: Gadget\nmetadata: {name: gadgets}\nspec: {size: 2}\n")
	steady(0)

	answers := &forgeOfTest{statuses: map[string][]map[string]any{}, comments: map[string]int{}}
	front := httptest.NewServer(answers)
	t.Cleanup(front.Close)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token-of-the-test"), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	// Of a revision that is named: what HEAD is, changes while the branches of the pull
	// requests are made, and the controller would deliver them.
	c := exec.CommandContext(t.Context(), self, "controller", "--repo", f.dir, "--revision", "main", "--cache-dir", t.TempDir(), "--kubeconfig", f.kubeconfig, "--context", "prod",
		"--interval", "1s", "--listen", "", "--render-timeout", "3s", "--preview-memory", "256Mi",
		"--forge", "gitea", "--forge-url", front.URL, "--forge-repository", "lab/fleet", "--forge-token-file", token)
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	client, err := kubernetes.NewForConfig(hub.Config)
	if err != nil {
		t.Fatal(err)
	}
	// delivered waits for a value, and returns how long that took from its commit.
	delivered := func(n int) time.Duration {
		began := time.Now()
		steady(n)
		until(t, fmt.Sprintf("%d is delivered", n), func() bool {
			o, err := client.CoreV1().ConfigMaps("steady-hostile").Get(t.Context(), "steady", metav1.GetOptions{})
			return err == nil && o.Data["count"] == strconv.Itoa(n)
		})
		return time.Since(began)
	}
	var quiet, busy []time.Duration
	for n := range 10 {
		quiet = append(quiet, delivered(n+1))
	}
	before := peak(t, c.Process.Pid)

	kinds := hostile()
	names := []string{}
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	var heads []string
	for i := range pulls + 1 {
		f.git("checkout", "-q", "-B", fmt.Sprint("topic-", i+1), "main")
		f.write("note.md", fmt.Sprint(i)) // commits of their own
		if i == pulls {
			f.edit("layers/10-base.yaml", "replicas: 2", "replicas: 4") // one like any other
		} else {
			kinds[names[i%len(names)]](f)
		}
		f.commit()
		f.git("update-ref", fmt.Sprintf("refs/pull/%d/head", i+1), "HEAD")
		out, err := exec.CommandContext(t.Context(), "git", "-C", f.dir, "rev-parse", "HEAD").Output()
		if err != nil {
			t.Fatal(err)
		}
		heads = append(heads, strings.TrimSpace(string(out)))
	}
	f.git("checkout", "-q", "main")
	answers.mu.Lock()
	answers.heads = heads
	answers.mu.Unlock()

	deadline := time.Now().Add(5 * patience)
	for n := 100; len(answers.final()) <= pulls; n++ {
		busy = append(busy, delivered(n))
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d have a final status: %s", len(answers.final()), pulls+1, strings.Join(answers.final(), "\n"))
		}
	}
	for i, line := range answers.final() {
		if i < pulls {
			t.Logf("%s: %s", names[i%len(names)], line)
		}
		hostile := strings.Contains(line, ": error, ") || strings.Contains(line, ": failure, ")
		if hostile != (i < pulls) {
			t.Errorf("pull request %s", line)
		}
	}
	after := peak(t, c.Process.Pid)
	t.Logf("the controller took %d MiB before, and %d MiB at most since", before>>20, after>>20)
	if after-before > most {
		t.Errorf("it took %d MiB more, and may take %d", (after-before)>>20, most>>20)
	}
	slices.Sort(quiet)
	slices.Sort(busy)
	t.Logf("from the commit to the cluster: %s before (worst %s), %s meanwhile (worst of %d: %s)",
		quiet[len(quiet)/2], quiet[len(quiet)-1], busy[len(busy)/2], len(busy), busy[len(busy)-1])
}

// peak is the most memory that a process has had, in bytes.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("the process has no VmHWM")
	return 0
}
