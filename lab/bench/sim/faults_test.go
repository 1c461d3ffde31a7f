package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// version sends one small request, without retries.
func (w *world) version(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(w.Context(), limit)
	defer cancel()
	return w.kube.CoreV1().RESTClient().Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error()
}

// TestFaults: the faults of one cluster affect no other cluster, and end when they are cleared.
func TestFaults(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why    string
		faults Faults
		check  func(error) bool
	}{
		"Hung": {"Nothing is answered, not even the handshake of a new connection.", Faults{Hung: true}, func(err error) bool {
			return errors.Is(err, context.DeadlineExceeded)
		}},
		"Refusing": {"Connections are reset, and no server listens.", Faults{Refusing: true}, func(err error) bool {
			return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || strings.Contains(fmt.Sprint(err), "EOF")
		}},
		"Throttled": {"429 says when to come again.", Faults{Throttled: 1}, func(err error) bool {
			after, ok := apierrors.SuggestsClientDelay(err)
			return apierrors.IsTooManyRequests(err) && ok && after == 1
		}},
		"Slow": {"Latency is on each request.", Faults{Latency: metav1.Duration{Duration: time.Hour}}, func(err error) bool {
			return errors.Is(err, context.DeadlineExceeded)
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := simulated(t, "ill", "well")
			ill, well := newWorld(t, configOf(t, f, "ill")), newWorld(t, configOf(t, f, "well"))
			step(t, func() {
				must.Do(f.Set(t.Context(), "ill", c.faults))
				if err := ill.version(300 * time.Millisecond); !c.check(err) {
					t.Errorf("%s\ngot %v", c.why, err)
				}
				if err := well.version(time.Minute); err != nil {
					t.Errorf("the other cluster: %v", err)
				}
				must.Do(f.Set(t.Context(), "ill", Faults{}))
				if err := ill.version(time.Minute); err != nil {
					t.Errorf("it is over: %v", err)
				}
			})
		})
	}
}

// TestCutWatches: a cut watch ends, and a new watch continues from the same version.
func TestCutWatches(t *testing.T) {
	t.Parallel()
	step(t, func() {
		f := simulated(t, "one")
		w := newWorld(t, configOf(t, f, "one"))
		first := must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
		from := must.Get(w.of("configmaps").Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.GetResourceVersion()}))
		must.Do(f.CutWatches("one"))
		for range from.ResultChan() {
			t.Error("an event, and not the end")
		}
		must.Get(w.apply("configmaps", configMap("a", "x: w"), "one"))
		from = must.Get(w.of("configmaps").Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.GetResourceVersion()}))
		if got := w.events(from, 1)[0]; !strings.HasPrefix(got, "MODIFIED ConfigMap a") {
			t.Errorf("got %s", got)
		}
	})
}

// TestTooOld: a watch from a version before the kept events gets an error in its stream. A page of
// a dropped list gets an error status. Real API servers do the same.
func TestTooOld(t *testing.T) {
	t.Parallel()
	step(t, func() {
		f := simulated(t, "one")
		w := newWorld(t, configOf(t, f, "one"))
		from := must.Get(w.of("configmaps").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "2"}))
		e := <-from.ResultChan()
		if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.IsResourceExpired(err) || !strings.Contains(err.Error(), "too old resource version: 2") {
			t.Errorf("got %s: %v", e.Type, err)
		}
		for i := range 3 {
			must.Get(w.apply("configmaps", configMap(fmt.Sprintf("a%d", i), "x: v"), "one"))
		}
		list := must.Get(w.of("configmaps").List(t.Context(), metav1.ListOptions{Limit: 1}))
		for range keptPages { // start more paged lists, which displace the first
			must.Get(w.apply("configmaps", configMap("b", "x: '"+time.Now().String()+"'"), "one"))
			must.Get(w.of("configmaps").List(t.Context(), metav1.ListOptions{Limit: 1}))
		}
		_, err := w.of("configmaps").List(t.Context(), metav1.ListOptions{Limit: 1, Continue: list.GetContinue()})
		w.refused(err, apierrors.IsResourceExpired)
	})
}

