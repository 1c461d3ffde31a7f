package promotion_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/controllers/promotion"
	"github.com/keelson-io/keelson/registry"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// in is a range of versions.
func in(t interface{ Fatal(args ...any) }, text string) func(string) bool {
	c, err := semver.NewConstraint(text)
	if err != nil {
		t.Fatal(err)
	}
	return func(version string) bool {
		v, err := semver.StrictNewVersion(strings.TrimPrefix(version, "v"))
		return err == nil && c.Check(v)
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const newest, passed = "it is the newest tag in the range", "it passed stage testing at 2026-03-01T12:00:00Z"
	published := []string{"v1.0.0", "v1.1.0", "v1.2.0-rc.1", "v1.2.0", "v1.3.0-rc.1", "v2.0.0"}
	cases := map[string]struct {
		why    string
		change func(*promotion.Facts)
		// want by stage: FROM → TO, or FROM; and because.
		want []string
	}{
		"Newest": {
			why: "Testing has the newest tag in its range, and canary what passed there: both take one step.", change: func(*promotion.Facts) {},
			want: []string{"testing v1.1.0 → v1.2.0: " + newest, "canary v1.0.0 → v1.1.0: " + passed, "production v1.0.0: "},
		},
		"PreRelease": {
			why:    "A range that names a pre-release takes them.",
			change: func(f *promotion.Facts) { f.Stages[0].Takes = in(t, ">=1.0.0-0 <2.0.0-0") },
			want:   []string{"testing v1.1.0 → v1.3.0-rc.1: " + newest, "canary v1.0.0 → v1.1.0: " + passed, "production v1.0.0: "},
		},
		"OutOfRange": {
			why: "What is tried in testing may not be for production, ever.",
			change: func(f *promotion.Facts) {
				f.Stages[0].Version, f.Stages[0].Takes = "v1.3.0-rc.1", in(t, ">=1.0.0-0 <2.0.0-0")
			},
			want: []string{"testing v1.3.0-rc.1: ", "canary v1.0.0: v1.3.0-rc.1 is not in the range", "production v1.0.0: "},
		},
		"NotPassed": {
			why: "What has not passed goes nowhere; testing may move on.",
			change: func(f *promotion.Facts) {
				f.Stages[0].Passed, f.Stages[0].NotPassed = time.Time{}, "t1 does not have it yet"
			},
			want: []string{"testing v1.1.0 → v1.2.0: " + newest, "canary v1.0.0: v1.1.0 has not passed stage testing: t1 does not have it yet", "production v1.0.0: "},
		},
		"Halted": {
			why:    "A person, a failure or a change on its way stops all stages.",
			change: func(f *promotion.Facts) { f.Halt = "it is paused by kim: INC-7" },
			want:   []string{"testing v1.1.0: v1.2.0 waits: it is paused by kim: INC-7", "canary v1.0.0: v1.1.0 waits: it is paused by kim: INC-7", "production v1.0.0: "},
		},
		"Stuck": {
			why:    "A stage that can't be changed is said to be, and stops no other.",
			change: func(f *promotion.Facts) { f.Stages[1].Stuck = "frozen on c1: Black Friday" },
			want:   []string{"testing v1.1.0 → v1.2.0: " + newest, "canary v1.0.0: frozen on c1: Black Friday", "production v1.0.0: "},
		},
		"ByHand": {
			why:    "A stage that people promote is followed all the same.",
			change: func(f *promotion.Facts) { f.Stages[0].Takes = nil },
			want:   []string{"canary v1.0.0 → v1.1.0: " + passed, "production v1.0.0: "},
		},
		"Ahead": {
			why:    "Whoever went ahead by hand is not set back.",
			change: func(f *promotion.Facts) { f.Stages[1].Version = "v1.2.0" },
			want:   []string{"testing v1.1.0 → v1.2.0: " + newest, "canary v1.2.0: ", "production v1.0.0: v1.2.0 has not passed stage canary: it has not passed"},
		},
		"Empty": {
			why: "Where no cluster has it, nothing has passed: a stage is not skipped.",
			change: func(f *promotion.Facts) {
				f.Stages[0].Version, f.Stages[0].Stuck = "", "no cluster of the stage has it"
			},
			want: []string{"testing : no cluster of the stage has it", "canary v1.0.0: nothing can pass stage testing: no version stands there", "production v1.0.0: "},
		},
		"Head": {
			why:    "A branch is no version.",
			change: func(f *promotion.Facts) { f.Stages[0].Version, f.Stages[0].Stuck = "HEAD", "it follows the branch" },
			want:   []string{"testing HEAD: it follows the branch", "canary v1.0.0: stage testing follows the branch, and HEAD is no version", "production v1.0.0: "},
		},
		"NoneInRange": {
			why:    "Without a tag there is nothing to follow.",
			change: func(f *promotion.Facts) { f.Published = f.Published[4:5] },
			want:   []string{"testing v1.1.0: ", "canary v1.0.0 → v1.1.0: " + passed, "production v1.0.0: "},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := promotion.Facts{Component: "web", Published: published, Stages: []promotion.StageFacts{
				{Name: "testing", Takes: in(t, "<2"), Version: "v1.1.0", Passed: noon},
				{Name: "canary", Takes: in(t, "*"), Version: "v1.0.0", NotPassed: "it has not passed"},
				{Name: "production", Takes: in(t, "*"), Version: "v1.0.0", Passed: noon},
			}}
			tc.change(&f)
			var got []string
			for _, s := range promotion.Decide(f) {
				line := s.Stage + " " + s.From
				if s.To != "" {
					line += " → " + s.To
				}
				got = append(got, line+": "+s.Because)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tc.why, diff)
			}
		})
	}
}

