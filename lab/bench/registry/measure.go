package registry

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"

	"golang.org/x/sync/errgroup"

	"github.com/keelson-io/keelson/lab/process"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
)

// cacheBytes is the controller's default size of the render cache.
const cacheBytes = 256 << 20

// Goals for a fleet of 200 components × 300 clusters with 2,000 distinct renders.
const (
	goalCold     = 60 * time.Second
	goalLoad     = 10 * time.Second
	goalCommit   = 300 * time.Millisecond
	goalPreview  = 10 * time.Second
	goalMarkdown = 64 << 10
	goalPeak     = 1 << 30
	goalHeap     = 250 << 20 // after the first load
)

// measurement measures one fleet.
type measurement struct {
	dir, cacheDir string
	keelson       string // the program whose previews are measured; "": none
	out           io.Writer
	now           func() time.Time
	engine        renderer.Renderer

	repo  *registry.Repo
	cache *renderer.Cache
	fleet *registry.Fleet
	caps  renderer.Capabilities
	each  time.Duration // per distinct render of a cold start
}

func (m *measurement) run(ctx context.Context, commits int, alone bool) {
	m.cache = renderer.NewCache(m.engine, cacheBytes)
	m.caps = renderer.DefaultCapabilities()
	m.cold(ctx)
	m.renderAgain(ctx)
	for _, k := range kinds() {
		must.Wrap(func() { m.commits(ctx, k, commits) }, "%s", k.name)
	}
	for _, k := range kinds() {
		if m.keelson == "" {
			break
		}
		must.Wrap(func() { m.preview(ctx, k, commits) }, "preview of %s", k.name)
	}
	heap := heapAfterGC()
	fmt.Fprintf(m.out, "  heap after all of it  %s, render cache %s of %s\n", size(heap), size(m.cache.Stats().Bytes), size(cacheBytes))
	if alone {
		m.alone(ctx)
	}
}

// cold loads and renders everything with empty caches.
func (m *measurement) cold(ctx context.Context) {
	start := m.now()
	m.repo = must.Get(registry.Open(ctx, gitrepo.Options{URL: m.dir, CacheDir: m.cacheDir}))
	m.fleet = must.Get(m.repo.Load(ctx, ""))
	loaded := m.now().Sub(start)
	must.Do(m.fleet.Problems.Err())
	deliveries := 0
	for _, c := range m.fleet.Clusters {
		deliveries += len(c.Deliveries)
	}
	loadPeak := peak()
	heap := heapAfterGC()
	start = m.now()
	must.Do(m.render(ctx, m.fleet.Clusters, nil))
	rendered := m.now().Sub(start)
	top := peak()
	misses := max(m.cache.Stats().Misses, 1)
	m.each = rendered / time.Duration(misses)
	fmt.Fprintf(m.out, "%d clusters, %d deliveries, %d distinct renders, on %d cores\n\n", len(m.fleet.Clusters), deliveries, misses, runtime.GOMAXPROCS(0))
	fmt.Fprintf(m.out, "  cold load             %s of %s; peak %s, heap %s of %s\n", loaded.Round(time.Millisecond), goalLoad, size(loadPeak), size(heap), size(goalHeap))
	fmt.Fprintf(m.out, "  cold render           %s, %s each distinct one\n", rendered.Round(time.Millisecond), m.each.Round(time.Microsecond))
	fmt.Fprintf(m.out, "  cold, in all          %s of %s; peak %s of %s\n", (loaded + rendered).Round(time.Millisecond), goalCold, size(top), size(goalPeak))
}

// renderAgain renders the same fleet again, which measures how fast unchanged inputs are recognised.
func (m *measurement) renderAgain(ctx context.Context) {
	before := m.cache.Stats().Misses
	start := m.now()
	must.Do(m.render(ctx, m.fleet.Clusters, nil))
	took := m.now().Sub(start)
	if got := m.cache.Stats().Misses; got != before {
		must.Failf("%d renders where nothing changed", got-before)
	}
	fmt.Fprintf(m.out, "  the same once more    %s\n", took.Round(time.Microsecond))
}

// render renders the deliveries of the clusters that are not in known.
func (m *measurement) render(ctx context.Context, clusters []*registry.Cluster, known map[*registry.Delivery]bool) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, c := range clusters {
		g.Go(func() error {
			for _, d := range c.Deliveries {
				if known[d] {
					continue
				}
				if _, err := m.cache.Render(ctx, m.request(c, d)); err != nil {
					return fmt.Errorf("cluster %s: %w", c.Name, err)
				}
			}
			return nil
		})
	}
	return g.Wait() //nolint:wrapcheck // wrapped above
}

func (m *measurement) request(c *registry.Cluster, d *registry.Delivery) renderer.Request {
	return renderer.Request{Version: d.Version, Values: d.Values, ImageMirrors: c.Spec.ImageMirrors, Capabilities: m.caps}
}

// sample holds the figures of one commit, from the start of the fetch to the last render.
type sample struct {
	fetch, load, render time.Duration
	deliveries, renders int
	allocated           uint64
}

func (s sample) total() time.Duration { return s.fetch + s.load + s.render }

