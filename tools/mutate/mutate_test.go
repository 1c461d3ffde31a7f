package main

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// sample is a module whose tests catch one fault, don't end with another, and miss a third.
var sample = map[string]string{
	"go.mod": "module example.com/sample\n\ngo 1.26\n",
	"p/p.go": `package p

import "strings"

// Sum of the numbers below n.
func Sum(n int) int {
	sum := 0
	for i := 0; i != n; i++ {
		sum += i
	}
	return sum
}

// Loud is said.
func Loud(s string) string {
	if s == "!" {
		return s
	}
	s = strings.ToUpper(s)
	return s
}
`,
	"p/p_test.go": `package p

import (
	"os"
	"testing"
)

func TestSum(t *testing.T) {
	if _, err := os.Stat("p_test.go"); err != nil {
		t.Fatal("this is not the folder of the package:", err)
	}
	if Sum(4) != 6 {
		t.Fatal(Sum(4))
	}
}

func TestLoud(t *testing.T) {
	if Loud("a") != "A" {
		t.Fatal(Loud("a"))
	}
}
`,
}

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestRun checks the result for a package with known survivors.
func TestRun(t *testing.T) {
	t.Parallel()
	root := write(t, sample)
	s := settings{pkg: "./p", from: root, draw: 100, seed: 7, workers: 2, timeout: time.Second, threshold: 60}
	var out bytes.Buffer
	if err := run(t.Context(), &out, s); err != nil {
		t.Fatalf("%v:\n%s", err, &out)
	}
	const want = `example.com/sample/p: 9 faults can be made, 9 are drawn
survived: p/p.go:8:11: ` + "`0` becomes `1`" + `
survived: p/p.go:16:2: ` + "`if s == \"!\" { return s }` is left out" + `
1 by the time limit of 1s; 1 more did not compile
mutants killed: 6 of 8 (75 %), seed 7
`
	if got := inOrder(out.String()); got != inOrder(want) {
		t.Errorf("it says\n%s\nand not\n%s", &out, want)
	}
	for name, text := range sample {
		if data, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(data) != text {
			t.Errorf("%s was touched (%v)", name, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(root, "p")); err != nil || len(entries) != 2 {
		t.Errorf("the package's folder has %v (%v)", entries, err)
	}
}

// TestRunAlso: the tests of one package judge the faults in another that it uses.
func TestRunAlso(t *testing.T) {
	t.Parallel()
	files := maps.Clone(sample)
	files["q/q.go"] = "package q\n\nfunc Two() int { return 2 }\n"
	files["p/q.go"] = "package p\n\nimport \"example.com/sample/q\"\n\nfunc Four() int { return 2 * q.Two() }\n"
	files["p/q_test.go"] = "package p\n\nimport \"testing\"\n\nfunc TestFour(t *testing.T) {\n\tif Four() != 4 {\n\t\tt.Fatal(Four())\n\t}\n}\n"
	s := settings{pkg: "./p", also: []string{"./q"}, files: "^q", from: write(t, files), draw: 100, seed: 7, workers: 2, timeout: time.Second, threshold: 100}
	var alone, both bytes.Buffer
	if err := run(t.Context(), &both, s); err != nil {
		t.Errorf("%v:\n%s", err, &both)
	}
	s.also = nil
	if err := run(t.Context(), &alone, s); err != nil || alone.String() == both.String() {
		t.Errorf("%v: alone\n%s\ntogether\n%s", err, &alone, &both)
	}
}

// inOrder sorts lines, because survivors are printed in any order.
func inOrder(text string) string {
	lines := strings.SplitAfter(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// TestRunDraws: the given number of faults is drawn, equal seeds give equal draws, and too few
// caught faults are an error.
func TestRunDraws(t *testing.T) {
	t.Parallel()
	s := settings{pkg: "./p", from: write(t, sample), draw: 4, seed: 3, workers: 3, timeout: time.Second, threshold: 101}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := run(t.Context(), out, s); !errors.Is(err, errBelow) {
			t.Errorf("the error is %v", err)
		}
		s.workers = 1
	}
	if inOrder(first.String()) != inOrder(second.String()) || !strings.Contains(first.String(), " of 4 (") {
		t.Errorf("with one seed it says\n%s\nand then\n%s", &first, &second)
	}
}

// TestRunRefuses: packages that can't be judged give an error instead of a figure.
func TestRunRefuses(t *testing.T) {
	t.Parallel()
	failing := maps.Clone(sample)
	failing["p/q_test.go"] = "package p\n\nimport \"testing\"\n\nfunc TestFails(t *testing.T) { t.Fatal(\"as ever\") }\n"
	broken := maps.Clone(sample)
	broken["p/q_test.go"] = "package p\n\nfunc broken() int {}\n"
	empty := maps.Clone(sample)
	empty["p/p.go"], empty["p/p_test.go"] = "package p\n", "package p\n\nimport \"testing\"\n\nfunc TestNothing(*testing.T) {}\n"
	several := maps.Clone(sample)
	several["q/q.go"] = "package q\n"
	cases := map[string]struct {
		why   string
		files map[string]string
		pkg   string
		want  error
		says  string
	}{
		"Failing": {"Every fault would count as caught.", failing, "./p", errBaseline, "as ever"},
		"Broken":  {"No fault would compile.", broken, "./p", errBaseline, "missing return"},
		"Several": {"The figure is of one package.", several, "./...", nil, "not one package"},
		"Nowhere": {"It may be a typing mistake.", sample, "./nowhere", nil, "go list ./nowhere"},
		"NoTests": {"Nothing would be caught.", map[string]string{"go.mod": sample["go.mod"], "p/p.go": sample["p/p.go"]}, "./p", errBaseline, "none"},
		"Files":   {"No file has such a name.", sample, "./p", errBelow, "none was made"},
		"Empty":   {"Nothing of nothing is no 100 %.", empty, "./p", errBelow, "none was made"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := settings{pkg: c.pkg, from: write(t, c.files), draw: 1, seed: 1, workers: 1, timeout: time.Second}
			if name == "Files" {
				s.files = "^q"
			}
			err := run(t.Context(), io.Discard, s)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s\nThe error is %v", c.why, err)
			}
		})
	}
}
