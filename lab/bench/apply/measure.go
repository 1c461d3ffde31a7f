package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/process"
)

// objectsEach is how many objects a component has.
const objectsEach = 4

// Goals of 1,000 components on two cores.
const (
	goalWall  = 15 * time.Second
	goalRatio = 1.5
	// quiet is how long a converged cluster is listened to.
	quiet = 10 * time.Second
)

// The clusters of the lab: one for Keelson, one for the bare loop.
const (
	ours   = "keelson"
	theirs = "bare"
)

// measurement is one run.
type measurement struct {
	dir, keelson        string
	components, workers int
	set                 binaries.Set
	lab                 *cluster.Lab
	out                 io.Writer

	fleet *fleet
}

func (m *measurement) run(ctx context.Context) error {
	var err error
	if m.fleet, err = makeFleet(ctx, m.dir, m.components); err != nil {
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
	fmt.Fprintf(m.out, "%d components × %d objects\n", m.components, objectsEach)
	limit, err := m.limits(ctx, objects, changed)
	if err != nil {
		return err
	}
	return m.deliver(ctx, limit)
}

// phase is what one way to apply took for one job.
type phase struct {
	wall    time.Duration
	first   time.Duration // from the start to the first write of an object
	server  time.Duration // CPU of the API server
	etcd    time.Duration // CPU of etcd
	process time.Duration // CPU of Keelson without its workers, or of the bare loop
	events  []audit.Event
}

// up makes a cluster with the namespace of all objects. The other one must be
// down: they would share the machine.
func (m *measurement) up(ctx context.Context, name string) (*rest.Config, error) {
	if err := m.lab.Up(ctx, name, cluster.Change{ControlPlaneOnly: new(true)}, m.set); err != nil {
		return nil, err
	}
	path, err := m.lab.Kubeconfig(name, cluster.Admin)
	if err != nil {
		return nil, err
	}
	admin, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	if err := ensureNamespace(ctx, admin); err != nil {
		return nil, err
	}
	// As the same user as Keelson: the audit log says as much of both.
	if path, err = m.lab.Kubeconfig(name, cluster.Keelson); err != nil {
		return nil, err
	}
	user, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	return user, nil
}

func (m *measurement) down(ctx context.Context) error {
	return errors.Join(m.lab.Down(ctx, ours), m.lab.Down(ctx, theirs))
}

// limits are what the API server can take: all objects, then the changed ones.
func (m *measurement) limits(ctx context.Context, all, changed []unstructured.Unstructured) ([2]phase, error) {
	var out [2]phase
	config, err := m.up(ctx, theirs)
	if err != nil {
		return out, err
	}
	for i, objects := range [][]unstructured.Unstructured{all, changed} {
		before, err := ownCPU()
		if err != nil {
			return out, err
		}
		after := before
		out[i], err = m.timed(ctx, theirs, func() error {
			if err := m.bare(ctx, config, objects); err != nil {
				return err
			}
			var err error
			after, err = ownCPU()
			return err
		})
		if err != nil {
			return out, err
		}
		out[i].process = after - before
	}
	return out, m.lab.Down(ctx, theirs)
}

// timed does something and says what it cost the cluster.
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

// ownCPU is what this process has used so far.
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

// window takes the time from the audit log: what is polled for is seen late.
func (p *phase) window(started time.Time) {
	first, last := time.Time{}, time.Time{}
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
	}
	if !last.IsZero() {
		p.first, p.wall = first.Sub(started), last.Sub(started)
	}
}

// cpu is what the processes of a cluster have used so far.
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

