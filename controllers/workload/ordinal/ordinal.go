// Package ordinal says which ordinals the pods of a StatefulSet have.
package ordinal

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// Set is the wanted ordinals of a StatefulSet: as many numbers from its start on as it has replicas,
// without the reserved ones. The position of an ordinal is its index among them.
type Set struct {
	start, count int
	reserved     []span // from start on, sorted, apart from each other
}

// span is a range of ordinals, both ends included. before is how many reserved ordinals are in
// earlier spans.
type span struct{ from, to, before int }

// Parse returns the ordinals of a spec. It returns a [field.Error] for a negative number, a range that
// is not a-b with a at most b, or ordinals beyond the largest number of 32 bits.
func Parse(s *v1beta1.StatefulSetSpec) (Set, *field.Error) {
	spec := field.NewPath("spec")
	o := Set{count: 1}
	if s.Replicas != nil {
		o.count = max(int(*s.Replicas), 0)
	}
	if s.Ordinals != nil {
		o.start = int(s.Ordinals.Start)
	}
	if o.start < 0 {
		return o, field.Invalid(spec.Child("ordinals", "start"), o.start, "must be greater than or equal to 0")
	}
	var spans []span
	for i, r := range s.ReserveOrdinals {
		from, to, ok := parseReserved(r)
		if !ok {
			return o, field.Invalid(spec.Child("reserveOrdinals").Index(i), r.String(), fmt.Sprintf("must be a number from 0 to %d, or a range of them as 2-5", math.MaxInt32))
		}
		if from = max(from, o.start); from <= to {
			spans = append(spans, span{from: from, to: to})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for _, s := range spans {
		last := len(o.reserved) - 1
		switch {
		case last < 0:
			o.reserved = append(o.reserved, s)
		case s.from <= o.reserved[last].to+1:
			o.reserved[last].to = max(o.reserved[last].to, s.to)
		default:
			s.before = o.reserved[last].before + o.reserved[last].size()
			o.reserved = append(o.reserved, s)
		}
	}
	if o.count > 0 && o.At(o.count-1) > math.MaxInt32 {
		return o, field.Invalid(spec.Child("reserveOrdinals"), len(s.ReserveOrdinals), fmt.Sprintf("the ordinals would end at %d, and at most %d is possible", o.At(o.count-1), math.MaxInt32))
	}
	return o, nil
}

// parseReserved parses a reserved ordinal, or a range as "2-5".
func parseReserved(r intstr.IntOrString) (from, to int, ok bool) {
	if r.Type == intstr.Int {
		return int(r.IntVal), int(r.IntVal), r.IntVal >= 0
	}
	a, b, isRange := strings.Cut(r.StrVal, "-")
	from, errFrom := strconv.Atoi(a)
	to, errTo := strconv.Atoi(b)
	return from, to, isRange && errFrom == nil && errTo == nil && 0 <= from && from <= to && to <= math.MaxInt32
}

// Count returns how many ordinals are wanted.
func (o Set) Count() int { return o.count }

func (s span) size() int { return s.to - s.from + 1 }

// Position returns the position of an ordinal; false if it is not wanted.
func (o Set) Position(n int) (int, bool) {
	at := n - o.start
	if i := sort.Search(len(o.reserved), func(i int) bool { return o.reserved[i].from > n }) - 1; i >= 0 {
		if n <= o.reserved[i].to {
			return 0, false
		}
		at -= o.reserved[i].before + o.reserved[i].size()
	}
	return at, at >= 0 && at < o.count
}

// At returns the ordinal at a position.
func (o Set) At(position int) int {
	// The spans that begin at or before it are those whose free ordinals before them are not enough.
	i := sort.Search(len(o.reserved), func(i int) bool { return o.reserved[i].from-o.start-o.reserved[i].before > position })
	n := o.start + position
	if i > 0 {
		n += o.reserved[i-1].before + o.reserved[i-1].size()
	}
	return n
}

// Of returns the ordinal of a pod of a StatefulSet; false if its name is not SET-ORDINAL.
func Of(set, pod string) (int, bool) {
	text, ok := strings.CutPrefix(pod, set+"-")
	n, err := strconv.ParseInt(text, 10, 32)
	return int(n), ok && err == nil && n >= 0 && strconv.FormatInt(n, 10) == text
}
