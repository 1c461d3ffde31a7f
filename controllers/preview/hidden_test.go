package preview_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/controllers/preview"
	"github.com/keelson-io/keelson/differ"
)

// Objects with long names, of which a harmless rule warns, must not push the name of a rule
// about another object out of the comment: one author may write both.
func TestWarningsAreNotHidden(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 20, 200} {
		var changes []differ.Change
		for i := range n {
			changes = append(changes, differ.Change{
				ID: differ.ID{Kind: "Service", Name: fmt.Sprintf("%s%d", strings.Repeat("a", 240), i)}, Op: differ.OpCreate, State: differ.StateChanged,
				Warnings: []differ.Warning{
					{Rule: "service-exposed", Because: "it opens"},
					{Rule: "service-without-pods", Because: "it has none"},
					{Rule: "service-target-port", Because: "it is another", Paths: []string{strings.Repeat("p", 80)}},
				},
			})
		}
		changes = append(changes, differ.Change{
			ID: differ.ID{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding", Name: "evil"}, Op: differ.OpCreate, State: differ.StateChanged,
			Warnings: []differ.Warning{{Rule: "rbac-admin-binding", Because: "a subject gains an administrator's role"}},
		})
		p := &preview.Preview{Base: "a", Head: "b", Groups: []preview.Group{
			{Component: "web", From: "v1.0.0", To: "v1.1.0", Clusters: []string{"one"}, Plan: differ.Plan{Changes: changes}},
		}}
		text := p.Markdown()
		_, section, found := strings.Cut(text, "### Warnings")
		section, _, _ = strings.Cut(section, "###")
		if !found || !strings.Contains(section, "rbac-admin-binding") || len(text) > 64<<10 {
			t.Errorf("%d objects before it: the section is there: %t, and does not name the rule, in %d bytes:\n%.500s", n, found, len(text), section)
		}
	}
}
