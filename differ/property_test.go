//go:build !race

package differ_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v4/merge"
	"sigs.k8s.io/structured-merge-diff/v4/typed"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// server is one object in a model of an API server. Server-side apply is that of
// structured-merge-diff, as in an API server; defaulting is only that of [defaulted], and there is
// no admission.
type server struct {
	shape    shape
	typ      typed.ParseableType
	live     object
	managers fieldpath.ManagedFields // by "MANAGER OPERATION SUBRESOURCE"
}

const modelVersion = fieldpath.APIVersion("v1")

func newServer(t fataler, s shape) *server {
	return &server{
		shape: s, typ: schemas(t).TypeOf(schema.FromAPIVersionAndKind(s.apiVersion, s.kind)),
		managers: fieldpath.ManagedFields{},
	}
}

type noConversion struct{}

func (noConversion) Convert(v *typed.TypedValue, _ fieldpath.APIVersion) (*typed.TypedValue, error) {
	return v, nil
}
func (noConversion) IsMissingVersionError(error) bool { return false }

func updater() *merge.Updater {
	identity := fieldpath.NewSet(
		fieldpath.MakePathOrDie("apiVersion"), fieldpath.MakePathOrDie("kind"), fieldpath.MakePathOrDie("metadata"),
		fieldpath.MakePathOrDie("metadata", "name"), fieldpath.MakePathOrDie("metadata", "namespace"),
	)
	b := merge.UpdaterBuilder{
		Converter: noConversion{}, ReturnInputOnNoop: true,
		IgnoreFilter: fieldpath.NewExcludeFilterSetMap(map[fieldpath.APIVersion]*fieldpath.Set{modelVersion: identity}),
	}
	return b.BuildUpdater()
}

func (s *server) typed(t *rapid.T, o object) *typed.TypedValue {
	v, err := s.typ.FromUnstructured(runtime.DeepCopyJSON(o))
	if err != nil {
		t.Fatalf("%v:\n%v", err, o)
	}
	return v
}

func (s *server) write(t *rapid.T, manager string, o object, do func(*merge.Updater, *typed.TypedValue, *typed.TypedValue) (*typed.TypedValue, fieldpath.ManagedFields, error)) {
	o = dropNulls(runtime.DeepCopyJSON(o)).(object)
	live := s.typed(t, object{})
	if s.live != nil {
		live = s.typed(t, s.live)
	}
	result, managers, err := do(updater(), live, s.typed(t, o))
	if err != nil {
		t.Fatalf("write by %s: %v", manager, err)
	}
	s.live = defaulted(result.AsValue().Unstructured()).(object)
	s.managers = managers
}

func (s *server) apply(t *rapid.T, manager string, o object) {
	s.write(t, manager, o, func(u *merge.Updater, live, o *typed.TypedValue) (*typed.TypedValue, fieldpath.ManagedFields, error) {
		return u.Apply(live, o, modelVersion, s.managers, manager+" Apply -", true)
	})
}

func (s *server) update(t *rapid.T, manager string, o object) {
	s.write(t, manager, o, func(u *merge.Updater, live, o *typed.TypedValue) (*typed.TypedValue, fieldpath.ManagedFields, error) {
		return u.Update(live, o, modelVersion, s.managers, manager)
	})
}

// migrate does the same as client-go's csaupgrade.
func (s *server) migrate(managers []string) {
	const ours = v1alpha1.FieldManager + " Apply -"
	for _, m := range managers {
		theirs := s.managers[m+" Update -"]
		fields := theirs.Set()
		if own := s.managers[ours]; own != nil {
			fields = fields.Union(own.Set())
		}
		delete(s.managers, m+" Update -")
		s.managers[ours] = fieldpath.NewVersionedSet(fields, modelVersion, true)
	}
}

// defaulted sets the protocol of ports, which is a part of their key, and writes quantities in the
// canonical form.
func defaulted(v any) any {
	switch v := v.(type) {
	case object:
		_, port := v["port"]
		_, containerPort := v["containerPort"]
		if (port || containerPort) && v["protocol"] == nil {
			v["protocol"] = "TCP"
		}
		for name, child := range v {
			if q, err := resource.ParseQuantity(fmt.Sprint(child)); err == nil && (name == "cpu" || name == "memory") {
				v[name] = q.String()
			}
			defaulted(child)
		}
	case list:
		for _, item := range v {
			defaulted(item)
		}
	}
	return v
}

