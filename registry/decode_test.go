package registry_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/registry"
)

const metaHeader = "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\n"

// FuzzDecode holds three properties of the strict decoder: it never panics,
// every mistake stands inside the file, and what it accepts it reads exactly
// as Helm does.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", metaHeader, metaHeader + "values: {a: [1, {b: yes}], c: |\n  x\n}\n", metaHeader + "values:\n  on: 1\n  010: 2\n",
		"a: &a [*a]\n", "? [a]\n: b\n", "\xff", "---\n---\n", "!!binary x", "%YAML 1.1\n---\na: b\n", "\ufeffa: b", "{a: 1, a: 2}",
		"apiVersion: keelson.io/v1alpha1\nkind: Fleet\nname: x\ndanger:\n- name: a\n  on: [add]\n  effect: hold\n  because: x\n",
		"apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector:\n  matchExpressions: [{key: a, operator: In}]\ncomponents: {a: }\n",
		"apiVersion: keelson.io/v1alpha1\nkind: Images\nimages: {a: {repository: x/y, tag: v1, into: {ref: a.b}}}\n",
		"apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: x\ntimeout: 5m\ndependsOn: [a, a]\n",
		"apiVersion: keelson.io/v1alpha1\nkind: Pipeline\nstages:\n- {name: a, clusterSelector: {}, maxConcurrent: 10%, bake: 1h, windows: [{cron: 0 9 * * *, duration: 1h, timeZone: UTC}], " +
			"before: [{name: a, cel: \"true\"}, {name: b, job: {template: a.yaml}}], after: [{name: a, prometheus: {address: \"http://a\", query: \"$(cluster)\", operator: <, threshold: 1}}]}\n",
		"apiVersion: keelson.io/v1alpha1\nkind: Freeze\nclusterSelector: {}\ncomponents: [a]\nfrom: 2026-11-09T00:00:00+01:00\nreason: x\n",
		"apiVersion: batch/v1\nkind: Job\nspec: {backoffLimit: 1, template: {metadata: {labels: {keelson.io/a: b}}, spec: {containers: [{name: a}]}}}\n",
		"apiVersion: keelson.io/v1alpha1\nkind: Cluster\nconnection: {secret: {name: x}}\nlabels: {a/b: c}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + strings.Count(string(data), "\u0085") +
			strings.Count(string(data), "\u2028") + strings.Count(string(data), "\u2029") + 2
		for _, p := range registry.DecodeAny(data) {
			if p.At.Line < 0 || p.At.Line > lines || p.Message == "" {
				t.Errorf("%+v is not in a file of %d lines", p, lines)
			}
		}
		values, problems := registry.DecodeMeta(data)
		if len(problems) > 0 {
			return
		}
		var want struct {
			Values map[string]any `json:"values"`
		}
		if err := yaml.Unmarshal(data, &want); err != nil {
			t.Fatalf("accepted what Helm does not: %v", err)
		}
		if diff := cmp.Diff(want.Values, values); diff != "" {
			t.Errorf("read otherwise than by Helm (-helm +keelson):\n%s", diff)
		}
	})
}

func TestPath(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, in string
		want    []string
		bad     bool
	}{
		"Empty":      {why: "Nothing is the root.", in: ""},
		"Dot":        {why: "A dot is the root.", in: "."},
		"Keys":       {why: "The usual case.", in: ".a.b-c.d_1", want: []string{"a", "b-c", "d_1"}},
		"NoDot":      {why: "People leave the first dot out.", in: "a.b", want: []string{"a", "b"}},
		"Item":       {why: "An item is its number.", in: ".a[2].b", want: []string{"a", "2", "b"}},
		"Quoted":     {why: "Keys with dots are quoted.", in: `.a."b.c/d".e`, want: []string{"a", "b.c/d", "e"}},
		"Brackets":   {why: "The form of jq works too.", in: `.a["b.c"].d`, want: []string{"a", "b.c", "d"}},
		"Empty key":  {why: "A key may be empty.", in: `.a.""`, want: []string{"a", ""}},
		"Double dot": {why: "A key was forgotten.", in: "a..b", bad: true},
		"End":        {why: "A key was forgotten.", in: "a.", bad: true},
		"Open":       {why: "A bracket is not closed.", in: "a[2", bad: true},
		"Word":       {why: "An item is a number.", in: "a[x]", bad: true},
		"Quote":      {why: "A quote is not closed.", in: `a."b`, bad: true},
		"OpenQuoted": {why: "A bracket is not closed.", in: `a["b"`, bad: true},
		"Junk":       {why: "Nothing may follow a bracket but a step.", in: `a[1]b`, bad: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := registry.ParsePath(c.in)
			if (err != nil) != c.bad || !cmp.Equal(got, c.want) && err == nil {
				t.Fatalf("%s ParsePath(%q) = %q, %v", c.why, c.in, got, err)
			}
			if err == nil {
				again, err := registry.ParsePath(registry.FormatPath(got))
				if err != nil || !cmp.Equal(again, got) {
					t.Errorf("%q was written as %s, which is read as %q, %v", got, registry.FormatPath(got), again, err)
				}
			}
		})
	}
}
