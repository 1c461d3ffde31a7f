package differ

import (
	"context"
	"fmt"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Outcome is the result of a rule at a change that matches the rule's path.
type Outcome string

// The values of [Outcome].
const (
	OutcomeFires      Outcome = "fires"
	OutcomeCondition  Outcome = "condition is false"
	OutcomeOtherEvent Outcome = "other event"
)

// Trial is one rule's result for one change. On a create, only a rule that denies stops anything.
type Trial struct {
	ID ID `json:"object"`
	// Path of the field; empty for the object as a whole.
	Path    string         `json:"path,omitempty"`
	Event   v1alpha1.Event `json:"event"`
	Rule    string         `json:"rule"`
	Outcome Outcome        `json:"outcome"`
}

// Try returns the rules that fire on the changes that [Compare] finds. It also returns rules that
// match the object and path but do not fire, up to the rule that decides. The order is that of the
// objects, their fields, and the rules. Errors are those of [Compare], but for [*DuplicateError]:
// Try does not check for duplicates.
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
		c.rules.tracing = true
		if err := c.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.ID, err)
		}
		out = append(out, c.rules.trials...)
	}
	return out, nil
}
