package renderer

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/keelson-io/keelson/registry"
)

const (
	// redacted stands for a decrypted value in texts.
	redacted = "***"
	// leastSecret is the length in bytes of the shortest text that is taken for
	// a secret; below wordSecret it is one only where it stands as a word of its
	// own. Else "on" or "http" would black out every message.
	leastSecret = 4
	wordSecret  = 8
)

// Secrets are the values of a render that were decrypted, to keep them out of
// what people see. A nil *Secrets knows none. It finds values as they are, a
// line of them, quoted, or in base64; what a template made of a value
// otherwise, it does not know.
type Secrets struct {
	pattern *regexp.Regexp // nil: nothing that could be told from other text
	// of is where the text of a match was set.
	of map[string]registry.Secret
}

func newSecrets(list []registry.Secret) *Secrets {
	s := &Secrets{of: map[string]registry.Secret{}}
	for _, secret := range list {
		for _, form := range forms(secret.Value) {
			if _, known := s.of[form]; !known && len(form) >= leastSecret {
				s.of[form] = secret
			}
		}
	}
	if len(s.of) == 0 {
		return s
	}
	// The longest first: a match must take the whole value.
	texts := slices.SortedFunc(maps.Keys(s.of), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b))
	})
	for i, text := range texts {
		pattern := regexp.QuoteMeta(text)
		if len(text) < wordSecret {
			pattern = wordEdge(text[0]) + pattern + wordEdge(text[len(text)-1])
		}
		texts[i] = pattern
	}
	s.pattern = regexp.MustCompile(strings.Join(texts, "|"))
	return s
}

// wordEdge is the pattern of the end of a word that has the letter c there.
func wordEdge(c byte) string {
	if regexp.MustCompile(`\w`).Match([]byte{c}) {
		return `\b`
	}
	return ""
}

// forms are the texts in which a value may come back.
func forms(value any) []string {
	switch v := value.(type) {
	case float64:
		return []string{strconv.FormatFloat(v, 'f', -1, 64), fmt.Sprint(v)}
	case string:
		v = strings.TrimSpace(v)
		out := textForms(v)
		if strings.Contains(v, "\n") {
			for line := range strings.SplitSeq(v, "\n") {
				out = append(out, textForms(strings.TrimSpace(line))...)
			}
		}
		// A text that ends with a line end is encoded with it.
		out = append(out, base64Forms(v)...)
		return append(out, base64Forms(v+"\n")...)
	default: // a boolean is no secret
		return nil
	}
}

func textForms(v string) []string {
	out := []string{v, strings.ReplaceAll(v, "'", "''"), url.QueryEscape(v), url.PathEscape(v), strings.Trim(strconv.Quote(v), `"`)}
	if quoted, err := json.Marshal(v); err == nil {
		out = append(out, strings.Trim(string(quoted), `"`))
	}
	const cut, longest = 7, 10 // so parsers of YAML quote what they can't read
	if len(v) > longest {
		out = append(out, v[:cut]+"...")
	}
	return out
}

func base64Forms(v string) []string {
	if len(v) < leastSecret {
		return nil
	}
	return []string{
		base64.StdEncoding.EncodeToString([]byte(v)), base64.RawStdEncoding.EncodeToString([]byte(v)),
		base64.URLEncoding.EncodeToString([]byte(v)), base64.RawURLEncoding.EncodeToString([]byte(v)),
	}
}

// Redact returns the text with *** for every decrypted value.
func (s *Secrets) Redact(text string) string {
	if s == nil || s.pattern == nil {
		return text
	}
	return s.pattern.ReplaceAllLiteralString(text, redacted)
}

// Mask returns a value as JSON has it with *** for the decrypted values in it.
// It does not modify the value.
func (s *Secrets) Mask(value any) any {
	if s == nil || s.pattern == nil {
		return value
	}
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, child := range v {
			out[s.Redact(key)] = s.Mask(child)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, child := range v {
			out[i] = s.Mask(child)
		}
		return out
	}
	if text := leafText(value); s.Redact(text) != text {
		return s.Redact(text)
	}
	return value
}

