package v1beta1

// LabelDeleteProtection on a Namespace, CustomResourceDefinition, Deployment, StatefulSet,
// ReplicaSet, CloneSet, Service or Ingress protects it from deletion.
const LabelDeleteProtection = "policy.kruise.io/delete-protection"

// The values of [LabelDeleteProtection].
const (
	DeleteProtectionAlways = "Always"
	// DeleteProtectionCascading refuses a deletion while it would delete more: replicas, pods and
	// bound claims of a namespace, objects of a kind.
	DeleteProtectionCascading = "Cascading"
)
