package cmd_test

import (
	"context"
	"io"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/cmd"
)

const waitsFor = " of apps.kruise.io/v1beta1, which the cluster doesn't serve yet: apply the CRDs of components/workload-controllers"

// TestWorkloadsWait: where the kinds aren't served, keelson workloads neither ends, which
// would have its pod back off and Keelson call its Deployment broken, nor is it ready; it
// says what it waits for, once, and works as soon as all of it is there.
func TestWorkloadsWait(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, versions[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		s := start(t)
		crds := newCRDs(t, s)
		w := runWorkloads(t, s)

		all := "waits for clonesets, daemonsets, statefulsets" + waitsFor
		until(t, all, func() bool { return w.get(t, "/readyz") == all+"\n" && w.looks.Load() >= 3 })
		if got := w.get(t, "/healthz"); got != "ok\n" {
			t.Errorf("/healthz says %q: a kubelet would start it again", got)
		}
		crds.apply("clonesets")
		crds.apply("daemonsets")
		one := "waits for statefulsets" + waitsFor
		until(t, one, func() bool { return w.get(t, "/readyz") == one+"\n" })
		crds.apply("statefulsets")
		until(t, "it is ready", func() bool { return w.get(t, "/readyz") == "ok\n" })

		for _, line := range []string{all, one, "the cluster serves the missing kinds now"} {
			if n := strings.Count(w.log.String(), line); n != 1 {
				t.Errorf("the log has %d times %q:\n%s", n, line, w.log.String())
			}
		}
		if code := w.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}

// Clients that keep their connections to the metrics open, and ask nothing, lose them.
func TestSilentClients(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, versions[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		w := runWorkloads(t, start(t))
		until(t, "it serves", func() bool { return w.get(t, "/healthz") == "ok\n" })
		address := listening.FindStringSubmatch(w.log.String())[1]
		for _, request := range []string{"", "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", "GET /healthz HTTP/1.1\r\nHost: a\r\nX: "} {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Errorf("after %q the connection stays open: %v", request, err)
			}
		}
		if code := w.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}

// TestWorkloadsStopWaiting: the command ends with exit code 0 if it is stopped while it waits. It
// does not wait for an unreachable cluster, because the address may be wrong.
func TestWorkloadsStopWaiting(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, versions[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		w := runWorkloads(t, start(t))
		until(t, "it waits", func() bool { return strings.HasPrefix(w.get(t, "/readyz"), "waits for ") })
		if code := w.stop(); code != 0 {
			t.Errorf("exit code %d\n%s", code, w.log.String())
		}
	})
	unreachable, err := nowhere(t)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	world{}.runContext(ctx, "workloads", "--kubeconfig", unreachable, "--lead=false", "--listen", "").want(t, 2).says(t, "discover the kinds of the cluster: ", "connection refused")
}

// nowhere returns a kubeconfig of a cluster whose API server does not answer.
func nowhere(t *testing.T) (string, error) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	return path, os.WriteFile(path, []byte(`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}], clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]}`), 0o600)
}

// workloads is keelson workloads at work, with a proxy before its cluster.
type workloads struct {
	*controller
	looks atomic.Int32 // how often it has asked for the kinds
	stop  func() int   // returns the exit code
}

func runWorkloads(t *testing.T, s *apiservertest.Server) *workloads {
	t.Helper()
	transport, err := rest.TransportFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(s.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	w := &workloads{controller: &controller{}}
	front := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		if r.In.URL.Path == "/apis/apps.kruise.io/v1beta1" {
			w.looks.Add(1)
		}
		r.SetURL(target)
	}})
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfigOf(front.URL), path); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- cmd.Run(ctx, cmd.Env{In: strings.NewReader(""), Out: &w.log, Err: &w.log, Now: time.Now},
			[]string{"workloads", "--kubeconfig", path, "--lead=false", "--listen", "127.0.0.1:0"})
	}()
	w.stop = func() int { cancel(); return <-ended }
	t.Cleanup(func() { cancel(); front.CloseClientConnections(); front.Close() })
	return w
}

// crds are those that components/workload-controllers ships.
type crds struct {
	*testing.T
	client client.Client
}

func newCRDs(t *testing.T, s *apiservertest.Server) *crds {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(s.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &crds{T: t, client: c}
}

func (c *crds) apply(plural string) {
	c.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	text := readFile(c.T, "../components/workload-controllers/template/crds/apps.kruise.io_"+plural+".yaml")
	if err := yaml.Unmarshal([]byte(text), &crd); err != nil {
		c.Fatal(err)
	}
	if err := c.client.Create(c.Context(), &crd); err != nil {
		c.Fatal(err)
	}
}

// A CA of API servers is for webhooks, has to be readable, and is nothing without a name.
func TestWorkloadsClientCA(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range map[string]struct{ args, says string }{
		"no webhooks":    {"--webhook-client-ca=" + file, "--webhook-service"},
		"no file":        {"--webhook-service=a/b --webhook-client-ca=" + file + ".absent", "--webhook-client-ca"},
		"no certificate": {"--webhook-service=a/b --webhook-client-ca=" + file, "PEM"},
		"any client's":   {"--webhook-service=a/b --webhook-client-name= --webhook-client-ca=" + file, "--webhook-client-name"},
	} {
		world{}.runContext(t.Context(), append([]string{"workloads"}, strings.Fields(c.args)...)...).want(t, 2).says(t, c.says)
	}
}
