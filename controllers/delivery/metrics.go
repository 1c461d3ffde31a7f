package delivery

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/renderer"
)

// metrics of a controller. Labels are clusters, states and verbs: bounded.
type metrics struct {
	requests *prometheus.CounterVec
	writes   *prometheus.CounterVec
	restored *prometheus.CounterVec
	duration *prometheus.HistogramVec
	fetches  *prometheus.CounterVec
	lastRead prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, c *Controller, renders *renderer.Cache) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_api_requests_total", Help: "Requests to the API servers of clusters.",
		}, []string{"cluster", "verb", "code"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_objects_written_total", Help: "Objects that were created, updated or deleted in clusters.",
		}, []string{"cluster", "op"}),
		restored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_drift_restored_total", Help: "Objects whose drift was undone.",
		}, []string{"cluster"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "keelson_apply_duration_seconds", Help: "From the look at a component to its last write.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 14),
		}, []string{"cluster"}),
		fetches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_repository_reads_total", Help: "Reads of the fleet repository.",
		}, []string{"result"}),
		lastRead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keelson_repository_last_read_timestamp_seconds", Help: "When the fleet repository was last read.",
		}),
	}
	renderCount := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "keelson_renders_total", Help: "Charts that were rendered, not answered from the cache.",
	}, func() float64 { return float64(renders.Stats().Misses) })
	for _, one := range []prometheus.Collector{
		m.requests, m.writes, m.restored, m.duration, m.fetches, m.lastRead, renderCount, &deliveries{controller: c},
	} {
		if err := r.Register(one); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) request(cluster, verb, code string) {
	m.requests.WithLabelValues(cluster, verb, code).Inc()
}

func (m *metrics) applied(cluster string, o applier.Outcome, took time.Duration) {
	for op, n := range map[string]int{"create": o.Created, "update": o.Updated, "delete": o.Deleted} {
		m.writes.WithLabelValues(cluster, op).Add(float64(n))
	}
	m.restored.WithLabelValues(cluster).Add(float64(o.Restored))
	m.duration.WithLabelValues(cluster).Observe(took.Seconds())
}

func (m *metrics) fetched(err error) {
	if err != nil {
		m.fetches.WithLabelValues("error").Inc()
		return
	}
	m.fetches.WithLabelValues("ok").Inc()
	m.lastRead.SetToCurrentTime()
}

// deliveries counts by state when it is asked.
type deliveries struct{ controller *Controller }

func (d *deliveries) desc() *prometheus.Desc {
	return prometheus.NewDesc("keelson_deliveries", "Components on clusters by state.", []string{"cluster", "sync", "health"}, nil)
}

// Describe implements [prometheus.Collector].
func (d *deliveries) Describe(ch chan<- *prometheus.Desc) { ch <- d.desc() }

// Collect implements [prometheus.Collector].
func (d *deliveries) Collect(ch chan<- prometheus.Metric) {
	type key struct{ cluster, sync, health string }
	counts := map[key]int{}
	for _, s := range d.controller.statuses() {
		counts[key{s.Cluster, string(s.Sync), string(s.Health)}]++
	}
	for k, n := range counts {
		ch <- prometheus.MustNewConstMetric(d.desc(), prometheus.GaugeValue, float64(n), k.cluster, k.sync, k.health)
	}
}
