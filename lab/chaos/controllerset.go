package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
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

// The Lease settings of a controllerSet.
const (
	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 400 * time.Millisecond
)

// steady is how long replicas must have had the same clusters before a strike. Newly
// started replicas have joined by then.
const steady = 4 * retryPeriod

// controllerSet is a set of controllers that share the clusters of a fixture fleet.
type controllerSet struct {
	*fixtureFleet
	writers []*writer
	started int
}

// writer is a process with its own proxy. The audit log shows agent in the User-Agent.
type writer struct {
	*keelson
	agent string
	proxy *proxy.Proxy

	mu    sync.Mutex
	lease string     // the Lease that the process renews
	trap  *writeTrap // nil: no trap is set
}

// writeTrap strikes a writer at one of its writes.
type writeTrap struct {
	left    int // number of writes until the strike
	strike  func() error
	hold    bool          // hold that write in the proxy
	release chan struct{} // closed to let the held write pass
	sprung  chan struct{} // closed after the strike
	err     error
}

// enlist starts a process with its own proxy.
func (c *controllerSet) enlist(ctx context.Context) error {
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

// rounds starts processes and calls round until r.must rounds are done or a round has
// failed. A failed round is a violation.
func (c *controllerSet) rounds(ctx context.Context, r *result, processes int, round func(context.Context) (time.Duration, error)) error {
	for range processes {
		if err := c.enlist(ctx); err != nil {
			return err
		}
	}
	if _, err := c.converged(ctx, hungAfter); err != nil {
		return fmt.Errorf("before any round: %w", err)
	}
	for r.number < r.must && len(r.violations) == 0 {
		took, err := round(ctx)
		r.number++
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			r.violate("round %d: %v", r.number, err)
			return nil
		}
		r.recovered(took)
		if r.number%max(1, r.must/10) == 0 {
			say("%s: %d rounds, as git says again after %s at worst", c.name, r.number, r.worst.Round(10*time.Millisecond))
		}
	}
	return nil
}

// judge compares the writes in the audit log with the holders of the clusters at that
// time. It returns the verdict and the number of judged writes.
func (c *controllerSet) judge(r *result) (verdict, int, error) {
	events, err := c.since(0)
	if err != nil {
		return verdict{}, 0, err
	}
	v := takeOvers(events, c.components)
	judged := v.unlisted(events, c.components)
	r.violations = append(r.violations, v.violations...)
	if v.takeOvers < r.number {
		r.violate("the audit log shows %d components taken over in %d rounds: nothing was tested", v.takeOvers, r.number)
	}
	return v, judged, nil
}

// strike is the strike of one round.
type strike struct {
	victim   *writer
	clusters []string // the victim's clusters
	trap     *writeTrap
	// struck returns after the strike. end replaces the victim by another process.
	struck, end func(context.Context) error
}

// deal strikes a process while it writes a new change of git. Other processes have to take
// over its clusters and finish its work. moved is the time from the strike to the
// takeover, took the time to the end of the work.
func (c *controllerSet) deal(ctx context.Context, b strike) (moved, took time.Duration, err error) {
	let := b.victim.set(b.trap)
	defer let()
	if err := c.grow(ctx, rand.New(rand.NewPCG(c.rand.Uint64(), 0)), 2*len(c.components)); err != nil { //nolint:gosec // chance to be repeated
		return 0, 0, err
	}
	if err := b.struck(ctx); err != nil {
		return 0, 0, err
	}
	ended := time.Now()
	if err := until(ctx, recovery, func(ctx context.Context) error { return c.takenOver(ctx, b) }); err != nil {
		return 0, 0, err
	}
	moved = time.Since(ended)
	err = until(ctx, recovery, func(ctx context.Context) error {
		return errors.Join(c.tend(ctx, b.victim), c.asGitSays(ctx), c.synced(ctx))
	})
	if err != nil {
		return moved, 0, fmt.Errorf("no replica finished what %s had begun: %w (its log: %s)", b.victim.agent, err, b.victim.log)
	}
	took = time.Since(ended)
	let()
	if err := b.end(ctx); err != nil {
		return moved, took, err
	}
	_, err = c.converged(ctx, recovery)
	return moved, took, err
}

