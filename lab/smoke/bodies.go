package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// diffBodies returns the fields in which two request bodies differ, with both values, in a fixed
// order. It ignores resourceVersion and uid, the preconditions of an update.
func diffBodies(before, after json.RawMessage) (out []string) {
	var a, b map[string]any
	must.Do(json.Unmarshal(before, &a))
	must.Do(json.Unmarshal(after, &b))
	for _, object := range []map[string]any{a, b} {
		if meta, ok := object["metadata"].(map[string]any); ok {
			delete(meta, "resourceVersion")
			delete(meta, "uid")
		}
	}
	diffValues("", a, b, &out)
	return out
}

func diffValues(path string, a, b any, out *[]string) {
	am, aok := a.(map[string]any)
	bm, bok := b.(map[string]any)
	al, alok := a.([]any)
	bl, blok := b.([]any)
	switch {
	case reflect.DeepEqual(a, b):
	case aok && bok:
		for _, name := range sets.List(sets.KeySet(am).Union(sets.KeySet(bm))) {
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
