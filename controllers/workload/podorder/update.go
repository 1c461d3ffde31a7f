package podorder

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// Priority is a parsed [v1beta1.UpdatePriorityStrategy]. The zero Priority gives all pods the
// same priority.
type Priority struct {
	weights []weight
	keys    []string
}

type weight struct {
	of      int64
	selects labels.Selector
}

// NewPriority parses a strategy; nil gives the zero Priority. If there are both weights and
// orders, only the weights are used, as in OpenKruise. It returns an error for an invalid
// selector.
func NewPriority(s *v1beta1.UpdatePriorityStrategy) (Priority, error) {
	var p Priority
	if s == nil {
		return p, nil
	}
	for i, w := range s.WeightPriority {
		selects, err := metav1.LabelSelectorAsSelector(&w.MatchSelector)
		if err != nil {
			return Priority{}, fmt.Errorf("weightPriority[%d].matchSelector: %w", i, err)
		}
		p.weights = append(p.weights, weight{int64(w.Weight), selects})
	}
	if len(p.weights) == 0 {
		for _, o := range s.OrderPriority {
			p.keys = append(p.keys, o.OrderedKey)
		}
	}
	return p, nil
}

// Sort sorts pods in place: the first is updated first. Pods of the same priority keep their
// order.
func (p Priority) Sort(pods []*corev1.Pod) {
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		levelA, orderA := p.rank(a)
		levelB, orderB := p.rank(b)
		return cmp.Or(cmp.Compare(levelB, levelA), cmp.Compare(orderB, orderA))
	})
}

// rank returns the sum of the weights that select a pod. With orders, level is higher for an
// earlier label, and order is the number at the end of its value.
func (p Priority) rank(pod *corev1.Pod) (level, order int64) {
	for _, w := range p.weights {
		if w.selects.Matches(labels.Set(pod.Labels)) {
			level += w.of
		}
	}
	for i, key := range p.keys {
		if value, has := pod.Labels[key]; has {
			return int64(len(p.keys) - i), numberAtEnd(value)
		}
	}
	return level, 0
}

// numberAtEnd returns the number at the end of a string, such as 12 in "zone-12"; 0 if there is
// none.
func numberAtEnd(s string) int64 {
	digits := s[len(strings.TrimRight(s, "0123456789")):]
	if digits == "" {
		return 0
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return math.MaxInt64 // it overflows: sort it as the largest
	}
	return n
}

// Scatter returns the waiting pods in an order that spreads pods with a label of the terms. One
// of them comes first, one last, and the rest evenly between. all are all pods of the workload,
// including the waiting ones, so that a started rollout keeps its pattern. Of ten pods, three
// with the label, the 1st, the 6th and the 10th have the label, however many are updated
// already.
//
// Several terms are applied one after another, the term that most pods match first. Later terms
// therefore take precedence.
func Scatter(waiting, all []*corev1.Pod, terms []v1beta1.UpdateScatterTerm) []*corev1.Pod {
	waiting = slices.Clone(waiting)
	terms = slices.Clone(terms)
	count := func(t v1beta1.UpdateScatterTerm) int {
		n := 0
		for _, p := range all {
			if has(p, t) {
				n++
			}
		}
		return n
	}
	slices.SortStableFunc(terms, func(a, b v1beta1.UpdateScatterTerm) int { return cmp.Compare(count(b), count(a)) })
	for _, t := range terms {
		if with := count(t); with > 1 && with < len(all) { // otherwise there is nothing to spread
			scatter(waiting, t, pattern(with, len(all)-with))
		}
	}
	return waiting
}

func has(p *corev1.Pod, t v1beta1.UpdateScatterTerm) bool {
	value, has := p.Labels[t.Key]
	return has && value == t.Value
}

// scatter arranges pods in a pattern: true is a pod with the label, false a pod without. Surplus
// places at the start of the pattern belong to updated pods, so the pattern is filled from its
// end.
func scatter(pods []*corev1.Pod, t v1beta1.UpdateScatterTerm, pattern []bool) {
	var with, without []*corev1.Pod
	for _, p := range pods {
		if has(p, t) {
			with = append(with, p)
		} else {
			without = append(without, p)
		}
	}
	at := len(pods)
	for _, want := range slices.Backward(pattern) {
		from := &without
		if want {
			from = &with
		}
		if last := len(*from) - 1; last >= 0 {
			at--
			pods[at] = (*from)[last]
			*from = (*from)[:last]
		}
	}
}

// pattern spreads pods with a label among those without. It consists of groups of similar size
// that begin with labelled pods, and one labelled pod at the end.
func pattern(with, without int) []bool {
	var out []bool
	with--
	groups := min(with, without)
	for i := range groups {
		out = append(out, slices.Repeat([]bool{true}, part(with, groups, i))...)
		out = append(out, slices.Repeat([]bool{false}, part(without, groups, i))...)
	}
	return append(out, true)
}

// part returns the size of the i-th of several groups that share n. The first groups take the
// remainder.
func part(n, groups, i int) int {
	if i < n%groups {
		return n/groups + 1
	}
	return n / groups
}
