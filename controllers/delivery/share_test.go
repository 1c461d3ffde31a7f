package delivery_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/delivery"
	"github.com/keelson-io/keelson/controllers/lease"
	"github.com/keelson-io/keelson/controllers/shard"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// replica is a controller that shares the clusters of a fleet.
type replica struct {
	member *shard.Member
	*delivery.Controller
	metrics *prometheus.Registry
	stop    func()
}

func (f *fleet) replica(identity string) *replica {
	f.t.Helper()
	repo, err := registry.Open(f.t.Context(), gitrepo.Options{URL: f.folder, CacheDir: f.t.TempDir()})
	if err != nil {
		f.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.MultiWriter(f.t.Output(), &f.log), nil)).With("replica", identity)
	member, err := shard.New(shard.Options{Group: f.name, Topic: f.folder, Options: lease.Options{
		Hub: server, Identity: f.name + "-" + identity, Log: log, Now: time.Now,
		Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond,
	}})
	if err != nil {
		f.t.Fatal(err)
	}
	guarded := rest.CopyConfig(server)
	guarded.Wrap(member.Gate().Wrap)
	r := &replica{member: member, metrics: prometheus.NewRegistry()}
	c, err := delivery.New(delivery.Options{
		Schemas: schemas,
		Repo:    repo, Interval: cmp.Or(f.interval, time.Second), Hub: guarded, Redactor: redact.New(),
		Connect:  func(context.Context, v1alpha1.Connection) (*rest.Config, error) { return guarded, nil },
		Renderer: renderer.NewCache(renderer.New(), 1<<20), Log: log, Now: time.Now, Registry: r.metrics,
		Identity: f.name + "-" + identity, Shard: member, Previews: f.previews,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	r.Controller = c
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() {
		c.Learn(ctx)
		done <- member.Run(ctx, c.Run)
	}()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			f.t.Error(err)
		}
	}
	f.t.Cleanup(r.stop)
	return r
}

// synced are the deliveries that a replica works on and has found synced.
func (r *replica) synced(t *testing.T) int {
	t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if family.GetName() == "keelson_deliveries" && l.GetName() == "sync" && l.GetValue() == string(v1alpha1.SyncSynced) {
					n += int(m.GetGauge().GetValue())
				}
			}
		}
	}
	return n
}

const shared = 6 // clusters, with a component each

// shares makes a fleet of several clusters, all of which are the same.
func (f *fleet) shares() {
	f.git("rm", "-q", "-r", "clusters", "components")
	const head = "apiVersion: keelson.io/v1alpha1\nkind: "
	for i := range shared {
		name := fmt.Sprintf("CLUSTER-%d", i)
		f.write("clusters/"+name+"/cluster.yaml", head+"Cluster\nconnection: {context: "+name+"}\n")
		f.write("clusters/"+name+"/"+name+"-web.yaml", head+"MetaConfig\nversion: HEAD\n")
		f.write("components/"+name+"-web/component.yaml", head+"Component\nnamespace: "+name+"\n")
		f.write("components/"+name+"-web/template/Chart.yaml", "apiVersion: v2\nname: web\nversion: 1.0.0\n")
		f.write("components/"+name+"-web/template/templates/web.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: hello}\n")
	}
	f.commit("shared")
}

// versions are the resourceVersions of all that Keelson keeps of the clusters; ok
// says that all is there, and Synced.
func (f *fleet) versions() (out map[string]string, ok bool) {
	f.t.Helper()
	out, ok = map[string]string{}, true
	for i := range shared {
		name := fmt.Sprintf("%s-%d", f.name, i)
		var d v1alpha1.Delivery
		var record corev1.Secret
		var object corev1.ConfigMap
		for o, at := range map[client.Object][2]string{
			&d: {v1alpha1.Namespace, name + "." + name + "-web"}, &record: {v1alpha1.Namespace, "record-" + name + "-web"}, &object: {name, "web"},
		} {
			if err := f.hub.Get(f.t.Context(), client.ObjectKey{Namespace: at[0], Name: at[1]}, o); err != nil {
				ok = false
				continue
			}
			out[at[0]+"/"+at[1]] = o.GetResourceVersion()
		}
		ok = ok && d.Status.Sync == v1alpha1.SyncSynced && object.Data["text"] == "hello"
	}
	return out, ok
}

