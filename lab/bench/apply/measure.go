package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/bench/addons"
	"github.com/keelson-io/keelson/lab/bench/keelson"
	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/process"
)

// Goals for 1,000 components on two cores.
const (
	goalWall  = 15 * time.Second
	goalRatio = 1.5
	// listen is how long a converged cluster is observed in poll mode.
	listen = 10 * time.Second
)

// patience is the time limit of a phase, for every contestant: ten times Keelson's usual time.
const patience = 10 * time.Minute

// The clusters of the lab: for Keelson or Flux, for the bare loop, and for the loop with records.
const (
	ours     = "keelson"
	theirs   = "bare"
	recorded = "recorded"
)

// byKeelson is Keelson's name in the tables.
const byKeelson = "keelson"

// measurement holds the options and the shared state of one run.
type measurement struct {
	dir, keelson        string
	components, workers int
	set                 binaries.Set
	lab                 *cluster.Lab
	out                 io.Writer
	mode                mode
	quiet               time.Duration // of the steady state, in push and peer mode
	flags               []string      // additional flags of the controller
	scratch             []string      // folders outside of dir that belong to this run
	flux                fluxOptions

	names []string // of the components
	fleet *repository
}

func (m *measurement) run(ctx context.Context) error {
	for i := range m.components {
		m.names = append(m.names, fmt.Sprintf("addon-%04d", i))
	}
	var err error
	if m.fleet, err = m.publish(ctx, "fleet", m.fleetFiles(), m.names); err != nil {
		return err
	}
	objects, err := m.rendered(ctx)
	if err != nil {
		return err
	}
	changed, err := withLevel(objects, "2")
	if err != nil {
		return err
	}
	fmt.Fprintf(m.out, "%d components × %d objects\n", m.components, addons.ObjectsOfSmall)
	limit, err := m.limits(ctx, objects, changed)
	if err != nil {
		return err
	}
	if m.mode == byPoll {
		return m.deliver(ctx, limit)
	}
	return m.pushes(ctx, objects, limit)
}

// phase holds the cost of one phase.
type phase struct {
	by      string        // name of the contestant
	pushed  time.Duration // from the start to the end of git push; 0: without notification
	told    time.Duration // from the start to the answer to the notification
	wall    time.Duration // from the start to the last write of an object or record
	first   time.Duration // from the start to the first write of an object
	last    time.Duration // from the start to the last write of an object
	server  time.Duration // CPU of the API server
	etcd    time.Duration // CPU of etcd
	process time.Duration // CPU of the contestant or the bare loop; in poll mode without workers
	events  []audit.Event
}

// up creates a cluster with the namespace of all objects. The other clusters must be down, because
// all clusters share the machine.
func (m *measurement) up(ctx context.Context, name string) (*rest.Config, error) {
	if err := m.lab.Up(ctx, name, cluster.Change{ControlPlaneOnly: new(true), Audit: new(cluster.AuditMetadata)}, m.set); err != nil {
		return nil, err
	}
	admin, err := m.client(name, cluster.Admin)
	if err != nil {
		return nil, err
	}
	if err := ensureNamespace(ctx, admin); err != nil {
		return nil, err
	}
	// The loops use the same user as Keelson, so that the audit log is equally detailed.
	return m.client(name, cluster.Keelson)
}

// client returns the client configuration of a user of a cluster.
func (m *measurement) client(name, user string) (*rest.Config, error) {
	path, err := m.lab.Kubeconfig(name, user)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	return config, nil
}

func (m *measurement) down(ctx context.Context) error {
	return errors.Join(m.lab.Down(ctx, ours), m.lab.Down(ctx, theirs), m.lab.Down(ctx, recorded))
}

// limits are the limits of the API server, measured with the loops.
type limits struct {
	cold     phase // all objects
	field    phase // only the changed objects
	recorded phase // all objects, with a record of each component
}

// limits measures the limits, on clusters of their own.
func (m *measurement) limits(ctx context.Context, all, changed []unstructured.Unstructured) (l limits, err error) {
	config, err := m.up(ctx, theirs)
	if err != nil {
		return l, err
	}
	if l.cold, err = m.limit(ctx, theirs, func() error { return m.bare(ctx, config, all) }); err != nil {
		return l, err
	}
	if l.field, err = m.limit(ctx, theirs, func() error { return m.bare(ctx, config, changed) }); err != nil {
		return l, err
	}
	if err := m.lab.Down(ctx, theirs); err != nil {
		return l, err
	}
	if config, err = m.up(ctx, recorded); err != nil {
		return l, err
	}
	if l.recorded, err = m.limit(ctx, recorded, func() error { return m.recorded(ctx, config, all) }); err != nil {
		return l, err
	}
	return l, m.lab.Down(ctx, recorded)
}

// limit measures a loop.
func (m *measurement) limit(ctx context.Context, name string, loop func() error) (phase, error) {
	before, err := ownCPU()
	if err != nil {
		return phase{}, err
	}
	after := before
	p, err := m.timed(ctx, name, func() error {
		if err := loop(); err != nil {
			return err
		}
		var err error
		after, err = ownCPU()
		return err
	})
	p.process = after - before
	return p, err
}

