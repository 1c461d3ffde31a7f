package differ

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"

	smdschema "sigs.k8s.io/structured-merge-diff/v4/schema"

	"github.com/keelson-io/keelson/differ/expr"
)

// Types that API servers may return in another form than they were sent.
const (
	typeQuantity  = "io.k8s.apimachinery.pkg.api.resource.Quantity"
	typeDuration  = "io.k8s.apimachinery.pkg.apis.meta.v1.Duration"
	typeTime      = "io.k8s.apimachinery.pkg.apis.meta.v1.Time"
	typeMicroTime = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime"
)

// comparer compares values by the meaning of their type, also inside atomic lists and maps.
type comparer struct{ schema *smdschema.Schema }

// equal reports whether two values of a type mean the same.
func (c comparer) equal(ref smdschema.TypeRef, a, b any) bool { return c.compare(ref, a, b, false) }

// covers reports whether b is a with additions: b may have struct fields that a lacks. Entries of a
// plain map, such as a label selector, do not count as fields: no API server adds any.
func (c comparer) covers(ref smdschema.TypeRef, a, b any) bool { return c.compare(ref, a, b, true) }

func (c comparer) compare(ref smdschema.TypeRef, a, b any, completed bool) bool {
	if ref.NamedType != nil {
		switch *ref.NamedType {
		case typeQuantity:
			return equalQuantity(a, b)
		case typeDuration:
			return equalBy(parseDuration, a, b)
		case typeTime, typeMicroTime:
			return equalBy(parseTime, a, b)
		}
	}
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && c.compareMaps(ref, a, b, completed)
	case []any:
		b, ok := b.([]any)
		return ok && c.compareLists(ref, a, b, completed)
	}
	return equal(a, b)
}

func (c comparer) compareMaps(ref smdschema.TypeRef, a, b map[string]any, completed bool) bool {
	atom, ok := c.schema.Resolve(ref)
	if !ok || atom.Map == nil {
		return equalMaps(a, b)
	}
	for name, av := range a {
		bv := b[name]
		if av == nil || bv == nil {
			if av != nil || bv != nil {
				return false
			}
			continue
		}
		if !c.compare(fieldType(atom.Map, name), av, bv, completed) {
			return false
		}
	}
	for name, bv := range b {
		if _, both := a[name]; both || bv == nil {
			continue
		}
		if _, declared := atom.FindField(name); !completed || !declared {
			return false
		}
	}
	return true
}

func (c comparer) compareLists(ref smdschema.TypeRef, a, b []any, completed bool) bool {
	atom, ok := c.schema.Resolve(ref)
	if !ok || atom.List == nil {
		return equal(a, b)
	}
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !c.compare(atom.List.ElementType, a[i], b[i], completed) {
			return false
		}
	}
	return true
}

// equalBy compares parsed values. Values that can't be parsed are compared as they are.
func equalBy[T comparable](parse func(any) (T, bool), a, b any) bool {
	pa, aok := parse(a)
	pb, bok := parse(b)
	if aok && bok {
		return pa == pb
	}
	return equal(a, b)
}

// equalQuantity compares amounts, whatever their suffixes: 1Gi is 1073741824.
func equalQuantity(a, b any) bool {
	if s, ok := a.(string); ok && any(s) == b {
		return true // the usual case needs no parsing
	}
	qa, aok := expr.Quantity(a)
	qb, bok := expr.Quantity(b)
	if aok && bok {
		return qa.Cmp(qb) == 0
	}
	return equal(a, b)
}

func parseDuration(v any) (time.Duration, bool) {
	s, ok := v.(string)
	if !ok {
		return 0, false
	}
	d, err := time.ParseDuration(s)
	return d, err == nil
}

// instant is a point in time, in parts that can hold any year.
type instant struct {
	seconds     int64
	nanoseconds int
}

func parseTime(v any) (instant, bool) {
	s, ok := v.(string)
	if !ok {
		return instant{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	return instant{t.Unix(), t.Nanosecond()}, err == nil
}

// equal compares decoded JSON; numbers by value, null like absent.
func equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && equalMaps(a, b)
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !equal(a[i], b[i]) {
				return false
			}
		}
		return true
	case string:
		return any(a) == b
	case int64:
		switch b := b.(type) {
		case int64:
			return a == b
		case float64:
			return same(a, b)
		}
		return false
	case float64:
		switch b := b.(type) {
		case int64:
			return same(b, a)
		case float64:
			return a == b
		}
		return false
	}
	return reflect.DeepEqual(a, b) // bool and null, and values that are no JSON
}

func equalMaps(a, b map[string]any) bool {
	for k, av := range a {
		if bv := b[k]; av == nil && bv != nil || av != nil && (bv == nil || !equal(av, bv)) {
			return false
		}
	}
	for k, bv := range b {
		if _, both := a[k]; !both && bv != nil {
			return false
		}
	}
	return true
}

// same reports whether a float equals an integer exactly: beyond 2^53 floats have gaps.
func same(i int64, f float64) bool {
	whole, ok := integer(f)
	return ok && whole == i
}

func integer(f float64) (int64, bool) {
	const limit = 1 << 63
	return int64(f), f == math.Trunc(f) && -limit <= f && f < limit
}

// appendKey appends a text that is the same for two values exactly if they are [equal].
func appendKey(key []byte, v any) []byte {
	switch v := v.(type) {
	case map[string]any:
		key = append(key, '{')
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if v[name] != nil {
				key = append(appendKey(append(strconv.AppendQuote(key, name), ':'), v[name]), ',')
			}
		}
		return append(key, '}')
	case []any:
		key = append(key, '[')
		for _, item := range v {
			key = append(appendKey(key, item), ',')
		}
		return append(key, ']')
	case string:
		return strconv.AppendQuote(key, v)
	case int64:
		return strconv.AppendInt(key, v, 10)
	case float64:
		if i, ok := integer(v); ok {
			return strconv.AppendInt(key, i, 10)
		}
		return strconv.AppendFloat(key, v, 'g', -1, 64)
	}
	return fmt.Append(key, v)
}
