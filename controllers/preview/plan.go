package preview

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// reading is the hash of the text of a difference: plans with the same text have the same hash. The
// texts of a large change would take more memory than all other data.
type reading [sha256.Size]byte

// plan is the result of one comparison.
type plan struct {
	once     sync.Once
	plan     differ.Plan
	reads    reading
	restarts Restarts
	err      error
}

func (p *plan) compute(ctx context.Context, all *schemas, before, after *renderer.Target, policy differ.Policy) {
	states := states(before, after)
	known, err := all.forStates(states)
	if err != nil {
		p.err = err
		return
	}
	same := differ.Inputs{Target: "on both sides"} // nothing is compared
	for i := range states {
		s := &states[i]
		if s.Recorded == nil {
			continue
		}
		if reflect.DeepEqual(s.Recorded, target(s)) {
			s.Live, s.Inputs, s.Settled = s.Recorded, same, same
			continue
		}
		if s.Live, p.err = differ.AsApplied(known, s.Recorded); p.err != nil {
			p.err = fmt.Errorf("%s: %w", s.ID, p.err)
			return
		}
		s.OwnersRead = true
	}
	for i := range states {
		if states[i].Live == nil {
			continue
		}
		if id, scaling := observe.ScaleTarget(&unstructured.Unstructured{Object: states[i].Live}); scaling != 0 {
			policy.Scaled[id] |= scaling
		}
	}
	if p.err = differ.JudgeAmong(ctx, states); p.err != nil {
		return
	}
	if p.plan, p.err = differ.Compare(ctx, known, states, policy); p.err != nil {
		return
	}
	p.plan.Against = "base" // no cluster is asked
	for i := range p.plan.Changes {
		if c := &p.plan.Changes[i]; states[i].Target == nil || c.ID.Group == "" && c.ID.Kind == "Secret" {
			// The hash of a deletion includes the object's UID, and the hash of a Secret's data
			// uses a key of the cluster. Both are unknown here, so a hash from here would approve
			// nothing.
			c.Hash = ""
		}
	}
	text := sha256.New()
	p.err = p.plan.WriteText(text, false)
	p.reads, p.restarts = reading(text.Sum(nil)), restarts(p.plan)
}

// states joins the objects of two targets by their identity.
func states(before, after *renderer.Target) []differ.State {
	byID := map[differ.ID]*differ.State{}
	var order []differ.ID
	for _, side := range []struct {
		objects []*renderer.Object
		set     func(*differ.State, *renderer.Object)
	}{
		{before.Objects, func(s *differ.State, o *renderer.Object) { s.Recorded = o.Content }},
		{after.Objects, func(s *differ.State, o *renderer.Object) { s.Target = o }},
	} {
		for _, o := range side.objects {
			id, _ := differ.Identify(o.Content)
			if byID[id] == nil {
				byID[id] = &differ.State{ID: id}
				order = append(order, id)
			}
			side.set(byID[id], o)
		}
	}
	out := make([]differ.State, len(order))
	for i, id := range order {
		out[i] = *byID[id]
	}
	return out
}

// schemas reads each built-in schema once.
type schemas struct {
	mu    sync.Mutex
	known differ.Schemas
	asked map[schema.GroupVersion]bool
}

// forStates returns the schemas of the objects' kinds, with the schemas that CRDs among them define.
func (s *schemas) forStates(states []differ.State) (differ.Schemas, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known, s.asked = differ.Schemas{}, map[schema.GroupVersion]bool{}
	}
	var more []schema.GroupVersion
	for i := range states {
		for _, o := range []map[string]any{states[i].Recorded, target(&states[i])} {
			gv := (&unstructured.Unstructured{Object: o}).GroupVersionKind().GroupVersion()
			if o != nil && !s.asked[gv] {
				s.asked[gv] = true
				more = append(more, gv)
			}
		}
	}
	found, err := differ.BuiltInSchemas(more...)
	if err != nil {
		return nil, err
	}
	maps.Copy(s.known, found)
	out := maps.Clone(s.known)
	return out, out.AddDefined(states)
}

func target(s *differ.State) map[string]any {
	if s.Target == nil {
		return nil
	}
	return s.Target.Content
}

// restarts counts the pods that a plan replaces on one cluster.
func restarts(p differ.Plan) Restarts {
	var out Restarts
	for i := range p.Changes {
		c := &p.Changes[i]
		if c.ID.Group != "apps" || !newPods(c) {
			continue
		}
		spec, _ := c.Record["spec"].(map[string]any)
		switch c.ID.Kind {
		case "DaemonSet":
			out.DaemonSets++
		case "Deployment", "StatefulSet":
			out.Pods += replicas(spec)
		}
	}
	return out
}

// newPods reports whether a change of a workload replaces its existing pods.
func newPods(c *differ.Change) bool {
	if c.Op == differ.OpReplace {
		return true
	}
	strategy, _, _ := unstructured.NestedString(c.Record, "spec", "updateStrategy", "type")
	if c.Op != differ.OpUpdate || strategy == "OnDelete" {
		return false
	}
	return slices.ContainsFunc(c.Fields, func(f differ.Field) bool {
		moves := f.Action == differ.ActionSet || f.Action == differ.ActionRemove || f.Action == differ.ActionRestore
		return moves && strings.HasPrefix(f.Path, ".spec.template")
	})
}

func replicas(spec map[string]any) int {
	switch n := spec["replicas"].(type) {
	case int64:
		return int(n)
	case float64:
		return int(n)
	}
	return 1 // the API server's default
}
