package notify

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
)

const head = "apiVersion: keelson.io/v1alpha1\nkind: "

// newFleet is a fleet of the clusters test, prod-1 and prod-2, each with dns and web, of
// which dns goes by a pipeline. Files are added, or take the place of its own; empty ones are left out.
func newFleet(t testing.TB, files map[string]string) *registry.Fleet {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{
		"fleet.yaml":              head + "Fleet\nname: earth\n",
		"pipelines/standard.yaml": head + "Pipeline\nstages:\n- {name: testing, clusterSelector: {matchLabels: {stage: testing}}}\n- {name: production, clusterSelector: {}, before: [{name: ok, approval: {}}]}\n",
	}
	for _, component := range []string{"dns", "web"} {
		way := map[string]string{"dns": "pipeline: standard\n"}[component]
		all["components/"+component+"/component.yaml"] = head + "Component\nnamespace: a\n" + way
		all["components/"+component+"/template/Chart.yaml"] = "apiVersion: v2\nname: a\nversion: 1.0.0\n"
	}
	for cluster, stage := range map[string]string{"test": "testing", "prod-1": "production", "prod-2": "production"} {
		all["clusters/"+cluster+"/cluster.yaml"] = head + "Cluster\nlabels: {stage: " + stage + "}\nconnection: {context: " + cluster + "}\n"
		all["clusters/"+cluster+"/dns.yaml"] = head + "MetaConfig\nversion: HEAD\n"
		all["clusters/"+cluster+"/web.yaml"] = head + "MetaConfig\nversion: HEAD\n"
	}
	maps.Copy(all, files)
	maps.DeleteFunc(all, func(_, text string) bool { return text == "" })
	for name, text := range all {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "a"}} {
		if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", root}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	repo, err := registry.Open(t.Context(), gitrepo.Options{URL: root, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	f, err := repo.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// file is a notification called a, that sends to a webhook; more is what it says besides.
func file(more string) map[string]string {
	return map[string]string{"notifications/a.yaml": head + "Notification\n" + more + "webhook: {url: \"https://hook.example\"}\n"}
}

// sees is a world with these deliveries.
func sees(f *registry.Fleet, deliveries map[place]v1alpha1.DeliveryStatus) world {
	w := world{fleet: f, deliveries: map[place]state{}, troubles: map[place]trouble{}, warned: map[place]warned{}, rollouts: map[string]*v1alpha1.Rollout{}}
	for at, s := range deliveries {
		is := troubleOf(&s)
		w.deliveries[at] = is.state
		if is.state != fine && is.state != between {
			w.troubles[at] = is
		}
		if of := warnedOf(&s); of.key != "" {
			w.warned[at] = of
		}
	}
	return w
}

func status(sync v1alpha1.Sync, health v1alpha1.Health, message string) v1alpha1.DeliveryStatus {
	return v1alpha1.DeliveryStatus{Sync: sync, Health: health, Version: "v1.0.0", Message: message}
}

// warning is the status of a delivery after a change of which rules warn.
func warning(target string, rules ...string) v1alpha1.DeliveryStatus {
	s := status(v1alpha1.SyncSynced, v1alpha1.HealthHealthy, "")
	s.TargetHash = target
	for _, rule := range rules {
		s.Warnings = append(s.Warnings, v1alpha1.ChangeWarning{Object: "Service prod/web", Rule: rule, Because: "it opens"})
	}
	return s
}

// says is what events are, in short.
func says(events []v1alpha1.MessageEvent) []string {
	out := []string{}
	for _, e := range events {
		text := fmt.Sprintf("%s %s %s", e.Event, e.Component, strings.Join(e.Clusters, ",")+e.Stage)
		out = append(out, strings.TrimSpace(text))
	}
	return out
}

// TestCompareDeliveries: what is told of a delivery, when its states come one after the
// other and each is looked at.
func TestCompareDeliveries(t *testing.T) {
	t.Parallel()
	var (
		ok       = status(v1alpha1.SyncSynced, v1alpha1.HealthHealthy, "")
		failed   = status(v1alpha1.SyncFailed, v1alpha1.HealthHealthy, "no")
		degraded = status(v1alpha1.SyncSynced, v1alpha1.HealthDegraded, "its pods crash")
		gone     = status(v1alpha1.SyncUnreachable, v1alpha1.HealthUnknown, "no answer")
		moving   = status(v1alpha1.SyncProgressing, v1alpha1.HealthProgressing, "")
		needs    = status(v1alpha1.SyncHeld, v1alpha1.HealthHealthy, "replicas to 0")
		broken   = status(v1alpha1.SyncBlocked, v1alpha1.HealthHealthy, "values.yaml:3")
		denied   = status(v1alpha1.SyncDenied, v1alpha1.HealthHealthy, "never")
		paused   = status(v1alpha1.SyncPaused, v1alpha1.HealthHealthy, "")
		waits    = status(v1alpha1.SyncWaiting, v1alpha1.HealthHealthy, "")
		absent   = status(v1alpha1.SyncAbsent, v1alpha1.HealthUnknown, "")
		nothing  = v1alpha1.DeliveryStatus{}
		warns    = warning("t1", "service-exposed")
		again    = warning("t1", "service-exposed")
		other    = warning("t1", "service-exposed", "pod-probe-removed")
		later    = warning("t2", "service-exposed")
	)
	again.Revision = "later"
	cases := map[string]struct {
		why    string
		file   string
		states []v1alpha1.DeliveryStatus // the first is there when it begins
		want   []string
	}{
		"Fails":     {"One event, however long the Delivery fails.", "", []v1alpha1.DeliveryStatus{ok, failed, failed, gone, degraded}, []string{"delivery-failing web prod-1"}},
		"Tries":     {"A Delivery that is tried again has not recovered.", "", []v1alpha1.DeliveryStatus{ok, failed, moving, failed, moving, ok}, []string{"delivery-failing web prod-1", "delivery-recovered web prod-1"}},
		"Upgrades":  {"An upgrade in progress is no failure.", "", []v1alpha1.DeliveryStatus{ok, moving, waits, moving, ok}, nil},
		"Before":    {"A failure from before the notification is not sent, but its recovery is.", "", []v1alpha1.DeliveryStatus{failed, failed, ok}, []string{"delivery-recovered web prod-1"}},
		"Held":      {"Each state asks for another action, so each is sent.", "", []v1alpha1.DeliveryStatus{ok, needs, failed, ok}, []string{"delivery-held web prod-1", "delivery-failing web prod-1", "delivery-recovered web prod-1"}},
		"Blocked":   {"Broken files and a denial by a rule both need a commit.", "", []v1alpha1.DeliveryStatus{ok, broken, denied, waits}, []string{"delivery-blocked web prod-1", "delivery-recovered web prod-1"}},
		"Paused":    {"No controller works on a paused Delivery, so it has not recovered.", "", []v1alpha1.DeliveryStatus{ok, failed, paused, failed, ok}, []string{"delivery-failing web prod-1", "delivery-recovered web prod-1"}},
		"Removed":   {"The component was removed, as git wanted.", "", []v1alpha1.DeliveryStatus{failed, absent}, []string{"delivery-recovered web prod-1"}},
		"New":       {"The state of the Delivery is not known yet.", "", []v1alpha1.DeliveryStatus{nothing, nothing, ok}, nil},
		"Warned":    {"Once, until another rule warns, or the rule warns of another change.", "", []v1alpha1.DeliveryStatus{ok, warns, again, other, later}, []string{"delivery-warned web prod-1", "delivery-warned web prod-1", "delivery-warned web prod-1"}},
		"WarnedAgo": {"A warning from before the notification is not sent.", "", []v1alpha1.DeliveryStatus{warns, again, ok}, nil},
		"Unwarned":  {"A change without a warning sends nothing. The same warning after it is new.", "", []v1alpha1.DeliveryStatus{ok, warns, ok, warns}, []string{"delivery-warned web prod-1", "delivery-warned web prod-1"}},
		"Severity":  {"An event of a lower severity is not sent.", "severity: error\n", []v1alpha1.DeliveryStatus{ok, needs, failed, ok}, []string{"delivery-failing web prod-1"}},
		"Events":    {"Other events are not sent, but remembered: the Delivery failed before.", "events: [delivery-recovered]\n", []v1alpha1.DeliveryStatus{ok, failed, ok}, []string{"delivery-recovered web prod-1"}},
		"Selected":  {"By label, component and pipeline.", "clusterSelector: {matchLabels: {stage: production}}\ncomponents: [web]\n", []v1alpha1.DeliveryStatus{ok, failed}, []string{"delivery-failing web prod-1"}},
		"Label":     {"It is about other clusters.", "clusterSelector: {matchLabels: {stage: testing}}\n", []v1alpha1.DeliveryStatus{ok, failed, ok}, nil},
		"Component": {"It is about another component.", "components: [dns]\n", []v1alpha1.DeliveryStatus{ok, failed, ok}, nil},
		"Pipeline":  {"It is about what goes by a pipeline.", "pipelines: [standard]\n", []v1alpha1.DeliveryStatus{ok, failed, ok}, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, file(c.file))
			n := f.Notification("a")
			var was sentState
			var got []string
			for i, s := range c.states {
				events, next := compare(was, sees(f, map[place]v1alpha1.DeliveryStatus{{"prod-1", "web"}: s}), n, time.Unix(int64(i), 0))
				if was = next; i > 0 {
					got = append(got, says(events)...)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.why, diff)
			}
		})
	}
}

