package podorder_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
)

// labelled are pods with the names and labels of a text: "a:zone=1,tier=x b".
func labelled(text string) []*corev1.Pod {
	var out []*corev1.Pod
	for word := range strings.FieldsSeq(text) {
		name, rest, _ := strings.Cut(word, ":")
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		for pair := range strings.SplitSeq(rest, ",") {
			if key, value, ok := strings.Cut(pair, "="); ok {
				p.Labels[key] = value
			}
		}
		out = append(out, p)
	}
	return out
}

func namesOf(pods []*corev1.Pod) string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

// Pods are updated by what their labels say, and as they came where those say nothing.
func TestPriority(t *testing.T) {
	t.Parallel()
	weigh := func(n int32, pairs ...string) v1beta1.UpdatePriorityWeightTerm {
		s := metav1.LabelSelector{MatchLabels: map[string]string{}}
		for _, p := range pairs {
			key, value, _ := strings.Cut(p, "=")
			s.MatchLabels[key] = value
		}
		return v1beta1.UpdatePriorityWeightTerm{Weight: n, MatchSelector: s}
	}
	order := func(keys ...string) *v1beta1.UpdatePriorityStrategy {
		s := &v1beta1.UpdatePriorityStrategy{}
		for _, k := range keys {
			s.OrderPriority = append(s.OrderPriority, v1beta1.UpdatePriorityOrderTerm{OrderedKey: k})
		}
		return s
	}
	for name, c := range map[string]struct {
		why        string
		strategy   *v1beta1.UpdatePriorityStrategy
		pods, want string
	}{
		"None":      {"Without a strategy the order stays.", nil, "a b:zone=9 c", "a b c"},
		"Weight":    {"The heaviest goes first.", &v1beta1.UpdatePriorityStrategy{WeightPriority: []v1beta1.UpdatePriorityWeightTerm{weigh(20, "test=yes"), weigh(10, "small=yes")}}, "a b:small=yes c:test=yes", "c b a"},
		"Sum":       {"Weights add up.", &v1beta1.UpdatePriorityStrategy{WeightPriority: []v1beta1.UpdatePriorityWeightTerm{weigh(20, "test=yes"), weigh(15, "x=1"), weigh(10, "y=1")}}, "a:test=yes b:x=1,y=1", "b a"},
		"Stable":    {"Equal ones stay as they were.", &v1beta1.UpdatePriorityStrategy{WeightPriority: []v1beta1.UpdatePriorityWeightTerm{weigh(20, "test=yes")}}, "a b:test=yes c d:test=yes", "b d a c"},
		"Order":     {"The highest number goes first, and 10 is more than 9.", order("zone"), "a:zone=z9 b:zone=z10 c:zone=1", "b a c"},
		"NoNumber":  {"It counts as 0, and the label counts.", order("zone"), "a b:zone=east c:zone=0 d:zone=1", "d b c a"},
		"Keys":      {"A label that is named earlier comes first, whatever the numbers.", order("zone", "rack"), "a b:rack=99 c:zone=1 d:rack=100,zone=0", "c d b a"},
		"Huge":      {"A number that is no int64 is larger than others.", order("zone"), "a:zone=9223372036854775806 b:zone=99999999999999999999", "b a"},
		"Both":      {"Weights hold where there are both.", &v1beta1.UpdatePriorityStrategy{OrderPriority: order("zone").OrderPriority, WeightPriority: []v1beta1.UpdatePriorityWeightTerm{weigh(1, "test=yes")}}, "a:zone=9 b:test=yes", "b a"},
		"Everybody": {"An empty selector selects all.", &v1beta1.UpdatePriorityStrategy{WeightPriority: []v1beta1.UpdatePriorityWeightTerm{weigh(5), weigh(1, "test=yes")}}, "a b:test=yes", "b a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pods := labelled(c.pods)
			p, err := podorder.NewPriority(c.strategy)
			if err != nil {
				t.Fatal(err)
			}
			if p.Sort(pods); namesOf(pods) != c.want {
				t.Errorf("%s %s, want %s", c.why, namesOf(pods), c.want)
			}
		})
	}
	broken := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	if _, err := podorder.NewPriority(&v1beta1.UpdatePriorityStrategy{WeightPriority: []v1beta1.UpdatePriorityWeightTerm{{Weight: 1, MatchSelector: broken}}}); err == nil || !strings.HasPrefix(err.Error(), "weightPriority[0].matchSelector: ") {
		t.Errorf("%v", err)
	}
}

