package applier

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// planner computes plans. It reads the cluster, and changes nothing there.
type planner struct {
	name            *clusterName
	records         *records.Store
	accounts        *accounts
	discovery       *apis.Discoverer
	live            *observe.Objects
	nodes           *nodeReader
	uses            *useReader
	dryRuns         *dryRuns
	customResources *customResourceReader
	settled         *settledComponents
	secrets         secretRegister
}

func (pl *planner) plan(ctx context.Context, w Desired) (*Prepared, error) {
	if p := pl.settledPlan(ctx, w); p != nil {
		return p, nil
	}
	mark := pl.settled.wake(w.Component)
	rec, err := pl.records.Read(ctx, w.Component)
	if err != nil {
		return nil, err
	}
	if w.From != "" && w.From != rec.ResourceVersion {
		return nil, fmt.Errorf("%w: another writer wrote its record", ErrStale)
	}
	if err := w.checkTarget(rec); err != nil {
		return nil, err
	}
	if w.Absent {
		w.Target = absentFrom(rec, w.Target) // w.Target may be nil
	}
	p := &Prepared{want: w, record: rec, Applied: rec.Version}
	if p.as, err = pl.accounts.of(w); err != nil {
		return nil, err
	}
	states, versions := statesOf(rec.Objects, w.Target)
	slices.SortFunc(states, func(a, b differ.State) int { return differ.CompareIDs(a.ID, b.ID) })
	p.states = states
	if w.Absent {
		usesNothing(states)
	}
	if p.deletesNow() {
		pl.discovery.Rediscover()
	}
	if p.mappings, err = findMappings(ctx, pl.discovery, states, versions); err != nil {
		return nil, err
	}
	if p.policy, err = pl.policy(ctx, w); err != nil {
		return nil, err
	}
	if p.schemas, err = schemasOf(ctx, pl.discovery, versions); err != nil {
		return nil, err
	}
	if err := pl.live.Observe(ctx, p.mappings, states, pl.get(p)); err != nil {
		return nil, err
	}
	if err := pl.recordedElsewhere(ctx, p); err != nil {
		return nil, err
	}
	pl.secrets.addLive(w, states)
	pl.settled.recognise(p, versions)
	if err := p.compare(ctx); err != nil {
		return nil, err
	}
	pl.settled.remember(p)
	if err := pl.complete(ctx, p); err != nil {
		return nil, err
	}
	p.Plan.NoteApprovals(w.Approvals)
	for i := range p.Plan.Changes {
		if s := &p.Plan.Changes[i]; s.Op != differ.OpForget && s.Retained == "" && s.Live != nil {
			p.Health = append(p.Health, w.Health.Of(s.ID, s.Live))
		}
	}
	resting := pl.settled.rest(p, mark, versions)
	pl.dryRuns.forget(resting...)
	pl.customResources.forget(resting...)
	return p, nil
}

