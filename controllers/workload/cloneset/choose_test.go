package cloneset

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
)

// The strategy orders the pods, but an update in progress continues first. A partition updates the
// pods that the strategy puts first, even if other pods are unavailable.
func TestInTurn(t *testing.T) {
	t.Parallel()
	weights := &v1beta1.UpdatePriorityStrategy{WeightPriority: []v1beta1.UpdatePriorityWeightTerm{{Weight: 5, MatchSelector: metav1.LabelSelector{MatchLabels: map[string]string{"first": "yes"}}}}}
	apart := []v1beta1.UpdateScatterTerm{{Key: "dear", Value: "yes"}}
	for name, c := range map[string]struct {
		why      string
		strategy v1beta1.CloneSetRollingUpdateStrategy
		pods     string // their names, with ! begun, ~ unavailable, ^ updated, * marked, and labels
		forward  int
		back     int
		want     string
	}{
		"None":     {"Without a strategy all pods are candidates, in the order of deletion.", v1beta1.CloneSetRollingUpdateStrategy{}, "a ~b *c", 1, 0, "a b c"},
		"Priority": {"The strategy puts these two first.", v1beta1.CloneSetRollingUpdateStrategy{PriorityStrategy: weights}, "~a b:first c:first", 2, 0, "b c"},
		"Begun":    {"The update of one pod has begun, so it is first.", v1beta1.CloneSetRollingUpdateStrategy{PriorityStrategy: weights}, "a !b c:first", 2, 0, "b c"},
		"Marked":   {"A marked pod is replaced anyway.", v1beta1.CloneSetRollingUpdateStrategy{PriorityStrategy: weights}, "a b:first *c:first", 2, 0, "b a"},
		"Scatter":  {"One pod with the label is first, and one is last.", v1beta1.CloneSetRollingUpdateStrategy{ScatterStrategy: apart}, "a:dear b:dear c d e", 5, 0, "a c d e b"},
		"GoesOn":   {"The first pod was updated, so the others keep their order.", v1beta1.CloneSetRollingUpdateStrategy{ScatterStrategy: apart}, "^a:dear b:dear c d e", 4, 0, "c d e b"},
		"Both":     {"The priority orders the pods before they are scattered.", v1beta1.CloneSetRollingUpdateStrategy{PriorityStrategy: weights, ScatterStrategy: apart}, "a:dear b:dear c d:first e", 5, 0, "a d c e b"},
		"Back":     {"The same order holds for the way back to the old revision.", v1beta1.CloneSetRollingUpdateStrategy{PriorityStrategy: weights}, "^a ^b:first c:first", 0, 1, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &syncContext{set: &v1beta1.CloneSet{}}
			var members []member
			l.set.Spec.UpdateStrategy.RollingUpdate = &c.strategy
			for word := range strings.FieldsSeq(c.pods) {
				flags := word[:strings.IndexFunc(word, func(r rune) bool { return r >= 'a' && r <= 'z' })]
				name, label, _ := strings.Cut(word[len(flags):], ":")
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "yes"}}}
				members = append(members, member{
					name: name, pod: p, available: !strings.ContainsAny(flags, "!~"), begun: strings.Contains(flags, "!"), updated: strings.Contains(flags, "^"), marked: strings.Contains(flags, "*"),
				})
			}
			if got := strings.Join(names(l.inTurn(counts{forward: c.forward, back: c.back}, members)), " "); got != c.want {
				t.Errorf("%s %s, want %s", c.why, got, c.want)
			}
		})
	}
}

