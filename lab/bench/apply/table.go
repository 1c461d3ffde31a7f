package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/bench/addons"
	"github.com/keelson-io/keelson/lab/bench/keelson"
	"github.com/keelson-io/keelson/lab/cluster"
)

// Kinds of requests, in the order of the table.
const (
	kindObjects  = "objects"
	kindRecords  = "records"
	kindStatus   = "status, events"
	kindSurface  = "discovery, schemas"
	kindInformer = "lists, watches"
	kindLeases   = "leases"
	kindOther    = "other"
)

// isLease reports whether a request is for a Lease, which replicas renew.
func isLease(e audit.Event) bool {
	return e.Resource.Group == "coordination.k8s.io" && e.Resource.Resource == "leases"
}

// kindOf returns the kind of a request.
func kindOf(e audit.Event) string {
	r := e.Resource
	switch {
	case e.Verb == "watch" || e.Verb == "list":
		return kindInformer
	case r == (audit.Resource{}):
		return kindSurface
	case isLease(e):
		return kindLeases
	case r.Group == "keelson.io" || strings.HasSuffix(r.Group, ".toolkit.fluxcd.io") || r.Resource == "events":
		return kindStatus
	case r.Resource == "secrets" && r.Namespace == "keelson-system":
		return kindRecords
	case r.Namespace == namespace && r.Resource != "namespaces":
		return kindObjects
	default:
		return kindOther
	}
}

// done reports whether a request changed an object.
func done(e audit.Event) bool {
	return e.Stage == audit.ResponseComplete && e.Write() && !e.DryRun && e.Code < 300
}

// table prints the cost of a section beside the bare loop.
func (m *measurement) table(name string, ours, limit section) {
	fmt.Fprintf(m.out, "\n%s\n", name)
	goal := ""
	if m.components == 1000 && ours.by == byKeelson {
		goal = fmt.Sprintf(" of %s", goalWall)
	}
	if ours.pushed > 0 {
		fmt.Fprintf(m.out, "  git push              %s; told of it and answered after %s, the last object written after %s\n",
			round(ours.pushed), round(ours.told), round(ours.last))
	}
	ratio := ours.wall.Seconds() / limit.wall.Seconds()
	fmt.Fprintf(m.out, "  wall                  %s%s, the first write after %s\n", round(ours.wall), goal, round(ours.first))
	fmt.Fprintf(m.out, "  bare loop             %s with %d workers: %.2f× of %.1f×; from the first write on %.2f×\n", round(limit.wall), m.workers,
		ratio, goalRatio, (ours.wall-ours.first).Seconds()/limit.wall.Seconds())
	fmt.Fprintf(m.out, "  CPU                   %s %s, API server %s, etcd %s\n", ours.by, round(ours.process), round(ours.server), round(ours.etcd))
	fmt.Fprintf(m.out, "  bare loop             itself %s, API server %s, etcd %s: %.2f×, on a busy machine, too\n",
		round(limit.process), round(limit.server), round(limit.etcd), ours.cpu().Seconds()/limit.cpu().Seconds())
	fmt.Fprintf(m.out, "  requests                          %11s, each component, bare loop\n", ours.by)
	for _, row := range rows(ours.events, limit.events) {
		fmt.Fprintf(m.out, "    %-36s %7d   %6.2f   %7d\n", row.name, row.ours, float64(row.ours)/float64(m.components), row.theirs)
	}
}

// withRecords prints the share of the records in a cold section, by comparison with the loop that
// writes records. Records store in the cluster which work has started and ended.
func (m *measurement) withRecords(ours section, limit limits) {
	fmt.Fprintf(m.out, "  loop that records     %s, with 2 writes of a Secret for each component: %.2f× of the bare one; %s %.2f× of it\n",
		round(limit.recorded.wall), limit.recorded.wall.Seconds()/limit.cold.wall.Seconds(), ours.by, ours.wall.Seconds()/limit.recorded.wall.Seconds())
	fmt.Fprintf(m.out, "  its CPU               itself %s, API server %s, etcd %s: %s has %.2f× of it\n",
		round(limit.recorded.process), round(limit.recorded.server), round(limit.recorded.etcd), ours.by, ours.cpu().Seconds()/limit.recorded.cpu().Seconds())
}

// cpu returns the sum of all processes.
func (p *section) cpu() time.Duration { return p.process + p.server + p.etcd }

type row struct {
	name         string
	ours, theirs int
}

