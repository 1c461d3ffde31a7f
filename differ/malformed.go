package differ

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v4/schema"

	"github.com/keelson-io/keelson/renderer"
)

const (
	// maxDepth bounds how deep an object may be nested. The deepest CRDs in use stay below 100. A
	// deeper object is an attempt to overflow a stack.
	maxDepth = 500
	// maxBytes is the largest request that an API server accepts: MaxRequestBodyBytes of
	// k8s.io/apiserver.
	maxBytes = 3 << 20
)

var (
	errTooDeep  = errors.New("nested too deeply")
	errTooLarge = errors.New("too large")
	errNotJSON  = errors.New("no JSON")
)

// checkObject returns an error for an object that is nested too deeply for recursion, or that is no
// JSON: the request would differ from the object. Decoders of Kubernetes make only maps with string
// keys, []any, string, int64, finite float64, bool and nil.
func checkObject(what string, object map[string]any) error {
	_, err := checkSize(what, object)
	return err
}

// checkTarget also returns an error for a target that is larger than any API server accepts, before
// any object of the component is changed.
func checkTarget(target *renderer.Object, object map[string]any) error {
	if target == nil {
		return nil
	}
	what := "target object"
	if at := target.Source.String(); at != "" {
		what += " (" + at + ")"
	}
	bytes, err := checkSize(what, object)
	if err != nil || bytes <= maxBytes {
		return err
	}
	return fmt.Errorf("the %s: %s: %w: %d bytes of text, and an API server takes %d",
		what, shortPath(largest(object, bytes)), errTooLarge, bytes, maxBytes)
}

func checkSize(what string, object map[string]any) (bytes int, err error) {
	if object == nil || sound(object, maxDepth, &bytes) {
		return bytes, nil
	}
	path, err := findUnsound(object, maxDepth)
	slices.Reverse(path)
	return 0, fmt.Errorf("the %s: %s: %w", what, shortPath(path), err)
}

// sound reports whether a value is JSON, and nested no deeper than levels. sound adds to bytes a
// lower bound of the JSON's size: the bytes of its strings and names, and one a list item.
func sound(v any, levels int, bytes *int) bool {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			*bytes += len(name)
			if levels == 0 || !utf8.ValidString(name) || !sound(child, levels-1, bytes) {
				return false
			}
		}
	case []any:
		for _, child := range v {
			*bytes++
			if levels == 0 || !sound(child, levels-1, bytes) {
				return false
			}
		}
	case string:
		*bytes += len(v)
		return utf8.ValidString(v)
	case float64:
		return !math.IsNaN(v) && !math.IsInf(v, 0)
	case int64, bool, nil:
	default:
		return false
	}
	return true
}

// findUnsound returns the path of the first value that is not [sound], last element first, and the
// reason. Maps are visited in the order of their names, so the same object gives the same error.
func findUnsound(v any, levels int) (fieldpath.Path, error) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			pe := fieldpath.PathElement{FieldName: &name}
			if !utf8.ValidString(name) {
				return fieldpath.Path{pe}, fmt.Errorf("%w: a name that is no UTF-8", errNotJSON)
			}
			if path, err := findBelow(v[name], levels); err != nil {
				return append(path, pe), err
			}
		}
	case []any:
		for i, child := range v {
			if path, err := findBelow(child, levels); err != nil {
				return append(path, fieldpath.PathElement{Index: &i}), err
			}
		}
	case string:
		if !utf8.ValidString(v) {
			return nil, fmt.Errorf("%w: text that is no UTF-8", errNotJSON)
		}
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%w: the number %v", errNotJSON, v)
		}
	case int64, bool, nil:
	default:
		return nil, fmt.Errorf("%w: a value of Go type %T", errNotJSON, v)
	}
	return nil, nil
}

func findBelow(v any, levels int) (fieldpath.Path, error) {
	if levels == 0 {
		return nil, fmt.Errorf("%w: more than %d levels", errTooDeep, maxDepth)
	}
	return findUnsound(v, levels-1)
}

// largest returns the path of the value that holds more than half of an object's bytes, as far as
// [shortPath] shows a path.
func largest(object map[string]any, bytes int) fieldpath.Path {
	var path fieldpath.Path
	heavy := func(v any) bool {
		n := 0
		sound(v, maxDepth, &n)
		return n > bytes/2
	}
	for v := any(object); len(path) <= shownElements; {
		var next any
		switch v := v.(type) {
		case map[string]any:
			for name, child := range v {
				if heavy(child) {
					path, next = append(path, fieldpath.PathElement{FieldName: &name}), child
				}
			}
		case []any:
			for i, child := range v {
				if heavy(child) {
					path, next = append(path, fieldpath.PathElement{Index: &i}), child
				}
			}
		}
		if next == nil {
			break
		}
		v = next
	}
	return path
}

// shownElements is the number of path elements that an error shows.
const shownElements = 8

// shortPath formats a path for an error. A path in a hostile object may be very long.
func shortPath(path fieldpath.Path) string {
	if len(path) > shownElements {
		return printable(path[:shownElements].String()) + "…"
	}
	return printable(path.String())
}

// misfit returns the path of a value whose type is not the one in its schema, and both types; "" if
// every value fits. A field that the schema does not know fits: the API server drops the field, or
// reports it.
func misfit(s *smdschema.Schema, ref smdschema.TypeRef, v any, path fieldpath.Path) string {
	atom, ok := s.Resolve(ref)
	if !ok || v == nil || atom.Map == nil && atom.List == nil && atom.Scalar == nil {
		return ""
	}
	if !fits(atom, v) {
		return fmt.Sprintf("%s: the schema has %s there, and git has %s", path, wanted(atom), nameOf(v))
	}
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if why := misfit(s, fieldType(atom.Map, name), v[name], append(path, fieldpath.PathElement{FieldName: &name})); why != "" {
				return why
			}
		}
	case []any:
		for i, item := range v {
			if why := misfit(s, atom.List.ElementType, item, append(path, fieldpath.PathElement{Index: &i})); why != "" {
				return why
			}
		}
	}
	return ""
}

// fits checks the value's own type, and not its children.
func fits(atom smdschema.Atom, v any) bool {
	switch v.(type) {
	case map[string]any:
		return atom.Map != nil
	case []any:
		return atom.List != nil
	}
	if atom.Scalar == nil {
		return false
	}
	switch v.(type) {
	case string:
		return *atom.Scalar == smdschema.String || *atom.Scalar == smdschema.Untyped
	case bool:
		return *atom.Scalar == smdschema.Boolean || *atom.Scalar == smdschema.Untyped
	}
	return *atom.Scalar == smdschema.Numeric || *atom.Scalar == smdschema.Untyped
}

func wanted(atom smdschema.Atom) string {
	switch {
	case atom.Map != nil:
		return "a map"
	case atom.List != nil:
		return "a list"
	case *atom.Scalar == smdschema.Numeric:
		return "a number"
	case *atom.Scalar == smdschema.Boolean:
		return "true or false"
	case *atom.Scalar == smdschema.String:
		return "text"
	}
	return "text or a number" // a quantity
}

func nameOf(v any) string {
	switch v.(type) {
	case map[string]any:
		return "a map"
	case []any:
		return "a list"
	case string:
		return "text"
	case bool:
		return "true or false"
	}
	return "a number"
}
