//go:build !race

package cmd_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPolicyList(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.edit("fleet.yaml", "name: test", `name: test
danger:
- name: fewer-replicas
  path: .spec.replicas
  effect: deny
  because: we never go down
- name: hosts
  match: {kinds: [Ingress], namespace: prod}
  path: .spec.rules
  on: [remove]
  when: old != null
  effect: hold
  scope: field
  because: names are contracts`)
	f.commit()
	f.keelson("policy", "list").want(t, 0).says(t, "names are contracts", "hold field", "Ingress prod/*", "when old != null", "overridden by fleet", "any change")
	f.keelson("policy", "list", "web").want(t, 0).says(t, "we never go down")
	f.keelson("policy", "list", "unknown").want(t, 2).says(t, `no cluster gets a component "unknown"`)

	type listed struct {
		Name, From, OverriddenBy string
		Paths                    []string
	}
	var got []listed
	decode(t, f.keelson("policy", "list", "-o", "json").want(t, 0).out, &got)
	find := func(name, from string) listed {
		i := slices.IndexFunc(got, func(l listed) bool { return l.Name == name && l.From == from })
		if i < 0 {
			t.Fatalf("no rule %s of %s", name, from)
		}
		return got[i]
	}
	if r := find("fewer-replicas", "built-in"); r.OverriddenBy != "fleet" {
		t.Errorf("got %+v, want it overridden", r)
	}
	if r := find("fewer-replicas", "fleet"); r.OverriddenBy != "" {
		t.Errorf("got %+v, want it to hold", r)
	}
	if r := find("storage-class", "built-in"); r.OverriddenBy != "" || len(r.Paths) != 4 {
		t.Errorf("got %+v, want four paths", r)
	}
}

// rules writes danger rules and returns the arguments that name them.
func rules(t *testing.T, content string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--rules", path}
}

const imageRule = `- {name: images, path: ".spec.template.spec.containers[*].image", on: [change], when: new.endsWith(":v2"), effect: hold, because: v2 is bad}`

func TestDiffFilesRules(t *testing.T) {
	t.Parallel()
	target := strings.ReplaceAll(web, "web:v1", "web:v2")
	cases := map[string]struct {
		why, rules string
		code       int
		says       string
	}{
		"Holds":     {"A rule from a file holds.", imageRule, 1, "rule images: v2 is bad"},
		"None":      {"An empty file has no rules.", "", 1, "1 to update"},
		"Unknown":   {"A misspelt key must not make a rule that holds nothing.", "- {name: a, pth: .spec, effect: hold, because: b}", 2, `unknown field "pth"`},
		"NoList":    {"Rules are a list.", "rules: []", 2, "no list of danger rules"},
		"Component": {"A component.yaml has such a list.", "kind: Component\nnamespace: web\ndanger:\n" + imageRule, 1, "rule images: v2 is bad"},
		"TwoLists":  {"The second one must not be lost.", "[]\n---\n[]", 2, "more than one list"},
		"Condition": {"A condition is checked.", "- {name: a, path: .spec, when: 'new <', effect: hold, because: b}", 2, `danger rule "a": when: line 1`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Log(c.why)
			keelson(t, append(files(t, web, target, web), rules(t, c.rules)...)...).want(t, c.code).says(t, c.says)
		})
	}
	keelson(t, append([]string{"diff", "prod"}, rules(t, imageRule)...)...).want(t, 2).says(t, "--rules is for files")
}

func TestPolicyTest(t *testing.T) {
	t.Parallel()
	target := strings.NewReplacer("web:v1", "web:v2", "replicas: 2", "replicas: 3").Replace(web)
	given := append([]string{"policy", "test"}, files(t, web, target, web)[1:]...)
	type tried struct {
		Path, Event, Rule, Outcome, Action string
	}
	var got []tried
	text := strings.Replace(imageRule, "on: [change]", "on: [add]", 1) + "\n" + strings.Replace(imageRule, "name: images", "name: second", 1)
	decode(t, keelson(t, append(append(given, rules(t, text)...), "-o", "json")...).want(t, 0).out, &got)
	const image = `.spec.template.spec.containers[name="web"].image`
	want := []tried{
		{".spec.replicas", "change", "fewer-replicas", "condition is false", "set"},
		{image, "change", "images", "other event", "hold"},
		{image, "change", "second", "fires", "hold"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	keelson(t, given...).want(t, 0).says(t, "fewer-replicas", "condition is false")
	keelson(t, append([]string{"policy", "test"}, files(t, web, web, web)[1:]...)...).want(t, 0).says(t, "no rule fires")
	keelson(t, append([]string{"policy", "test"}, files(t, namespace, "", namespace)[1:]...)...).want(t, 0).says(t, "delete-Namespace", "fires", "held")
	keelson(t, "policy", "test").want(t, 2).says(t, "--recorded")
}

const namespace = `
apiVersion: v1
kind: Namespace
metadata: {name: prod}
`
