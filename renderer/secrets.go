package renderer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer/redact"
)

// wordSecret is the length in bytes from which a decrypted text counts as a secret inside a longer
// word.
const wordSecret = 8

// Secrets are the decrypted values of a render, to keep them out of texts for people. A nil
// *Secrets has none.
type Secrets struct {
	list []registry.Secret
	// seen finds the values: the owner of each is its index in list.
	seen *redact.Redactor
}

func newSecrets(list []registry.Secret) *Secrets {
	s := &Secrets{list: list, seen: redact.New()}
	for i, secret := range list {
		s.seen.Set(strconv.Itoa(i), "", func() []redact.Value { return []redact.Value{redact.Certain(secret.Value)} })
	}
	return s
}

func (s *Secrets) secretOf(found redact.Found) registry.Secret {
	i, _ := strconv.Atoi(found.Owner)
	return s.list[i]
}

// Hidden returns the values that must not leave the process in a text: those decrypted for the
// target, the data of its Secrets, and the data of the same Secrets as they are in a cluster.
func (t *Target) Hidden(live ...map[string]any) []redact.Value {
	var out []redact.Value
	if t.Secrets != nil {
		for _, s := range t.Secrets.list {
			out = append(out, redact.Certain(s.Value))
		}
	}
	var contents []map[string]any
	for _, o := range slices.Concat(t.Objects, t.Hooks) {
		contents = append(contents, o.Content)
	}
	if !slices.ContainsFunc(append(slices.Clip(contents), live...), redact.IsSecret) {
		return out
	}
	public := redact.Public(contents)
	for _, content := range append(contents, live...) {
		out = append(out, redact.Object(content, public)...)
	}
	return out
}

// find returns the secrets that a leaf shows. A short secret counts only if it is the whole leaf: a
// match with a word of a text is usually chance.
func (s *Secrets) find(leaf string) []registry.Secret {
	var out []registry.Secret
	for _, found := range s.seen.Find(leaf) {
		if len(found.Text) >= wordSecret || found.Text == leaf {
			out = append(out, s.secretOf(found))
		}
	}
	return out
}

// checkName returns a message about an object whose names hold a secret, or "": names appear in
// logs, events, statuses and the URLs of requests.
func (s *Secrets) checkName(content map[string]any) string {
	metadata, _ := content["metadata"].(map[string]any)
	for _, part := range []struct{ what, text string }{
		{"apiVersion", stringAt(content, "apiVersion")},
		{"kind", stringAt(content, "kind")},
		{"namespace", stringAt(metadata, "namespace")},
		{"name", stringAt(metadata, "name")},
	} {
		for _, found := range s.seen.Find(part.text) {
			if len(found.Text) < wordSecret {
				continue
			}
			from := s.secretOf(found)
			return fmt.Sprintf("the %s of an object of kind %s holds the value of %s, which is encrypted at %s: names can't be kept secret "+
				"(leave that value unencrypted, or change it)",
				part.what, s.seen.Text(stringAt(content, "kind")), registry.FormatPath(from.Path), from.At)
		}
	}
	return ""
}

// Exposed is an encrypted value that an object shows to all its readers, which defeats the
// encryption.
type Exposed struct {
	Path []string // below .Values
	// Where is the first object and field, and the number of further places.
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

// search searches an object. It skips the data of a Secret, where secrets belong.
func (e *exposures) search(o *Object) {
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
			e.add(o, path, redact.Leaf(value))
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
			path: secret.Path, first: e.secrets.seen.Text(stringAt(o.Content, "kind") + " " + name + " at " + path),
		}
	}
}

// list returns one entry for each value, however often the value is shown.
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
