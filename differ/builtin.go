package differ

import (
	"fmt"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ/catalogue"
	"github.com/keelson-io/keelson/differ/expr"
)

// builtIn returns the compiled built-in rules of a profile, one for each path. Rules of the catalogue
// with several paths share their condition.
func builtIn(env expr.Environment, profile v1alpha1.DangerProfile) ([]rule, error) {
	var out []rule
	for _, c := range catalogue.Rules(profile) {
		when, says := expr.NewWhen(env, c.When, expr.BuiltInCost), expr.NewMessage(env, c.MessageExpression)
		for _, path := range c.Paths {
			p, err := parsePattern(path)
			if err != nil {
				return nil, fmt.Errorf("built-in rule %q: %w", c.Name, err)
			}
			r := c.DangerRule
			r.Path = path
			out = append(out, rule{
				DangerRule: r, pattern: p, condition: when, message: says, scaling: scalingOf(c.Autoscaled), judged: c.Name == ruleCRDSchema, sum: sumOf(r),
			})
		}
	}
	return out, nil
}

func scalingOf(a catalogue.Autoscaled) Scaling {
	switch a {
	case catalogue.AutoscaledReplicas:
		return ScalesReplicas
	case catalogue.AutoscaledRequests:
		return ScalesRequests
	case catalogue.AutoscaledLimits:
		return ScalesLimits
	}
	return 0
}

// ownRules returns the rules that deny components any change of Keelson's own state.
func ownRules(env expr.Environment) ([]rule, error) {
	var out []rule
	for _, m := range v1alpha1.OwnObjects() {
		r, err := newRule(env, v1alpha1.DangerRule{
			Name: "keelson-own-objects", Match: m, Effect: v1alpha1.EffectDeny,
			On:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange, v1alpha1.OnRemove, v1alpha1.OnDeleteObject},
			Because: "Keelson stores its own state in this object, and no component may change it",
		})
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}
