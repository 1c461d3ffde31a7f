package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"

	"github.com/keelson-io/keelson/lab/bench/keelson"
	"github.com/keelson-io/keelson/lab/bench/sim"
	"github.com/keelson-io/keelson/lab/process"
)

// interval is how often the controller polls git.
const interval = time.Second

// Goals for 300 clusters × 200 components × 10 objects.
const (
	goalPerObject = 1 << 10 // bytes
	goalIdle      = 2.0     // percent of a core
	goalCommit    = 10 * time.Second
	goalHung      = 1.1 // ratio to the healthy clusters' p99 when no cluster hangs
)

// silence is how long a settled fleet must receive no requests except watches. It is longer than
// the controller's delay of healthy-status updates.
const silence = 15 * time.Second

// measurement holds the options and the shared state of one run.
type measurement struct {
	dir, keelson string
	flags        []string // additional flags of the controller
	quiet        time.Duration
	limit        time.Duration
	commits      int
	hung         int           // percent
	hang         time.Duration // before commits are measured
	seed         uint64
	out          io.Writer

	size       size
	repo       *repository
	sim        *simulation
	kubeconfig string
	runs       int // controllers started, for their names
	pushes     int
}

func measure(ctx context.Context, args []string, out io.Writer) (err error) {
	m := &measurement{out: out}
	flags := flag.NewFlagSet("bench-fleet", flag.ContinueOnError)
	sizes := flags.String("sizes", "10x50x10", "fleets to measure: CLUSTERSxCOMPONENTSxOBJECTS,…")
	keelson := flags.String("keelson", "bin/keelson", "the program to measure")
	more := flags.String("controller-flags", "", "more flags of the controller, separated by blanks")
	flags.DurationVar(&m.quiet, "quiet", time.Minute, "how long a fleet is watched in which nothing happens")
	flags.DurationVar(&m.limit, "limit", time.Hour, "how long each section may take")
	flags.IntVar(&m.commits, "commits", 5, "commits of one component to all clusters")
	flags.IntVar(&m.hung, "hung", 20, "percent of the clusters that hang, for the last table; 0: none")
	flags.DurationVar(&m.hang, "hang", 45*time.Second, "how long they hang before commits are measured: requests end after 30s")
	flags.Uint64Var(&m.seed, "seed", 1, "of what is simulated")
	err = harness.ParseFlags(flags, args, "bench-fleet [FLAGS]", func() bool { return flags.NArg() == 0 && m.commits > 0 })
	if err != nil {
		return err
	}
	m.flags = strings.Fields(*more)
	if m.keelson, err = filepath.Abs(*keelson); err != nil {
		return fmt.Errorf("find keelson: %w", err)
	}
	var rows []row
	for text := range strings.SplitSeq(*sizes, ",") {
		s, err := parseSize(text)
		if err != nil {
			return err
		}
		if err := must.Try(func() { rows = append(rows, m.one(ctx, s)) }); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	m.growth(rows)
	return nil
}

func parseSize(text string) (size, error) {
	var n [3]int
	parts := strings.Split(text, "x")
	for i, p := range parts {
		v, err := strconv.Atoi(p)
		if err != nil || len(parts) != len(n) || v < 1 {
			return size{}, fmt.Errorf("%q is no size: 10x50x10 is one", text)
		}
		n[i] = v
	}
	return size{n[0], n[1], n[2]}, nil
}

// row holds the figures of one size in the growth table.
type row struct {
	size    size
	cold    section
	restart section
	memory  process.Usage
	heap    float64
	idle    float64 // percent of a core
	commit  spread
	hung    *spread // nil: not measured
}

// one measures a fleet of one size, with a new repository and a new simulation.
func (m *measurement) one(ctx context.Context, s size) (r row) {
	r.size, m.size, m.runs, m.pushes = s, s, 0, 0
	m.dir = must.Get(os.MkdirTemp("", "keelson-fleet-"))
	err := must.Try(func() {
		m.repo = makeRepository(ctx, m.dir, s)
		m.sim = startSimulation(ctx, m.dir, s.clusters, m.seed)
		m.kubeconfig = filepath.Join(m.sim.folder, "kubeconfig.yaml")
		must.Finally(func() {
			fmt.Fprintf(m.out, "%s = %d objects in %d deliveries, on %d cores\n", s, s.all(), s.deliveries(), runtime.GOMAXPROCS(0))
			m.with(func(c *keelson.Controller) { m.first(ctx, c, &r) })
			m.with(func(c *keelson.Controller) { m.second(ctx, c, &r) })
		}, func() error { return m.sim.Stop(grace) })
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "the files of this run stay in", m.dir)
		must.Do(err)
	}
	must.Do(os.RemoveAll(m.dir))
	return r
}

// with starts a controller for a step, and stops it afterwards.
func (m *measurement) with(step func(*keelson.Controller)) {
	c := m.startController()
	must.Finally(func() { step(c) }, c.Stop)
}

// first measures a controller that starts with empty clusters.
func (m *measurement) first(ctx context.Context, c *keelson.Controller, r *row) {
	r.cold = m.section(ctx, c, process.Usage{}, func() { m.synced(ctx, c) })
	m.all(ctx)
	m.sectionTable("empty clusters → all synced", r.cold)
	m.settled(ctx, c)
	m.memory(ctx, c, nil)
}

// second measures a controller that starts with synced clusters.
func (m *measurement) second(ctx context.Context, c *keelson.Controller, r *row) {
	r.restart = m.section(ctx, c, process.Usage{}, func() { m.synced(ctx, c) })
	m.sectionTable("restart → all known", r.restart)
	if n := writes(r.restart.counts, isObject); n > 0 {
		must.Failf("a restart wrote %d objects", n)
	}
	m.settled(ctx, c)
	m.idle(ctx, c, r)
	m.memory(ctx, c, r)
	r.commit = m.commit(ctx, c, m.names())
	m.commitTable("one component's commit → the last cluster", r.commit)
	if m.hung > 0 {
		m.withHung(ctx, c, r)
	}
}

func (m *measurement) names() []string {
	out := make([]string, m.size.clusters)
	for i := range out {
		out[i] = clusterName(i)
	}
	return out
}

// section holds the cost of one section.
type section struct {
	wall   time.Duration
	used   process.Usage
	counts []sim.Count // sum of all clusters, without the hub
	hub    []sim.Count
}

// section runs do and returns its cost.
func (m *measurement) section(ctx context.Context, c *keelson.Controller, before process.Usage, do func()) (p section) {
	counts, hub, err := m.counts(ctx)
	must.Do(err)
	began := time.Now()
	do()
	p.wall = time.Since(began)
	p.used = must.Get(c.Usage())
	p.used.CPU -= before.CPU
	then, hubThen, err := m.counts(ctx)
	p.counts, p.hub = less(then, counts), less(hubThen, hub)
	must.Do(err)
	return p
}

// counts returns the summed counts of all clusters, and the counts of the hub.
func (m *measurement) counts(ctx context.Context) (clusters, hub []sim.Count, err error) {
	all, err := m.sim.statuses(ctx)
	if err != nil {
		return nil, nil, err
	}
	sums := map[sim.Count]*sim.Count{}
	for i := range all {
		if all[i].Name == hubName {
			hub = all[i].Counts
			continue
		}
		for _, one := range all[i].Counts {
			k := kindOf(one)
			if sums[k] == nil {
				copied := k
				sums[k] = &copied
			}
			sums[k].Requests += one.Requests
			sums[k].Bytes += one.Bytes
		}
	}
	for _, one := range sums {
		clusters = append(clusters, *one)
	}
	return clusters, hub, nil
}

// kindOf returns a Count without its numbers and its time.
func kindOf(c sim.Count) sim.Count {
	c.Requests, c.Bytes, c.Last = 0, 0, time.Time{}
	return c
}

// less returns the counts minus the earlier counts.
func less(now, before []sim.Count) []sim.Count {
	was := map[sim.Count]sim.Count{}
	for _, one := range before {
		was[kindOf(one)] = one
	}
	var out []sim.Count
	for _, one := range now {
		old := was[kindOf(one)]
		one.Requests, one.Bytes = one.Requests-old.Requests, one.Bytes-old.Bytes
		if one.Requests > 0 || one.Bytes > 0 {
			out = append(out, one)
		}
	}
	return out
}

// synced waits until all deliveries are synced.
func (m *measurement) synced(ctx context.Context, c *keelson.Controller) {
	every := 250 * time.Millisecond
	if m.size.deliveries() > 5000 {
		every = 2 * time.Second // each read of the metrics costs the controller CPU
	}
	must.Do(c.Until(ctx, m.limit, every, func(ctx context.Context) error {
		v, err := c.Metrics(ctx, keelson.Synced)
		if err == nil && int(v[0]) != m.size.deliveries() {
			err = fmt.Errorf("%g of %d deliveries are synced", v[0], m.size.deliveries())
		}
		return err
	}))
}

// all fails unless every cluster has its objects.
func (m *measurement) all(ctx context.Context) {
	statuses := must.Get(m.sim.statuses(ctx, m.names()...))
	for _, s := range statuses {
		have := 0
		for resource, n := range s.Objects {
			if isAddOn(resource) {
				have += n
			}
		}
		if want := m.size.components * m.size.objects; have != want {
			must.Failf("cluster %s has %d objects, want %d: %v", s.Name, have, want, s.Objects)
		}
	}
}

// isAddOn reports whether the charts contain this resource.
func isAddOn(resource string) bool {
	return resource != "namespaces" && resource != "secrets" && resource != "events" && resource != "leases.coordination.k8s.io"
}

func isObject(c sim.Count) bool { return c.Write() && c.Namespace == "" && isAddOn(c.Resource) }

func writes(counts []sim.Count, of func(sim.Count) bool) int {
	n := 0
	for _, c := range counts {
		if of(c) {
			n += c.Requests
		}
	}
	return n
}

// calls returns the number of requests, without watches.
func calls(counts []sim.Count) int {
	return writes(counts, func(c sim.Count) bool { return !c.Watch() })
}

// settled waits until the clusters and the hub have received no requests except watches for a
// while.
func (m *measurement) settled(ctx context.Context, c *keelson.Controller) {
	since, last := time.Now(), -1
	must.Do(c.Until(ctx, m.limit, 500*time.Millisecond, func(ctx context.Context) error {
		counts, hub, err := m.counts(ctx)
		if err != nil {
			return err
		}
		if n := calls(counts) + calls(hub); n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) < silence {
			return errors.New("the controller does not stop to ask")
		}
		return nil
	}))
}

