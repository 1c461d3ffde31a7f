package delivery

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/renderer"
)

// metrics of a controller, listed in docs/reference/metrics.md. Histogram buckets for hundreds of clusters
// would be thousands of series. So only counters have a cluster label; histograms cover the fleet.
type metrics struct {
	requests *prometheus.CounterVec
	writes   *prometheus.CounterVec
	restored *prometheus.CounterVec

	duration  prometheus.Histogram
	converged *prometheus.HistogramVec
	waited    prometheus.Histogram
	fetches   *prometheus.CounterVec
	fetch     prometheus.Histogram
	lastRead  prometheus.Gauge
	statuses  *prometheus.CounterVec

	mu       sync.Mutex
	clusters map[string]*counted
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, first, factor float64, buckets int) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(first, factor, buckets)}
	}
	return &metrics{
		requests: counter("keelson_api_requests_total", "Requests to the API servers of clusters; code is none where no answer came.", "cluster", "verb", "code"),
		writes:   counter("keelson_objects_written_total", "Objects that were created, updated or deleted in clusters.", "cluster", "op"),
		restored: counter("keelson_drift_restored_total", "Objects whose drift was undone.", "cluster"),
		duration: prometheus.NewHistogram(histogram("keelson_apply_duration_seconds",
			"From the look at a component to its last write, of looks that wrote.", 0.05, 2, 14)),
		converged: prometheus.NewHistogramVec(histogram("keelson_convergence_seconds",
			"From the moment that git was seen to want something new of a component until the cluster had it (until=synced), and until it was healthy as well (until=healthy).",
			0.25, 2, 15), []string{"until"}),
		waited: prometheus.NewHistogram(histogram("keelson_queue_wait_seconds",
			"How long components waited for a place at their cluster.", 0.001, 4, 10)),
		fetches: counter("keelson_repository_reads_total", "Reads of the fleet repository.", "result"),
		fetch: prometheus.NewHistogram(histogram("keelson_repository_read_duration_seconds",
			"How long a read of the fleet repository took, the fetch with it.", 0.01, 2, 14)),
		lastRead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keelson_repository_last_read_timestamp_seconds", Help: "When the fleet repository was last read.",
		}),
		statuses: counter("keelson_status_writes_total", "Writes of Deliveries to the hub.", "result"),
		clusters: map[string]*counted{},
	}
}

// register adds all collectors to a registry.
func (m *metrics) register(r prometheus.Registerer, c *Controller, renders *renderer.Cache) error {
	renderCount := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "keelson_renders_total", Help: "Charts that were rendered, not answered from the cache.",
	}, func() float64 { return float64(renders.Stats().Misses) })
	for _, one := range []prometheus.Collector{
		m.requests, m.writes, m.restored, m.duration, m.converged, m.waited, m.fetches, m.fetch, m.lastRead, m.statuses,
		renderCount, newSnapshots(c),
	} {
		if err := r.Register(one); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	return nil
}

// read counts a read of the fleet repository.
func (m *metrics) read(took time.Duration, err error) {
	m.fetch.Observe(took.Seconds())
	m.fetches.WithLabelValues(result(err)).Inc()
	if err == nil {
		m.lastRead.SetToCurrentTime()
	}
}

// statusWritten counts a write of a Delivery.
func (m *metrics) statusWritten(err error) { m.statuses.WithLabelValues(result(err)).Inc() }

// observeWait observes how long a component was queued.
func (m *metrics) observeWait(waited time.Duration) { m.waited.Observe(waited.Seconds()) }

// arrived observes the durations that [clocks.update] returned.
func (m *metrics) arrived(synced, healthy time.Duration) {
	if synced > 0 {
		m.converged.WithLabelValues("synced").Observe(synced.Seconds())
	}
	if healthy > 0 {
		m.converged.WithLabelValues("healthy").Observe(healthy.Seconds())
	}
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

// cluster returns the counters of a cluster: the same ones for successive agents of a cluster.
func (m *metrics) cluster(name string) *counted {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.clusters[name]
	if c == nil {
		c = &counted{metrics: m, cluster: name}
		m.clusters[name] = c
	}
	return c
}

// deleteCluster deletes the series of a cluster that this process no longer works on.
func (m *metrics) deleteCluster(cluster string) {
	m.mu.Lock()
	c := m.clusters[cluster]
	delete(m.clusters, cluster)
	m.mu.Unlock()
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shut = true
	for _, v := range []*prometheus.CounterVec{m.requests, m.writes, m.restored} {
		v.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
	}
}

// counted counts for one cluster until gone is called. Later answers must not create its series
// again.
type counted struct {
	*metrics
	cluster string
	mu      sync.RWMutex
	shut    bool
}

func (c *counted) add(v *prometheus.CounterVec, n int, labels ...string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if !c.shut {
		v.WithLabelValues(append([]string{c.cluster}, labels...)...).Add(float64(n))
	}
}

// request counts a request; status 0: no answer came.
func (c *counted) request(verb string, status int) {
	code := "none"
	switch {
	case http.StatusText(status) != "":
		code = strconv.Itoa(status)
	case status != 0:
		code = "other" // a server may answer with any number
	}
	c.add(c.requests, 1, verb, code)
}

func (c *counted) applied(o applier.Outcome, took time.Duration) {
	c.add(c.writes, o.Created, "create")
	c.add(c.writes, o.Updated, "update")
	c.add(c.writes, o.Deleted, "delete")
	c.add(c.restored, o.Restored)
	c.duration.Observe(took.Seconds())
}