// timed runs do and returns what it cost the cluster.
func (m *measurement) timed(ctx context.Context, name string, do func() error) (phase, error) {
	var p phase
	log, err := m.lab.AuditLog(name)
	if err != nil {
		return p, err
	}
	since, err := audit.End(log)
	if err != nil {
		return p, err
	}
	server, etcd, err := m.cpu(ctx, name)
	if err != nil {
		return p, err
	}
	started := time.Now()
	if err := do(); err != nil {
		return p, err
	}
	p.wall = time.Since(started)
	serverAfter, etcdAfter, err := m.cpu(ctx, name)
	if err != nil {
		return p, err
	}
	p.server, p.etcd = serverAfter-server, etcdAfter-etcd
	if p.events, _, err = audit.Read(log, since); err != nil {
		return p, err
	}
	p.window(started)
	return p, nil
}

// ownCPU returns the CPU time of this process so far.
func ownCPU() (time.Duration, error) {
	id, err := process.Identify(os.Getpid())
	if err != nil {
		return 0, fmt.Errorf("look at the bare loop: %w", err)
	}
	u, err := id.Usage()
	if err != nil {
		return 0, fmt.Errorf("look at the bare loop: %w", err)
	}
	return u.CPU, nil
}

// window takes the times from the audit log: polling would see the changes late.
func (p *phase) window(started time.Time) {
	var first, last, lastObject time.Time
	for _, e := range p.events {
		if k := kindOf(e); !done(e) || k != kindObjects && k != kindRecords {
			continue
		}
		if first.IsZero() && kindOf(e) == kindObjects {
			first = e.Received
		}
		if e.Time.After(last) {
			last = e.Time
		}
		if kindOf(e) == kindObjects && e.Time.After(lastObject) {
			lastObject = e.Time
		}
	}
	if !lastObject.IsZero() {
		p.first, p.last, p.wall = first.Sub(started), lastObject.Sub(started), last.Sub(started)
	}
}

// cpu returns the CPU times of a cluster's API server and etcd so far.
func (m *measurement) cpu(ctx context.Context, name string) (server, etcd time.Duration, err error) {
	all, err := m.lab.Status(ctx, 0)
	if err != nil {
		return 0, 0, err
	}
	for _, s := range all {
		for _, c := range s.Components {
			used := time.Duration(c.CPUSeconds * float64(time.Second))
			switch {
			case s.Name != name:
			case c.Name == binaries.APIServer:
				server = used
			case c.Name == binaries.Etcd:
				etcd = used
			}
		}
	}
	return server, etcd, nil
}

// deliver measures Keelson in poll mode, and then the converged cluster.
func (m *measurement) deliver(ctx context.Context, limit limits) (err error) {
	if _, err := m.up(ctx, ours); err != nil {
		return err
	}
	kubeconfig, err := m.kubeconfig(ours, cluster.Keelson)
	if err != nil {
		return err
	}
	if err := m.fleet.clone(ctx, m.fleet.bare); err != nil {
		return err
	}
	var c *keelson.Controller
	cold, err := m.timed(ctx, ours, func() error {
		if c, err = m.startController(m.fleet.bare, kubeconfig, time.Second); err != nil {
			return err
		}
		return m.written(ctx, c, "create", addons.ObjectsOfSmall*m.components)
	})
	if c != nil {
		defer func() { err = errors.Join(err, c.Stop()) }()
	}
	if err != nil {
		return err
	}
	used, err := c.Usage()
	if err != nil {
		return err
	}
	cold.process, cold.by = used.CPU, byKeelson
	m.table("cold", cold, limit.cold)
	m.withRecords(cold, limit)
	if err := m.memory(ctx, c, used.Peak); err != nil {
		return err
	}
	if err := m.statuses(ctx); err != nil {
		return err
	}
	change, err := m.polled(ctx, c)
	if err != nil {
		return err
	}
	m.table("one field of each", change, limit.field)
	if err := m.statuses(ctx); err != nil {
		return err
	}
	if err := m.healthy(ctx); err != nil {
		return err
	}
	return m.idle(ctx, c)
}

// written waits until want objects are written and all deliveries are synced.
func (m *measurement) written(ctx context.Context, c *keelson.Controller, op string, want int) error {
	return c.Until(ctx, patience, 100*time.Millisecond, func(ctx context.Context) error {
		v, err := c.Metrics(ctx, `keelson_objects_written_total\{.*op="`+op+`"`, keelson.Synced)
		if err == nil && (int(v[0]) != want || int(v[1]) != m.components) {
			err = fmt.Errorf("%g of %d objects (%s), %g of %d deliveries synced", v[0], want, op, v[1], m.components)
		}
		return err
	})
}

// polled measures a commit that changes one field of each component.
func (m *measurement) polled(ctx context.Context, c *keelson.Controller) (phase, error) {
	before, err := c.Usage()
	if err != nil {
		return phase{}, err
	}
	files := addons.Files{}
	m.setLevels(files, func(int) string { return "2" })
	p, err := m.timed(ctx, ours, func() error {
		if err := m.fleet.push(ctx, files, "a change"); err != nil {
			return err
		}
		return m.written(ctx, c, "update", m.components)
	})
	if err != nil {
		return phase{}, err
	}
	after, err := c.Usage()
	p.process, p.by = after.CPU-before.CPU, byKeelson
	return p, err
}
