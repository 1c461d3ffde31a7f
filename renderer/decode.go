package renderer

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v2"
)

// docError is what is wrong with one YAML document.
type docError struct {
	line    int // in the document, from 1; 0: not known
	message string
}

// decodeDocument reads one YAML document as the API server would read it after
// sigs.k8s.io/yaml: YAML 1.1, numbers without a fraction as int64. It returns
// nil for a document without content. Keys that are not strings are refused
// where sigs.k8s.io/yaml would turn `y:` into "true" without a word.
//
// A key that stands twice counts with its last value, as for helm, and gives
// a warning.
func decodeDocument(doc string) (content any, warnings []string, failed *docError) {
	var raw any
	err := yaml.UnmarshalStrict([]byte(doc), &raw)
	var twice *yaml.TypeError
	if errors.As(err, &twice) {
		warnings = twice.Errors
		raw, err = nil, yaml.Unmarshal([]byte(doc), &raw)
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

func syntaxError(err error) *docError {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := regexp.MustCompile(`^line (\d+): `).FindStringSubmatch(text); m != nil {
		line, _ := strconv.Atoi(m[1])
		return &docError{line: line, message: "the template gives invalid YAML: " + strings.TrimPrefix(text, m[0])}
	}
	return &docError{message: "the template gives invalid YAML: " + text}
}

func jsonValue(v any, doc string) (any, *docError) {
	switch v := v.(type) {
	case nil, bool, string, int64:
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
			if !ok {
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

// keyError finds the key's line: the decoder forgets it.
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
	if key == nil {
		e.message = "a key is null: quote it"
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