// TestCompareUnknown: not knowing is never absence. Of what git has taken away nothing
// is told; of what can't be read, what was told stays.
func TestCompareUnknown(t *testing.T) {
	t.Parallel()
	before := newFleet(t, file("clusterSelector: {matchLabels: {stage: production}}\n"))
	bad := map[place]v1alpha1.DeliveryStatus{
		{"prod-1", "web"}: status(v1alpha1.SyncFailed, v1alpha1.HealthHealthy, "no"), {"prod-2", "web"}: status(v1alpha1.SyncFailed, v1alpha1.HealthHealthy, "no"),
	}
	_, was := compare(sentState{}, sees(before, bad), before.Notification("a"), time.Unix(0, 0))
	unread := newFleet(t, maps.Collect(func(yield func(string, string) bool) {
		for name, text := range file("clusterSelector: {matchLabels: {stage: production}}\n") {
			yield(name, text)
		}
		yield("clusters/prod-1/cluster.yaml", "{")
	}))
	events, next := compare(was, sees(unread, bad), unread.Notification("a"), time.Unix(1, 0))
	if len(events) > 0 || !maps.Equal(next.Deliveries, was.Deliveries) {
		t.Errorf("a cluster whose file can't be read: %v, %v", says(events), next.Deliveries)
	}
	delete(bad, place{"prod-2", "web"})
	if events, next = compare(next, sees(before, bad), before.Notification("a"), time.Unix(2, 0)); len(events) > 0 || len(next.Deliveries) != 2 {
		t.Errorf("a Delivery that another client deleted: %v, %v", says(events), next.Deliveries)
	}
	without := newFleet(t, map[string]string{
		"notifications/a.yaml": file("clusterSelector: {matchLabels: {stage: production}}\n")["notifications/a.yaml"], "clusters/prod-2/web.yaml": "",
	})
	if events, next = compare(next, sees(without, bad), without.Notification("a"), time.Unix(2, 0)); len(events) > 0 || len(next.Deliveries) != 1 {
		t.Errorf("a Delivery that git does not have any more: %v, %v", says(events), next.Deliveries)
	}
	w := sees(before, bad)
	w.rollouts = nil
	was.Rollouts = map[string]sentRollout{"dns": {Change: "1"}}
	if _, next = compare(was, w, before.Notification("a"), time.Unix(3, 0)); next.Rollouts["dns"].Change != "1" {
		t.Error("rollouts that are not known were forgotten")
	}
}

