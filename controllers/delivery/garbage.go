package delivery

import "github.com/prometheus/client_golang/prometheus"

// gone drops the series of a cluster that this process does not work on any more.
func (m *metrics) gone(cluster string) {
	of := prometheus.Labels{"cluster": cluster}
	for _, series := range []interface{ DeletePartialMatch(prometheus.Labels) int }{m.requests, m.writes, m.restored, m.duration} {
		series.DeletePartialMatch(of)
	}
}
