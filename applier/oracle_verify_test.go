package applier_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// settled checks that a plan writes nothing, and with the plan that was carried
// out what that did.
func (b *batch) settled(p *applier.Prepared, after string, done map[differ.ID]*differ.Change) {
	byID := map[differ.ID]*differ.Change{}
	for i := range p.Plan.Changes {
		byID[p.Plan.Changes[i].ID] = &p.Plan.Changes[i]
	}
	for _, s := range b.objects {
		c := byID[s.id]
		switch {
		case s.skipped:
		case c != nil && c.Live == nil && c.State == differ.StateDenied: // a create, too, can be forbidden
		case c == nil || c.Live == nil:
			b.fail(s, "it is gone after %s", after)
		case c.Op != differ.OpNone || c.RecordStale || c.Unread.Owners || c.State == differ.StateChanged:
			b.fail(s, "the plan after %s is not empty: %s\nlive: %s", after, showChange(c), text(c.Live))
		case done[s.id] != nil:
			b.verify(s, done[s.id], c.Live)
		}
	}
}

// verify compares the object before and after with what the plan said.
func (b *batch) verify(s *subject, c *differ.Change, after object) {
	if c.State == differ.StateHeld || c.State == differ.StateDenied || c.Op == differ.OpNone {
		if version(c.Live) != version(after) {
			b.fail(s, "it is %s, op %s, and it moved", c.State, c.Op)
		}
		return
	}
	if c.State == differ.StateSynced && c.Op != differ.OpNone {
		b.fail(s, "synced, and op %s", c.Op)
	}
	for _, f := range c.Fields {
		b.verifyField(s, &f, c.Live, after, c.Op == differ.OpReplace)
	}
	if c.Live != nil && c.Op != differ.OpReplace {
		b.verifyOthers(s, c, after)
	}
}

func version(o object) string { return (&unstructured.Unstructured{Object: o}).GetResourceVersion() }

func (b *batch) verifyField(s *subject, f *differ.Field, before, after object, replaced bool) {
	got, _, ok := lookup(after, f.Path)
	if !ok {
		b.fail(s, "the path %s can't be followed", f.Path)
		return
	}
	switch f.Action {
	case differ.ActionSet, differ.ActionRestore, differ.ActionAdopt:
		want := f.Target
		if s.id.Kind == "Secret" { // its values are masked in the plan
			if _, plain, _ := lookup(s.target, f.Path); !plain {
				return // it is stringData's
			}
			want, _, _ = lookup(s.target, f.Path)
		}
		if f.Action == differ.ActionAdopt && isZero(want) {
			return // of an empty list only its being there is taken
		}
		if !holds(want, got) {
			b.fail(s, "%s of %s: want %s, got %s", f.Action, f.Path, text(want), text(got))
		}
	case differ.ActionKeep:
		if replaced {
			return // it is created as git wants it
		}
		if was, _, _ := lookup(before, f.Path); !reflect.DeepEqual(was, got) && (was != nil || !filledIn(f.Path, after)) {
			b.fail(s, "%s is kept, and went from %s to %s", f.Path, text(was), text(got))
		}
	case differ.ActionHold, differ.ActionDeny:
		b.fail(s, "%s of %s in an object that is written", f.Action, f.Path)
	case differ.ActionRemove, differ.ActionRelease: // for the owners to tell
	}
}

// filledIn reports whether the API server set a field by default: the field is there, and no
// client owns it. A default comes with what stands beside it, as when the type of a strategy is
// restored whose parameters had been removed.
func filledIn(path string, after object) bool {
	if strings.ContainsAny(path, "[\"") {
		return false // it is in a list, or has an unusual name
	}
	for _, e := range (&unstructured.Unstructured{Object: after}).GetManagedFields() {
		owned := fieldsOf(e)
		for _, name := range strings.Split(path, ".")[1:] {
			owned, _ = owned["f:"+name].(object)
		}
		if owned != nil {
			return false
		}
	}
	return true
}

func isZero(v any) bool {
	switch v := v.(type) {
	case object:
		return len(v) == 0
	case list:
		return len(v) == 0
	}
	return v == nil || v == false || v == "" || v == int64(0) || v == 0.0
}

// verifyOthers checks that what only others own, and the target does not name,
// is as it was.
func (b *batch) verifyOthers(s *subject, c *differ.Change, after object) {
	target := stored(s.target)
	own := []object{} // fields that Keelson applied
	var others []metav1.ManagedFieldsEntry
	for _, e := range (&unstructured.Unstructured{Object: c.Live}).GetManagedFields() {
		switch {
		case e.Manager == v1alpha1.FieldManager && e.Operation == metav1.ManagedFieldsOperationApply:
			own = append(own, fieldsOf(e))
		case e.Manager == differ.HandOverManager(), slices.Contains(c.Migrate, e.Manager) && e.Operation == metav1.ManagedFieldsOperationUpdate:
			own = append(own, fieldsOf(e))
		case e.Subresource != "status":
			others = append(others, e)
		}
	}
	for _, e := range others {
		leaves(fieldsOf(e), nil, func(path []string) {
			if slices.ContainsFunc(own, func(o object) bool { return hasField(o, path) }) {
				return
			}
			if isWanted(target, path) {
				return
			}
			was, there := follow(c.Live, path)
			if !there {
				return // a key whose list was made anew, say
			}
			is, still := follow(after, path)
			if still && reflect.DeepEqual(was, is) || goesWithItem(target, own, path, e.Manager) || isDependent(path) {
				return
			}
			b.fail(s, "%s of %s went from %s to %s (there: %v)\nafter: %s", strings.Join(path, " "), e.Manager, text(was), text(is), still, text(after))
		})
	}
}