// at is a time on the clock of a rollout.
func at(second int) *metav1.Time { return &metav1.Time{Time: time.Unix(int64(second), 0)} }

// rolling is a rollout of dns at revision 1 that began at 100 s.
func rolling(change func(*v1alpha1.RolloutStatus)) *v1alpha1.Rollout {
	r := &v1alpha1.Rollout{Status: v1alpha1.RolloutStatus{
		Component: "dns", Pipeline: "standard", Change: "1", Revision: "1", From: "v1.0.0", To: "v1.1.0", Phase: v1alpha1.RolloutProgressing, Stage: "testing",
		Begun: at(100), Progress: "0/3", Stages: []v1alpha1.RolloutStage{{Name: "testing", Evidence: "e1"}, {Name: "production", Evidence: "e2"}},
		Clusters: []v1alpha1.RolloutCluster{{Name: "test", Stage: "testing"}, {Name: "prod-1", Stage: "production"}, {Name: "prod-2", Stage: "production"}},
	}}
	change(&r.Status)
	return r
}

// TestCompareRollouts: what is told of a rollout when its states come one after the other
// and each is looked at.
func TestCompareRollouts(t *testing.T) {
	t.Parallel()
	type changes []func(*v1alpha1.RolloutStatus)
	var (
		begins = func(*v1alpha1.RolloutStatus) {}
		opens  = func(s *v1alpha1.RolloutStatus) { s.Stages[0].Opened = at(101) }
		passes = func(s *v1alpha1.RolloutStatus) {
			opens(s)
			s.Stages[0].Passed, s.Stage = at(102), "production"
		}
		asks = func(s *v1alpha1.RolloutStatus) {
			passes(s)
			s.Stages[1].Checks = []v1alpha1.RolloutCheck{{Name: "ok", Asked: *at(102), Message: "it waits"}}
		}
		completes = func(s *v1alpha1.RolloutStatus) {
			passes(s)
			s.Stages[1].Opened, s.Stages[1].Passed, s.Phase, s.Stage, s.Progress = at(103), at(104), v1alpha1.RolloutComplete, "", "3/3"
		}
		fails = func(s *v1alpha1.RolloutStatus) {
			opens(s)
			s.Phase, s.Because = v1alpha1.RolloutPaused, "stage testing: test: its pods crash"
		}
		goesBack = func(s *v1alpha1.RolloutStatus) {
			fails(s)
			s.Phase = v1alpha1.RolloutRollingBack
		}
		isBack = func(s *v1alpha1.RolloutStatus) {
			fails(s)
			s.Phase = v1alpha1.RolloutRolledBack
		}
		paused = func(s *v1alpha1.RolloutStatus) {
			opens(s)
			s.Phase, s.Paused, s.Because = v1alpha1.RolloutPaused, "paused by ann: lunch", "paused by ann: lunch"
		}
		promoted = func(s *v1alpha1.RolloutStatus) {
			asks(s)
			s.Stages[1].Promoted, s.Stages[1].Opened = "ann: CVE", at(103)
		}
		next = func(s *v1alpha1.RolloutStatus) { // of which testing brings nothing new
			passes(s)
			s.Change, s.Revision, s.Begun, s.To = "2", "2", at(200), "v1.2.0"
		}
		taken = func(s *v1alpha1.RolloutStatus) {
			next(s)
			s.Back = true
		}
		extended = func(s *v1alpha1.RolloutStatus) { // a cluster told late
			opens(s)
			s.Change = "1b"
		}
	)
	cases := map[string]struct {
		why  string
		file string
		was  func(*v1alpha1.RolloutStatus) // when the notification begins; nil: there is none
		then changes
		want []string
	}{
		"Whole":      {"Each step of it.", "", nil, changes{begins, opens, passes, asks, completes}, []string{"rollout-started dns", "stage-opened dns testing", "stage-passed dns testing", "approval-needed dns production", "stage-opened dns production", "stage-passed dns production", "rollout-complete dns"}},
		"Unseen":     {"Events from while the notifier did not run are sent, in their order.", "", nil, changes{completes}, []string{"rollout-started dns", "stage-opened dns testing", "stage-passed dns testing", "stage-opened dns production", "stage-passed dns production", "rollout-complete dns"}},
		"Before":     {"A state from before the notification is not sent.", "", passes, changes{passes, asks}, []string{"approval-needed dns production"}},
		"Fails":      {"A person resumes the rollout after the failure.", "", opens, changes{fails, fails, opens}, []string{"rollout-failed dns testing", "rollout-resumed dns"}},
		"GoesBack":   {"The stage that failed goes back, and is back.", "", opens, changes{goesBack, isBack}, []string{"rollout-failed dns testing", "rollout-rolled-back dns testing"}},
		"Paused":     {"A pause by a person is no failure.", "", opens, changes{paused, opens}, []string{"rollout-paused dns testing", "rollout-resumed dns"}},
		"Promoted":   {"The emergency promotion of a stage is sent.", "", asks, changes{promoted}, []string{"stage-promoted dns production", "stage-opened dns production"}},
		"Superseded": {"Another change takes its place; stages that passed before are not told again.", "", passes, changes{next}, []string{"rollout-superseded dns"}},
		"After":      {"After a complete rollout the next one supersedes nothing.", "", completes, changes{next}, []string{"rollout-started dns"}},
		"TakenBack":  {"A revert is a change too.", "", passes, changes{taken}, []string{"rollout-started dns"}},
		"Extended":   {"The same change with more details is sent no second time.", "", opens, changes{extended}, nil},
		"Stage":      {"Events of the stages of its own clusters, and events of the whole rollout.", "clusterSelector: {matchLabels: {stage: production}}\n", nil, changes{passes, asks}, []string{"rollout-started dns", "approval-needed dns production"}},
		"Component":  {"It is about another component.", "components: [web]\n", nil, changes{begins, completes}, nil},
		"Severity":   {"Only events that need attention are sent.", "severity: warning\n", nil, changes{begins, fails, opens, asks}, []string{"rollout-failed dns testing", "approval-needed dns production"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, file(c.file))
			n := f.Notification("a")
			w := sees(f, nil)
			if c.was != nil {
				w.rollouts["dns"] = rolling(c.was)
			}
			_, was := compare(sentState{}, w, n, time.Unix(100, 0))
			var got []string
			for i, change := range c.then {
				w.rollouts["dns"] = rolling(change)
				var events []v1alpha1.MessageEvent
				events, was = compare(was, w, n, time.Unix(int64(101+i), 0))
				got = append(got, says(events)...)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.why, diff)
			}
		})
	}
}

