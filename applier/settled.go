package applier

import (
	"context"
	"fmt"
	"unique"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// Keeper is a [Reader] that holds objects in memory, and drops those of a settled component: all
// its objects are as wanted, and healthy.
type Keeper interface {
	Reader
	// Wake begins a plan of a component, and ends its rest. The mark differs after any change of
	// its objects.
	Wake(component string) (mark uint64)
	// Rest drops the objects that the plan has read. It returns false, and drops nothing, if an
	// object has changed since the mark, or may soon.
	Rest(component string, mark uint64, ids []differ.ID, health health.Rules) bool
	// AtRest reports whether no object has changed since Rest, in content or in health.
	AtRest(component string) bool
}

// settledPlan returns the plan of a component that was found settled and healthy, and of which nothing
// has changed since; nil: that is not so, or not known.
func (c *Cluster) settledPlan(ctx context.Context, w Desired) *Prepared {
	inputs, last, known := c.records.Settled(w.Component)
	if !known || w.Absent || !c.keeper.AtRest(w.Component) {
		return nil // an absent component is never settled
	}
	p := &Prepared{want: w, Applied: last.Version, fromSettledCache: true}
	states, versions := statesOf(nil, w.Target)
	var err error
	// An error shows in the full plan.
	if p.mappings, err = c.mappings(ctx, states, versions); err != nil {
		return nil
	}
	if p.policy, err = c.policy(ctx, w); err != nil {
		return nil
	}
	if p.schemas, err = c.schemas(ctx, versions); err != nil {
		return nil
	}
	if c.fingerprint(p, states, versions) != inputs {
		return nil
	}
	for i := range states {
		p.Health = append(p.Health, health.Result{ID: states[i].ID, Health: v1alpha1.HealthHealthy})
	}
	return p
}

// wasHealthy reports whether this process found a delivery settled and healthy.
func (c *Cluster) wasHealthy(component string, d records.Delivered) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.healthy[component]
	return ok && h.Value() == d
}

// unsettle ends the rest of a component, so that its record is read again.
func (c *Cluster) unsettle(component string) (mark uint64) {
	if c.keeper == nil {
		return 0
	}
	c.records.Unsettle(component)
	return c.keeper.Wake(component)
}

// storeSettled drops the input of a settled plan, and keeps its fingerprint.
func (c *Cluster) storeSettled(p *Prepared, mark uint64, versions map[differ.ID]schema.GroupVersionKind) {
	if c.keeper == nil || !p.isIdle() {
		return
	}
	ids := make([]differ.ID, 0, len(p.states))
	for i := range p.states {
		ids = append(ids, p.states[i].ID)
	}
	states, _ := statesOf(nil, p.want.Target)
	inputs := c.fingerprint(p, states, versions)
	component := p.want.Component
	if !c.keeper.Rest(component, mark, ids, p.want.Health) {
		return
	}
	if !c.records.Summarize(p.record, inputs) {
		return // another session wrote the record meanwhile
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.healthy[component] = unique.Make(p.record.Delivered())
	delete(c.settled, component)
	for _, id := range ids {
		delete(c.answers, id)
		delete(c.judgedCustomResources, id)
	}
}

// isIdle reports whether a plan has nothing to do, to wait for or to show.
func (p *Prepared) isIdle() bool {
	if p.want.Absent || p.record.ResourceVersion == "" || !p.Settled() || len(p.Health) != len(p.want.Target.Objects) {
		return false
	}
	for i := range p.Plan.Changes {
		if !p.Plan.Changes[i].Quiet() {
			return false
		}
	}
	for i := range p.Health {
		if p.Health[i].Health != v1alpha1.HealthHealthy || p.Health[i].Message != "" {
			return false
		}
	}
	return true
}

// fingerprint hashes everything that a plan is made from, except the record and the live objects.
func (c *Cluster) fingerprint(p *Prepared, states []differ.State, versions map[differ.ID]schema.GroupVersionKind) fingerprint.Sum {
	w := &p.want
	h := fingerprint.New(w.Target.Hash, w.Version, w.Tree, w.Namespace, w.ServiceAccount, p.policy.Hash(), fmt.Sprint(len(states)))
	if w.Pin != nil {
		h.Add(fmt.Sprint(w.Pin.Number, w.Pin.At.UTC(), w.Pin.TargetHash, w.Pin.Against, w.Pin.By, w.Pin.Because))
	}
	w.Health.AddTo(h)
	for i := range states {
		id := states[i].ID
		resource := ""
		if m := p.mappings[id]; m != nil {
			resource = m.Resource.String()
		}
		h.Add(resource, p.schemas.Hash(versions[id]), fmt.Sprint(p.policy.Scaled[id]))
	}
	return h.Sum()
}
