package cmd_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/shard"
)

// TestShare has controllers as processes of their own, and one cluster to share.
// The one that has it is stopped, as by a debugger or a hypervisor, past the end of
// its term.
func TestShare(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, versions[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		testShare(t, start(t).Config) // a hub of its own: what is delivered shows in status
	})
}

// What /readyz says.
const (
	alone  = "ok: 1 of 1 clusters, 1 replicas"
	worker = "ok: 1 of 1 clusters, 2 replicas"
	waiter = "ok: 0 of 1 clusters, 2 replicas"
)

func testShare(t *testing.T, hub *rest.Config) {
	t.Helper()
	c, err := kubernetes.NewForConfig(hub)
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, "share")
	f.git("rm", "-q", "-r", "clusters/test") // one cluster is left
	f.commit()
	first := startController(t, f, hub)
	first.hasIt(t)
	until(t, "the first delivers", func() bool {
		_, err := c.CoreV1().Secrets("keelson-system").Get(t.Context(), "record-gadgetsshare", metav1.GetOptions{})
		return err == nil
	})
	second := startController(t, f, hub)
	first, second = settled(t, first, second)
	if got := second.get(t, "/metrics"); !strings.Contains(got, "keelson_share_clusters 0") || !strings.Contains(got, "keelson_share_replicas 2") {
		t.Errorf("metrics of the one that waits: %s", got)
	}
	idle := len(second.writes())

	t.Log("the one that has the cluster stops, and the other takes over")
	first.signal(t, syscall.SIGSTOP)
	if got := second.writes()[idle:]; len(got) > 0 {
		t.Errorf("the one that waits wrote: %q", got)
	}
	second.hasIt(t)
	if got := second.get(t, "/metrics"); !strings.Contains(got, `keelson_share_takeovers_total{from="dead"} 1`) {
		t.Errorf("metrics of the one that took over: %s", got)
	}
	before := len(first.writes())

	t.Log("it goes on, and ends without having written")
	first.signal(t, syscall.SIGCONT)
	if code := first.ends(t); code != 2 || !strings.Contains(first.log.String(), "this process does not hold its lease") {
		t.Errorf("exit code %d, and it said:\n%s", code, first.log.String())
	}
	if got := first.writes()[before:]; len(got) > 0 {
		t.Errorf("the one that was stopped wrote: %q", got)
	}

	t.Log("an ordinary end gives the cluster away at once")
	third := startController(t, f, hub)
	second, third = settled(t, second, third)
	given := second.givenBack() // it may have deleted that of the first
	second.signal(t, syscall.SIGINT)
	if code := second.ends(t); code != 0 {
		t.Errorf("exit code %d, and it said:\n%s", code, second.log.String())
	}
	if second.givenBack() == given {
		t.Error("it left its lease behind, which has to run out")
	}
	third.hasIt(t)
}

// With --cluster, the controller does not use the connection in cluster.yaml, which is for other
// processes. In this test the connection names a Secret that doesn't exist.
func TestClusterAlone(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, versions[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		hub := start(t).Config
		c, err := kubernetes.NewForConfig(hub)
		if err != nil {
			t.Fatal(err)
		}
		f := newFleet(t, "alone")
		process := startController(t, f, hub, "--cluster", "test", "--profile-listen", "127.0.0.1:0")
		process.hasIt(t)
		if got := process.ask(t, profiling, "/debug/pprof/heap?debug=1"); !strings.Contains(got, "heap profile: ") {
			t.Errorf("the heap's profile: %.100q", got)
		}
		if got := process.ask(t, profiling, "/debug/pprof/cmdline"); got != "404 page not found\n" {
			t.Errorf("the command line may hold secrets, and was served: %.100q", got)
		}
		if got := process.get(t, "/debug/pprof/heap?debug=1"); got != "404 page not found\n" {
			t.Errorf("profiles were served with the metrics: %.100q", got)
		}
		until(t, "it delivers to the hub", func() bool {
			_, err := c.CoreV1().Secrets("keelson-system").Get(t.Context(), "record-gadgetsalone", metav1.GetOptions{})
			return err == nil
		})
		other := startController(t, f, hub, "--cluster", "elsewhere")
		until(t, "it says that there is no such cluster", func() bool {
			return strings.Contains(other.get(t, "/readyz"), "the fleet repository has no cluster elsewhere")
		})
	})
}

func TestShareFlags(t *testing.T) {
	f := newFleet(t, "")
	f.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfigOf("http://127.0.0.1:1"), f.kubeconfig); err != nil {
		t.Fatal(err)
	}
	f.keelson("controller", "--share", "--lease-duration", "10s").want(t, 2).says(t,
		"--lease-duration, --renew-deadline, --retry-period: the renew deadline (10s) must be shorter than the lease duration (10s)")
}

