package differ_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// A small generator of objects that API servers could hold. Values are drawn from a small set, so
// that recorded, target and live are often equal and often different.

type object = map[string]any

type list = []any

// sometimes sets a field, or omits it.
func sometimes(t *rapid.T, m object, name string, draw func() any) {
	if rapid.IntRange(0, 2).Draw(t, name+"?") > 0 {
		if v := draw(); v != nil {
			m[name] = v
		}
	}
}

func oneOf(t *rapid.T, label string, values ...any) any {
	return values[rapid.IntRange(0, len(values)-1).Draw(t, label)]
}

func word(t *rapid.T) any { return oneOf(t, "word", "a", "b", "c", "") }

func stringMap(t *rapid.T, keys ...string) any {
	m := object{}
	for _, k := range keys {
		sometimes(t, m, k, func() any { return word(t) })
	}
	return m
}

// items draws items of a keyed list, in any order.
func items(t *rapid.T, item func(key string) object, keys ...string) any {
	keys = rapid.Permutation(keys).Draw(t, "order")
	out := list{}
	for _, k := range keys[:rapid.IntRange(0, len(keys)).Draw(t, "items")] {
		out = append(out, item(k))
	}
	return out
}

func set(t *rapid.T, values ...string) any {
	return items2(items(t, func(v string) object { return object{"v": v} }, values...))
}

func items2(v any) any {
	out := list{}
	for _, item := range v.(list) {
		out = append(out, item.(object)["v"])
	}
	return out
}

// shape draws the parts of one kind that are not its identity.
type shape struct {
	apiVersion, kind string
	draw             func(*rapid.T) object
}

var shapes = []shape{
	{"apps/v1", "Deployment", deploymentSpec},
	{"v1", "Service", serviceSpec},
	{"v1", "ConfigMap", func(t *rapid.T) object {
		m := object{}
		sometimes(t, m, "data", func() any { return stringMap(t, "a", "b.c", "d") })
		sometimes(t, m, "immutable", func() any { return rapid.Bool().Draw(t, "immutable") })
		return m
	}},
	{"v1", "Secret", secretData},
	{"example.com/v1", "Widget", widgetSpec},
	{"unknown.test/v1", "Thing", func(t *rapid.T) object { return object{"spec": anyJSON(t, 3)} }},
}

func deploymentSpec(t *rapid.T) object {
	pod := object{}
	sometimes(t, pod, "containers", func() any {
		return items(t, func(name string) object {
			c := object{"name": name}
			sometimes(t, c, "image", func() any { return word(t) })
			sometimes(t, c, "args", func() any { return set(t, "-x", "-y") })
			sometimes(t, c, "env", func() any {
				return items(t, func(name string) object { return object{"name": name, "value": word(t)} }, "A", "B", "C")
			})
			sometimes(t, c, "ports", func() any { return ports(t, "containerPort") })
			sometimes(t, c, "resources", func() any {
				return object{"limits": object{"cpu": oneOf(t, "cpu", "1", "1000m", int64(1), 0.5, "500m"), "memory": oneOf(t, "memory", "1Gi", "1024Mi", "1G")}}
			})
			return c
		}, "web", "side")
	})
	sometimes(t, pod, "volumes", func() any {
		return items(t, func(name string) object {
			return object{"name": name, "emptyDir": oneOf(t, "emptyDir", object{}, object{"medium": "Memory"})}
		}, "v", "w")
	})
	sometimes(t, pod, "tolerations", func() any { return list{object{"key": word(t), "operator": "Exists"}} })
	sometimes(t, pod, "nodeSelector", func() any { return stringMap(t, "zone") })
	spec := object{"template": object{"spec": pod}}
	sometimes(t, spec, "replicas", func() any { return oneOf(t, "replicas", int64(1), int64(2), int64(5)) })
	sometimes(t, spec, "selector", func() any { return object{"matchLabels": stringMap(t, "app")} })
	sometimes(t, spec, "strategy", func() any {
		return object{"rollingUpdate": object{"maxSurge": oneOf(t, "surge", int64(1), "25%")}}
	})
	return object{"spec": spec}
}

func ports(t *rapid.T, port string) any {
	return items(t, func(key string) object {
		p := object{port: int64(80)}
		if key == "udp" {
			p["protocol"] = "UDP"
		} else {
			sometimes(t, p, "protocol", func() any { return oneOf(t, "protocol", "TCP", nil) })
		}
		sometimes(t, p, "name", func() any { return word(t) })
		return p
	}, "tcp", "udp")
}

