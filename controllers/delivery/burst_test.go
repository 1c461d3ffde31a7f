package delivery_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// hubGate holds back the objects of many components until the hub has heard of the one
// that is in trouble, and the first Delivery of another one until there is a second.
type hubGate struct {
	ours string // begins the Deliveries of the test's own components
	bad  string // Delivery of the component in trouble

	mu     sync.Mutex
	writes map[string]int // to the hub, by method and path
	early  []string       // of those, before the trouble was told
	good   int            // Deliveries that were begun
	told   chan struct{}  // closed: the trouble is in the hub
	second chan struct{}  // closed: a second Delivery was begun
}

// cluster lets a few objects pass, so that there is good news, too.
func (r *hubGate) cluster(namespace string) func(http.RoundTripper) http.RoundTripper {
	free := make(chan struct{}, 2*4) // of the first four components
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(q *http.Request) (*http.Response, error) {
			if q.Method == http.MethodPatch && strings.Contains(q.URL.Path, "/"+namespace+"/configmaps/") {
				select {
				case free <- struct{}{}:
				case <-r.told:
				case <-q.Context().Done():
				}
			}
			return next.RoundTrip(q)
		})
	}
}

func (r *hubGate) hub(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(q *http.Request) (*http.Response, error) {
		if q.Method == http.MethodGet || !r.concerns(q) {
			return next.RoundTrip(q)
		}
		r.begin(q)
		resp, err := next.RoundTrip(q)
		if err == nil && strings.HasSuffix(q.URL.Path, "/"+r.bad+"/status") {
			r.mu.Lock()
			defer r.mu.Unlock()
			if !closed(r.told) {
				close(r.told)
			}
		}
		return resp, err
	})
}

// concerns reports whether a request is about a Delivery of the test, and not of what
// other tests left in the cluster.
func (r *hubGate) concerns(q *http.Request) bool {
	if strings.Contains(q.URL.Path, "/"+r.ours) || q.GetBody == nil {
		return strings.Contains(q.URL.Path, "/"+r.ours)
	}
	body, err := q.GetBody()
	if err != nil {
		return false
	}
	text, err := io.ReadAll(body)
	return err == nil && strings.Contains(string(text), `"`+r.ours)
}

func (r *hubGate) begin(q *http.Request) {
	r.mu.Lock()
	what := q.Method + " " + q.URL.Path
	r.writes[what]++
	about := strings.Contains(q.URL.Path, "/"+r.bad)
	create := q.Method == http.MethodPost && strings.HasSuffix(q.URL.Path, "/deliveries")
	if create && !closed(r.told) {
		r.early = append(r.early, what)
	}
	if create && closed(r.told) && !about {
		if r.good++; r.good == 2 {
			close(r.second)
		}
	}
	wait := create && closed(r.told)
	r.mu.Unlock()
	if wait {
		select {
		case <-r.second:
		case <-q.Context().Done():
		}
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// While components queue for their turn the hub hears of trouble alone. When all had
// theirs it hears of each once, of several at a time, and no event tells of what a
// component was on its way.
func TestBurst(t *testing.T) {
	f := newFleet(t)
	const many = 64 // more than are looked at at once: some queue until the trouble is told
	for i := range many {
		name := fmt.Sprintf("CLUSTER-n%02d", i)
		f.write("clusters/CLUSTER/"+name+".yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: HEAD\n")
		f.write("components/"+name+"/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: CLUSTER\n")
		f.write("components/"+name+"/template/Chart.yaml", "apiVersion: v2\nname: n\nversion: 1.0.0\n")
		f.write("components/"+name+"/template/templates/n.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}}\ndata: {a: b}\n")
	}
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\nvalue: {text: a typo}\n")
	f.commit("many")
	r := &hubGate{
		ours: f.name + "." + f.name + "-", bad: f.name + "." + f.name + "-web", writes: map[string]int{}, told: make(chan struct{}), second: make(chan struct{}),
	}
	f.hubConfig = rest.CopyConfig(server)
	f.hubConfig.Wrap(r.hub)
	config := rest.CopyConfig(server)
	config.Wrap(r.cluster(f.name))
	stop := f.start(func(context.Context, v1alpha1.Connection) (*rest.Config, error) { return config, nil })
	f.sync(v1alpha1.SyncBlocked, "")
	f.eventually("all are synced", func() bool {
		var list v1alpha1.DeliveryList
		if err := f.hub.List(t.Context(), &list, client.InNamespace(v1alpha1.Namespace), client.MatchingLabels{v1alpha1.LabelCluster: f.name}); err != nil {
			t.Fatal(err)
		}
		synced := 0
		for _, d := range list.Items {
			if d.Status.Sync == v1alpha1.SyncSynced && d.Status.Health == v1alpha1.HealthHealthy {
				synced++
			}
		}
		return synced == many
	})
	stop()

	const all = "/apis/keelson.io/v1alpha1/namespaces/" + v1alpha1.Namespace + "/deliveries"
	want := map[string]int{
		"POST " + all: many + 1, "PATCH " + all + "/" + r.bad + "/status": 1,
		"POST /api/v1/namespaces/" + v1alpha1.Namespace + "/events": 1, // it is blocked
	}
	for i := range many {
		want[fmt.Sprintf("PATCH %s/%s.%s-n%02d/status", all, f.name, f.name, i)] = 1
	}
	if diff := cmp.Diff(want, r.writes); diff != "" {
		t.Errorf("writes to the hub, -want +got:\n%s", diff)
	}
	if len(r.early) != 1 {
		t.Errorf("before the trouble was told %d Deliveries were created, want its own alone", len(r.early))
	}
}