// complete reads what the first comparison lacked, each only where it is needed, and compares again. It
// reads owners of fields, the nodes, the users of earlier versions of configuration, the wishes of
// other components, the custom resources of a CRD, and the API server's dry-run answers.
//
// Nodes may turn out to be needed late, for example once another component's record of an object is
// known. Then everything is decided again.
func (pl *planner) complete(ctx context.Context, p *Prepared) error {
	if err := pl.readOwners(ctx, p); err != nil {
		return err
	}
	for again := true; again; {
		if _, err := pl.readNodes(ctx, p); err != nil {
			return err
		}
		steps := []func(context.Context, *Prepared) error{
			pl.readOwners, pl.readUses, pl.askOthers, pl.readCustomResources, pl.predictUpdates, pl.predictReplacements,
		}
		for _, step := range steps {
			if err := step(ctx, p); err != nil {
				return err
			}
		}
		var err error
		if again, err = pl.readNodes(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (pl *planner) predictUpdates(ctx context.Context, p *Prepared) error {
	return pl.predict(ctx, p, differ.OpUpdate)
}

// predictReplacements follows predictUpdates, because an update may turn out to be a replacement.
func (pl *planner) predictReplacements(ctx context.Context, p *Prepared) error {
	return pl.predict(ctx, p, differ.OpReplace)
}

// settledPlan returns the plan of a component that was found settled and healthy, and of which nothing
// has changed since; nil: that is not so, or not known.
func (pl *planner) settledPlan(ctx context.Context, w Desired) *Prepared {
	inputs, last, known := pl.settled.resting(w.Component)
	if !known || w.Absent {
		return nil // an absent component is never settled
	}
	p := &Prepared{want: w, Applied: last.Version, fromSettledCache: true}
	states, versions := statesOf(nil, w.Target)
	var err error
	// An error shows in the full plan.
	if p.mappings, err = findMappings(ctx, pl.discovery, states, versions); err != nil {
		return nil
	}
	if p.policy, err = pl.policy(ctx, w); err != nil {
		return nil
	}
	if p.schemas, err = schemasOf(ctx, pl.discovery, versions); err != nil {
		return nil
	}
	if p.fingerprint(states, versions) != inputs {
		return nil
	}
	for i := range states {
		p.Health = append(p.Health, health.Result{ID: states[i].ID, Health: v1alpha1.HealthHealthy})
	}
	return p
}

func (pl *planner) policy(ctx context.Context, w Desired) (differ.Policy, error) {
	key, err := pl.name.maskKey(ctx)
	if err != nil {
		return differ.Policy{}, err
	}
	if key == nil {
		// Nothing was recorded here yet. A temporary key hides Secret data in the output; prepare
		// makes the permanent key.
		key = make([]byte, 32)
		if _, err := rand.Read(key); err != nil {
			return differ.Policy{}, fmt.Errorf("make a key: %w", err)
		}
	}
	scaled, err := pl.scaled(ctx)
	if err != nil {
		return differ.Policy{}, err
	}
	return differ.Policy{
		Component: w.Component, Rules: w.Rules, Adopt: w.Adopt, Limits: w.Limits, Drift: w.Drift,
		Scaled: scaled, Approved: w.Approved, Cluster: w.Labels, MaskKey: key, NodesReadable: true,
	}, nil
}

// scaled returns what autoscalers own, for the autoscaler kinds that the cluster serves.
func (pl *planner) scaled(ctx context.Context) (map[differ.ID]differ.Scaling, error) {
	served, err := autoscalers(ctx, pl.discovery)
	if err != nil {
		return nil, err
	}
	scaled, err := pl.live.Scaled(ctx, served)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", pl.name.name, err)
	}
	return scaled, nil
}

// get reads an object for the plan. An object that may be deleted is read from the API server, with
// its managedFields.
func (pl *planner) get(p *Prepared) observe.GetFunc {
	return func(ctx context.Context, m *meta.RESTMapping, s *differ.State) (map[string]any, error) {
		if s.Target == nil && p.due(s.ID) {
			return pl.live.Owned(ctx, m, s)
		}
		return pl.live.Current(ctx, m, s)
	}
}

// readOwners reads the managedFields of the objects that can't be decided without them, and
// compares again.
func (pl *planner) readOwners(ctx context.Context, p *Prepared) error {
	unread := map[differ.ID]bool{}
	for i := range p.Plan.Changes {
		if p.Plan.Changes[i].Unread.Owners {
			unread[p.Plan.Changes[i].ID] = true
		}
	}
	if len(unread) == 0 {
		return nil
	}
	mappings := map[differ.ID]*meta.RESTMapping{}
	for id := range unread {
		mappings[id] = p.mappings[id]
	}
	if err := pl.live.Observe(ctx, mappings, p.states, pl.live.Owned); err != nil {
		return err
	}
	for i := range p.states {
		s := &p.states[i]
		s.OwnersRead = s.OwnersRead || unread[s.ID]
	}
	return p.compare(ctx)
}

// readNodes reads the nodes of the cluster if a danger rule counts them, and compares again. If
// the nodes are unknown, the conditions read null.
func (pl *planner) readNodes(ctx context.Context, p *Prepared) (again bool, _ error) {
	if !p.Plan.Unread().Nodes {
		return false, nil
	}
	if err := pl.nodes.addTo(ctx, &p.policy); err != nil {
		return false, err
	}
	return true, p.compare(ctx)
}

// readCustomResources compares the CRDs again that can't be decided without their custom resources.
//
// Findings are reused while the CRD waits: a held component is planned again with every event, and
// may have many custom resources. But a change that is to be sent is decided by a fresh read.
func (pl *planner) readCustomResources(ctx context.Context, p *Prepared) error {
	remembered := map[differ.ID]bool{}
	read := func(i int) error {
		s := &p.states[i]
		var err error
		s.CustomResources, remembered[s.ID], err = pl.customResources.instances(ctx, p, i, !remembered[s.ID])
		if err != nil {
			return fmt.Errorf("%s: custom resources: %w", s.ID, err)
		}
		return nil
	}
	for {
		asked := false
		for i := range p.Plan.Changes {
			ch := &p.Plan.Changes[i]
			if ch.Unread.CustomResources || remembered[ch.ID] && ch.Op != differ.OpNone {
				asked = true
				if err := read(i); err != nil {
					return err
				}
			}
		}
		if !asked {
			return nil
		}
		if err := p.compare(ctx); err != nil {
			return err
		}
	}
}

// predict makes dry runs, and compares again with their answers.
func (pl *planner) predict(ctx context.Context, p *Prepared, op differ.Op) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(observe.Parallel)
	asked := false
	for i := range p.Plan.Changes {
		ch, s := &p.Plan.Changes[i], &p.states[i]
		if ch.Op != op || ch.DryRunBody == nil || p.mappings[ch.ID] == nil {
			continue
		}
		if pl.dryRuns.remembered(ch) == nil && pl.dryRuns.skips(p, ch) {
			p.unasked = ch.ID
			continue
		}
		asked = true
		g.Go(func() error {
			d, err := pl.dryRuns.ask(gctx, p, ch)
			if op == differ.OpReplace {
				s.ReplacementDryRun = d
			} else {
				s.DryRun = d
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("dry run: %w", err)
	}
	if !asked {
		return nil
	}
	if err := p.compare(ctx); err != nil {
		return err
	}
	return pl.readOwners(ctx, p)
}
