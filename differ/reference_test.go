package differ_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// TestReference checks docs/reference/danger-rules.md against the catalogue; -update rewrites the
// file.
func TestReference(t *testing.T) {
	t.Parallel()
	rules, err := differ.BuiltInRules(v1alpha1.ProfileBaseline)
	if err != nil {
		t.Fatal(err)
	}
	got := reference(rules) + kindsTable(t, rules) + controllerTable()
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
	if diff := gocmp.Diff(string(want), got); diff != "" {
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
  A deletion in the cluster approves nothing: an object that was deleted there is created as it was recorded, and its change still waits.
- **warn**: the change is applied, and shown on top of diff, preview, pull request and status.
- **keep**: the live value stays.

A rule of the same name in `+"`fleet.yaml`"+` replaces one of these, and so does one in `+"`component.yaml`"+`, unless the component has a project. `+"`keelson policy list --explain`"+` prints them with the rules of a fleet.

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

// withoutRules returns the built-in kinds that no rule names, with the reason.
func withoutRules() map[string]string {
	const answer = "the API server answers it, and stores nothing"
	return map[string]string{
		"Binding": answer, "TokenReview": answer, "SelfSubjectReview": answer, "SubjectAccessReview": answer, "TokenRequest": answer,
		"Pod":             "the rules on pods, which are for all kinds, read it",
		"PodTemplate":     "the rules on pods, which are for all kinds, read it",
		"Event":           "it is a message, and no program acts on it alone",
		"ComponentStatus": "the API server makes it up, and stores nothing",
		"CSINode":         "the kubelet writes it", "ResourceSlice": "the driver of the devices writes it",
		"CSIStorageCapacity": "the CSI driver writes it", "IPAddress": "the API server writes it",
		"ControllerRevision": "the workload's controller writes it, and its data can't change",
		"ServiceCIDR":        "its ranges can't change, and the API server keeps one in use",
		"DeviceClass":        "a change is about devices that are allocated later",
		"ResourceClaim":      "its spec can't change", "ResourceClaimTemplate": "its spec can't change",
		"VolumeAttributesClass":   "its driver and parameters can't change",
		"SelfSubjectAccessReview": answer, "SelfSubjectRulesReview": answer, "LocalSubjectAccessReview": answer, "Eviction": answer, "Scale": answer,
	}
}

// controllerTable lists the fields that controllers may own.
func controllerTable() string {
	var b strings.Builder
	b.WriteString(`
## Fields of controllers

A field manager with one of these names counts as a controller for these fields: their values are no drift. Any other change of a field that git has is drift,
under any name, because each client chooses its own.

| Field manager | Subresource | Kinds | Fields | Annotations that begin so |
|---|---|---|---|---|
`)
	for _, row := range differ.ControllerFields() {
		for i, cell := range row {
			if cell != "" {
				row[i] = "`" + strings.ReplaceAll(cell, ", ", "`, `") + "`"
			}
		}
		row[0], row[1], row[2] = cmp.Or(row[0], "any"), cmp.Or(row[1], "any"), cmp.Or(row[2], "any")
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	return b.String()
}

// kindsTable lists the number of rules that name each kind of a stock Kubernetes, or why none does.
func kindsTable(t *testing.T, rules []v1alpha1.DangerRule) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("\n## Rules by kind\n\nEvery kind of Kubernetes v1.36, and the rules that name it. Rules on pod templates, owners and finalizers are for all kinds.\n\n| Kind | Hold | Warn | Keep | Why none |\n|---|---|---|---|---|\n")
	reasons := withoutRules()
	for _, gk := range builtInKinds(t) {
		count := map[v1alpha1.Effect]map[string]bool{v1alpha1.EffectHold: {}, v1alpha1.EffectWarn: {}, v1alpha1.EffectKeep: {}}
		n := 0
		for _, r := range rules {
			if len(r.Match.Kinds) > 0 && r.Match.Matches(gk.Group, gk.Kind, "", "") {
				count[r.Effect][r.Name] = true
				n++
			}
		}
		why := reasons[gk.Kind]
		if (n == 0) != (why != "") {
			t.Errorf("kind %s has %d rules, and the reason for none is %q", gk, n, why)
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %s |\n", gk, len(count[v1alpha1.EffectHold]), len(count[v1alpha1.EffectWarn]), len(count[v1alpha1.EffectKeep]), why)
	}
	return b.String()
}

// builtInKinds returns the kinds of a stock Kubernetes, without lists.
func builtInKinds(t *testing.T) []schema.GroupKind {
	t.Helper()
	files, err := filepath.Glob("openapi/*.json.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	seen := map[schema.GroupKind]bool{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json.gz")
		group, version, _ := strings.Cut(name, "_")
		if group == "core" {
			group = ""
		}
		data, err := differ.BuiltInDocument(schema.GroupVersion{Group: group, Version: version})
		if err != nil {
			t.Fatal(err)
		}
		var document struct {
			Components struct {
				Schemas map[string]struct {
					Kinds      []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
					Properties map[string]any            `json:"properties"`
				} `json:"schemas"`
			} `json:"components"`
		}
		if err := json.Unmarshal(data, &document); err != nil {
			t.Fatal(err)
		}
		for _, s := range document.Components.Schemas {
			for _, gvk := range s.Kinds {
				if s.Properties["metadata"] != nil && s.Properties["items"] == nil && gvk.Group == group && gvk.Kind != "Status" {
					seen[gvk.GroupKind()] = true
				}
			}
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b schema.GroupKind) int { return strings.Compare(a.String(), b.String()) })
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
