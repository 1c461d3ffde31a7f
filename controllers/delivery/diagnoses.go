package delivery

import (
	"context"
	"sync"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/health"
)

// diagnosis explains why a component is not healthy. about is the target and the problem.
type diagnosis struct{ about, text string }

// diagnoses remember why components are not healthy, so that the cluster is asked rarely. mu guards
// the maps; no request is made under the lock.
type diagnoses struct {
	now func() time.Time
	// status returns the status of a component.
	status func(component string) v1alpha1.DeliveryStatus
	// busy reports whether components of the cluster are queued.
	busy func() bool

	mu sync.Mutex
	// known holds the diagnosis of each component that is not healthy.
	known map[string]diagnosis
	// podChecks holds the last check of the pods of each component that is progressing.
	podChecks map[string]podCheck
}

func newDiagnoses(now func() time.Time, status func(string) v1alpha1.DeliveryStatus, busy func() bool) *diagnoses {
	return &diagnoses{now: now, status: status, busy: busy, known: map[string]diagnosis{}, podChecks: map[string]podCheck{}}
}

// forget drops what is known of a component that is gone.
func (d *diagnoses) forget(component string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, component)
	delete(d.podChecks, component)
}

// of explains why a component is not healthy, if the component is degraded or its timeout has
// passed. It asks the cluster once for each target and problem; before that it checks the pods.
func (d *diagnoses) of(ctx context.Context, s snapshot, p *applier.Prepared, t attempt) string {
	component := s.delivery.Component
	is, worst := health.Worst(t.health)
	about := t.targetHash + " " + worst
	late := waited(d.status(component), d.now()) > t.timeout && !health.Waits(t.health)
	d.mu.Lock()
	known := d.known[component]
	if is == v1alpha1.HealthHealthy {
		delete(d.known, component)
		delete(d.podChecks, component)
	}
	d.mu.Unlock()
	switch {
	case is == v1alpha1.HealthHealthy:
		return ""
	case is != v1alpha1.HealthDegraded && !late:
		return d.podTrouble(ctx, s, p, t)
	case known.about == about:
		return known.text
	}
	text := s.link.cluster.Diagnose(ctx, p)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[component] = diagnosis{about, text}
	return text
}

// podCheck is the result of the last check of the pods of a progressing component.
type podCheck struct {
	about, text string    // about: the target hash
	since, at   time.Time // since when the component progresses to the target, and when its pods were checked
}

const (
	// firstPodCheck is the time before the pods of a component are first checked. Most pods are
	// ready by then.
	firstPodCheck = 5 * time.Second
	// busyPodCheck replaces firstPodCheck while other components of the cluster are queued: changes
	// go first.
	busyPodCheck = 30 * time.Second
	lastPodCheck = time.Minute
)

// podCheckInterval returns how long a check of the pods is valid, for a component that has been
// progressing for way. A failing pod is reported early, and a slow start costs few requests.
func podCheckInterval(way time.Duration, othersWait bool) time.Duration {
	first := firstPodCheck
	if othersWait {
		first = busyPodCheck
	}
	return min(max(way, first), lastPodCheck)
}

// nextPodCheck returns after what time the pods of a component are to be checked.
func (d *diagnoses) nextPodCheck(component string) time.Duration {
	d.mu.Lock()
	check, now := d.podChecks[component], d.now()
	d.mu.Unlock()
	way := now.Sub(check.since)
	if check.since.IsZero() {
		way = 0
	}
	return podCheckInterval(way, d.busy())
}

// podTrouble names a pod that does not start, while the component may still become healthy.
func (d *diagnoses) podTrouble(ctx context.Context, s snapshot, p *applier.Prepared, t attempt) string {
	component, now := s.delivery.Component, d.now()
	d.mu.Lock()
	check := d.podChecks[component]
	if check.about != t.targetHash || check.since.IsZero() {
		check = podCheck{about: t.targetHash, since: now}
		d.podChecks[component] = check
	}
	d.mu.Unlock()
	way := now.Sub(check.since)
	every := podCheckInterval(way, d.busy())
	if way < every || now.Sub(check.at) < every {
		return check.text
	}
	check.text, check.at = s.link.cluster.PodTrouble(ctx, p), d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.podChecks[component] = check
	return check.text
}
