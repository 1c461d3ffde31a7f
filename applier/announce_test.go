package applier_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
)

const intents = "/secrets/keelson-intents"

// writeLog notes the writes of a session that an API server carried out.
type writeLog struct {
	mu   sync.Mutex
	done []string
}

func (n *writeLog) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if r.Method != http.MethodGet && err == nil && answer.StatusCode < http.StatusBadRequest {
			n.mu.Lock()
			defer n.mu.Unlock()
			_, what, _ := strings.Cut(r.URL.Path, "/namespaces/")
			_, what, _ = strings.Cut(what, "/")
			if r.URL.Query().Has("dryRun") {
				what += " (dry run)"
			}
			n.done = append(n.done, r.Method+" "+what)
		}
		return answer, err
	})
}

func (n *writeLog) since(mark int) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.done[mark:])
}

// announced returns the announced objects of a component, and its TakenOverAt.
func (w *world) announced() (names []string, takenOverAt string) {
	w.t.Helper()
	client, err := kubernetes.NewForConfig(server)
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := client.CoreV1().Secrets("keelson-system").Get(w.t.Context(), "keelson-intents", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, ""
	}
	if err != nil {
		w.t.Fatal(err)
	}
	var all map[string]struct {
		TakenOverAt string `json:"claimed"`
		Objects     []struct{ Name string }
	}
	if err := json.Unmarshal(s.Data["intents"], &all); err != nil {
		w.t.Fatal(err)
	}
	for _, o := range all[w.component].Objects {
		names = append(names, o.Name)
	}
	return names, all[w.component].TakenOverAt
}

// An update is announced before it is sent, and recorded once, after it. The announcement names
// the objects.
func TestUpdateIsAnnounced(t *testing.T) {
	w := newWorld(t)
	var seen writeLog
	config := rest.CopyConfig(server)
	config.Wrap(seen.wrap)
	w.connect(config)
	w.apply(w.want("v1", configMap("a", "one"), configMap("b", "one")))
	mark := len(seen.since(0))
	w.apply(w.want("v2", configMap("a", "two"), configMap("b", "one")))
	got := slices.DeleteFunc(seen.since(mark), func(write string) bool { return strings.Contains(write, "dry run") })
	for i := range got { // the first announcement of a cluster creates the Secret
		got[i] = strings.TrimSuffix(strings.Replace(got[i], "POST secrets", "PUT secrets/keelson-intents", 1), "/")
	}
	want := []string{"PUT secrets/keelson-intents", "PATCH configmaps/a", "PUT secrets/record-" + w.component}
	if !slices.Equal(got, want) {
		t.Errorf("the writes are %q, want %q", got, want)
	}
	if names, _ := w.announced(); !slices.Equal(names, []string{"a"}) {
		t.Errorf("announced is %v, want a", names)
	}
	r, err := w.cluster.Record(t.Context(), w.component)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range r.Objects {
		if o.Intent != "" {
			t.Errorf("%s has the intent %s after its write", o.ID, o.Intent)
		}
	}
	w.settled(w.want("v2", configMap("a", "two"), configMap("b", "one")))
}

// A pass with other writes than updates records its intents first.
func TestOnlyUpdatesAreAnnounced(t *testing.T) {
	cases := map[string]struct {
		why  string
		then []string
	}{
		"Create": {"A creation carries no resourceVersion that a later writer could change.", []string{configMap("a", "two"), configMap("b", "one"), configMap("c", "one")}},
		"Delete": {"The record says what may go in the next pass.", []string{configMap("b", "two")}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.apply(w.want("v1", configMap("a", "one"), configMap("b", "one")))
			for range 3 { // mark, delete, forget
				w.apply(w.want("v2", c.then...))
				w.collect()
			}
			if names, _ := w.announced(); name == "Create" && len(names) > 0 || slices.Contains(names, "a") {
				t.Errorf("%s Announced is %v.", c.why, names)
			}
		})
	}
}