// TestCompareWidened: a notification that is about more by now does not tell of rollouts
// that were over before.
func TestCompareWidened(t *testing.T) {
	t.Parallel()
	narrow, wide := newFleet(t, file("components: [web]\n")), newFleet(t, file(""))
	w := sees(narrow, nil)
	w.rollouts["dns"] = rolling(func(s *v1alpha1.RolloutStatus) { s.Phase = v1alpha1.RolloutComplete })
	_, was := compare(sentState{}, w, narrow.Notification("a"), time.Unix(1000, 0))
	w.fleet = wide
	events, next := compare(was, w, wide.Notification("a"), time.Unix(1001, 0))
	if len(events) > 0 || next.Rollouts["dns"].Change == "" {
		t.Errorf("told: %v; known: %v", says(events), next.Rollouts)
	}
}

// TestReceiverKnows: whatever happens, however seldom it is looked at, who heard all that
// was told knows which deliveries are in trouble, of what kind, and which rules warn. What
// was told survives being written and read.
func TestReceiverKnows(t *testing.T) {
	t.Parallel()
	f := newFleet(t, file(""))
	n := f.Notification("a")
	places := []place{{"test", "dns"}, {"test", "web"}, {"prod-1", "dns"}, {"prod-1", "web"}, {"prod-2", "web"}}
	statuses := []v1alpha1.DeliveryStatus{
		status(v1alpha1.SyncSynced, v1alpha1.HealthHealthy, ""), status(v1alpha1.SyncFailed, v1alpha1.HealthHealthy, "no"), status(v1alpha1.SyncHeld, v1alpha1.HealthHealthy, ""),
		status(v1alpha1.SyncBlocked, v1alpha1.HealthHealthy, ""), status(v1alpha1.SyncProgressing, v1alpha1.HealthUnknown, ""),
		warning("t1", "one"), warning("t2", "one", "two"),
	}
	rapid.Check(t, func(t *rapid.T) {
		now := map[place]v1alpha1.DeliveryStatus{}
		last := map[place]state{} // that was not between
		heard := map[place]v1alpha1.NotificationEvent{}
		warnings := map[place]string{} // that were there at first, or were told
		var was sentState
		for i := range rapid.IntRange(1, 20).Draw(t, "looks") {
			for range rapid.IntRange(0, 8).Draw(t, "changes") {
				at := rapid.SampledFrom(places).Draw(t, "place")
				now[at] = rapid.SampledFrom(statuses).Draw(t, "status")
			}
			for at, s := range now {
				if is := stateOf(&s); is != between {
					last[at] = is
				}
			}
			events, next := compare(was, sees(f, now), n, time.Unix(0, 0))
			for _, e := range events {
				at := place{e.Clusters[0], e.Component}
				if e.Event == v1alpha1.DeliveryWarned {
					warnings[at] = e.Reason
					continue
				}
				heard[at] = e.Event
			}
			for at, s := range now {
				is := warnedOf(&s)
				if i == 0 {
					warnings[at] = is.reason
				}
				if is.key != "" && warnings[at] != is.reason {
					t.Fatalf("%v: rules warn %q, and the last that was heard is %q", at, is.reason, warnings[at])
				}
			}
			data, err := encodeSentState(next)
			if err != nil {
				t.Fatal(err)
			}
			if was, err = decodeSentState(data); err != nil || !was.same(next) {
				t.Fatalf("written and read: %v, %v instead of %v", err, was, next)
			}
			for at, is := range last {
				known, told := heard[at]
				if is == fine && told && known != v1alpha1.DeliveryRecovered || is != fine && known != is.event() {
					t.Fatalf("%v is %d, and the last that was heard is %q", at, is, known)
				}
			}
		}
	})
}

