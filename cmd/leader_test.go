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
)

// TestLeaderElection has two controllers as processes of their own. The leader
// is stopped, as by a debugger or a hypervisor, past the end of its term.
func TestLeaderElection(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, versions[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		testLeaderElection(t, start(t).Config) // a hub of its own: what is delivered shows in status
	})
}

func testLeaderElection(t *testing.T, hub *rest.Config) {
	t.Helper()
	c, err := kubernetes.NewForConfig(hub)
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, "leader")
	first := startController(t, f, hub)
	first.waitFor(t, "ok: leader")
	second := startController(t, f, hub)
	second.waitFor(t, "ok: standby")
	if got := second.get(t, "/metrics"); !strings.Contains(got, "keelson_leader 0") {
		t.Errorf("metrics of the one that waits: %s", got)
	}
	until(t, "the leader delivers", func() bool {
		_, err := c.CoreV1().Secrets("keelson-system").Get(t.Context(), "record-gadgetsleader", metav1.GetOptions{})
		return err == nil
	})
	if got := second.writes(); len(got) > 0 {
		t.Errorf("the one that waits wrote: %q", got)
	}

	t.Log("the leader stops, and another takes over")
	first.signal(t, syscall.SIGSTOP)
	second.waitFor(t, "ok: leader")
	before := len(first.writes())

	t.Log("it goes on, and ends without having written")
	first.signal(t, syscall.SIGCONT)
	if code := first.ends(t); code != 2 || !strings.Contains(first.log.String(), "this process does not hold the lease") {
		t.Errorf("exit code %d, and it said:\n%s", code, first.log.String())
	}
	if got := first.writes()[before:]; len(got) > 0 {
		t.Errorf("the old leader wrote: %q", got)
	}

	t.Log("an ordinary end gives the lease back")
	third := startController(t, f, hub)
	third.waitFor(t, "ok: standby")
	second.signal(t, syscall.SIGINT)
	if code := second.ends(t); code != 0 {
		t.Errorf("exit code %d, and it said:\n%s", code, second.log.String())
	}
	third.waitFor(t, "ok: leader")
}

func TestLeaderFlags(t *testing.T) {
	f := newFleet(t, "")
	f.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfigOf("http://127.0.0.1:1"), f.kubeconfig); err != nil {
		t.Fatal(err)
	}
	f.keelson("controller", "--leader-elect", "--lease-duration", "10s").want(t, 2).says(t,
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

func startController(t *testing.T, f *fleet, hub *rest.Config) *controller {
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
	c.cmd = exec.Command(self, "controller", "--leader-elect", "--lease-duration", "3s", "--renew-deadline", "2s", "--retry-period", "500ms", //nolint:noctx // it is ended below
		"--repo", f.dir, "--cache-dir", t.TempDir(), "--kubeconfig", path, "--interval", "1s", "--listen", "127.0.0.1:0")
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

func (c *controller) waitFor(t *testing.T, ready string) {
	t.Helper()
	until(t, ready, func() bool { return c.get(t, "/readyz") == ready+"\n" })
}

var listening = regexp.MustCompile(`readyz" address=(\S+)`)

// get asks the process's HTTP server; "" while it does not answer.
func (c *controller) get(t *testing.T, path string) string {
	t.Helper()
	address := listening.FindStringSubmatch(c.log.String())
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
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not after 30s: %s", what)
		}
	}
}