// An announced update whose answer was lost is found later, also when git has changed meanwhile.
func TestAnnouncedAnswerIsLost(t *testing.T) {
	labelled := strings.Replace(configMap("a", "one"), "{name: a,", "{name: a, labels: {extra: label},", 1)
	for _, lost := range []string{"/configmaps/a", intents, "/secrets/record-"} {
		for _, restart := range []string{"Restarted", "GoesOn"} {
			t.Run(strings.Trim(strings.ReplaceAll(lost, "/", "-"), "-")+restart, func(t *testing.T) {
				w := newWorld(t)
				var loses atomic.Bool // from then on, once
				config := rest.CopyConfig(server)
				config.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return &losing{RoundTripper: next, done: &atomic.Bool{}, match: func(r *http.Request) bool {
						return loses.Load() && r.Method != http.MethodGet && strings.Contains(r.URL.Path, lost) && !r.URL.Query().Has("dryRun")
					}}
				})
				w.connect(config)
				w.apply(w.want("v1", configMap("a", "one")))
				p := w.plan(w.want("v2", labelled))
				loses.Store(true)
				_, err := w.cluster.Apply(t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0)})
				if lost != intents && !errors.Is(err, errLost) {
					t.Fatalf("the apply ended with %v", err)
				}
				if restart == "Restarted" {
					w.reconnect()
				}
				want := w.want("v3", configMap("a", "one"))
				w.until(want, nil)
				w.settled(want)
				if w.get(configMaps, "a").GetLabels()["extra"] != "" {
					t.Error("the label of the lost update stayed")
				}
			})
		}
	}
}

// session is one of several that write to a cluster.
type session struct {
	*applier.Cluster
	w *world
	g *gate
}

// session begins one whose first write that matches waits at its gate.
func (w *world) session(identity string, at func(*http.Request) bool) *session {
	w.t.Helper()
	s := &session{w: w, g: newGate(at)}
	config := rest.CopyConfig(server)
	config.Wrap(s.g.wrap)
	var err error
	s.Cluster, err = applier.New(applier.Options{Name: "test", Config: config, Shared: shared, Writer: records.Writer{Identity: w.component + identity}})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (s *session) plan(want applier.Desired) *applier.Prepared {
	s.w.t.Helper()
	p, err := s.Plan(s.w.t.Context(), want)
	if err != nil {
		s.w.t.Fatal(err)
	}
	return p
}

func (s *session) apply(p *applier.Prepared) error {
	_, err := s.Apply(s.w.t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0)})
	return err
}

// must applies until the target is reached.
func (s *session) must(want applier.Desired) {
	s.w.t.Helper()
	for range 4 {
		err := s.apply(s.plan(want))
		if err == nil {
			return
		}
		if !errors.Is(err, applier.ErrStale) {
			s.w.t.Fatal(err)
		}
	}
	s.w.t.Fatal("it comes to no end")
}

// begin applies a plan, and returns when the session waits at its gate. The function opens the
// gate, and returns how the apply ended.
func (s *session) begin(p *applier.Prepared) (finish func() error) {
	s.w.t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.apply(p) }()
	select {
	case <-s.g.reached:
	case err := <-done:
		s.w.t.Fatalf("the apply ended before the gate: %v", err)
	}
	return func() error { close(s.g.open); return <-done }
}

// armed is a condition of a gate that counts from when it is armed.
type armed struct {
	on    atomic.Bool
	match func(*http.Request) bool
}

func (a *armed) is(r *http.Request) bool { return a.on.Load() && a.match(r) }

// A session is stopped in the middle of an announced update, and continues after another session
// took over: the API server accepts none of its writes.
func TestAnnouncedWriterIsFenced(t *testing.T) {
	value := func(w *world, name string) string {
		v, _, _ := unstructured.NestedString(w.get(configMaps, name).Object, "data", "key")
		return v
	}
	cases := map[string]struct {
		why  string
		at   func(*http.Request) bool // where the old session stops: of two objects it updates a
		next []string                 // what the new session wants
		a, b string                   // the values in the end
	}{
		"Update": {
			"The object has another resourceVersion, though the new session had nothing to change.",
			write(http.MethodPatch, "/configmaps/a"),
			[]string{configMap("a", "one"), configMap("b", "one")},
			"one", "one",
		},
		"UpdateOfAnother": {
			"What the old session had announced is found, whatever the new one changes.",
			write(http.MethodPatch, "/configmaps/a"),
			[]string{configMap("a", "one"), configMap("b", "three")},
			"one", "three",
		},
		"UpdateOfTheSame": {
			"The new session's value stays.",
			write(http.MethodPatch, "/configmaps/a"),
			[]string{configMap("a", "three"), configMap("b", "one")},
			"three", "one",
		},
		"Announcement": {
			"Nothing is announced any more of a component that was taken over.",
			write(http.MethodPut, intents),
			[]string{configMap("a", "one"), configMap("b", "three")},
			"one", "three",
		},
		"Record": {
			"The record has another resourceVersion. What was done before is found and undone.",
			write(http.MethodPut, "/secrets/record-"),
			[]string{configMap("a", "one"), configMap("b", "three")},
			"one", "three",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			at := &armed{match: c.at}
			old := w.session("old", at.is)
			old.must(w.want("v1", configMap("a", "zero"), configMap("b", "one")))
			old.must(w.want("v2", configMap("a", "one"), configMap("b", "one"))) // the Secret is there
			p := old.plan(w.want("v3", configMap("a", "two"), configMap("b", "one")))
			at.on.Store(true)
			finish := old.begin(p)
			next := w.session("next", write("NONE", ""))
			next.must(w.want("v4", c.next...))
			if err := finish(); !errors.Is(err, applier.ErrStale) {
				t.Errorf("%s The old session's apply ended with %v, want ErrStale.", c.why, err)
			}
			next.must(w.want("v4", c.next...))
			if a, b := value(w, "a"), value(w, "b"); a != c.a || b != c.b {
				t.Errorf("%s The values are %s and %s, want %s and %s.", c.why, a, b, c.a, c.b)
			}
			w.settled(w.want("v4", c.next...))
		})
	}
}

