package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/keelson-io/keelson/lab/harness"

	"github.com/keelson-io/keelson/lab/harness/must"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

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

// patience is the time limit of a section, for every contestant: ten times Keelson's usual time.
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

func (m *measurement) run(ctx context.Context) {
	for i := range m.components {
		m.names = append(m.names, fmt.Sprintf("addon-%04d", i))
	}
	m.fleet = m.publish(ctx, "fleet", m.fleetFiles(), m.names)
	objects := m.rendered(ctx)
	changed := withLevel(objects, "2")
	fmt.Fprintf(m.out, "%d components × %d objects\n", m.components, addons.ObjectsOfSmall)
	limit := m.limits(ctx, objects, changed)
	if m.mode == byPoll {
		m.deliver(ctx, limit)
		return
	}
	m.pushes(ctx, objects, limit)
}

// section holds the cost of one section.
type section struct {
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
func (m *measurement) up(ctx context.Context, name string) *rest.Config {
	must.Do(m.lab.Up(ctx, name, cluster.Change{ControlPlaneOnly: new(true), Audit: new(cluster.AuditMetadata)}, m.set))
	admin := m.client(name, cluster.Admin)
	ensureNamespace(ctx, admin)
	// The loops use the same user as Keelson, so that the audit log is equally detailed.
	return m.client(name, cluster.Keelson)
}

// client returns the client configuration of a user of a cluster.
func (m *measurement) client(name, user string) *rest.Config {
	return must.Get(harness.Config(m.lab, name, user))
}

func (m *measurement) down(ctx context.Context) error {
	return errors.Join(m.lab.Down(ctx, ours), m.lab.Down(ctx, theirs), m.lab.Down(ctx, recorded))
}

// limits are the limits of the API server, measured with the loops.
type limits struct {
	cold     section // all objects
	field    section // only the changed objects
	recorded section // all objects, with a record of each component
}

// limits measures the limits, on clusters of their own.
func (m *measurement) limits(ctx context.Context, all, changed []unstructured.Unstructured) (l limits) {
	config := m.up(ctx, theirs)
	l.cold = m.limit(ctx, theirs, func() { m.bare(ctx, config, all) })
	l.field = m.limit(ctx, theirs, func() { m.bare(ctx, config, changed) })
	must.Do(m.lab.Down(ctx, theirs))
	config = m.up(ctx, recorded)
	l.recorded = m.limit(ctx, recorded, func() { m.recorded(ctx, config, all) })
	must.Do(m.lab.Down(ctx, recorded))
	return l
}

// limit measures a loop.
func (m *measurement) limit(ctx context.Context, name string, loop func()) section {
	before := ownCPU()
	after := before
	p := m.timed(ctx, name, func() {
		loop()
		after = ownCPU()
	})
	p.process = after - before
	return p
}

// timed runs do and returns what it cost the cluster.
func (m *measurement) timed(ctx context.Context, name string, do func()) section {
	var p section
	since := must.Get(harness.AuditEnd(m.lab, name))
	server, etcd := m.cpu(ctx, name)
	started := time.Now()
	do()
	p.wall = time.Since(started)
	serverAfter, etcdAfter := m.cpu(ctx, name)
	p.server, p.etcd = serverAfter-server, etcdAfter-etcd
	p.events = must.Get(harness.Audit(m.lab, name, since))
	p.interval(started)
	return p
}

// ownCPU returns the CPU time of this process so far.
func ownCPU() time.Duration { return must.Get(must.Get(process.Identify(os.Getpid())).Usage()).CPU }

// interval takes the times from the audit log: polling would see the changes late.
func (p *section) interval(started time.Time) {
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
func (m *measurement) cpu(ctx context.Context, name string) (server, etcd time.Duration) {
	all := must.Get(m.lab.Status(ctx, 0))
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
	return server, etcd
}

// deliver measures Keelson in poll mode, and then the converged cluster.
func (m *measurement) deliver(ctx context.Context, limit limits) {
	m.up(ctx, ours)
	kubeconfig := m.kubeconfig(ours, cluster.Keelson)
	m.fleet.clone(ctx, m.fleet.bare)
	var c *keelson.Controller
	must.Finally(func() {
		cold := m.timed(ctx, ours, func() {
			c = m.startController(m.fleet.bare, kubeconfig, time.Second)
			m.written(ctx, c, "create", addons.ObjectsOfSmall*m.components)
		})
		m.delivered(ctx, c, cold, limit)
	}, func() error {
		if c == nil {
			return nil
		}
		return c.Stop()
	})
}

// delivered measures a controller that has delivered the fleet.
func (m *measurement) delivered(ctx context.Context, c *keelson.Controller, cold section, limit limits) {
	used := must.Get(c.Usage())
	cold.process, cold.by = used.CPU, byKeelson
	m.table("cold", cold, limit.cold)
	m.withRecords(cold, limit)
	m.memory(ctx, c, used.Peak)
	m.statuses(ctx)
	change := m.polled(ctx, c)
	m.table("one field of each", change, limit.field)
	m.statuses(ctx)
	m.healthy(ctx)
	m.idle(ctx, c)
}

// written waits until want objects are written and all deliveries are synced.
func (m *measurement) written(ctx context.Context, c *keelson.Controller, op string, want int) {
	must.Do(c.Until(ctx, patience, 100*time.Millisecond, func(ctx context.Context) error {
		v, err := c.Metrics(ctx, `keelson_objects_written_total\{.*op="`+op+`"`, keelson.Synced)
		if err == nil && (int(v[0]) != want || int(v[1]) != m.components) {
			err = fmt.Errorf("%g of %d objects (%s), %g of %d deliveries synced", v[0], want, op, v[1], m.components)
		}
		return err
	}))
}

// polled measures a commit that changes one field of each component.
func (m *measurement) polled(ctx context.Context, c *keelson.Controller) section {
	before := must.Get(c.Usage())
	files := addons.Files{}
	m.setLevels(files, func(int) string { return "2" })
	p := m.timed(ctx, ours, func() {
		m.fleet.push(ctx, files, "a change")
		m.written(ctx, c, "update", m.components)
	})
	p.process, p.by = must.Get(c.Usage()).CPU-before.CPU, byKeelson
	return p
}
