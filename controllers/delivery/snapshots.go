package delivery

import (
	"cmp"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// rulesShown bounds how many rule names become labels, because git may have any number of rules.
// The rest counts as otherRules.
const (
	rulesShown = 64
	otherRules = "(others)"
)

// snapshots collects gauges of the current state at each scrape. So a component or cluster that is
// gone leaves no series.
type snapshots struct {
	controller                 *Controller
	deliveries, held, warnings *prometheus.Desc
	clusters, queue, oldest    *prometheus.Desc
	statuses, oldestStatus     *prometheus.Desc
}

func newSnapshots(c *Controller) *snapshots {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &snapshots{
		controller: c,
		deliveries: desc("keelson_deliveries", "Components on clusters by state.", "cluster", "sync", "health"),
		held:       desc("keelson_held_changes", "Changes that a danger rule holds or denies now, as statuses list them (32 a delivery at most).", "rule"),
		warnings:   desc("keelson_change_warnings", "Warnings of danger rules about the last change of each delivery, as statuses list them (32 a delivery at most).", "rule"),
		clusters:   desc("keelson_clusters", "Clusters that this process works on: connected, connecting (for the first time) or unreachable.", "state"),
		queue:      desc("keelson_queue_length", "Components that wait for a place at their cluster.", "cluster"),
		oldest:     desc("keelson_queue_oldest_seconds", "How long the first of them has waited.", "cluster"),
		statuses:   desc("keelson_status_queue_length", "Deliveries that wait to be written to the hub."),

		oldestStatus: desc("keelson_status_queue_oldest_seconds", "How long the first of them has waited whose turn has come."),
	}
}

// Describe implements [prometheus.Collector].
func (s *snapshots) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.deliveries, s.held, s.warnings, s.clusters, s.queue, s.oldest, s.statuses, s.oldestStatus} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (s *snapshots) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	c := s.controller
	c.mu.Lock()
	agents := maps.Clone(c.agents)
	c.mu.Unlock()
	all := stateCounts{held: map[string]int{}, warnings: map[string]int{}, clusters: map[string]int{"connected": 0, "connecting": 0, "unreachable": 0}}
	for name, r := range agents {
		for state, n := range r.agent.countStates(&all) {
			gauge(s.deliveries, float64(n), name, string(state.sync), string(state.health))
		}
		n, oldest := r.agent.queue.Age()
		gauge(s.queue, float64(n), name)
		gauge(s.oldest, oldest.Seconds(), name)
	}
	for rule, n := range bounded(all.held) {
		gauge(s.held, float64(n), rule)
	}
	for rule, n := range bounded(all.warnings) {
		gauge(s.warnings, float64(n), rule)
	}
	for state, n := range all.clusters {
		gauge(s.clusters, float64(n), state)
	}
	n, oldest := c.writer.Age()
	gauge(s.statuses, float64(n))
	gauge(s.oldestStatus, oldest.Seconds())
}

// stateCounts counts over all clusters of a process.
type stateCounts struct {
	held     map[string]int // changes, by rule
	warnings map[string]int // by rule
	clusters map[string]int // by state
}

// state is the state of a delivery.
type state struct {
	sync   v1alpha1.Sync
	health v1alpha1.Health
}

// countStates counts deliveries by state, and adds to all. It holds the lock of the state while it
// goes through the statuses.
func (a *agent) countStates(all *stateCounts) map[state]int {
	switch link, unreachable := a.conn.current(); {
	case unreachable != nil:
		all.clusters["unreachable"]++
	case link == nil:
		all.clusters["connecting"]++
	default:
		all.clusters["connected"]++
	}
	out := map[state]int{}
	a.state.each(func(s *v1alpha1.DeliveryStatus) {
		out[state{cmp.Or(s.Sync, "Unknown"), cmp.Or(s.Health, v1alpha1.HealthUnknown)}]++
		for _, h := range s.Held {
			all.held[a.redactor.Text(h.Rule)]++ // the name comes from git, and may contain a secret
		}
		for _, w := range s.Warnings {
			all.warnings[a.redactor.Text(w.Rule)]++
		}
	})
	return out
}

// bounded keeps the rules with the highest counts, and adds up the rest.
func bounded(held map[string]int) map[string]int {
	if len(held) <= rulesShown {
		return held
	}
	names := slices.SortedFunc(maps.Keys(held), func(a, b string) int {
		return cmp.Or(cmp.Compare(held[b], held[a]), cmp.Compare(a, b))
	})
	for _, name := range names[rulesShown:] {
		held[otherRules] += held[name]
		delete(held, name)
	}
	return held
}
