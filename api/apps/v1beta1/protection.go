package v1beta1

// LabelDeleteProtection on a Namespace, CustomResourceDefinition, Deployment,
// StatefulSet, ReplicaSet, CloneSet, Service or Ingress refuses its deletion.
const LabelDeleteProtection = "policy.kruise.io/delete-protection"

// The values of [LabelDeleteProtection].
const (
	DeleteProtectionAlways = "Always"
	// DeleteProtectionCascading refuses for as long as something would go with it:
	// replicas, pods and bound claims of a namespace, objects of a kind.
	DeleteProtectionCascading = "Cascading"
)
