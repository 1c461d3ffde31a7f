// Package delivery runs the loops that keep clusters as git wants them: one
// reads git, one a cluster applies and watches, one writes status to the hub.
//
// A revision that can't be read leaves every cluster as it is, a broken file
// only what it names, and a dead cluster only itself. A converged fleet makes
// no API call but its watches.
package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/controllers/lease"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Options are the settings of a [Controller]; all are required but Revision and
// Writer.
type Options struct {
	Repo *registry.Repo
	// Revision to follow: a branch, tag or commit; empty: the default branch.
	Revision string
	// Interval between two looks at the repository, give or take a tenth.
	Interval time.Duration
	// Hub is the cluster that holds the Deliveries.
	Hub *rest.Config
	// Connect finds the way to a cluster.
	Connect func(context.Context, v1alpha1.Connection) (*rest.Config, error)
	// Renderer is shared by all clusters.
	Renderer *renderer.Cache
	// Writer is what this process is called in records, and who says that it may
	// take them over.
	Writer applier.Writer
	// Redactor is told of secrets, and takes them out of statuses and events. Log
	// has to write through it.
	Redactor *redact.Redactor
	Log      *slog.Logger
	Now      func() time.Time
	Registry prometheus.Registerer
}

// Controller delivers a fleet.
type Controller struct {
	repo     *registry.Repo
	revision string
	pace     *pace
	log      *slog.Logger
	now      func() time.Time
	connect  func(context.Context, v1alpha1.Connection) (*rest.Config, error)
	renderer renderer.Renderer
	past     *past
	schemas  *applier.SchemaCache
	redactor *redact.Redactor
	metrics  *metrics
	session  applier.Writer
	writer   *writer

	// leaving are agents of clusters that left git, and finish what they have begun.
	leaving map[string]chan struct{}

	mu     sync.Mutex
	seen   bool            // some revision could be read
	fleet  *registry.Fleet // the last that is being delivered
	agents map[string]*running
	wg     sync.WaitGroup
}

// running is an agent with the connection it was started for.
type running struct {
	agent      *agent
	connection v1alpha1.Connection
	stop       context.CancelFunc
	done       chan struct{}
}

// New prepares a controller; it makes no call.
func New(o Options) (*Controller, error) {
	c := &Controller{
		repo: o.Repo, revision: o.Revision, pace: newPace(o.Interval), log: o.Log, now: o.Now, connect: o.Connect,
		renderer: o.Renderer, schemas: applier.NewSchemaCache(), redactor: o.Redactor, agents: map[string]*running{}, leaving: map[string]chan struct{}{},
		session: o.Writer, past: &past{repo: o.Repo},
	}
	var err error
	if c.metrics, err = newMetrics(o.Registry, c, o.Renderer); err != nil {
		return nil, err
	}
	if c.writer, err = newWriter(o); err != nil {
		return nil, err
	}
	return c, nil
}

// Ready reports whether a revision of the fleet was read.
func (c *Controller) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.seen {
		return errors.New("no revision of the fleet repository was read yet")
	}
	return nil
}

// FetchSoon has the repository read at once, or a second after it was read last.
// It returns at once, and asking often is asking once.
func (c *Controller) FetchSoon() { c.pace.soon() }

// Standby reads git until the context ends, so that Run can begin at once, and
// writes nothing anywhere.
func (c *Controller) Standby(ctx context.Context) {
	for {
		_, err := c.load(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Error("the fleet repository can't be read", "error", err)
		}
		c.metrics.fetched(err)
		if !c.pace.wait(ctx) {
			return
		}
	}
}

// Run works until the context ends, then finishes what it has begun, unless the
// context ended with [lease.ErrLost]. The error says that the hub can't hold
// Deliveries.
func (c *Controller) Run(ctx context.Context) error {
	if err := c.writer.prepare(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped before it began
		}
		return fmt.Errorf("hub: %w", err)
	}
	// Statuses of the last moments are written, too: the writer stops last.
	writing, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.writer.run(writing)
	}()
	c.follow(ctx)
	c.wg.Wait()
	stop(context.Cause(ctx))
	<-written
	return nil
}