// commits measures n commits of a kind.
func (m *measurement) commits(ctx context.Context, k kind, n int) {
	var samples []sample
	for i := range n {
		k.push(ctx, m, i)
		s := m.commit(ctx)
		samples = append(samples, s)
	}
	slices.SortFunc(samples, func(a, b sample) int { return cmp.Compare(a.total(), b.total()) })
	s := samples[len(samples)/2]
	fmt.Fprintf(m.out, "  commit: %-16s %s of %s (fetch %s, load %s, render %s; slowest of %d %s); %d deliveries, %d renders, %s allocated\n",
		k.name, s.total().Round(10*time.Microsecond), goalCommit, s.fetch.Round(10*time.Microsecond), s.load.Round(10*time.Microsecond),
		s.render.Round(10*time.Microsecond), n, samples[len(samples)-1].total().Round(10*time.Microsecond), s.deliveries, s.renders, size(s.allocated))
}

func (m *measurement) commit(ctx context.Context) sample {
	var s sample
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	misses := m.cache.Stats().Misses
	start := m.now()
	must.Do(m.repo.Git().Fetch(ctx))
	fetched := m.now()
	f := must.Get(m.repo.Load(ctx, ""))
	loaded := m.now()
	// Skip unchanged clusters and deliveries: Load returns the same pointers for these.
	touched, known := m.touched(f)
	must.Do(m.render(ctx, touched, known))
	s.fetch, s.load, s.render = fetched.Sub(start), loaded.Sub(fetched), m.now().Sub(loaded)
	runtime.ReadMemStats(&after)
	for _, c := range touched {
		s.deliveries += len(c.Deliveries)
	}
	s.deliveries -= len(known)
	s.renders, s.allocated = int(m.cache.Stats().Misses-misses), after.TotalAlloc-before.TotalAlloc
	switch err := f.Problems.Err(); {
	case err != nil:
		must.Failf("the fleet has problems: %w", err)
	case f.Revision == m.fleet.Revision || s.renders == 0:
		must.Failf("the commit changed nothing: %d renders at %s", s.renders, f.Revision)
	}
	m.fleet = f
	return s
}

// preview measures one run of keelson preview on one more commit. The process starts with empty
// caches.
func (m *measurement) preview(ctx context.Context, k kind, i int) {
	base := m.fleet.Revision
	k.push(ctx, m, i)
	must.Do(m.repo.Git().Fetch(ctx))
	m.fleet = must.Get(m.repo.Load(ctx, ""))
	var out, complaints bytes.Buffer
	//nolint:gosec // the program to measure
	c := exec.CommandContext(ctx, m.keelson, "preview", base, m.fleet.Revision, "--repo", m.dir, "-o", "markdown")
	c.Stdout, c.Stderr = &out, &complaints
	start := m.now()
	err := c.Run()
	took := m.now().Sub(start)
	if c.ProcessState == nil || c.ProcessState.ExitCode() != 1 { // exit code 1: the preview contains changes
		must.Failf("%s: %w\n%s", c, err, complaints.String())
	}
	first, _, _ := strings.Cut(out.String(), "\n")
	fmt.Fprintf(m.out, "  preview: %-15s %s of %s, Markdown %s of %s: %s\n", k.name, took.Round(time.Millisecond), goalPreview,
		size(out.Len()), size(goalMarkdown), strings.Trim(first, "*"))
}

// touched returns the clusters whose pointer has changed since the previous fleet, and the
// unchanged deliveries of these clusters.
func (m *measurement) touched(f *registry.Fleet) ([]*registry.Cluster, map[*registry.Delivery]bool) {
	var touched []*registry.Cluster
	known := map[*registry.Delivery]bool{}
	for _, c := range f.Clusters {
		was := m.fleet.Cluster(c.Name)
		if was == c {
			continue
		}
		touched = append(touched, c)
		for _, d := range c.Deliveries {
			if was != nil && was.Delivery(d.Component) == d {
				known[d] = true
			}
		}
	}
	return touched, known
}

// alone renders each distinct input once more without a cache. The result is the lower bound of a
// cold render.
func (m *measurement) alone(ctx context.Context) {
	type distinct struct {
		*registry.Cluster
		*registry.Delivery
	}
	seen := map[*renderer.Target]bool{}
	var all []distinct
	for _, c := range m.fleet.Clusters {
		for _, d := range c.Deliveries {
			t := must.Get(m.cache.Render(ctx, m.request(c, d)))
			if !seen[t] {
				seen[t] = true
				all = append(all, distinct{c, d})
			}
		}
	}
	start := m.now()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, one := range all {
		g.Go(func() error {
			_, err := m.engine.Render(ctx, m.request(one.Cluster, one.Delivery))
			return err
		})
	}
	must.Do(g.Wait())
	took := m.now().Sub(start)
	each := took / time.Duration(max(len(all), 1))
	fmt.Fprintf(m.out, "  renders alone         %s for %d of them, without a cache, %s each: a cold start takes %.2f× that\n",
		took.Round(time.Millisecond), len(all), each.Round(time.Microsecond), m.each.Seconds()/each.Seconds())
}

// peak returns the sum of the peaks of resident memory of this process and its workers. The peaks
// may be at different times.
func peak() int64 { return must.Get(must.Get(process.Identify(os.Getpid())).UsageOfAll()).Peak }

func heapAfterGC() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

func size[T int64 | uint64 | int](bytes T) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%.1f KB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MB", float64(bytes)/(1<<20))
}