// TestShared: clusters share equal content, but not UIDs, versions and times.
func TestShared(t *testing.T) {
	t.Parallel()
	step(t, func() {
		f := simulated(t, "one", "two")
		var uids, versions []string
		for i, name := range []string{"one", "two"} {
			w := newWorld(t, configOf(t, f, name))
			w.namespace = "default"
			for range i { // make the versions differ even if both started equal
				must.Get(w.apply("configmaps", configMap("before", "x: v"), "one"))
			}
			u := must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
			uids, versions = append(uids, string(u.GetUID())), append(versions, u.GetResourceVersion())
		}
		gr := f.common.kinds[namespaces].gvr().GroupResource()
		gr.Resource = "configmaps"
		one, two := f.servers["one"].store.get(gr, key{"default", "a"}), f.servers["two"].store.get(gr, key{"default", "a"})
		if one.body != two.body {
			t.Error("two clusters have the same content twice")
		}
		if uids[0] == uids[1] || versions[0] == versions[1] {
			t.Errorf("UIDs %q, versions %q", uids, versions)
		}
	})
}

// TestControl: requests are counted, and the control API reports the counts.
func TestControl(t *testing.T) {
	t.Parallel()
	step(t, func() {
		f := simulated(t, "one", "two")
		w := newWorld(t, configOf(t, f, "one"))
		must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
		must.Get(w.apply("configmaps", configMap("a", "x: w"), "one", "dry"))
		api := httptest.NewServer(f.Control())
		defer api.Close()
		answer := must.Get(ask(t, http.DefaultClient, http.MethodGet, api.URL+"/?clusters=one", ""))
		defer func() { _ = answer.Body.Close() }()
		var statuses []Status
		must.Do(json.NewDecoder(answer.Body).Decode(&statuses))
		if len(statuses) != 1 || statuses[0].Objects["configmaps"] != 1 {
			t.Fatalf("got %+v", statuses)
		}
		written, dry := 0, 0
		for _, c := range statuses[0].Counts {
			if c.Resource == "configmaps" && c.Write() {
				written += c.Requests
			}
			if c.DryRun {
				dry += c.Requests
			}
		}
		if written != 1 || dry != 1 {
			t.Errorf("%d writes and %d dry runs of one each: %+v", written, dry, statuses[0].Counts)
		}
		for body, code := range map[string]int{`{"clusters":["two"],"faults":{"latency":"1ms"}}`: 204, `{"clusters":["three"],"cutWatches":true}`: 422, `{"faults":{"latency":1}}`: 400} {
			answer := must.Get(ask(t, http.DefaultClient, http.MethodPost, api.URL+"/", body))
			must.Do(answer.Body.Close())
			if answer.StatusCode != code {
				t.Errorf("%s: %d, want %d", body, answer.StatusCode, code)
			}
		}
		if got := f.servers["two"].faults.get().Latency; got.Duration != time.Millisecond {
			t.Errorf("latency %v", got)
		}
	})
}

// TestUnknownClients: a client certificate of another cluster is rejected.
func TestUnknownClients(t *testing.T) {
	t.Parallel()
	f := simulated(t, "one", "two")
	one, two := configOf(t, f, "one"), configOf(t, f, "two")
	mixed := rest.CopyConfig(one)
	mixed.CertData, mixed.KeyData = two.CertData, two.KeyData
	client, err := rest.HTTPClientFor(mixed)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := ask(t, client, http.MethodGet, one.Host+"/version", "")
	if err == nil {
		_ = answer.Body.Close()
		t.Errorf("the answer is %s", answer.Status)
	}
	if os.IsTimeout(err) {
		t.Error(err)
	}
}

func ask(t *testing.T, client *http.Client, method, url, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return client.Do(req)
}
