package differ

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v4/value"
)

// pattern is the path of a danger rule.
type pattern []patternElement

// patternElement is either any element, or one path element. A quoted field name is complete. An
// unquoted name may be a part of a name with dots.
type patternElement struct {
	any    bool
	quoted bool
	pe     fieldpath.PathElement
}

const anyElement = "*"

var errPattern = errors.New("malformed path")

// parsePattern reads a path in structured-merge-diff syntax. In a pattern, * stands for any one
// element and ["x.y"] for a field whose name has dots or brackets:
//
//	.spec.template.spec.containers[*].image
//	.metadata.annotations["example.com/x"]
//	.spec.ports[port=80,protocol="TCP"].nodePort
//	.metadata.finalizers[="example.com/x"]
//
// The path of every [Field] is such a pattern and matches that field, so it can be copied into a
// rule. Field names with brackets are the exception.
func parsePattern(s string) (pattern, error) {
	var out pattern
	for rest := s; rest != ""; {
		var element patternElement
		var err error
		switch rest[0] {
		case '.':
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			var name string
			name, rest = rest[1:1+end], rest[1+end:]
			switch name {
			case "":
				err = errors.New("a field has no name")
			case anyElement:
				element.any = true
			default:
				element.pe.FieldName = &name
			}
		case '[':
			element, rest, err = bracket(rest)
		default:
			err = errors.New("an element starts with . or [")
		}
		if err != nil {
			return nil, fmt.Errorf("%w %q: %w", errPattern, s, err)
		}
		out = append(out, element)
	}
	return out, nil
}

// bracket reads the [..] at the start of s, and returns the rest of s.
func bracket(s string) (patternElement, string, error) {
	parts, rest, err := splitBracket(s)
	if err != nil {
		return patternElement{}, "", err
	}
	var fields value.FieldList
	for _, part := range parts {
		name, text, keyed := cutKey(part)
		if !keyed {
			if len(parts) > 1 {
				return patternElement{}, "", fmt.Errorf("%s is no key=value", part)
			}
			element, err := single(part)
			return element, rest, err
		}
		v, err := scalar(text)
		if err != nil {
			return patternElement{}, "", fmt.Errorf("the value of %s: %w", part, err)
		}
		if name == "" {
			if len(parts) > 1 {
				return patternElement{}, "", fmt.Errorf("%s has no key", part)
			}
			return patternElement{pe: fieldpath.PathElement{Value: &v}}, rest, nil
		}
		fields = append(fields, value.Field{Name: name, Value: v})
	}
	fields.Sort()
	return patternElement{pe: fieldpath.PathElement{Key: &fields}}, rest, nil
}

// splitBracket splits the text in the first brackets at its commas. Commas and brackets inside
// quotes do not count.
func splitBracket(s string) (parts []string, rest string, err error) {
	quoted, start := false, 1
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && quoted:
			i++
		case s[i] == '"':
			quoted = !quoted
		case quoted:
		case s[i] == ',':
			parts, start = append(parts, s[start:i]), i+1
		case s[i] == ']':
			return append(parts, s[start:i]), s[i+1:], nil
		}
	}
	return nil, "", errors.New("an opening bracket is not closed")
}

// cutKey splits key=value. A quoted name is not a key.
func cutKey(part string) (name, text string, ok bool) {
	if strings.HasPrefix(part, `"`) {
		return "", "", false
	}
	return strings.Cut(part, "=")
}

// single reads brackets without a key: *, a quoted field name, or an index.
func single(part string) (patternElement, error) {
	if part == anyElement {
		return patternElement{any: true}, nil
	}
	if index, err := strconv.ParseUint(part, 10, 31); err == nil {
		i := int(index)
		return patternElement{pe: fieldpath.PathElement{Index: &i}}, nil
	}
	name, err := strconv.Unquote(part)
	if err != nil || !strings.HasPrefix(part, `"`) || name == "" {
		return patternElement{}, fmt.Errorf("[%s] is neither *, an index, a \"field\" nor key=value", part)
	}
	return patternElement{quoted: true, pe: fieldpath.PathElement{FieldName: &name}}, nil
}

// scalar reads a value in the form in which paths show it: a JSON number or boolean, or a string
// with Go's escapes.
func scalar(text string) (value.Value, error) {
	if strings.HasPrefix(text, `"`) {
		s, err := strconv.Unquote(text)
		if err != nil {
			return nil, fmt.Errorf("%s is no string", text)
		}
		return value.NewValueInterface(s), nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return value.NewValueInterface(n), nil
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, fmt.Errorf("%s is neither a number, true, false nor a quoted string", text)
	}
	switch v.(type) {
	case float64, bool:
		return value.NewValueInterface(v), nil
	}
	return nil, fmt.Errorf("%s is neither a number, true, false nor a quoted string", text)
}

// matches reports whether the path is the one of the pattern, or lies below it.
func (p pattern) matches(path fieldpath.Path) bool {
	rest, ok := p.along(path)
	return ok && len(rest) == 0
}

// along follows a path as far as the pattern reaches. If the path ends first, it returns the rest
// of the pattern. It is not ok where path and pattern differ.
func (p pattern) along(path fieldpath.Path) (rest pattern, ok bool) {
	for _, pe := range path {
		if len(p) == 0 {
			return nil, true
		}
		n := p.match(pe)
		if n == 0 {
			return nil, false
		}
		p = p[n:]
	}
	return p, true
}

// match returns how many of the pattern's first elements match the path element: 0 for none,
// several for a field whose name has dots and is unquoted in the pattern.
func (p pattern) match(pe fieldpath.PathElement) int {
	if p[0].any || p[0].pe.Equals(pe) {
		return 1
	}
	if pe.FieldName == nil || p[0].quoted || p[0].pe.FieldName == nil {
		return 0
	}
	name := *p[0].pe.FieldName
	for n := 1; n < len(p) && len(name) < len(*pe.FieldName); n++ {
		if p[n].quoted || p[n].pe.FieldName == nil {
			return 0
		}
		name += "." + *p[n].pe.FieldName
		if name == *pe.FieldName {
			return n + 1
		}
	}
	return 0
}

// collect returns the values that the pattern finds inside a value that has no paths of its own,
// such as an atomic list.
func (p pattern) collect(v any) []any {
	if len(p) == 0 {
		return []any{v}
	}
	var out []any
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if n := p.match(fieldpath.PathElement{FieldName: &name}); n > 0 {
				out = append(out, p[n:].collect(v[name])...)
			}
		}
	case []any:
		for i, item := range v {
			if p[0].any || p[0].takes(i, item) {
				out = append(out, p[1:].collect(item)...)
			}
		}
	}
	return out
}

func (e patternElement) takes(at int, item any) bool {
	switch {
	case e.pe.Index != nil:
		return *e.pe.Index == at
	case e.pe.Value != nil:
		return equal((*e.pe.Value).Unstructured(), item)
	case e.pe.Key != nil:
		m, ok := item.(map[string]any)
		for _, f := range *e.pe.Key {
			ok = ok && equal(f.Value.Unstructured(), m[f.Name])
		}
		return ok
	}
	return false
}