// controller is a process, with a proxy before the hub and the clusters that notes its
// requests.
type controller struct {
	cmd    *exec.Cmd
	log    buffer
	exited chan struct{}

	mu   sync.Mutex
	sent []string // writes, as METHOD PATH
}

func startController(t *testing.T, f *fleet, hub *rest.Config, more ...string) *controller {
	t.Helper()
	c := &controller{exited: make(chan struct{})}
	transport, err := rest.TransportFor(hub)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(hub.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { c.note(r.In); r.SetURL(target) },
		// What a stopped process hangs up on is no news.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	front := httptest.NewServer(proxy)
	t.Cleanup(front.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfigOf(front.URL), path); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{
		"controller", "--share", "--lease-duration", "10s", "--renew-deadline", "7s", "--retry-period", "500ms",
		"--repo", f.dir, "--cache-dir", t.TempDir(), "--kubeconfig", path, "--interval", "1s", "--listen", "127.0.0.1:0",
	}, more...)
	c.cmd = exec.Command(self, args...) //nolint:noctx // it is ended below
	c.cmd.Stderr = &c.log
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.exited)
	}()
	t.Cleanup(func() { _ = c.cmd.Process.Kill(); <-c.exited; front.CloseClientConnections() })
	return c
}

func kubeconfigOf(server string) *clientcmdapi.Config {
	out := clientcmdapi.NewConfig()
	out.Clusters["prod"] = &clientcmdapi.Cluster{Server: server}
	out.AuthInfos["prod"] = &clientcmdapi.AuthInfo{}
	out.Contexts["prod"] = &clientcmdapi.Context{Cluster: "prod", AuthInfo: "prod"}
	out.CurrentContext = "prod"
	return out
}

func (c *controller) note(r *http.Request) {
	if r.Method == http.MethodGet {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, r.Method+" "+r.URL.Path)
}

// writes are those that it sent but for the renewals of the lease.
func (c *controller) writes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, one := range c.sent {
		if !strings.Contains(one, "/leases") {
			out = append(out, one)
		}
	}
	return out
}

// givenBack counts the leases that it deleted.
func (c *controller) givenBack() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, one := range c.sent {
		if strings.HasPrefix(one, http.MethodDelete) && strings.Contains(one, "/leases/") {
			n++
		}
	}
	return n
}

// settled waits until that one of two processes has the cluster to which hashing gives it.
// Until it is handed over, the other one has it, and both say so.
func settled(t *testing.T, a, b *controller) (has, waits *controller) {
	t.Helper()
	until(t, "both have said who they are", func() bool { return a.identity() != "" && b.identity() != "" })
	if len(shard.Assign([]string{a.identity(), b.identity()}, []string{"prod"})[a.identity()]) == 0 {
		a, b = b, a
	}
	until(t, "one has the cluster", func() bool {
		return a.get(t, "/readyz") == worker+"\n" && b.get(t, "/readyz") == waiter+"\n"
	})
	return a, b
}

// identity is what the process calls itself; "" until it has said so.
func (c *controller) identity() string {
	said := identifying.FindStringSubmatch(c.log.String())
	if said == nil {
		return ""
	}
	return said[1]
}

func (c *controller) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (c *controller) ends(t *testing.T) int {
	t.Helper()
	until(t, "the process ends", func() bool {
		select {
		case <-c.exited:
			return true
		default:
			return false
		}
	})
	return c.cmd.ProcessState.ExitCode()
}

// hasIt waits until the process has the only cluster, and no other is there.
func (c *controller) hasIt(t *testing.T) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("/readyz says %q, and its log:\n%s", c.get(t, "/readyz"), c.log.String())
		}
	}()
	until(t, alone, func() bool { return c.get(t, "/readyz") == alone+"\n" })
}

var (
	identifying = regexp.MustCompile(`msg="keelson controller".* identity=(\S+)\n`)
	listening   = regexp.MustCompile(`readyz" address=(\S+)`)
	profiling   = regexp.MustCompile(`pprof" address=(\S+)`)
)

// get asks the process's HTTP server; "" while it does not answer.
func (c *controller) get(t *testing.T, path string) string {
	t.Helper()
	return c.ask(t, listening, path)
}

// ask asks one of the process's servers, whose address its log tells.
func (c *controller) ask(t *testing.T, server *regexp.Regexp, path string) string {
	t.Helper()
	address := server.FindStringSubmatch(c.log.String())
	if address == nil {
		return ""
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address[1]+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	return string(body)
}

// until waits for a condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not after %s: %s", patience, what)
		}
	}
}
