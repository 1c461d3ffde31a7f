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

// AsApplied returns a target as a cluster holds the object after Keelson applied it, and no other
// client changed it. The result has managedFields, but no defaults and no fields from webhooks.
// Targets are compared with it when no cluster is read. The target is not modified.
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

// appliedFields returns the fields that an API server records for the client that applies an
// object.
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

// ownersOf returns owners by which Keelson applied an object, and no other client changed it.
func ownersOf(t typed.ParseableType, object map[string]any) owners {
	set, err := appliedFields(t, object)
	if err != nil {
		set = leavesOf(t, object)
	}
	return owners{read: true, entries: []ownerEntry{{manager: v1alpha1.FieldManager, who: ownerOurs, applied: true, fields: set}}}
}

// leavesOf returns about the same fields as appliedFields. It is used where the schema lacks
// some of them, as with an object in a file: the comparison goes on.
func leavesOf(t typed.ParseableType, object map[string]any) *fieldpath.Set {
	set := &fieldpath.Set{}
	w := walker{schema: t.Schema, hollow: func(fieldpath.Path) {}, emit: func(w row) {
		for n := 1; n <= len(w.path); n++ { // a list item is owned with its fields
			if n == len(w.path) || w.path[n-1].FieldName == nil {
				set.Insert(w.path[:n].Copy())
			}
		}
	}}
	w.walk(make(fieldpath.Path, 0, pathCapacity), t.TypeRef, cellOf(object, true), cell{}, cell{})
	return set.Difference(unowned())
}

// unowned returns the fields for which an API server records no owner.
func unowned() *fieldpath.Set {
	return fieldpath.NewSet(
		fieldpath.MakePathOrDie("apiVersion"), fieldpath.MakePathOrDie("kind"),
		fieldpath.MakePathOrDie("metadata", "name"), fieldpath.MakePathOrDie("metadata", "namespace"),
	)
}
