package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"
	"golang.org/x/perf/benchunit"
)

// ours is the engine that all other engines are compared with.
const ours = "keelson"

// results holds all runs of the benchmarks, in the order of the file.
type results struct {
	names   []string // BENCHMARK[/KEY=VALUE…], without the engine
	engines []string
	samples map[sample][]float64 // one value per run
}

type sample struct{ name, engine, unit string }

// Units, as benchfmt reports them.
const (
	unitTime   = "sec/op"
	unitMemory = "B/op"
	unitAllocs = "allocs/op"
)

// read parses the output of go test -bench. A malformed result line is an error: a table without
// that result would be misleading.
func read(r io.Reader, file string) (*results, error) {
	out := &results{samples: map[sample][]float64{}}
	reader := benchfmt.NewReader(r, file)
	for reader.Scan() {
		switch record := reader.Result().(type) {
		case *benchfmt.Result:
			out.add(record)
		case *benchfmt.SyntaxError:
			return nil, fmt.Errorf("read the benchmarks' output: %w", record)
		}
	}
	if err := reader.Err(); err != nil {
		return nil, fmt.Errorf("read the benchmarks' output: %w", err)
	}
	if len(out.samples) == 0 {
		return nil, fmt.Errorf("%s has no benchmark of an engine: did they run? They need KUBEBUILDER_ASSETS, as make bench sets it", file)
	}
	return out, nil
}

func (r *results) add(one *benchfmt.Result) {
	base, parts := one.Name.Parts()
	name, engine := string(base), ""
	for _, p := range parts {
		if e, ok := strings.CutPrefix(string(p), "/engine="); ok {
			engine = e
		} else if p[0] == '/' { // skips -GOMAXPROCS
			name += string(p)
		}
	}
	if engine == "" {
		return
	}
	if !slices.Contains(r.names, name) {
		r.names = append(r.names, name)
	}
	if !slices.Contains(r.engines, engine) {
		r.engines = append(r.engines, engine)
	}
	for _, v := range one.Values {
		s := sample{name, engine, v.Unit}
		r.samples[s] = append(r.samples[s], v.Value)
	}
}

// median returns the median of the runs. ok is false if there were no runs.
func (r *results) median(name, engine, unit string) (m float64, ok bool) {
	values := r.samples[sample{name, engine, unit}]
	if len(values) == 0 {
		return 0, false
	}
	return benchmath.AssumeNothing.Summary(benchmath.NewSample(values, &benchmath.DefaultThresholds), 0.95).Center, true
}

// width is the width of the first column.
const width = len("Render/chart=prometheus-node-exporter")

// leaves is the name prefix of the benchmarks that differ only in size.
const leaves = "Leaves/leaves="

func (r *results) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight) // except in the first column, which has a fixed width
	var sizes []string
	for _, name := range r.names {
		if size, ok := strings.CutPrefix(name, leaves); ok {
			sizes = append(sizes, size)
			continue
		}
		r.printOne(w, name)
	}
	r.printLeaves(w, sizes)
	r.printGoals(w)
	r.printOverhead(w)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the results: %w", err)
	}
	return nil
}

func (r *results) printOne(w io.Writer, name string) {
	fmt.Fprintf(w, "%-*s\ttime/op\tvs %s\tB/op\tallocs/op\t\n", width, name, ours)
	base, haveBase := r.median(name, ours, unitTime)
	for _, engine := range r.engines {
		t, ok := r.median(name, engine, unitTime)
		if !ok {
			continue
		}
		ratio := ""
		if haveBase {
			ratio = fmt.Sprintf("%.3g×", t/base)
		}
		b, _ := r.median(name, engine, unitMemory)
		a, _ := r.median(name, engine, unitAllocs)
		fmt.Fprintf(w, "%-*s\t%s\t%s\t%s\t%.0f\t\n", width, engine, scale(t, "s"), ratio, scale(b, "B"), a)
	}
	fmt.Fprintln(w)
}

// printLeaves shows whether the time grows linearly. If it does, all columns of a row are equal.
func (r *results) printLeaves(w io.Writer, sizes []string) {
	if len(sizes) == 0 {
		return
	}
	fmt.Fprintf(w, "%-*s\t", width, "Time per leaf field, of")
	for _, size := range sizes {
		fmt.Fprintf(w, "%s\t", size)
	}
	fmt.Fprintln(w)
	for _, engine := range r.engines {
		if _, ok := r.median(leaves+sizes[len(sizes)-1], engine, unitTime); !ok {
			continue // the engine has no Leaves benchmark
		}
		fmt.Fprintf(w, "%-*s\t", width, engine)
		for _, size := range sizes {
			t, ok := r.median(leaves+size, engine, unitTime)
			n, err := strconv.Atoi(size)
			if !ok || err != nil {
				fmt.Fprint(w, "\t")
				continue
			}
			fmt.Fprintf(w, "%s\t", scale(t/float64(n), "s"))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

// goals are the limits that Keelson's own figures are compared with. A missed goal is not a
// failure: the machine may be busy or slow.
var goals = []struct { //nolint:gochecknoglobals // a constant
	name, what string
	time       float64 // seconds
	memory     float64 // bytes; 0: no goal
}{
	{"Settled", "settled check of a Deployment", 100e-6, 60e3},
	{"Unchanged", "check by unchanged hashes", 1e-6, 0},
}

func (r *results) printGoals(w io.Writer) {
	for _, g := range goals {
		t, ok := r.median(g.name, ours, unitTime)
		if !ok {
			continue
		}
		fmt.Fprintf(w, "  %s: %s of %s", g.what, scale(t, "s"), scale(g.time, "s"))
		if b, ok := r.median(g.name, ours, unitMemory); ok && g.memory > 0 {
			fmt.Fprintf(w, ", %s of %s", scale(b, "B"), scale(g.memory, "B"))
		}
		fmt.Fprintln(w)
	}
}

// mostOverhead is the allowed ratio of rendering time in worker processes to rendering time in this
// process.
const mostOverhead = 1.3

// printOverhead prints the cost of the worker processes, as a range over all charts.
func (r *results) printOverhead(w io.Writer) {
	var ratios []float64
	for _, name := range r.names {
		pool, ok := r.median(name, ours, unitTime)
		inProcess, also := r.median(name, ours+"-in-process", unitTime)
		if ok && also {
			ratios = append(ratios, pool/inProcess)
		}
	}
	if len(ratios) > 0 {
		fmt.Fprintf(w, "  rendering in worker processes: %.2f to %.2f× the time in one process, of %.1f×\n",
			slices.Min(ratios), slices.Max(ratios), mostOverhead)
	}
}

func scale(v float64, unit string) string {
	return benchunit.Scale(v, benchunit.Decimal) + unit
}