// idle measures a fleet in which nothing changes. It fails if the controller made a call.
func (m *measurement) idle(ctx context.Context, c *keelson.Controller, r *row) {
	before := must.Get(c.Usage())
	p := m.section(ctx, c, before, func() { must.Do(process.Wait(ctx, m.quiet)) })
	r.idle = 100 * p.used.CPU.Seconds() / p.wall.Seconds()
	fmt.Fprintf(m.out, "\nnothing changes for %s\n", round(p.wall))
	fmt.Fprintf(m.out, "  CPU                   %.2f %% of a core, of %.0f %%\n", r.idle, goalIdle)
	asked := calls(p.counts) + calls(p.hub)
	fmt.Fprintf(m.out, "  calls but watches     %d of 0\n", asked)
	if asked == 0 {
		return
	}
	m.requests(p)
	must.Failf("a settled fleet made %d calls", asked)
}

// memory prints the memory of the controller, and stores it in r unless r is nil.
func (m *measurement) memory(ctx context.Context, c *keelson.Controller, r *row) {
	u := must.Get(c.Usage())
	v := must.Get(c.Metrics(ctx, "go_memstats_heap_inuse_bytes ", "go_memstats_heap_alloc_bytes ", "go_goroutines "))
	each := float64(u.RSS) / float64(m.size.all())
	fmt.Fprintf(m.out, "  memory                resident %s (peak %s), Go heap %s in use, %s live or not yet collected; %.0f goroutines\n",
		amount(u.RSS), amount(u.Peak), amount(int64(v[0])), amount(int64(v[1])), v[2])
	fmt.Fprintf(m.out, "  each managed object   %s of %s (resident, all of it divided)\n", amount(int64(each)), amount(goalPerObject))
	if r != nil {
		r.memory, r.heap = u, v[0]
	}
}

// byRequests orders counts by requests, the largest first.
func byRequests(a, b sim.Count) int { return cmp.Compare(b.Requests, a.Requests) }
