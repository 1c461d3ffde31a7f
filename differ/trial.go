package differ

import (
	"context"
	"fmt"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Outcome is what became of a rule at a change that its path names.
type Outcome string

// The values of [Outcome].
const (
	OutcomeFires      Outcome = "fires"
	OutcomeCondition  Outcome = "condition is false"
	OutcomeOtherEvent Outcome = "other event"
)

// Trial is one rule asked about one change. On a create, a rule that fires and
// does not deny stops nothing.
type Trial struct {
	ID ID `json:"object"`
	// Path of the field; empty where the object as a whole is meant.
	Path    string         `json:"path,omitempty"`
	Event   v1alpha1.Event `json:"event"`
	Rule    string         `json:"rule"`
	Outcome Outcome        `json:"outcome"`
}

// Try returns which rules fire on the changes that [Compare] finds, and which
// come close: those whose object and path match, up to the one that fires. They
// are in the order of the objects, of their fields, and of the rules. Errors are those of
// [Compare].
func Try(ctx context.Context, schemas Schemas, states []State, policy Policy) ([]Trial, error) {
	states = slices.Clone(states)
	slices.SortFunc(states, func(a, b State) int { return CompareIDs(a.ID, b.ID) })
	policy = policy.Among(states)
	var out []Trial
	effort := newEffort(ctx, compareEffort)
	for _, s := range states {
		if err := effort.spend(checkEvery); err != nil {
			return nil, fmt.Errorf("%s: %w", s.ID, err)
		}
		c := newComparison(schemas, s, policy, effort)
		c.tracing = true
		if err := c.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.ID, err)
		}
		out = append(out, c.trials...)
	}
	return out, nil
}

// tried notes a trial, if anybody wants to know.
func (c *comparison) tried(r *rule, event v1alpha1.Event, w *row, outcome Outcome) {
	if !c.tracing {
		return
	}
	t := Trial{ID: c.state.ID, Event: event, Rule: r.Name, Outcome: outcome}
	if w != nil {
		t.Path = w.path.String()
	}
	c.trials = append(c.trials, t)
}
