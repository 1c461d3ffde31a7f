package proxy_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/chaos/proxy"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

const name = "proxied"

// patience ends a wait for what must happen. It is not a bound: only a test that hangs
// reaches it.
const patience = 3 * time.Minute

// TestProxy runs every fault against a real API server, over HTTP/2 and HTTP/1.1.
func TestProxy(t *testing.T) {
	if testing.Short() || os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("runs a cluster: needs KUBEBUILDER_ASSETS, which make test sets, and no -short")
	}
	must.Test(t, func() {
		set := must.Get(binaries.Find())
		lab := &cluster.Lab{Dir: filepath.Join(t.TempDir(), "clusters")}
		t.Cleanup(func() {
			if err := lab.Down(context.WithoutCancel(t.Context()), name); err != nil {
				t.Error(err)
			}
		})
		must.Do(lab.Up(t.Context(), name, cluster.Change{ControlPlaneOnly: new(true)}, set))
		upstream := map[string]*rest.Config{}
		for _, user := range []string{cluster.Admin, cluster.Keelson} {
			upstream[user] = must.Get(harness.Config(lab, name, user))
		}
		direct := must.Get(kubernetes.NewForConfig(upstream[cluster.Admin]))
		for protocol, http1 := range map[string]bool{"HTTP2": false, "HTTP1": true} {
			t.Run(protocol, func(t *testing.T) {
				t.Parallel()
				must.Test(t, func() {
					p := must.Get(proxy.New(proxy.Options{Upstream: upstream, HTTP1: http1, Agent: "by-" + protocol}))
					t.Cleanup(p.Close)
					(&scene{lab: lab, proxy: p, direct: direct, prefix: strings.ToLower(protocol)}).all(t)
				})
			})
		}
	})
}

// all tests one fault after the other. The last test closes the proxy.
func (s *scene) all(t *testing.T) {
	for _, one := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Pass", s.pass},
		{"Refuse", s.refuse},
		{"BreakOff", s.breakOff},
		{"AnswerLost", s.answerLost},
		{"Connection", s.connection},
		{"Hang", s.hang},
		{"Drip", s.drip},
		{"Watch", s.watch},
		{"Gone", s.gone},
		{"Hooks", s.hooks},
		{"Close", s.close},
	} {
		t.Run(one.name, func(t *testing.T) { must.Test(t, func() { one.test(t) }) })
	}
}

// scene is a proxy before an API server.
type scene struct {
	lab    *cluster.Lab
	proxy  *proxy.Proxy
	direct kubernetes.Interface // not through the proxy
	prefix string               // of names
}

// client is Keelson's, with a connection of its own.
func (s *scene) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	config := must.Get(clientcmd.RESTConfigFromKubeConfig(must.Get(s.proxy.Kubeconfig(cluster.Keelson))))
	config.UserAgent = "proxy-test/" + s.prefix
	config.Dial = dialer() // clients of one kubeconfig share connections otherwise
	return must.Get(kubernetes.NewForConfig(config))
}

// on makes a fault for requests of one verb on ConfigMaps; times 0: for all.
func (s *scene) on(t *testing.T, verb string, times int32, v proxy.Verdict) {
	t.Helper()
	var made atomic.Int32
	s.proxy.Use(func(r proxy.Request) proxy.Verdict {
		if r.Verb != verb || r.Resource != "configmaps" || times > 0 && made.Add(1) > times {
			return proxy.Verdict{}
		}
		return v
	})
	t.Cleanup(func() { s.proxy.Use(nil) })
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": strings.Repeat("b", 4000)}}
}

// exists asks the API server itself.
func (s *scene) exists(ctx context.Context, name string) bool {
	_, err := s.direct.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		must.Do(err)
	}
	return err == nil
}

// pass: with no fault the API server sees the same user, program and bytes.
func (s *scene) pass(t *testing.T) {
	since := must.Get(harness.AuditEnd(s.lab, name))
	object := s.prefix + "-pass"
	maps := s.client(t).CoreV1().ConfigMaps("default")
	watcher := must.Get(maps.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + object}))
	defer watcher.Stop()
	must.Get(maps.Create(t.Context(), configMap(object), metav1.CreateOptions{}))
	if e := next(t, watcher); e.Type != watch.Added {
		t.Errorf("the watch says %s; it must stream", e.Type)
	}
	got, err := maps.Patch(t.Context(), object, types.MergePatchType, []byte(`{"data":{"c":"d"}}`), metav1.PatchOptions{})
	if err != nil || got.Data["c"] != "d" || len(got.Data["a"]) != 4000 {
		t.Errorf("patched: %v, %v", got, err)
	}
	must.Do(maps.Delete(t.Context(), object, metav1.DeleteOptions{}))
	verbs := map[string]bool{}
	for _, e := range must.Get(harness.Audit(s.lab, name, since)) {
		if e.Resource.Name == object && e.Stage == audit.ResponseComplete {
			verbs[e.Verb] = true
			if e.User != cluster.Keelson || strings.ToLower(e.UserAgent) != "proxy-test/"+s.prefix+" by-"+s.prefix {
				t.Errorf("%s by %s; the API server must see who asks", e, e.UserAgent)
			}
		}
	}
	if !verbs["create"] || !verbs["patch"] || !verbs["delete"] {
		t.Errorf("the API server saw %v", verbs)
	}
	if _, err := s.proxy.Kubeconfig("unknown"); err == nil {
		t.Error("got a kubeconfig for an unknown user")
	}
}

