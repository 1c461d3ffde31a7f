// Command testtimes summarizes the output of "go test -json": how many tests passed, failed and
// were skipped, why they were skipped, and which tests and packages were slowest.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	most := flag.Int("n", 20, "`ROWS` of the tables of the slowest tests and packages")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: testtimes [-n ROWS] FILE...\n\nSummarizes files that go test -json has written.")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(os.Stdout, *most, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "testtimes:", err)
		os.Exit(1)
	}
}

// errNone is the error for files without any test, because a run without tests has not passed.
var errNone = errors.New("no test was run")

func run(out io.Writer, most int, files []string) error {
	all := results{tests: map[test]*result{}, packages: map[string]*result{}}
	for _, name := range files {
		if err := all.readFile(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if len(all.tests) == 0 {
		return errNone
	}
	all.write(out, most)
	return nil
}

// test identifies a test or a subtest.
type test struct{ pkg, name string }

// event is a line of go test -json: see "go doc test2json".
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64 // seconds
	Output  string
}

// result holds how a test or a package ended.
type result struct {
	action string
	took   time.Duration
	output []string // of a test, dropped when it passes
}

type results struct {
	tests    map[test]*result
	packages map[string]*result
}

func (r results) readFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer func() { _ = f.Close() }() // the file was only read
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("line %d is not of go test -json: %w", n, err)
		}
		r.add(e)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}

func (r results) add(e event) {
	if e.Package == "" {
		return // output of a build
	}
	ended := e.Action == "pass" || e.Action == "fail" || e.Action == "skip"
	took := time.Duration(e.Elapsed * float64(time.Second))
	if e.Test == "" {
		if ended {
			r.packages[e.Package] = &result{action: e.Action, took: took}
		}
		return
	}
	id := test{e.Package, e.Test}
	if r.tests[id] == nil {
		r.tests[id] = &result{}
	}
	t := r.tests[id]
	switch {
	case ended:
		t.action, t.took = e.Action, took
		if e.Action == "pass" {
			t.output = nil
		}
	case e.Action == "output":
		t.output = append(t.output, e.Output)
	}
}

func (r results) write(out io.Writer, most int) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	top := map[test]*result{}
	for id, t := range r.tests {
		if !strings.Contains(id.name, "/") {
			top[id] = t
		}
	}
	fmt.Fprintf(w, "\nSLOWEST TESTS\tTIME\tPACKAGE\n")
	for _, id := range slowest(top, most, func(a, b test) int { return cmp.Or(strings.Compare(a.pkg, b.pkg), strings.Compare(a.name, b.name)) }) {
		fmt.Fprintf(w, "%s\t%s\t%s\n", id.name, seconds(top[id].took), short(id.pkg))
	}
	fmt.Fprintf(w, "\nSLOWEST PACKAGES\tTIME\t\n")
	for _, pkg := range slowest(r.packages, most, strings.Compare) {
		fmt.Fprintf(w, "%s\t%s\t\n", short(pkg), seconds(r.packages[pkg].took))
	}
	_ = w.Flush() // a failed write to out is visible to its reader

	count := map[string]int{}
	for _, t := range r.tests {
		count[cmp.Or(t.action, "fail")]++ // a test without an end: the process was killed
	}
	if count["skip"] > 0 {
		fmt.Fprintln(out, "\nSKIPPED")
	}
	for _, id := range slices.SortedFunc(maps.Keys(r.tests), func(a, b test) int { return cmp.Or(strings.Compare(a.pkg, b.pkg), strings.Compare(a.name, b.name)) }) {
		if t := r.tests[id]; t.action == "skip" {
			fmt.Fprintf(out, "%s %s: %s\n", short(id.pkg), id.name, reason(t.output))
		}
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n", count["pass"], count["fail"], count["skip"])
}

// slowest returns the keys of at most n results, the slowest first.
func slowest[K comparable](all map[K]*result, n int, compare func(a, b K) int) []K {
	keys := slices.SortedFunc(maps.Keys(all), func(a, b K) int { return cmp.Or(cmp.Compare(all[b].took, all[a].took), compare(a, b)) })
	return keys[:min(n, len(keys))]
}

// reason returns the output of a skipped test, without the lines of the test framework.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			said = append(said, line)
		}
	}
	return cmp.Or(strings.Join(said, " "), "it gives no reason")
}

// short removes the module's host and owner.
func short(pkg string) string {
	if _, rest, found := strings.Cut(pkg, "/keelson/"); found {
		return rest
	}
	return pkg
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
