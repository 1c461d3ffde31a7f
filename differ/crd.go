package differ

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	openapierrors "k8s.io/kube-openapi/pkg/validation/errors"
)

// CRDJudge finds the custom resources that a change of their CRD would break: those that the new
// schema refuses or prunes, though the old schema did not. It does the same as an API server:
// pruning, defaulting, validation, uniqueness in lists, and CEL rules except on transitions.
//
// It gets the objects page by page, and keeps none. It is not safe for concurrent use.
type CRDJudge struct {
	kind    schema.GroupKind
	same    bool // objects are the same in every version
	trials  []*schemaTrial
	looked  map[string]int // objects by version
	found   CustomResources
	refused map[string]bool // objects that were found already, by name
	wanted  map[string]map[string]any
	left    int64 // of judgeEffort
}

// schemaTrial is one version's schema before and after the change.
type schemaTrial struct {
	version  string // in which objects are read
	old, new *versionSchema
}

// CustomResources is the result for the custom resources of a CRD under a new schema.
type CustomResources struct {
	Resource string // plural name
	Looked   int    // objects that were judged
	// Partly means that there are more objects, which were not judged.
	Partly bool
	// Refused counts the objects that the new schema refuses or prunes. First are the first of
	// these objects.
	Refused int
	First   []RefusedResource
	// losesOnly means that every refused object only loses fields.
	losesOnly bool
}

// RefusedResource is an object that does not satisfy a new schema.
type RefusedResource struct {
	Namespace, Name string
	// Version of the API in which the object was read.
	Version string
	// Problems are paths, each with its problem; never a value.
	Problems []string
}

const (
	maxRefused  = 3   // objects that are named
	maxProblems = 2   // of each object
	problemSize = 200 // bytes of each problem

	// judgeEffort bounds the cost of schema rules for all objects of a CRD, in units of CEL's cost.
	// It is ten times what an API server allows for one object: some seconds.
	judgeEffort = 10 * celconfig.RuntimeCELCostBudget
	// compileEffort bounds the work of compiling the rules of one version. A unit is about a
	// microsecond. The largest public CRDs need a fiftieth of this.
	compileEffort = 5_000_000
	// ruleEffort is the work for one rule, and for a place in the schema that has rules.
	ruleEffort = 500
)

// NewCRDJudge compares the schemas of a live CRD and its target. The error says which of the two
// can't be read.
func NewCRDJudge(live, target map[string]any) (*CRDJudge, error) {
	before, err := decodeCRD(live)
	if err != nil {
		return nil, fmt.Errorf("as it is: %w", err)
	}
	after, err := decodeCRD(target)
	if err != nil {
		return nil, fmt.Errorf("as it is wanted: %w", err)
	}
	j := &CRDJudge{
		kind:   schema.GroupKind{Group: before.Spec.Group, Kind: before.Spec.Names.Kind},
		same:   unconverted(before) && unconverted(after),
		looked: map[string]int{}, refused: map[string]bool{}, wanted: map[string]map[string]any{},
		found: CustomResources{Resource: before.Spec.Names.Plural, losesOnly: true}, left: judgeEffort,
	}
	add := func(from, to *apiextensionsv1.CustomResourceDefinitionVersion) error {
		wanted, err := newVersionSchema(after, to)
		if err != nil {
			return fmt.Errorf("as it is wanted: %w", err)
		}
		current, err := newVersionSchema(before, from)
		if err != nil {
			current = &versionSchema{} // an old schema that is not structural: it allowed anything
		}
		if !current.same(wanted) {
			j.trials = append(j.trials, &schemaTrial{version: from.Name, old: current, new: wanted})
		}
		return nil
	}
	for i := range before.Spec.Versions {
		from := &before.Spec.Versions[i]
		to := versionOf(after, func(v *apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == from.Name && v.Served })
		if !from.Served || to == nil {
			continue // another rule is about versions that are no longer served
		}
		if err := add(from, to); err != nil {
			return nil, err
		}
	}
	// Without conversion, objects that are stored in another version are pruned to its schema.
	stored := func(v *apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage }
	from, to := versionOf(before, stored), versionOf(after, stored)
	if from != nil && to != nil && from.Name != to.Name && from.Served && j.same {
		if err := add(from, to); err != nil {
			return nil, err
		}
	}
	return j, nil
}

