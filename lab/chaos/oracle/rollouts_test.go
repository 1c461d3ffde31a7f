package oracle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/chaos/oracle"
)

// logs are made-up audit logs of a hub and of the clusters a, b and c, in seconds from
// the start of a day that never was.
type logs struct {
	hub      []audit.Event
	clusters map[string][]audit.Event
}

var day = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return day.Add(time.Duration(seconds * float64(time.Second))) }

func stamp(seconds float64) string { return at(seconds).Format(`"2006-01-02T15:04:05.000000Z"`) }

func event(seconds float64, verb string, r audit.Resource, body string) audit.Event {
	return audit.Event{
		ID: fmt.Sprintf("at-%v", seconds), Stage: audit.ResponseComplete, User: "keelson", Verb: verb, Resource: r, Code: 200,
		Received: at(seconds), Time: at(seconds + 0.01), Request: []byte(body),
		Response: fmt.Appendf(nil, `{"metadata":{"resourceVersion":"%d"},%s`, int(1000*seconds), strings.TrimPrefix(body, "{")),
	}
}

// wants: git wants version vN where the target's hash is hN.
func (l *logs) wants(n int) {
	body := fmt.Sprintf(`{"status":{"version":"v%d","wanted":{"targetHash":"h%d"}}}`, n, n)
	r := audit.Resource{Group: "keelson.io", Resource: "deliveries", Subresource: "status", Name: "a.ferry"}
	l.hub = append(l.hub, event(float64(n)/10, "patch", r, body))
}

// says is a status of the Rollout: clusters and stages as JSON, without their braces.
func (l *logs) says(seconds float64, more string, stages, clusters []string) {
	body := fmt.Sprintf(`{"status":{"phase":"Progressing"%s,"stages":[{%s}],"clusters":[{%s}]}}`, more, strings.Join(stages, "},{"), strings.Join(clusters, "},{"))
	l.hub = append(l.hub, event(seconds, "update", audit.Resource{Group: "keelson.io", Resource: "rollouts", Subresource: "status", Name: "ferry"}, body))
}

