package applier_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
)

// gate holds the first request that matches until it is opened, as a process does
// that is stopped in the middle.
type gate struct {
	http.RoundTripper
	match         func(*http.Request) bool
	once          *sync.Once
	reached, open chan struct{}
}

func newGate(match func(*http.Request) bool) *gate {
	return &gate{match: match, once: &sync.Once{}, reached: make(chan struct{}), open: make(chan struct{})}
}

func (g *gate) wrap(next http.RoundTripper) http.RoundTripper {
	out := *g
	out.RoundTripper = next
	return &out
}

func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	if g.match(r) {
		g.once.Do(func() { close(g.reached); <-g.open })
	}
	return g.RoundTripper.RoundTrip(r)
}

// write matches the writes of one kind that are no dry runs.
func write(method, path string) func(*http.Request) bool {
	return func(r *http.Request) bool {
		return r.Method == method && strings.Contains(r.URL.Path, path) && !r.URL.Query().Has("dryRun")
	}
}

// held starts an apply by another session and returns when its write waits at the
// gate; the function opens the gate and returns how the apply ended.
func (w *world) held(want applier.Desired, match func(*http.Request) bool) (finish func() error) {
	w.t.Helper()
	g := newGate(match)
	config := rest.CopyConfig(server)
	config.Wrap(g.wrap)
	old, err := applier.New(applier.Options{Name: "test", Config: config, Writer: records.Writer{Identity: "old"}})
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := old.Plan(w.t.Context(), want)
	if err != nil {
		w.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := old.Apply(w.t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0)})
		done <- err
	}()
	select {
	case <-g.reached:
	case err := <-done:
		w.t.Fatalf("the apply ended before the gate: %v", err)
	}
	return func() error { close(g.open); return <-done }
}

// A session that was stopped in the middle of an apply goes on after another took
// over: nothing that it still sends is accepted.
func TestOldWriterIsFenced(t *testing.T) {
	const two = "two"
	cases := map[string]struct {
		why   string
		first func(*world) []string // what is there before
		old   []string              // what the old session applies
		next  []string              // what the new one wants
		at    func(*http.Request) bool
		check func(*world) string // what is wrong in the end
	}{
		"Update": {
			"The object has another resourceVersion, though the new session had nothing to change.",
			func(*world) []string { return []string{configMap("a", "one")} },
			[]string{configMap("a", two)},
			[]string{configMap("a", "one")},
			write(http.MethodPatch, "/configmaps/a"),
			func(w *world) string { return w.differs("one") },
		},
		"Create": {
			"The object exists by now, and a create never changes one that exists.",
			nil,
			[]string{configMap("a", two)},
			[]string{configMap("a", "three")},
			write(http.MethodPatch, "/configmaps/a"),
			func(w *world) string { return w.differs("three") },
		},
		"Delete": {
			"The new session wants the object to stay, and touched it.",
			func(*world) []string { return []string{configMap("a", "one"), configMap("b", "x")} },
			[]string{configMap("b", "x")},
			[]string{configMap("a", "one"), configMap("b", "x")},
			write(http.MethodDelete, "/configmaps/a"),
			func(w *world) string { return w.differs("one") },
		},
		"Record": {
			"The record has another resourceVersion: nothing is begun.",
			func(*world) []string { return []string{configMap("a", "one")} },
			[]string{configMap("a", two)},
			[]string{configMap("a", "three")},
			write(http.MethodPut, "/secrets/record-"),
			func(w *world) string { return w.differs("three") },
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if c.first != nil {
				w.apply(w.want("v1", c.first(w)...))
			}
			if name == "Delete" {
				w.apply(w.want("v2", c.old...)) // the first pass marks it alone
			}
			finish := w.held(w.want("v2", c.old...), c.at)
			w.reconnect()
			w.apply(w.want("v3", c.next...))
			if err := finish(); !errors.Is(err, applier.ErrStale) {
				t.Errorf("%s: the old session's apply ended with %v, want ErrStale", c.why, err)
			}
			if wrong := c.check(w); wrong != "" {
				t.Errorf("%s: %s", c.why, wrong)
			}
			w.settled(w.want("v3", c.next...))
		})
	}
}