// A cluster that goes from one replica to another costs no write: neither to it,
// nor of its record or status, which the other reads first.
func TestHandOver(t *testing.T) {
	f := newFleet(t)
	f.shares()
	first := f.replica("first")
	var before map[string]string
	f.eventually("all is delivered", func() bool {
		var ok bool
		before, ok = f.versions()
		return ok && first.synced(t) == shared
	})
	second := f.replica("second")
	f.eventually("they share", func() bool {
		a, b := first.member.Stats().Held, second.member.Stats().Held
		return a+b == shared && b > 0 && first.synced(t) == a && second.synced(t) == b
	})
	first.stop()
	f.eventually("the second has all", func() bool { return second.synced(t) == shared })
	after, _ := f.versions()
	if diff := gocmp.Diff(before, after); diff != "" {
		t.Errorf("the hand-over wrote:\n%s", diff)
	}
	if s := second.member.Stats(); s.TakenOver != 0 || s.Handed == 0 {
		t.Errorf("the second says %+v", s)
	}
	for i := range shared {
		if _, err := f.dynamic.Resource(configMaps).Namespace(fmt.Sprintf("%s-%d", f.name, i)).Patch(t.Context(), "web", types.MergePatchType,
			[]byte(`{"data":{"text":"drift"}}`), metav1.PatchOptions{FieldManager: "kubectl"}); err != nil {
			t.Fatal(err)
		}
	}
	f.eventually("the second sets drift back", func() bool {
		now, ok := f.versions()
		return ok && !maps.Equal(now, after)
	})
}

// A webhook that reaches one replica is heard by all, without a poll.
func TestWebhookOfOneReplica(t *testing.T) {
	f := newFleet(t)
	f.interval = time.Hour
	f.shares()
	first, second := f.replica("first"), f.replica("second")
	f.eventually("they share", func() bool {
		a, b := first.member.Stats(), second.member.Stats()
		return a.Replicas == 2 && a.Held+b.Held == shared && a.Held > 0 && b.Held > 0 && first.synced(t) == a.Held && second.synced(t) == b.Held
	})
	for i := range shared {
		f.write(fmt.Sprintf("components/CLUSTER-%d-web/template/templates/web.yaml", i), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: bye}\n")
	}
	f.commit("bye")
	pushed := time.Now()
	first.FetchSoon()
	f.eventually("all clusters have it", func() bool {
		for i := range shared {
			u, err := f.dynamic.Resource(configMaps).Namespace(fmt.Sprintf("%s-%d", f.name, i)).Get(t.Context(), "web", metav1.GetOptions{})
			if text, _, _ := unstructured.NestedString(u.Object, "data", "text"); err != nil || text != "bye" {
				return false
			}
		}
		return true
	})
	t.Logf("all clusters have it after %s", time.Since(pushed))
}

// reviewers counts the loops that put previews on pull requests.
type reviewers struct {
	mu                  sync.Mutex
	running, most, asks int
}

func (r *reviewers) Run(ctx context.Context) {
	r.count(1)
	defer r.count(-1)
	<-ctx.Done()
}

func (r *reviewers) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running += n
	r.most = max(r.most, r.running)
}

func (r *reviewers) Soon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asks++
}

func (r *reviewers) is() (running, most, asks int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running, r.most, r.asks
}

// Of several replicas one puts previews on pull requests, and never two; when it ends,
// another does. A webhook that reaches one is heard by the one that does.
func TestOneReplicaPreviews(t *testing.T) {
	f := newFleet(t)
	f.interval = time.Hour
	all := &reviewers{}
	f.previews = all
	f.shares()
	first := f.replica("first")
	f.eventually("the first previews", func() bool { running, _, _ := all.is(); return running == 1 })
	second := f.replica("second")
	f.eventually("they share", func() bool {
		a, b := first.member.Stats(), second.member.Stats()
		return a.Replicas == 2 && a.Held+b.Held == shared && a.Held > 0 && b.Held > 0 && a.Clusters == shared
	})
	_, _, before := all.is()
	first.FetchSoon()
	f.eventually("both hear the webhook", func() bool { _, _, asks := all.is(); return asks >= before+2 })
	first.stop()
	f.eventually("the second previews", func() bool { running, _, _ := all.is(); return running == 1 && second.member.Stats().Held == shared })
	second.stop()
	if running, most, _ := all.is(); running != 0 || most != 1 {
		t.Errorf("%d are running at the end, and %d were at a time", running, most)
	}
}
