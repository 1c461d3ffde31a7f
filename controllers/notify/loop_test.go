package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer/redact"
)

// desk runs loops, one after the other, over one hub, on a clock that jumps: nothing of it
// leaves the process.
type desk struct {
	t       *testing.T
	hub     *fake.Clientset
	fleet   *registry.Fleet
	metrics *Metrics
	begun   time.Time

	mu        sync.Mutex
	posts     []string                         // when, where to, and the text
	ids       []string                         // of messages
	answers   map[string]func() *http.Response // by host; none: it takes the message
	announced []string
	log       strings.Builder
}

func (d *desk) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

// RoundTrip is the network.
func (d *desk) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	text := strings.TrimSuffix(strings.SplitN(string(body), `"text":"`, 2)[1], `","unfurl_links":false,"unfurl_media":false}`)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.posts = append(d.posts, fmt.Sprintf("%s %s %s", time.Since(d.begun).Round(time.Second), r.URL.Host, text))
	if _, id, ok := strings.Cut(string(body), `"id":"`); ok {
		d.ids = append(d.ids, id[:32])
	}
	if answer := d.answers[r.URL.Host]; answer != nil {
		return answer(), nil
	}
	return answers(http.StatusOK, nil)(), nil
}

func answers(status int, header http.Header) func() *http.Response {
	return func() *http.Response {
		return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(""))}
	}
}

// notifications are files that send to NAME.example, as chat; a text says what else.
func notifications(more map[string]string) map[string]string {
	files := map[string]string{"pipelines/standard.yaml": "", "components/dns/component.yaml": head + "Component\nnamespace: a\n"}
	for name, text := range more {
		files["notifications/"+name+".yaml"] = head + "Notification\n" + text + "slack: {url: \"https://" + name + ".example\"}\n"
	}
	return files
}

// atDesk runs a test on a clock that jumps.
func atDesk(t *testing.T, files map[string]string, test func(*desk)) {
	t.Helper()
	fleet := newFleet(t, files)
	for _, n := range fleet.Notifications {
		if len(n.Problems) > 0 {
			t.Fatal(n.Problems)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		test(&desk{t: t, hub: fake.NewClientset(), fleet: fleet, metrics: NewMetrics(), begun: time.Now(), answers: map[string]func() *http.Response{}})
	})
}

// run runs a loop until stop is called.
func (d *desk) run() (l *Loop, stop func()) {
	d.t.Helper()
	board, err := rollout.NewCache(&rest.Config{Host: "http://127.0.0.1:1"}, func(_, _ *v1alpha1.Rollout) {})
	if err != nil {
		d.t.Fatal(err)
	}
	l = NewLoop(Options{
		Board: board, Hub: d.hub.CoreV1(), Log: slog.New(slog.NewTextHandler(d, nil)), Now: time.Now, Redactor: redact.New(), Metrics: d.metrics,
		Sender: NewSender(Sender{Now: time.Now}, d),
		RecordEvent: func(kind, reason, _ string) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.announced = append(d.announced, kind+" "+reason)
		},
	})
	ctx, cancel := context.WithCancel(d.t.Context())
	var working sync.WaitGroup
	l.Fleet(d.fleet)
	l.tellers = map[string]*teller{}
	l.replace(nil)
	l.assign(ctx, &working)
	synctest.Wait()
	return l, func() {
		cancel()
		working.Wait()
	}
}

// show has the hub show deliveries: "test/web Failed", say.
func (d *desk) show(l *Loop, deliveries ...string) {
	for _, text := range deliveries {
		l.store(d.delivery(text), false)
	}
}

func (d *desk) delivery(text string) *v1alpha1.Delivery {
	at, sync, _ := strings.Cut(text, " ")
	cluster, component, _ := strings.Cut(at, "/")
	is := &v1alpha1.Delivery{Status: status(v1alpha1.Sync(sync), v1alpha1.HealthHealthy, "")}
	is.Labels = map[string]string{v1alpha1.LabelCluster: cluster, v1alpha1.LabelComponent: component}
	is.Annotations = map[string]string{v1alpha1.AnnotationFleet: d.fleet.Spec.Name}
	return is
}

