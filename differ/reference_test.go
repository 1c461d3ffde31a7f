package differ_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// TestReference holds docs/reference/danger-rules.md, which is made from the catalogue;
// -update rewrites it.
func TestReference(t *testing.T) {
	t.Parallel()
	rules, err := differ.BuiltInRules(v1alpha1.ProfileBaseline)
	if err != nil {
		t.Fatal(err)
	}
	got := reference(rules)
	const file = "../docs/reference/danger-rules.md"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // documentation
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); go test ./differ -run TestReference -update rewrites it:\n%s", file, diff)
	}
}

// referenced is one rule with all of its paths and kinds.
type referenced struct {
	v1alpha1.DangerRule
	kinds, paths []string
}

func reference(rules []v1alpha1.DangerRule) string {
	var all []referenced
	count := map[v1alpha1.Effect]int{}
	for _, r := range rules {
		i := slices.IndexFunc(all, func(one referenced) bool { return one.Name == r.Name })
		if i < 0 {
			i = len(all)
			all = append(all, referenced{DangerRule: r})
			count[r.Effect]++
		}
		for _, kind := range kindsOf(r.Match) {
			if !slices.Contains(all[i].kinds, kind) {
				all[i].kinds = append(all[i].kinds, kind)
			}
		}
		if r.Path != "" && !slices.Contains(all[i].paths, r.Path) {
			all[i].paths = append(all[i].paths, r.Path)
		}
	}
	slices.SortFunc(all, func(a, b referenced) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	fmt.Fprintf(&b, `# Danger rules that are built in

This page is made from the catalogue (`+"`go test ./differ -run TestReference -update`"+`). It has %d rules: %d hold, %d warn, %d keep.

- **hold**: the change waits until it is approved in git. On a creation it is a warning, where the rule names `+"`create-object`"+`.
- **warn**: the change is applied, and shown on top of diff, preview, pull request and status.
- **keep**: the live value stays.

A rule of the same name in `+"`fleet.yaml`, `project.yaml` or `component.yaml`"+` replaces one of these. `+"`keelson policy list --explain`"+` prints them with the rules of a fleet.

| Rule | Effect | Objects | Events | Why | Instead |
|---|---|---|---|---|---|
`, len(all), count[v1alpha1.EffectHold], count[v1alpha1.EffectWarn], count[v1alpha1.EffectKeep])
	for _, r := range all {
		because := r.Because
		if r.Source != "" {
			because += fmt.Sprintf(" ([source](%s))", r.Source)
		}
		fmt.Fprintf(&b, "| <a id=%q></a>`%s` | %s | %s | %s | %s | %s |\n", r.Name, r.Name, r.Effect, strings.Join(r.kinds, ", "), eventsOf(r.On), because, r.Fix)
	}
	return b.String()
}

func kindsOf(m v1alpha1.ObjectMatch) []string {
	switch {
	case len(m.Kinds) > 0:
		return m.Kinds
	case m.Group != "":
		return []string{"all of " + m.Group}
	}
	return []string{"any"}
}

func eventsOf(on []v1alpha1.Event) string {
	if len(on) == 0 {
		return "add, change, remove"
	}
	texts := make([]string, len(on))
	for i, event := range on {
		texts[i] = string(event)
	}
	return strings.Join(texts, ", ")
}