func versionOf(crd *apiextensionsv1.CustomResourceDefinition, is func(*apiextensionsv1.CustomResourceDefinitionVersion) bool) *apiextensionsv1.CustomResourceDefinitionVersion {
	if i := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return is(&v) }); i >= 0 {
		return &crd.Spec.Versions[i]
	}
	return nil
}

// unconverted reports whether a custom resource is the same in every version, except for its
// apiVersion.
func unconverted(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Spec.Conversion == nil || crd.Spec.Conversion.Strategy == apiextensionsv1.NoneConverter
}

// Versions returns the versions in which objects must be judged. It is empty if no schema changes
// in a way that could affect objects.
func (j *CRDJudge) Versions() []string {
	var out []string
	for _, t := range j.trials {
		if !slices.Contains(out, t.version) {
			out = append(out, t.version)
		}
	}
	return out
}

// Resource returns the resource of the objects in a version.
func (j *CRDJudge) Resource(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: j.kind.Group, Version: version, Resource: j.found.Resource}
}

// Takes reports whether an object is of the CRD's kind.
func (j *CRDJudge) Takes(id ID) bool { return id.Group == j.kind.Group && id.Kind == j.kind.Kind }

// Expect adds an object that git also wants. A problem that its target will solve does not count.
func (j *CRDJudge) Expect(wanted map[string]any) { j.wanted[instanceName(wanted)] = wanted }

// Look judges objects as the API server returns them in a version. They are not modified. The error
// names an object that can't be judged, or is the end of the context. It wraps [ErrTooMuch] if the
// rules of the schemas cost too much.
func (j *CRDJudge) Look(ctx context.Context, version string, objects ...map[string]any) error {
	for _, o := range objects {
		if err := checkObject("live object", o); err != nil {
			return fmt.Errorf("%s: %w", instanceName(o), err)
		}
		j.looked[version]++
		j.found.Looked = max(j.found.Looked, j.looked[version])
		for _, t := range j.trials {
			if t.version != version || j.refused[instanceName(o)] {
				continue
			}
			problems, err := t.problems(ctx, o, j.wanted[instanceName(o)], &j.left)
			if err != nil {
				return fmt.Errorf("%s: %w", instanceName(o), err)
			}
			j.note(o, version, problems)
		}
	}
	return nil
}