// A plan from before a takeover can't be announced, also when its objects did not change since.
func TestNothingIsAnnouncedAfterAClaim(t *testing.T) {
	w := newWorld(t)
	old, next := w.session("old", write("NONE", "")), w.session("next", write("NONE", ""))
	old.must(w.want("v1", configMap("a", "one"), configMap("b", "one")))
	p := old.plan(w.want("v2", configMap("a", "one"), configMap("b", "two")))
	for i, value := range []string{"two", "three", "four"} { // a claim, and then announcements
		next.must(w.want("v3"+strconv.Itoa(i), configMap("a", value), configMap("b", "one")))
	}
	if _, takenOverAt := w.announced(); takenOverAt == "" {
		t.Error("the claim was forgotten")
	}
	if err := old.apply(p); !errors.Is(err, applier.ErrStale) {
		t.Errorf("the old session's apply ended with %v, want ErrStale", err)
	}
	if v, _, _ := unstructured.NestedString(w.get(configMaps, "b").Object, "data", "key"); v != "one" {
		t.Errorf("it wrote %s", v)
	}
}

// A takeover fails, and is planned again, when the former session announced an update after the
// new session had read the record.
func TestClaimOfWhatIsNotKnown(t *testing.T) {
	for name, before := range map[string]struct {
		why string
		do  func(w *world, old *session)
	}{
		"SameRecord":  {"The announcement is of the record that the plan is of.", func(*world, *session) {}},
		"NewerRecord": {"It is of a newer one, and must not be overwritten.", func(w *world, old *session) { old.must(w.want("v2", configMap("a", "half"), configMap("b", "one"))) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			at := &armed{match: write(http.MethodPatch, "/configmaps/b")}
			old, next := w.session("old", at.is), w.session("next", write("NONE", ""))
			old.must(w.want("v0", configMap("a", "zero"), configMap("b", "zero")))
			old.must(w.want("v1", configMap("a", "one"), configMap("b", "one")))
			// The new session changes what the old one does not.
			stale := next.plan(w.want("v4", configMap("a", "two"), configMap("b", "one"), configMap("c", "one")))
			before.do(w, old)
			p := old.plan(w.want("v3", configMap("a", map[bool]string{true: "half", false: "one"}[name == "NewerRecord"]), configMap("b", "two")))
			at.on.Store(true)
			finish := old.begin(p)
			if err := next.apply(stale); !errors.Is(err, applier.ErrStale) {
				t.Errorf("%s The new session's first apply ended with %v, want ErrStale.", before.why, err)
			}
			want := w.want("v4", configMap("a", "two"), configMap("b", "one"), configMap("c", "one"))
			next.must(want)
			if err := finish(); !errors.Is(err, applier.ErrStale) {
				t.Errorf("%s The old session's apply ended with %v, want ErrStale.", before.why, err)
			}
			if v, _, _ := unstructured.NestedString(w.get(configMaps, "b").Object, "data", "key"); v != "one" {
				t.Errorf("%s It wrote %s.", before.why, v)
			}
			w.settled(want)
		})
	}
}