// passes lets time pass.
func (d *desk) passes(duration time.Duration) {
	<-time.After(duration)
	synctest.Wait()
}

func (d *desk) sent(want ...string) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if diff := cmp.Diff(want, d.posts); diff != "" {
		d.t.Errorf("sent (-want +got):\n%s\n%s", diff, d.log.String())
	}
}

func (d *desk) count(name, result string) float64 {
	var m dto.Metric
	if err := d.metrics.messages.WithLabelValues(name, result).Write(&m); err != nil {
		d.t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// TestLoopCollects: what happens together is told together, and no more often than was
// asked for.
func TestLoopCollects(t *testing.T) {
	t.Parallel()
	atDesk(t, notifications(map[string]string{"a": "interval: 1m\n"}), func(d *desk) {
		l, stop := d.run()
		defer stop()
		for _, cluster := range []string{"prod-1", "prod-2", "test"} {
			d.show(l, cluster+"/web Failed")
			d.passes(time.Second)
		}
		d.show(l, "prod-1/dns Failed", "prod-1/dns Synced") // it has not been seen
		d.passes(10 * time.Second)
		d.show(l, "prod-1/web Synced")
		d.passes(10 * time.Second)
		d.show(l, "prod-2/web Progressing", "prod-2/web Failed")
		d.passes(10 * time.Minute)
		d.sent("5s a.example [earth] web v1.0.0 fails on prod-1, prod-2, test", "1m5s a.example [earth] web is in order again on prod-1")
	})
}

// TestLoopDead: a server that rejects messages does not delay other notifications. When it accepts
// messages again, it gets the current state, without what happened before.
func TestLoopDead(t *testing.T) {
	t.Parallel()
	atDesk(t, notifications(map[string]string{"a": "interval: 1s\n", "dead": "interval: 1s\n"}), func(d *desk) {
		d.answers["dead.example"] = answers(http.StatusServiceUnavailable, http.Header{"Retry-After": {"100"}})
		l, stop := d.run()
		defer stop()
		d.show(l, "test/web Failed", "test/dns Held")
		d.passes(6 * time.Second)
		d.show(l, "test/dns Synced", "prod-1/web Failed")
		d.passes(20 * time.Second)
		const first, second = "[earth] web v1.0.0 fails on test\\n[earth] dns v1.0.0 waits for an approval on test", "[earth] web v1.0.0 fails on prod-1\\n[earth] dns is in order again on test"
		d.mu.Lock()
		delete(d.answers, "dead.example")
		got := slices.Sorted(slices.Values(d.posts))
		d.posts = nil
		d.mu.Unlock()
		if diff := cmp.Diff([]string{"10s a.example " + second, "5s a.example " + first, "5s dead.example " + first}, got); diff != "" {
			t.Errorf("while it is dead (-want +got):\n%s", diff)
		}
		d.passes(5 * time.Minute)
		d.sent("1m45s dead.example [earth] web v1.0.0 fails on prod-1, test")
		if d.count("dead", resultFailed) != 1 || d.count("dead", resultSent) != 1 || d.count("a", resultSent) != 2 {
			t.Error("the counts are wrong")
		}
		if diff := cmp.Diff([]string{"Warning NotificationFailing", "Normal NotificationWorks"}, d.announced); diff != "" {
			t.Errorf("announced (-want +got):\n%s", diff)
		}
	})
}

// TestLoopBacksOff: a server that never answers well is asked some ten times in an hour.
func TestLoopBacksOff(t *testing.T) {
	t.Parallel()
	atDesk(t, notifications(map[string]string{"dead": "interval: 1s\n"}), func(d *desk) {
		d.answers["dead.example"] = answers(http.StatusNotFound, nil)
		l, stop := d.run()
		defer stop()
		d.show(l, "test/web Failed")
		for range 3600 {
			d.show(l, "prod-1/web Failed", "prod-1/web Synced") // it is no reason to ask sooner
			d.passes(time.Second)
		}
		if n := len(d.posts); n < 12 || n > 20 {
			t.Errorf("%d times: %q", n, d.posts)
		}
	})
}

// TestLoopRefused: a message that a server does not want is not sent again, and does not
// keep the next one back.
func TestLoopRefused(t *testing.T) {
	t.Parallel()
	atDesk(t, notifications(map[string]string{"a": "interval: 1s\n"}), func(d *desk) {
		d.answers["a.example"] = answers(http.StatusBadRequest, nil)
		l, stop := d.run()
		defer stop()
		d.show(l, "test/web Failed")
		d.passes(time.Hour)
		d.show(l, "test/dns Failed")
		d.passes(time.Hour)
		d.sent("5s a.example [earth] web v1.0.0 fails on test", "1h0m5s a.example [earth] dns v1.0.0 fails on test")
		if d.count("a", resultDropped) != 2 {
			t.Error("it was not counted")
		}
	})
}

// TestLoopRestarts: who comes after tells what happened since, and nothing twice.
func TestLoopRestarts(t *testing.T) {
	t.Parallel()
	atDesk(t, notifications(map[string]string{"a": ""}), func(d *desk) {
		l, stop := d.run()
		d.show(l, "test/web Failed", "prod-1/web Failed")
		d.passes(time.Minute)
		stop()
		d.sent("5s a.example [earth] web v1.0.0 fails on prod-1, test")
		d.posts = nil
		l, stop = d.run()
		defer stop()
		l.replace([]*v1alpha1.Delivery{d.delivery("test/web Synced"), d.delivery("prod-1/web Failed"), d.delivery("prod-2/web Failed")})
		d.passes(time.Minute)
		d.sent("1m5s a.example [earth] web v1.0.0 fails on prod-2\\n[earth] web is in order again on test")
	})
}

// TestLoopKilled: a process that is killed after a message was taken, and before that was
// written, sends it again, under the same ID.
func TestLoopKilled(t *testing.T) {
	t.Parallel()
	files := notifications(nil)
	maps.Copy(files, map[string]string{"notifications/a.yaml": head + "Notification\nwebhook: {url: \"https://a.example\"}\n"})
	atDesk(t, files, func(d *desk) {
		var lost atomic.Bool
		lost.Store(true)
		d.hub.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return lost.Load(), nil, apierrors.NewTimeoutError("no answer", 1)
		})
		l, stop := d.run()
		d.show(l, "test/web Failed")
		d.passes(6 * time.Second)
		stop()
		lost.Store(false)
		l, stop = d.run()
		defer stop()
		d.show(l, "test/web Failed")
		d.passes(time.Hour)
		if len(d.ids) != 2 || d.ids[0] != d.ids[1] || d.ids[0] == "" {
			t.Errorf("ids: %q", d.ids)
		}
	})
}

// TestLoopForgets: not to know what was told is no reason to tell it; a notification that
// leaves git is forgotten.
func TestLoopForgets(t *testing.T) {
	t.Parallel()
	atDesk(t, notifications(map[string]string{"a": "interval: 1s\n"}), func(d *desk) {
		var unread atomic.Bool
		unread.Store(true)
		d.hub.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return unread.Load(), nil, errors.New("the hub is not well")
		})
		l, stop := d.run()
		defer stop()
		d.show(l, "test/web Failed")
		d.passes(time.Minute)
		unread.Store(false)
		d.passes(time.Hour)
		d.show(l, "test/dns Failed")
		d.passes(time.Minute)
		d.sent("1h1m5s a.example [earth] dns v1.0.0 fails on test") // the rest was so when it began
		has := func() int {
			list, err := d.hub.CoreV1().ConfigMaps(v1alpha1.Namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return len(list.Items)
		}
		before := has()
		gone := *d.fleet
		gone.Notifications = nil
		l.Fleet(&gone)
		var working sync.WaitGroup
		l.assign(t.Context(), &working)
		working.Wait()
		if before != 1 || has() != 0 {
			t.Errorf("%d ConfigMaps, and then %d", before, has())
		}
	})
}
