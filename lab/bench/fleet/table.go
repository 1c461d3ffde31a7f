package main

import (
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/keelson-io/keelson/lab/bench/sim"
)

func (m *measurement) sectionTable(name string, p section) {
	fmt.Fprintf(m.out, "\n%s\n", name)
	fmt.Fprintf(m.out, "  wall                  %s; CPU of the controller, without its workers, %s\n", round(p.wall), round(p.used.CPU))
	m.requests(p)
}

// requests lists the requests by kind.
func (m *measurement) requests(p section) {
	fmt.Fprintf(m.out, "  requests              %d to the clusters, %.2f a delivery; %s of answers; %d to the hub\n",
		total(p.counts), float64(total(p.counts))/float64(m.size.deliveries()), amount(sent(p.counts)), total(p.hub))
	for _, of := range []struct {
		name   string
		counts []sim.Count
	}{{"", p.counts}, {"hub: ", p.hub}} {
		named := map[string]sim.Count{}
		for _, c := range of.counts {
			name := of.name + groupOf(c)
			sum := named[name]
			sum.Verb = name
			sum.Requests += c.Requests
			sum.Bytes += c.Bytes
			named[name] = sum
		}
		for _, c := range slices.SortedFunc(maps.Values(named), byRequests) {
			fmt.Fprintf(m.out, "    %-38s %8d   %s\n", c.Verb, c.Requests, amount(c.Bytes))
		}
	}
}

// groupOf returns the name of the row in which a request is counted.
func groupOf(c sim.Count) string {
	what := "objects"
	switch {
	case c.Resource == "":
		what = "discovery, schemas, probes"
	case c.Resource == "secrets" && c.Namespace != "":
		what = "records"
	case c.Resource == "namespaces" || c.Group == "keelson.io" || c.Resource == "events" || c.Resource == "selfsubjectaccessreviews":
		what = c.Resource
	}
	if c.DryRun {
		what += ", dry run"
	}
	if c.Code >= 400 {
		what += fmt.Sprintf(", %d", c.Code)
	}
	return c.Verb + " " + what
}

func total(counts []sim.Count) int { return writes(counts, func(sim.Count) bool { return true }) }

func sent(counts []sim.Count) int64 {
	var n int64
	for _, c := range counts {
		n += c.Bytes
	}
	return n
}

func (m *measurement) commitTable(name string, s spread) {
	fmt.Fprintf(m.out, "\n%s (%d commits, git is looked at every %s)\n", name, m.commits, interval)
	fmt.Fprintf(m.out, "  push → written        median %s, p99 %s, last %s of %s; from the first cluster on p99 %s\n",
		round(s.median), round(s.p99), round(s.last), goalCommit, round(s.afterFirst))
}

// growth prints the table of all sizes.
func (m *measurement) growth(rows []row) {
	fmt.Fprint(m.out, "\n")
	w := tabwriter.NewWriter(m.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "clusters\tcomponents\tobjects\tcold\tCPU\tcalls\trestart\tCPU\tcalls\tresident\tan object\tidle CPU\tcommit p99\twith hung\t")
	for _, r := range rows {
		hung := "-"
		if r.hung != nil {
			hung = round(r.hung.p99).String()
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%s\t%s\t%d\t%s\t%s\t%d\t%s\t%s\t%.2f %%\t%s\t%s\t\n", r.size.clusters, r.size.components, r.size.all(),
			round(r.cold.wall), round(r.cold.used.CPU), calls(r.cold.counts), round(r.restart.wall), round(r.restart.used.CPU), calls(r.restart.counts),
			amount(r.memory.RSS), amount(r.memory.RSS/int64(r.size.all())), r.idle, round(r.commit.p99), hung)
	}
	_ = w.Flush() // as in the rest of the output: if this fails, stdout is closed
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// amount formats a number of bytes.
func amount(n int64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%.0f MB", float64(n)/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%.0f kB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%d B", n)
	}
}
