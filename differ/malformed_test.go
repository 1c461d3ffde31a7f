package differ_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

// thing returns an object of a kind without a schema, which may hold any value.
func thing(spec any) object {
	return object{
		"apiVersion": "unknown.test/v1", "kind": "Thing", "spec": spec,
		"metadata": object{"name": "o", "namespace": "prod", "labels": object{v1alpha1.LabelComponent: component}},
	}
}

// nestedIn puts a value at the end of a chain of maps and lists with the given number of levels.
func nestedIn(v any, levels int) any {
	for i := range levels {
		if i%2 == 0 {
			v = list{v}
		} else {
			v = object{"a": v}
		}
	}
	return v
}

// malformedStates returns a state for each side that has the object; the other sides are sound.
func malformedStates(o, sound object) map[string]differ.State {
	id := differ.ID{Group: "unknown.test", Kind: "Thing", Namespace: "prod", Name: "o"}
	at := yamlfile.Position{File: "templates/thing.yaml", Line: 3}
	return map[string]differ.State{
		"recorded object":                        {ID: id, Recorded: o, Target: &renderer.Object{Content: sound}, Live: sound},
		"target object (templates/thing.yaml:3)": {ID: id, Recorded: sound, Target: &renderer.Object{Content: o, Source: at}, Live: sound},
		"live object":                            {ID: id, Recorded: sound, Target: &renderer.Object{Content: sound}, Live: o},
	}
}

// refusesAll fails unless the state gives an error with all of these texts, and an empty plan.
func refusesAll(t *testing.T, state differ.State, says ...string) {
	t.Helper()
	first := differ.State{ID: differ.ID{Kind: "ConfigMap", Name: "before"}, Recorded: object{}}
	plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{first, state}, differ.Policy{Component: component})
	if err == nil || len(plan.Changes) > 0 {
		t.Fatalf("there are %d changes, and the error is %v", len(plan.Changes), err)
	}
	for _, s := range append(says, "Thing.unknown.test prod/o: ") {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error does not say %q: %v", s, err)
		}
	}
	for range 5 { // the order of maps must not matter
		if _, again := differ.Compare(t.Context(), schemas(t), []differ.State{state, first}, differ.Policy{Component: component}); again == nil || again.Error() != err.Error() {
			t.Fatalf("the same arguments give another error: %v", again)
		}
	}
	if _, err := differ.Try(t.Context(), schemas(t), []differ.State{state}, differ.Policy{Component: component}); err == nil || !strings.Contains(err.Error(), says[0]) {
		t.Errorf("Try says %v", err)
	}
}

// An object that is no JSON, or is nested too deeply, gives an error that names the object, the
// side and the path. The plan is then empty.
func TestMalformed(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		spec any
		path string
		want string
	}{
		"NaN":       {"It equals nothing, not even itself.", object{"a": math.NaN(), "b": math.NaN()}, ".spec.a", "NaN"},
		"Infinite":  {"JSON has no such number.", list{int64(1), object{"x": math.Inf(-1)}}, ".spec[1].x", "-Inf"},
		"Number":    {"It would not equal the same int64.", object{"a": json.Number("1")}, ".spec.a", "json.Number"},
		"Int":       {"It would not equal the same int64.", object{"a": list{1}}, ".spec.a[0]", "Go type int"},
		"Float32":   {"It would not equal the same float64.", float32(1), ".spec", "float32"},
		"Unsigned":  {"It would not equal the same int64.", uint64(1), ".spec", "uint64"},
		"StringMap": {"Nothing looks into it.", object{"a.b/c": map[string]string{"a": "b"}}, ".spec.a.b/c", "map[string]string"},
		"Strings":   {"Nothing looks into it.", object{"a": []string{"a"}}, ".spec.a", "[]string"},
		"Channel":   {"It can't be sent.", object{"a": make(chan int)}, ".spec.a", "chan int"},
		"Pointer":   {"It is no value.", object{"a": new(string)}, ".spec.a", "*string"},
		"Text":      {"Something else would be sent: JSON has UTF-8 alone.", object{"a": "\xff"}, ".spec.a", "UTF-8"},
		"Name":      {"Something else would be sent: JSON has UTF-8 alone.", object{"\xff": "a"}, ".spec.\ufffd", "UTF-8"},
		"Deep":      {"Recursion would overflow the stack.", nestedIn("x", 10_000), ".spec.a[0].a[0].a[0].a…", "more than 500 levels"},
		"DeepEmpty": {"However little there is at the end.", nestedIn(nil, differ.MaxDepth), ".spec.a[0].a[0].a[0].a…", "more than 500 levels"},
		"Endless":   {"A map that holds itself has no end.", endless(), ".spec.a.a.a.a.a.a.a…", "more than 500 levels"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for side, state := range malformedStates(thing(c.spec), thing(object{})) {
				refusesAll(t, state, "the "+side+": "+c.path, c.want, c.path+": ")
			}
		})
	}
}

