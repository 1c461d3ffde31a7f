package rollout

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// Metrics of rollouts, which docs/reference/metrics.md lists. None is by component or cluster:
// their number has no bound.
type Metrics struct {
	rollouts *prometheus.GaugeVec
	released prometheus.Counter
	settled  prometheus.Counter
}

// NewMetrics returns new metrics, not yet registered.
func NewMetrics() *Metrics {
	return &Metrics{
		rollouts: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keelson_rollouts", Help: "Rollouts by phase, as the process that carries them on has written them.",
		}, []string{"phase"}),
		released: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keelson_rollout_clusters_released_total", Help: "Clusters that were released.",
		}),
		settled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keelson_rollout_clusters_settled_total", Help: "Clusters that were released and have the change.",
		}),
	}
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.rollouts, m.released, m.settled}
}

func (m *Metrics) count(rollouts map[string]*v1alpha1.Rollout, of *registry.Fleet) {
	phases := map[v1alpha1.RolloutPhase]int{
		v1alpha1.RolloutProgressing: 0, v1alpha1.RolloutPaused: 0, v1alpha1.RolloutRollingBack: 0, v1alpha1.RolloutRolledBack: 0, v1alpha1.RolloutComplete: 0,
	}
	for _, r := range rollouts {
		if isOf(r, of) && r.Status.Phase != "" {
			phases[r.Status.Phase]++
		}
	}
	for phase, n := range phases {
		m.rollouts.WithLabelValues(string(phase)).Set(float64(n))
	}
}

func (m *Metrics) happened(e Event) {
	switch e.Message {
	case eventReleased:
		m.released.Inc()
	case eventSettled:
		m.settled.Inc()
	}
}
