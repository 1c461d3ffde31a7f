package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/controllers/connect"
	"github.com/keelson-io/keelson/controllers/delivery/livecache"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
	"github.com/keelson-io/keelson/renderer/redact"
)

// connection is the connection to one cluster: its credentials, and whether its API server answers.
//
// One goroutine dials, and then pings after doubts. mu guards link, unreachable and note, which other
// goroutines read.
type connection struct {
	name string
	log  *slog.Logger
	now  func() time.Time
	// connect returns the configuration of the connection.
	connect func(context.Context) (*rest.Config, error)
	// follow calls changed when the result of connect may have changed; nil: no notification.
	follow func(ctx context.Context, changed func())
	// moved is called when the connection leads to another server. reportCredentials is called with
	// a problem of the connection's credentials; an empty text means that the problem is over.
	moved             func(cluster string)
	reportCredentials func(cluster, text string)
	schemas           *applier.Shared
	session           records.Writer
	redactor          *redact.Redactor
	limiters          queue.Limiters
	user              connectionUser
	metrics           *counted // set before the connection is dialed

	doubts   chan struct{} // signals a request without an answer
	dialSoon chan struct{} // signals changed credentials while there is no connection yet
	// failedBefore: the cluster answered a ping, but reading its state failed.
	failedBefore bool

	mu          sync.Mutex
	link        *link
	unreachable error
	note        string // on the credentials, shown in every status
}

// connectionUser is told what a connection learns. Its methods must not block.
type connectionUser interface {
	// connected is called once, with the components that have a record, and with a slot for the
	// first reconcile that leave releases.
	connected(ctx context.Context, l *link, recorded []string, leave func())
	// reachable is called when the API server begins or stops to answer.
	reachable(is bool)
	// credentialsRenewed is called when requests with the previous credentials may have failed.
	credentialsRenewed()
	// queueAfter queues a component after a time; "": every component, at once.
	queueAfter(component string, after time.Duration)
}

// current returns the link and why the API server does not answer; nil: not connected yet, and no
// reason.
func (c *connection) current() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link, c.unreachable
}

// noteNow returns the note on the credentials that every status shows.
func (c *connection) noteNow() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.note
}

// close ends all requests.
func (c *connection) close() {
	if link, _ := c.current(); link != nil {
		link.cluster.Close()
		link.line.Close()
	}
}

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

// dialUntilConnected connects to the cluster, and retries until it succeeds or the context ends.
func (c *connection) dialUntilConnected(ctx context.Context) {
	backoff := queue.NewBackoff(queue.RetryFirst, queue.RetryLast)
	for {
		err := c.dial(ctx)
		if err == nil {
			c.reached(nil)
			c.user.queueAfter("", 0)
			return
		}
		if ctx.Err() != nil {
			return
		}
		c.log.Warn("cannot connect", "error", err)
		c.reached(err)
		select {
		case <-ctx.Done():
			return
		case <-c.dialSoon:
			backoff.Reset()
		case <-time.After(backoff.Next()):
		}
	}
}

func (c *connection) dial(ctx context.Context) error {
	line, err := connect.Dial(ctx, c.now, c.connect, c.connectionCallbacks())
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	config := line.Config()
	config.Wrap(c.observe)
	var cluster *applier.Cluster // set before the cache starts a watch
	answering := newGate()
	live, err := livecache.New(ctx, livecache.Options{
		Config: config, Now: c.now, Wait: answering.wait, Later: c.user.queueAfter, NoAnswer: c.requestPing,
		Changed: func(component string) { c.user.queueAfter(component, debounce) },
		SchemaChanged: func(group string) {
			relearn := func() { cluster.Rediscover(group); c.user.queueAfter("", 0) }
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
	cluster, err = applier.New(applier.Options{Name: c.name, Config: config, Shared: c.schemas, Reader: live, Writer: c.session, Redactor: c.redactor, SkipDryRuns: true})
	if err != nil {
		return err
	}
	turn := c.limiters.Learn
	if c.failedBefore {
		turn = c.limiters.Relearn
	}
	leave, err := turn.Acquire(ctx)
	if err != nil {
		return err
	}
	err = cluster.Prepare(ctx)
	leave()
	if c.failedBefore = err != nil; err != nil {
		return err
	}
	if leave, err = c.limiters.First.Acquire(ctx); err != nil {
		return err
	}
	recorded, err := c.learn(ctx, live, cluster)
	if c.failedBefore = err != nil; err != nil {
		leave()
		return err
	}
	made := &link{line: line, cluster: cluster, cache: live, gate: answering, ping: ping}
	c.mu.Lock()
	c.link = made
	c.mu.Unlock()
	go line.Run(ctx)
	select {
	case <-c.dialSoon:
		line.Again()
	default:
	}
	c.user.connected(ctx, made, recorded, leave)
	return nil
}

// learn returns the components that have a record in the cluster, and watches the records. A
// rollback, or its end, need not change any object.
func (c *connection) learn(ctx context.Context, live *livecache.Cache, cluster *applier.Cluster) ([]string, error) {
	recorded, err := cluster.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	return recorded, live.WatchRecords(ctx, func(component, version string) {
		time.AfterFunc(debounce, func() { // by then a write of our own has been answered
			if ctx.Err() == nil && cluster.RecordSeen(component, version) {
				c.user.queueAfter(component, 0)
			}
		})
	})
}
