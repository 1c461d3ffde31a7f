package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const reference = `
apiVersion: apiextensionsv1.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Set, listKind: SetList, plural: sets, singular: set, shortNames: [s]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: AGE, type: date, jsonPath: .metadata.creationTimestamp}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: integer, format: int32}
              mode: {type: string, enum: [A, B], nullable: true}
              max: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
              rest: {x-kubernetes-preserve-unknown-fields: true}
              marks: {type: object, additionalProperties: {type: string}}
              terms:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [key]
                items: {type: object, required: [key], properties: {key: {type: string, default: k}}}
`

func parse(t *testing.T, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict([]byte(text), &crd); err != nil {
		t.Fatal(err)
	}
	return &crd
}

// Each kind of rejection, loss or different merge is reported at its path. Allowing more is no
// difference.
func TestCompare(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ why, from, to, wants string }{
		"Same":        {"Nothing differs.", "", "", ""},
		"Looser":      {"Our schema accepts more values than the reference.", ", enum: [A, B]", "", ""},
		"Optional":    {"Objects with the field are still accepted.", "required: [size]", "required: []", ""},
		"AnyType":     {"A field of any type accepts null anyway.", "rest: {x-", "rest: {nullable: true, x-", ""},
		"MoreColumns": {"Our table has one more column.", "Columns: [{", "Columns: [{name: N, type: string, jsonPath: .metadata.name}, {", ""},
		"Group":       {"It is another API.", "group: example.com", "group: example.org", `sets: group: "example.com", ours "example.org"`},
		"ShortName":   {"A user may type the short name.", "shortNames: [s]", "shortNames: [t]", "sets: shortName s is missing"},
		"Version":     {"A client may ask for the version.", "name: v1", "name: v2", "sets: version v1 is missing"},
		"Storage":     {"Objects in etcd have that version.", "storage: true", "storage: false", "sets/v1: storage: true, ours false"},
		"Status":      {"A write of the status would change the spec.", "subresources: {status: {}}", "", "sets/v1: subresources"},
		"Column":      {"A user may read the column.", ".creationTimestamp", ".deletionTimestamp", "sets/v1: column AGE"},
		"Field":       {"It would be pruned.", "mode: {", "made: {", "sets/v1.spec: field mode is missing"},
		"OwnField":    {"It would be lost on the way back.", "mode: {", "more: {type: string}\n              mode: {", "sets/v1.spec: field more is ours"},
		"Type":        {"It refuses numbers.", "{type: integer,", "{type: string,", `sets/v1.spec.size: type: "integer", ours "string"`},
		"Format":      {"It refuses large numbers.", "{type: object, additionalProperties: {type: string}}", "{type: object, additionalProperties: {type: string, format: date}}", "sets/v1.spec.marks{}: format: none, ours \"date\""},
		"Enum":        {"It refuses B.", "enum: [A, B]", "enum: [A]", "sets/v1.spec.mode: enum"},
		"Null":        {"It refuses null.", ", nullable: true", "", "sets/v1.spec.mode: null is refused"},
		"Required":    {"It refuses what has no mode.", "required: [size]", "required: [size, mode]", "sets/v1.spec: mode is required"},
		"Default":     {"It writes something else.", "default: k", "default: j", `sets/v1.spec.terms[].key: default: "k", ours "j"`},
		"IntOrString": {"It refuses one of both.", "x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]", "type: string", "sets/v1.spec.max: x-kubernetes-int-or-string: true, ours false"},
		"Unknown":     {"What is unknown would be pruned.", "{x-kubernetes-preserve-unknown-fields: true}", "{type: object}", "sets/v1.spec.rest: x-kubernetes-preserve-unknown-fields: true, ours false"},
		"Keys":        {"Two writers would take each other's items.", "x-kubernetes-list-map-keys: [key]", "x-kubernetes-list-map-keys: [name]", "sets/v1.spec.terms: x-kubernetes-list-map-keys"},
		"Atomic":      {"The last writer would take all of it.", "x-kubernetes-list-type: map", "x-kubernetes-list-type: atomic", `sets/v1.spec.terms: x-kubernetes-list-type: "map", ours "atomic"`},
		"Limit":       {"It refuses long ones.", "additionalProperties: {type: string}", "additionalProperties: {type: string, maxLength: 3}", "sets/v1.spec.marks{}: maxLength: none, ours 3"},
		"Rule":        {"A rule refuses what it likes.", "required: [size]", "required: [size]\n            x-kubernetes-validations: [{rule: 'self.size > 0'}]", "sets/v1.spec: x-kubernetes-validations"},
		"Map":         {"Values would be pruned.", ", additionalProperties: {type: string}", "", "sets/v1.spec.marks{}: a schema: true, ours false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours := strings.Replace(reference, c.from, c.to, 1)
			if c.from != "" && ours == reference {
				t.Fatalf("%q changes nothing", c.from)
			}
			var got []string
			for _, d := range compare(parse(t, reference), parse(t, ours)) {
				got = append(got, d.Path+": "+d.What)
			}
			if all := strings.Join(got, "\n"); c.wants == "" && all != "" || !strings.Contains(all, c.wants) {
				t.Errorf("%s Found %q, want %q", c.why, got, c.wants)
			}
		})
	}
}

