package differ

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	smdschema "sigs.k8s.io/structured-merge-diff/v4/schema"
)

// Types that API servers write back in another form than they were given.
const (
	typeQuantity  = "io.k8s.apimachinery.pkg.api.resource.Quantity"
	typeDuration  = "io.k8s.apimachinery.pkg.apis.meta.v1.Duration"
	typeTime      = "io.k8s.apimachinery.pkg.apis.meta.v1.Time"
	typeMicroTime = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime"
)

// equality returns the comparison for values of a type.
func equality(ref smdschema.TypeRef) func(a, b any) bool {
	if ref.NamedType == nil {
		return equal
	}
	switch *ref.NamedType {
	case typeQuantity:
		return equalQuantity
	case typeDuration:
		return equalBy(parseDuration)
	case typeTime, typeMicroTime:
		return equalBy(parseTime)
	}
	return equal
}

// equalBy compares parsed values, and what can't be parsed as it stands.
func equalBy[T comparable](parse func(any) (T, bool)) func(a, b any) bool {
	return func(a, b any) bool {
		pa, aok := parse(a)
		pb, bok := parse(b)
		if aok && bok {
			return pa == pb
		}
		return equal(a, b)
	}
}

// equalQuantity compares by amount, whatever the suffix: 1Gi is 1073741824.
func equalQuantity(a, b any) bool {
	qa, aok := quantity(a)
	qb, bok := quantity(b)
	if aok && bok {
		return qa.Cmp(qb) == 0
	}
	return equal(a, b)
}

func quantity(v any) (resource.Quantity, bool) {
	switch v := v.(type) {
	case string:
		q, err := resource.ParseQuantity(v)
		return q, err == nil
	case int64:
		return *resource.NewQuantity(v, resource.DecimalSI), true
	case float64:
		q, err := resource.ParseQuantity(strconv.FormatFloat(v, 'f', -1, 64))
		return q, err == nil
	}
	return resource.Quantity{}, false
}

func parseDuration(v any) (time.Duration, bool) {
	s, ok := v.(string)
	if !ok {
		return 0, false
	}
	d, err := time.ParseDuration(s)
	return d, err == nil
}

func parseTime(v any) (int64, bool) {
	s, ok := v.(string)
	if !ok {
		return 0, false
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	return t.UnixNano(), err == nil
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
	case int64:
		switch b := b.(type) {
		case int64:
			return a == b
		case float64:
			return float64(a) == b
		}
		return false
	case float64:
		switch b := b.(type) {
		case int64:
			return a == float64(b)
		case float64:
			return a == b
		}
		return false
	}
	return a == b
}

func equalMaps(a, b map[string]any) bool {
	seen := 0
	for k, av := range a {
		bv, ok := b[k]
		if ok {
			seen++
		}
		if !ok && av != nil || ok && !equal(av, bv) {
			return false
		}
	}
	if seen == len(b) {
		return true
	}
	for k, bv := range b {
		if _, ok := a[k]; !ok && bv != nil {
			return false
		}
	}
	return true
}
