package catalogue

import "github.com/keelson-io/keelson/api/v1alpha1"

// Fields lists fields that an API server never changes in an existing object: k8s.io/kubernetes,
// pkg/apis/*/validation.
type Fields struct {
	Group        string
	Kinds, Paths []string
	// Some means that the API server allows some changes, so that only its refusal shows whether a
	// change is possible.
	Some bool
}

// ImmutableFields returns the fields of each kind that no update changes.
func ImmutableFields() []Fields {
	return []Fields{
		{Group: "apps", Kinds: []string{"Deployment", "DaemonSet", "ReplicaSet"}, Paths: []string{".spec.selector"}},
		{Group: "apps", Kinds: []string{"StatefulSet"}, Paths: []string{".spec.selector", ".spec.serviceName", ".spec.volumeClaimTemplates", ".spec.podManagementPolicy"}},
		{Group: "apps.kruise.io", Kinds: []string{"StatefulSet"}, Paths: []string{".spec.selector", ".spec.serviceName", ".spec.podManagementPolicy"}},
		{Group: "batch", Kinds: []string{"Job"}, Paths: []string{".spec.selector", ".spec.completionMode", ".spec.managedBy"}},
		// The template of a suspended Job may change in parts.
		{Group: "batch", Kinds: []string{"Job"}, Paths: []string{".spec.template", ".spec.completions", ".spec.podFailurePolicy", ".spec.backoffLimitPerIndex"}, Some: true},
		{Group: coreGroup, Kinds: []string{"PersistentVolumeClaim"}, Paths: []string{".spec.accessModes", ".spec.storageClassName", ".spec.volumeMode", ".spec.volumeName"}},
		{Group: coreGroup, Kinds: []string{"PersistentVolume"}, Paths: []string{".spec.volumeMode"}},
		{Group: coreGroup, Kinds: []string{"Secret"}, Paths: []string{".type"}},
		{Group: coreGroup, Kinds: []string{"ConfigMap", "Secret"}, Paths: []string{".immutable", ".data", ".binaryData", ".stringData"}, Some: true},
		{Group: coreGroup, Kinds: []string{"Pod"}, Paths: []string{".spec"}, Some: true},
		{Group: "discovery.k8s.io", Kinds: []string{"EndpointSlice"}, Paths: []string{".addressType"}},
		{Group: "networking.k8s.io", Kinds: []string{"IngressClass"}, Paths: []string{".spec.controller"}},
		{Group: "node.k8s.io", Kinds: []string{"RuntimeClass"}, Paths: []string{".handler"}},
		{Group: "rbac.authorization.k8s.io", Kinds: []string{"RoleBinding", "ClusterRoleBinding"}, Paths: []string{".roleRef"}},
		{Group: "scheduling.k8s.io", Kinds: []string{"PriorityClass"}, Paths: []string{".value", ".preemptionPolicy"}},
		{Group: "storage.k8s.io", Kinds: []string{"StorageClass"}, Paths: []string{".provisioner", ".parameters", ".reclaimPolicy", ".volumeBindingMode"}},
		{Group: "storage.k8s.io", Kinds: []string{"CSIDriver"}, Paths: []string{".spec.attachRequired", ".spec.volumeLifecycleModes"}},
		{Group: "storage.k8s.io", Kinds: []string{"VolumeAttachment"}, Paths: []string{".spec"}},
		{Group: "apiextensions.k8s.io", Kinds: []string{"CustomResourceDefinition"}, Paths: []string{".spec.group", ".spec.scope"}},
		{Group: "apps.kruise.io", Kinds: []string{"CloneSet"}, Paths: []string{".spec.selector"}},
	}
}

// immutable returns the built-in rules on fields that no update can change. Rules with a more
// specific reason precede them in the catalogue.
func immutable() []catalogued {
	var out []catalogued
	for _, f := range ImmutableFields() {
		if f.Some {
			continue
		}
		out = append(out, catalogued{
			name: Immutable, effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			group: f.Group, kinds: f.Kinds, paths: f.Paths,
			because: "it is immutable: the object would have to be deleted and created anew",
		})
	}
	return out
}
