//go:build !race

package registry_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// Each danger rule is asked about every field that changes, and each health rule about
// objects, so a file has a bounded number of them: one more is a mistake, with its line.
func TestRulesAreBounded(t *testing.T) {
	t.Parallel()
	rules := func(n int) string {
		var b strings.Builder
		b.WriteString("danger:\n")
		for i := range n {
			fmt.Fprintf(&b, "- {name: r%d, path: .data, effect: hold, because: x}\n", i)
		}
		return b.String()
	}
	for _, c := range []struct {
		n    int
		want string // of each file; empty: no problem
	}{
		{200, ""},
		{201, "yaml:205:3: there are 201 danger rules, and at most 200 are read"},
		{5_000, "yaml:205:3: there are 5000 danger rules, and at most 200 are read"},
	} {
		found := problemsOfRules(t, rules(c.n), rules(c.n)+"health:\n"+
			strings.Repeat("- {match: {kinds: [Widget]}, current: 'true', because: x}\n", c.n))
		for _, p := range found {
			if c.want == "" || !strings.Contains(p, c.want) && !strings.Contains(p, "health rules, and at most 200 are read") {
				t.Errorf("%d rules: %v", c.n, p)
			}
		}
		if want := map[bool]int{true: 0, false: 3}[c.want == ""]; len(found) != want { // of the fleet, and two of the component
			t.Errorf("%d rules: %d problems, want %d", c.n, len(found), want)
		}
	}
}

// A rule's texts stand at every field that it holds, so a file must not multiply a long one.
func TestRuleTextsAreBounded(t *testing.T) {
	t.Parallel()
	most, more := strings.Repeat("x", 1000), strings.Repeat("x", 1001)
	name, long := strings.Repeat("x", 100), strings.Repeat("x", 101)
	got := problemsOfRules(t, "danger:\n"+
		"- {name: "+name+", path: .data, effect: hold, because: "+most+", fix: "+most+"}\n"+
		"- {name: "+long+", path: .data, effect: hold, because: "+more+", fix: "+more+"}\n",
		"health:\n"+
			"- {match: {kinds: [Widget]}, current: 'true', because: "+most+"}\n"+
			"- {match: {kinds: [Gadget]}, current: 'true', because: "+more+"}\n")
	const advice = " (shorten it; a comment in the file may say more)"
	want := []string{
		"components/web/component.yaml:6:56: because has 1001 bytes; at most 1000 are allowed" + advice,
		"fleet.yaml:6:10: name has 101 bytes; at most 100 are allowed" + advice,
		"fleet.yaml:6:149: because has 1001 bytes; at most 1000 are allowed" + advice,
		"fleet.yaml:6:1157: fix has 1001 bytes; at most 1000 are allowed" + advice,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// problemsOfRules returns the problems of a fleet that has rules in fleet.yaml and in a component.
func problemsOfRules(t *testing.T, ofFleet, ofComponent string) []string {
	t.Helper()
	const header = "apiVersion: keelson.io/v1alpha1\nkind: "
	g := gittest.NewRepo(t)
	g.Write("fleet.yaml", header+"Fleet\nname: x\n"+ofFleet)
	g.Write("components/web/component.yaml", header+"Component\nnamespace: x\n"+ofComponent)
	g.Write("components/web/template/Chart.yaml", "name: x\n")
	g.Write("clusters/a/cluster.yaml", header+"Cluster\nconnection: {context: a}\n")
	g.Write("clusters/a/web.yaml", header+"MetaConfig\nversion: HEAD\n")
	g.Commit()
	repo, err := registry.Open(t.Context(), gitrepo.Options{URL: g.Path, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	f, err := repo.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var problems []string
	for _, p := range f.Problems {
		problems = append(problems, p.Error())
	}
	return problems
}
