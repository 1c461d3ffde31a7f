package differ_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// manyFields returns a thing of which git changes many fields, and a policy whose rules hold none
// of them.
func manyFields(t *testing.T, fields, rules int, when string) (differ.State, differ.Policy) {
	t.Helper()
	old, wanted := object{}, object{}
	for i := range fields {
		old[fmt.Sprint("k", i)], wanted[fmt.Sprint("k", i)] = "a", "b"
	}
	var danger []v1alpha1.DangerRule
	for i := range rules {
		danger = append(danger, v1alpha1.DangerRule{Name: fmt.Sprint("r", i), Path: ".spec", When: when, Effect: v1alpha1.EffectHold, Because: "of the test"})
	}
	compiled, err := differ.NewRules(differ.Scopes{Component: danger})
	if err != nil {
		t.Fatal(err)
	}
	return differ.State{
		ID:       differ.ID{Group: "unknown.test", Kind: "Thing", Namespace: "prod", Name: "o"},
		Recorded: thing(old), Target: &renderer.Object{Content: thing(wanted)}, Live: thing(old), OwnersRead: true,
	}, differ.Policy{Component: component, Rules: compiled}
}

// The total cost of danger rules is bounded, whether one condition costs much or many cost little.
// A condition that reads no value of a field costs once. Beyond the bound there is no plan: fields that no rule has judged may be dangerous.
func TestEffortIsBounded(t *testing.T) {
	t.Parallel()
	const units = 100_000
	cases := map[string]struct {
		fields, rules int
		when          string
		enough        bool
	}{
		"Few":             {fields: 10, rules: 10, when: "false", enough: true},
		"CostlyCondition": {fields: 20, rules: 10, when: "[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, a + b < 99)) && new == 'never'"},
		"OneAnswer":       {fields: 20, rules: 10, when: "[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, a + b < 99)) && false", enough: true},
		"ManyConditions":  {fields: 100, rules: 20, when: "new == 'never'"},
		"ManyRules":       {fields: 1000, rules: 200, when: "new == 'never'"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state, policy := manyFields(t, c.fields, c.rules, c.when)
			plan, err := differ.CompareWithin(t.Context(), units, schemas(t), []differ.State{state}, policy)
			switch {
			case c.enough && err != nil:
				t.Fatal(err)
			case c.enough:
				return
			case !errors.Is(err, differ.ErrTooMuch) || !strings.Contains(err.Error(), "Thing.unknown.test prod/o") || len(plan.Changes) > 0:
				t.Errorf("the error is %v, and the plan has %d changes", err, len(plan.Changes))
			}
		})
	}
}

// If the rules can't be evaluated for a deletion, there is no plan.
func TestEffortOfDeletion(t *testing.T) {
	t.Parallel()
	state, policy := manyFields(t, 1, 0, "")
	state.Target, state.Live["metadata"].(map[string]any)["labels"] = nil, map[string]any{v1alpha1.LabelComponent: component}
	policy.AnyComponent = true
	plan, err := differ.CompareWithin(t.Context(), 70, schemas(t), []differ.State{state}, policy)
	if !errors.Is(err, differ.ErrTooMuch) {
		t.Errorf("the error is %v, and the plan %+v", err, plan.Changes)
	}
}

// ending is a context that ends after a number of calls of Err.
type ending struct {
	context.Context
	asks int
}

func (e *ending) Err() error {
	if e.asks--; e.asks < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// The end of the context ends a comparison in the middle of an object, and there is no plan.
func TestCompareEnds(t *testing.T) {
	t.Parallel()
	state, policy := manyFields(t, 1000, 20, "false")
	for _, asks := range []int{0, 1, 100} {
		ctx := &ending{Context: context.WithoutCancel(t.Context()), asks: asks}
		plan, err := differ.Compare(ctx, schemas(t), []differ.State{state}, policy)
		if !errors.Is(err, context.DeadlineExceeded) || len(plan.Changes) > 0 {
			t.Errorf("ended after %d questions: the error is %v, and the plan has %d changes", asks, err, len(plan.Changes))
		}
		ctx.asks = asks
		if _, err := differ.Try(ctx, schemas(t), []differ.State{state}, policy); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended after %d questions: the error of Try is %v", asks, err)
		}
	}
}

// The rules of a CRD's schema are bounded, too: how many are compiled, and their cost for all
// objects together. A CRD that can't be judged in time does not count as harmless.
func TestCRDJudgeIsBounded(t *testing.T) {
	t.Parallel()
	const open = `{"type": "object", "x-kubernetes-preserve-unknown-fields": true}`
	rules := func(n int, rule string) string {
		return `[` + strings.TrimSuffix(strings.Repeat(`{"rule": "`+rule+`"},`, n), ",") + `]`
	}
	deep := func(levels int) string {
		return strings.Repeat(`{"type": "object", "x-kubernetes-validations": [{"rule": "true"}], "properties": {"a": `, levels) +
			`{"type": "string"}` + strings.Repeat(`}}`, levels)
	}
	widget := widgetOf("a", map[string]any{"items": []any{int64(1), int64(2), int64(3), int64(4), int64(5), int64(6), int64(7), int64(8)}})
	cases := map[string]struct {
		why, schema string
		units       int64 // 0: the usual bound
		enough      bool
	}{
		"Few": {
			why: "Public CRDs have a few hundred rules.", enough: true,
			schema: `{"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-validations": ` + rules(50, "true") + `}`,
		},
		"ManyRules": {
			why:    "Each takes up to a millisecond to compile, which nothing interrupts.",
			schema: `{"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-validations": ` + rules(10_000, "true") + `}`,
		},
		"ManyPlaces": {
			why:    "Each place with a rule declares all that lies below it.",
			schema: deep(4000),
		},
		"CostlyRules": {
			why: "Each object may take a second of an API server, and there may be thousands.", units: 1000,
			schema: `{"type": "object", "properties": {"items": {"type": "array", "maxItems": 10, "items": {"type": "integer"}}},
				"x-kubernetes-validations": [{"rule": "self.items.all(a, self.items.all(b, a + b > 0))"}]}`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := judgeOf(t, open, c.schema)
			if c.units > 0 {
				j.Within(c.units)
			}
			var err error
			for i := 0; i < 20 && err == nil; i++ {
				err = j.Look(t.Context(), "v1", widget)
			}
			if errors.Is(err, differ.ErrTooMuch) == c.enough {
				t.Errorf("%s The error is %v", c.why, err)
			}
		})
	}
}
