package delivery_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apiservertest"
)

// hubLine is a connection to a hub that can be cut, watches too, and that tells what
// was asked.
type hubLine struct {
	mu      sync.Mutex
	cut     bool
	watches map[*cuttable]bool
	asked   []string
}

type cuttable struct {
	io.ReadCloser
	end context.CancelFunc
}

func newHubLine() (*hubLine, *rest.Config) {
	l := &hubLine{watches: map[*cuttable]bool{}}
	c := rest.CopyConfig(server)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { return l.send(next, r) })
	})
	return l, c
}

func (l *hubLine) send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errors.New("the line to the hub is cut")
	}
	if r.URL.Query().Get("watch") == "" {
		l.asked = append(l.asked, r.Method+" "+r.URL.Path)
		return next.RoundTrip(r)
	}
	ctx, end := context.WithCancel(r.Context())
	answer, err := next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	body := &cuttable{ReadCloser: answer.Body, end: end}
	l.watches[body] = true
	answer.Body = body
	return answer, nil
}

func (l *hubLine) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut = cut; cut {
		for w := range l.watches {
			w.end()
		}
		clear(l.watches)
	}
}

func (l *hubLine) since() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := l.asked
	l.asked = nil
	return asked
}

func (f *fleet) shown() *v1alpha1.Delivery {
	return &v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: f.name + "." + f.name + "-web"}}
}

// has says whether the hub has a Delivery.
func (f *fleet) has(name string) bool {
	f.t.Helper()
	err := f.hub.Get(f.t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, &v1alpha1.Delivery{})
	if client.IgnoreNotFound(err) != nil {
		f.t.Fatal(err)
	}
	return err == nil
}

// past makes a Delivery of what is not there any more.
func (f *fleet) past(cluster, component, fleet string) error {
	return f.hub.Create(f.t.Context(), &v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{
		Namespace: v1alpha1.Namespace, Name: cluster + "." + component, Annotations: map[string]string{v1alpha1.AnnotationFleet: fleet},
		Labels: map[string]string{v1alpha1.LabelCluster: cluster, v1alpha1.LabelComponent: component},
	}})
}

// spoil has the hub show something that is not so, as an old state of its store does.
func (f *fleet) spoil() {
	f.t.Helper()
	if err := f.hub.Status().Patch(f.t.Context(), f.shown(), client.RawPatch(types.MergePatchType,
		[]byte(`{"status":{"sync":"Held","message":"long ago","targetHash":"old"}}`))); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) shows(want v1alpha1.DeliveryStatus) {
	f.t.Helper()
	f.eventually("the hub shows what is so", func() bool { return cmp.Equal(f.status(), want) })
}

// Keelson reverts a change that another client makes to a Delivery, and recreates a deleted one.
// At rest it sends no request to the hub.
func TestDeliveryIsKeptUp(t *testing.T) {
	f := newFleet(t)
	line, config := newHubLine()
	f.hubConfig = config
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.ready("2", "")
	f.rests(1)
	f.eventually("it is healthy", func() bool { return f.status().Health == v1alpha1.HealthHealthy })
	want := f.status()
	f.spoil()
	f.shows(want)
	if err := f.hub.Delete(t.Context(), f.shown()); err != nil {
		t.Fatal(err)
	}
	f.shows(want)
	about := 0
	for _, asked := range line.since() {
		if strings.Contains(asked, "/"+f.shown().Name) {
			about++
		}
	}
	if about > 20 { // a few statuses, and a read and a write for each time
		t.Errorf("%d requests about it: it does not come to rest", about)
	}
}

// While the hub was away its store may have been set back: statuses are old, some are
// gone, and some are of what is not there any more. When it answers again all is mended.
func TestHubIsSetBack(t *testing.T) {
	f := newFleet(t)
	line, config := newHubLine()
	f.hubConfig = config
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.ready("2", "")
	f.rests(1)
	f.eventually("it is healthy", func() bool { return f.status().Health == v1alpha1.HealthHealthy })
	want := f.status()
	if err := f.past("another-"+f.name, "web", "another"); err != nil { // another fleet's
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"a status is old":                   func() error { f.spoil(); return nil },
		"a Delivery is gone":                func() error { return f.hub.Delete(t.Context(), f.shown()) },
		"a component is there that is gone": func() error { return f.past(f.name, "past", f.name) },
		"a cluster is there that is gone":   func() error { return f.past(f.name+"-past", "web", f.name) },
	} {
		t.Log(what)
		line.set(true)
		if err := do(); err != nil {
			t.Fatal(err)
		}
		line.set(false)
		f.eventually("all is as it was: "+what, func() bool {
			return !f.has(f.name+".past") && !f.has(f.name+"-past.web") && f.has("another-"+f.name+".web") && cmp.Equal(f.status(), want)
		})
	}
}

// startApart starts an API server of which no other test knows.
func startApart(t *testing.T) *apiservertest.Server {
	t.Helper()
	s, err := apiservertest.Start(apiservertest.Versions()[0].Assets)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A connection that leads to the API server of another cluster delivers nothing there, and
// says so; when an administrator lets the cluster take the name, it does.
func TestConnectionToAnotherCluster(t *testing.T) {
	f := newFleet(t)
	apart := startApart(t)
	first, err := applier.New(applier.Options{Name: "another", Config: apart.Config})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	core, err := kubernetes.NewForConfig(apart.Config)
	if err != nil {
		t.Fatal(err)
	}
	f.start(func(context.Context, v1alpha1.Connection) (*rest.Config, error) { return apart.Config, nil })
	f.sync(v1alpha1.SyncUnreachable, "leads to the API server of cluster another")
	list, err := core.CoreV1().ConfigMaps(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.LabelComponent})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("it has %d ConfigMaps of components (%v)", len(list.Items), err)
	}
	remove := []byte(`[{"op":"remove","path":"/data/cluster"}]`)
	if _, err := core.CoreV1().Secrets(v1alpha1.Namespace).Patch(t.Context(), "mask-key", types.JSONPatchType, remove, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.sync(v1alpha1.SyncSynced, "")
}

// The namespace of the hub is deleted, with all that is in it: it is made anew,
// and shows everything again.
func TestHubNamespaceDeleted(t *testing.T) {
	f := newFleet(t)
	apart := startApart(t)
	f.hubConfig = apart.Config
	var err error
	if f.hub, err = client.New(apart.Config, client.Options{Scheme: f.hub.Scheme()}); err != nil {
		t.Fatal(err)
	}
	stop := f.start(nil)
	defer stop()
	f.sync(v1alpha1.SyncSynced, "")
	core, err := kubernetes.NewForConfig(apart.Config)
	if err != nil {
		t.Fatal(err)
	}
	namespaces := core.CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), v1alpha1.Namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// No controller of namespaces runs here: the test empties it.
	if err := f.hub.DeleteAllOf(t.Context(), &v1alpha1.Delivery{}, client.InNamespace(v1alpha1.Namespace)); err != nil {
		t.Fatal(err)
	}
	n, err := namespaces.Get(t.Context(), v1alpha1.Namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Spec.Finalizers = nil
	if _, err := namespaces.Finalize(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.sync(v1alpha1.SyncSynced, "")
}
