package differ

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v4/typed"
)

// What the external tests need to see of the inside.

type Pattern = pattern

var ParsePattern = parsePattern

func (p pattern) Matches(path fieldpath.Path) bool { return p.matches(path) }

var MaskValue = maskValue

var IsMasked = isMasked

const MaxDepth = maxDepth

func (s Schemas) TypeOf(gvk schema.GroupVersionKind) typed.ParseableType { return s.typeOf(gvk) }

// BuiltIn returns the names, reasons and paths of the built-in rules.
func BuiltIn() (Rules, error) { return builtIn(newEnvironment()) }

// Compiles says what is wrong with a rule's condition.
func (r rule) Compiles() error {
	if r.condition == nil {
		return nil
	}
	_, err := r.condition.compile()
	return err
}