// What was proposed is given up when it can't be promoted there any more, and not since it
// can't be now, or since something is not known.
func TestOutdated(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, version string
		change       func(*promotion.Facts)
		want         string
	}{
		"Waits": {"Neither a halt nor evidence that is gone says that it was wrong.", "v1.2.0", func(f *promotion.Facts) {
			f.Halt, f.Stages[0].NotPassed, f.Stages[1].Stuck = "paused", "t1 is not healthy", "frozen"
		}, ""},
		"TestingWentOn": {"A newer one that has not passed yet does not take its place.", "v1.1.0", func(*promotion.Facts) {}, ""},
		"Unknown":       {"A stage without a place says nothing.", "v1.2.0", func(f *promotion.Facts) { f.Stages[1].Version = "" }, ""},
		"UnknownBefore": {"Nor does one before it.", "v1.2.0", func(f *promotion.Facts) { f.Stages[0].Version = "" }, ""},
		"Done":          {"It stands there.", "v1.0.0", func(*promotion.Facts) {}, "the stage has v1.0.0"},
		"Ahead":         {"A later one stands there.", "v1.0.0", func(f *promotion.Facts) { f.Stages[1].Version = "v1.2.0" }, "the stage has v1.2.0"},
		"Branch":        {"It follows the branch now.", "v1.2.0", func(f *promotion.Facts) { f.Stages[1].Version = "HEAD" }, "the stage has HEAD"},
		"Range":         {"The range was made smaller.", "v1.2.0", func(f *promotion.Facts) { f.Stages[1].Takes = in(t, "<1.2") }, "v1.2.0 is not in the range any more"},
		"Tag":           {"It can't be had.", "v1.1.1", func(*promotion.Facts) {}, "v1.1.1 has no tag any more"},
		"Back":          {"It was taken back where it had passed.", "v1.2.0", func(f *promotion.Facts) { f.Stages[0].Version = "v1.1.0" }, "stage testing went back to v1.1.0"},
	}
	for name, tc := range cases {
		f := promotion.Facts{Published: []string{"v1.0.0", "v1.1.0", "v1.2.0"}, Stages: []promotion.StageFacts{
			{Name: "testing", Takes: in(t, "*"), Version: "v1.2.0"}, {Name: "production", Takes: in(t, "*"), Version: "v1.0.0"},
		}}
		tc.change(&f)
		if got := f.Outdated("production", tc.version); got != tc.want {
			t.Errorf("%s: %s got %q, want %q", name, tc.why, got, tc.want)
		}
	}
}

// Whatever is known, nothing is promoted past a stage that has not passed with it, set
// back, or promoted twice; and nothing while something is wrong.
func TestDecideNever(t *testing.T) {
	t.Parallel()
	versions := []string{"", "HEAD", "v0.9.0", "v1.0.0", "v1.1.0-rc.1", "v1.1.0", "v1.10.0", "v2.0.0"}
	ranges := []string{"", "*", "~1.1", ">=1.0.0-0", "<1"}
	rapid.Check(t, func(t *rapid.T) {
		f := promotion.Facts{Component: "web", Published: rapid.SampledFrom([][]string{nil, versions[2:4], versions[3:], versions[2:]}).Draw(t, "published")}
		f.Halt = rapid.SampledFrom([]string{"", "", "paused"}).Draw(t, "halt")
		for i := range rapid.IntRange(1, 5).Draw(t, "stages") {
			s := promotion.StageFacts{Name: fmt.Sprint(i), Version: rapid.SampledFrom(versions).Draw(t, "version"), NotPassed: "not yet"}
			if text := rapid.SampledFrom(ranges).Draw(t, "range"); text != "" {
				s.Takes = in(t, text)
			}
			if rapid.Bool().Draw(t, "passed") {
				s.Passed, s.NotPassed = noon, ""
			}
			if s.Version == "" || s.Version == "HEAD" || rapid.IntRange(0, 4).Draw(t, "stuck") == 0 {
				s.Stuck = "frozen"
			}
			f.Stages = append(f.Stages, s)
		}
		steps := promotion.Decide(f)
		seen, after := map[string]bool{}, f
		after.Stages = slices.Clone(f.Stages)
		for _, step := range steps {
			i := slices.IndexFunc(f.Stages, func(s promotion.StageFacts) bool { return s.Name == step.Stage })
			stage := f.Stages[i]
			switch {
			case seen[step.Stage]:
				t.Fatalf("stage %s takes two steps", step.Stage)
			case step.To == "":
			case f.Halt != "", stage.Stuck != "", stage.Takes == nil, !stage.Takes(step.To):
				t.Fatalf("%+v may not be, of %+v", step, f)
			case step.From != stage.Version || !registry.Later(step.To, step.From):
				t.Fatalf("%+v goes back", step)
			case i == 0 && !slices.Contains(f.Published, step.To):
				t.Fatalf("%+v is not published", step)
			case i > 0 && (f.Stages[i-1].Version != step.To || f.Stages[i-1].Passed.IsZero()):
				t.Fatalf("%+v has not passed the stage before: %+v", step, f.Stages[i-1])
			}
			seen[step.Stage] = true
			if step.To != "" { // now git says so, and nothing is known of that yet
				after.Stages[i].Version, after.Stages[i].Passed, after.Stages[i].NotPassed = step.To, time.Time{}, "not yet"
			}
		}
		// What was done is not done again, and is no evidence for more.
		for _, step := range promotion.Decide(after) {
			if was := steps[slices.IndexFunc(steps, func(s promotion.Step) bool { return s.Stage == step.Stage })]; step.To != "" && was.To != "" {
				t.Fatalf("%+v, and at once %+v", was, step)
			}
		}
	})
}
