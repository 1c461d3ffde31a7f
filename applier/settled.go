package applier

import (
	"fmt"
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// settledComponents knows which components are settled: all their objects are as wanted, and
// healthy. A settled component is planned without a request, and only a summary of its record and a
// fingerprint of its inputs stay in memory.
type settledComponents struct {
	keeper  observe.Keeper // nil: objects are not kept, and no component rests
	records *records.Store

	mu sync.Mutex
	// healthy holds, by component, the delivery that was last found settled and healthy.
	healthy map[string]unique.Handle[records.Delivered]
	// inputs are those of the objects that were found settled, by component.
	inputs map[string]map[differ.ID]differ.Inputs
}

func newSettledComponents(reader observe.Reader, store *records.Store) *settledComponents {
	keeper, _ := reader.(observe.Keeper)
	return &settledComponents{
		keeper: keeper, records: store,
		healthy: map[string]unique.Handle[records.Delivered]{}, inputs: map[string]map[differ.ID]differ.Inputs{},
	}
}

// reset forgets the inputs of all objects.
func (s *settledComponents) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.inputs)
}

// resting returns the inputs with which a component was settled, and what was delivered then. It
// returns false if its objects have changed since, or if this is not known.
func (s *settledComponents) resting(component string) (inputs fingerprint.Sum, last records.Delivered, _ bool) {
	inputs, last, known := s.records.Settled(component)
	return inputs, last, known && s.keeper.AtRest(component)
}

// wasHealthy reports whether this process found a delivery settled and healthy.
func (s *settledComponents) wasHealthy(component string, d records.Delivered) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.healthy[component]
	return ok && h.Value() == d
}

// wake ends the rest of a component, so that its record is read again.
func (s *settledComponents) wake(component string) (mark uint64) {
	if s.keeper == nil {
		return 0
	}
	s.records.Unsettle(component)
	return s.keeper.Wake(component)
}

// rest drops the input of a settled plan, and keeps its fingerprint. It returns the objects that
// need no further memory; nil: the component does not rest.
func (s *settledComponents) rest(p *Prepared, mark uint64, versions map[differ.ID]schema.GroupVersionKind) []differ.ID {
	if s.keeper == nil || !p.isIdle() {
		return nil
	}
	ids := make([]differ.ID, 0, len(p.states))
	for i := range p.states {
		ids = append(ids, p.states[i].ID)
	}
	states, _ := statesOf(nil, p.want.Target)
	inputs := p.fingerprint(states, versions)
	component := p.want.Component
	if !s.keeper.Rest(component, mark, ids, p.want.Health) {
		return nil
	}
	if !s.records.Summarize(p.record, inputs) {
		return nil // another session wrote the record meanwhile
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.healthy[component] = unique.Make(p.record.Delivered())
	delete(s.inputs, component)
	return ids
}

// recognise sets for each object the inputs of its comparison, and the inputs with which it was
// settled before.
func (s *settledComponents) recognise(p *Prepared, versions map[differ.ID]schema.GroupVersionKind) {
	if p.record.ResourceVersion == "" {
		return // nothing was ever recorded, so nothing is settled
	}
	s.mu.Lock()
	settled := s.inputs[p.want.Component]
	s.mu.Unlock()
	policy := p.policy.Hash()
	for i := range p.states {
		state := &p.states[i]
		state.Inputs = differ.Inputs{
			Recorded: p.record.ResourceVersion, Target: p.want.Target.Hash, Live: uidOf(state.Live) + "/" + resourceVersionOf(state.Live),
			Policy: policy, Schema: p.schemas.Hash(versions[state.ID]), Scaled: p.policy.Scaled[state.ID],
		}
		state.Settled = settled[state.ID]
	}
}

// remember keeps the inputs of the objects that a plan found settled.
func (s *settledComponents) remember(p *Prepared) {
	settled := make(map[differ.ID]differ.Inputs, len(p.states))
	for i := range p.Plan.Changes {
		if ch := &p.Plan.Changes[i]; ch.Quiet() {
			settled[ch.ID] = p.states[i].Inputs
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inputs[p.want.Component] = settled
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
func (p *Prepared) fingerprint(states []differ.State, versions map[differ.ID]schema.GroupVersionKind) fingerprint.Sum {
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