// TestWarningsOfAnOlderVersion: a memory that was written before there were warnings takes
// in those that there are, and nothing is sent.
func TestWarningsOfAnOlderVersion(t *testing.T) {
	t.Parallel()
	f := newFleet(t, file(""))
	n := f.Notification("a")
	now := map[place]v1alpha1.DeliveryStatus{{"prod-1", "web"}: warning("t1", "one")}
	events, next := compare(sentState{At: metav1.Unix(1, 0), Serial: 3}, sees(f, now), n, time.Unix(2, 0))
	if len(events) > 0 || len(next.Warned) != 1 {
		t.Errorf("%v was sent, and %v is remembered", says(events), next.Warned)
	}
	if next.same(sentState{At: metav1.Unix(1, 0), Serial: 3}) {
		t.Error("the warnings are not written")
	}
	now[place{"prod-1", "web"}] = warning("t2", "one")
	if events, _ = compare(next, sees(f, now), n, time.Unix(3, 0)); len(events) != 1 {
		t.Errorf("a new warning: %v was sent", says(events))
	}
}

// many are so many events of deliveries: of components on clusters.
func many(event v1alpha1.NotificationEvent, clusters, components int) []v1alpha1.MessageEvent {
	var out []v1alpha1.MessageEvent
	for c := range components {
		for i := range clusters {
			out = append(out, v1alpha1.MessageEvent{
				Event: event, Component: fmt.Sprintf("c%03d", c), Clusters: []string{fmt.Sprintf("k%03d", i)}, Count: 1, Version: "v1.0.0", Reason: "its pods crash",
			})
		}
	}
	return severe(out)
}