func endless() object {
	o := object{}
	o["a"] = o
	return o
}

// Objects that are nearly malformed are compared like any other object.
func TestNotMalformed(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]any{
		"Deepest":  nestedIn("x", differ.MaxDepth-1),
		"Numbers":  list{math.MaxFloat64, math.SmallestNonzeroFloat64, math.Copysign(0, -1), int64(math.MinInt64), int64(math.MaxInt64), true, nil},
		"Names":    object{"": "", "a.b[0]": "", "\x00": "\u2028", "ключ": "值"},
		"Nothing":  nil,
		"Largest":  strings.Repeat("x", differ.MaxBytes-500),
		"NaNText":  list{"NaN", "1e400", ".inf", "null"},
		"BigFloat": 1e300,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := thing(spec)
			plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{
				ID: differ.ID{Group: "unknown.test", Kind: "Thing", Namespace: "prod", Name: "o"}, Recorded: o, Target: &renderer.Object{Content: o}, Live: o,
			}}, differ.Policy{Component: component})
			if err != nil || !plan.Settled() {
				t.Errorf("it is %s, and the error is %v", plan.Summary(), err)
			}
		})
	}
}

// A target that no API server accepts is refused before any object is changed. If live or the
// record is as large, whatever stored it, there is a plan.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	const size = 10 << 20
	many, items := object{}, make(list, size/100)
	for i := range items {
		items[i] = strings.Repeat("x", 100)
		many[fmt.Sprint(i)] = items[i]
	}
	cases := map[string]struct {
		why  string
		spec any
		path string
	}{
		"Text": {"One value is it.", object{"a": "x", "big": strings.Repeat("x", size)}, ".spec.big: "},
		"Item": {"One item is it.", object{"l": list{"x", object{"v": strings.Repeat("x", size)}}}, ".spec.l[1].v: "},
		"Map":  {"The many keys are it.", object{"a": "x", "m": many}, ".spec.m: "},
		"List": {"The many items are it.", object{"a": "x", "l": items}, ".spec.l: "},
		"Name": {"A name is it.", object{strings.Repeat("x", size): "x"}, ".spec: "},
		"Deep": {"The way there is not shown to its end.", object{"big": nestedIn(strings.Repeat("x", size), 400)}, ".spec.big.a[0].a[0].a[0]…: "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for side, state := range malformedStates(thing(c.spec), thing(object{})) {
				if state.Target.Content["spec"] != nil && strings.HasPrefix(side, "target") {
					refusesAll(t, state, "the "+side+": "+c.path, "too large", fmt.Sprint(differ.MaxBytes))
					continue
				}
				plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{state}, differ.Policy{Component: component})
				if err != nil || len(plan.Changes) != 1 {
					t.Errorf("%s: %d changes, and the error is %v", side, len(plan.Changes), err)
				}
			}
		})
	}
}

func widget(spec any) object {
	return object{
		"apiVersion": "example.com/v1", "kind": "Widget", "spec": spec,
		"metadata": object{"name": "o", "namespace": "prod", "labels": object{v1alpha1.LabelComponent: component}},
	}
}

var widgetID = differ.ID{Group: "example.com", Kind: "Widget", Namespace: "prod", Name: "o"}