// LookAtAll judges objects in their own versions. Without conversion between versions, each object
// is judged in all versions, as an API server returns it.
func (j *CRDJudge) LookAtAll(ctx context.Context, objects ...map[string]any) error {
	for _, version := range j.Versions() {
		for _, o := range objects {
			if o["apiVersion"] != j.kind.Group+"/"+version && !j.same {
				continue
			}
			if err := j.Look(ctx, version, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// More records that there are objects that are not judged.
func (j *CRDJudge) More() { j.found.Partly = true }

// Instances returns the results so far.
func (j *CRDJudge) Instances() *CustomResources {
	out := j.found
	out.First = slices.Clone(out.First)
	return &out
}

func instanceName(o map[string]any) string {
	return strings.TrimPrefix(fmt.Sprintf("%s/%s", stringOf(nested(o, "metadata", "namespace")), stringOf(nested(o, "metadata", "name"))), "/")
}

func stringOf(v any) string {
	s, _ := v.(string)
	return s
}

func (j *CRDJudge) note(o map[string]any, version string, problems []problem) {
	if len(problems) == 0 {
		return
	}
	j.refused[instanceName(o)] = true
	j.found.Refused++
	j.found.losesOnly = j.found.losesOnly && !slices.ContainsFunc(problems, func(p problem) bool { return !p.loss })
	if len(j.found.First) == maxRefused {
		return
	}
	r := RefusedResource{Namespace: stringOf(nested(o, "metadata", "namespace")), Name: stringOf(nested(o, "metadata", "name")), Version: version}
	for _, p := range problems[:min(len(problems), maxProblems)] {
		r.Problems = append(r.Problems, p.String())
	}
	if more := len(problems) - maxProblems; more > 0 {
		r.Problems = append(r.Problems, fmt.Sprintf("and %d more", more))
	}
	j.found.First = append(j.found.First, r)
}

// String returns the result in words: "3 of 120 widgets no longer satisfy the schema: …".
func (i *CustomResources) String() string {
	whole := fmt.Sprintf("%d %s", i.Looked, i.Resource)
	if i.Partly {
		whole = "the first " + whole
	}
	if i.Refused == 0 {
		return whole + " satisfy the new schema" + i.others()
	}
	verb := "no longer satisfy the schema"
	switch {
	case i.losesOnly && i.Refused == 1:
		verb = "loses fields by the schema"
	case i.losesOnly:
		verb = "lose fields by the schema"
	case i.Refused == 1:
		verb = "no longer satisfies the schema"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %s %s: ", i.Refused, whole, verb)
	for n, r := range i.First {
		if n > 0 {
			b.WriteString("; ")
		}
		b.WriteString(strings.TrimPrefix(r.Namespace+"/"+r.Name, "/") + ": " + strings.Join(r.Problems, ", "))
	}
	if more := i.Refused - len(i.First); more > 0 {
		fmt.Fprintf(&b, "; and %d more", more)
	}
	return b.String() + i.others()
}

func (i *CustomResources) others() string {
	if i.Partly {
		return "; there are more, which were not checked"
	}
	return ""
}

// problem is one way in which an object does not satisfy a schema.
type problem struct {
	path, what string // " is required"
	loss       bool   // the field would be dropped
	absent     bool   // the field is missing
	listed     bool   // the value is not in the list of allowed values
}

func (p problem) String() string {
	s := p.path + p.what
	if len(s) > problemSize {
		return strings.ToValidUTF8(s[:problemSize], "") + "…"
	}
	return s
}

func newProblem(path, what string) problem {
	return problem{path: "." + strings.TrimPrefix(path, "."), what: " " + what}
}

// problems returns the problems of an object that the new schema causes, and the old schema did
// not. If git also wants the object, only problems that its target still has count.
func (t *schemaTrial) problems(ctx context.Context, o, wanted map[string]any, left *int64) ([]problem, error) {
	found, err := t.new.judge(ctx, o, left)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	before, err := t.old.judge(ctx, o, left)
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(p problem) bool { return slices.Contains(before, p) })
	if wanted == nil || wanted["apiVersion"] != o["apiVersion"] {
		return found, nil
	}
	after, err := t.new.judge(ctx, wanted, left)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(p problem) bool { return !slices.Contains(after, p) }), nil
}

// versionSchema describes what an API server does to the objects of one version. The zero
// versionSchema allows anything.
type versionSchema struct {
	schema    *structural.Structural // nil: none
	props     *apiextensions.JSONSchemaProps
	prunes    bool
	ownStatus bool // there is a status subresource
	stock     bool // of a built-in kind, whose lists are checked elsewhere

	prepared bool // compiled for the first object
	values   validation.SchemaValidator
	rules    *cel.Validator // nil: none
}

func newVersionSchema(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) (*versionSchema, error) {
	s, err := structuralOf(v)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return &versionSchema{}, nil
	}
	values, err := propsOf(v)
	if err != nil {
		return nil, err
	}
	visitor := structural.Visitor{
		Structural: func(s *structural.Structural) bool {
			s.Title, s.Description, s.ExternalDocs, s.Example.Object = "", "", nil, nil
			s.XValidations = stateRules(s.XValidations)
			return true
		},
		NestedValueValidation: func(s *structural.NestedValueValidation) bool {
			s.XValidations = stateRules(s.XValidations)
			return true
		},
	}
	visitor.Visit(s)
	return &versionSchema{
		schema: s, props: values, prunes: !crd.Spec.PreserveUnknownFields,
		ownStatus: v.Subresources != nil && v.Subresources.Status != nil,
	}, nil
}

// stateRules returns the rules on an object as it is, without the rules on its changes. Message
// expressions are removed, because a message may quote values.
func stateRules(rules apiextensionsv1.ValidationRules) apiextensionsv1.ValidationRules {
	var out apiextensionsv1.ValidationRules
	for _, r := range rules {
		if r.OptionalOldSelf != nil && *r.OptionalOldSelf {
			continue
		}
		r.MessageExpression = ""
		out = append(out, r)
	}
	return out
}

// same reports whether two schemas treat every object in the same way.
func (v *versionSchema) same(w *versionSchema) bool {
	return v.prunes == w.prunes && reflect.DeepEqual(v.schema, w.schema)
}

// prepare compiles the schema on first use, because this takes time.
func (v *versionSchema) prepare() error {
	if v.prepared {
		return nil
	}
	if _, work := compileWork(v.schema); work > compileEffort {
		return fmt.Errorf("%w: the schema has more rules (x-kubernetes-validations) than can be compiled in some seconds; "+
			"a danger rule %s that allows the change lets it pass unjudged", ErrTooMuch, ruleCRDSchema)
	}
	if err := v.prepareValues(); err != nil {
		return err
	}
	v.rules = cel.NewValidator(v.schema, true, celconfig.PerCallLimit)
	v.prepared = true
	return nil
}

// prepareValues compiles the validator of values, without the rules.
func (v *versionSchema) prepareValues() error {
	var err error
	if v.values, _, err = validation.NewSchemaValidator(v.props); err != nil {
		return fmt.Errorf("compile the schema: %w", err)
	}
	return nil
}

// compileWork returns the work of compiling the rules of a schema, and the number of its places.
// For each place with rules, CEL gets declarations of everything below it. Alternatives such as
// allOf have no rules in a structural schema.
func compileWork(s *structural.Structural) (places, work int) {
	places = 1
	add := func(below *structural.Structural) {
		p, w := compileWork(below)
		places, work = places+p, work+w
	}
	for name := range s.Properties {
		below := s.Properties[name]
		add(&below)
	}
	if s.Items != nil {
		add(s.Items)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Structural != nil {
		add(s.AdditionalProperties.Structural)
	}
	if len(s.XValidations) > 0 {
		work += ruleEffort + places
	}
	for _, r := range s.XValidations {
		work += ruleEffort + len(r.Rule)
	}
	return places, work
}

// judge returns the problems of an object, as an API server finds them at a write. It subtracts the
// cost of rules from left. The object is not modified.
func (v *versionSchema) judge(ctx context.Context, o map[string]any, left *int64) ([]problem, error) {
	if v.schema == nil {
		return nil, nil
	}
	if err := v.prepare(); err != nil {
		return nil, err
	}
	o = runtime.DeepCopyJSON(o)
	found := v.prune(o)
	defaulting.PruneNonNullableNullsWithoutDefaults(o, v.schema)
	defaulting.Default(o, v.schema)
	invalid := v.invalid(o)
	if len(invalid) == 0 && v.rules != nil {
		budget := min(celconfig.RuntimeCELCostBudget, *left)
		broken, rest := v.rules.Validate(ctx, nil, v.schema, o, nil, budget)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if *left -= budget - max(0, rest); *left <= 0 {
			return nil, fmt.Errorf("%w: the rules of the schema (x-kubernetes-validations) take more than %d units of CEL's cost; "+
				"a danger rule %s that allows the change lets it pass unjudged", ErrTooMuch, judgeEffort, ruleCRDSchema)
		}
		invalid = v.broken(broken)
	}
	slices.SortFunc(invalid, func(a, b problem) int { return strings.Compare(a.String(), b.String()) })
	return append(invalid, found...), nil
}

// prune removes fields that the schema does not know. It ignores fields of a separate status: their
// controller writes them again.
func (v *versionSchema) prune(o map[string]any) []problem {
	if !v.prunes {
		return nil
	}
	var out []problem
	for _, path := range pruning.PruneWithOptions(o, v.schema, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		if v.ownStatus && (path == "status" || strings.HasPrefix(path, "status.")) {
			continue
		}
		p := newProblem(path, "would be dropped")
		p.loss = true
		out = append(out, p)
	}
	return out
}

func (v *versionSchema) invalid(o map[string]any) []problem {
	var out []problem
	for _, err := range v.values.Validate(o).Errors {
		out = append(out, describe(err))
	}
	if v.stock {
		return out
	}
	for _, err := range listtype.ValidateListSetsAndMaps(nil, v.schema, o) {
		what := "is not unique in its list"
		if err.Type != field.ErrorTypeDuplicate {
			what = "is no item of its list"
		}
		out = append(out, newProblem(err.Field, what))
	}
	return out
}

// broken returns the problems that CEL rules find. Only text from the schema is quoted, because an
// evaluation error may quote a value.
func (v *versionSchema) broken(errs field.ErrorList) []problem {
	static := map[string]bool{}
	visitor := structural.Visitor{
		Structural:            func(s *structural.Structural) bool { return addMessages(static, s.XValidations) },
		NestedValueValidation: func(s *structural.NestedValueValidation) bool { return addMessages(static, s.XValidations) },
	}
	if len(errs) > 0 {
		visitor.Visit(v.schema)
	}
	var out []problem
	for _, err := range errs {
		p := newProblem(strings.TrimPrefix(err.Field, "<nil>"), "has a value for which a rule of the schema can't be evaluated")
		if static[err.Detail] {
			p.what = ": " + err.Detail
		}
		out = append(out, p)
	}
	return out
}

func addMessages(to map[string]bool, rules apiextensionsv1.ValidationRules) bool {
	for _, r := range rules {
		message := strings.TrimSpace(r.Message)
		if message == "" {
			message = "failed rule: " + strings.TrimSpace(r.Rule)
		}
		to[message] = true
	}
	return false
}

// few returns the first values of a list as text: a schema may have thousands of values.
func few(values []any) string {
	const few = 20
	if len(values) <= few {
		return fmt.Sprint(values)
	}
	return fmt.Sprintf("%v and %d more", values[:few], len(values)-few)
}

// describe returns the problem of a validation error, without the value.
func describe(err error) problem {
	var v *openapierrors.Validation
	if !errors.As(err, &v) {
		return newProblem("", "fits none, or too many, of the schema's alternatives")
	}
	switch v.Code() {
	case openapierrors.InvalidTypeCode:
		// The text after the type may be the value.
		_, wanted, _ := strings.Cut(v.Error(), "must be of type ")
		wanted, _, _ = strings.Cut(wanted, ":")
		return newProblem(v.Name, "must be of type "+cmp.Or(strings.ReplaceAll(wanted, ",", " or "), "another"))
	case openapierrors.EnumFailCode:
		p := newProblem(v.Name, "is none of "+few(v.Values))
		p.listed = true
		return p
	case openapierrors.RequiredFailCode, openapierrors.TooLongFailCode, openapierrors.TooShortFailCode, openapierrors.PatternFailCode,
		openapierrors.MultipleOfFailCode, openapierrors.MaxFailCode, openapierrors.MinFailCode, openapierrors.UniqueFailCode,
		openapierrors.MaxItemsFailCode, openapierrors.MinItemsFailCode, openapierrors.TooFewPropertiesCode, openapierrors.TooManyPropertiesCode:
		// These errors quote only the schema.
		p := newProblem(v.Name, strings.TrimPrefix(v.Error(), v.Name+" in "+v.In+" "))
		p.absent = v.Code() == openapierrors.RequiredFailCode
		return p
	}
	return newProblem(v.Name, "does not satisfy the schema")
}
