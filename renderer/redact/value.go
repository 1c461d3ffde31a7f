package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

const (
	// leastDatum is the length in bytes from which a value in a Secret counts as secret. Such a
	// value may be anything, a user's name or a port, and short ones also occur in other texts; see
	// [Object].
	leastDatum = 6
	// leastDatumLine is the same for one line of many, or for one value in a document: Secrets
	// contain configuration, too.
	leastDatumLine = 12
	// parsedDatum bounds the documents in Secrets that are parsed, in bytes, and maxLines the lines
	// of a value.
	parsedDatum = 64 << 10
	maxLines    = 10_000
)

// Value is a value that must not be seen.
type Value struct {
	text string
	// least is the length of the shortest form that counts, and leastLine of the shortest line.
	least, leastLine int
}

// Certain returns a value that is known to be secret, such as a decrypted password: all of it, and
// every line.
func Certain(value any) Value {
	switch v := value.(type) {
	case string:
		return Value{text: v, least: leastForm, leastLine: leastForm}
	case float64:
		return Value{text: strconv.FormatFloat(v, 'f', -1, 64), least: leastForm, leastLine: leastForm}
	case int64:
		return Value{text: strconv.FormatInt(v, 10), least: leastForm, leastLine: leastForm}
	default: // a boolean is no secret
		return Value{}
	}
}

// Len returns the length of the value in bytes.
func (v Value) Len() int { return len(v.text) }

// forms returns the texts in which a value may reappear.
func (v Value) forms() []string {
	text := strings.TrimSpace(v.text)
	if text == "" || len(text) < v.least {
		return nil
	}
	out := textForms(text)
	if number, err := strconv.ParseFloat(text, 64); err == nil {
		out = append(out, fmt.Sprint(number)) // as Go prints large numbers
	}
	if strings.Contains(text, "\n") {
		n := 0
		for line := range strings.SplitSeq(text, "\n") {
			line = strings.TrimSpace(line)
			if n++; n > maxLines {
				break
			}
			armor := v.least > leastForm && strings.HasPrefix(line, "-----") // certificates begin with it, too
			if len(line) >= v.leastLine && !armor {
				out = append(out, textForms(line)...)
			}
		}
	}
	if squeezed := strings.Join(strings.Fields(text), ""); squeezed != text && len(squeezed) >= leastBroken {
		out = append(out, squeezed)
	}
	// A text that ends with a line end is encoded with it.
	out = append(out, base64Forms(v.text)...)
	out = append(out, base64Forms(text)...)
	out = append(out, base64Forms(text+"\n")...)
	out = append(out, insideBase64(text)...)
	return append(out, hex.EncodeToString([]byte(text)), strings.ToUpper(hex.EncodeToString([]byte(text))))
}

func textForms(v string) []string {
	out := []string{v, html.EscapeString(v), strings.ReplaceAll(v, "'", "''"), url.QueryEscape(v), url.PathEscape(v), inner(strconv.Quote(v))}
	if quoted, err := json.Marshal(v); err == nil {
		out = append(out, inner(string(quoted)))
		if again, err := json.Marshal(inner(string(quoted))); err == nil { // an object in an annotation
			out = append(out, inner(string(again)))
		}
	}
	var b strings.Builder
	plain := json.NewEncoder(&b) // as logs are written: without escapes for HTML
	plain.SetEscapeHTML(false)
	if plain.Encode(v) == nil {
		out = append(out, inner(strings.TrimSuffix(b.String(), "\n")))
	}
	const cut, longest = 7, 10 // the form in which parsers of YAML quote values that they can't read
	if len(v) > longest {
		out = append(out, v[:cut]+"...")
	}
	return out
}

func inner(quoted string) string { return quoted[1 : len(quoted)-1] }

func base64Forms(v string) []string {
	return []string{
		base64.StdEncoding.EncodeToString([]byte(v)), base64.RawStdEncoding.EncodeToString([]byte(v)),
		base64.URLEncoding.EncodeToString([]byte(v)), base64.RawURLEncoding.EncodeToString([]byte(v)),
	}
}

