package differ

import (
	"slices"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// fixed lists fields that an API server never changes in an existing object: k8s.io/kubernetes,
// pkg/apis/*/validation.
type fixed struct {
	group string
	kinds []string
	paths []string
	// some means that the API server allows some changes, so that only its refusal shows whether a
	// change is possible.
	some bool
}

func fixedFields() []fixed {
	return []fixed{
		{group: "apps", kinds: []string{"Deployment", "DaemonSet", "ReplicaSet"}, paths: []string{".spec.selector"}},
		{group: "apps", kinds: []string{"StatefulSet"}, paths: []string{".spec.selector", ".spec.serviceName", ".spec.volumeClaimTemplates", ".spec.podManagementPolicy"}},
		{group: "batch", kinds: []string{"Job"}, paths: []string{".spec.selector", ".spec.completionMode", ".spec.managedBy"}},
		// The template of a suspended Job may change in parts.
		{group: "batch", kinds: []string{"Job"}, paths: []string{".spec.template", ".spec.completions", ".spec.podFailurePolicy", ".spec.backoffLimitPerIndex"}, some: true},
		{group: coreGroup, kinds: []string{"PersistentVolumeClaim"}, paths: []string{".spec.accessModes", ".spec.storageClassName", ".spec.volumeMode", ".spec.volumeName"}},
		{group: coreGroup, kinds: []string{"PersistentVolume"}, paths: []string{".spec.volumeMode"}},
		{group: coreGroup, kinds: []string{"Secret"}, paths: []string{".type"}},
		{group: coreGroup, kinds: []string{"ConfigMap", "Secret"}, paths: []string{".immutable", ".data", ".binaryData", ".stringData"}, some: true},
		{group: coreGroup, kinds: []string{"Pod"}, paths: []string{".spec"}, some: true},
		{group: "discovery.k8s.io", kinds: []string{"EndpointSlice"}, paths: []string{".addressType"}},
		{group: "networking.k8s.io", kinds: []string{"IngressClass"}, paths: []string{".spec.controller"}},
		{group: "node.k8s.io", kinds: []string{"RuntimeClass"}, paths: []string{".handler"}},
		{group: "rbac.authorization.k8s.io", kinds: []string{"RoleBinding", "ClusterRoleBinding"}, paths: []string{".roleRef"}},
		{group: "scheduling.k8s.io", kinds: []string{"PriorityClass"}, paths: []string{".value", ".preemptionPolicy"}},
		{group: "storage.k8s.io", kinds: []string{"StorageClass"}, paths: []string{".provisioner", ".parameters", ".reclaimPolicy", ".volumeBindingMode"}},
		{group: "storage.k8s.io", kinds: []string{"CSIDriver"}, paths: []string{".spec.attachRequired", ".spec.volumeLifecycleModes"}},
		{group: "storage.k8s.io", kinds: []string{"VolumeAttachment"}, paths: []string{".spec"}},
		{group: "apiextensions.k8s.io", kinds: []string{"CustomResourceDefinition"}, paths: []string{".spec.group", ".spec.scope"}},
		{group: "apps.kruise.io", kinds: []string{"CloneSet"}, paths: []string{".spec.selector"}},
	}
}

// immutable returns the built-in rules on fields that no update can change. Rules with a more
// specific reason precede them in the catalogue.
func immutable() []catalogued {
	var out []catalogued
	for _, f := range fixedFields() {
		if f.some {
			continue
		}
		out = append(out, catalogued{
			name: ruleImmutable, effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			group: f.group, kinds: f.kinds, paths: f.paths,
			because: "it is immutable: the object would have to be deleted and created anew",
		})
	}
	return out
}

const ruleImmutable = "immutable"

// fixedPaths returns the paths of a kind's fixed fields.
func fixedPaths(id ID, some bool) []string {
	var out []string
	for _, f := range fixedFields() {
		match := v1alpha1.ObjectMatch{Group: f.group, Kinds: f.kinds}
		if (some || !f.some) && Matches(match, id) {
			out = append(out, f.paths...)
		}
	}
	return out
}

// immutableFields are the fields of one object that no update can change.
type immutableFields struct{ patterns []pattern } // nil until a row needs them

func (f *immutableFields) has(id ID, path fieldpath.Path) bool {
	if f.patterns == nil {
		f.patterns = []pattern{} // not nil: one lookup serves all rows
		for _, path := range fixedPaths(id, false) {
			if p, err := parsePattern(path); err == nil {
				f.patterns = append(f.patterns, p)
			}
		}
	}
	return slices.ContainsFunc(f.patterns, func(p pattern) bool { return p.matches(path) })
}

// cannotUpdate reports whether no update can bring a row to its target.
func (c *comparison) cannotUpdate(w *row) bool {
	if !w.l.present || c.defaulted(w) {
		return false
	}
	return c.immutable.has(c.state.ID, w.path)
}

// replace plans to delete the object and to create it anew. A rule on its deletion may stop this. A
// field can't wait alone while its object is replaced.
func (c *comparison) replace() {
	c.change.Op, c.change.Patch, c.change.DryRunBody = OpReplace, c.target, c.target
	if !c.waiting.Empty() {
		c.change.stop(StateHeld, ruleImmutable, "it would be deleted and created anew, and one of its fields is held")
		return
	}
	r, found := c.rules.find(v1alpha1.OnDeleteObject, nil)
	for _, f := range c.rules.fired {
		c.change.warn(f, "")
	}
	if !found {
		return
	}
	switch r.effect() {
	case v1alpha1.EffectAllow:
	case v1alpha1.EffectDeny:
		c.change.stop(StateDenied, r.Name, r.because())
	default: // keep and hold
		if !c.change.Approved {
			c.change.stop(StateHeld, r.Name, r.because())
		}
	}
}

// emptied returns the maps and lists that git empties, that Keelson alone owns, and that have no
// fields left.
func (c *comparison) emptied() *fieldpath.Set {
	out := &fieldpath.Set{}
	if len(c.hollow) == 0 || c.removed.Empty() {
		return out
	}
	for _, p := range c.hollow {
		if c.who.oursAlone(p) {
			out.Insert(p)
		}
	}
	carve := carver{c.view.typ.Schema}
	return carve.lacking(c.view.typ.TypeRef, carve.without(c.view.typ.TypeRef, c.live, c.removed), out)
}