// follow reads git again and again.
func (c *Controller) follow(ctx context.Context) {
	for failing := false; ; {
		err := c.read(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			c.log.Error("the fleet repository can't be read; every cluster stays as it is", "error", err)
		case err == nil && failing:
			c.log.Info("the fleet repository can be read again")
		}
		if failing != (err != nil) && ctx.Err() == nil {
			c.writer.repository(err)
		}
		failing = err != nil
		c.metrics.fetched(err)
		if !c.pace.wait(ctx) {
			return
		}
	}
}

func (c *Controller) read(ctx context.Context) error {
	c.mu.Lock()
	current := c.fleet
	c.mu.Unlock()
	fleet, err := c.load(ctx)
	if err != nil || fleet == current {
		return err
	}
	c.log.Info("new revision", "revision", fleet.Revision, "clusters", len(fleet.Clusters), "problems", len(fleet.Problems))
	for _, p := range fleet.Problems {
		c.log.Warn("problem in the fleet repository", "at", p.At.String(), "problem", p.Message, "hint", p.Hint)
	}
	c.mu.Lock()
	c.fleet = fleet
	c.mu.Unlock()
	c.assign(ctx, fleet)
	return nil
}

// load learns what git says now. Tags come and move without a commit; the Fleet is
// the same as before only when nothing at all is new.
func (c *Controller) load(ctx context.Context) (*registry.Fleet, error) {
	if err := c.repo.Fetch(ctx); err != nil {
		return nil, err
	}
	fleet, err := c.repo.Load(ctx, c.revision)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = true
	return fleet, nil
}

// drain calls stop when what was begun has had time to finish: none at all where
// another process may have begun, too.
func drain(ctx context.Context, stop context.CancelFunc) (cancel func() bool) {
	after := drainTimeout
	if errors.Is(context.Cause(ctx), lease.ErrLost) {
		after = 0
	}
	return time.AfterFunc(after, stop).Stop
}

// assign gives each cluster its part of the fleet, and starts and stops agents.
func (c *Controller) assign(ctx context.Context, fleet *registry.Fleet) {
	gone := maps.Clone(c.agents)
	for _, cluster := range fleet.Clusters {
		r := c.agents[cluster.Name]
		// A file that can't be read says nothing about the connection.
		if r != nil && len(cluster.Problems) == 0 && !reflect.DeepEqual(r.connection, cluster.Spec.Connection) {
			c.log.Info("the connection changed", "cluster", cluster.Name)
			r.stop()
			<-r.done
			r = nil
		}
		if r == nil {
			r = c.start(ctx, fleet, cluster)
			c.mu.Lock()
			c.agents[cluster.Name] = r
			c.mu.Unlock()
		} else {
			r.agent.update(fleet, cluster)
		}
		delete(gone, cluster.Name)
	}
	for name, r := range gone {
		c.log.Info("the cluster is no longer in git; it is left as it is", "cluster", name)
		r.stop()
		c.mu.Lock()
		delete(c.agents, name)
		c.mu.Unlock()
		c.leaving[name] = r.done
		c.wg.Go(func() {
			<-r.done // or what it has begun would have the last word
			for _, s := range r.agent.known() {
				s.Sync, s.Message = v1alpha1.SyncOrphaned, "the cluster is no longer in git; it was left as it is"
				c.writer.publish(s, collect)
			}
		})
	}
}

func (c *Controller) start(ctx context.Context, fleet *registry.Fleet, cluster *registry.Cluster) *running {
	ctx, stop := context.WithCancel(ctx)
	r := &running{agent: newAgent(cluster.Name, c), connection: cluster.Spec.Connection, stop: stop, done: make(chan struct{})}
	r.agent.update(fleet, cluster)
	before := c.leaving[cluster.Name]
	delete(c.leaving, cluster.Name)
	c.wg.Go(func() {
		defer close(r.done)
		if before != nil {
			<-before // two agents would be one writer
		}
		r.agent.run(ctx)
	})
	return r
}

// statuses of all clusters, for metrics.
func (c *Controller) statuses() []v1alpha1.DeliveryStatus {
	c.mu.Lock()
	agents := maps.Clone(c.agents)
	c.mu.Unlock()
	var out []v1alpha1.DeliveryStatus
	for _, r := range agents {
		out = append(out, r.agent.known()...)
	}
	return out
}
