package cmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/controllers/connect"
	"github.com/keelson-io/keelson/controllers/lease"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// source returns the source of credentials.
func (a *app) source() connect.Source {
	return connect.Source{Kubeconfig: a.Kubeconfig, Context: a.KubeContext, AllowExec: a.AllowExec, Hide: a.Env.Redactor.Hide, Version: cmp.Or(a.Env.Version, "dev")}
}

// connect prepares the connection to a cluster. Progress may be nil.
func (a *app) connect(ctx context.Context, c *registry.Cluster, progress func(applier.Step)) (*applier.Cluster, error) {
	// All clients of a Line share one connection, and the bounds on answers.
	line, err := connect.Dial(ctx, a.Env.Now, func(ctx context.Context) (*rest.Config, error) {
		return a.source().Config(ctx, c.Spec.Connection)
	}, connect.Callbacks{})
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", c.Name, err)
	}
	config := line.Config()
	a.Log.Debug("connecting", "cluster", c.Name, "server", config.Host)
	config.WarningHandler = a.warnings()
	identity, err := lease.Identity()
	if err != nil {
		return nil, err
	}
	return applier.New(applier.Options{
		Name: c.Name, Config: config, Redactor: a.Env.Redactor, Shared: a.Env.Schemas, Progress: progress,
		Writer: records.Writer{Identity: identity},
	})
}

// warnings prints the warnings of API servers.
func (a *app) warnings() rest.WarningHandler {
	return rest.NewWarningWriter(a.Env.Err, rest.WarningWriterOptions{Deduplicate: true})
}

// session is a connection to one cluster, with the fleet in git.
type session struct {
	repo    *registry.Repo
	fleet   *registry.Fleet
	cluster *registry.Cluster
	live    *applier.Cluster
	workers renderer.Renderer
	targets *renderer.Targets
	// pins override the pins in the records; a nil value: no pin.
	pins map[string]*records.Pin

	mu   sync.Mutex
	then map[string]*registry.Fleet // the fleet at earlier revisions
}

// openSession connects to a cluster. A progress function means that the session delivers.
func (a *app) openSession(ctx context.Context, cluster string, progress func(applier.Step)) (*session, error) {
	a.delivers = progress != nil
	repo, f, err := a.loadRepo(ctx, false)
	if err != nil {
		return nil, err
	}
	c, err := findCluster(f, cluster)
	if err != nil {
		return nil, err
	}
	workers, err := a.veiled()
	if err != nil {
		return nil, err
	}
	live, err := a.connect(ctx, c, progress)
	if err != nil {
		return nil, err
	}
	s := &session{
		repo: repo, fleet: f, cluster: c, live: live, workers: workers,
		pins: map[string]*records.Pin{}, then: map[string]*registry.Fleet{},
	}
	return s, s.learn(ctx)
}

// learn asks the cluster what it serves, and drops earlier renders.
func (s *session) learn(ctx context.Context) error {
	caps, err := s.live.Capabilities(ctx)
	if err != nil {
		return err
	}
	s.targets = renderer.NewTargets(s.workers, s.cluster, renderer.NewExtensions(caps))
	return nil
}

// planned is a delivery with the changes that applying it would make, or the error of the plan.
type planned struct {
	*registry.Delivery
	*applier.Prepared
	err error
}

