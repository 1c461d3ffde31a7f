package differ

import (
	"encoding/json"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v4/typed"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// AsApplied is a target as a cluster holds it once Keelson has applied it and
// nobody else touched it: with the managedFields that say so, and without what only
// that cluster knows, its defaults and what its webhooks add. It is what a target
// is compared with when no cluster is asked. The target is not modified.
func AsApplied(schemas Schemas, target map[string]any) (map[string]any, error) {
	live := maps.Clone(canonical(target))
	apiVersion, _ := live["apiVersion"].(string)
	kind, _ := live["kind"].(string)
	t, _ := schemas.typeOf(schema.FromAPIVersionAndKind(apiVersion, kind))
	set, err := appliedFields(t, live)
	if err != nil {
		return nil, err
	}
	data, err := set.ToJSON()
	if err != nil {
		return nil, fmt.Errorf("encode its fields: %w", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("decode its fields: %w", err)
	}
	metadata, _ := live["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	metadata["managedFields"] = []any{map[string]any{
		"manager": v1alpha1.FieldManager, "operation": string(metav1.ManagedFieldsOperationApply), "apiVersion": apiVersion,
		"fieldsType": "FieldsV1", "fieldsV1": fields,
	}}
	live["metadata"] = metadata
	return live, nil
}

// appliedFields are the fields that an API server notes for who applies an object.
func appliedFields(t typed.ParseableType, object map[string]any) (*fieldpath.Set, error) {
	value, err := t.FromUnstructured(object, typed.AllowDuplicates)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	set, err := value.ToFieldSet()
	if err != nil {
		return nil, fmt.Errorf("list its fields: %w", err)
	}
	return set.Difference(unowned()), nil
}

// ownersByRecord says that Keelson owns what was recorded.
func (c *comparison) ownersByRecord() {
	set, err := appliedFields(c.typ, c.recorded)
	if err != nil {
		set = c.leavesOfRecord()
	}
	c.who = owners{read: true, entries: []ownerEntry{{manager: v1alpha1.FieldManager, who: ownerOurs, applied: true, fields: set}}}
}

// leavesOfRecord are the same fields, about, where the schema lacks some, as one in a file
// may: that does not stop the comparison.
func (c *comparison) leavesOfRecord() *fieldpath.Set {
	set := &fieldpath.Set{}
	w := walker{schema: c.typ.Schema, hollow: func(fieldpath.Path) {}, emit: func(w row) {
		for n := 1; n <= len(w.path); n++ { // a list item is owned with its fields
			if n == len(w.path) || w.path[n-1].FieldName == nil {
				set.Insert(w.path[:n].Copy())
			}
		}
	}}
	w.walk(make(fieldpath.Path, 0, pathCapacity), c.typ.TypeRef, cellOf(c.recorded, true), cell{}, cell{})
	return set.Difference(unowned())
}

// unowned are the fields that an API server lets nobody own.
func unowned() *fieldpath.Set {
	return fieldpath.NewSet(
		fieldpath.MakePathOrDie("apiVersion"), fieldpath.MakePathOrDie("kind"),
		fieldpath.MakePathOrDie("metadata", "name"), fieldpath.MakePathOrDie("metadata", "namespace"),
	)
}
