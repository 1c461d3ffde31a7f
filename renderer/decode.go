package renderer

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v2"
)

// docError is a problem of one YAML document.
type docError struct {
	line    int // in the document, from 1; 0: not known
	message string
}

// decodeDocument decodes one YAML document as the API server would read it after sigs.k8s.io/yaml:
// YAML 1.1, numbers without a fraction as int64. It returns nil for a document without content. It
// refuses keys that are not strings, whereas sigs.k8s.io/yaml silently turns `y:` into "true".
//
// A duplicate key has its last value, as for helm, and gives a warning.
func decodeDocument(doc string) (content any, warnings []docError, failed *docError) {
	var raw any
	err := yaml.UnmarshalStrict([]byte(doc), &raw)
	if twice, ok := errors.AsType[*yaml.TypeError](err); ok {
		for _, text := range twice.Errors {
			warnings = append(warnings, *parseYAMLError(text, ""))
		}
		raw = nil
		err = yaml.Unmarshal([]byte(doc), &raw)
	}
	if err != nil {
		return nil, nil, syntaxError(err)
	}
	content, failed = jsonValue(raw, doc)
	if failed != nil {
		return nil, nil, failed
	}
	return content, warnings, nil
}

// maxDepth bounds the nesting of objects and schemas. It is far above any definition in use: the
// deepest public ones have about 60 levels.
const maxDepth = 500

// deep reports whether a value is nested deeper than the given levels.
func deep(v any, levels int) bool {
	if levels < 0 {
		return true
	}
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return deep(e, levels-1) })
	case map[string]any:
		for _, e := range v {
			if deep(e, levels-1) {
				return true
			}
		}
	}
	return false
}

// DecodeYAML decodes one YAML document as rendered ones are decoded, except that a duplicate key is
// an error, too: a hand-written file must have one meaning. It returns nil without content;
// integers are int64. Errors name the line in the document if it is known.
func DecodeYAML(document []byte) (any, error) {
	content, warnings, failed := decodeDocument(string(document))
	if failed == nil && len(warnings) > 0 {
		failed = &warnings[0]
	}
	switch {
	case failed == nil:
		return content, nil
	case failed.line > 0:
		return nil, fmt.Errorf("line %d: %s", failed.line, failed.message)
	}
	return nil, errors.New(failed.message)
}

func syntaxError(err error) *docError {
	return parseYAMLError(strings.TrimPrefix(err.Error(), "yaml: "), "invalid YAML: ")
}

// parseYAMLError takes the line from the text of an error, which has no field for it.
func parseYAMLError(text, prefix string) *docError {
	e := &docError{message: prefix + text}
	if m := regexp.MustCompile(`^line (\d+): `).FindStringSubmatch(text); m != nil {
		e.line, _ = strconv.Atoi(m[1])
		e.message = prefix + strings.TrimPrefix(text, m[0])
	}
	return e
}

func jsonValue(v any, doc string) (any, *docError) {
	switch v := v.(type) {
	case nil, bool, int64:
		return v, nil
	case string:
		if !utf8.ValidString(v) {
			return nil, &docError{message: "a string is not UTF-8, so it can't be written as JSON: use binaryData and base64"}
		}
		return v, nil
	case int:
		return int64(v), nil
	case uint64: // only what int64 can't hold
		return float64(v), nil
	case float64:
		n, ok := jsonNumber(v)
		if !ok {
			return nil, &docError{message: fmt.Sprintf("the number %v can't be written as JSON", v)}
		}
		return n, nil
	case []any:
		for i := range v {
			e, err := jsonValue(v[i], doc)
			if err != nil {
				return nil, err
			}
			v[i] = e
		}
		return v, nil
	case map[any]any:
		m := make(map[string]any, len(v))
		for k, e := range v {
			name, ok := k.(string)
			if !ok || !utf8.ValidString(name) {
				return nil, keyError(k, doc)
			}
			e, err := jsonValue(e, doc)
			if err != nil {
				return nil, err
			}
			m[name] = e
		}
		return m, nil
	default:
		return nil, &docError{message: fmt.Sprintf("a value of type %T can't be written as JSON", v)}
	}
}

// keyError finds the key's line, which the decoder does not keep.
func keyError(key any, doc string) *docError {
	written := regexp.QuoteMeta(fmt.Sprint(key))
	switch key {
	case true:
		written = `(?i:y|yes|on|true)`
	case false:
		written = `(?i:n|no|off|false)`
	case nil:
		written = `(?i:~|null)`
	}
	e := &docError{message: fmt.Sprintf("the key %v is not a string: quote it", key)}
	switch key.(type) {
	case nil:
		e.message = "a key is null: quote it"
	case bool:
		e.message = fmt.Sprintf("a key is the boolean %v, as YAML 1.1 reads y, yes, on, n, no and off: quote it", key)
	}
	if at := regexp.MustCompile(`(?m)(?:^|[{,\s-])` + written + `\s*:(?:\s|$)`).FindStringIndex(doc); at != nil {
		start := at[0]
		if doc[start] == '\n' {
			start++
		}
		e.line = 1 + strings.Count(doc[:start], "\n")
	}
	return e
}
