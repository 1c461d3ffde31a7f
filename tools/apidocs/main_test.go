package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const source = `package v1

const (
	KindFleet = "Fleet" // fleet.yaml
	OtherName = "other-name"
)

// Header is the start.
type Header struct {
	Kind string ` + "`json:\"kind\"`" + `
}

// Fleet is fleet.yaml: see [Rule.Path]. It has
// Rules.
type Fleet struct {
	Header ` + "`json:\",inline\"`" + `
	// Name is one of a|b, and not OtherName. Default: a.
	Name string ` + "`json:\"name,omitempty\"`" + `
	// Rules and More of the fleet; default 10. Rules.Path is <x>.
	Rules *Rule ` + "`json:\"rules\"`" + `
	More map[string][]Rule ` + "`json:\"more,omitempty\"`" + `
}

// Rule is a rule.
type Rule struct {
	// Path of it.
	Path Mode ` + "`json:\"path\"`" + `
}

// Mode says how.
type Mode string

// The values.
const (
	ModeFast Mode = "fast" // at once
)
`

// write writes a package, and reads it.
func write(t *testing.T, source string) *apiPackage {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "a.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := readPackage(folder)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestKind(t *testing.T) {
	p := write(t, source)
	if diff := cmp.Diff([]fileKind{{"Fleet", "fleet.yaml"}}, p.fileKinds(), cmp.AllowUnexported(fileKind{})); diff != "" {
		t.Error(diff)
	}
	w := newWriter(p, true)
	w.kind("Fleet")
	got, err := w.text()
	if err != nil {
		t.Fatal(err)
	}
	const want = `
## Fleet

Fleet is fleet.yaml: see [` + "`path`" + ` of Rule](#rule). It has ` + "`rules`" + `.

| Field | Type | Default | Meaning |
|---|---|---|---|
| ` + "`name`" + ` | string | a | ` + "`name`" + ` is one of a\|b, and not ` + "`other-name`" + `. |
| ` + "`rules`" + ` | [Rule](#rule) | **required** | ` + "`rules` and `more` of the fleet. `rules.path`" + ` is \<x>. |
| ` + "`more`" + ` | map of list of [Rule](#rule) | 10 | ` + "`rules` and `more` of the fleet. `rules.path`" + ` is \<x>. |

### Rule

Rule is a rule.

| Field | Type | Default | Meaning |
|---|---|---|---|
| ` + "`path`" + ` | [Mode](#mode) | **required** | ` + "`path`" + ` of it. |

### Mode

Mode says how.

| Value | Meaning |
|---|---|
| ` + "`fast`" + ` | at once |
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A type or a field that nothing is said about is an error, so that no page has an empty cell.
func TestMissingComment(t *testing.T) {
	for _, line := range []string{"// Path of it.\n", "// Rule is a rule.\n"} {
		w := newWriter(write(t, strings.Replace(source, line, "", 1)), true)
		w.kind("Fleet")
		if _, err := w.text(); !errors.Is(err, errNoComment) {
			t.Errorf("without %q: %v", line, err)
		}
	}
}

// The pages of this repository can be made.
func TestPages(t *testing.T) {
	root := t.TempDir()
	for _, folder := range []string{"api/v1alpha1", "api/apps/v1beta1"} {
		if err := os.CopyFS(filepath.Join(root, folder), os.DirFS(filepath.Join("../..", folder))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "docs/reference"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := run(root); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"files.md": "## MetaConfig", "crds.md": "| Sync | `.status.sync` |", "workload-kinds.md": "| `maxSurge` | number or percentage | 0 |",
	} {
		text, err := os.ReadFile(filepath.Join(root, "docs/reference", name))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s has no %q: %v", name, want, err)
		}
	}
}
