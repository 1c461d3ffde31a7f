package applier_test

import (
	"fmt"
	"math/rand/v2"
)

// drawSchema draws the type of one custom resource's field, and how its values
// are drawn.
func drawSchema(r *rand.Rand, depth int) node {
	typed := func(n node, schema object) node {
		n.schema = schema
		return n
	}
	scalar := func(kind string, values ...any) node {
		schema := object{"type": kind}
		if r.IntN(2) == 0 {
			schema["default"] = val(values...).draw(dice{layers: []layer{{seed: r.Uint64()}}}, "default")
		}
		return typed(val(values...), schema)
	}
	kinds := 12
	if depth == 0 {
		kinds = 8
	}
	switch r.IntN(kinds) {
	case 0:
		return scalar("string", "a", "b", "")
	case 1:
		return scalar("integer", 0, 1, 2)
	case 2:
		return scalar("number", 0.5, 1, 2.5)
	case 3:
		return scalar("boolean", true, false)
	case 4:
		return typed(val(80, "80", "http"), object{"x-kubernetes-int-or-string": true})
	case 5:
		n := words("k", "l.m")
		if r.IntN(2) == 0 {
			n.schema["x-kubernetes-map-type"] = "atomic"
		}
		return n
	case 6:
		return typed(sub("x", "y", "z"), object{
			"type": "array", "x-kubernetes-list-type": "set", "items": object{"type": "string"},
		})
	case 7:
		return typed(
			obj("k", val("a", "b"), "n", either(val(1, 2.5), words("o")), "l", seq(2, obj("a", val(1, 2)))),
			object{"type": "object", "x-kubernetes-preserve-unknown-fields": true})
	case 8:
		n := drawStruct(r, depth)
		if r.IntN(3) == 0 {
			n.schema["x-kubernetes-map-type"] = "atomic"
		}
		return n
	case 9:
		of := drawStruct(r, depth)
		return typed(seq(2, of), object{"type": "array", "items": of.schema})
	}
	return drawKeyed(r, depth)
}

func drawStruct(r *rand.Rand, depth int) node {
	var pairs []any
	for i := range 2 + r.IntN(3) {
		pairs = append(pairs, fmt.Sprintf("f%d", i), drawSchema(r, depth-1))
	}
	return obj(pairs...)
}

func drawKeyed(r *rand.Rand, depth int) node {
	of := drawStruct(r, depth)
	properties := of.schema["properties"].(object)
	properties["id"] = object{"type": "string"}
	keys, required := list{"id"}, list{"id"}
	items := []item{{object{"id": "one"}, false, of}, {object{"id": "two"}, false, of}, {object{"id": "three"}, false, of}}
	if r.IntN(2) == 0 {
		properties["protocol"] = object{"type": "string", "default": "TCP"}
		keys = append(keys, "protocol")
		items = append(items, item{object{"id": "one", "protocol": "UDP"}, false, of})
	}
	of.schema["required"] = required
	n := keyed(items...)
	n.schema = object{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": of.schema}
	return n
}

// customShape draws a CRD and says how its objects are drawn.
func customShape(seed uint64, i int) (s shape, crd object) {
	r := roll(seed, fmt.Sprint("crd ", i))
	spec := drawStruct(r, 3)
	plural := fmt.Sprintf("drawn%ds", i)
	s = shape{apiVersion: "oracle.example.com/v1", kind: fmt.Sprintf("Drawn%d", i), resource: plural, body: obj("spec!", spec)}
	version := object{
		"name": "v1", "served": true, "storage": true,
		"schema": object{"openAPIV3Schema": object{"type": "object", "properties": object{"spec": spec.schema}}},
	}
	if i == 0 { // one without a schema of its fields
		s.body = obj("spec", spec)
		version["schema"] = object{"openAPIV3Schema": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
	}
	return s, object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": plural + ".oracle.example.com"},
		"spec": object{
			"group": "oracle.example.com", "scope": "Namespaced", "versions": list{version},
			"names": object{"plural": plural, "singular": "drawn" + fmt.Sprint(i), "kind": s.kind, "listKind": s.kind + "List"},
		},
	}
}
