package differ

import (
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v4/typed"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ/catalogue"
	"github.com/keelson-io/keelson/differ/expr"
)

// Internals that the external tests need.

type Pattern = pattern

var ParsePattern = parsePattern

func (p pattern) Matches(path fieldpath.Path) bool { return p.matches(path) }

// MaskValue masks a value of one key of one Secret.
func MaskValue(v any, key []byte) any {
	return MaskAt(ID{Kind: "Secret", Name: "s"}, v, key, "data", "a")
}

// MaskAt masks a value at a place.
func MaskAt(id ID, v any, key []byte, path ...string) any { return maskFor(id, key).value(v, path...) }

var IsMasked = isMasked

const (
	MaxDepth = maxDepth
	MaxBytes = maxBytes
)

func (s Schemas) TypeOf(gvk schema.GroupVersionKind) typed.ParseableType {
	t, _ := s.typeOf(gvk)
	return t
}

// BuiltIn returns the names, reasons and paths of the built-in rules.
func BuiltIn() ([]rule, error) { return builtIn(expr.NewEnvironment(), v1alpha1.ProfileBaseline) }

// Compiles returns the error of a rule's condition, if it has one.
func (r rule) Compiles() error {
	if r.condition == nil {
		return nil
	}
	return r.condition.Compile()
}

// FixedPaths returns the paths in the table of immutable fields.
func FixedPaths() []string {
	var out []string
	for _, f := range catalogue.ImmutableFields() {
		out = append(out, f.Paths...)
	}
	return out
}

// Kinds returns the kinds that the schema knows.
func (s *Schema) Kinds() []schema.GroupVersionKind { return slices.Collect(maps.Keys(s.types)) }

var Equal = equal

func Key(v any) string { return string(appendKey(nil, v)) }

// Carve cuts an object along a set of fields.
func Carve(t typed.ParseableType, v map[string]any, set *fieldpath.Set) (part, rest any) {
	c := carver{t.Schema}
	return c.extract(t.TypeRef, v, set), c.without(t.TypeRef, v, set)
}

func Graft(t typed.ParseableType, v, part any) any { return carver{t.Schema}.graft(t.TypeRef, v, part) }

func Lacking(t typed.ParseableType, v any, set *fieldpath.Set) *fieldpath.Set {
	return carver{t.Schema}.lacking(t.TypeRef, v, set)
}

func Has(t typed.ParseableType, v any, p fieldpath.Path) bool {
	return carver{t.Schema}.lacking(t.TypeRef, v, fieldpath.NewSet(p)).Empty()
}

// CompareWithin is Compare with another bound on the cost of danger rules.
func CompareWithin(ctx context.Context, units uint64, schemas Schemas, states []State, policy Policy) (Plan, error) {
	return compare(newEffort(ctx, units), schemas, states, policy)
}

// Within bounds the cost of the rules of schemas.
func (j *CRDJudge) Within(units int64) { j.left = units }

// ControllerFields returns a row for each entry of the list of fields that controllers own: managers,
// subresource, kinds, paths and prefixes of annotations.
func ControllerFields() [][]string {
	var rows [][]string
	for _, c := range knownControllerFields() {
		kinds := slices.Clone(c.match.Kinds)
		for i := range kinds {
			if group := c.match.Group; group != coreGroup {
				kinds[i] += "." + group
			}
		}
		rows = append(rows, []string{
			strings.Join(c.managers, ", "), c.subresource, strings.Join(kinds, ", "), strings.Join(c.paths, ", "), strings.Join(c.annotations, ", "),
		})
	}
	return rows
}