// differs says how the ConfigMap a differs from what is wanted.
func (w *world) differs(value string) string {
	w.t.Helper()
	u := w.get(configMaps, "a")
	if u.GetDeletionTimestamp() != nil {
		return "it was deleted"
	}
	if v, _, _ := unstructured.NestedString(u.Object, "data", "key"); v != value {
		return "its value is " + v + ", want " + value
	}
	return ""
}

// What an old session was about to create, and the new one does not want, may
// still come: it is not forgotten before that is impossible.
func TestLateCreateIsNotForgotten(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x")))
	finish := w.held(w.want("v2", configMap("a", "x"), configMap("late", "x")), write(http.MethodPatch, "/configmaps/late"))
	w.reconnect()
	want := w.want("v3", configMap("a", "x"))
	w.apply(want)
	if err := finish(); !errors.Is(err, applier.ErrStale) {
		t.Errorf("the old session's apply ended with %v, want ErrStale", err)
	}
	w.get(configMaps, "late") // it came: nothing forbids that
	for range 3 {             // mark, delete, forget
		w.apply(want)
		w.collect()
	}
	if _, err := w.resource(configMaps).Get(t.Context(), "late", metav1.GetOptions{}); err == nil {
		t.Error("what came late was forgotten, and stays for ever")
	}
}

// Only who was chosen takes a component over.
func TestDeposed(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", configMap("a", "x"))
	w.apply(want)
	asked := 0
	c, err := applier.New(applier.Options{Name: "test", Config: server, Writer: records.Writer{
		Identity: "deposed", Confirm: func(context.Context) error { asked++; return records.ErrDeposed },
	}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Plan(t.Context(), w.want("v2", configMap("a", "two")))
	if err != nil {
		t.Fatal(err)
	}
	if asked != 0 {
		t.Error("a plan asked whether it may write")
	}
	if _, err := c.Apply(t.Context(), p, applier.ApplyOptions{}); !errors.Is(err, records.ErrDeposed) {
		t.Errorf("error is %v, want ErrDeposed", err)
	}
	if wrong := w.differs("x"); wrong != "" {
		t.Error(wrong)
	}
}

// Each session begins an epoch with its first write, and only then.
func TestEpochs(t *testing.T) {
	w := newWorld(t)
	for i, value := range []string{"one", "one", "two", "three"} {
		w.apply(w.want("v"+value, configMap("a", value)))
		r, err := w.cluster.Record(t.Context(), w.component)
		if err != nil {
			t.Fatal(err)
		}
		if want := []int64{1, 1, 2, 2}[i]; r.Epoch != want || len(r.History) == 0 || r.History[0].Epoch != want {
			t.Errorf("apply %d: epoch is %d, and %+v in the history, want %d", i, r.Epoch, r.History, want)
		}
		if i == 0 || i == 1 {
			w.reconnect()
		}
	}
}

// failing answers the first request that matches with an error, and does not
// forward it.
type failing struct {
	http.RoundTripper
	match func(*http.Request) bool
	once  *sync.Once
}

func (f *failing) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	if f.match(r) {
		f.once.Do(func() { err = errLost })
		if err != nil {
			return nil, err
		}
	}
	return f.RoundTripper.RoundTrip(r)
}

// A takeover that was cut off in the middle of its touches is finished by the next
// try of the same session.
func TestFenceIsFinished(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "one")))
	finish := w.held(w.want("v2", configMap("a", "two")), write(http.MethodPatch, "/configmaps/a"))
	config := rest.CopyConfig(server)
	touches := func(r *http.Request) bool { return r.URL.Query().Get("fieldManager") == "keelson-epoch" }
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &failing{RoundTripper: next, match: touches, once: &sync.Once{}}
	})
	w.connect(config)
	want := w.want("v3", configMap("a", "one"))
	if _, err := w.cluster.Apply(t.Context(), w.plan(want), applier.ApplyOptions{}); !errors.Is(err, errLost) {
		t.Fatalf("error is %v, want a touch that failed", err)
	}
	w.until(want, nil)
	if err := finish(); !errors.Is(err, applier.ErrStale) {
		t.Errorf("the old session's apply ended with %v, want ErrStale", err)
	}
	if wrong := w.differs("one"); wrong != "" {
		t.Error(wrong)
	}
}

