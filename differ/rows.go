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

// rows are the leaf fields that are not settled, Secret data masked.
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
		return cell{value: c.mask.of(object), present: object != nil}
	}
	w.walk(make(fieldpath.Path, 0, pathCapacity), c.typ.TypeRef, side(recorded), side(c.target), side(c.live))
	return out
}

// pathCapacity is deeper than most objects are.
const pathCapacity = 16

// identity fields tell which object it is; they don't differ.
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

// normal reports whether the API server has shown the live value to be what it
// makes of the given one.
func (c *comparison) normal(w *row, sent cell) bool {
	if c.normals == nil && len(c.state.Normal) > 0 {
		c.normals = make(map[string]bool, len(c.state.Normal))
		for _, hash := range c.state.Normal {
			c.normals[hash] = true
		}
	}
	return len(c.normals) > 0 && c.normals[c.hash(w, sent)]
}

// bytes tells a row from every other by its path, what was sent and what is there.
func (w *row) bytes(sent cell) []byte {
	data, err := json.Marshal([]any{w.path.String(), sent.value, w.l.value})
	if err != nil {
		// Not JSON, so not from an API server or a chart.
		return fmt.Appendf(nil, "%s %#v %#v", w.path, sent.value, w.l.value)
	}
	return data
}

// hash tells a normal form, which holds as long as the schema. That a field has
// none in its item says nothing about the field once the item is gone.
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

// Residue returns the hashes of the differences that remain between a target
// and the object with which the API server answered its apply: what defaulting
// and admission made of it, and no difference. They go into [State.Normal].
func Residue(schemas Schemas, change Change, answer map[string]any, policy Policy) []string {
	c := comparison{
		mask: maskFor(change.ID, policy.MaskKey), target: change.Patch, live: canonical(answer),
	}
	c.typ, c.schema = schemas.typeOf(schema.FromAPIVersionAndKind(change.APIVersion, change.ID.Kind))
	if checkObject("live object", c.live) != nil {
		return nil // Compare will say so
	}
	var out []string
	for _, w := range c.rows(change.Patch) {
		out = append(out, c.hash(&w, w.t))
	}
	return out
}
