package delivery_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// line is a connection that tells what was asked about one fleet, but watches, and
// that can be cut.
type line struct {
	about string // a name: the tests share one API server
	mu    sync.Mutex
	asked []string
	cut   bool
}

func (l *line) connect(context.Context, v1alpha1.Connection) (*rest.Config, error) {
	c := rest.CopyConfig(server)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			l.mu.Lock()
			cut := l.cut
			if r.URL.Query().Get("watch") == "" && strings.Contains(r.URL.Path, l.about) {
				l.asked = append(l.asked, r.Method+" "+r.URL.Path)
			}
			l.mu.Unlock()
			if cut {
				return nil, errors.New("the line is cut")
			}
			return next.RoundTrip(r)
		})
	})
	return c, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// since returns what was asked since it was called last.
func (l *line) since() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := l.asked
	l.asked = nil
	return asked
}

func (l *line) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
}

// ready plays the controller of the Deployment, and says something that is new.
func (f *fleet) ready(replicas, message string) {
	f.t.Helper()
	_, err := f.dynamic.Resource(deployments).Namespace(f.name).Patch(f.t.Context(), "web", types.MergePatchType, []byte(`{"status":{
		"observedGeneration":`+f.field(deployments, "metadata", "generation")+`,"replicas":2,"updatedReplicas":2,
		"readyReplicas":`+replicas+`,"availableReplicas":`+replicas+`,
		"conditions":[{"type":"Available","status":"True","message":"`+message+`"},
			{"type":"Progressing","status":"True","reason":"NewReplicaSetAvailable"}]}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		f.t.Fatal(err)
	}
}

// seen waits until the controller has seen the Deployment as it is.
func (f *fleet) seen() {
	f.t.Helper()
	f.eventually("the change is seen", func() bool {
		return f.controller.Seen(f.name, deployments, f.name, "web") == f.field(deployments, "metadata", "resourceVersion")
	})
}

// resting is a fleet whose one component, of two objects, is at rest.
func resting(t *testing.T) (*fleet, *line) {
	t.Helper()
	f := newFleet(t)
	l := &line{about: f.name}
	f.start(l.connect)
	f.sync(v1alpha1.SyncSynced, "")
	f.ready("2", "")
	f.rests(1)
	f.sync(v1alpha1.SyncSynced, "")
	l.since()
	return f, l
}

// Of a component at rest no object is in memory. A status that says the same of its
// health changes nothing, and one that does not is told.
func TestStatusOfAnObjectAtRest(t *testing.T) {
	f, l := resting(t)
	f.ready("2", "said in other words")
	f.seen()
	if k := f.controller.Kept(); k.Resting != 1 || k.Bodies != 0 {
		t.Errorf("its rest ended: %+v", k)
	}
	if asked := l.since(); len(asked) > 0 {
		t.Errorf("a status that is as good as before had %v asked", asked)
	}
	f.ready("1", "")
	f.eventually("it is not healthy", func() bool { return f.status().Health == v1alpha1.HealthProgressing })
	f.ready("2", "")
	f.eventually("it is healthy", func() bool { return f.status().Health == v1alpha1.HealthHealthy })
}

// A look at a component at rest asks for nothing: here because git has another
// component by now. What git has changed is planned from the objects, each read
// once.
func TestLookAtRest(t *testing.T) {
	f, l := resting(t)
	f.write("clusters/CLUSTER/CLUSTER-more.yaml", head+"MetaConfig\nversion: HEAD\n")
	f.write("components/CLUSTER-more/component.yaml", head+"Component\nnamespace: CLUSTER\n")
	f.write("components/CLUSTER-more/template/Chart.yaml", "apiVersion: v2\nname: more\nversion: 1.0.0\n")
	f.write("components/CLUSTER-more/template/templates/more.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n")
	f.commit("more")
	f.rests(2)
	for _, asked := range l.since() {
		if strings.HasSuffix(asked, "web") {
			t.Errorf("a look at what is at rest asked for %s", asked)
		}
	}

	f.write("clusters/CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.0\nvalues: {text: bye}\n")
	f.commit("another text")
	f.eventually("the push arrives", func() bool { return f.text() == "bye" })
	f.rests(2)
	reads := slices.DeleteFunc(l.since(), func(s string) bool { return !strings.HasPrefix(s, http.MethodGet) })
	slices.Sort(reads)
	if len(reads) != 3 || len(slices.Compact(reads)) != 3 {
		t.Errorf("a change was planned from something else than the record and both objects: %v", reads)
	}
}

// Drift of a component at rest is set back. What is not in memory is read for that,
// each object once, and the record.
func TestDriftAtRest(t *testing.T) {
	f, l := resting(t)
	_, err := f.dynamic.Resource(configMaps).Namespace(f.name).Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"data":{"text":"drifted"}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	if err != nil {
		t.Fatal(err)
	}
	f.eventually("the drift is set back", func() bool { return f.text() == "hello" })
	reads := slices.DeleteFunc(l.since(), func(s string) bool { return !strings.HasPrefix(s, http.MethodGet) })
	if len(reads) > 4 { // the other object, the record, and the owners of the one that drifted
		t.Errorf("drift of one object had %v read", reads)
	}
	f.eventually("it is kept, since it was disturbed soon", func() bool { return f.controller.Kept().Bodies == 2 })
}

// What changed while an API server was away is seen, and what did not change is not
// read object by object.
func TestOutageAtRest(t *testing.T) {
	f, l := resting(t)
	l.set(true)
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.0\nvalues: {text: bye}\n")
	f.commit("something that can't be done now")
	f.sync(v1alpha1.SyncUnreachable, "cut")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.0\nvalues: {text: hello}\n")
	f.commit("something that was done before")
	f.eventually("the controller has read that", func() bool { return strings.Contains(f.log.String(), "revision="+f.git("rev-parse", "HEAD")) })
	l.since()
	l.set(false)
	f.sync(v1alpha1.SyncSynced, "")
	f.rests(1)
	for _, asked := range l.since() {
		if strings.HasSuffix(asked, "/web") {
			t.Errorf("an object was read that had not changed: %s", asked)
		}
	}

	l.set(true)
	if err := f.dynamic.Resource(configMaps).Namespace(f.name).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.0\nvalues: {text: bye}\n")
	f.commit("something that can't be done now, either")
	f.sync(v1alpha1.SyncUnreachable, "cut")
	l.set(false)
	f.eventually("the deleted object is made anew", func() bool { return f.text() == "bye" })
}

// An API server that takes connections and never answers delays no other cluster.
func TestHungCluster(t *testing.T) {
	f := newFleet(t)
	hung, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hung.Close() })
	for _, name := range []string{"a", "b", "z"} {
		f.write("clusters/"+name+"-CLUSTER/cluster.yaml", head+"Cluster\nconnection: {context: hung-"+name+"}\n")
		f.write("clusters/"+name+"-CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.0\nvalues: {text: hello}\n")
	}
	f.commit("three that hang")
	f.start(func(_ context.Context, c v1alpha1.Connection) (*rest.Config, error) {
		if strings.HasPrefix(c.Context, "hung-") {
			return &rest.Config{Host: "http://" + hung.Addr().String()}, nil
		}
		return server, nil
	})
	f.sync(v1alpha1.SyncSynced, "")
	f.ready("2", "")
	f.rests(1)
	f.eventually("it is told that the three do not answer", func() bool { return f.deliveries(v1alpha1.SyncUnreachable, v1alpha1.HealthUnknown) == 3 })
}
