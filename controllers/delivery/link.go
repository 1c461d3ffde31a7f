package delivery

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/controllers/connect"
	"github.com/keelson-io/keelson/controllers/delivery/livecache"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
)

// link is a connection to the cluster.
type link struct {
	line    *connect.RotatingClient
	cluster *applier.Cluster
	cache   *livecache.Cache
	gate    *gate // shut while the API server does not answer
	// ping sends a small request. Any answer, a refusal too, shows that the API server is
	// reachable.
	ping func(context.Context) error
}

// recall takes from the hub when things changed, but not the state itself, whichever process wrote
// it. A status can outlive its component in git and on the cluster.
func (a *agent) recall() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.shown(a.name) {
		s.Sync, s.Health = "", ""
		a.statuses[s.Component] = &s
		a.checks.recall(&s)
	}
}

// connectUntil connects to the cluster, and retries until it succeeds or the context ends.
func (a *agent) connectUntil(ctx context.Context) {
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[string](queue.RetryFirst, queue.RetryLast)
	for {
		err := a.dial(ctx)
		if err == nil {
			a.reached(nil)
			a.all()
			return
		}
		if ctx.Err() != nil {
			return
		}
		a.log.Warn("cannot connect", "error", err)
		a.reached(err)
		select {
		case <-ctx.Done():
			return
		case <-a.dialSoon:
			backoff.Forget("")
		case <-time.After(backoff.When("")):
		}
	}
}

func (a *agent) dial(ctx context.Context) error {
	line, err := connect.Dial(ctx, a.now, a.connect, a.connectionCallbacks())
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	config := line.Config()
	config.Wrap(a.observe)
	var cluster *applier.Cluster // set before the cache starts a watch
	answering := newGate()
	live, err := livecache.New(ctx, livecache.Options{
		Config: config, Now: a.now, Wait: answering.wait, Changed: a.changed, Later: a.queue.AddAfter, NoAnswer: a.requestPing,
		SchemaChanged: func(group string) {
			relearn := func() { cluster.Rediscover(group); a.all() }
			relearn()
			time.AfterFunc(publishLag, relearn)
		},
	})
	if err != nil {
		return err
	}
	ping, err := newPing(config)
	if err != nil {
		return err
	}
	if err := ping(ctx); err != nil { // an unreachable cluster must not take a slot
		return fmt.Errorf("connection: %w", err)
	}
	cluster, err = applier.New(applier.Options{Name: a.name, Config: config, Schemas: a.schemas, Reader: live, Writer: a.session, Redactor: a.redactor, SkipDryRuns: true})
	if err != nil {
		return err
	}
	turn := a.limiters.Learn
	if a.failedBefore {
		turn = a.limiters.Relearn
	}
	leave, err := turn.Acquire(ctx)
	if err != nil {
		return err
	}
	err = cluster.Prepare(ctx)
	leave()
	if a.failedBefore = err != nil; err != nil {
		return err
	}
	if leave, err = a.limiters.First.Acquire(ctx); err != nil {
		return err
	}
	recorded, err := a.learn(ctx, live, cluster)
	if a.failedBefore = err != nil; err != nil {
		leave()
		return err
	}
	made := &link{line: line, cluster: cluster, cache: live, gate: answering, ping: ping}
	a.mu.Lock()
	a.link = made
	for _, name := range recorded {
		if _, ok := a.statuses[name]; !ok {
			a.statuses[name] = &v1alpha1.DeliveryStatus{Cluster: a.name, Component: name}
		}
	}
	a.mu.Unlock()
	go line.Run(ctx)
	select {
	case <-a.dialSoon:
		line.Again()
	default:
	}
	a.beginFirstReconcile(leave)
	a.checking.Go(func() { a.findChecks(ctx, made) })
	return nil
}

// learn returns the components that have a record in the cluster, and watches the records. A
// rollback, or its end, need not change any object.
func (a *agent) learn(ctx context.Context, live *livecache.Cache, cluster *applier.Cluster) ([]string, error) {
	recorded, err := cluster.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	return recorded, live.WatchRecords(ctx, func(component, version string) {
		time.AfterFunc(settle, func() { // by then a write of our own has been answered
			if ctx.Err() == nil && cluster.RecordSeen(component, version) {
				a.queue.Add(component)
			}
		})
	})
}