// read returns the object, with managedFields or without.
func (s *server) read(t *rapid.T, owners bool) object {
	if s.live == nil {
		return nil
	}
	out := runtime.DeepCopyJSON(s.live)
	if !owners {
		return out
	}
	fields := list{}
	for _, name := range slices.Sorted(maps.Keys(s.managers)) {
		parts := strings.Fields(name)
		data, err := s.managers[name].Set().ToJSON()
		if err != nil {
			t.Fatal(err)
		}
		var f object
		if err := json.Unmarshal(data, &f); err != nil {
			t.Fatal(err)
		}
		entry := object{"manager": parts[0], "operation": parts[1], "apiVersion": s.shape.apiVersion, "fieldsType": "FieldsV1", "fieldsV1": f}
		if parts[2] != "-" {
			entry["subresource"] = parts[2]
		}
		fields = append(fields, entry)
	}
	out["metadata"].(object)["managedFields"] = fields
	return out
}

// keelson is the state of one installation for the object.
type keelson struct {
	policy   differ.Policy
	recorded object
	normal   []string
}

// plan compares as the applier does: first without owners, and again if the plan needs them.
func (k *keelson) plan(t *rapid.T, s *server, target object) differ.Change {
	state := differ.State{
		ID: objectName(s.shape), Recorded: k.recorded, Normal: k.normal,
		Live: s.read(t, false), Target: &renderer.Object{Content: target},
	}
	c := k.compare(t, state)
	if c.Unread.Owners {
		if c.Op != differ.OpNone {
			t.Fatalf("op %s though the owners are unread", c.Op)
		}
		state.Live, state.OwnersRead = s.read(t, true), true
		c = k.compare(t, state)
	}
	if c.Unread.Owners {
		t.Fatal("asks for owners that were read")
	}
	if c.State == differ.StateHeld && rapid.Bool().Draw(t, "approved") {
		before := k.policy.Approved
		defer func() { k.policy.Approved = before }()
		k.policy.Approved = map[string][]string{state.ID.String(): {c.Hash}}
		if c = k.compare(t, state); c.Unread.Owners {
			state.Live, state.OwnersRead = s.read(t, true), true
			c = k.compare(t, state)
		}
		if c.Unread.Owners || c.State == differ.StateHeld && c.Hash != "" {
			t.Fatalf("approved, and %s, owners unread: %v\n%s", c.State, c.Unread.Owners, show(c))
		}
	}
	return c
}

// compare also checks properties of every plan.
func (k *keelson) compare(t *rapid.T, state differ.State) differ.Change {
	before := fingerprint(t, state)
	plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{state}, k.policy)
	if err != nil {
		t.Fatal(err)
	}
	again, err := differ.Compare(t.Context(), schemas(t), []differ.State{state}, k.policy)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fingerprint(t, plan.Changes), fingerprint(t, again.Changes)); diff != "" {
		t.Fatalf("the same arguments gave another plan: %s", diff)
	}
	if diff := cmp.Diff(before, fingerprint(t, state)); diff != "" {
		t.Fatalf("an argument was modified: %s", diff)
	}
	hidesSecrets(t, plan)
	for _, f := range plan.Changes[0].Fields {
		if _, err := differ.ParsePattern(f.Path); err != nil {
			t.Fatalf("a shown path is no pattern: %v", err)
		}
	}
	return plan.Changes[0]
}

func hidesSecrets(t *rapid.T, plan differ.Plan) {
	var b bytes.Buffer
	if err := plan.WriteText(&b, true); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	b.Write(data)
	for i := range plan.Changes {
		fmt.Fprintln(&b, plan.Changes[i].Record, plan.Changes[i].Fields)
	}
	for i := range 4 {
		plain := fmt.Sprintf("canary-%d", i)
		if s := b.String(); strings.Contains(s, plain) || strings.Contains(s, base64.StdEncoding.EncodeToString([]byte(plain))) {
			t.Fatalf("a Secret's value is shown:\n%s", s)
		}
	}
}

// carryOut applies a change as the applier does.
func (k *keelson) carryOut(t *rapid.T, s *server, c differ.Change) {
	switch c.Op {
	case differ.OpCreate, differ.OpUpdate, differ.OpReplace:
		if c.Op == differ.OpReplace {
			s.live, s.managers = nil, fieldpath.ManagedFields{}
		}
		s.migrate(c.Migrate)
		if c.HandOver != nil {
			s.apply(t, differ.HandOverManager(), c.HandOver)
		}
		if c.First != nil {
			s.apply(t, v1alpha1.FieldManager, c.First)
		}
		s.apply(t, v1alpha1.FieldManager, c.Patch)
		k.recorded = c.Record
		k.normal = differ.Residue(schemas(t), c, s.read(t, false), k.policy)
	case differ.OpNone:
		if c.RecordStale {
			k.recorded = c.Record
		}
	case differ.OpDelete, differ.OpForget:
		t.Fatalf("op %s of a wanted object", c.Op)
	}
}

