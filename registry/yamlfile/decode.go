package yamlfile

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/registry/naming"
)

// Decode decodes the document into the struct that into points to, and reports every mistake.
//
// The struct's json tags drive the decoding: a key without omitempty is required, null means that
// the key is left out, and keys are case-sensitive.
func (d *Document) Decode(into any) {
	decoder{d}.value(d.Root, d.Value, reflect.ValueOf(into).Elem(), nil)
}

// decoder fills Go values from a document.
type decoder struct{ doc *Document }

// value fills into from node n. v is the value of n as Helm reads it.
func (d decoder) value(n *yaml.Node, v any, into reflect.Value, path []string) {
	switch into.Interface().(type) {
	case metav1.Duration:
		d.duration(n, v, into, path)
		return
	case metav1.Time:
		d.time(n, v, into, path)
		return
	case intstr.IntOrString:
		d.amount(n, v, into, path)
		return
	case map[string]any:
		if m, ok := v.(map[string]any); ok {
			d.doc.checkKeys(n, m, path)
			into.Set(reflect.ValueOf(m))
			return
		}
		d.wrongType(n, v, path, "a mapping")
		return
	}
	switch into.Kind() {
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		d.value(n, v, into.Elem(), path)
	case reflect.Struct:
		d.structure(n, v, into, path)
	case reflect.Map:
		d.mapping(n, v, into, path)
	case reflect.Slice:
		d.list(n, v, into, path)
	default:
		d.scalar(n, v, into, path)
	}
}

func (d decoder) scalar(n *yaml.Node, v any, into reflect.Value, path []string) {
	switch into.Kind() {
	case reflect.String:
		if s, ok := v.(string); ok {
			into.SetString(s)
			return
		}
		d.wrongType(n, v, path, "a string")
	case reflect.Bool:
		if b, ok := v.(bool); ok {
			into.SetBool(b)
			return
		}
		d.wrongType(n, v, path, "true or false")
	case reflect.Int, reflect.Int32, reflect.Int64:
		f, ok := v.(float64)
		if ok && f == math.Trunc(f) && math.Abs(f) < 1<<53 && !into.OverflowInt(int64(f)) {
			into.SetInt(int64(f))
			return
		}
		d.wrongType(n, v, path, "a whole number")
	case reflect.Float64:
		if f, ok := v.(float64); ok {
			into.SetFloat(f)
			return
		}
		d.wrongType(n, v, path, "a number")
	default:
		d.doc.Add(PointOf(n), path, "Keelson can't read a "+into.Type().String(), "")
	}
}

func (d decoder) duration(n *yaml.Node, v any, into reflect.Value, path []string) {
	s, ok := v.(string)
	if !ok {
		d.wrongType(n, v, path, "a duration such as 90s or 5m")
		return
	}
	parsed, err := time.ParseDuration(s)
	if err != nil || parsed < 0 {
		d.doc.Add(PointOf(n), path, fmt.Sprintf("%q is not a duration such as 90s or 5m", s), "")
		return
	}
	into.Set(reflect.ValueOf(metav1.Duration{Duration: parsed}))
}

func (d decoder) time(n *yaml.Node, v any, into reflect.Value, path []string) {
	s, ok := v.(string)
	if !ok {
		d.wrongType(n, v, path, "a time such as 2026-11-09T00:00:00+01:00")
		return
	}
	parsed, err := time.Parse(time.RFC3339, s)
	if err != nil {
		d.doc.Add(PointOf(n), path, fmt.Sprintf("%q is not a time such as 2026-11-09T00:00:00+01:00", s), "")
		return
	}
	into.Set(reflect.ValueOf(metav1.Time{Time: parsed}))
}

// amount reads a count of at least one, or a percentage.
func (d decoder) amount(n *yaml.Node, v any, into reflect.Value, path []string) {
	var amount intstr.IntOrString
	switch v := v.(type) {
	case float64:
		amount = intstr.FromInt32(int32(max(0, min(v, math.MaxInt32))))
		if v != math.Trunc(v) || v != float64(amount.IntVal) {
			amount.IntVal = 0
		}
	case string:
		percent, ok := strings.CutSuffix(v, "%")
		if number, err := strconv.Atoi(percent); ok && err == nil && number <= 100 {
			amount = intstr.FromString(v)
			amount.IntVal = int32(number)
		}
	}
	if amount.IntVal < 1 {
		d.wrongType(n, v, path, "a whole number from 1 on, or a percentage such as 25%")
		return
	}
	if amount.Type == intstr.String {
		amount.IntVal = 0
	}
	into.Set(reflect.ValueOf(amount))
}

