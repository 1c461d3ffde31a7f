package renderer

import (
	"slices"
	"testing"

	"github.com/Masterminds/sprig/v3"
)

// TestVariableFunctions compares the list of nondeterministic functions with Sprig, the library
// behind Helm's functions. A function that is missing in the list fails the test.
func TestVariableFunctions(t *testing.T) {
	t.Parallel()
	all, repeatable := sprig.TxtFuncMap(), sprig.HermeticTxtFuncMap()
	named := variableFunctions()
	for _, name := range named {
		if _, ok := all[name]; !ok {
			t.Errorf("there is no function %s any more", name)
		}
	}
	for name := range all {
		if _, ok := repeatable[name]; ok || slices.Contains(named, name) {
			continue
		}
		switch name {
		case "env", "expandenv": // Helm has taken them away
		case "getHostByName": // answers "" without DNS
		default:
			t.Errorf("%s is not repeatable, and not named", name)
		}
	}
}
