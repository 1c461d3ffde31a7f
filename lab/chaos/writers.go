package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/chaos/proxy"
	"github.com/keelson-io/keelson/lab/cluster"
)

// maxStep is how many writes of an apply the leader may make before it is
// stopped; chance draws fewer.
const maxStep = 25

// runWriters stops the leader in the middle of applies, past its Lease, lets the
// other process take over, and then lets the first go on.
func runWriters(ctx context.Context, w *world) (result, error) {
	r := result{did: "leaders stopped past their Lease, then let go on", must: w.Rounds}
	g, err := w.newGarden(ctx, "writer", 8)
	if err != nil {
		return r, err
	}
	d := &duel{garden: g}
	for range 2 {
		if err := d.enlist(ctx); err != nil {
			return r, err
		}
	}
	defer d.dismiss()
	if _, err := g.converged(ctx, 2*time.Minute); err != nil {
		return r, fmt.Errorf("before any round: %w", err)
	}
	for r.number < w.Rounds {
		took, err := d.round(ctx, r.number%2 == 0)
		r.number++
		switch {
		case ctx.Err() != nil:
			return r, ctx.Err()
		case err != nil:
			r.violate("round %d: %v", r.number, err)
			return r, nil
		}
		r.recovered(took)
		if r.number%10 == 0 {
			say("%s: %d rounds, worst take-over %s, %d writes held back and then let go", w.name, r.number, r.worst.Round(10*time.Millisecond), d.held)
		}
	}
	events, err := w.since(0)
	if err != nil {
		return r, err
	}
	verdict := takeOvers(events, g.plots)
	r.violations = append(r.violations, verdict.violations...)
	if verdict.takeOvers < w.Rounds {
		r.violate("the audit log shows %d components taken over in %d rounds: nothing was tested", verdict.takeOvers, w.Rounds)
	}
	r.notes = append(r.notes, fmt.Sprintf("%d components taken over from a process that then went on; %d of its writes were held back on their way and let go afterwards; %d writes of deposed processes refused by the API server, %d accepted",
		verdict.takeOvers, d.held, verdict.refused, len(verdict.violations)))
	return r, nil
}

// duel is two processes that want the same Lease.
type duel struct {
	*garden
	writers []*writer
	started int
	held    int // writes that were on their way during a take-over
}

// writer is a process behind a proxy of its own, whose name the audit log shows.
type writer struct {
	*keelson
	agent string
	proxy *proxy.Proxy

	mu      sync.Mutex
	renewed time.Time // its last write of the Lease
	trap    *freeze   // nil: none is set
}

// freeze stops a writer at one of its writes.
type freeze struct {
	left    int           // writes until then
	hold    bool          // keep that write on its way
	release chan struct{} // lets it through
	sprung  chan struct{} // closed when the writer is stopped
	err     error
}

// enlist starts a process.
func (d *duel) enlist(ctx context.Context) error {
	config, err := d.world.client(cluster.Keelson)
	if err != nil {
		return err
	}
	d.started++
	wr := &writer{agent: fmt.Sprintf("writer-%03d", d.started)}
	wr.proxy, err = proxy.New(ctx, proxy.Options{Upstream: map[string]*rest.Config{cluster.Keelson: config}, Agent: wr.agent})
	if err != nil {
		return err
	}
	wr.proxy.Use(wr.decide)
	content, err := wr.proxy.Kubeconfig(cluster.Keelson)
	if err != nil {
		return errors.Join(err, wr.proxy.Close())
	}
	path, err := d.kubeconfig(wr.agent, content)
	if err != nil {
		return errors.Join(err, wr.proxy.Close())
	}
	wr.keelson, err = d.start(launch{name: wr.agent, repo: d.repo, kubeconfig: path}, controllerArgs("",
		"--cache-dir", d.path("cache-"+wr.agent), "--leader-elect", "--lease-duration", "3s", "--renew-deadline", "2s", "--retry-period", "400ms")...)
	if err != nil {
		return errors.Join(err, wr.proxy.Close())
	}
	d.writers = append(d.writers, wr)
	return nil
}