// Pods with a label are kept out of the same batch: m has it, u hasn't, in the order in
// which they come to wait.
func TestScatter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why           string
		with, without int // of all pods
		waiting, want string
	}{
		"Documented": {"The 1st, the 6th and the 10th.", 3, 7, "mmmuuuuuuu", "muuuumuuum"},
		"GoesOn":     {"The 1st was updated: the others keep their places.", 3, 7, "mmuuuuuuu", "uuuumuuum"},
		"GoesOnMore": {"Six were.", 3, 7, "muuu", "uuum"},
		"Many":       {"Those without are spread as well.", 7, 3, "mmmmmmmuuu", "mmummummum"},
		"Even":       {"One by one.", 2, 2, "uumm", "muum"},
		"One":        {"There is nothing to keep apart.", 1, 3, "umuu", "umuu"},
		"All":        {"There is nothing to keep them apart by.", 3, 0, "mmm", "mmm"},
		"None":       {"No pod has the label.", 0, 3, "uuu", "uuu"},
		"OutOfOrder": {"Others were updated than it would have chosen.", 3, 7, "mmmuu", "mmuum"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lay := func(letters string) (out []*corev1.Pod) {
				for i, l := range letters {
					p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(string(l), i)}}
					if l == 'm' {
						p.Labels = map[string]string{"foo": "bar"}
					}
					out = append(out, p)
				}
				return out
			}
			waiting := lay(c.waiting)
			all := append(slices.Clone(waiting), lay(strings.Repeat("m", c.with-strings.Count(c.waiting, "m"))+strings.Repeat("u", c.without-strings.Count(c.waiting, "u")))...)
			var got strings.Builder
			for _, p := range podorder.Scatter(waiting, all, []v1beta1.UpdateScatterTerm{{Key: "foo", Value: "bar"}}) {
				got.WriteByte(p.Name[0])
			}
			if got.String() != c.want {
				t.Errorf("%s %s, want %s", c.why, got.String(), c.want)
			}
		})
	}
}

// What fewer pods have is spread exactly, after what more have.
func TestScatterTerms(t *testing.T) {
	t.Parallel()
	all := labelled("a:x=1,y=1 b:x=1,y=1 c:x=1 d e f")
	terms := []v1beta1.UpdateScatterTerm{{Key: "y", Value: "1"}, {Key: "x", Value: "1"}}
	if got, want := namesOf(podorder.Scatter(all, all, terms)), "a d e f c b"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := namesOf(all); got != "a b c d e f" {
		t.Errorf("the argument became %s", got)
	}
}

// Whatever labels the pods have, and whichever pods wait: no pod is lost, and pods with the same
// label value keep their order.
func TestScatterLosesNoPod(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var all, waiting []*corev1.Pod
		for i := range rapid.IntRange(0, 12).Draw(rt, "pods") {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%02d", i), Labels: map[string]string{"x": rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "x")}}}
			if all = append(all, p); rapid.Bool().Draw(rt, "waits") {
				waiting = append(waiting, p)
			}
		}
		got := podorder.Scatter(waiting, all, []v1beta1.UpdateScatterTerm{{Key: "x", Value: "1"}})
		if sorted := slices.Sorted(slices.Values(strings.Fields(namesOf(got)))); strings.Join(sorted, " ") != namesOf(waiting) {
			rt.Fatalf("%s became %s", namesOf(waiting), namesOf(got))
		}
		for _, x := range []string{"1", "2"} {
			var of []string
			for _, p := range got {
				if p.Labels["x"] == x {
					of = append(of, p.Name)
				}
			}
			if !slices.IsSorted(of) {
				rt.Fatalf("%s became %s", namesOf(waiting), namesOf(got))
			}
		}
	})
}
