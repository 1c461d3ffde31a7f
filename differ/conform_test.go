package differ_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

const widgetCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
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
            required: [size]
            properties:
              size: {type: integer, maximum: 9}
              color: {type: string, enum: [red, blue]}
              note: {type: string, nullable: true}
              mode: {type: string, default: fast}
`

// TestMisfits: fields that do not fit the schema of their kind are found. A warning is about a
// field that an API server with another schema may accept.
func TestMisfits(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, object string
		want        []string
	}{
		"Fits": {
			"What a stock chart gives is right: nulls are absent, quantities are text or numbers.",
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, labels: null}, spec: {replicas: 2, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}},
			 spec: {nodeSelector: null, containers: [{name: a, image: b, livenessProbe: {httpGet: {port: http, path: /}}, resources: {limits: {cpu: 0.5, memory: 1Gi, "example.com/gpu": 1}}}]}}}}`,
			nil,
		},
		"Text":   {"A number is wanted: a chart without a schema was given text.", `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: two, selector: {}, template: {}}}`, []string{".spec.replicas must be of type integer"}},
		"Number": {"The data of a ConfigMap are text.", `{apiVersion: v1, kind: ConfigMap, metadata: {name: web}, data: {port: 80}}`, []string{".data.port must be of type string"}},
		"Annotation": {
			"So are annotations, also where the kind is unknown, and a key may have points in it.",
			`{apiVersion: example.com/v1, kind: Unknown, metadata: {name: web, annotations: {"example.com/on": true}}, spec: {a: 1}}`,
			[]string{".metadata.annotations.example.com/on must be of type string"},
		},
		"List":     {"A map stands where a list belongs.", `{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: {port: 80}}}`, []string{".spec.ports must be of type array"}},
		"Port":     {"A name or a number will do, and nothing else.", `{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80, targetPort: [8080]}]}}`, []string{".spec.ports[0].targetPort must be of type integer or string"}},
		"Quantity": {"A quantity is no map.", `{apiVersion: v1, kind: ResourceQuota, metadata: {name: web}, spec: {hard: {cpu: {of: 1}}}}`, []string{".spec.hard.cpu must be of type string"}},
		"Unknown": {
			"A field that is written wrongly, or that a later Kubernetes has.",
			`{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selectors: {a: b}}}`,
			[]string{"warning: .spec.selectors is unknown, and an API server drops it"},
		},
		"Enum": {
			"A later Kubernetes may know more.",
			`{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {restartPolicy: Sometimes, containers: [{name: a}]}}`,
			[]string{"warning: .spec.restartPolicy is none of [Always Never OnFailure]"},
		},
		"Required": {
			"The documents say so of fields that may be left out, too.",
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {template: {spec: {containers: [{image: b}]}}}}`,
			[]string{"warning: .spec.selector is required", "warning: .spec.template.spec.containers[0].name is required"},
		},
		"Open": {
			"What a CRD's schema or a raw patch says is anything.",
			`{apiVersion: apps/v1, kind: ControllerRevision, metadata: {name: web}, revision: 1, data: {a: {b: 1}}}`, nil,
		},
		"CRD":                  {"The kind of kinds has itself in it.", widgetCRD, nil},
		"Widget":               {"Kinds of CRDs are known, too.", `{apiVersion: example.com/v1, kind: Widget, metadata: {name: web}, spec: {size: 10, color: pink, shape: round}}`, []string{".spec.color is none of [red blue]", ".spec.size should be less than or equal to 9", "warning: .spec.shape is unknown, and an API server drops it"}},
		"Required of a widget": {"A webhook may fill it in.", `{apiVersion: example.com/v1, kind: Widget, metadata: {name: web}, spec: {note: null, color: null}}`, []string{"warning: .spec.size is required"}},
		"Null of a default":    {"An API server puts the default in its place.", `{apiVersion: example.com/v1, kind: Widget, metadata: {name: web}, spec: {size: 1, mode: null}}`, nil},
		"Version":              {"It has no such version: an API server says so.", `{apiVersion: example.com/v2, kind: Widget, metadata: {name: web}, spec: {size: two}}`, nil},
	}
	crd := &renderer.Target{Hash: "crd", Objects: []*renderer.Object{{Content: parsed(t, widgetCRD)}}}
	c := differ.NewChecker()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := &renderer.Target{Hash: name, Objects: []*renderer.Object{{Content: parsed(t, tc.object)}}}
			found, err := c.Cluster([]*renderer.Target{target, crd}).Misfits(target)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range found {
				text := m.Path + " " + m.Problem
				if m.Warning {
					text = "warning: " + text
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s -want +got:\n%s", tc.why, diff)
			}
		})
	}
}

func parsed(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestMisfitsQuote: a message quotes a short text, and never what may be a secret.
func TestMisfitsQuote(t *testing.T) {
	t.Parallel()
	of := func(kind, value string) differ.SchemaViolation {
		return differ.SchemaViolation{ID: differ.ID{Kind: kind, Name: "web"}, Path: ".a", Problem: "must be of type integer", Value: value}
	}
	cases := map[string]struct {
		why       string
		violation differ.SchemaViolation
		want      string
	}{
		"Short":   {"It helps to find the mistake.", of("Service", "two"), `Service web: .a must be of type integer, and is "two"`},
		"Longest": {"As long as is quoted.", of("Service", strings.Repeat("x", 40)), `Service web: .a must be of type integer, and is "` + strings.Repeat("x", 40) + `"`},
		"Long":    {"It would fill the screen.", of("Service", strings.Repeat("x", 41)), "Service web: .a must be of type integer"},
		"Secret":  {"It may be one.", of("Secret", "two"), "Secret web: .a must be of type integer"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.violation.Blame(nil).Message; got != c.want {
				t.Errorf("%s It says %q, want %q", c.why, got, c.want)
			}
		})
	}
}