// isWanted reports whether the target says what stands at a path: names it, or
// wants no map or list where it leads through one.
func isWanted(target object, path []string) bool {
	for i := range path {
		v, named := follow(target, path[:i+1])
		if !named {
			return false
		}
		switch v.(type) {
		case object, list:
		default:
			return true
		}
	}
	return true
}

// stored is a target as the API server keeps it: a Secret's stringData is data.
func stored(target object) object {
	texts, ok := target["stringData"].(object)
	if !ok {
		return target
	}
	target = maps.Clone(target)
	data, _ := target["data"].(object)
	data = maps.Clone(data)
	if data == nil {
		data = object{}
	}
	maps.Copy(data, texts)
	target["data"] = data
	return target
}

// goesWithItem reports whether a field is a person's in a list item that was
// Keelson's and left git: it goes with it. So does that of a controller whose name
// is known, and which writes nothing to such an object: the name is borrowed (055).
func goesWithItem(target object, own []object, path []string, manager string) bool {
	written := []any{"Node", "ServiceAccount", "PersistentVolume", "PersistentVolumeClaim"} // by the controller of this name
	borrowed := manager == "kube-controller-manager" && !slices.Contains(written, target["kind"])
	if !strings.HasPrefix(manager, "kubectl") && !borrowed {
		return false
	}
	for i, p := range path {
		if !strings.HasPrefix(p, "k:") {
			continue
		}
		item := path[:i+1]
		_, wanted := follow(target, item)
		if !wanted && slices.ContainsFunc(own, func(o object) bool { return hasField(o, item) }) {
			return true
		}
	}
	return false
}

// isDependent reports whether the API server itself changes a field with another one. Such fields
// depend on a Service's type or session affinity, are the old name of serviceAccountName, or count
// a DaemonSet's templates. The annotations are one if a client applied them empty, because it then
// owns them as a whole.
func isDependent(path []string) bool {
	switch last := path[len(path)-1]; last {
	case "f:serviceAccount", "f:deprecated.daemonset.template.generation", "f:externalTrafficPolicy", "f:allocateLoadBalancerNodePorts":
		return true
	case "f:annotations":
		return len(path) == 2
	}
	return slices.Contains(path, "f:sessionAffinityConfig")
}

func fieldsOf(e metav1.ManagedFieldsEntry) object {
	var out object
	if e.FieldsV1 == nil {
		return out
	}
	data, err := json.Marshal(e.FieldsV1)
	if err != nil {
		return out
	}
	_ = json.Unmarshal(data, &out)
	return out
}

// leaves visits the paths of a FieldsV1 below which it names nothing.
func leaves(fields object, path []string, visit func([]string)) {
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		child, _ := fields[k].(object)
		switch {
		case k == ".":
		case len(child) == 0:
			visit(append(slices.Clone(path), k))
		default:
			leaves(child, append(slices.Clone(path), k), visit)
		}
	}
}

// hasField reports whether a FieldsV1 names a path, or one above it as a whole.
func hasField(fields object, path []string) bool {
	for i, k := range path {
		child, ok := fields[k].(object)
		if !ok {
			return false
		}
		if len(child) == 0 {
			return true
		}
		if i == len(path)-1 {
			return true
		}
		fields = child
	}
	return false
}

// holds reports whether a wanted value is there: equal scalars, lists of the same
// length, and maps that have at least what is wanted. Go's zero values need not
// be there.
func holds(want, got any) bool {
	if isZero(want) && got == nil {
		return true
	}
	switch want := want.(type) {
	case object:
		g, _ := got.(object)
		for k, v := range want {
			if !holds(v, g[k]) {
				return false
			}
		}
		return g != nil
	case list:
		g, _ := got.(list)
		if len(g) != len(want) {
			return false
		}
		for i, v := range want {
			if !holds(v, g[i]) {
				return false
			}
		}
		return true
	}
	return sameScalar(want, got)
}

// sameScalar compares by value: the API server writes quantities and times its
// own way.
func sameScalar(want, got any) bool {
	if text(want) == text(got) {
		return true
	}
	a, aerr := resource.ParseQuantity(fmt.Sprint(want))
	b, berr := resource.ParseQuantity(fmt.Sprint(got))
	if aerr == nil && berr == nil {
		return a.Cmp(b) == 0
	}
	at, aerr := time.Parse(time.RFC3339Nano, fmt.Sprint(want))
	bt, berr := time.Parse(time.RFC3339Nano, fmt.Sprint(got))
	return aerr == nil && berr == nil && at.Equal(bt)
}