// A claim belongs to the pod that it was made for. Then a new pod reuses it, or it is deleted.
func TestShare(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	both, old := fit{current: true, updated: true}, fit{current: true}
	stopping := instance{id: "a", pod: true, ends: now.Add(10 * time.Second), fit: both}
	stoppingOther := stopping
	stoppingOther.fit = fit{}
	for name, c := range map[string]struct {
		why   string
		is    instance
		reuse bool
		want  shares
	}{
		"Used":         {"Its pod uses the claim.", instance{id: "a", pod: true, fit: both}, true, shares{}},
		"Left":         {"Its pod is gone.", instance{id: "a", fit: both}, false, shares{unneeded: []string{"a"}}},
		"Free":         {"A new pod can reuse the claim.", instance{id: "a", fit: both}, true, shares{free: []freeClaims{{"a", both}}}},
		"Deleted":      {"One of its claims is being deleted, so the others are deleted too.", instance{id: "a", deleted: true, fit: both}, true, shares{unneeded: []string{"a"}}},
		"Stopping":     {"The pod that ends still uses the claim.", stopping, false, shares{}},
		"FreeSoon":     {"A new pod waits for the claim.", stopping, true, shares{waits: map[fit]int{both: 1}, after: 40 * time.Second}},
		"NeverFree":    {"A claim is being deleted, so the claims are not reused.", instance{id: "a", pod: true, ends: stopping.ends, deleted: true, fit: both}, true, shares{}},
		"StillStops":   {"Its kubelet is late.", instance{id: "a", pod: true, ends: now.Add(-20 * time.Second), fit: both}, true, shares{waits: map[fit]int{both: 1}, after: 10 * time.Second}},
		"FitsOld":      {"Only pods of the current revision can reuse the claim.", instance{id: "a", fit: old}, true, shares{free: []freeClaims{{"a", old}}}},
		"Unfit":        {"The claim fits no new pod.", instance{id: "a"}, true, shares{unneeded: []string{"a"}}},
		"UnfitSoon":    {"No new pod waits for a claim that fits none.", stoppingOther, true, shares{}},
		"NeverStopped": {"Its node may be lost: the new pod does not wait forever.", instance{id: "a", pod: true, ends: now.Add(-30 * time.Second), fit: both}, true, shares{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, share([]instance{c.is}, c.reuse, now), cmp.AllowUnexported(shares{}, freeClaims{}, fit{})); diff != "" {
				t.Errorf("%s -want +got:\n%s", c.why, diff)
			}
		})
	}
	later := instance{id: "b", pod: true, ends: now.Add(time.Minute), fit: both}
	if got := share([]instance{later, stopping}, true, now); got.waits[both] != 2 || got.after != 40*time.Second {
		t.Errorf("the one that ends first: %+v", got)
	}
	for _, c := range []struct{ waits, free, n, want int }{{0, 0, 3, 3}, {1, 0, 3, 2}, {2, 0, 1, 0}, {1, 1, 1, 1}, {1, 1, 3, 2}, {5, 2, 3, 2}} {
		s, got := shares{waits: map[fit]int{both: c.waits}}, counts{createNew: c.n}
		for range c.free {
			s.free = append(s.free, freeClaims{fit: both})
		}
		if waits := s.limit(&got); got.createNew != c.want || waits != (c.want < c.n) {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// A new pod waits only for claims that fit its revision, and leaves claims that fit another one to pods of
// that one.
func TestShareByRevision(t *testing.T) {
	t.Parallel()
	old, updated, both := fit{current: true}, fit{updated: true}, fit{current: true, updated: true}
	free := func(all ...fit) []freeClaims {
		var out []freeClaims
		for i, f := range all {
			out = append(out, freeClaims{fmt.Sprint(i), f})
		}
		return out
	}
	for name, c := range map[string]struct {
		why    string
		is     shares
		counts counts
		want   counts
		reused string // the IDs of the old pods, and then of the new ones
	}{
		"OtherWaits":  {"The claims that become free do not fit the new pod.", shares{waits: map[fit]int{old: 1}}, counts{createNew: 1}, counts{createNew: 1}, "-"},
		"OwnWaits":    {"They fit the old pod.", shares{waits: map[fit]int{old: 1}}, counts{createOld: 1, createNew: 1}, counts{createNew: 1}, "-"},
		"FreeOfOther": {"The free claims do not fit the new pod, and others that fit become free soon.", shares{free: free(old), waits: map[fit]int{updated: 1}}, counts{createNew: 1}, counts{}, ""},
		"OwnFirst":    {"The old pod leaves the claims that fit both to the new pod.", shares{free: free(both, old)}, counts{createOld: 1, createNew: 1}, counts{createOld: 1, createNew: 1}, "1 0"},
		"BothForOne":  {"Claims are reused once.", shares{free: free(both)}, counts{createOld: 1, createNew: 1}, counts{createOld: 1, createNew: 1}, "0 -"},
		"Unfit":       {"A new pod gets new claims rather than old ones.", shares{free: free(old, old)}, counts{createNew: 2}, counts{createNew: 2}, "- -"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := c.counts
			if waits := c.is.limit(&got); got != c.want || waits != (c.want != c.counts) {
				t.Errorf("%s %+v, want %+v; some wait: %v", c.why, got, c.want, waits)
			}
			l := &syncContext{Reconciler: &Reconciler{Reconciler: &base.Reconciler{API: fake.NewClientset()}}, set: &v1beta1.CloneSet{}, roster: newRoster()}
			l.roster.claims.shares = c.is
			ids, err := l.newIDs(t.Context(), got)
			if err != nil {
				t.Fatal(err)
			}
			for i, id := range ids {
				if len(id) > 1 {
					ids[i] = "-" // a new one
				}
			}
			if got := strings.Join(ids, " "); got != c.reused {
				t.Errorf("%s It reuses %q, want %q", c.why, got, c.reused)
			}
		})
	}
}

// A selector finds the pods of the template, and not all there are: what it doesn't find
// would be made again for ever.
func TestCheckSelector(t *testing.T) {
	t.Parallel()
	web := map[string]string{"app": "web"}
	for want, selector := range map[string]*metav1.LabelSelector{
		"": {MatchLabels: web}, "spec.selector finds every pod": {}, "spec.selector doesn't find pods of spec.template": {MatchLabels: map[string]string{"app": "db"}},
		`spec.selector: "Near" is not a valid label selector operator`: {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Near"}}},
	} {
		s := &v1beta1.CloneSetSpec{Selector: selector}
		s.Template.Labels = web
		got := ""
		if err := check(s); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
