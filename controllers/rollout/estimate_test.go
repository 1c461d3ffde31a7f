package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry/window"
)

// journey is a course over clusters that run the version before, and what is assumed.
type journey struct {
	course   rollout.Course
	clusters map[string]rollout.Fact
	assumed  rollout.Assumptions
}

func newJourney(stages ...rollout.Stage) *journey {
	j := &journey{
		course:   rollout.Course{Change: "c", Want: map[string]string{}, From: map[string]string{}, Stages: stages},
		clusters: map[string]rollout.Fact{},
		assumed: rollout.Assumptions{
			Begin: start, Takes: time.Minute,
			Frozen: func(string, time.Time) (string, time.Time) { return "", time.Time{} },
			Passes: func(string, string, bool) time.Duration { return 0 },
		},
	}
	for _, s := range stages {
		for _, name := range s.Clusters {
			j.course.Want[name], j.course.From[name] = "new", "old"
			j.clusters[name] = rollout.Fact{Hash: "old", Healthy: true}
		}
	}
	return j
}

// says is a forecast in lines: of each stage when it begins and ends, and its clusters.
func says(f rollout.Forecast) []string {
	clock := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return t.Format("2 15:04")
	}
	var out []string
	for _, s := range f.Stages {
		out = append(out, fmt.Sprintf("%s %s to %s %v", s.Name, clock(s.Begins), clock(s.Ends), s.Clusters))
	}
	return append(out, clock(f.Ends)+" "+f.Because)
}

func TestEstimate(t *testing.T) {
	t.Parallel()
	testing := rollout.Stage{Name: "testing", Clusters: []string{"test"}, MaxConcurrent: 1, MaxUnavailable: 1, Timeout: time.Hour}
	production := rollout.Stage{Name: "production", Clusters: []string{"a", "b", "c"}, MaxConcurrent: 1, MaxUnavailable: 1, Timeout: time.Hour}
	afternoon, err := window.New("0 14 * * *", 5*time.Minute, "")
	if err != nil {
		t.Fatal(err)
	}
	never, err := window.New("0 0 31 2 *", time.Hour, "")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		why    string
		change func(j *journey)
		want   []string
	}{
		"Plain": {
			why: "One after the other, a minute each.", change: func(*journey) {},
			want: []string{"testing 2 08:00 to 2 08:01 [test]", "production 2 08:01 to 2 08:04 [a b c]", "2 08:04 "},
		},
		"Pace": {
			why: "Silence and bake pass as the clock does.",
			change: func(j *journey) {
				j.course.Stages[0].Bake, j.course.Stages[1].Silence = time.Hour, 10*time.Minute
			},
			want: []string{"testing 2 08:00 to 2 09:01 [test]", "production 2 09:01 to 2 09:24 [a b c]", "2 09:24 "},
		},
		"AtOnce": {
			why:    "Several at once take as long as one.",
			change: func(j *journey) { j.course.Stages[1].MaxConcurrent, j.course.Stages[1].MaxUnavailable = 3, 3 },
			want:   []string{"testing 2 08:00 to 2 08:01 [test]", "production 2 08:01 to 2 08:02 [a b c]", "2 08:02 "},
		},
		"Window": {
			why: "What does not fit into a window waits for the next one, and a stage passes outside of it.",
			change: func(j *journey) {
				j.course.Stages[1].Windows, j.course.Stages[1].Silence = window.Windows{afternoon}, 3*time.Minute
			},
			want: []string{"testing 2 08:00 to 2 08:01 [test]", "production 2 14:00 to 3 14:01 [a b c]", "3 14:01 "},
		},
		"NeverOpen": {
			why:    "A window that never opens is said, and what comes before it is told.",
			change: func(j *journey) { j.course.Stages[1].Windows = window.Windows{never} },
			want:   []string{"testing 2 08:00 to 2 08:01 [test]", "never a: its window never opens"},
		},
		"Checks": {
			why: "Checks are asked when their turn comes, and take their time.",
			change: func(j *journey) {
				j.course.Stages[1].Before, j.course.Stages[1].After = []string{"b"}, []string{"a"}
				j.assumed.Passes = func(_, _ string, after bool) time.Duration {
					if after {
						return 30 * time.Minute
					}
					return 10 * time.Minute
				}
			},
			want: []string{"testing 2 08:00 to 2 08:01 [test]", "production 2 08:11 to 2 08:44 [a b c]", "2 08:44 "},
		},
		"Freeze": {
			why: "A frozen cluster is passed over, and the last one when it thaws.",
			change: func(j *journey) {
				j.assumed.Frozen = func(cluster string, now time.Time) (string, time.Time) {
					if until := start.Add(2 * time.Hour); cluster == "a" && now.Before(until) {
						return "double 11", until
					}
					return "", time.Time{}
				}
			},
			want: []string{"testing 2 08:00 to 2 08:01 [test]", "production 2 08:01 to 2 10:01 [b c a]", "2 10:01 "},
		},
		"FrozenForEver": {
			why: "A freeze that only a commit ends has no end to tell.",
			change: func(j *journey) {
				j.assumed.Frozen = func(cluster string, _ time.Time) (string, time.Time) {
					return map[string]string{"b": "stop"}[cluster], time.Time{}
				}
			},
			want: []string{"testing 2 08:00 to 2 08:01 [test]", "production 2 08:01 to never [a c]", "never b: frozen: stop"},
		},
		"Unchanged": {
			why: "Where it is already, nothing is released; what is paused takes no part.",
			change: func(j *journey) {
				j.clusters["test"] = rollout.Fact{Hash: "new", Healthy: true}
				j.clusters["b"] = rollout.Fact{Hash: "old", Healthy: true, Exempt: "paused"}
			},
			want: []string{"production 2 08:00 to 2 08:02 [a c]", "2 08:02 "},
		},
		"Unknown": {
			why:    "What is not known counts as unavailable, and is what the others wait for.",
			change: func(j *journey) { delete(j.clusters, "b") },
			want:   []string{"testing 2 08:00 to 2 08:01 [test]", "never b: its state is unknown"},
		},
		"Slow": {
			why:    "A timeout that is shorter than what a cluster takes is found.",
			change: func(j *journey) { j.assumed.Takes = 2 * time.Hour },
			want:   []string{"testing 2 08:00 to never [test]", "never stage testing: test did not get there in 1h0m0s"},
		},
		"Years": {
			why: "There is an end to looking ahead.",
			change: func(j *journey) {
				j.course.Stages[1].Silence = 300 * 24 * time.Hour
			},
			want: []string{"testing 2 08:00 to 2 08:01 [test]", "production 2 08:01 to never [a b]", "never it takes more than a year"},
		},
	}
	for name, c := range cases {
		j := newJourney(testing, production)
		c.change(j)
		if diff := cmp.Diff(c.want, says(rollout.Estimate(j.course, j.clusters, j.assumed))); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", name, c.why, diff)
		}
	}
}

// BenchmarkEstimate: a stage of 300 clusters, one after the other.
func BenchmarkEstimate(b *testing.B) {
	s := rollout.Stage{Name: "production", MaxConcurrent: 1, MaxUnavailable: 1, Silence: time.Minute, Timeout: time.Hour}
	for i := range 300 {
		s.Clusters = append(s.Clusters, fmt.Sprintf("prod-%03d", i))
	}
	j := newJourney(s)
	for b.Loop() {
		if f := rollout.Estimate(j.course, j.clusters, j.assumed); f.Ends.IsZero() {
			b.Fatal(f.Because)
		}
	}
}
