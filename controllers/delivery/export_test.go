package delivery

import (
	"maps"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/controllers/delivery/hubstatus"
	"github.com/keelson-io/keelson/controllers/delivery/livecache"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// Attempt is what a test says of an attempt.
type Attempt struct {
	Sync                      v1alpha1.Sync
	Message, Target, Revision string
	Plan                      differ.Plan
	Health                    []health.Result
	Created, Restored         int
	Planned                   bool
}

// Next is [next], with a timeout of a minute.
func Next(before v1alpha1.DeliveryStatus, a Attempt, now time.Time) v1alpha1.DeliveryStatus {
	return next(before, attempt{
		sync: a.Sync, message: a.Message, version: "v1", revision: a.Revision, targetHash: a.Target,
		plan: a.Plan, health: a.Health, planned: a.Planned, timeout: time.Minute,
		outcome: applier.Outcome{Counts: applier.Counts{Created: a.Created, Updated: a.Restored, Restored: a.Restored}},
	}, now)
}

// Told is a status that was handed to the writer; patient ones wait there for
// others.
type Told struct {
	Sync    v1alpha1.Sync
	Patient bool
}

// publisher is a [statusWriter] that is told of statuses alone.
type publisher func(*v1alpha1.DeliveryStatus, hubstatus.Urgency)

// Publish implements [statusWriter].
func (p publisher) Publish(s *v1alpha1.DeliveryStatus, u hubstatus.Urgency) *v1alpha1.DeliveryStatus {
	p(s, u)
	return s
}

// FlushDelayed implements [statusWriter].
func (publisher) FlushDelayed(string) {}

// Retract implements [statusWriter].
func (publisher) Retract(string, string) {}

// Shown implements [statusWriter].
func (publisher) Shown(string) []v1alpha1.DeliveryStatus { return nil }

// Tell is what an agent hands to the writer, in order, when its components have
// the given states one after the other, with the rest in the queue behind it.
func Tell(states ...v1alpha1.Sync) (told []Told) {
	a := &agent{queue: queue.New(time.Now, func(time.Duration) {}), hub: publisher(func(s *v1alpha1.DeliveryStatus, u hubstatus.Urgency) {
		told = append(told, Told{Sync: s.Sync, Patient: u == hubstatus.Delayed})
	})}
	for i := range states {
		a.queue.Add(strconv.Itoa(i))
	}
	for _, s := range states {
		component, _ := a.queue.Get()
		a.publishStatus(v1alpha1.DeliveryStatus{}, &v1alpha1.DeliveryStatus{Component: component, Sync: s})
		a.queue.Done(component)
	}
	return told
}

// Kept sums up what a controller has in memory of the objects in its clusters.
func (c *Controller) Kept() (sum livecache.Stats) {
	c.mu.Lock()
	agents := maps.Clone(c.agents)
	c.mu.Unlock()
	for _, r := range agents {
		if link := r.agent.linkNow(); link != nil {
			s := link.cache.Stats()
			sum.Objects, sum.Bodies, sum.Resting = sum.Objects+s.Objects, sum.Bodies+s.Bodies, sum.Resting+s.Resting
		}
	}
	return sum
}

// Seen is the resourceVersion of an object that a controller's watches have shown.
func (c *Controller) Seen(cluster string, gvr schema.GroupVersionResource, namespace, name string) string {
	c.mu.Lock()
	r := c.agents[cluster]
	c.mu.Unlock()
	return strconv.FormatUint(r.agent.linkNow().cache.Version(gvr, namespace, name), 10)
}

func (a *agent) linkNow() *link {
	link, _ := a.conn.current()
	return link
}

// Clocks are [clocks] of a cluster.
type Clocks struct {
	clocks   clocks
	desired  *registry.Cluster
	statuses statuses
}

// See is what [agent.update] does with a revision.
func (c *Clocks) See(desired *registry.Cluster, now time.Time) {
	c.clocks = c.clocks.start(c.desired, desired, c.statuses, now)
	c.desired = desired
}

// Look is what [agent.reconcile] does with a status.
func (c *Clocks) Look(s v1alpha1.DeliveryStatus, began, now time.Time) (synced, healthy time.Duration) {
	c.clocks, synced, healthy = c.clocks.update(c.statuses.get(s.Component), s, began, now)
	c.Recall(s)
	return synced, healthy
}

// Recall is what [agent.recall] does with a status.
func (c *Clocks) Recall(s v1alpha1.DeliveryStatus) {
	if c.statuses == nil {
		c.statuses = statuses{}
	}
	c.statuses[s.Component] = &s
}

// Running are the clocks that run.
func (c *Clocks) Running() int { return len(c.clocks) }

// Standing registers the metrics of a controller whose clusters, components each, are
// as they may be at their worst, and have answered with many codes.
func Standing(r prometheus.Registerer, clusters, components int) error {
	writer, err := hubstatus.New(hubstatus.Options{Hub: &rest.Config{}, Now: time.Now})
	if err != nil {
		return err
	}
	c := &Controller{agents: map[string]*running{}, metrics: newMetrics(), writer: writer}
	syncs := []v1alpha1.Sync{v1alpha1.SyncSynced, v1alpha1.SyncSynced, v1alpha1.SyncHeld, v1alpha1.SyncFailed}
	healths := []v1alpha1.Health{v1alpha1.HealthHealthy, v1alpha1.HealthProgressing, v1alpha1.HealthDegraded, v1alpha1.HealthUnknown}
	for i := range clusters {
		name := "prod-eu-central-" + strconv.Itoa(i)
		a := &agent{
			name: name, queue: queue.New(time.Now, func(time.Duration) {}), metrics: c.metrics.cluster(name),
			state: newClusterState(name, time.Now, nil), conn: &connection{},
		}
		for j := range components {
			s := v1alpha1.DeliveryStatus{Cluster: name, Component: strconv.Itoa(j), Sync: syncs[j%4], Health: healths[j/4%4]}
			if s.Sync == v1alpha1.SyncHeld {
				s.Held = []v1alpha1.HeldChange{{Rule: "rule-" + strconv.Itoa(i) + "-" + strconv.Itoa(j)}}
			}
			a.state.statuses[s.Component] = &s
		}
		c.agents[name] = &running{agent: a}
		for _, verb := range []string{"watch", "GET", "POST", "PUT", "PATCH", "DELETE", "other"} {
			for _, status := range []int{0, 200, 201, 400, 403, 404, 409, 410, 422, 429, 500, 503, 504, 799, 899, 999} {
				a.metrics.request(verb, status)
			}
		}
		a.metrics.applied(applier.Outcome{Counts: applier.Counts{Created: 1}}, time.Second)
	}
	return c.metrics.register(r, c, renderer.NewCache(nil, 0))
}

// Forgotten counts requests of a cluster before, and after it is gone, and, if it
// comes back, those since.
func Forgotten(r prometheus.Registerer, back bool) error {
	m := newMetrics()
	first := m.cluster("prod")
	first.request("GET", 200)
	m.deleteCluster("prod")
	first.request("GET", 200) // an answer that comes late
	if back {
		m.cluster("prod").request("GET", 404)
	}
	return r.Register(m.requests)
}

// RolloutsSoon schedules the reconcile of all rollouts. A test clock does not wake the loop.
func (c *Controller) RolloutsSoon() { c.rollouts.loop.Look("") }