func (d *duel) dismiss() {
	for _, wr := range d.writers {
		if err := errors.Join(wr.kill(), wr.proxy.Close()); err != nil {
			say("%s: %v", d.name, err)
		}
	}
}

// decide watches over the Lease and springs the trap.
func (wr *writer) decide(r proxy.Request) proxy.Verdict {
	wr.mu.Lock()
	defer wr.mu.Unlock()
	if r.Write() && r.Resource == "leases" {
		wr.renewed = time.Now()
	}
	t := wr.trap
	if t == nil || !r.Write() || r.DryRun || r.Group == "keelson.io" || r.Resource == "events" || r.Resource == "leases" {
		return proxy.Verdict{}
	}
	if t.left--; t.left != 0 {
		return proxy.Verdict{}
	}
	t.err = wr.freeze()
	defer close(t.sprung)
	if !t.hold {
		return proxy.Verdict{}
	}
	return proxy.Verdict{Before: func() { <-t.release }}
}

// leader is the one that renews the Lease.
func (d *duel) leader(ctx context.Context) (leads *writer, err error) {
	err = until(ctx, recovery, func(ctx context.Context) error {
		if err := d.tend(ctx, nil); err != nil {
			return err
		}
		leads = slices.MaxFunc(d.writers, func(a, b *writer) int { return a.lastRenewed().Compare(b.lastRenewed()) })
		if time.Since(leads.lastRenewed()) > time.Second {
			return errors.New("nobody renews the Lease")
		}
		return nil
	})
	return leads, err
}

// tend starts another process for each that ended, as a Deployment does: on a
// busy machine one loses its Lease though nobody stopped it. The one that is
// stopped is left alone.
func (d *duel) tend(ctx context.Context, stopped *writer) error {
	for _, wr := range slices.Clone(d.writers) {
		if wr == stopped || !wr.ended() {
			continue
		}
		if err := d.replace(ctx, wr); err != nil {
			return err
		}
	}
	return nil
}

func (wr *writer) lastRenewed() time.Time {
	wr.mu.Lock()
	defer wr.mu.Unlock()
	return wr.renewed
}

// round is one take-over. With hold the write at which the leader is stopped
// stays on its way until the other has taken over. It returns how long the fleet
// was without what git says.
func (d *duel) round(ctx context.Context, hold bool) (time.Duration, error) {
	leads, err := d.leader(ctx)
	if err != nil {
		return 0, err
	}
	t := &freeze{left: 1 + d.rand.IntN(maxStep), hold: hold, release: make(chan struct{}), sprung: make(chan struct{})}
	let := sync.OnceFunc(func() { close(t.release) })
	defer let()
	leads.mu.Lock()
	leads.trap = t
	leads.mu.Unlock()
	if err := d.grow(ctx, rand.New(rand.NewPCG(d.rand.Uint64(), 0)), 2*len(d.plots)); err != nil { //nolint:gosec // chance to be repeated
		return 0, err
	}
	if err := sprung(ctx, t, leads); err != nil {
		return 0, err
	}
	stopped := time.Now()
	if hold {
		d.held++
	}
	// The other takes the Lease, finishes, and then the first goes on.
	err = until(ctx, recovery, func(ctx context.Context) error {
		if err := d.tend(ctx, leads); err != nil {
			return err
		}
		if !slices.ContainsFunc(d.writers, func(wr *writer) bool { return wr != leads && wr.lastRenewed().After(stopped) }) {
			return errors.New("nobody took the Lease")
		}
		return errors.Join(d.asGitSays(ctx), d.synced(ctx))
	})
	if err != nil {
		return 0, fmt.Errorf("nobody finished what %s had begun: %w (its log: %s)", leads.agent, err, leads.log)
	}
	took := time.Since(stopped)
	let()
	if err := leads.thaw(); err != nil {
		return 0, err
	}
	if err := d.replace(ctx, leads); err != nil {
		return 0, err
	}
	_, err = d.converged(ctx, recovery)
	return took, err
}

