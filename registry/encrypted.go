package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/sops"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// encryptValues is the hint for files with too much encrypted.
const encryptValues = "decrypt it, and encrypt values alone: sops encrypt --encrypted-regex '^(password|token)$', " +
	"or '^values$' for all of them"

// EncryptedFile is a file with values that SOPS encrypted, as it is in git. The registry has no keys: it
// stores, hashes and shows only encrypted text.
type EncryptedFile struct {
	File string
	Data []byte
	// Hash is the SHA-256 of Data, in hexadecimal digits.
	Hash string
}

// Secret is one decrypted value.
type Secret struct {
	// Path is the path below .Values; list items are named by their index.
	Path []string
	// Value is a string, float64 or bool.
	Value any
	At    yamlfile.Position
}

// EncryptedFiles returns the encrypted files of the values, the weakest first. A file is verified as a
// whole, so it is included even if none of these values is encrypted.
func (v *Values) EncryptedFiles() []EncryptedFile {
	if v == nil {
		return nil
	}
	out := v.base.EncryptedFiles()
	if v.source.encrypted != nil {
		out = append(out, v.source.encryptedFile())
	}
	return out
}

// Confidential reports whether any of the values is from an encrypted file, before or after
// [Values.Open]. Results that are made from such values must not be stored.
func (v *Values) Confidential() bool {
	return v != nil && (v.source.encrypted != nil || v.source.opened || v.base.Confidential())
}

// Open decrypts the values. The function open gets each of [Values.EncryptedFiles] and returns its leaves.
// Open returns its error. Values without an EncryptedFile are returned unchanged. Otherwise the result has
// the same origins, with all encrypted values in clear text, and is not shared. A value that stays
// encrypted is an error.
func (v *Values) Open(open func(EncryptedFile) ([]sops.Leaf, error)) (*Values, []Secret, error) {
	if len(v.EncryptedFiles()) == 0 {
		return v, nil, nil
	}
	base, secrets, err := v.base.Open(open)
	if err != nil {
		return nil, nil, err
	}
	opened := *v.source
	if opened.encrypted != nil {
		leaves, err := open(v.source.encryptedFile())
		if err != nil {
			return nil, nil, err
		}
		for _, leaf := range leaves {
			path, ok := cutPath(leaf.Path, v.source.encryptedAt)
			if !ok {
				continue // of another component, in a layer
			}
			at, _ := (&Values{source: v.source}).Origin(path...)
			secrets = append(secrets, Secret{Path: path, Value: leaf.Value, At: at})
			put, _ := putValue(opened.values, path, leaf.Value).(map[string]any)
			opened.values = put
		}
	}
	if at, found := v.source.encryptedValue(opened.values); found {
		return nil, nil, yamlfile.Problem{At: at, Message: "this value is encrypted, and was not decrypted"}
	}
	opened.encrypted, opened.opened = nil, opened.encrypted != nil
	return newValues(base, &opened), secrets, nil
}

func (s *source) encryptedFile() EncryptedFile {
	return EncryptedFile{File: s.file, Data: s.encrypted.data, Hash: s.encrypted.hash}
}

// encryptedValue finds a value that is still encrypted.
func (s *source) encryptedValue(values any) (at yamlfile.Position, found bool) {
	var walk func(view) bool
	walk = func(v view) bool {
		switch value := v.value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(value)) {
				child, _ := v.child(key)
				if walk(child) {
					return true
				}
			}
		case []any:
			for i := range value {
				child, _ := v.child(strconv.Itoa(i))
				if walk(child) {
					return true
				}
			}
		default:
			at, found = v.where(), sops.IsEncrypted(value)
		}
		return found
	}
	return at, walk(view{source: s, value: values, place: s.places})
}

// hideEncrypted returns a value for display. Encrypted text is replaced, because it is of no use
// there.
func hideEncrypted(value any) (shown any, hidden bool) {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, child := range v {
			var h bool
			out[key], h = hideEncrypted(child)
			hidden = hidden || h
		}
		value = out
	case []any:
		out := make([]any, len(v))
		for i, child := range v {
			var h bool
			out[i], h = hideEncrypted(child)
			hidden = hidden || h
		}
		value = out
	default:
		if sops.IsEncrypted(v) {
			return "(encrypted)", true
		}
	}
	return value, hidden
}

// cutPath returns the part of a path below another path.
func cutPath(path, above []string) ([]string, bool) {
	if len(path) <= len(above) || !slices.Equal(path[:len(above)], above) {
		return nil, false
	}
	return path[len(above):], true
}

// putValue returns a copy of in with a new value at a path, if the value there is encrypted.
// Otherwise the content is unchanged.
func putValue(in any, path []string, value any) any {
	if len(path) == 0 {
		if sops.IsEncrypted(in) {
			return value
		}
		return in
	}
	switch in := in.(type) {
	case map[string]any:
		if child, ok := in[path[0]]; ok {
			in = maps.Clone(in)
			in[path[0]] = putValue(child, path[1:], value)
			return in
		}
	case []any:
		if i, err := strconv.Atoi(path[0]); err == nil && i < len(in) {
			in = slices.Clone(in)
			in[i] = putValue(in[i], path[1:], value)
			return in
		}
	}
	return in
}