// An object of kubectl's is taken over by processes that die before they do it, one
// after the other: the last still finds that nothing was applied yet, and that what
// kubectl owned has to go.
func TestAdoptionIsKilledTwice(t *testing.T) {
	w := newWorld(t)
	if err := w.namespace(); err != nil {
		t.Fatal(err)
	}
	theirs := &unstructured.Unstructured{Object: w.object(configMap("a", "theirs"))}
	if err := unstructured.SetNestedField(theirs.Object, "x", "data", "old"); err != nil {
		t.Fatal(err)
	}
	theirs.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{}"})
	if _, err := w.resource(configMaps).Create(t.Context(), theirs, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"}); err != nil {
		t.Fatal(err)
	}
	want := w.want("v1", configMap("a", "ours"))
	want.Adopt = true
	config := rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if write(http.MethodPatch, "/configmaps/a")(r) && r.URL.Query().Get("fieldManager") != "keelson-epoch" {
				return nil, errLost
			}
			return next.RoundTrip(r)
		})
	})
	for range 3 {
		w.connect(config)
		for tries := 0; ; tries++ {
			_, err := w.cluster.Apply(t.Context(), w.plan(want), applier.ApplyOptions{})
			if errors.Is(err, errLost) {
				break // the client cannot know whether the write arrived
			}
			if !errors.Is(err, applier.ErrStale) || tries == 5 {
				t.Fatalf("error is %v, want a write without an answer", err)
			}
		}
	}
	w.reconnect()
	w.until(want, nil)
	got := w.get(configMaps, "a")
	if data, _, _ := unstructured.NestedStringMap(got.Object, "data"); len(data) != 1 || data["key"] != "ours" || len(got.GetAnnotations()) > 1 {
		t.Errorf("data %v, annotations %v", data, got.GetAnnotations())
	}
	w.settled(want)
}

// Another client creates the object before Keelson's held creation of it arrives. A takeover leaves
// the other client's object unchanged.
func TestFenceLeavesOtherOwnersAlone(t *testing.T) {
	w := newWorld(t)
	finish := w.held(w.want("v1", configMap("a", "one")), write(http.MethodPatch, "/configmaps/a"))
	_, err := w.resource(configMaps).Create(t.Context(), &unstructured.Unstructured{Object: w.object(configMap("a", "theirs"))}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.reconnect()
	w.apply(w.want("v1", configMap("a", "one")))
	if err := finish(); !errors.Is(err, applier.ErrStale) {
		t.Errorf("the old session's apply ended with %v, want ErrStale", err)
	}
	if a := w.get(configMaps, "a"); len(a.GetAnnotations()) > 0 || w.differs("theirs") != "" {
		t.Errorf("the takeover changed the object: %v", a.Object)
	}
}

// A session reads a record again after another session wrote it, even if the record did not exist
// when the session listed all records.
func TestRecordSeen(t *testing.T) {
	w := newWorld(t)
	if _, err := w.cluster.Recorded(t.Context()); err != nil {
		t.Fatal(err)
	}
	mine := w.cluster
	for _, version := range []string{"v1", "v2"} {
		w.reconnect()
		w.apply(w.want(version, configMap("a", version)))
		if !mine.RecordSeen(w.component, w.record()) {
			t.Errorf("%s: RecordSeen returned false for a new record", version)
		}
		if r, err := mine.Record(t.Context(), w.component); err != nil || r.Version != version {
			t.Errorf("the record says %q, want %s (%v)", r.Version, version, err)
		}
		if mine.RecordSeen(w.component, w.record()) {
			t.Errorf("%s: RecordSeen returned true twice for one record", version)
		}
	}
}
