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

// Priority is an [v1beta1.UpdatePriorityStrategy] that was read. The zero Priority
// prefers nobody.
type Priority struct {
	weights []weight
	keys    []string
}

type weight struct {
	of      int64
	selects labels.Selector
}

// NewPriority reads a strategy; nil: none. Where there are weights and orders the
// weights hold, as with OpenKruise.
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

// Sort puts those pods first that are updated first. Pods of the same priority keep
// their order.
func (p Priority) Sort(pods []*corev1.Pod) {
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		levelA, orderA := p.of(a)
		levelB, orderB := p.of(b)
		return cmp.Or(cmp.Compare(levelB, levelA), cmp.Compare(orderB, orderA))
	})
}

// of is the sum of the weights that select a pod; or which label it has, more for one
// that is named earlier, and the number in that.
func (p Priority) of(pod *corev1.Pod) (level, order int64) {
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

// numberAtEnd is that in "zone-12"; 0 where there is none.
func numberAtEnd(s string) int64 {
	digits := s[len(strings.TrimRight(s, "0123456789")):]
	if digits == "" {
		return 0
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return math.MaxInt64 // larger than all that can be told apart
	}
	return n
}

// Scatter returns the pods that wait for their update in an order that keeps those with
// a label of the terms apart: one of them first, one last, and the others spread evenly
// between. All are the pods of the workload, those that wait among them, so that a
// rollout goes on as it began: of ten pods, three with the label, the 1st, the 6th and
// the 10th have it, however many of them were updated already.
//
// Where there are several terms, that which most pods have is done first, so that it
// yields to the others.
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
		if with := count(t); with > 1 && with < len(all) { // or there is nothing to spread
			scatter(waiting, t, pattern(with, len(all)-with))
		}
	}
	return waiting
}

func has(p *corev1.Pod, t v1beta1.UpdateScatterTerm) bool {
	value, has := p.Labels[t.Key]
	return has && value == t.Value
}

// scatter lays pods out in a pattern of those with a label, true, and those without.
// What the pattern has more was updated before, so it is filled from its end.
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

// pattern spreads those with a label among those without: groups that begin with one
// with it, as alike as can be, and one with it at the end.
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

// part is the i-th of as many parts of a number as there are groups: the first ones
// take what is left over.
func part(n, groups, i int) int {
	if i < n%groups {
		return n/groups + 1
	}
	return n / groups
}
