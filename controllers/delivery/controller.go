// Package delivery runs the loops that keep clusters as git wants them: one
// reads git, one a cluster applies and watches, one writes status to the hub.
//
// A revision that can't be read leaves every cluster as it is, a broken file
// only what it names, and a dead cluster only itself. A converged fleet makes
// no API call but its watches.
package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/controllers/lease"
	"github.com/keelson-io/keelson/controllers/notify"
	"github.com/keelson-io/keelson/controllers/pace"
	"github.com/keelson-io/keelson/controllers/shard"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Options are the settings of a [Controller]; all are required but Revision, Follow,
// Shard, Only, Tracer, Previews, Promotions, Egress and Sender.
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
	// Follow calls changed, which does not block, when Connect may return something
	// else for a connection, until the context ends; nil: nobody tells, and credentials
	// are read again when they are refused.
	Follow func(ctx context.Context, of v1alpha1.Connection, changed func())
	// Renderer is shared by all clusters.
	Renderer *renderer.Cache
	// Schemas are those of all clusters; nil: a cache of the controller's own.
	Schemas *applier.SchemaCache
	// Identity is what this process is called in records.
	Identity string
	// Shard says which clusters this process works on; nil: all. Connections have to
	// go through its gate.
	Shard *shard.Member
	// Only is the one cluster to work on; empty: all.
	Only string
	// Redactor is told of secrets, and takes them out of statuses and events. Log
	// has to write through it.
	Redactor *redact.Redactor
	Log      *slog.Logger
	Now      func() time.Time
	Registry prometheus.Registerer
	// Tracer takes spans; nil: nobody wants to know.
	Tracer trace.TracerProvider
	// Previews is what one process of the fleet does on its pull requests; nil: nothing.
	Previews Previews
	// Promotions is what the process that decides about rollouts does to git; nil: nothing.
	Promotions Promotions
	// Egress sends what checks of pipelines ask servers; nil: to every address that is not
	// reserved, see [egress.Policy].
	Egress http.RoundTripper
	// Sender sends notifications; nil: nobody is notified.
	Sender *notify.Sender
}

// Controller delivers a fleet.
type Controller struct {
	repo     *registry.Repo
	revision string
	pace     *pace.Pace
	log      *slog.Logger
	now      func() time.Time
	connect  func(context.Context, v1alpha1.Connection) (*rest.Config, error)
	follows  func(ctx context.Context, of v1alpha1.Connection, changed func())
	renderer renderer.Renderer
	past     *past
	wants    *applier.Wants
	turns    turns
	rush     *rush
	schemas  *applier.SchemaCache
	redactor *redact.Redactor
	metrics  *metrics
	tracer   trace.TracerProvider
	identity string
	sessions int // that were begun
	shard    *shard.Member
	only     string
	writer   *writer
	rollouts rollouts
	probes   probes
	// notify tells others what becomes of rollouts and deliveries; nil: nobody is told.
	notify    *notify.Loop
	notifying duty
	// previews is what one process of the fleet does on its pull requests; nil: nothing.
	previews   Previews
	previewing duty
	promotions Promotions // nil: nothing is promoted
	// closing ends the writer; nil before it was begun.
	closing func(cause error)

	// leaving are clusters that agents are putting down.
	leaving map[string]chan struct{}
	moves   chan struct{} // some connection leads to another server

	mu     sync.Mutex
	moved  map[string]bool // clusters with such connections
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
		repo: o.Repo, revision: o.Revision, pace: pace.New(o.Interval), log: o.Log, now: o.Now, connect: o.Connect, follows: o.Follow,
		moved: map[string]bool{}, moves: make(chan struct{}, 1),
		renderer: o.Renderer, schemas: cmp.Or(o.Schemas, applier.NewSchemaCache()), redactor: o.Redactor, agents: map[string]*running{}, leaving: map[string]chan struct{}{},
		identity: o.Identity, shard: o.Shard, only: o.Only, tracer: o.Tracer, previews: o.Previews, promotions: o.Promotions, past: &past{repo: o.Repo}, wants: &applier.Wants{}, turns: newTurns(), rush: newRush(thrift(o.Renderer.Pack)),
		previewing: duty{name: shard.Previews, taken: "pull requests get previews from here", left: "previews of pull requests go to another replica"},
	}
	c.metrics = newMetrics()
	var err error
	if c.writer, err = newWriter(o, c.metrics); err != nil {
		return nil, err
	}
	if err := c.metrics.register(o.Registry, c, o.Renderer); err != nil {
		return nil, err
	}
	c.writer.stranger = c.adopt
	if err := c.newProbes(o); err != nil {
		return nil, err
	}
	if err := c.newRollouts(o); err != nil {
		return nil, err
	}
	if err := c.newNotify(o); err != nil {
		return nil, err
	}
	return c, nil
}

// Ready reports whether a revision of the fleet was read, and has what is asked of
// it.
func (c *Controller) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.seen:
		return errors.New("no revision of the fleet repository was read yet")
	case c.only != "" && c.fleet != nil && c.fleet.Cluster(c.only) == nil:
		return fmt.Errorf("the fleet repository has no cluster %s", c.only)
	}
	return nil
}