// rows counts requests by kind and verb. Failed requests have their own rows.
func rows(ours, theirs []audit.Event) []row {
	counts := map[string]*row{}
	count := func(events []audit.Event, n func(*row) *int) {
		for _, e := range events {
			if e.User != cluster.Keelson || e.Stage == audit.ResponseComplete && e.Watch() {
				continue // a watch is counted when it starts
			}
			verb := e.Verb
			if e.DryRun {
				verb += ", dry run"
			}
			if e.Code >= 400 {
				verb += fmt.Sprintf(", %d", e.Code)
			}
			name := kindOf(e) + ": " + verb
			if counts[name] == nil {
				counts[name] = &row{name: name}
			}
			*n(counts[name])++
		}
	}
	count(ours, func(r *row) *int { return &r.ours })
	count(theirs, func(r *row) *int { return &r.theirs })
	order := []string{kindObjects, kindRecords, kindStatus, kindSurface, kindInformer, kindLeases, kindOther}
	place := func(r row) int {
		kind, _, _ := strings.Cut(r.name, ":")
		return slices.Index(order, kind)
	}
	out := make([]row, 0, len(counts)+1)
	sum := row{name: "all"}
	for _, r := range counts {
		out = append(out, *r)
		sum.ours, sum.theirs = sum.ours+r.ours, sum.theirs+r.theirs
	}
	slices.SortFunc(out, func(a, b row) int {
		if d := place(a) - place(b); d != 0 {
			return d
		}
		return strings.Compare(a.name, b.name)
	})
	return append(out, sum)
}

// memory prints the memory of the controller.
func (m *measurement) memory(ctx context.Context, c *keelson.Controller, peak int64) {
	heap := must.Get(c.Metrics(ctx, "go_memstats_heap_inuse_bytes", "process_resident_memory_bytes"))
	objects := float64(addons.ObjectsOfSmall * m.components)
	fmt.Fprintf(m.out, "  memory                peak %.1f MB; Go heap %.1f MB, resident %.1f MB: %.1f kB an object\n",
		float64(peak)/(1<<20), heap[0]/(1<<20), heap[1]/(1<<20), heap[1]/objects/(1<<10))
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// calls counts all requests except watches and Leases.
func calls(events []audit.Event) int {
	n := 0
	for _, e := range events {
		if e.User == cluster.Keelson && !e.Watch() && !isLease(e) {
			n++
		}
	}
	return n
}

// sideBySide prints the table of all contestants and the bare loop.
func (m *measurement) sideBySide(results []result, limit limits) {
	fmt.Fprint(m.out, "\nside by side\n")
	w := tabwriter.NewWriter(m.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(what string, of func(result) string, bare string) {
		fmt.Fprintf(w, "  %s\t", what)
		for _, r := range results {
			fmt.Fprintf(w, "%s\t", of(r))
		}
		fmt.Fprintf(w, "%s\t\n", bare)
	}
	row("", func(r result) string { return r.name }, "bare loop")
	for _, one := range []struct {
		name string
		bare section
		of   func(result) section
	}{
		{"cold", limit.cold, func(r result) section { return r.cold }},
		{"one field of each", limit.field, func(r result) section { return r.field }},
	} {
		row(one.name+", to the last object", func(r result) string { return round(one.of(r).last).String() }, round(one.bare.last).String())
		row("  CPU of its own", func(r result) string { return round(one.of(r).process).String() }, round(one.bare.process).String())
		row("  CPU of API server and etcd", func(r result) string { return round(one.of(r).server + one.of(r).etcd).String() },
			round(one.bare.server+one.bare.etcd).String())
		row("  requests", func(r result) string { return fmt.Sprint(calls(one.of(r).events)) }, fmt.Sprint(calls(one.bare.events)))
	}
	row("one field of one, median", func(r result) string { return round(r.one[len(r.one)/2]).String() }, "")
	row("a commit that changes no object: requests", func(r result) string { return fmt.Sprint(calls(r.same.events)) }, "")
	row("  CPU of all", func(r result) string { return round(r.same.cpu()).String() }, "")
	row(fmt.Sprintf("nothing for %s: writes", m.quiet), func(r result) string { return fmt.Sprint(r.writes) }, "")
	row("  reads", func(r result) string { return fmt.Sprint(r.reads) }, "")
	row("  CPU of its own", func(r result) string { return round(r.steady.process).String() }, "")
	row("  CPU of API server and etcd", func(r result) string { return round(r.steady.server + r.steady.etcd).String() }, "")
	row("memory, peak", func(r result) string { return fmt.Sprintf("%d MB", r.own.Peak>>20) }, "")
	row("  with what it has started", func(r result) string { return fmt.Sprintf("%d MB", r.held.Peak>>20) }, "")
	row("  at the end, with that", func(r result) string { return fmt.Sprintf("%d MB", r.held.RSS>>20) }, "")
	_ = w.Flush() // as in the rest of the output: if this fails, stdout is closed
}
