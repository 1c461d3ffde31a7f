package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/cluster"
)

// kinds of requests, in the order of the table.
const (
	kindObjects  = "objects"
	kindRecords  = "records"
	kindStatus   = "status, events"
	kindSurface  = "discovery, schemas"
	kindInformer = "lists, watches"
	kindOther    = "other"
)

// kindOf says what a request is about.
func kindOf(e audit.Event) string {
	r := e.Resource
	switch {
	case e.Verb == "watch" || e.Verb == "list":
		return kindInformer
	case r == (audit.Resource{}):
		return kindSurface
	case r.Group == "keelson.io" || r.Resource == "events":
		return kindStatus
	case r.Resource == "secrets" && r.Namespace == "keelson-system":
		return kindRecords
	case r.Namespace == namespace && r.Resource != "namespaces":
		return kindObjects
	default:
		return kindOther
	}
}

// done says whether a request changed something.
func done(e audit.Event) bool {
	return e.Stage == audit.ResponseComplete && e.Write() && !e.DryRun && e.Code < 300
}

// table prints what a phase took beside the bare loop.
func (m *measurement) table(name string, ours, limit phase) {
	fmt.Fprintf(m.out, "\n%s\n", name)
	goal := ""
	if m.components == 1000 {
		goal = fmt.Sprintf(" of %s", goalWall)
	}
	ratio := ours.wall.Seconds() / limit.wall.Seconds()
	fmt.Fprintf(m.out, "  wall                  %s%s, the first write after %s\n", round(ours.wall), goal, round(ours.first))
	fmt.Fprintf(m.out, "  bare loop             %s with %d workers: %.2f× of %.1f×; from the first write on %.2f×\n", round(limit.wall), m.workers,
		ratio, goalRatio, (ours.wall-ours.first).Seconds()/limit.wall.Seconds())
	fmt.Fprintf(m.out, "  CPU                   keelson %s, API server %s, etcd %s\n", round(ours.process), round(ours.server), round(ours.etcd))
	fmt.Fprintf(m.out, "  bare loop             itself %s, API server %s, etcd %s: %.2f×, on a busy machine, too\n",
		round(limit.process), round(limit.server), round(limit.etcd), ours.cpu().Seconds()/limit.cpu().Seconds())
	fmt.Fprintf(m.out, "  requests              keelson, each component     bare loop\n")
	for _, row := range rows(ours.events, limit.events) {
		fmt.Fprintf(m.out, "    %-36s %7d   %6.2f   %7d\n", row.name, row.ours, float64(row.ours)/float64(m.components), row.theirs)
	}
}

// cpu is that of all processes.
func (p *phase) cpu() time.Duration { return p.process + p.server + p.etcd }

type row struct {
	name         string
	ours, theirs int
}

// rows counts requests by kind and verb; those that failed apart.
func rows(ours, theirs []audit.Event) []row {
	counts := map[string]*row{}
	count := func(events []audit.Event, n func(*row) *int) {
		for _, e := range events {
			if e.User != cluster.Keelson || e.Stage == audit.ResponseComplete && e.Watch() {
				continue // a watch counts when it begins
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
	order := []string{kindObjects, kindRecords, kindStatus, kindSurface, kindInformer, kindOther}
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

// memory prints what the controller holds.
func (m *measurement) memory(ctx context.Context, c *controller, peak int64) error {
	heap, err := c.metrics(ctx, "go_memstats_heap_inuse_bytes", "process_resident_memory_bytes")
	if err != nil {
		return err
	}
	objects := float64(objectsEach * m.components)
	fmt.Fprintf(m.out, "  memory                peak %.1f MB; Go heap %.1f MB, resident %.1f MB: %.1f kB an object\n",
		float64(peak)/(1<<20), heap[0]/(1<<20), heap[1]/(1<<20), heap[1]/objects/(1<<10))
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