func sprung(ctx context.Context, t *freeze, leads *writer) error {
	timer := time.NewTimer(recovery)
	defer timer.Stop()
	select {
	case <-t.sprung:
		return t.err
	case <-timer.C:
		return fmt.Errorf("%s made too few writes to be stopped at one (its log: %s)", leads.agent, leads.log)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// replace holds that a deposed process ends by itself, and starts another.
func (d *duel) replace(ctx context.Context, deposed *writer) error {
	code, err := deposed.wait(ctx, 30*time.Second)
	if err != nil {
		return fmt.Errorf("%s lost the Lease: %w (its log: %s)", deposed.agent, err, deposed.log)
	}
	if code != 2 {
		return fmt.Errorf("%s lost the Lease and ended with exit code %d, not 2 (its log: %s)", deposed.agent, code, deposed.log)
	}
	if err := deposed.proxy.Close(); err != nil {
		return err
	}
	d.writers = slices.DeleteFunc(d.writers, func(wr *writer) bool { return wr == deposed })
	return d.enlist(ctx)
}

// verdict is what an audit log shows of take-overs.
type verdict struct {
	takeOvers  int // of one component
	refused    int // writes of deposed processes that the API server refused
	violations []string
}

// takeOvers reads from the audit log who wrote what. From the first record write
// of another process on, none of the first process's writes to that component
// may succeed. What came first is decided by the resourceVersions, which are
// the order in which etcd took the writes.
func takeOvers(events []audit.Event, plots []*plot) verdict {
	var v verdict
	for _, p := range plots {
		v.component(events, p.name)
	}
	return v
}

func (v *verdict) component(events []audit.Event, component string) {
	taken := map[string]uint64{} // by process: the version of its first record
	var order []string           // of take-overs
	for _, e := range events {
		agent := agentOf(e)
		if !wrote(e) || !isRecord(e, component) {
			continue
		}
		if _, ok := taken[agent]; !ok {
			taken[agent] = versionOf(e)
			order = append(order, agent)
		}
	}
	v.takeOvers += max(0, len(order)-1)
	for _, e := range events {
		if !e.Write() || e.DryRun || !isRecord(e, component) && e.Resource.Namespace != component {
			continue
		}
		i := slices.Index(order, agentOf(e))
		if i < 0 || i == len(order)-1 {
			continue // nobody took over from this process
		}
		v.write(e, component, order[i+1], taken[order[i+1]])
	}
}

// write judges a write of a process from which another one took a component over.
func (v *verdict) write(e audit.Event, component, by string, at uint64) {
	switch version := versionOf(e); {
	case wrote(e) && version > at:
		v.violations = append(v.violations, fmt.Sprintf("%s: a write of %s was accepted at %d after %s had taken over at %d: %s, audit %s",
			component, agentOf(e), version, by, at, e, e.ID))
	case wrote(e) && version == 0 && e.Verb != "delete":
		v.violations = append(v.violations, fmt.Sprintf("%s: the audit log does not show the version of %s, audit %s", component, e, e.ID))
	case e.Code == 409 || e.Code == 404:
		v.refused++
	}
}

func agentOf(e audit.Event) string {
	return e.UserAgent[strings.LastIndexByte(e.UserAgent, ' ')+1:]
}

func wrote(e audit.Event) bool { return e.Write() && !e.DryRun && e.Code < 300 }

func isRecord(e audit.Event, component string) bool {
	return e.Resource.Resource == "secrets" && e.Resource.Namespace == "keelson-system" &&
		(e.Resource.Name == "record-"+component || e.Resource.Name == "" && strings.Contains(string(e.Request), `"record-`+component+`"`))
}

// versionOf is the resourceVersion that a write was answered with; 0 without one.
func versionOf(e audit.Event) uint64 {
	var object struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if json.Unmarshal(e.Response, &object) != nil {
		return 0
	}
	n, err := strconv.ParseUint(object.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