// otherClient writes to the object as a person or a controller would.
func otherClient(t *rapid.T, s *server) {
	writer := oneOf(t, "writer", "kubectl-edit Update -", "my-operator Update -", "kube-controller-manager Update scale",
		"keda-operator Update -", "theirs Apply -", "before-first-apply Update -",
		"kubectl-client-side-apply Update -", "helm Update -").(string)
	o := s.shape.drawObject(t)
	if strings.Contains(writer, " Apply ") {
		s.apply(t, strings.Fields(writer)[0], o)
		return
	}
	// An update keeps some of what is there.
	for name, v := range s.live {
		if name != "spec" && name != "data" || rapid.Bool().Draw(t, "keep "+name) {
			o[name] = v
		}
	}
	s.update(t, writer, o)
}

func drawPolicy(t *rapid.T, s shape) differ.Policy {
	var own []v1alpha1.DangerRule
	for _, r := range []v1alpha1.DangerRule{
		{Name: "keep-scalar", Path: ".spec.scalar", Effect: v1alpha1.EffectKeep},
		{Name: "keep-keyed", Path: ".spec.keyed", Effect: v1alpha1.EffectKeep},
		{Name: "keep-data", Path: ".data", Effect: v1alpha1.EffectKeep},
		{Name: "keep-pod", Path: ".spec.template.spec.*[*].*", Effect: v1alpha1.EffectKeep},
		{Name: "keep-schemaless", Path: ".spec.a", Effect: v1alpha1.EffectKeep},
		{Name: "hold-map", Path: ".spec.map.k", Effect: v1alpha1.EffectHold},
		{Name: "deny-atomic", Path: ".spec.atomicList[*].k", Effect: v1alpha1.EffectDeny},
		{Name: "service-selector", Path: ".spec.selector", Effect: v1alpha1.EffectAllow},
	} {
		if rapid.IntRange(0, 3).Draw(t, r.Name) == 0 {
			r.Because = "it is drawn"
			own = append(own, r)
		}
	}
	rules, err := differ.NewRules(differ.Scopes{Component: own})
	if err != nil {
		t.Fatal(err)
	}
	return differ.Policy{
		Component: component, Rules: rules, Adopt: rapid.Bool().Draw(t, "adopt"), MaskKey: []byte("key"),
		Drift:  rapid.SampledFrom([]v1alpha1.Drift{"", v1alpha1.DriftRestore, v1alpha1.DriftReport}).Draw(t, "drift"),
		Scaled: map[differ.ID]differ.Scaling{objectName(s): differ.Scaling(rapid.IntRange(0, 7).Draw(t, "scaled"))},
	}
}

// init sets the number of checks of each property to 300; -rapid.checks sets another number.
func init() {
	if err := flag.Set("rapid.checks", "300"); err != nil {
		panic(err)
	}
}

// TestApplied: after any history, the plan after an applied plan is settled. A plan changes only
// the fields that it lists, and a field that is kept keeps its value.
func TestApplied(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SampledFrom(shapes).Draw(t, "shape")
		s := newServer(t, shape)
		k := &keelson{policy: drawPolicy(t, shape)}
		if rapid.Bool().Draw(t, "exists") {
			first := oneOf(t, "first", "my-operator Update -", "kubectl-client-side-apply Update -", "helm Update -").(string)
			s.update(t, first, shape.drawObject(t))
		}
		var target object
		for range rapid.IntRange(1, 3).Draw(t, "rounds") {
			if target == nil || rapid.Bool().Draw(t, "git changes") {
				target = shape.drawObject(t)
			}
			round(t, k, s, target)
			for range rapid.IntRange(0, 2).Draw(t, "writes") {
				if s.live != nil {
					otherClient(t, s)
				}
			}
			switch rapid.IntRange(0, 9).Draw(t, "lost") {
			case 0:
				k.recorded, k.normal = nil, nil
			case 1:
				k.policy = drawPolicy(t, shape)
			}
		}
		round(t, k, s, target)
	})
}