// A difference passes only while it is listed with a reason. A listed difference must exist.
func TestIntended(t *testing.T) {
	t.Parallel()
	narrowed := strings.Replace(reference, "enum: [A, B]", "enum: [A]", 1)
	for name, c := range map[string]struct{ why, ours, intended, wants, fails string }{
		"None":      {"All is the same.", reference, "", "but for 0 intended", ""},
		"Unlisted":  {"The difference is not in the list.", narrowed, "", "sets/v1.spec.mode: enum", "1 differences are not as intended"},
		"Listed":    {"The difference is in the list, with a reason.", narrowed, `[{path: sets/v1.spec.mode, what: 'enum: ["A","B"], ours ["A"]', why: B was never read}]`, "intended: B was never read", ""},
		"Stale":     {"A listed difference that does not exist would mislead a reader.", reference, `[{path: sets/v1.spec.mode, what: 'enum: ["A","B"], ours ["A"]', why: B was never read}]`, "and isn't so", "not as intended"},
		"Another":   {"It is of another CRD.", reference, `[{path: maps/v1.spec, what: gone, why: so it is}]`, "but for 0 intended", ""},
		"Reasonles": {"A listed difference needs a reason.", narrowed, `[{path: sets/v1.spec.mode, what: 'enum: ["A","B"], ours ["A"]'}]`, "", "needs a path, what is different, and why"},
		"Misspelt":  {"An entry with an unknown key must not be ignored.", narrowed, `[{where: sets}]`, "", "where"},
		"NoCRD":     {"It is something else.", "kind: ConfigMap", "", "", "no CustomResourceDefinition"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := func(name, text string) string {
				path := filepath.Join(dir, name)
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				return path
			}
			args := []string{file("reference", reference), file("ours", c.ours)}
			if c.intended != "" {
				args = append([]string{"--intended", file("intended", c.intended)}, args...)
			}
			var out bytes.Buffer
			err := run(args, &out)
			if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) || !strings.Contains(out.String(), c.wants) {
				t.Errorf("%s It says %q, %v; want %q, %q", c.why, out.String(), err, c.wants, c.fails)
			}
		})
	}
}

// The shipped CRDs can replace OpenKruise's, except for the differences that kruise.yaml gives
// reasons for.
func TestShipped(t *testing.T) {
	t.Parallel()
	shipped, err := filepath.Glob("../../components/workload-controllers/template/crds/*.yaml")
	if err != nil || len(shipped) == 0 {
		t.Fatalf("%d CRDs ship, %v", len(shipped), err)
	}
	for _, file := range shipped {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			dir := os.Getenv("KEELSON_CRDS")
			if dir == "" {
				dir = "../../../shared/kruise-crds"
			}
			theirs := filepath.Join(dir, filepath.Base(file))
			if _, err := os.Stat(theirs); os.IsNotExist(err) {
				t.Skip("OpenKruise's CRDs are not here: set KEELSON_CRDS to a folder of CRDs, or run make crd-compat CRDS=DIR")
			}
			var out bytes.Buffer
			if err := run([]string{"--intended", "kruise.yaml", theirs, file}, &out); err != nil {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}
