// Package delivery runs the loops that keep clusters as git wants them. One loop reads git, one
// loop per cluster applies and watches, and one loop writes status to the hub.
//
// An unreadable revision leaves every cluster as it is. A broken file affects only what the file
// defines, and a dead cluster only itself. A converged fleet makes no API calls except its watches.
package delivery

import (
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
	"github.com/keelson-io/keelson/controllers/delivery/hubstatus"
	"github.com/keelson-io/keelson/controllers/notify"
	"github.com/keelson-io/keelson/controllers/pace"
	"github.com/keelson-io/keelson/controllers/shard"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Options are the settings of a [Controller]. All are required except Revision, Follow, Schemas,
// Shard, Only, Tracer, Previews, Promotions, Egress and Sender.
type Options struct {
	Repo *registry.Repo
	// Revision to follow: a branch, tag or commit; empty: the default branch.
	Revision string
	// Interval between two reads of the repository, varied by up to a tenth.
	Interval time.Duration
	// Hub is the cluster that holds the Deliveries.
	Hub *rest.Config
	// Connect returns the configuration of a connection to a cluster.
	Connect func(context.Context, v1alpha1.Connection) (*rest.Config, error)
	// Follow calls changed when Connect may return another result for a connection, until the
	// context ends. changed does not block. nil: credentials are read again only after a refusal.
	Follow func(ctx context.Context, of v1alpha1.Connection, changed func())
	// Renderer is shared by all clusters.
	Renderer *renderer.Cache
	// Schemas are shared by all clusters; nil: the controller makes its own cache.
	Schemas *applier.Shared
	// Identity names this process in records.
	Identity string
	// Shard assigns clusters to this process; nil: all clusters. Connections must use its gate.
	Shard *shard.Member
	// Only is the single cluster to work on; empty: all clusters.
	Only string
	// Redactor learns secrets, and removes them from statuses and events. Log must write through
	// it.
	Redactor *redact.Redactor
	Log      *slog.Logger
	Now      func() time.Time
	Registry prometheus.Registerer
	// Tracer takes spans; nil: no tracing.
	Tracer trace.TracerProvider
	// Previews works on pull requests, in one process of the fleet; nil: no previews.
	Previews Previews
	// Promotions changes versions in git, in the process that decides about rollouts; nil: none.
	Promotions Promotions
	// Egress sends the requests of pipeline checks; nil: to every address that is not reserved, see
	// [egress.Policy].
	Egress http.RoundTripper
	// Sender sends notifications; nil: no notifications.
	Sender *notify.Sender
}

// Controller delivers a fleet.
//
// The goroutine of Run starts and stops agents and singleton tasks. It alone uses the fields above
// mu, which are set by New or by itself. mu guards agents, which other goroutines read.
type Controller struct {
	log      *slog.Logger
	reader   *fleetReader
	shared   shared
	writer   *hubstatus.Writer
	metrics  *metrics
	identity string
	sessions int // number of agents that were created
	shard    *shard.Member
	only     string

	probes        probes
	rollouts      rollouts
	notifications notifications
	previews      previews

	// closing stops the writer; nil before the writer was started.
	closing func(cause error)
	// leaving has a channel for each cluster that is being released, closed when that is done.
	leaving map[string]chan struct{}
	moved   *movedClusters
	wg      sync.WaitGroup

	mu     sync.Mutex
	agents map[string]*running
}

// running is an agent and the connection that the agent was started with.
type running struct {
	agent      *agent
	connection v1alpha1.Connection
	stop       context.CancelFunc
	done       chan struct{}
}

// New creates a controller without making a call.
func New(o Options) (*Controller, error) {
	c := &Controller{
		log: o.Log, metrics: newMetrics(), identity: o.Identity, shard: o.Shard, only: o.Only,
		previews: newPreviews(o.Previews), leaving: map[string]chan struct{}{}, moved: newMovedClusters(), agents: map[string]*running{},
	}
	c.reader = &fleetReader{repo: o.Repo, revision: o.Revision, pace: pace.New(o.Interval), now: o.Now, tracer: o.Tracer, read: c.metrics.read}
	var err error
	c.writer, err = hubstatus.New(hubstatus.Options{
		Hub: o.Hub, Redactor: o.Redactor, Log: o.Log, Now: o.Now, Tracer: o.Tracer, OnWrite: c.metrics.statusWritten, OnUnknown: c.onUnknownDelivery,
	})
	if err != nil {
		return nil, err
	}
	if err := c.metrics.register(o.Registry, c, o.Renderer); err != nil {
		return nil, err
	}
	if err := c.newProbes(o); err != nil {
		return nil, err
	}
	if err := c.newRollouts(o); err != nil {
		return nil, err
	}
	if err := c.newNotify(o); err != nil {
		return nil, err
	}
	c.shared = newShared(o, c.rollouts.board, c.writer, c.metrics.observeWait)
	return c, nil
}

// Ready returns an error until a revision of the fleet was read, and if [Options.Only] names a
// cluster that the revision does not have.
func (c *Controller) Ready() error {
	fleet := c.reader.current()
	switch {
	case !c.reader.hasRead():
		return errors.New("no revision of the fleet repository was read yet")
	case c.only != "" && fleet != nil && fleet.Cluster(c.only) == nil:
		return fmt.Errorf("the fleet repository has no cluster %s", c.only)
	}
	return nil
}

// FetchSoon requests a read of the repository, by all replicas: at once, or a second after the last
// read. FetchSoon does not block. Several requests before a read are one.
func (c *Controller) FetchSoon() {
	c.readSoon()
	if c.shard != nil {
		c.shard.Call()
	}
}

func (c *Controller) readSoon() {
	c.reader.pace.Soon()
	if c.previews.task != nil {
		c.previews.task.Soon()
	}
}

// Learn reads git until a read succeeds or the context ends, and writes nothing. A process that
// shares clusters must first know the clusters.
func (c *Controller) Learn(ctx context.Context) {
	for {
		fleet, err := c.reader.load(ctx)
		if err == nil {
			c.share(fleet)
			return
		}
		if ctx.Err() == nil {
			c.log.Error("the fleet repository can't be read", "error", err)
		}
		if !c.reader.pace.Wait(ctx) {
			return
		}
	}
}

// Run works until the context ends, then finishes the work in progress, unless the context ended
// with [lease.ErrLost]. The error says why the hub can't hold Deliveries.
func (c *Controller) Run(ctx context.Context) error {
	err := c.follow(ctx)
	c.wg.Wait()
	if c.closing != nil {
		c.closing(context.Cause(ctx))
	}
	return err
}

// open prepares the hub and starts the writer. A process that shares clusters and has none does not
// call open.
func (c *Controller) open(ctx context.Context) error {
	if c.closing != nil {
		return nil
	}
	if err := c.writer.Prepare(ctx, c.shard == nil); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped before it began
		}
		return fmt.Errorf("hub: %w", err)
	}
	// The writer stops last, so that the last statuses are written, too.
	writing, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.writer.Run(writing)
	}()
	c.closing = func(cause error) {
		stop(cause)
		<-written
	}
	return nil
}