// encryptedDocument is the content of a file that SOPS encrypted.
type encryptedDocument struct {
	data []byte
	hash string
}

// readEncrypted removes the key of SOPS from an encrypted document. The rest is then as the author wrote
// it, except for the encrypted values. The result is nil if nothing is encrypted, or wrongly.
func readEncrypted(d *yamlfile.Document, data []byte, kind string) *encryptedDocument {
	encrypted := encryptedIn(d.Root, nil)
	key, _ := d.Lookup(sops.Key)
	if key == nil && len(encrypted) == 0 {
		return nil
	}
	if p, message, hint := checkEncryption(d, key, encrypted, kind); message != "" {
		d.Broken = true
		d.Add(p, []string{sops.Key}, message, hint)
		return nil
	}
	if _, err := sops.Parse(data); err != nil {
		d.Broken = true
		p, message, hint := yamlfile.PointOf(key), err.Error(), ""
		if failed, ok := errors.AsType[*sops.Error](err); ok {
			message, hint = failed.Message, failed.Hint
			if failed.Line > 0 {
				p = yamlfile.Point{Line: failed.Line, Column: failed.Column}
			}
		}
		d.Add(p, []string{sops.Key}, message, hint)
		return nil
	}
	sum := sha256.Sum256(data)
	for i := 0; i+1 < len(d.Root.Content); i += 2 {
		if d.Root.Content[i] == key {
			d.Root.Content = slices.Delete(d.Root.Content, i, i+2)
			break
		}
	}
	if top, ok := d.Value.(map[string]any); ok {
		delete(top, sops.Key)
	}
	d.Value = dropComments(d.Root, d.Value)
	return &encryptedDocument{data: slices.Clone(data), hash: hex.EncodeToString(sum[:])}
}

// checkEncryption reports encrypted content that must not be encrypted.
func checkEncryption(d *yamlfile.Document, key *yaml.Node, encrypted [][]string, kind string) (p yamlfile.Point, message, hint string) {
	switch {
	case kind != v1alpha1.KindMetaConfig && kind != v1alpha1.KindLayer:
		p = d.KeyPoint(sops.Key)
		if key == nil {
			p = d.ValuePoint(encrypted[0]...)
		}
		return p, "a file of kind " + kind + " can't be encrypted: Keelson reads it without a key",
			"only values of meta-config and layers may be encrypted"
	case key == nil:
		return d.ValuePoint(encrypted[0]...), "this value is encrypted by SOPS, but the file has no " + sops.Key + ": at its top",
			"take the whole file as SOPS wrote it"
	}
	encrypted = slices.DeleteFunc(encrypted, func(path []string) bool { return path[0] == sops.Key || isValue(kind, path) })
	switch len(encrypted) {
	case 0:
		return yamlfile.Point{}, "", ""
	case 1:
		message = " is encrypted, but Keelson reads it without a key"
	default:
		message = " are encrypted, but Keelson reads them without a key"
	}
	names := make([]string, len(encrypted))
	for i, path := range encrypted {
		names[i] = strings.TrimPrefix(FormatPath(path), ".")
	}
	return d.ValuePoint(encrypted[0]...), strings.Join(names, ", ") + message, encryptValues
}

// isValue reports whether a path in a file leads to a value for a chart.
func isValue(kind string, path []string) bool {
	if kind == v1alpha1.KindMetaConfig {
		return within(path, "values")
	}
	return len(path) > 3 && within(path, "components") && path[2] == "values"
}

// encryptedIn returns the paths of all encrypted values, in file order.
func encryptedIn(n *yaml.Node, path []string) [][]string {
	var out [][]string
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			out = append(out, encryptedIn(n.Content[i+1], yamlfile.Below(path, n.Content[i].Value))...)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			out = append(out, encryptedIn(item, yamlfile.Below(path, strconv.Itoa(i)))...)
		}
	case yaml.ScalarNode:
		if sops.IsEncrypted(n.Value) {
			out = append(out, path)
		}
	default:
	}
	return out
}

// dropComments removes encrypted comments from the lists below a node and its value. SOPS writes
// these comments as list items.
func dropComments(n *yaml.Node, value any) any {
	switch v := value.(type) {
	case map[string]any:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if key := n.Content[i].Value; v[key] != nil {
				v[key] = dropComments(n.Content[i+1], v[key])
			}
		}
	case []any:
		if n.Kind != yaml.SequenceNode || len(n.Content) != len(v) {
			return v // not read as one list: reported elsewhere
		}
		nodes, items := n.Content[:0], v[:0]
		for i, item := range v {
			if !sops.IsComment(item) {
				items = append(items, dropComments(n.Content[i], item))
				nodes = append(nodes, n.Content[i])
			}
		}
		n.Content = nodes
		return items
	}
	return value
}
