package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
)

// diffBodies returns the fields in which two request bodies differ, with their
// values, in order. The guards of an update are no fields of the object.
func diffBodies(before, after json.RawMessage) ([]string, error) {
	var a, b map[string]any
	if err := json.Unmarshal(before, &a); err != nil {
		return nil, fmt.Errorf("decode request: %w", err)
	}
	if err := json.Unmarshal(after, &b); err != nil {
		return nil, fmt.Errorf("decode request: %w", err)
	}
	for _, object := range []map[string]any{a, b} {
		if meta, ok := object["metadata"].(map[string]any); ok {
			delete(meta, "resourceVersion")
			delete(meta, "uid")
		}
	}
	var out []string
	diffValues("", a, b, &out)
	return out, nil
}

func diffValues(path string, a, b any, out *[]string) {
	if reflect.DeepEqual(a, b) {
		return
	}
	switch a := a.(type) {
	case map[string]any:
		if b, ok := b.(map[string]any); ok {
			names := slices.Sorted(maps.Keys(a))
			for name := range b {
				if _, both := a[name]; !both {
					names = append(names, name)
				}
			}
			for _, name := range names {
				diffValues(path+"."+name, a[name], b[name], out)
			}
			return
		}
	case []any:
		if b, ok := b.([]any); ok && len(a) == len(b) {
			for i := range a {
				diffValues(path+"["+strconv.Itoa(i)+"]", a[i], b[i], out)
			}
			return
		}
	}
	*out = append(*out, fmt.Sprintf("%s: %v -> %v", path, a, b))
}
