// Package planning compares a cluster with what git wants of it. A session holds the connection, the
// fleet and the renders that the plans of one command share. It writes nothing to the cluster.
package planning

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/cmd/internal/rendering"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// Session is a connection to one cluster, with the fleet in git.
type Session struct {
	Fleet   *registry.Fleet
	Cluster *registry.Cluster
	Live    *applier.Cluster
	workers renderer.Renderer
	Targets *renderer.Targets
	// Pins override the pins in the records; a nil value: no pin.
	Pins    map[string]*records.Pin
	earlier *applier.EarlierFleets
	desired applier.DesiredBuilder
}

// Opener opens sessions.
type Opener struct {
	Fleets   *fleetrepo.Opener
	clusters connection.Connector
	Renders  *rendering.Local
}

// NewOpener returns an opener of sessions that uses the settings of a command.
func NewOpener(inv *cli.Invocation) Opener {
	return Opener{Fleets: fleetrepo.New(inv), clusters: connection.New(inv), Renders: rendering.New(inv)}
}

// Open connects to a cluster. A progress function means that the session delivers.
func (o Opener) Open(ctx context.Context, cluster string, progress func(applier.Step)) (*Session, error) {
	o.Fleets.Delivers = progress != nil
	repo, f, err := o.Fleets.LoadRepo(ctx, false)
	if err != nil {
		return nil, err
	}
	c, err := fleetrepo.FindCluster(f, cluster)
	if err != nil {
		return nil, err
	}
	workers, err := o.Renders.ForOutput()
	if err != nil {
		return nil, err
	}
	live, err := o.clusters.Connect(ctx, c, progress)
	if err != nil {
		return nil, err
	}
	s := &Session{
		Fleet: f, Cluster: c, Live: live, workers: workers,
		Pins: map[string]*records.Pin{}, earlier: applier.NewEarlierFleets(repo),
	}
	return s, s.Learn(ctx)
}

// Learn asks the cluster what it serves, and drops earlier renders.
func (s *Session) Learn(ctx context.Context) error {
	caps, err := s.Live.Capabilities(ctx)
	if err != nil {
		return err
	}
	s.Targets = renderer.NewTargets(s.workers, s.Cluster, renderer.NewExtensions(caps))
	return nil
}

// Planned is a delivery with the changes that applying it would make, or the error of the plan.
type Planned struct {
	*registry.Delivery
	*applier.Prepared
	Err error
}

// Title names the delivery with its versions.
func (p *Planned) Title() string {
	version := p.VersionName
	var pin *records.Pin
	if p.Prepared != nil {
		if pin = p.Pin(); pin != nil {
			version = pin.Version
		}
		if p.Applied != "" && p.Applied != version {
			version = p.Applied + " → " + version
		}
	}
	title := p.Component + " " + version
	if p.Absent {
		title += " (absent)"
	}
	if pin != nil {
		title += fmt.Sprintf(" (pinned to %d)", pin.Number)
	}
	if p.Paused {
		title += " (paused)"
	}
	return cli.OneLine(title)
}

// Stopped returns the changes that a danger rule blocks.
func Stopped(p differ.Plan) []differ.Change {
	var out []differ.Change
	for _, c := range p.Changes {
		if c.State == differ.StateHeld || c.State == differ.StateDenied {
			out = append(out, c)
		}
	}
	return out
}

// Plan returns the changes that applying a delivery would make.
func (s *Session) Plan(ctx context.Context, d *registry.Delivery) Planned {
	target, err := s.Target(ctx, d)
	if err != nil {
		return Planned{Delivery: d, Err: err}
	}
	return s.compare(ctx, d, target)
}

// Target renders a delivery; an absent one for its hooks. It returns nil if the cluster has nothing
// left of an absent one.
func (s *Session) Target(ctx context.Context, d *registry.Delivery) (*renderer.Target, error) {
	if d.Absent && len(d.Problems) == 0 {
		record, err := s.Live.Record(ctx, d.Component)
		if err != nil || len(record.Objects) == 0 && record.TargetHash == "" {
			return nil, err
		}
	}
	return s.Targets.Render(ctx, d)
}

// others returns a function that collects what all other components of the cluster want.
func (s *Session) others(but *registry.Delivery) func(context.Context) (*applier.Claims, error) {
	return func(ctx context.Context) (*applier.Claims, error) {
		claims := applier.NewClaims()
		for _, d := range s.Cluster.Deliveries {
			if d != but {
				claims.SetLimits(d.Component, applier.LimitsOf(s.Fleet, d.Component))
			}
			if d == but || d.Absent && len(d.Problems) == 0 {
				continue
			}
			target, err := s.Targets.Render(ctx, d)
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case err != nil:
				claims.AddUnknown(d.Component, err.Error())
			default:
				s.claim(ctx, d, target, claims)
			}
		}
		return claims, nil
	}
}

