package renderer

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// defaultKubeVersion is the Kubernetes that renders without a cluster are for.
const defaultKubeVersion = "v1.36.0"

// DefaultCapabilities are those of a Kubernetes v1.36 as it comes, for renders
// without a cluster to ask. The caller may change what it gets.
func DefaultCapabilities() Capabilities {
	caps := Capabilities{KubeVersion: defaultKubeVersion, ClusterScoped: map[schema.GroupKind]bool{}}
	for gv, extra := range servedVersions() {
		caps.APIVersions = append(caps.APIVersions, gv.String())
		for _, kind := range append(kindsOf(gv), extra...) {
			caps.APIVersions = append(caps.APIVersions, gv.String()+"/"+kind)
		}
	}
	slices.Sort(caps.APIVersions)
	for group, kinds := range clusterScopedKinds() {
		for _, kind := range kinds {
			caps.ClusterScoped[schema.GroupKind{Group: group, Kind: kind}] = true
		}
	}
	return caps
}

// servedVersions are the API versions that a v1.36 API server serves unless it
// is told otherwise, with the kinds that client-go's scheme does not have.
func servedVersions() map[schema.GroupVersion][]string {
	v1 := func(group string) schema.GroupVersion { return schema.GroupVersion{Group: group, Version: "v1"} }
	return map[schema.GroupVersion][]string{
		v1(""):                                nil,
		v1("admissionregistration.k8s.io"):    nil,
		v1("apiextensions.k8s.io"):            {"CustomResourceDefinition"},
		v1("apiregistration.k8s.io"):          {"APIService"},
		v1("apps"):                            nil,
		v1("authentication.k8s.io"):           nil,
		v1("authorization.k8s.io"):            nil,
		v1("autoscaling"):                     nil,
		{Group: "autoscaling", Version: "v2"}: nil,
		v1("batch"):                           nil,
		v1("certificates.k8s.io"):             nil,
		v1("coordination.k8s.io"):             nil,
		v1("discovery.k8s.io"):                nil,
		v1("events.k8s.io"):                   nil,
		v1("flowcontrol.apiserver.k8s.io"):    nil,
		v1("networking.k8s.io"):               nil,
		v1("node.k8s.io"):                     nil,
		v1("policy"):                          nil,
		v1("rbac.authorization.k8s.io"):       nil,
		v1("resource.k8s.io"):                 nil,
		v1("scheduling.k8s.io"):               nil,
		v1("storage.k8s.io"):                  nil,
	}
}

// kindsOf are the scheme's kinds of a version that are objects of their own.
func kindsOf(gv schema.GroupVersion) []string {
	object := reflect.TypeFor[metav1.Object]()
	var out []string
	for kind, t := range scheme.Scheme.KnownTypes(gv) {
		switch {
		case !reflect.PointerTo(t).Implements(object):
		case gv.Group == "" && (kind == "PodStatusResult" || kind == "RangeAllocation"): // never served
		case gv.Group == "apiextensions.k8s.io": // in the scheme only when another package put it there
		default:
			out = append(out, kind)
		}
	}
	return out
}

// clusterScopedKinds of the built-in groups, whatever their version. A test
// compares it with what client-go's clients ask for.
func clusterScopedKinds() map[string][]string {
	return map[string][]string{
		"": strings.Fields("ComponentStatus Namespace Node PersistentVolume"),
		"admissionregistration.k8s.io": strings.Fields(`MutatingAdmissionPolicy MutatingAdmissionPolicyBinding
			MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding
			ValidatingWebhookConfiguration`),
		"apiextensions.k8s.io":         {"CustomResourceDefinition"},
		"apiregistration.k8s.io":       {"APIService"},
		"authentication.k8s.io":        {"SelfSubjectReview", "TokenReview"},
		"authorization.k8s.io":         strings.Fields("SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview"),
		"certificates.k8s.io":          {"CertificateSigningRequest", "ClusterTrustBundle"},
		"flowcontrol.apiserver.k8s.io": {"FlowSchema", "PriorityLevelConfiguration"},
		"internal.apiserver.k8s.io":    {"StorageVersion"},
		"networking.k8s.io":            {"IPAddress", "IngressClass", "ServiceCIDR"},
		"node.k8s.io":                  {"RuntimeClass"},
		"rbac.authorization.k8s.io":    {"ClusterRole", "ClusterRoleBinding"},
		"resource.k8s.io":              {"DeviceClass", "DeviceTaintRule", "ResourceSlice"},
		"scheduling.k8s.io":            {"PriorityClass"},
		"storage.k8s.io":               strings.Fields("CSIDriver CSINode StorageClass VolumeAttachment VolumeAttributesClass"),
		"storagemigration.k8s.io":      {"StorageVersionMigration"},
	}
}
