package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/lab/chaos/proxy"
	"github.com/keelson-io/keelson/lab/cluster"
)

// The Leases of a crew.
const (
	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 400 * time.Millisecond
)

// steady is how long replicas must have had the same clusters before something is
// done to them: those that came last have joined by then.
const steady = 4 * retryPeriod

// crew are controllers that share the clusters of a garden.
type crew struct {
	*garden
	writers []*writer
	started int
}

// writer is a process behind a proxy of its own, whose name the audit log shows.
type writer struct {
	*keelson
	agent string
	proxy *proxy.Proxy

	mu    sync.Mutex
	lease string // the Lease that it renews
	trap  *snare // nil: none is set
}

// snare strikes a writer at one of its writes.
type snare struct {
	left    int // writes until then
	strike  func() error
	hold    bool          // keep that write on its way
	release chan struct{} // lets it through
	sprung  chan struct{} // closed when it has struck
	err     error
}

// enlist starts a process.
func (c *crew) enlist(ctx context.Context) error {
	config, err := c.world.client(cluster.Keelson)
	if err != nil {
		return err
	}
	c.started++
	wr := &writer{agent: fmt.Sprintf("writer-%03d", c.started)}
	wr.proxy, err = proxy.New(ctx, proxy.Options{Upstream: map[string]*rest.Config{cluster.Keelson: config}, Agent: wr.agent})
	if err != nil {
		return err
	}
	wr.proxy.Use(wr.decide)
	content, err := wr.proxy.Kubeconfig(cluster.Keelson)
	if err != nil {
		return errors.Join(err, wr.proxy.Close())
	}
	path, err := c.kubeconfig(wr.agent, content)
	if err != nil {
		return errors.Join(err, wr.proxy.Close())
	}
	wr.keelson, err = c.start(launch{name: wr.agent, repo: c.repo, kubeconfig: path}, controllerArgs("",
		"--cache-dir", c.path("cache-"+wr.agent), "--share", "--lease-duration", leaseDuration.String(),
		"--renew-deadline", renewDeadline.String(), "--retry-period", retryPeriod.String())...)
	if err != nil {
		return errors.Join(err, wr.proxy.Close())
	}
	c.writers = append(c.writers, wr)
	return nil
}

func (c *crew) dismiss() {
	for _, wr := range c.writers {
		if err := errors.Join(wr.kill(), wr.proxy.Close()); err != nil {
			say("%s: %v", c.name, err)
		}
	}
}

// decide learns the Lease of a writer and springs the trap.
func (wr *writer) decide(r proxy.Request) proxy.Verdict {
	wr.mu.Lock()
	defer wr.mu.Unlock()
	if r.Verb == "update" && r.Resource == "leases" {
		wr.lease = r.Name
	}
	t := wr.trap
	if t == nil || !r.Write() || r.DryRun || r.Group == "keelson.io" || r.Resource == "events" || r.Resource == "leases" {
		return proxy.Verdict{}
	}
	if t.left--; t.left != 0 {
		return proxy.Verdict{}
	}
	t.err = t.strike()
	defer close(t.sprung)
	if !t.hold {
		return proxy.Verdict{}
	}
	return proxy.Verdict{Before: func() { <-t.release }}
}

// set sets a trap; it returns what lets the write go that it holds.
func (wr *writer) set(t *snare) (let func()) {
	t.release, t.sprung = make(chan struct{}), make(chan struct{})
	wr.mu.Lock()
	defer wr.mu.Unlock()
	wr.trap = t
	return sync.OnceFunc(func() { close(t.release) })
}

// tend starts another process for each that ended, as a Deployment does: on a
// busy machine one loses its Lease though nobody stopped it. The one that was
// struck is left alone.
func (c *crew) tend(ctx context.Context, struck *writer) error {
	for _, wr := range slices.Clone(c.writers) {
		if wr == struck || !wr.ended() {
			continue
		}
		if err := c.replace(ctx, wr); err != nil {
			return err
		}
	}
	return nil
}

// replace holds that a deposed process ends by itself, and starts another.
func (c *crew) replace(ctx context.Context, deposed *writer) error {
	code, err := deposed.wait(ctx, 30*time.Second)
	if err != nil {
		return fmt.Errorf("%s lost its Lease: %w (its log: %s)", deposed.agent, err, deposed.log)
	}
	if code != 2 {
		return fmt.Errorf("%s lost its Lease and ended with exit code %d, not 2 (its log: %s)", deposed.agent, code, deposed.log)
	}
	return c.drop(ctx, deposed)
}

// drop starts another process for one that has ended.
func (c *crew) drop(ctx context.Context, gone *writer) error {
	if err := gone.proxy.Close(); err != nil {
		return err
	}
	c.writers = slices.DeleteFunc(c.writers, func(wr *writer) bool { return wr == gone })
	return c.enlist(ctx)
}

// holders are the writers that have clusters, by the Leases in the hub; nil: one
// of a process that is none of the crew's any more.
func (c *crew) holders(ctx context.Context) (map[string]*writer, error) {
	leases, err := c.leases(ctx)
	if err != nil {
		return nil, err
	}
	by := map[string]*writer{}
	for _, wr := range c.writers {
		wr.mu.Lock()
		by[wr.lease] = wr
		wr.mu.Unlock()
	}
	out := map[string]*writer{}
	for lease, clusters := range leases {
		for _, one := range clusters {
			out[one] = by[lease]
		}
	}
	return out, nil
}

// leases are the clusters that the Leases in the hub list.
func (c *crew) leases(ctx context.Context) (map[string][]string, error) {
	list, err := c.garden.client.Resource(schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}).
		Namespace("keelson-system").List(ctx, metav1.ListOptions{LabelSelector: "keelson.io/share"})
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	out := map[string][]string{}
	for i := range list.Items {
		out[list.Items[i].GetName()] = clustersOf(list.Items[i].GetAnnotations()["keelson.io/clusters"])
	}
	return out, nil
}

func clustersOf(annotation string) []string {
	return strings.FieldsFunc(annotation, func(r rune) bool { return r == ',' })
}

// settled waits until every writer has its Lease and every cluster has had the
// same writer for a while.
func (c *crew) settled(ctx context.Context) (holders map[string]*writer, err error) {
	var since time.Time
	err = until(ctx, recovery, func(ctx context.Context) error {
		if err := c.tend(ctx, nil); err != nil {
			return err
		}
		leases, err := c.leases(ctx)
		if err != nil {
			return err
		}
		now, err := c.holders(ctx)
		if err != nil {
			return err
		}
		if !maps.Equal(now, holders) {
			holders, since = now, time.Now()
		}
		for _, p := range c.plots {
			if now[p.on] == nil {
				return fmt.Errorf("no process of the crew has cluster %s", p.on)
			}
		}
		if len(leases) != len(c.writers) || time.Since(since) < steady {
			return fmt.Errorf("%d processes have %d Leases, for %s", len(c.writers), len(leases), time.Since(since))
		}
		return nil
	})
	return holders, err
}

// clustersWith are the clusters that a writer has, sorted.
func clustersWith(holders map[string]*writer, wr *writer) []string {
	var out []string
	for c, who := range holders {
		if who == wr {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}