// TestGrouped: hundreds of the same are one.
func TestGrouped(t *testing.T) {
	t.Parallel()
	rollouts := severe([]v1alpha1.MessageEvent{{Event: v1alpha1.RolloutStarted, Component: "dns", Pipeline: "p", Version: "v1.1.0"}, {Event: v1alpha1.RolloutFailed, Component: "dns", Version: "v1.1.0", Reason: "stage canary: no"}})
	cases := map[string]struct {
		why    string
		events []v1alpha1.MessageEvent
		want   []string
		more   int
	}{
		"One":      {"By name.", many(v1alpha1.DeliveryFailing, 1, 1), []string{"c000 v1.0.0 fails on k000: its pods crash"}, 0},
		"Few":      {"All of them.", many(v1alpha1.DeliveryHeld, 5, 1), []string{"c000 v1.0.0 waits for an approval on k000, k001, k002, k003, k004: its pods crash"}, 0},
		"Warned":   {"What rules say.", many(v1alpha1.DeliveryWarned, 2, 1), []string{"danger rules warn of c000 v1.0.0 on k000, k001: its pods crash"}, 0},
		"Clusters": {"A component that fails everywhere.", many(v1alpha1.DeliveryFailing, 300, 1), []string{"c000 v1.0.0 fails on k000, k001, k002, k003, k004 and 295 more: its pods crash"}, 0},
		"Cluster":  {"A cluster that does not answer.", many(v1alpha1.DeliveryFailing, 1, 200), []string{"c000, c001, c002, c003, c004 and 195 more fail on k000: its pods crash"}, 0},
		"Worst":    {"What is worst comes first.", append(rollouts, many(v1alpha1.DeliveryRecovered, 1, 1)...), []string{"dns v1.1.0: the rollout failed: stage canary: no", "dns: nothing → v1.1.0 begins, by pipeline p", "c000 v1.0.0 is in order again on k000"}, 0},
		"More":     {"There is an end to it.", many(v1alpha1.DeliveryFailing, 30, 30), nil, 10},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events, more := grouped(c.events)
			var got []string
			for _, e := range events {
				got = append(got, said(e, func(s string) string { return s }).Message)
			}
			if c.want == nil {
				got = nil
			}
			if diff := cmp.Diff(c.want, got); diff != "" || more != c.more || len(events) > most {
				t.Errorf("%s: %d events, %d more (-want +got):\n%s", c.why, len(events), more, diff)
			}
		})
	}
}