func serviceSpec(t *rapid.T) object {
	spec := object{}
	sometimes(t, spec, "ports", func() any { return ports(t, "port") })
	sometimes(t, spec, "selector", func() any { return stringMap(t, "app", "tier") })
	sometimes(t, spec, "clusterIP", func() any { return oneOf(t, "ip", "10.0.0.1", "10.0.0.2") })
	sometimes(t, spec, "type", func() any { return oneOf(t, "type", "ClusterIP", "NodePort") })
	sometimes(t, spec, "externalIPs", func() any { return set(t, "1.1.1.1", "2.2.2.2") })
	return object{"spec": spec}
}

// secretText draws text that only Secrets have.
func secretText(t *rapid.T) string {
	return fmt.Sprintf("canary-%d", rapid.IntRange(0, 3).Draw(t, "secret"))
}

func secretData(t *rapid.T) object {
	m := object{}
	sometimes(t, m, "data", func() any {
		data := object{}
		for _, k := range []string{"a", "b"} {
			sometimes(t, data, k, func() any { return base64.StdEncoding.EncodeToString([]byte(secretText(t))) })
		}
		return data
	})
	sometimes(t, m, "type", func() any { return "Opaque" })
	return m
}

func widgetSpec(t *rapid.T) object {
	spec := object{}
	sometimes(t, spec, "scalar", func() any { return word(t) })
	sometimes(t, spec, "number", func() any { return oneOf(t, "number", int64(0), int64(1), 1.5) })
	sometimes(t, spec, "intOrString", func() any { return oneOf(t, "ios", int64(80), "80") })
	sometimes(t, spec, "struct", func() any { return stringMap(t, "a", "b") })
	sometimes(t, spec, "keyed", func() any {
		return items(t, func(id string) object {
			m := object{"id": id}
			sometimes(t, m, "v", func() any { return word(t) })
			sometimes(t, m, "nested", func() any { return ports(t, "port") })
			return m
		}, "one", "two", "three")
	})
	sometimes(t, spec, "set", func() any { return set(t, "x", "y", "z") })
	sometimes(t, spec, "atomicList", func() any { return list{object{"k": word(t)}} })
	sometimes(t, spec, "map", func() any { return stringMap(t, "k", "l") })
	sometimes(t, spec, "atomicMap", func() any { return stringMap(t, "k", "l") })
	sometimes(t, spec, "atomicStruct", func() any { return stringMap(t, "a", "b") })
	sometimes(t, spec, "unknown", func() any { return anyJSON(t, 2) })
	return object{"spec": spec}
}

// anyJSON draws a map of any values.
func anyJSON(t *rapid.T, depth int) any {
	m := object{}
	for _, k := range []string{"a", "b.c"} {
		sometimes(t, m, k, func() any {
			switch rapid.IntRange(0, 4).Draw(t, "json") {
			case 0:
				return word(t)
			case 1:
				return oneOf(t, "number", int64(1), 2.5, int64(1)<<60)
			case 2:
				return rapid.Bool().Draw(t, "bool")
			case 3:
				return list{word(t), object{"k": word(t)}}
			}
			if depth == 0 {
				return object{}
			}
			return anyJSON(t, depth-1)
		})
	}
	return m
}

// drawObject draws an object that belongs to the component.
func (s shape) drawObject(t *rapid.T) object {
	o := s.draw(t)
	meta := object{"name": "o", "namespace": "prod", "labels": object{v1alpha1.LabelComponent: component}}
	sometimes(t, meta, "annotations", func() any { return stringMap(t, "x", "example.com/y") })
	o["apiVersion"], o["kind"], o["metadata"] = s.apiVersion, s.kind, meta
	return o
}

func objectName(s shape) differ.ID {
	gvk := schema.FromAPIVersionAndKind(s.apiVersion, s.kind)
	return differ.ID{Group: gvk.Group, Kind: gvk.Kind, Namespace: "prod", Name: "o"}
}

func dropNulls(v any) any {
	switch v := v.(type) {
	case object:
		for k, child := range v {
			if child == nil {
				delete(v, k)
			} else {
				dropNulls(child)
			}
		}
	case list:
		for _, item := range v {
			dropNulls(item)
		}
	}
	return v
}

func fingerprint(t *rapid.T, v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
