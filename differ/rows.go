package differ

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
)

// rows returns the leaf fields that are not settled, with the data of Secrets masked.
func (c *comparison) rows(recorded map[string]any) []row {
	var out []row
	c.hollow = nil
	w := walker{schema: c.typ.Schema, hollow: func(p fieldpath.Path) { c.hollow = append(c.hollow, p.Copy()) }, emit: func(w row) {
		if w.same(w.t, w.l) && w.same(w.r, w.t) || identity(w.path) {
			return
		}
		if c.normal(&w, w.t) {
			return
		}
		w.path = w.path.Copy()
		out = append(out, w)
	}}
	side := func(object map[string]any) cell {
		return cell{value: c.mask.apply(object), present: object != nil}
	}
	w.walk(make(fieldpath.Path, 0, pathCapacity), c.typ.TypeRef, side(recorded), side(c.target), side(c.live))
	return out
}

// pathCapacity is deeper than most objects.
const pathCapacity = 16

// identity reports whether a field identifies the object. Such fields never differ.
func identity(p fieldpath.Path) bool {
	name := func(i int) string {
		if p[i].FieldName == nil {
			return ""
		}
		return *p[i].FieldName
	}
	switch len(p) {
	case 1:
		return name(0) == "apiVersion" || name(0) == "kind"
	case 2:
		return name(0) == "metadata" && (name(1) == "name" || name(1) == "namespace")
	}
	return false
}

// normal reports whether the live value is the API server's normal form of the given value, as an
// earlier answer has shown.
func (c *comparison) normal(w *row, sent cell) bool {
	if c.normals == nil && len(c.state.Normal) > 0 {
		c.normals = make(map[string]bool, len(c.state.Normal))
		for _, hash := range c.state.Normal {
			c.normals[hash] = true
		}
	}
	return len(c.normals) > 0 && c.normals[c.hash(w, sent)]
}

// bytes identifies a row by its path, the sent value and the live value.
func (w *row) bytes(sent cell) []byte {
	data, err := json.Marshal([]any{w.path.String(), sent.value, w.l.value})
	if err != nil {
		// No JSON, so from neither an API server nor a chart.
		return fmt.Appendf(nil, "%s %#v %#v", w.path, sent.value, w.l.value)
	}
	return data
}

// hash identifies a normal form, which is valid for one version of the schema. A field that is
// absent because its whole list item was removed has another hash than a field that is absent in
// its item.
func (c *comparison) hash(w *row, sent cell) string {
	data := append(w.bytes(sent), c.schema...)
	if w.removed {
		data = append(data, " with its item"...)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

func hashOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// Residue returns the hashes of the differences between a target and the API server's answer to its
// apply. Defaulting and admission made these differences, so they do not count. The hashes are
// added to [State.Normal].
func Residue(schemas Schemas, change Change, answer map[string]any, policy Policy) []string {
	c := comparison{
		mask: maskFor(change.ID, policy.MaskKey), target: change.Patch, live: canonical(answer),
	}
	c.typ, c.schema = schemas.typeOf(schema.FromAPIVersionAndKind(change.APIVersion, change.ID.Kind))
	if checkObject("live object", c.live) != nil {
		return nil // Compare returns the error
	}
	var out []string
	for _, w := range c.rows(change.Patch) {
		out = append(out, c.hash(&w, w.t))
	}
	return out
}