// TestGroupedCounts: no delivery is lost or counted twice, whatever fails where.
func TestGroupedCounts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := many(v1alpha1.DeliveryFailing, 4, 4)
		some := slices.DeleteFunc(all, func(v1alpha1.MessageEvent) bool { return rapid.Bool().Draw(t, "fine") })
		events, more := grouped(some)
		sum := 0
		for _, e := range events {
			sum += e.Count
		}
		if sum != len(some) || more > 0 {
			t.Fatalf("%d of %d", sum, len(some))
		}
	})
}

// TestEvents: each event has a severity, a sentence of its own, and a place in the
// documentation.
func TestEvents(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../../docs/reference/notifications.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for event, severity := range v1alpha1.NotificationEvents() {
		e := said(v1alpha1.MessageEvent{Event: event, Component: "dns", Clusters: []string{"k"}, Count: 1, Stage: "s", Version: "v1", Reason: "r"}, func(s string) string { return s })
		if seen[e.Message] || !strings.Contains(e.Message, "dns") {
			t.Errorf("%s says %q", event, e.Message)
		}
		seen[e.Message] = true
		if !strings.Contains(string(docs), fmt.Sprintf("| `%s` | %s |", event, severity)) {
			t.Errorf("docs/reference/notifications.md does not have %s as %s", event, severity)
		}
	}
	for _, name := range registry.NotificationNames() {
		if !strings.Contains(string(docs), "`$("+name+")`") {
			t.Errorf("docs/reference/notifications.md does not have $(%s)", name)
		}
	}
}

// breakers are texts that might end the surrounding syntax, or mention a user.
func breakers() *rapid.Generator[string] {
	parts := []string{"<!channel>", "<!here|x>", "<@U123>", "<https://evil.example|login>", "@channel", "@HERE", "@all", "@everyone", "&lt;", "&", "\n", "\r\n", "\u2028", "\u200b", "\u202e", "@\u200ball", "\x00", "\"}", "`", "$(reason)", "$(message)", "a", "é", "\xff"}
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOf(rapid.SampledFrom(parts)).Draw(t, "parts"), "")
	})
}

// TestSlackEscape: nothing that comes from elsewhere is a link, a mention, a second line,
// or expanded again.
func TestSlackEscape(t *testing.T) {
	t.Parallel()
	f := newFleet(t, map[string]string{"notifications/a.yaml": head + "Notification\ntext: \"<!here> $(component): $(reason)\"\nslack: {url: \"https://hook.example\"}\n"})
	n := f.Notification("a")
	rapid.Check(t, func(t *rapid.T) {
		reason := breakers().Draw(t, "reason")
		m, err := envelope{"earth", n, 0, time.Unix(0, 0), func(s string) string { return s }}.message([]v1alpha1.MessageEvent{{Event: v1alpha1.DeliveryFailing, Component: "dns", Clusters: []string{"k"}, Count: 1, Reason: reason}})
		if err != nil {
			t.Fatal(err)
		}
		line := text(n, m, slackEscape)
		rest, ours := strings.CutPrefix(line, "<!here> dns: ") // git's own
		entities := strings.NewReplacer("&amp;", "", "&lt;", "", "&gt;", "").Replace(rest)
		if !ours || strings.ContainsAny(entities, "<>&\n\r\x00\u2028\u202e") || mass.MatchString(entities) {
			t.Fatalf("%q becomes %q", reason, line)
		}
		if want := strings.Count(plain(reason), "$(reason)"); len([]rune(plain(reason))) < reasonLength && strings.Count(rest, "$(reason)") != want {
			t.Fatalf("%q was expanded: %q", reason, line)
		}
	})
}

// What is remembered is no component's to write.
func TestToldIsOwn(t *testing.T) {
	t.Parallel()
	if !v1alpha1.IsOwn("", "ConfigMap", v1alpha1.Namespace, SentStateName("earth", "chat")) {
		t.Error("the memory of a notification is not known as Keelson's own")
	}
}