// structure fills a struct and reports unknown and missing keys.
func (d decoder) structure(n *yaml.Node, v any, into reflect.Value, path []string) {
	m, ok := v.(map[string]any)
	if !ok || n.Kind != yaml.MappingNode {
		d.wrongType(n, v, path, "a mapping")
		return
	}
	fields := map[string]field{}
	collectFields(into, fields)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		if _, known := fields[key]; !known {
			d.doc.Add(PointOf(n.Content[i]), Below(path, key), fmt.Sprintf("unknown key %q", key),
				naming.Suggest(key, slices.Sorted(maps.Keys(fields))))
		}
	}
	for name, f := range fields {
		sub := Below(path, name)
		key, node := childNode(n, name)
		v := asWritten(m, key)
		switch {
		case node != nil && v != nil:
			d.value(node, v, f.value, sub)
			if f.required && v == "" {
				d.doc.Add(PointOf(node), sub, fmt.Sprintf("%s must not be empty", name), "")
			}
		case f.required:
			d.doc.Add(d.doc.placeFor(n, path), sub, fmt.Sprintf("%s is missing", name), "")
		}
	}
}

// asWritten returns the value of a key of a struct. The key "on" of danger rules is a boolean in
// YAML 1.1, so Helm reads it as "true". Here this key can only mean "on".
func asWritten(m map[string]any, key *yaml.Node) any {
	if key == nil {
		return nil
	}
	if v, ok := m[key.Value]; ok || key.Value != "on" {
		return v
	}
	return m["true"]
}

// placeFor returns the position for a missing key: the key above its mapping, or the top of the
// file.
func (d *Document) placeFor(n *yaml.Node, path []string) Point {
	if len(path) == 0 {
		return Point{1, 1}
	}
	if key, _ := d.Lookup(path...); key != nil {
		return PointOf(key)
	}
	return PointOf(n)
}

// field is one key of a struct.
type field struct {
	value    reflect.Value
	required bool
}

// collectFields lists the keys of a struct, including the keys of inlined structs.
func collectFields(v reflect.Value, into map[string]field) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case !f.IsExported() || name == "-":
		case name == "":
			collectFields(v.Field(i), into)
		default:
			required := !strings.Contains(options, "omitempty")
			into[name] = field{value: v.Field(i), required: required}
		}
	}
}

func (d decoder) mapping(n *yaml.Node, v any, into reflect.Value, path []string) {
	m, ok := v.(map[string]any)
	if !ok || n.Kind != yaml.MappingNode {
		d.wrongType(n, v, path, "a mapping")
		return
	}
	into.Set(reflect.MakeMapWithSize(into.Type(), len(m)))
	element := into.Type().Elem()
	for i := len(n.Content) - 2; i >= 0; i -= 2 {
		key := n.Content[i].Value
		d.doc.checkKey(n.Content[i], m, path)
		if into.MapIndex(reflect.ValueOf(key)).IsValid() {
			continue // a duplicate: the last one counts
		}
		item := reflect.New(element).Elem()
		if m[key] != nil || element.Kind() != reflect.Struct {
			d.value(n.Content[i+1], m[key], item, Below(path, key))
		}
		into.SetMapIndex(reflect.ValueOf(key), item)
	}
}

func (d decoder) list(n *yaml.Node, v any, into reflect.Value, path []string) {
	list, ok := v.([]any)
	if !ok || n.Kind != yaml.SequenceNode || len(list) != len(n.Content) {
		d.wrongType(n, v, path, "a list")
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), len(list), len(list)))
	for i, item := range n.Content {
		d.value(item, list[i], into.Index(i), Below(path, strconv.Itoa(i)))
	}
}

func (d decoder) wrongType(n *yaml.Node, v any, path []string, want string) {
	hint := ""
	if want == "a string" && n.Kind == yaml.ScalarNode && n.Value != "" {
		hint = fmt.Sprintf("quote it: %q", n.Value)
	}
	name := "this"
	if len(path) > 0 {
		name = path[len(path)-1]
		if _, err := strconv.Atoi(name); err == nil && len(path) > 1 {
			name = path[len(path)-2] + "[" + name + "]"
		}
	}
	d.doc.Add(PointOf(n), path, fmt.Sprintf("%s must be %s, not %s", name, want, Describe(v)), hint)
}

// Describe names a value for an error message.
func Describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return strconv.Quote(v)
	case bool:
		return fmt.Sprintf("the boolean %t", v)
	case float64:
		return "the number " + strconv.FormatFloat(v, 'f', -1, 64)
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	default:
		return fmt.Sprintf("%T", v)
	}
}
