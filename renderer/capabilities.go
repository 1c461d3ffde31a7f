package renderer

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// defaultKubeVersion is the Kubernetes version of renders without a cluster.
const defaultKubeVersion = "v1.36.0"

// DefaultCapabilities returns those of a stock Kubernetes v1.36, for renders without a cluster. The
// caller may modify the result.
func DefaultCapabilities() Capabilities {
	caps := Capabilities{KubeVersion: defaultKubeVersion, ClusterScoped: map[schema.GroupKind]bool{}}
	for gv, kinds := range servedKinds() {
		caps.APIVersions = append(caps.APIVersions, gv)
		group, _, named := strings.Cut(gv, "/")
		if !named {
			group = "" // v1
		}
		for k := range strings.FieldsSeq(kinds) {
			kind, clusterScoped := strings.CutSuffix(k, "*")
			caps.APIVersions = append(caps.APIVersions, gv+"/"+kind)
			if clusterScoped {
				caps.ClusterScoped[schema.GroupKind{Group: group, Kind: kind}] = true
			}
		}
	}
	slices.Sort(caps.APIVersions)
	return caps
}

// servedKinds returns the kinds that a v1.36 API server serves by default, also those of
// subresources. A star marks cluster-scoped kinds.
func servedKinds() map[string]string {
	return map[string]string{
		"v1": `Binding ComponentStatus* ConfigMap Endpoints Event LimitRange Namespace* Node* PersistentVolume*
			PersistentVolumeClaim Pod PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount`,
		"admissionregistration.k8s.io/v1": `MutatingAdmissionPolicy* MutatingAdmissionPolicyBinding*
			MutatingWebhookConfiguration* ValidatingAdmissionPolicy* ValidatingAdmissionPolicyBinding*
			ValidatingWebhookConfiguration*`,
		"apiextensions.k8s.io/v1":   `CustomResourceDefinition*`,
		"apiregistration.k8s.io/v1": `APIService*`,
		"apps/v1":                   `ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet`,
		"authentication.k8s.io/v1":  `SelfSubjectReview* TokenRequest TokenReview*`,
		"authorization.k8s.io/v1": `LocalSubjectAccessReview SelfSubjectAccessReview* SelfSubjectRulesReview*
			SubjectAccessReview*`,
		"autoscaling/v1":                  `HorizontalPodAutoscaler Scale`,
		"autoscaling/v2":                  `HorizontalPodAutoscaler`,
		"batch/v1":                        `CronJob Job`,
		"certificates.k8s.io/v1":          `CertificateSigningRequest*`,
		"coordination.k8s.io/v1":          `Lease`,
		"discovery.k8s.io/v1":             `EndpointSlice`,
		"events.k8s.io/v1":                `Event`,
		"flowcontrol.apiserver.k8s.io/v1": `FlowSchema* PriorityLevelConfiguration*`,
		"networking.k8s.io/v1":            `IPAddress* Ingress IngressClass* NetworkPolicy ServiceCIDR*`,
		"node.k8s.io/v1":                  `RuntimeClass*`,
		"policy/v1":                       `Eviction PodDisruptionBudget`,
		"rbac.authorization.k8s.io/v1":    `ClusterRole* ClusterRoleBinding* Role RoleBinding`,
		"resource.k8s.io/v1":              `DeviceClass* ResourceClaim ResourceClaimTemplate ResourceSlice*`,
		"scheduling.k8s.io/v1":            `PriorityClass*`,
		"storage.k8s.io/v1": `CSIDriver* CSINode* CSIStorageCapacity StorageClass* VolumeAttachment*
			VolumeAttributesClass*`,
	}
}

// Including returns the capabilities of a cluster after the objects of the targets were applied:
// their custom resource definitions are served. It replaces discovery where there is no cluster,
// and gives the scope of custom resources that another component defines.
func (c Capabilities) Including(targets ...*Target) Capabilities {
	served := map[string]bool{}
	for _, v := range c.APIVersions {
		served[v] = true
	}
	scoped := maps.Clone(c.ClusterScoped)
	if scoped == nil {
		scoped = map[schema.GroupKind]bool{}
	}
	for _, t := range targets {
		for _, o := range t.Objects {
			d, ok := definitionOf(o.Content)
			if !ok {
				continue
			}
			for _, v := range d.apiVersions() {
				served[v] = true
			}
			if d.clusterScoped {
				scoped[d.kind] = true
			}
		}
	}
	return Capabilities{
		KubeVersion:   c.KubeVersion,
		APIVersions:   slices.Sorted(maps.Keys(served)),
		ClusterScoped: scoped,
	}
}
