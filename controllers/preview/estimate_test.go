package preview_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/controllers/preview"
)

const (
	stages = header + `Pipeline
stages:
- name: first
  clusterSelector: {matchLabels: {name: a}}
  bake: 1h
  after: [{name: errors, cel: "true", for: 10m}, {name: on-call, approval: {}}]
- name: others
  clusterSelector: {}
  silence: 10m
  windows: [{cron: 0 9 * * *, duration: 8h, timeZone: Europe/Berlin}]
  before: [{name: b, cel: "true"}]
`
	freeze = header + "Freeze\nclusterSelector: {matchLabels: {name: c}}\nuntil: 2026-03-02T12:00:00Z\nreason: the fair\n"
)

// estimated is an estimate, a line each.
func estimated(p *preview.Preview) []string {
	out := []string{}
	if p.Estimate == nil {
		return out
	}
	for i := range p.Estimate.Rollouts {
		r := &p.Estimate.Rollouts[i]
		out = append(out, r.Title()+": "+r.Ending())
		for j := range r.Stages {
			out = append(out, "  "+r.Stages[j].String())
		}
	}
	return out
}

// TestEstimate: who gets a change when, by the rules that the rollout itself goes by.
func TestEstimate(t *testing.T) {
	t.Parallel()
	const name, others = "first: 1 cluster (a)", "window 0 9 * * * for 8h0m0s Europe/Berlin; checks before it: b"
	cases := map[string]struct {
		why    string
		before func(f *fleet) // in both revisions
		change func(f *fleet)
		want   []string
	}{
		"Pipeline": {
			why: "Stages in order, with what they wait for.", before: func(*fleet) {},
			want: []string{
				"web by pipeline standard: complete at 2026-03-02 09:13 UTC at the earliest",
				"  first: 1 cluster (a); 2026-03-02 08:00 UTC to 2026-03-02 09:01 UTC; checks after it: errors, on-call",
				"  others: 2 clusters (b, c); 2026-03-02 09:01 UTC to 2026-03-02 09:13 UTC; " + others,
			},
		},
		"Freeze": {
			why:    "A frozen cluster gets it when the freeze ends.",
			before: func(f *fleet) { f.write("freezes/fair.yaml", freeze) },
			want: []string{
				"web by pipeline standard: complete at 2026-03-02 12:01 UTC at the earliest",
				"  first: 1 cluster (a); 2026-03-02 08:00 UTC to 2026-03-02 09:01 UTC; checks after it: errors, on-call",
				"  others: 2 clusters (b, c); 2026-03-02 09:01 UTC to 2026-03-02 12:01 UTC; " + others,
			},
		},
		"Stop": {
			why: "A freeze without an end: what does not come is said, and why.",
			before: func(f *fleet) {
				f.write("freezes/stop.yaml", strings.Replace(freeze, "until: 2026-03-02T12:00:00Z\n", "", 1))
			},
			want: []string{
				"web by pipeline standard: no end to tell: c: frozen: the fair (freezes/stop.yaml)",
				"  first: 1 cluster (a); 2026-03-02 08:00 UTC to 2026-03-02 09:01 UTC; checks after it: errors, on-call",
				"  others: 2 clusters (b, c); from 2026-03-02 09:01 UTC; " + others,
			},
		},
		"Part": {
			why:    "A stage in which nothing changes has nothing to wait for.",
			before: func(f *fleet) { f.values("a", "values: {replicas: 7, tag: v0}\n") },
			change: func(f *fleet) { f.edit("layers/10-base.yaml", "tag: v1", "tag: v2") },
			want: []string{
				"web by pipeline standard: complete at 2026-03-02 08:12 UTC at the earliest",
				"  others: 2 clusters (b, c); 2026-03-02 08:00 UTC to 2026-03-02 08:12 UTC; " + others,
			},
		},
		"Paused": {
			why:    "A paused cluster takes no part.",
			before: func(f *fleet) { f.values("b", "paused: true\n") },
			want: []string{
				"web by pipeline standard: complete at 2026-03-02 09:02 UTC at the earliest",
				"  first: 1 cluster (a); 2026-03-02 08:00 UTC to 2026-03-02 09:01 UTC; checks after it: errors, on-call",
				"  others: 1 cluster (c); 2026-03-02 09:01 UTC to 2026-03-02 09:02 UTC; " + others,
			},
		},
		"Blocked": {
			why:    "A cluster that is broken in git is waited for.",
			before: func(f *fleet) { f.values("a", "vales: {}\n") },
			want: []string{
				"web by pipeline standard: no end to tell: a: its state is unknown",
				"  others: 2 clusters (b, c); " + others,
			},
		},
		"AtOnce": {
			why: "Without a pipeline a freeze is all that there is.",
			before: func(f *fleet) {
				f.write("fleet.yaml", header+"Fleet\nname: test\n")
				f.write("freezes/fair.yaml", freeze)
			},
			want: []string{
				"web, at once: complete at 2026-03-02 12:01 UTC at the earliest",
				"  3 clusters (a, b, c); 2026-03-02 08:00 UTC to 2026-03-02 12:01 UTC",
			},
		},
		"Nothing": {
			why: "Where nothing stands between a change and a cluster, there is nothing to tell.",
			before: func(f *fleet) {
				f.write("fleet.yaml", header+"Fleet\nname: test\n")
				f.remove("pipelines/standard.yaml")
			},
			want: []string{},
		},
		"NoChange": {
			why: "Nor where nothing changes.", before: func(*fleet) {},
			change: func(f *fleet) { f.write("README.md", "x") }, want: []string{},
		},
		"Held": {
			why: "An end that only an approval brings is not told of without it.", before: func(*fleet) {},
			change: func(f *fleet) { f.edit("layers/10-base.yaml", "app: web", "app: api") },
			want: []string{
				"web by pipeline standard: 3 changes are held until git approves; with the approval complete at 2026-03-02 09:13 UTC at the earliest",
				"  first: 1 cluster (a); 2026-03-02 08:00 UTC to 2026-03-02 09:01 UTC; checks after it: errors, on-call",
				"  others: 2 clusters (b, c); 2026-03-02 09:01 UTC to 2026-03-02 09:13 UTC; " + others,
			},
		},
		"Denied": {
			why: "What a rule denies has no end.",
			before: func(f *fleet) {
				f.write("fleet.yaml", header+"Fleet\nname: test\npipeline: standard\ndanger: [{name: pinned, path: .spec.replicas, effect: deny, because: x}]\n")
			},
			change: func(f *fleet) { f.edit("layers/10-base.yaml", "replicas: 2", "replicas: 4") },
			want: []string{
				"web by pipeline standard: no end to tell: a danger rule denies a change, which no approval lifts",
				"  first: 1 cluster (a); 2026-03-02 08:00 UTC to 2026-03-02 09:01 UTC; checks after it: errors, on-call",
				"  others: 2 clusters (b, c); 2026-03-02 09:01 UTC to 2026-03-02 09:13 UTC; " + others,
			},
		},
		"Together": {
			why: "Components that go the same way are told of once.",
			before: func(f *fleet) {
				f.component("api", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: api}\ndata: {a: {{ .Values.a | quote }}}\n")
				f.write("layers/20-api.yaml", header+"Layer\nclusterSelector: {}\ncomponents:\n  api: {version: HEAD, values: {a: v1}}\n")
			},
			change: func(f *fleet) {
				f.edit("layers/10-base.yaml", "tag: v1", "tag: v2")
				f.edit("layers/20-api.yaml", "a: v1", "a: v2")
			},
			want: []string{
				"api and 1 more by pipeline standard: complete at 2026-03-02 09:13 UTC at the earliest",
				"  first: 1 cluster (a); 2026-03-02 08:00 UTC to 2026-03-02 09:01 UTC; checks after it: errors, on-call",
				"  others: 2 clusters (b, c); 2026-03-02 09:01 UTC to 2026-03-02 09:13 UTC; " + others,
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "a", "b", "c")
			f.write("fleet.yaml", header+"Fleet\nname: test\npipeline: standard\n")
			f.write("pipelines/standard.yaml", stages)
			c.before(f)
			f.commit()
			if c.change == nil {
				c.change = func(f *fleet) { f.edit("layers/10-base.yaml", "tag: v1", "tag: v2") }
			}
			c.change(f)
			if diff := cmp.Diff(c.want, estimated(f.preview())); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.why, diff)
			}
		})
	}
}

// TestEstimateFits: however many ways there are, the comment is as small as it has to be,
// and says what it left out; and what comes from the repository ends no code span.
func TestEstimateFits(t *testing.T) {
	t.Parallel()
	p := &preview.Preview{Estimate: &preview.Estimate{}}
	for i := range 300 {
		r := preview.Rollout{Components: []string{fmt.Sprintf("c%03d", i)}, Pipeline: "standard", Because: "frozen: `x`\n# y " + strings.Repeat("z", 10_000)}
		for j := range 50 {
			r.Stages = append(r.Stages, preview.RolloutStage{Name: fmt.Sprintf("s%d", j), Clusters: []string{"a"}, Windows: []string{strings.Repeat("w", 1000)}})
		}
		p.Estimate.Rollouts = append(p.Estimate.Rollouts, r)
	}
	text := p.Markdown()
	if len(text) > 16_000 || !strings.Contains(text, "stages more") || !strings.Contains(text, "- and 299 more") {
		t.Errorf("%d bytes:\n%.2000s", len(text), text)
	}
	if strings.Contains(text, "\n# y") {
		t.Error("a line of the repository's own")
	}
}