// refuse: what a busy or broken server answers reaches the client as the error
// that it is, and the API server hears nothing.
func (s *scene) refuse(t *testing.T) {
	cases := map[string]struct {
		why  string
		v    proxy.Verdict
		is   func(error) bool
		wait int // seconds that the error tells to wait
	}{
		"TooMany": {
			why: "Retry-After reaches the client.", v: proxy.Verdict{Code: http.StatusTooManyRequests, RetryAfter: 7 * time.Second},
			is: apierrors.IsTooManyRequests, wait: 7,
		},
		"Internal":    {why: "A Status object.", v: proxy.Verdict{Code: http.StatusInternalServerError}, is: apierrors.IsInternalError},
		"Unavailable": {why: "A Status object.", v: proxy.Verdict{Code: http.StatusServiceUnavailable}, is: apierrors.IsServiceUnavailable},
		"Plain": {
			why: "Text of a load balancer.", v: proxy.Verdict{Code: http.StatusServiceUnavailable, Plain: true},
			is: func(err error) bool { return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) },
		},
	}
	for name, tc := range cases {
		tc.v.Fault = proxy.Status
		s.on(t, "create", 0, tc.v)
		object := configMap(s.prefix + "-refuse-" + strings.ToLower(name))
		// It asks once: client-go would wait, and try again, as often as it is told to wait.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		rest := s.client(t).CoreV1().RESTClient()
		err := rest.Post().Namespace("default").Resource("configmaps").Body(object).MaxRetries(0).Do(ctx).Error()
		cancel()
		if !tc.is(err) {
			t.Errorf("%s: %v; %s", name, err, tc.why)
		}
		if seconds, _ := apierrors.SuggestsClientDelay(err); seconds != tc.wait {
			t.Errorf("%s: wait %d s, want %d; %s", name, seconds, tc.wait, tc.why)
		}
		if s.exists(t.Context(), object.Name) {
			t.Errorf("%s: it was forwarded", name)
		}
	}
}

// breakOff: the client sees its request fail, and only what is forwarded happens.
func (s *scene) breakOff(t *testing.T) {
	for fault, forwarded := range map[proxy.Fault]bool{proxy.ResetBefore: false, proxy.ResetMidAnswer: true, proxy.DropAnswer: true} {
		before := s.proxy.Counts()[fault]
		s.on(t, "create", 0, proxy.Verdict{Fault: fault})
		object := configMap(s.prefix + "-" + strings.ReplaceAll(fault.String(), " ", "-"))
		_, err := s.client(t).CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{})
		if err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			t.Errorf("%s: error %v, want one of the connection", fault, err)
		}
		if s.exists(t.Context(), object.Name) != forwarded {
			t.Errorf("%s: the object exists: %t", fault, !forwarded)
		}
		if n := s.proxy.Counts()[fault]; n == before {
			t.Errorf("%s was not counted", fault)
		}
	}
}

// answerLost: the write is committed even when its client is gone by then.
func (s *scene) answerLost(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.on(t, "create", 0, proxy.Verdict{Fault: proxy.DropAnswer, Before: cancel})
	object := configMap(s.prefix + "-gone-client")
	_, err := s.client(t).CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{})
	if err == nil {
		t.Fatal("no error")
	}
	must.Limits{Patience: patience, Every: 20 * time.Millisecond}.Until(t.Context(), func(ctx context.Context) {
		if !s.exists(ctx, object.Name) {
			must.Failf("the write was not committed")
		}
	})
}