// A session takes over from a session that took over and did not write the record: its takeover has
// the objects that the first session had announced.
func TestTakeoverIsInherited(t *testing.T) {
	w := newWorld(t)
	at := &armed{match: write(http.MethodPatch, "/configmaps/a")}
	old := w.session("old", at.is)
	old.must(w.want("v1", configMap("a", "one")))
	old.must(w.want("v2", configMap("a", "half")))
	p := old.plan(w.want("v3", configMap("a", "two")))
	at.on.Store(true)
	finish := old.begin(p)
	second := w.session("second", write(http.MethodPut, "/secrets/record-"))
	dying := second.begin(second.plan(w.want("v2", configMap("a", "half"))))
	third := w.session("third", write("NONE", ""))
	third.must(w.want("v2", configMap("a", "half")))
	third.must(w.want("v2", configMap("a", "half")))
	if err := finish(); !errors.Is(err, applier.ErrStale) {
		t.Errorf("the first session's apply ended with %v, want ErrStale", err)
	}
	if err := dying(); !errors.Is(err, applier.ErrStale) {
		t.Errorf("the second session's apply ended with %v, want ErrStale", err)
	}
	w.settled(w.want("v2", configMap("a", "half")))
}

// A new connection of a session takes over from the old one, whose requests may still arrive.
func TestAnnouncedByAnotherConnection(t *testing.T) {
	w := newWorld(t)
	at := &armed{match: write(http.MethodPatch, "/configmaps/a")}
	first := w.session("one", at.is)
	first.must(w.want("v1", configMap("a", "one")))
	first.must(w.want("v2", configMap("a", "half")))
	p := first.plan(w.want("v3", configMap("a", "two")))
	at.on.Store(true)
	finish := first.begin(p)
	second := w.session("one", write("NONE", ""))
	second.must(w.want("v2", configMap("a", "half")))
	if err := finish(); !errors.Is(err, applier.ErrStale) {
		t.Errorf("the first connection's apply ended with %v, want ErrStale", err)
	}
	w.settled(w.want("v2", configMap("a", "half")))
}

// A claim from a backup of another cluster does not block takeovers.
func TestRestoredAnnouncements(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "one")))
	w.apply(w.want("v2", configMap("a", "half"))) // the Secret is there
	client, err := kubernetes.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	secrets := client.CoreV1().Secrets("keelson-system")
	w.eventually("no other test writes meanwhile", func() bool {
		s, err := secrets.Get(t.Context(), "keelson-intents", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var all map[string]any
		if err := json.Unmarshal(s.Data["intents"], &all); err != nil {
			t.Fatal(err)
		}
		all[w.component] = map[string]any{"claimed": "999999999"}
		if s.Data["intents"], err = json.Marshal(all); err != nil {
			t.Fatal(err)
		}
		_, err = secrets.Update(t.Context(), s, metav1.UpdateOptions{})
		return err == nil
	})
	next := w.session("next", write("NONE", ""))
	next.must(w.want("v3", configMap("a", "two")))
	next.must(w.want("v4", configMap("a", "three")))
	w.reconnect()
	w.settled(w.want("v4", configMap("a", "three")))
}

// Announcements of many components during a write of the Secret are written together.
func TestAnnouncedTogether(t *testing.T) {
	const components = 20
	w := newWorld(t)
	var seen writeLog
	at := &armed{match: write(http.MethodPut, intents)}
	g := newGate(at.is)
	config := rest.CopyConfig(server)
	config.Wrap(seen.wrap)
	config.Wrap(g.wrap)
	w.connect(config)
	name := func(i int) string { return "c" + strconv.Itoa(i) }
	var worlds []*world
	for i := range components + 1 {
		of := w.as(w.component + "-" + name(i))
		of.apply(of.want("v1", configMap(name(i), "one")))
		of.apply(of.want("v2", configMap(name(i), "two")))
		worlds = append(worlds, of)
	}
	mark := len(seen.since(0))
	var plans []*applier.Prepared
	for i, of := range worlds {
		plans = append(plans, of.plan(of.want("v3", configMap(name(i), "three"))))
	}
	at.on.Store(true)
	done := make(chan error, len(plans))
	start := func(p *applier.Prepared) {
		_, err := w.cluster.Apply(t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0)})
		done <- err
	}
	go start(plans[0])
	<-g.reached
	for _, p := range plans[1:] {
		go start(p)
	}
	w.eventually("they wait for the first", func() bool { return w.cluster.Announcing() == components })
	close(g.open)
	for range plans {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	n := 0
	for _, write := range seen.since(mark) {
		if strings.HasSuffix(write, "secrets/keelson-intents") {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d components announced in %d writes, want 2", len(plans), n)
	}
}
