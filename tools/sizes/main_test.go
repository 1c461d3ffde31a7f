package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A tree with one type of three methods and four fields, a test file, and a folder that the
// go command ignores.
func writeTree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{
		"a/one.go":           "package a\n\ntype T struct {\n\tx, y int\n\tz string\n\terror\n}\n\nfunc (T) A() {}\n",
		"a/two.go":           "package a\n\nfunc (*T) B() {}\n\nfunc (t *T) C() {}\n",
		"a/one_test.go":      "package a\n\nfunc (T) D() {}\n",
		"a/testdata/junk.go": "this is no Go\n",
		"b/generic.go":       "package b\n\ntype G[K any] struct{ k K }\n\nfunc (G[K]) A() {}\n",
	} {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTables(t *testing.T) {
	var out strings.Builder
	if err := run(&out, writeTree(t), 1, limits{methods: 3, fields: 4, files: 2}); err != nil {
		t.Errorf("everything is at its limit, not beyond: %v", err)
	}
	want := `The 1 most methods of a type
  3  a T

The 1 most fields of a struct
  4  a T

The 1 most files of a package
  2  a

The 1 most lines of a folder, with tests
  17  a

`
	if got := out.String(); got != want {
		t.Errorf("tables:\n%s\nwant:\n%s", got, want)
	}
}

func TestBeyondALimit(t *testing.T) {
	err := run(&strings.Builder{}, writeTree(t), 1, limits{methods: 2, fields: 3, files: 1})
	want := "a T has 3 methods, more than 2\na T has 4 fields, more than 3\na has 2 files, more than 1"
	if err == nil || err.Error() != want {
		t.Errorf("error: %v\nwant: %s", err, want)
	}
}

func TestFileThatIsNoGo(t *testing.T) {
	root := writeTree(t)
	name := filepath.Join(root, "b", "broken.go")
	if err := os.WriteFile(name, []byte("packag b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(&strings.Builder{}, root, 1, limits{}); err == nil || !strings.Contains(err.Error(), "broken.go:1:1") {
		t.Errorf("error: %v, want one that names broken.go:1:1", err)
	}
}
