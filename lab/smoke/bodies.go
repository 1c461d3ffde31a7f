package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
)

// diffBodies returns the fields in which two request bodies differ, with both values, in a fixed
// order. It ignores resourceVersion and uid, the preconditions of an update.
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
	am, aok := a.(map[string]any)
	bm, bok := b.(map[string]any)
	al, alok := a.([]any)
	bl, blok := b.([]any)
	switch {
	case reflect.DeepEqual(a, b):
	case aok && bok:
		names := map[string]bool{}
		for name := range maps.Keys(am) {
			names[name] = true
		}
		for name := range maps.Keys(bm) {
			names[name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			diffValues(path+"."+name, am[name], bm[name], out)
		}
	case alok && blok && len(al) == len(bl):
		for i := range al {
			diffValues(path+"["+strconv.Itoa(i)+"]", al[i], bl[i], out)
		}
	default:
		*out = append(*out, fmt.Sprintf("%s: %v -> %v", path, a, b))
	}
}
