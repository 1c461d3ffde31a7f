package differ

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v4/typed"
)

// objectView is how a comparison reads the objects of one identity: by their type and its schema, with
// secret data masked, and with the normal forms that an API server has shown.
type objectView struct {
	mask mask
	typ  typed.ParseableType
	hash string   // of the schema that typ is of
	seen []string // [State.Normal]

	normals map[string]bool // seen; nil until a row needs them
}

// rows returns the leaf fields that are not settled, with the data of Secrets masked. hollow are the
// maps and lists that are wanted empty, and are not empty in live.
func (v *objectView) rows(recorded, target, live map[string]any) (out []row, hollow []fieldpath.Path) {
	w := walker{schema: v.typ.Schema, hollow: func(p fieldpath.Path) { hollow = append(hollow, p.Copy()) }, emit: func(w row) {
		if w.same(w.t, w.l) && w.same(w.r, w.t) || identity(w.path) || v.isNormal(&w, w.t) {
			return
		}
		w.path = w.path.Copy()
		out = append(out, w)
	}}
	v.walk(&w, recorded, target, live)
	return out, hollow
}

// walk visits the leaf fields of three objects, with the data of Secrets masked.
func (v *objectView) walk(w *walker, recorded, target, live map[string]any) {
	side := func(object map[string]any) cell {
		return cell{value: v.mask.apply(object), present: object != nil}
	}
	w.walk(make(fieldpath.Path, 0, pathCapacity), v.typ.TypeRef, side(recorded), side(target), side(live))
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

// isNormal reports whether the live value is the API server's normal form of the given value, as an
// earlier answer has shown.
func (v *objectView) isNormal(w *row, sent cell) bool {
	if v.normals == nil && len(v.seen) > 0 {
		v.normals = make(map[string]bool, len(v.seen))
		for _, hash := range v.seen {
			v.normals[hash] = true
		}
	}
	return len(v.normals) > 0 && v.normals[v.hashOf(w, sent)]
}

// hashOf identifies a normal form, which is valid for one version of the schema. A field that is
// absent because its whole list item was removed has another hash than a field that is absent in
// its item.
func (v *objectView) hashOf(w *row, sent cell) string {
	data := append(w.bytes(sent), v.hash...)
	if w.removed {
		data = append(data, " with its item"...)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
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

func hashOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// Residue returns the hashes of the differences between a target and the API server's answer to its
// apply. Defaulting and admission made these differences, so they do not count. The hashes are
// added to [State.Normal].
func Residue(schemas Schemas, change Change, answer map[string]any, policy Policy) []string {
	view, live := objectView{mask: maskFor(change.ID, policy.MaskKey)}, canonical(answer)
	view.typ, view.hash = schemas.typeOf(schema.FromAPIVersionAndKind(change.APIVersion, change.ID.Kind))
	if checkObject("live object", live) != nil {
		return nil // Compare returns the error
	}
	var out []string
	rows, _ := view.rows(change.Patch, change.Patch, live)
	for i := range rows {
		out = append(out, view.hashOf(&rows[i], rows[i].t))
	}
	return out
}
