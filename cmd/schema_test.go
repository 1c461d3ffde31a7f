//go:build !race

package cmd_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// widgets is a CRD with a list whose items have keys, and one with none.
const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.org}
spec:
  group: example.org
  names: {kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, size: {type: integer}}}
`

const widget = `
---
apiVersion: example.org/v1
kind: Widget
metadata: {name: w, namespace: prod}
spec: {parts: [{name: a, size: 1}, {name: b, size: 2}]}
`

const widgetSwagger = `{"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36.0"}, "paths": {}, "definitions": {
"org.example.v1.Part": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}},
"org.example.v1.Widget": {"type": "object", "x-kubernetes-group-version-kind": [{"group": "example.org", "version": "v1", "kind": "Widget"}],
  "properties": {"spec": {"type": "object", "properties": {"parts": {"type": "array", "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"], "items": {"$ref": "#/definitions/org.example.v1.Part"}}}}}}}}`

// list is what kubectl get prints of several objects.
func list(objects ...string) string {
	out := "apiVersion: v1\nkind: List\nitems:\n"
	for _, o := range objects {
		out += "- " + strings.ReplaceAll(strings.TrimSpace(o), "\n", "\n  ") + "\n"
	}
	return out
}

// TestDiffFilesSchema compares custom resources with what people have at hand:
// an item of a list is found by its key, which without a schema it can't be.
func TestDiffFilesSchema(t *testing.T) {
	t.Parallel()
	recorded, target := widget, strings.Replace(widget, "size: 2", "size: 3", 1)
	v3 := strings.NewReplacer(`"swagger": "2.0"`, `"openapi": "3.0.0"`, `"definitions": {`, `"components": {"schemas": {`,
		`#/definitions/`, `#/components/schemas/`).Replace(widgetSwagger) + "}"
	cases := map[string]struct {
		why    string
		schema string // the file; "": none
		beside string // stands beside the widget in target and live
		says   []string
	}{
		"None":    {why: "Without a schema a list is one value.", says: []string{".spec.parts @@ set"}},
		"CRD":     {why: "A CRD says more than the document that is published.", schema: widgets, says: []string{`.spec.parts[name="b"].size @@ set`}},
		"OpenAPI": {why: "What an API server publishes.", schema: v3, says: []string{`.spec.parts[name="b"].size @@ set`}},
		"Swagger": {why: "What older tools save.", schema: widgetSwagger, says: []string{`.spec.parts[name="b"].size @@ set`}},
		"List":    {why: "What kubectl get crds prints.", schema: list(settings[5:], widgets), says: []string{`.spec.parts[name="b"].size @@ set`}},
		"Bundle": {
			why:    "What projects publish has other objects, too, and comments between them.",
			schema: web + "---\n# only a comment\n---" + widgets + settings, says: []string{`.spec.parts[name="b"].size @@ set`},
		},
		"Beside": {
			why: "A CRD among the objects needs no flag.", beside: "---" + widgets, says: []string{`.spec.parts[name="b"].size @@ set`},
		},
		"OldBeside": {
			why:    "A CRD of a version of long ago is an object as any.",
			beside: "---" + strings.Replace(widgets, "k8s.io/v1", "k8s.io/v1beta1", 1), says: []string{".spec.parts @@ set"},
		},
		"FlagWins": {
			why:    "A schema that was named counts more than one that happens to be there.",
			schema: widgets, beside: "---" + strings.Replace(widgets, "x-kubernetes-list-type: map", "x-kubernetes-list-type: atomic", 1),
			says: []string{`.spec.parts[name="b"].size @@ set`},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Log(c.why)
			args := files(t, recorded+c.beside, target+c.beside, recorded+c.beside)
			if c.schema != "" {
				args = append(args, "--schema", write(t, "schema", c.schema))
			}
			keelson(t, args...).want(t, 1).says(t, c.says...).saysNot(t, "CustomResourceDefinition")
		})
	}
}

// The CRD as it will be describes what comes with it.
func TestDiffFilesSchemaOfTarget(t *testing.T) {
	t.Parallel()
	atomic := strings.Replace(widgets, "x-kubernetes-list-type: map", "x-kubernetes-list-type: atomic", 1)
	target := strings.Replace(widget, "size: 2", "size: 3", 1)
	for live, wanted := range map[string]string{atomic: widgets, "": widgets} {
		keelson(t, files(t, live+widget, wanted+target, live+widget)...).want(t, 1).says(t, `.spec.parts[name="b"].size @@ set`)
	}
	keelson(t, files(t, widget, target, widgets+widget)...).want(t, 1).says(t, `.spec.parts[name="b"].size @@ set`)
}

// Offline, too, a CRD is held if live custom resources do not satisfy its new schema. A rule of the
// same name in a file allows it, and policy test shows the rule.
func TestDiffFilesCRDSchema(t *testing.T) {
	t.Parallel()
	required := strings.Replace(widgets, "required: [name]", "required: [name, size]", 1)
	bad := strings.ReplaceAll(widget, "size: 2", "")
	args := files(t, widgets, required, widgets+widget+strings.ReplaceAll(bad, "name: w", "name: bad"))
	keelson(t, args...).want(t, 1).
		says(t, "HELD", "rule crd-schema: 1 of 2 widgets no longer satisfies the schema: prod/bad: .spec.parts[1].size is required", "1 held")
	keelson(t, files(t, widgets, required, widgets+widget)...).want(t, 1).says(t, "1 to update")
	keelson(t, files(t, widgets+bad, required+widget, widgets+bad)...).want(t, 1).says(t, "2 to update")
	args[0] = "test"
	keelson(t, append([]string{"policy"}, args...)...).want(t, 0).says(t, "crd-schema", "fires", "held")
	args[0] = "diff"
	rules := write(t, "rules", "[{name: crd-schema, path: .spec.versions, effect: allow, because: the field is unused}]")
	keelson(t, append(args, "--rules", rules)...).want(t, 1).says(t, "1 to update").saysNot(t, "HELD")
}

// The CRDs of workloads say which fields change as a whole.
func TestDiffFilesCRDs(t *testing.T) {
	t.Parallel()
	crds := filepath.Join("..", "components", "workload-controllers", "template", "crds", "apps.kruise.io_clonesets.yaml")
	set := `
apiVersion: apps.kruise.io/v1beta1
kind: CloneSet
metadata: {name: web, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, template: {}}
`
	args := files(t, set, strings.Replace(set, "app: web", "app: api", 1), set)
	// A selector changes as a whole; without the schema it would be a map as any.
	keelson(t, append(args, "--schema", crds)...).want(t, 1).says(t, ".spec.selector @@ hold")
	keelson(t, args...).want(t, 1).says(t, ".spec.selector.matchLabels.app @@ hold")
}

// An unusable --schema file is an error that names the file, the document and the accepted formats.
func TestDiffFilesSchemaTrouble(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, schema string
		says        []string
	}{
		"Empty":      {"The file holds no kind.", "", []string{"schema.yaml: no kind", "/openapi/v3"}},
		"Objects":    {"Objects describe no kind.", web, []string{"schema.yaml: no kind"}},
		"Text":       {"The document is text.", "hello", []string{"document 1", "--schema takes"}},
		"NoObject":   {"The document is neither a schema nor an object.", "a: b", []string{"document 1", "--schema takes"}},
		"OldSwagger": {"Swagger 1.2 is not supported.", `{"swagger": "1.2", "apis": []}`, []string{"document 1", "--schema takes"}},
		"BadYAML":    {"The second document is not valid YAML.", widgets + "---\n{", []string{"schema.yaml: document 2"}},
		"OldCRD": {
			"A v1beta1 CRD holds its schema elsewhere.", strings.Replace(widgets, "k8s.io/v1", "k8s.io/v1beta1", 1),
			[]string{"document 1", "apiextensions.k8s.io/v1beta1", "kubectl get crd widgets.example.org -o yaml"},
		},
		"Unserved": {"The CRD serves no version, so no object can exist.", strings.Replace(widgets, "served: true", "served: false", 1), []string{"schema.yaml: no kind"}},
		"Definition": {
			"The error names the definition with the wrong type.", strings.Replace(widgetSwagger, `"type": "integer"`, `"type": "size"`, 1),
			[]string{"document 1", "org.example.v1.Part", "size"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Log(c.why)
			keelson(t, append(files(t, "", widget, ""), "--schema", write(t, "schema", c.schema))...).want(t, 2).says(t, c.says...)
		})
	}
	broken := strings.Replace(widgets, "group: example.org", "", 1)
	keelson(t, files(t, "", broken, "")...).want(t, 2).says(t, "schema among the objects", "widgets.example.org", "spec.group")
}