// insideBase64 returns the base64 characters of a value that do not depend on the text before and
// after it, as in "Authorization: Basic". Three bytes give four characters, so there are three
// variants. The first and last character of each may have bits of the neighbouring text, and are
// left out.
func insideBase64(v string) []string {
	var out []string
	for before := range 3 {
		padded := append(make([]byte, before), v...)
		from, to := (before*8+5)/6, len(padded)*8/6
		if to-from < wordForm {
			continue // it would be found by chance
		}
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			out = append(out, encoding.EncodeToString(padded)[from:to])
		}
	}
	return out
}

// Object returns the values that the data of an object hides, if it is a Secret. public has the
// texts that other objects of the component show, as [Public] returns them: a Secret may hold the
// name of its namespace.
func Object(content map[string]any, public map[string]bool) []Value {
	if !IsSecret(content) {
		return nil
	}
	var out []Value
	add := func(text string, least int) {
		text = strings.TrimSpace(text)
		if len(text) >= least && !public[text] && !slices.Contains(plain(), strings.ToLower(text)) {
			out = append(out, Value{text: text, least: leastDatum, leastLine: leastDatumLine})
		}
	}
	walk := func(data any, encoded bool) {
		leaves(data, func(text string, key bool) {
			if !key {
				datum(text, encoded, add)
			}
		})
	}
	walk(content["data"], true)
	walk(content["stringData"], false)
	metadata, _ := content["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	if copied, ok := annotations["kubectl.kubernetes.io/last-applied-configuration"].(string); ok {
		var object map[string]any
		if json.Unmarshal([]byte(copied), &object) == nil {
			walk(object["data"], true)
			walk(object["stringData"], false)
		}
	}
	return out
}

// datum adds one value of a Secret: as it is, decoded, and the values inside it.
func datum(text string, encoded bool, add func(text string, least int)) {
	add(text, leastDatum)
	if decoded, err := base64.StdEncoding.DecodeString(text); encoded && err == nil {
		text = string(decoded)
		add(text, leastDatum)
	}
	if utf8.ValidString(text) {
		document(text, func(leaf string) { add(leaf, leastDatumLine) })
	}
}

// document adds the values inside a JSON or YAML document.
func document(text string, leaf func(string)) {
	if len(text) > parsedDatum || !strings.ContainsAny(text, "{:") {
		return
	}
	var value any
	if yaml.Unmarshal([]byte(text), &value) != nil {
		return
	}
	if _, isText := value.(string); !isText {
		leaves(value, func(text string, _ bool) { leaf(text) })
	}
}

// IsSecret reports whether the data of an object is secret.
func IsSecret(content map[string]any) bool {
	return content["kind"] == "Secret" && content["apiVersion"] == "v1"
}

// plain returns words that are never secret.
func plain() []string {
	return []string{"default", "disabled", "enabled", "localhost", "production", "password", "username", "postgres"}
}

// Public returns the texts that objects show to all their readers: whole strings and keys, but of
// the data of Secrets only the keys.
func Public(objects []map[string]any) map[string]bool {
	public := map[string]bool{}
	add := func(text string, _ bool) { public[strings.TrimSpace(text)] = true }
	for _, content := range objects {
		if !IsSecret(content) {
			leaves(content, add)
			continue
		}
		for key, value := range content {
			if key != "data" && key != "stringData" {
				leaves(value, add)
				continue
			}
			data, _ := value.(map[string]any)
			for key := range data {
				add(key, true)
			}
		}
	}
	return public
}

// leaves calls f with each string, number and key in a value.
func leaves(value any, f func(text string, key bool)) {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			f(key, true)
			leaves(child, f)
		}
	case []any:
		for _, item := range v {
			leaves(item, f)
		}
	default:
		if text := Leaf(value); text != "" {
			f(text, false)
		}
	}
}

// Leaf returns a string or number as text; "" for anything else.
func Leaf(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return ""
	}
}
