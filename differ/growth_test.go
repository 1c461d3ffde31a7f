package differ_test

import (
	"strings"
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// A condition of a few hundred bytes must not make a list that exceeds the memory. Neither the cost
// limit nor the end of a context ends a call that reads such a list.
func TestConditionsDoNotGrow(t *testing.T) {
	t.Parallel()
	nested := func(open, end string, times int) string {
		return strings.Repeat(open, times) + "true" + strings.Repeat(end, times)
	}
	cases := map[string]struct {
		why, when string
		refused   bool
	}{
		"Doubling":     {"Each map doubles its list.", "[[1]]" + strings.Repeat(".map(a, a + a)", 60) + ".exists(a, 0 in a)", true},
		"Pairs":        {"Each map makes a pair of what it has.", "[1]" + strings.Repeat(".map(a, [a, a])", 60) + ".exists(a, a == a)", true},
		"Maps":         {"A map holds two of it.", "[{}]" + strings.Repeat(".map(a, {'x': a, 'y': a})", 40) + ".exists(a, a == a)", true},
		"Exists":       {"A variable of exists is one, too.", "[1].exists(a, " + nested("[[a, a]].exists(a, ", ")", 40) + ")", true},
		"Choice":       {"The other branch counts.", "[[1]]" + strings.Repeat(".map(a, old == null ? a + a : [])", 40) + ".exists(a, 0 in a)", true},
		"Optional":     {"What optional gives back counts.", "[[1]]" + strings.Repeat(".map(a, optional.of(a + a).orValue([]))", 40) + ".exists(a, 0 in a)", true},
		"Sums":         {"Numbers that are added up are no list.", "[0, 1, 2, 3].all(a, [0, 1, 2, 3].all(b, a + b >= 0))", false},
		"ListsBehind":  {"Two lists behind each other are read.", "(old.a + old.b).exists(c, c == 1)", false},
		"Filter":       {"A filter takes from its list.", "old.filter(a, a > 1).filter(a, a > 2).map(a, a * 2).exists(a, a > 9)", false},
		"FilterFilter": {"However often.", "old" + strings.Repeat(".filter(a, a > 1)", 60) + ".size() > 0", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(c.when) > 2048 {
				t.Fatalf("the condition has %d bytes, and would be refused for that", len(c.when))
			}
			_, err := differ.NewRules(differ.Scopes{Fleet: []v1alpha1.DangerRule{{
				Name: "mine", Path: ".data", Effect: v1alpha1.EffectWarn, Because: "it grows", When: c.when,
			}}})
			refused := err != nil && strings.Contains(err.Error(), "into lists of lists")
			if refused != c.refused || !refused && err != nil {
				t.Errorf("%s error: %v, want it refused: %t", c.why, err, c.refused)
			}
		})
	}
}