// follow reads git and calls assign whenever something changed.
func (c *Controller) follow(ctx context.Context) error {
	var granted, called <-chan struct{} // nil: never
	if c.shard != nil {
		granted, called = c.shard.Changed(), c.shard.Called()
	}
	// A separate goroutine reads, so that a slow repository does not delay a handover.
	reading, stop := context.WithCancel(ctx)
	news := make(chan struct{}, 1)
	var reader sync.WaitGroup
	reader.Go(func() { c.reads(reading, news) })
	defer reader.Wait()
	defer stop()
	if c.shard == nil { // in parallel with the first read
		if err := c.open(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-called:
			c.readSoon() // without calling the other replicas
			continue
		case <-granted:
		case <-c.moved.signal:
		case <-news:
		}
		if err := c.assign(ctx); err != nil {
			return err
		}
	}
}

// reads signals each new revision until the context ends.
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
			c.writer.Events().Repository(err)
		}
		failing = err != nil
		if is {
			select {
			case news <- struct{}{}:
			default:
			}
		}
		if !c.reader.pace.Wait(ctx) {
			return
		}
	}
}

// learn reads git, stores the revision, and reports whether the revision is new.
func (c *Controller) learn(ctx context.Context) (bool, error) {
	fleet, isNew, err := c.reader.next(ctx)
	if err != nil || !isNew {
		return false, err
	}
	c.log.Info("new revision", "revision", fleet.Revision, "clusters", len(fleet.Clusters), "problems", len(fleet.Problems))
	for _, p := range fleet.Problems {
		c.log.Warn("problem in the fleet repository", "at", p.At.String(), "problem", p.Message, "hint", p.Hint)
	}
	if c.only != "" && fleet.Cluster(c.only) == nil {
		c.log.Error("the fleet repository does not have this cluster", "cluster", c.only, "revision", fleet.Revision)
	}
	c.writer.SetFleet(fleet.Spec.Name)
	if c.rollouts.loop != nil {
		c.rollouts.loop.Fleet(fleet)
	}
	if c.rollouts.promotions != nil {
		c.rollouts.promotions.Fleet(fleet)
	}
	c.feedNotifications(fleet)
	c.share(fleet)
	return true, nil
}

// share passes the names of the clusters and singleton tasks to the shard.
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
	if c.previews.task != nil {
		names = append(names, shard.Previews)
	}
	if c.notifications.loop != nil && len(fleet.Notifications) > 0 {
		names = append(names, shard.Notifications)
	}
	c.shard.Share(names)
}

// clusters returns the clusters of a fleet that this process may work on.
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