// title names the delivery with its versions.
func (p *planned) title() string {
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

// stopped returns the changes that a danger rule blocks.
func stopped(p differ.Plan) []differ.Change {
	var out []differ.Change
	for _, c := range p.Changes {
		if c.State == differ.StateHeld || c.State == differ.StateDenied {
			out = append(out, c)
		}
	}
	return out
}

// plan returns the changes that applying a delivery would make.
func (s *session) plan(ctx context.Context, d *registry.Delivery) planned {
	target, err := s.target(ctx, d)
	if err != nil {
		return planned{Delivery: d, err: err}
	}
	return s.compare(ctx, d, target)
}

// target renders a delivery; an absent one for its hooks. It returns nil if the cluster has nothing
// left of an absent one.
func (s *session) target(ctx context.Context, d *registry.Delivery) (*renderer.Target, error) {
	if d.Absent && len(d.Problems) == 0 {
		record, err := s.live.Record(ctx, d.Component)
		if err != nil || len(record.Objects) == 0 && record.TargetHash == "" {
			return nil, err
		}
	}
	return s.targets.Render(ctx, d)
}

// others returns a function that collects what all other components of the cluster want.
func (s *session) others(but *registry.Delivery) func(context.Context) (*applier.Claims, error) {
	return func(ctx context.Context) (*applier.Claims, error) {
		claims := applier.NewClaims()
		for _, d := range s.cluster.Deliveries {
			if d != but {
				claims.SetLimits(d.Component, applier.LimitsOf(s.fleet, d.Component))
			}
			if d == but || d.Absent && len(d.Problems) == 0 {
				continue
			}
			target, err := s.targets.Render(ctx, d)
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case err != nil:
				claims.AddUnknown(d.Component, err.Error())
			default:
				want, err := s.want(ctx, d, target)
				switch {
				case err != nil:
					claims.Add(d.Component, target)
					claims.AddUnknown(d.Component, err.Error())
				case want.Pin != nil:
					claims.AddPinned(want, target)
				default:
					claims.Add(d.Component, target)
				}
			}
		}
		return claims, nil
	}
}

func (s *session) compare(ctx context.Context, d *registry.Delivery, target *renderer.Target) planned {
	want, err := s.want(ctx, d, target)
	if err != nil {
		return planned{Delivery: d, err: err}
	}
	want.Others = s.others(d)
	p, err := s.live.Plan(ctx, want)
	return planned{Delivery: d, Prepared: p, err: err}
}

// want returns what git wants of a delivery, or the pinned state until git changes.
func (s *session) want(ctx context.Context, d *registry.Delivery, target *renderer.Target) (applier.Desired, error) {
	pin, forced := s.pins[d.Component]
	if !forced && !d.Absent { // an absent component has no pin: git has changed
		record, err := s.live.Record(ctx, d.Component)
		if err != nil {
			return applier.Desired{}, err
		}
		if pin = record.Pin; pin != nil && pin.Against != target.Hash {
			pin = nil
		}
	}
	if pin == nil {
		return applier.NewDesired(s.fleet, d, target)
	}
	// planAll runs plans concurrently; loads and renders of old revisions run one at a time.
	s.mu.Lock()
	defer s.mu.Unlock()
	then := s.then[pin.Revision]
	if then == nil {
		var err error
		if then, err = s.repo.LoadCommit(ctx, pin.Revision); err != nil {
			return applier.Desired{}, &applier.PinError{Pin: *pin, Component: d.Component, Err: err}
		}
		s.then[pin.Revision] = then
	}
	return applier.PinnedWant{Pin: pin, Now: s.fleet, Delivery: d, Then: then}.Make(ctx,
		func(ctx context.Context, c *registry.Cluster, d *registry.Delivery) (*renderer.Target, error) {
			caps, err := s.live.Capabilities(ctx)
			if err != nil {
				return nil, err
			}
			return renderer.NewTargets(s.workers, c, renderer.NewExtensions(caps)).Render(ctx, d)
		})
}

// planAll plans all deliveries. The error is that of ctx; the plans hold all other errors.
func (s *session) planAll(ctx context.Context, deliveries []*registry.Delivery) ([]planned, error) {
	const parallel = 4
	out := make([]planned, len(deliveries))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, d := range deliveries {
		target, err := s.target(ctx, d)
		if err != nil {
			out[i] = planned{Delivery: d, err: err}
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

// predictAll asks the cluster how it would store the objects that the plans create.
func (s *session) predictAll(ctx context.Context, plans []planned) {
	for i := range plans {
		if p := &plans[i]; p.err == nil {
			p.err = s.live.Predict(ctx, p.Prepared)
		}
	}
}

// orphans returns the components that have a record in the cluster and are no longer in git for it.
func (s *session) orphans(ctx context.Context) ([]string, error) {
	names, err := s.live.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	return without(names, componentNames(s.cluster)), nil
}

// inOrder orders deliveries for an apply: first the wanted ones, each after its dependencies, then
// the absent ones, each before its dependencies.
func inOrder(c *registry.Cluster, deliveries []*registry.Delivery) []*registry.Delivery {
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

// health returns the worst health of a plan's objects.
func (p *planned) health() (v1alpha1.Health, string) { return health.Worst(p.Health) }