// If a value in a target has another type than in the schema, the plan names the path. Nothing of
// the object is sent, because the API server would refuse it.
func TestWrongTypes(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		spec any
		want string
	}{
		"TextForStruct":  {"Nothing can be merged into text.", object{"struct": "oops"}, ".spec.struct: the schema has a map there, and git has text"},
		"ListForStruct":  {"A list has no fields.", object{"struct": list{"oops"}}, ".spec.struct: the schema has a map there, and git has a list"},
		"MapForList":     {"A map has no items.", object{"keyed": object{"id": "a"}}, ".spec.keyed: the schema has a list there, and git has a map"},
		"TextForItem":    {"An item needs keys.", object{"keyed": list{"oops"}}, ".spec.keyed[0]: the schema has a map there, and git has text"},
		"MapForText":     {"The value of a map.", object{"map": object{"k": object{}}}, ".spec.map.k: the schema has text there, and git has a map"},
		"TextForNumber":  {"A quoted number is the usual mistake.", object{"number": "1"}, ".spec.number: the schema has a number there, and git has text"},
		"NumberForText":  {"A number without quotes is the other one.", object{"scalar": int64(1)}, ".spec.scalar: the schema has text there, and git has a number"},
		"BoolForText":    {"As is yes.", object{"scalar": true}, ".spec.scalar: the schema has text there, and git has true or false"},
		"InAtomicList":   {"Also in what is compared as a whole.", object{"atomicList": list{object{"k": "a"}, object{"k": 1.5}}}, ".spec.atomicList[1].k: the schema has text there, and git has a number"},
		"InAtomicStruct": {"Also in what is compared as a whole.", object{"atomicStruct": object{"a": list{}}}, ".spec.atomicStruct.a: the schema has text there, and git has a list"},
		"MapForQuantity": {"A quantity is text or a number.", object{"quantity": object{}}, ".spec.quantity: the schema has text or a number there, and git has a map"},
		"Spec":           {"A whole object.", "oops", ".spec: the schema has a map there, and git has text"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, live := widget(c.spec), widget(object{"scalar": "x", "number": int64(1)})
			for what, state := range map[string]differ.State{
				"update": {Recorded: live, Target: &renderer.Object{Content: target}, Live: live, OwnersRead: true},
				"create": {Target: &renderer.Object{Content: target}},
			} {
				state.ID = widgetID
				plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{state}, differ.Policy{Component: component})
				if err != nil {
					t.Fatal(err)
				}
				got := plan.Changes[0]
				if got.Op != differ.OpNone || got.State != differ.StateHeld || got.Patch != nil || got.RecordStale || !strings.Contains(got.Because, c.want) {
					t.Errorf("%s, %s: %s, %s, because %s, want %s", c.why, what, got.Op, got.State, got.Because, c.want)
				}
			}
		})
	}
}

// Valid types in unusual forms.
func TestRightTypes(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]object{
		"Null":     {"struct": nil, "keyed": nil, "number": nil},
		"Float":    {"number": 1.0},
		"Ports":    {"intOrString": "http"},
		"Unknown":  {"unknown": object{"a": list{object{"b": true}, "x", int64(1)}}},
		"NoSuch":   {"nosuch": object{"a": list{}}},
		"Empty":    {"struct": object{}, "keyed": list{}, "atomicList": list{}},
		"Quantity": {"quantity": 0.5},
		"Nested":   {"keyed": list{object{"id": "a", "nested": list{object{"port": int64(80)}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{
				ID: widgetID, Target: &renderer.Object{Content: widget(spec)},
			}}, differ.Policy{Component: component})
			if err != nil || plan.Changes[0].Op != differ.OpCreate {
				t.Errorf("%s because %s, and the error is %v", plan.Summary(), plan.Changes[0].Because, err)
			}
		})
	}
}