func round(t *rapid.T, k *keelson, s *server, target object) {
	c := k.plan(t, s, target)
	before, managers := s.live, maps.Clone(s.managers)
	k.carryOut(t, s, c)
	if c.Op == differ.OpUpdate {
		changesWhatItSays(t, s, before, managers, c)
	}
	if c.State == differ.StateHeld || c.State == differ.StateDenied {
		if c.Op != differ.OpNone || c.RecordStale {
			t.Fatalf("%s, and op %s", c.State, c.Op)
		}
		return
	}
	next := k.plan(t, s, target)
	if p := (differ.Plan{Changes: []differ.Change{next}}); !p.Settled() {
		t.Fatalf("not settled after it was applied: op %s, state %s, record stale %v, fields\n%s\nafter fields\n%s\nlive %s\nmanagers %v",
			next.Op, next.State, next.RecordStale, show(next), show(c), fingerprint(t, s.live), s.managers)
	}
}

// changesWhatItSays compares the object before and after. Each difference must be among the plan's
// fields, and not among those that the plan keeps or releases.
func changesWhatItSays(t *rapid.T, s *server, before object, managers fieldpath.ManagedFields, c differ.Change) {
	diff, err := s.typed(t, withoutEmpty(before).(object)).Compare(s.typed(t, withoutEmpty(s.live).(object)))
	if err != nil {
		t.Fatal(err)
	}
	diff.Added.Union(diff.Modified).Union(diff.Removed).Iterate(func(p fieldpath.Path) {
		path := strings.TrimSuffix(p.String(), ".protocol") // set together with its item
		for _, f := range c.Fields {
			related := below(path, f.Path) || below(f.Path, path)
			switch f.Action { //nolint:exhaustive // the others say nothing about the object
			case differ.ActionSet, differ.ActionRestore, differ.ActionRemove:
				if related || f.Action == differ.ActionRemove && goesWithItem(path, f.Path) {
					return
				}
			case differ.ActionKeep, differ.ActionRelease:
				if below(path, f.Path) {
					t.Fatalf("%s %s, and it changed\n%s\nbefore %s\nafter  %s\npatch %s\nhand over %s\nmanagers before %v",
						f.Action, path, show(c), fingerprint(t, before), fingerprint(t, s.live), fingerprint(t, c.Patch), fingerprint(t, c.HandOver), managers)
				}
			}
		}
		t.Fatalf("%s changed, and the plan does not say so:\n%s\nbefore %s\nafter  %s\nmanagers before %v", path, show(c), fingerprint(t, before), fingerprint(t, s.live), managers)
	})
}

// withoutEmpty omits empty maps and lists. Server-side apply removes those without an owner when it
// removes a field beside them.
func withoutEmpty(v any) any {
	switch v := v.(type) {
	case object:
		out := object{}
		for k, child := range v {
			if child = withoutEmpty(child); child != nil {
				out[k] = child
			}
		}
		if len(out) > 0 {
			return out
		}
		return nil
	case list:
		var out list
		for _, item := range v {
			if item = withoutEmpty(item); item != nil {
				out = append(out, item)
			}
		}
		if len(out) > 0 {
			return out
		}
		return nil
	}
	return v
}

// goesWithItem reports whether a path lies in the item of a removed field. A field without an owner
// is removed with its item.
func goesWithItem(path, removed string) bool {
	item := removed[:strings.LastIndex(removed, ".")]
	return strings.HasSuffix(item, "]") && below(path, item)
}

// below reports whether a path is equal to the other path or lies below it.
func below(path, other string) bool {
	rest, ok := strings.CutPrefix(path, other)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// TestSame: any object whose record, target and live object are equal is settled.
func TestSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SampledFrom(shapes).Draw(t, "shape")
		o := shape.drawObject(t)
		k := &keelson{policy: drawPolicy(t, shape), recorded: o}
		c := k.compare(t, differ.State{ID: objectName(shape), Recorded: o, Target: &renderer.Object{Content: o}, Live: o})
		if p := (differ.Plan{Changes: []differ.Change{c}}); shape.kind != "Secret" && !p.Settled() || len(c.Fields) > 0 {
			t.Fatalf("%s, %s:\n%s", c.Op, c.State, show(c))
		}
	})
}

// TestAsApplied: a comparison with [differ.AsApplied] decides like a comparison with the object of
// a server to which only Keelson applied the target.
func TestAsApplied(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SampledFrom(shapes).Draw(t, "shape")
		first, second := shape.drawObject(t), shape.drawObject(t)
		second["metadata"] = runtime.DeepCopyJSONValue(first["metadata"]) // the model has no owners of metadata
		s, k := newServer(t, shape), &keelson{policy: drawPolicy(t, shape)}
		created := k.compare(t, differ.State{ID: objectName(shape), Target: &renderer.Object{Content: first}})
		if created.Op != differ.OpCreate {
			t.Skip("a rule forbids it")
		}
		k.carryOut(t, s, created)
		before := fingerprint(t, first)
		applied, err := differ.AsApplied(schemas(t), first)
		if err != nil {
			t.Fatal(err)
		}
		if got := fingerprint(t, first); got != before {
			t.Fatalf("the argument was modified: %s, %s", before, got)
		}
		state := differ.State{ID: objectName(shape), Recorded: k.recorded, Target: &renderer.Object{Content: second}, OwnersRead: true}
		state.Live = s.read(t, true)
		want := k.compare(t, state)
		state.Live = applied
		got := k.compare(t, state)
		if diff := cmp.Diff(decisions(want), decisions(got)); diff != "" {
			t.Fatalf("decisions (-server +as applied):\n%s\nserver %s\nas applied %s", diff, fingerprint(t, s.read(t, true)), fingerprint(t, applied))
		}
	})
}

