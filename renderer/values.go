package renderer

import (
	"encoding/json"
	"math"
	"reflect"
	"strconv"
)

// userValues returns the request's meta-config merged with its images, in the form in which Helm
// passes values files to charts. The request is not modified.
func userValues(r Request) (map[string]any, *Error) {
	values := copyMap(r.Values.Map())
	if err := injectImages(r, values); err != nil {
		return nil, err
	}
	return values, nil
}

// copyValue returns a deep copy in which every number is a float64: Helm does so with values files,
// and charts compare and print numbers in that form.
func copyValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		return copyMap(v)
	case []any:
		s := make([]any, len(v))
		for i, e := range v {
			s[i] = copyValue(e)
		}
		return s
	case nil, bool, string, float64:
		return v
	case json.Number:
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	}
	switch rv := reflect.ValueOf(v); {
	case rv.CanInt():
		return float64(rv.Int())
	case rv.CanUint():
		return float64(rv.Uint())
	case rv.CanFloat():
		return rv.Float()
	}
	return v
}

func copyMap(from map[string]any) map[string]any {
	m := make(map[string]any, len(from))
	for k, v := range from {
		m[k] = copyValue(v)
	}
	return m
}

// jsonNumber returns the number that decoding JSON into an unstructured object gives for f: an
// int64 when JSON writes it without fraction and exponent.
func jsonNumber(f float64) (any, bool) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, false
	}
	// Through the text, which has fewer digits than int64(f).
	if n, err := strconv.ParseInt(strconv.FormatFloat(f, 'f', -1, 64), 10, 64); err == nil {
		return n, true
	}
	return f, true
}