// Metadata of any shape, on any side, causes no panic: the result is an error that names the
// object, a refusal, or a plan.
func TestMalformedMetadata(t *testing.T) {
	t.Parallel()
	entry := func(edit object) list {
		e := object{"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": object{"f:data": object{}}}
		maps.Copy(e, edit)
		return list{e}
	}
	cases := map[string]struct {
		why, want string // want is in the live side's error
		meta      any
	}{
		"List":           {why: "It has no fields.", meta: list{"oops"}},
		"Text":           {why: "It has no fields.", meta: "oops"},
		"Labels":         {why: "No component can be told.", meta: object{"labels": int64(1)}},
		"Label":          {why: "No component has such a name.", meta: object{"labels": object{v1alpha1.LabelComponent: list{component}}}},
		"Annotations":    {why: "There may be kubectl's copy of a Secret in it.", meta: object{"annotations": list{}}},
		"Deleting":       {why: "The object is being deleted, whatever the timestamp holds.", meta: object{"deletionTimestamp": object{}}},
		"UID":            {why: "No object has such a UID.", meta: object{"uid": list{}}},
		"Managers":       {why: "Unreadable owners are not treated as no owner.", want: "managedFields", meta: object{"managedFields": "oops"}},
		"ManagersMap":    {why: "Unreadable owners are not treated as no owner.", want: "managedFields", meta: object{"managedFields": object{}}},
		"Entry":          {why: "Unreadable owners are not treated as no owner.", want: "managedFields", meta: object{"managedFields": list{"oops"}}},
		"Manager":        {why: "Unreadable owners are not treated as no owner.", want: "managedFields", meta: object{"managedFields": entry(object{"manager": int64(1)})}},
		"Fields":         {why: "Unreadable owners are not treated as no owner.", want: `of manager "kubectl"`, meta: object{"managedFields": entry(object{"fieldsV1": "oops"})}},
		"FieldsList":     {why: "Unreadable owners are not treated as no owner.", want: `of manager "kubectl"`, meta: object{"managedFields": entry(object{"fieldsV1": list{}})}},
		"FieldsElement":  {why: "Unreadable owners are not treated as no owner.", want: `of manager "kubectl"`, meta: object{"managedFields": entry(object{"fieldsV1": object{"oops": object{}}})}},
		"FieldsDeep":     {why: "A client chooses the depth of a set of fields.", want: "managedFields", meta: object{"managedFields": entry(object{"fieldsV1": deepFields(20_000)})}},
		"FieldsNull":     {why: "An entry without fields owns none.", meta: object{"managedFields": entry(object{"fieldsV1": nil})}},
		"ManagersNumber": {why: "A value that is not valid JSON can't be read.", want: "managedFields", meta: object{"managedFields": list{math.NaN()}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			configMap := func(meta any, data string) object {
				return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": object{"a": data}}
			}
			right := object{"name": "c", "namespace": "prod"}
			id := differ.ID{Kind: "ConfigMap", Namespace: "prod", Name: "c"}
			for side, state := range map[string]differ.State{
				"recorded": {Recorded: configMap(c.meta, "x"), Target: &renderer.Object{Content: configMap(right, "y")}, Live: configMap(right, "z")},
				"target":   {Recorded: configMap(right, "x"), Target: &renderer.Object{Content: configMap(c.meta, "y")}, Live: configMap(right, "z")},
				"live":     {Recorded: configMap(right, "x"), Target: &renderer.Object{Content: configMap(right, "y")}, Live: configMap(c.meta, "z")},
				"unwanted": {Recorded: configMap(right, "x"), Live: configMap(c.meta, "z")},
				"create":   {Target: &renderer.Object{Content: configMap(c.meta, "y")}},
			} {
				state.ID, state.RecordedUID, state.OwnersRead = id, "u", true
				plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{state}, differ.Policy{Component: component})
				switch {
				case side == "live" && c.want != "":
					if err == nil || len(plan.Changes) > 0 || !strings.Contains(err.Error(), id.String()) || !strings.Contains(err.Error(), c.want) {
						t.Errorf("%s %s: the error is %v, want %s", side, c.why, err, c.want)
					}
				case err != nil:
					t.Errorf("%s %s: %v", side, c.why, err)
				}
			}
		})
	}
}

func deepFields(levels int) any {
	v := any(object{})
	for range levels {
		v = object{"f:a": v}
	}
	return v
}

// A stack far smaller than Go's default is enough for the deepest object.
func TestDeepestObjectNeedsLittleStack(t *testing.T) {
	previous := debug.SetMaxStack(4 << 20)
	defer debug.SetMaxStack(previous)
	var v any = "x"
	for range differ.MaxDepth - 3 {
		v = map[string]any{"a": v}
	}
	o := map[string]any{"apiVersion": "unknown.test/v1", "kind": "Thing", "spec": v}
	live := map[string]any{"apiVersion": "unknown.test/v1", "kind": "Thing", "spec": map[string]any{}}
	plan, err := differ.Compare(t.Context(), nil, []differ.State{{
		ID: differ.ID{Group: "unknown.test", Kind: "Thing"}, Recorded: live, Target: &renderer.Object{Content: o}, Live: live,
	}}, differ.Policy{})
	if err != nil || plan.Count(differ.OpUpdate) != 1 {
		t.Errorf("%d updates, error %v", plan.Count(differ.OpUpdate), err)
	}
}

// A malformed path in the table of fixed fields would match nothing.
func TestFixedFields(t *testing.T) {
	t.Parallel()
	for _, path := range differ.FixedPaths() {
		if p, err := differ.ParsePattern(path); err != nil || len(p) == 0 {
			t.Errorf("path %q: %v", path, err)
		}
	}
}