// TestDeletionApprovesNothing: for an object that was deleted in the cluster, the same changes wait
// as for an object that is as it was applied, with the same hash. None of these changes is sent.
func TestDeletionApprovesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SampledFrom(shapes).Draw(t, "shape")
		first, second := shape.drawObject(t), shape.drawObject(t)
		second["metadata"] = runtime.DeepCopyJSONValue(first["metadata"])
		s, k := newServer(t, shape), &keelson{policy: drawPolicy(t, shape)}
		created := k.compare(t, differ.State{ID: objectName(shape), Target: &renderer.Object{Content: first}})
		if created.Op != differ.OpCreate {
			return // a rule forbids the creation
		}
		k.carryOut(t, s, created)
		live, err := differ.AsApplied(schemas(t), first)
		if err != nil {
			t.Fatal(err)
		}
		state := differ.State{ID: objectName(shape), Recorded: k.recorded, Target: &renderer.Object{Content: second}}
		state.Live = live
		there := k.compare(t, state)
		state.Live = nil
		gone := k.compare(t, state)
		if there.State != differ.StateHeld && there.State != differ.StateDenied {
			// The API server may have set a field that no record has. Then it is not known whether
			// git adds or changes the field.
			added := slices.ContainsFunc(gone.Fields, func(f differ.Field) bool { return stops(f) && f.Recorded == nil })
			if gone.Op != differ.OpCreate && gone.State != differ.StateDenied && !added {
				t.Fatalf("nothing is held, and it comes to %s, %s:\n%s", gone.Op, gone.State, show(gone))
			}
			return
		}
		if gone.State == differ.StateDenied && gone.Op == differ.OpNone {
			return // a rule forbids to create the target
		}
		if gone.State != there.State || gone.Hash != there.Hash {
			t.Fatalf("it is %s (%s) under hash %s, and was %s (%s) under hash %s:\n%s\nbefore\n%s", gone.State, gone.Because, gone.Hash, there.State, there.Because, there.Hash, show(gone), show(there))
		}
		if diff := cmp.Diff(fingerprint(t, k.recorded), fingerprint(t, gone.Patch)); gone.Op == differ.OpCreate && diff != "" {
			t.Fatalf("it is created otherwise than it was recorded (-recorded +sent):\n%s", diff)
		}
	})
}

// stops reports whether a field is held or denied.
func stops(f differ.Field) bool {
	return f.Action == differ.ActionHold || f.Action == differ.ActionDeny
}

// decisions returns the decisions of a change, without the values.
func decisions(c differ.Change) []string {
	out := []string{c.Op.String(), c.State.String(), c.Rule}
	for _, f := range c.Fields {
		out = append(out, fmt.Sprint(f.Path, " ", f.Action, " ", f.Rule))
	}
	return out
}

// TestOrderOfStates: the order of the states does not matter.
func TestOrderOfStates(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var states []differ.State
		for i, s := range shapes {
			id := objectName(s)
			id.Name = fmt.Sprint(i % 3)
			state := differ.State{ID: id}
			if rapid.Bool().Draw(t, "recorded") {
				state.Recorded = s.drawObject(t)
			}
			if rapid.Bool().Draw(t, "target") {
				state.Target = &renderer.Object{Content: s.drawObject(t)}
			}
			if rapid.Bool().Draw(t, "live") {
				state.Live, state.OwnersRead = s.drawObject(t), rapid.Bool().Draw(t, "read")
			}
			states = append(states, state)
		}
		policy := drawPolicy(t, shapes[0])
		want, err := differ.Compare(t.Context(), schemas(t), states, policy)
		if err != nil {
			t.Fatal(err)
		}
		got, err := differ.Compare(t.Context(), schemas(t), rapid.Permutation(states).Draw(t, "order"), policy)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fingerprint(t, want.Changes), fingerprint(t, got.Changes)); diff != "" {
			t.Error(diff)
		}
	})
}
