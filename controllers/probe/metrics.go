package probe

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Metrics of probes, listed in docs/reference/metrics.md. Their labels are clusters, probes (at most 20 in a
// fleet), and words of this package.
type Metrics struct {
	steps  *prometheus.HistogramVec
	runs   *prometheus.CounterVec
	passed *prometheus.GaugeVec
}

// NewMetrics returns new metrics, not yet registered.
func NewMetrics() *Metrics {
	return &Metrics{
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "keelson_probe_step_seconds", Help: "How long clusters took to carry out the steps of probes that succeeded.",
			Buckets: []float64{.25, .5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300},
		}, []string{"subject", "step"}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_probe_runs_total", Help: "Runs of probes by how they ended.",
		}, []string{"cluster", "probe", "outcome"}),
		passed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keelson_probe_last_success_timestamp_seconds", Help: "When a run of a probe passed last.",
		}, []string{"cluster", "probe"}),
	}
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.steps, m.runs, m.passed}
}

// Forget removes the series of a cluster that this process no longer has.
func (m *Metrics) Forget(cluster string) {
	m.runs.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
	m.passed.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
}

func (m *Metrics) removed(cluster, probe string) {
	of := prometheus.Labels{"cluster": cluster, "probe": probe}
	m.runs.DeletePartialMatch(of)
	m.passed.DeletePartialMatch(of)
}

func (m *Metrics) took(kind, step string, took time.Duration) {
	m.steps.WithLabelValues(kind, step).Observe(took.Seconds())
}

// recalled sets the series of a probe to the result in the hub, before this process runs the probe.
func (m *Metrics) recalled(s *v1alpha1.ProbeResultStatus) {
	for _, outcome := range []v1alpha1.ProbeOutcome{v1alpha1.ProbePassed, v1alpha1.ProbeFailed} {
		m.runs.WithLabelValues(s.Cluster, s.Probe, word(outcome)) // a rate needs the zero before the first
	}
	if s.Passed != nil {
		m.passed.WithLabelValues(s.Cluster, s.Probe).Set(float64(s.Passed.Unix()))
	}
}

func (m *Metrics) ran(s *v1alpha1.ProbeResultStatus) {
	m.runs.WithLabelValues(s.Cluster, s.Probe, word(s.Outcome)).Inc()
	if s.Outcome == v1alpha1.ProbePassed {
		m.passed.WithLabelValues(s.Cluster, s.Probe).Set(float64(s.Passed.Unix()))
	}
}

func word(o v1alpha1.ProbeOutcome) string { return strings.ToLower(string(o)) }
