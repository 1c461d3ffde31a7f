package differ

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
)

// pattern is a danger rule's path: one entry an element, "*" for any.
type pattern []string

const anyElement = "*"

var errPattern = errors.New("malformed path")

// parsePattern reads a path in structured-merge-diff syntax, in which * stands
// for any one element and ["x.y"] for a field whose name has dots:
//
//	.spec.template.spec.containers[*].image
//	.metadata.annotations["example.com/x"]
//	.spec.ports[port=80,protocol="TCP"].nodePort
func parsePattern(s string) (pattern, error) {
	var out pattern
	for rest := s; rest != ""; {
		var element string
		var err error
		switch rest[0] {
		case '.':
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			element, rest = rest[1:1+end], rest[1+end:]
			if element == "" {
				err = errors.New("a field has no name")
			} else if element != anyElement {
				element = "." + element
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

// bracket splits [..] off the front; quotes may hide a closing bracket.
func bracket(s string) (element, rest string, err error) {
	quoted := false
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && quoted:
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == ']' && !quoted:
			inner := s[1:i]
			switch {
			case inner == "":
				return "", "", errors.New("empty brackets")
			case inner == anyElement:
				return anyElement, s[i+1:], nil
			case inner[0] == '"':
				return "." + strings.Trim(inner, `"`), s[i+1:], nil
			}
			return s[:i+1], s[i+1:], nil
		}
	}
	return "", "", errors.New("an opening bracket is not closed")
}

// matches reports whether the path is the pattern's or lies below it.
func (p pattern) matches(path fieldpath.Path) bool {
	if len(path) < len(p) {
		return false
	}
	for i, want := range p {
		if want == anyElement {
			continue
		}
		got := path[i].String()
		if path[i].FieldName != nil {
			got = "." + *path[i].FieldName
		}
		if got != want {
			return false
		}
	}
	return true
}