// leafText is a string or number as text.
func leafText(value any) string {
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

// find returns the secrets that a leaf shows. Of short ones, those that are all
// of it: that a word of a text is one as well is chance more often than not.
func (s *Secrets) find(leaf string) []registry.Secret {
	if s.pattern == nil || leaf == "" {
		return nil
	}
	var out []registry.Secret
	for _, match := range s.pattern.FindAllString(leaf, -1) {
		if len(match) >= wordSecret || match == leaf {
			out = append(out, s.of[match])
		}
	}
	return out
}

// checkName refuses an object that is named by a secret: names stand in logs,
// events, statuses and the URLs of requests.
func (s *Secrets) checkName(content map[string]any) string {
	if s.pattern == nil {
		return ""
	}
	metadata, _ := content["metadata"].(map[string]any)
	for _, part := range []struct{ what, text string }{
		{"apiVersion", stringAt(content, "apiVersion")},
		{"kind", stringAt(content, "kind")},
		{"namespace", stringAt(metadata, "namespace")},
		{"name", stringAt(metadata, "name")},
	} {
		for _, match := range s.pattern.FindAllString(part.text, -1) {
			if len(match) < wordSecret {
				continue
			}
			from := s.of[match]
			return fmt.Sprintf("the %s of an object of kind %s holds the value of %s, which is encrypted at %s: names can't be kept secret "+
				"(leave that value unencrypted, or change it)",
				part.what, s.Redact(stringAt(content, "kind")), registry.FormatPath(from.Path), from.At)
		}
	}
	return ""
}

// Exposed is an encrypted value that stands in an object where everybody who
// may read the object sees it: the reason to encrypt it is gone.
type Exposed struct {
	Path []string // below .Values
	// Where is the first object and field, and how many more there are.
	Where string
}

// exposures are the places in objects where decrypted values are in clear text.
type exposures struct {
	secrets *Secrets
	found   map[string]*exposure // by the path of the value
}

type exposure struct {
	path  []string
	first string // object and field
	more  int
}

// look goes through an object. The data of a Secret is where secrets belong.
func (e *exposures) look(o *Object) {
	if e.secrets.pattern == nil {
		return
	}
	isSecret := stringAt(o.Content, "kind") == "Secret" && stringAt(o.Content, "apiVersion") == "v1"
	var walk func(value any, path string)
	walk = func(value any, path string) {
		switch v := value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				if isSecret && path == "" && (key == "data" || key == "stringData") {
					continue
				}
				below := path + registry.FormatPath([]string{key})
				e.add(o, below, key)
				walk(v[key], below)
			}
		case []any:
			for i, item := range v {
				walk(item, path+"["+strconv.Itoa(i)+"]")
			}
		default:
			e.add(o, path, leafText(value))
		}
	}
	walk(o.Content, "")
}

func (e *exposures) add(o *Object, path, text string) {
	for _, secret := range e.secrets.find(text) {
		key := registry.FormatPath(secret.Path)
		if x := e.found[key]; x != nil {
			x.more++
			continue
		}
		metadata, _ := o.Content["metadata"].(map[string]any)
		name := stringAt(metadata, "name")
		if namespace := stringAt(metadata, "namespace"); namespace != "" {
			name = namespace + "/" + name
		}
		if e.found == nil {
			e.found = map[string]*exposure{}
		}
		e.found[key] = &exposure{
			path: secret.Path, first: e.secrets.Redact(stringAt(o.Content, "kind") + " " + name + " at " + path),
		}
	}
}

// list has one for each value, however often it is shown.
func (e *exposures) list() []Exposed {
	var out []Exposed
	for _, key := range slices.Sorted(maps.Keys(e.found)) {
		x := e.found[key]
		where := x.first
		if x.more > 0 {
			where += fmt.Sprintf(" and at %d more", x.more)
		}
		out = append(out, Exposed{Path: x.path, Where: where})
	}
	return out
}