// takenOver returns nil if other processes have all clusters of the struck process.
func (c *controllerSet) takenOver(ctx context.Context, b strike) error {
	if err := c.tend(ctx, b.victim); err != nil {
		return err
	}
	now, err := c.holders(ctx)
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(b.clusters), func(one string) bool { return now[one] != nil && now[one] != b.victim })
	if len(left) > 0 {
		return fmt.Errorf("no replica took %s of %s (its log: %s)", strings.Join(left, ", "), b.victim.agent, b.victim.log)
	}
	return nil
}

// goOn resumes a stopped process and replaces it. The process has to end by itself.
func (c *controllerSet) goOn(ctx context.Context, stopped *writer) error {
	if err := stopped.thaw(); err != nil {
		return err
	}
	return c.replace(ctx, stopped)
}

func (c *controllerSet) dismiss() {
	for _, wr := range c.writers {
		if err := errors.Join(wr.kill(), wr.proxy.Close()); err != nil {
			say("%s: %v", c.name, err)
		}
	}
}

// decide records the Lease of a writer and triggers the trap.
func (wr *writer) decide(r proxy.Request) proxy.Verdict {
	wr.mu.Lock()
	defer wr.mu.Unlock()
	if r.Verb == "update" && r.Resource == "leases" {
		wr.lease = r.Name
	}
	t := wr.trap
	if t == nil || !r.Write() || r.DryRun || r.Group == "keelson.io" || r.Resource == "events" || r.Resource == "leases" || r.Resource == "configmaps" && r.Namespace == systemNS {
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

// set sets a trap. The returned function releases the write that the trap holds.
func (wr *writer) set(t *writeTrap) (let func()) {
	t.release, t.sprung = make(chan struct{}), make(chan struct{})
	wr.mu.Lock()
	defer wr.mu.Unlock()
	wr.trap = t
	return sync.OnceFunc(func() { close(t.release) })
}

// tend starts a replacement for each process that ended, as a Deployment does. On a
// busy machine a process can lose its Lease without a strike. tend ignores the struck
// process.
func (c *controllerSet) tend(ctx context.Context, struck *writer) error {
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

// replace waits until a deposed process ends by itself, with exit code 2, and starts
// another process.
func (c *controllerSet) replace(ctx context.Context, deposed *writer) error {
	code, err := deposed.wait(ctx)
	if err != nil {
		return fmt.Errorf("%s lost its Lease: %w (its log: %s)", deposed.agent, err, deposed.log)
	}
	if code != 2 {
		return fmt.Errorf("%s lost its Lease and ended with exit code %d, not 2 (its log: %s)", deposed.agent, code, deposed.log)
	}
	return c.drop(ctx, deposed)
}

// drop removes an ended process and starts another.
func (c *controllerSet) drop(ctx context.Context, gone *writer) error {
	if err := gone.proxy.Close(); err != nil {
		return err
	}
	c.writers = slices.DeleteFunc(c.writers, func(wr *writer) bool { return wr == gone })
	return c.enlist(ctx)
}

// holders returns the writer of each cluster, by the Leases in the hub. The writer is nil
// if the Lease belongs to a process that is no longer in the set.
func (c *controllerSet) holders(ctx context.Context) (map[string]*writer, error) {
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

// leases returns the clusters of each Lease in the hub.
func (c *controllerSet) leases(ctx context.Context) (map[string][]string, error) {
	list, err := c.fixtureFleet.client.Resource(schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}).
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

// settled waits until every writer has a Lease and every cluster has had the same
// writer for the time steady.
func (c *controllerSet) settled(ctx context.Context) (holders map[string]*writer, err error) {
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
		for _, p := range c.components {
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

// clustersWith returns the clusters of a writer, sorted.
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