// deliver lets Keelson do the same, and then nothing.
func (m *measurement) deliver(ctx context.Context, limit [2]phase) (err error) {
	if _, err := m.up(ctx, ours); err != nil {
		return err
	}
	kubeconfig, err := m.kubeconfig(ours, cluster.Keelson)
	if err != nil {
		return err
	}
	var c *controller
	cold, err := m.timed(ctx, ours, func() error {
		if c, err = m.startController(kubeconfig); err != nil {
			return err
		}
		return c.until(ctx, m.written("create", objectsEach*m.components), written("create"), synced)
	})
	if c != nil {
		defer func() { err = errors.Join(err, c.stop()) }()
	}
	if err != nil {
		return err
	}
	cpu, peak, err := c.usage()
	if err != nil {
		return err
	}
	cold.process = cpu
	m.table("cold", cold, limit[0])
	if err := m.memory(ctx, c, peak); err != nil {
		return err
	}
	change, err := m.pushed(ctx, c, func() error { return m.fleet.setLevel("2") },
		m.written("update", m.components), written("update"), synced)
	if err != nil {
		return err
	}
	m.table("one field of each", change, limit[1])
	return m.idle(ctx, c)
}

// Metrics of the controller.
const synced = `keelson_deliveries\{.*sync="Synced"`

func written(op string) string { return `keelson_objects_written_total\{.*op="` + op + `"` }

// written holds that as many objects were written, and all deliveries are synced.
func (m *measurement) written(op string, want int) func([]float64) error {
	return func(v []float64) error {
		if int(v[0]) != want || int(v[1]) != m.components {
			return fmt.Errorf("%g of %d objects (%s), %g of %d deliveries synced", v[0], want, op, v[1], m.components)
		}
		return nil
	}
}

// pushed times a commit.
func (m *measurement) pushed(ctx context.Context, c *controller, edit func() error, check func([]float64) error, patterns ...string) (phase, error) {
	before, _, err := c.usage()
	if err != nil {
		return phase{}, err
	}
	if err := edit(); err != nil {
		return phase{}, err
	}
	p, err := m.timed(ctx, ours, func() error {
		if err := m.fleet.push(ctx, "a change"); err != nil {
			return err
		}
		return c.until(ctx, check, patterns...)
	})
	if err != nil {
		return phase{}, err
	}
	after, _, err := c.usage()
	p.process = after - before
	return p, err
}

// idle listens while every component is looked at again for nothing.
func (m *measurement) idle(ctx context.Context, c *controller) error {
	if err := m.settled(ctx); err != nil {
		return err
	}
	if err := m.fleet.setPass("1"); err != nil {
		return err
	}
	before, _, err := c.usage()
	if err != nil {
		return err
	}
	p, err := m.timed(ctx, ours, func() error {
		if err := m.fleet.push(ctx, "look again"); err != nil {
			return err
		}
		return wait(ctx, quiet)
	})
	if err != nil {
		return err
	}
	after, _, err := c.usage()
	if err != nil {
		return err
	}
	fmt.Fprintf(m.out, "\nconverged: a commit that has all %d looked at again for nothing\n", m.components)
	calls := 0
	for _, e := range p.events {
		if e.User != cluster.Keelson || e.Watch() {
			continue
		}
		if calls++; calls <= 10 {
			fmt.Fprintf(m.out, "  unwanted: %s\n", e)
		}
	}
	fmt.Fprintf(m.out, "  calls but watches     %d of 0; keelson used %s of CPU\n", calls, (after - before).Round(10*time.Millisecond))
	if calls > 0 {
		return fmt.Errorf("a converged fleet made %d calls", calls)
	}
	return nil
}

// settled waits for what the last change still has written, its statuses.
func (m *measurement) settled(ctx context.Context) error {
	log, err := m.lab.AuditLog(ours)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("still writing, long after the last change"))
	defer cancel()
	for {
		since, err := audit.End(log)
		if err != nil {
			return err
		}
		if err := wait(ctx, 3*time.Second); err != nil {
			return err
		}
		events, _, err := audit.Read(log, since)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(events, func(e audit.Event) bool { return e.User == cluster.Keelson && !e.Watch() }) {
			return nil
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