// connection: a reset of the whole connection takes the watch on it, too, where
// both share one: over HTTP/2.
func (s *scene) connection(t *testing.T) {
	maps := s.client(t).CoreV1().ConfigMaps("default")
	watcher := must.Get(maps.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=none"}))
	defer watcher.Stop()
	s.on(t, "create", 1, proxy.Verdict{Fault: proxy.DropAnswer, Connection: true})
	object := configMap(s.prefix + "-connection")
	if _, err := maps.Create(t.Context(), object, metav1.CreateOptions{}); err == nil {
		t.Error("the answer came")
	}
	if !s.exists(t.Context(), object.Name) {
		t.Error("it was not forwarded")
	}
	if s.prefix == "http2" {
		ended(t, watcher)
	}
	if _, err := maps.Get(t.Context(), object.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("a new connection: %v", err)
	}
}

// hang: nothing comes until the client gives up, or the time is over.
func (s *scene) hang(t *testing.T) {
	maps := s.client(t).CoreV1().ConfigMaps("default")
	s.on(t, "create", 0, proxy.Verdict{Fault: proxy.Hang})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	object := configMap(s.prefix + "-hang")
	if _, err := maps.Create(ctx, object, metav1.CreateOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that the client gave up", err)
	}
	s.on(t, "create", 0, proxy.Verdict{Fault: proxy.Hang, For: 50 * time.Millisecond})
	if _, err := maps.Create(t.Context(), object, metav1.CreateOptions{}); err == nil {
		t.Error("it was answered")
	}
	if s.exists(t.Context(), object.Name) {
		t.Error("it was forwarded")
	}
}

// drip: what comes slowly comes whole.
func (s *scene) drip(t *testing.T) {
	object := configMap(s.prefix + "-drip")
	maps := s.client(t).CoreV1().ConfigMaps("default")
	s.on(t, "create", 0, proxy.Verdict{Fault: proxy.Drip})
	started := time.Now()
	got, err := maps.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil || len(got.Data["a"]) != 4000 {
		t.Fatalf("%v, %v", got, err)
	}
	if took := time.Since(started); took < 64*10*time.Millisecond {
		t.Errorf("it took %s, less than 64 bytes at their pace", took)
	}
}

// watch: one that is cut ends as one that the server ended.
func (s *scene) watch(t *testing.T) {
	maps := s.client(t).CoreV1().ConfigMaps("default")
	for _, bound := range []time.Duration{0, 200 * time.Millisecond} {
		s.on(t, "watch", 1, proxy.Verdict{Fault: proxy.CutWatch, For: bound})
		ended(t, must.Get(maps.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=none"})))
	}
}

// gone: both ways in which an API server says that a resourceVersion is too old.
func (s *scene) gone(t *testing.T) {
	maps := s.client(t).CoreV1().ConfigMaps("default")
	s.on(t, "watch", 1, proxy.Verdict{Fault: proxy.Gone410})
	watcher := must.Get(maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"}))
	e := next(t, watcher)
	if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.IsResourceExpired(err) {
		t.Errorf("%s: %v, want that it expired", e.Type, err)
	}
	s.on(t, "list", 1, proxy.Verdict{Fault: proxy.Gone410})
	if _, err := maps.List(t.Context(), metav1.ListOptions{}); !apierrors.IsResourceExpired(err) {
		t.Errorf("list: %v, want that it expired", err)
	}
}

// hooks: before, the API server has nothing of it; afterwards it has, and the
// client doesn't know.
func (s *scene) hooks(t *testing.T) {
	object := configMap(s.prefix + "-hooks")
	var before, after atomic.Bool
	s.on(t, "create", 0, proxy.Verdict{
		Before:   func() { before.Store(!s.exists(t.Context(), object.Name)) },
		Answered: func() { after.Store(s.exists(t.Context(), object.Name)) },
	})
	must.Get(s.client(t).CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{}))
	if !before.Load() || !after.Load() {
		t.Errorf("before %t, after %t", before.Load(), after.Load())
	}
}

// close ends the requests that hang.
func (s *scene) close(t *testing.T) {
	s.on(t, "create", 0, proxy.Verdict{Fault: proxy.Hang})
	failed := make(chan error, 1)
	object := configMap(s.prefix + "-close")
	maps := s.client(t).CoreV1().ConfigMaps("default")
	before := s.proxy.Counts()[proxy.Hang]
	go func() {
		_, err := maps.Create(t.Context(), object, metav1.CreateOptions{})
		failed <- err
	}()
	must.Limits{Patience: patience, Every: 20 * time.Millisecond}.Until(t.Context(), func(context.Context) {
		if s.proxy.Counts()[proxy.Hang] == before {
			must.Failf("the request did not come")
		}
	})
	s.proxy.Close()
	if err := <-failed; err == nil {
		t.Error("it was answered")
	}
}

func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch ended")
		}
		return e
	case <-time.After(patience):
		t.Fatal("the watch says nothing")
	}
	return watch.Event{}
}

// ended waits for the end of a watch, which may come as an error event.
func ended(t *testing.T, w watch.Interface) {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case _, ok := <-w.ResultChan():
			if !ok {
				return
			}
		case <-timeout:
			t.Fatal("the watch goes on")
		}
	}
}

// dialer returns a function that differs from every other, so that a client
// that uses it shares no connection.
func dialer() func(context.Context, string, string) (net.Conn, error) {
	d := &net.Dialer{Timeout: patience}
	return d.DialContext
}