// brings is a write of version vN to a cluster.
func (l *logs) brings(seconds float64, cluster string, n int) {
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:"v%d"}}}`, oracle.VersionNote, n)
	r := audit.Resource{Group: "apps", Resource: "deployments", Namespace: "ferry", Name: "ferry"}
	l.clusters[cluster] = append(l.clusters[cluster], event(seconds, "patch", r, body))
}

// The parts of a status: hash N of what the stages bring, and when things happened; of 0
// they did not.
func firstStage(n int, passed float64) string {
	return fmt.Sprintf(`"name":"first","evidence":"e%d","passed":%s`, n, orNull(passed))
}

func secondStage(n int, before, after, passed float64) string {
	return fmt.Sprintf(`"name":"second","evidence":"f%d","passed":%s,"checks":[{"name":"ready","passed":%s},{"name":"good","after":true,"passed":%s},{"name":"approval","passed":%s}]`,
		n, orNull(passed), orNull(before), orNull(after), orNull(before))
}

func entry(cluster string, n int, released, settled float64) string {
	return fmt.Sprintf(`"name":%q,"want":"h%d","released":%s,"settled":%s`, cluster, n, orNull(released), orNull(settled))
}

func orNull(seconds float64) string {
	if seconds == 0 {
		return "null"
	}
	return stamp(seconds)
}

// well is a change to v1 as it should be: a in the first stage, then b and c in the
// second, which is silent for 2s and bakes for 2s.
func well() (*logs, oracle.Course) {
	l := &logs{clusters: map[string][]audit.Event{}}
	l.wants(1)
	l.says(1, "", []string{firstStage(1, 0), secondStage(0, 0, 0, 0)}, []string{entry("a", 1, 1, 0)})
	l.brings(2, "a", 1)
	l.says(3, "", []string{firstStage(1, 0), secondStage(1, 0, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 0, 0), entry("c", 1, 0, 0)})
	l.says(4, "", []string{firstStage(1, 4), secondStage(1, 0, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 0, 0), entry("c", 1, 0, 0)})
	l.says(5, "", []string{firstStage(1, 4), secondStage(1, 5, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 0), entry("c", 1, 0, 0)})
	l.brings(6, "b", 1)
	l.says(7, "", []string{firstStage(1, 4), secondStage(1, 5, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 7), entry("c", 1, 0, 0)})
	l.says(9, "", []string{firstStage(1, 4), secondStage(1, 5, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 7), entry("c", 1, 9, 0)})
	l.brings(10, "c", 1)
	l.says(11, "", []string{firstStage(1, 4), secondStage(1, 5, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 7), entry("c", 1, 9, 11)})
	l.says(14, "", []string{firstStage(1, 4), secondStage(1, 5, 14, 14)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 7), entry("c", 1, 9, 11)})
	return l, oracle.Course{
		Component: "ferry",
		Stages: []oracle.CourseStage{
			{Name: "first", Clusters: []string{"a"}, MaxConcurrent: 1},
			{
				Name: "second", Clusters: []string{"b", "c"}, MaxConcurrent: 1, Silence: 2 * time.Second, Bake: 2 * time.Second,
				Before: []string{"ready"}, After: []string{"good"}, Approved: "approval",
			},
		},
		Answers: []oracle.Answer{
			{Time: at(4.5), Stage: "second", Check: "ready", Yes: true}, {Time: at(13), Stage: "second", Check: "good", Yes: true},
		},
		Approvals: []oracle.Approval{{Time: at(4.2), Stage: "second", Hash: "f1"}},
	}
}

// replace puts another status in the place of that of a time.
func (l *logs) replace(seconds float64, more string, stages, clusters []string) {
	l.hub = slices.DeleteFunc(l.hub, func(e audit.Event) bool { return e.Received.Equal(at(seconds)) })
	l.says(seconds, more, stages, clusters)
}

// TestJudgeCourse plants one defect a case into logs of a change that is all well.
func TestJudgeCourse(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why   string
		plant func(*logs, *oracle.Course)
		want  string // part of each violation; empty: there is none
	}{
		"Well":      {why: "The rollout has no defect.", plant: func(*logs, *oracle.Course) {}},
		"Elsewhere": {why: "A write to another component is not judged.", plant: func(l *logs, _ *oracle.Course) { l.clusters["c"][0].Resource.Namespace = "other" }},
		"Refused": {why: "A write that the API server refused does not count.", plant: func(l *logs, _ *oracle.Course) {
			l.brings(1.5, "c", 1)
			l.clusters["c"][1].Code = 409
		}},
		"AgainAfterAKill": {why: "After a kill, the next process may write the same version again.", plant: func(l *logs, _ *oracle.Course) { l.brings(6.5, "b", 1) }},
		"NotLetGo": {
			why: "A cluster got the version without a release.", want: "c got v1, and no status in the hub let it go",
			plant: func(l *logs, _ *oracle.Course) { l.brings(8, "c", 1) },
		},
		"LetGoToAnother": {
			why: "A cluster that was released to v1 got v2.", want: "c got v2, and no status in the hub let it go",
			plant: func(l *logs, _ *oracle.Course) { l.brings(12, "c", 2) },
		},
		"StageSkipped": {
			why: "The first stage has not got the version, although the Rollout says so.", want: `b got v1, and a before it has ""`,
			plant: func(l *logs, _ *oracle.Course) {
				delete(l.clusters, "a")
				l.clusters["c"] = nil
			},
		},
		"OutOfOrder": {
			why: "The clusters of a stage must get the version in order.", want: `c got v1, and b before it has ""`,
			plant: func(l *logs, _ *oracle.Course) { delete(l.clusters, "b") },
		},
		"StageNotPassed": {
			why: "The second stage begins before the first has passed.", want: "b released to v1, and stage first before it has not passed",
			plant: func(l *logs, _ *oracle.Course) {
				for _, s := range []float64{4, 5, 7, 9, 11, 14} {
					l.hub = slices.DeleteFunc(l.hub, func(e audit.Event) bool { return e.Received.Equal(at(s)) })
				}
				l.says(5, "", []string{firstStage(1, 0), secondStage(1, 5, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 0), entry("c", 1, 0, 0)})
				l.says(14, "", []string{firstStage(1, 14), secondStage(1, 5, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 0), entry("c", 1, 0, 0)})
				delete(l.clusters, "c")
			},
		},
		"CheckNotPassed": {
			why: "The check before the stage has no answer yet.", want: "b released to v1, and check ready has not passed",
			plant: func(l *logs, _ *oracle.Course) {
				l.replace(5, "", []string{firstStage(1, 4), `"name":"second","evidence":"f1"`}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 0), entry("c", 1, 0, 0)})
			},
		},
		"NeverAsked": {
			why: "The Rollout says that a check has passed, but the server was never asked.", want: "check ready was last answered with yes before",
			plant: func(_ *logs, w *oracle.Course) { w.Answers = w.Answers[1:] },
		},
		"StaleAnswer": {
			why: "The yes was about the previous evidence of the stage.", want: "check ready was last answered with yes before",
			plant: func(_ *logs, w *oracle.Course) { w.Answers[0].Time = at(0.9) },
		},
		"SaidNo": {
			why: "The server said no.", want: "check good was last answered with yes before",
			plant: func(_ *logs, w *oracle.Course) { w.Answers[1].Yes = false },
		},
		"AskedTooEarly": {
			why: "The check after a stage was asked before its last cluster had settled.", want: "check good was last answered with yes before",
			plant: func(_ *logs, w *oracle.Course) { w.Answers[1].Time = at(10.5) },
		},
		"NotApproved": {
			why: "Git approves another hash.", want: "git does not approve f1",
			plant: func(_ *logs, w *oracle.Course) { w.Approvals[0].Hash = "f0" },
		},
		"ApprovedLater": {
			why: "The approval comes after the cluster was released.", want: "git does not approve f1",
			plant: func(_ *logs, w *oracle.Course) { w.Approvals[0].Time = at(5.5) },
		},
		"TooMany": {
			why: "Two clusters change at the same time.", want: "[b c] on their way in stage second, of at most 1",
			plant: func(l *logs, w *oracle.Course) {
				w.Stages[1].Silence = 0
				l.replace(7, "", []string{firstStage(1, 4), secondStage(1, 5, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 0), entry("c", 1, 6.9, 0)})
				l.replace(9, "", []string{firstStage(1, 4), secondStage(1, 5, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 9), entry("c", 1, 6.9, 0)})
				l.replace(11, "", []string{firstStage(1, 4), secondStage(1, 5, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 9), entry("c", 1, 6.9, 11)})
				l.replace(14, "", []string{firstStage(1, 4), secondStage(1, 5, 14, 14)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 9), entry("c", 1, 6.9, 11)})
			},
		},
		"NoSilence": {
			why: "The next cluster is released before the silence is over.", want: "in a silence of 3s",
			plant: func(_ *logs, w *oracle.Course) { w.Stages[1].Silence = 3 * time.Second },
		},
		"NoBake": {
			why: "The stage passes before it has baked.", want: "it bakes for 5s",
			plant: func(_ *logs, w *oracle.Course) { w.Stages[1].Bake = 5 * time.Second },
		},
		"NotSettled": {
			why: "The stage passes while a cluster has not settled.", want: "c has not settled",
			plant: func(l *logs, _ *oracle.Course) {
				l.replace(14, "", []string{firstStage(1, 4), secondStage(1, 5, 14, 14)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 7), entry("c", 1, 9, 0)})
			},
		},
		"WhilePaused": {
			why: "A paused rollout must not release a cluster.", want: "the rollout is Paused",
			plant: func(l *logs, _ *oracle.Course) {
				l.replace(7, `,"phase":"Paused"`, []string{firstStage(1, 4), secondStage(1, 5, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 7), entry("c", 1, 0, 0)})
				l.replace(9, `,"phase":"Paused"`, []string{firstStage(1, 4), secondStage(1, 5, 0, 0)}, []string{entry("a", 1, 1, 3), entry("b", 1, 5, 7), entry("c", 1, 9, 0)})
			},
		},
		"TakenBack": {
			why: "A change that is taken back waits for no check, silence or bake, but keeps the order of clusters.",
			plant: func(l *logs, w *oracle.Course) {
				w.Answers, w.Approvals = nil, nil
				w.Stages[1].Silence, w.Stages[1].Bake = time.Hour, time.Hour
				for i := range l.hub {
					l.hub[i].Request = []byte(strings.Replace(string(l.hub[i].Request), `"phase"`, `"back":true,"phase"`, 1))
				}
			},
		},
		"RolledBack": {
			why: "A cluster of a rolled-back stage returns to its previous version. Clusters before it need not have that version.",
			plant: func(l *logs, _ *oracle.Course) {
				l.wants(2)
				l.says(20, `,"change":"2"`, []string{firstStage(2, 0), secondStage(2, 0, 0, 0)}, []string{entry("a", 2, 20, 0)})
				l.brings(21, "a", 2)
				l.says(22, `,"phase":"RollingBack"`, []string{firstStage(2, 0), secondStage(2, 0, 0, 0)}, []string{entry("a", 2, 20, 0) + `,"back":true,"from":"h1"`})
				l.brings(23, "a", 1)
			},
		},
		"RolledBackElsewhere": {
			why: "A rolled-back cluster may get only its previous version.", want: "a got v3, and no status",
			plant: func(l *logs, _ *oracle.Course) {
				l.wants(3)
				l.says(22, `,"phase":"RollingBack"`, []string{firstStage(2, 0), secondStage(2, 0, 0, 0)}, []string{entry("a", 2, 20, 0) + `,"back":true,"from":"h1"`})
				l.brings(23, "a", 3)
			},
		},
		"Withdrawn": {
			why: "A Rollout for an older version in git must not release a cluster.", want: "c got v1, and no status in the hub let it go",
			plant: func(l *logs, _ *oracle.Course) {
				l.wants(2)
				l.clusters["c"] = nil
				l.says(20, "", []string{firstStage(2, 0), secondStage(2, 0, 0, 0)}, []string{entry("a", 2, 0, 0), entry("b", 2, 0, 0), entry("c", 2, 0, 0)})
				l.brings(26, "c", 1)
			},
		},
		"OnItsWay": {
			why: "A write that was on its way when that changed is none the worse.",
			plant: func(l *logs, _ *oracle.Course) {
				l.wants(2)
				l.clusters["c"] = nil
				l.says(20, "", []string{firstStage(2, 0), secondStage(2, 0, 0, 0)}, []string{entry("a", 2, 0, 0), entry("b", 2, 0, 0), entry("c", 2, 0, 0)})
				l.brings(21, "c", 1)
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, course := well()
			tc.plant(l, &course)
			v := oracle.JudgeCourse(course, l.hub, l.clusters)
			switch {
			case v.Empty():
				t.Fatalf("too little to judge: %s", v)
			case tc.want == "" && len(v.Violations) > 0:
				t.Errorf("%q: %s", v.Violations, tc.why)
			case tc.want != "" && (len(v.Violations) == 0 || slices.ContainsFunc(v.Violations, func(line string) bool { return !strings.Contains(line, tc.want) })):
				t.Errorf("%q, want %q: %s", v.Violations, tc.want, tc.why)
			}
		})
	}
}

// TestJudgeCourseEmpty: logs that show nothing prove nothing.
func TestJudgeCourseEmpty(t *testing.T) {
	t.Parallel()
	_, course := well()
	if v := oracle.JudgeCourse(course, nil, nil); !v.Empty() {
		t.Errorf("%s", v)
	}
}
