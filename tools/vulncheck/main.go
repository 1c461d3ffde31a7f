// Command vulncheck reads the output of "govulncheck -format json". It fails if our code reaches a
// known vulnerability that is not listed in the file of accepted ones.
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
)

func main() {
	file := flag.String("accepted", "", "`FILE` with the vulnerabilities that are accepted: a line each with ID, module and reason")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: govulncheck -format json ./... | vulncheck [--accepted FILE]\n\nFails where a known vulnerability is reached and not accepted.")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(os.Stdout, os.Stdin, *file); err != nil {
		fmt.Fprintln(os.Stderr, "vulncheck:", err)
		os.Exit(1)
	}
}

// vulnerability is one vulnerability in one module. The standard library is the module stdlib,
// whose version is the version of Go.
type vulnerability struct{ id, module string }

// reached is a vulnerability that our code reaches.
type reached struct {
	vulnerability
	version, fixed string
	from           string // last FILE:LINE of our module on the call path, or a function
}

// message is one message of govulncheck. The format is defined in the package
// golang.org/x/vuln/internal/govulncheck.
type message struct {
	Config *struct{} `json:"config"` // in the first message
	OSV    *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string  `json:"osv"`
		FixedVersion string  `json:"fixed_version"`
		Trace        []frame `json:"trace"` // from the vulnerable function to our code
	} `json:"finding"`
}

type frame struct {
	Module   string `json:"module"`
	Version  string `json:"version"`
	Package  string `json:"package"`
	Function string `json:"function"`
	Position *struct {
		Filename string `json:"filename"`
		Line     int    `json:"line"`
	} `json:"position"`
}

// report holds the findings of a scan.
type report struct {
	scanned   bool
	summaries map[string]string // by ID
	modules   map[vulnerability]bool
	reached   map[vulnerability]reached
}

var (
	errNoScan  = errors.New("no scan: the input is not that of govulncheck -format json")
	errReached = errors.New("reached and not accepted: take a fixed version, or accept it with a reason")
)

func run(out io.Writer, in io.Reader, file string) error {
	accepted := map[vulnerability]string{}
	if file != "" {
		var err error
		if accepted, err = readAccepted(file); err != nil {
			return err
		}
	}
	r, err := read(in)
	if err != nil {
		return err
	}
	var refused int
	for _, v := range slices.SortedFunc(maps.Keys(r.reached), compare) {
		why, ok := accepted[v]
		if !ok {
			refused++
		}
		r.reached[v].write(out, r.summaries[v.id], why)
	}
	for _, v := range slices.SortedFunc(maps.Keys(accepted), compare) {
		if _, ok := r.reached[v]; !ok {
			fmt.Fprintf(out, "%s in %s is accepted, and not reached with this version of Go and of the modules\n", v.id, v.module)
		}
	}
	fmt.Fprintf(out, "%d vulnerabilities in the modules, %d reached, %d of them accepted\n", len(r.modules), len(r.reached), len(r.reached)-refused)
	if refused > 0 {
		return fmt.Errorf("%d %w", refused, errReached)
	}
	return nil
}

func compare(a, b vulnerability) int {
	return cmp.Or(strings.Compare(a.id, b.id), strings.Compare(a.module, b.module))
}

func (r reached) write(out io.Writer, summary, accepted string) {
	fixed := "no version fixes it"
	if r.fixed != "" {
		fixed = "fixed in " + r.fixed
	}
	fmt.Fprintf(out, "%s: %s\n  %s %s, %s; reached from %s\n", r.id, summary, r.module, r.version, fixed, r.from)
	if accepted != "" {
		fmt.Fprintf(out, "  accepted: %s\n", accepted)
	}
}

// read reads a whole scan. A finding for only a module or a package is counted, but not reached by
// our code.
func read(in io.Reader) (*report, error) {
	r := &report{summaries: map[string]string{}, modules: map[vulnerability]bool{}, reached: map[vulnerability]reached{}}
	for d := json.NewDecoder(bufio.NewReader(in)); ; {
		var m message
		switch err := d.Decode(&m); {
		case errors.Is(err, io.EOF) && r.scanned:
			return r, nil
		case errors.Is(err, io.EOF):
			return nil, errNoScan
		case err != nil:
			return nil, fmt.Errorf("read: %w", err)
		}
		r.scanned = r.scanned || m.Config != nil
		if m.OSV != nil {
			r.summaries[m.OSV.ID] = m.OSV.Summary
		}
		if f := m.Finding; f != nil && len(f.Trace) > 0 {
			is := f.Trace[0]
			v := vulnerability{f.OSV, is.Module}
			r.modules[v] = true
			if _, ok := r.reached[v]; !ok && is.Function != "" {
				r.reached[v] = reached{v, is.Version, f.FixedVersion, ours(f.Trace)}
			}
		}
	}
}

// ours returns the last position of our module on the path to a vulnerable function.
func ours(trace []frame) string {
	us := trace[len(trace)-1].Module
	return trace[slices.IndexFunc(trace, func(f frame) bool { return f.Module == us })].String()
}

func (f frame) String() string {
	if f.Position != nil && f.Position.Filename != "" {
		return fmt.Sprintf("%s:%d", f.Position.Filename, f.Position.Line)
	}
	return f.Package + "." + f.Function
}

// readAccepted reads lines of ID, module and reason. Empty lines and lines that start with # are
// skipped.
func readAccepted(file string) (map[vulnerability]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	out := map[vulnerability]string{}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, rest, _ := strings.Cut(line, " ")
		module, reason, _ := strings.Cut(strings.TrimSpace(rest), " ")
		v, reason := vulnerability{id, module}, strings.TrimSpace(reason)
		if _, twice := out[v]; twice || reason == "" || !strings.HasPrefix(id, "GO-") {
			return nil, fmt.Errorf("%s:%d: want GO-ID MODULE REASON, and each ID and module once: %q", file, number, line)
		}
		out[v] = reason
	}
	return out, nil
}