// FetchSoon has the repository read at once, or a second after it was read last, by
// the other replicas, too. It returns at once, and asking often is asking once.
func (c *Controller) FetchSoon() {
	c.readSoon()
	if c.shard != nil {
		c.shard.Call()
	}
}

func (c *Controller) readSoon() {
	c.pace.Soon()
	if c.previews != nil {
		c.previews.Soon()
	}
}

// Learn reads git until that works once, or the context ends, and writes nothing
// anywhere. A process that shares clusters has to know of them first.
func (c *Controller) Learn(ctx context.Context) {
	for {
		fleet, err := c.load(ctx)
		if err == nil {
			c.share(fleet)
			return
		}
		if ctx.Err() == nil {
			c.log.Error("the fleet repository can't be read", "error", err)
		}
		if !c.pace.Wait(ctx) {
			return
		}
	}
}

// Run works until the context ends, then finishes what it has begun, unless the
// context ended with [lease.ErrLost]. The error says that the hub can't hold
// Deliveries.
func (c *Controller) Run(ctx context.Context) error {
	err := c.follow(ctx)
	c.wg.Wait()
	if c.closing != nil {
		c.closing(context.Cause(ctx))
	}
	return err
}

// open prepares the hub and begins to write to it. A process that shares clusters
// and has none does not.
func (c *Controller) open(ctx context.Context) error {
	if c.closing != nil {
		return nil
	}
	if err := c.writer.prepare(ctx, c.shard == nil); err != nil {
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
	c.closing = func(cause error) {
		stop(cause)
		<-written
	}
	return nil
}

// follow reads git again and again.
func (c *Controller) follow(ctx context.Context) error {
	var granted, called <-chan struct{} // nil: never
	if c.shard != nil {
		granted, called = c.shard.Changed(), c.shard.Called()
	}
	// A repository that answers slowly keeps no cluster from being handed over.
	reading, stop := context.WithCancel(ctx)
	news := make(chan struct{}, 1)
	var reader sync.WaitGroup
	reader.Go(func() { c.reads(reading, news) })
	defer reader.Wait()
	defer stop()
	if c.shard == nil { // while git is read
		if err := c.open(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-called:
			c.readSoon() // and no call of our own
			continue
		case <-granted:
		case <-c.moves:
		case <-news:
		}
		if err := c.assign(ctx); err != nil {
			return err
		}
	}
}

// reads tells of each new revision until the context ends.
func (c *Controller) reads(ctx context.Context, news chan<- struct{}) {
	for failing := false; ; {
		is, err := c.learn(ctx)
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
		if is {
			select {
			case news <- struct{}{}:
			default:
			}
		}
		if !c.pace.Wait(ctx) {
			return
		}
	}
}

// learn takes in what git says now, and says whether it is new.
func (c *Controller) learn(ctx context.Context) (bool, error) {
	fleet, err := c.load(ctx)
	if err != nil || fleet == c.current() {
		return false, err
	}
	c.log.Info("new revision", "revision", fleet.Revision, "clusters", len(fleet.Clusters), "problems", len(fleet.Problems))
	for _, p := range fleet.Problems {
		c.log.Warn("problem in the fleet repository", "at", p.At.String(), "problem", p.Message, "hint", p.Hint)
	}
	if c.only != "" && fleet.Cluster(c.only) == nil {
		c.log.Error("the fleet repository has no such cluster", "cluster", c.only, "revision", fleet.Revision)
	}
	c.mu.Lock()
	c.fleet = fleet
	c.mu.Unlock()
	c.writer.isFor(fleet.Spec.Name)
	if c.rollouts.loop != nil {
		c.rollouts.loop.Fleet(fleet)
	}
	if c.promotions != nil {
		c.promotions.Fleet(fleet)
	}
	c.tellNotify(fleet)
	c.share(fleet)
	return true, nil
}

// current is the last revision that could be read; nil: none yet.
func (c *Controller) current() *registry.Fleet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fleet
}

// share tells the other replicas, through the shard, which clusters there are.
func (c *Controller) share(fleet *registry.Fleet) {
	if c.shard == nil {
		return
	}
	var names []string
	for _, cluster := range c.clusters(fleet) {
		names = append(names, cluster.Name)
	}
	if len(fleet.Pipelines) > 0 && c.only == "" {
		names = append(names, shard.Rollouts)
	}
	if c.previews != nil {
		names = append(names, shard.Previews)
	}
	if c.notify != nil && len(fleet.Notifications) > 0 {
		names = append(names, shard.Notifications)
	}
	c.shard.Share(names)
}

// clusters are those of a fleet that this process is for.
func (c *Controller) clusters(fleet *registry.Fleet) []*registry.Cluster {
	if fleet == nil {
		return nil
	}
	if c.only == "" {
		return fleet.Clusters
	}
	if one := fleet.Cluster(c.only); one != nil {
		return []*registry.Cluster{one}
	}
	return nil
}

// load learns what git says now. Tags come and move without a commit; the Fleet is
// the same as before only when nothing at all is new.
func (c *Controller) load(ctx context.Context) (fleet *registry.Fleet, err error) {
	ctx, read := c.reading(ctx)
	defer func() { read(fleet, err) }()
	if err := c.repo.Fetch(ctx); err != nil {
		return nil, err
	}
	if fleet, err = c.repo.Load(ctx, c.revision); err != nil {
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
