package main_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The vocabulary of docs/reference/glossary.md, held by reading every Go file and document.

// retiredProse are words that name nothing: a reader has to guess which client, person or
// component is meant. They stand in no comment, text, document or test case.
var retiredProse = regexp.MustCompile(`(?i)\b(nobody|somebody|whom|befalls?|manieth)\b`)

// retiredNames are metaphors that were names once, with the word of the field that replaced them.
// They are no part of an identifier: camelCase words are compared in lower case.
func retiredNames() map[string]string {
	return map[string]string{
		"rush": "burst", "thrift": "gcTuner", "lane": "limiter, slot", "duty": "singletonTask", "duties": "singletonTasks",
		"garden": "fixtureFleet", "plot": "fixtureComponent", "plots": "components", "crew": "controllerSet", "convoy": "rolloutFleet",
		"snare": "writeTrap", "kitchen": "fixtureBuilder", "cook": "buildComponent", "cooked": "build", "cargo": "rolloutComponent",
		"voyage": "plannedChange", "sight": "observation", "sights": "observations", "condemn": "selectForDeletion",
		"nobody": "no client", "somebody": "another client", "strangers": "untrusted, unknown",
	}
}

// allowedNames are identifiers with a retired word, each with its reason.
func allowedNames() map[string]string {
	return map[string]string{
		"TestNobodyAnswers": "decisions and evidence name the test",
	}
}

// skippedFolders hold what other projects or programs wrote.
func skippedFolders() []string {
	return []string{".git", "bin", "docs/evidence", "node_modules"}
}

// readable calls read with every Go file, document and test case of the repository.
func readable(t *testing.T, read func(name string, data []byte)) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains(skippedFolders(), filepath.ToSlash(name)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".md", ".txtar"}, filepath.Ext(name)) || name == "vocabulary_test.go" {
			return nil
		}
		data, err := os.ReadFile(name)
		if err == nil {
			read(filepath.ToSlash(name), data)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestVocabulary: no file has a retired word.
func TestVocabulary(t *testing.T) {
	t.Parallel()
	files := 0
	readable(t, func(name string, data []byte) {
		files++
		for i, line := range bytes.Split(data, []byte("\n")) {
			if word := retiredProse.FindString(string(line)); word != "" {
				t.Errorf("%s:%d: %q names nothing: name the client, person or component", name, i+1, word)
			}
		}
		if strings.HasSuffix(name, ".go") {
			for _, problem := range retiredIn(name, data) {
				t.Error(problem)
			}
		}
	})
	if files < 500 {
		t.Errorf("only %d files were read", files)
	}
}

// retiredIn returns the identifiers of a Go file that have a retired word.
func retiredIn(name string, data []byte) []string {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, data, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	retired, allowed := retiredNames(), allowedNames()
	ast.Inspect(file, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok || allowed[id.Name] != "" {
			return true
		}
		for _, word := range camelWord.FindAllString(id.Name, -1) {
			if instead := retired[strings.ToLower(word)]; instead != "" {
				out = append(out, fset.Position(id.Pos()).String()+": "+id.Name+": "+word+" is retired: "+instead)
			}
		}
		return true
	})
	return out
}

var camelWord = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)

// TestVocabularyCatches: the rules above find what they are about.
func TestVocabularyCatches(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		"package p\n\nfunc newGarden() {}":              1,
		"package p\n\ntype rushDetector struct{}":       1,
		"package p\n\nfunc plotted(gardener int) {}":    0,
		"package p\n\nfunc f() { crew := 1; _ = crew }": 2,
	} {
		if got := retiredIn("p.go", []byte(source)); len(got) != want {
			t.Errorf("%s: %d problems, want %d: %q", source, len(got), want, got)
		}
	}
	for text, want := range map[string]bool{"nobody knows": true, "Somebody's change": true, "anybody": false, "to whom it belongs": true} {
		if retiredProse.MatchString(text) != want {
			t.Errorf("%q is retired: %t, want %t", text, !want, want)
		}
	}
}
