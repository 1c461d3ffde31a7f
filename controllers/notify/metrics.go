package notify

import "github.com/prometheus/client_golang/prometheus"

// The values of the label result.
const (
	resultSent    = "sent"
	resultFailed  = "failed"  // tried again
	resultDropped = "dropped" // the server refuses it; not tried again
)

// Metrics of notifications, listed in docs/reference/metrics.md. There are at most 50 notifications.
type Metrics struct {
	messages *prometheus.CounterVec
	failures *prometheus.GaugeVec
}

// NewMetrics returns new metrics, not yet registered.
func NewMetrics() *Metrics {
	return &Metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_notifications_total", Help: "Messages of notifications that were sent, that failed and are tried again, or were dropped since the server refuses them.",
		}, []string{"notification", "result"}),
		failures: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keelson_notification_failures", Help: "Consecutive failures to send a notification; 0 after a success.",
		}, []string{"notification"}),
	}
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.messages, m.failures}
}

// begins creates the series of a notification before anything is sent.
func (m *Metrics) begins(name string) {
	for _, result := range []string{resultSent, resultFailed, resultDropped} {
		m.messages.WithLabelValues(name, result)
	}
	m.failures.WithLabelValues(name)
}

func (m *Metrics) delete(name string) {
	m.messages.DeletePartialMatch(prometheus.Labels{"notification": name})
	m.failures.DeleteLabelValues(name)
}