// claim adds what a delivery wants: its target in git, and what it is pinned to. It is called for
// each component with each plan that deletes, so it reads no more than the pin.
func (s *Session) claim(ctx context.Context, d *registry.Delivery, target *renderer.Target, claims *applier.Claims) {
	pin, err := s.pin(ctx, d, target)
	if err == nil && pin == nil {
		claims.Add(d.Component, target)
		return
	}
	var want applier.Desired
	if err == nil {
		want, err = s.pinned(ctx, d, pin)
	}
	if err != nil {
		claims.Add(d.Component, target)
		claims.AddUnknown(d.Component, err.Error())
		return
	}
	claims.AddPinned(want, target)
}

func (s *Session) compare(ctx context.Context, d *registry.Delivery, target *renderer.Target) Planned {
	want, err := s.want(ctx, d, target)
	if err != nil {
		return Planned{Delivery: d, Err: err}
	}
	want.Others = s.others(d)
	p, err := s.Live.Plan(ctx, want)
	return Planned{Delivery: d, Prepared: p, Err: err}
}

// want returns what git wants of a delivery, or the pinned state until git changes.
func (s *Session) want(ctx context.Context, d *registry.Delivery, target *renderer.Target) (applier.Desired, error) {
	pin, err := s.pin(ctx, d, target)
	switch {
	case err != nil:
		return applier.Desired{}, err
	case pin == nil:
		return s.desired.Build(s.Fleet, d, target)
	}
	return s.pinned(ctx, d, pin)
}

// pin returns what a delivery is pinned to, until git changes; nil: it is not pinned.
func (s *Session) pin(ctx context.Context, d *registry.Delivery, target *renderer.Target) (*records.Pin, error) {
	pin, forced := s.Pins[d.Component]
	if forced || d.Absent { // an absent component has no pin: git has changed
		return pin, nil
	}
	pin, err := s.Live.Pin(ctx, d.Component)
	if err != nil {
		return nil, err
	}
	return pin.Holds(target.Hash), nil
}

// pinned returns the pinned state of a delivery.
func (s *Session) pinned(ctx context.Context, d *registry.Delivery, pin *records.Pin) (applier.Desired, error) {
	return s.earlier.Pinned(ctx, s.Fleet, d, pin, func(ctx context.Context, c *registry.Cluster, d *registry.Delivery) (*renderer.Target, error) {
		caps, err := s.Live.Capabilities(ctx)
		if err != nil {
			return nil, err
		}
		return renderer.NewTargets(s.workers, c, renderer.NewExtensions(caps)).Render(ctx, d)
	})
}

// PlanAll plans all deliveries. The error is that of ctx; the plans hold all other errors.
func (s *Session) PlanAll(ctx context.Context, deliveries []*registry.Delivery) ([]Planned, error) {
	const parallel = 4
	out := make([]Planned, len(deliveries))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, d := range deliveries {
		target, err := s.Target(ctx, d)
		if err != nil {
			out[i] = Planned{Delivery: d, Err: err}
			continue
		}
		g.Go(func() error {
			out[i] = s.compare(ctx, d, target)
			return nil
		})
	}
	_ = g.Wait() // out holds every error
	return out, ctx.Err()
}

// PredictAll asks the cluster how it would store the objects that the plans create.
func (s *Session) PredictAll(ctx context.Context, plans []Planned) {
	for i := range plans {
		if p := &plans[i]; p.Err == nil {
			p.Err = s.Live.Predict(ctx, p.Prepared)
		}
	}
}

// Orphans returns the components that have a record in the cluster and are no longer in git for it.
func (s *Session) Orphans(ctx context.Context) ([]string, error) {
	names, err := s.Live.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	return fleetrepo.Without(names, fleetrepo.ComponentNames(s.Cluster)), nil
}

// InOrder orders deliveries for an apply: first the wanted ones, each after its dependencies, then
// the absent ones, each before its dependencies.
func InOrder(c *registry.Cluster, deliveries []*registry.Delivery) []*registry.Delivery {
	var stay, leave []*registry.Delivery
	for _, d := range dependenciesFirst(c, deliveries) {
		if d.Absent {
			leave = append(leave, d)
		} else {
			stay = append(stay, d)
		}
	}
	slices.Reverse(leave)
	return append(stay, leave...)
}

// dependenciesFirst orders deliveries so that each stands after its direct and indirect
// dependencies, otherwise by name.
func dependenciesFirst(c *registry.Cluster, deliveries []*registry.Delivery) []*registry.Delivery {
	wanted := map[*registry.Delivery]bool{}
	for _, d := range deliveries {
		wanted[d] = true
	}
	var out []*registry.Delivery
	seen := map[*registry.Delivery]bool{}
	var visit func(*registry.Delivery)
	visit = func(d *registry.Delivery) {
		if d == nil || seen[d] {
			return
		}
		seen[d] = true
		if d.Version != nil {
			for _, name := range d.Version.Spec.DependsOn {
				visit(c.Delivery(name))
			}
		}
		if wanted[d] {
			out = append(out, d)
		}
	}
	for _, d := range deliveries {
		visit(d)
	}
	return out
}

// WorstHealth returns the worst health of a plan's objects.
func (p *Planned) WorstHealth() (v1alpha1.Health, string) { return health.Worst(p.Health) }
