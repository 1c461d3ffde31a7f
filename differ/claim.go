package differ

import (
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// controllers are the field managers, by glob, of what is known to write to objects
// of others: a cluster's own controllers, and some that many clusters have. A
// controller's name is its field manager where it sets none, as client-go does it.
func controllers() []string {
	return []string{
		"kube-controller-manager", "cloud-controller-manager", "kube-scheduler", "kubelet", "kube-apiserver",
		"horizontal-pod-autoscaler", "vpa-*", "vertical-pod-autoscaler*", "keda*", "cluster-autoscaler", "karpenter",
		"cainjector", "cert-manager*", "kruise-manager", "argo-rollouts*", "rollouts-controller",
	}
}

func isController(manager string) bool { return matchesAny(controllers(), manager) }

// claim is what a controller may own of objects that git has, too.
type claim struct {
	managers    []string // globs; none: any that comes through the subresource
	subresource string   // of which the write must be; empty: of any, or none
	match       v1alpha1.ObjectMatch
	paths       []string
	annotations []string // prefixes of names
}

// claims are all that a controller's word counts for. It is short on purpose: a field
// manager is a name that any client chooses, and so is all of managedFields. What isn't
// here, and what no rule keeps, is drift. Allocations, caBundles, finalizers and what
// autoscalers own are kept by rules; see [builtIn]. Fields that git doesn't have are not
// looked at: here is only what git may have, and a controller changes.
func claims() []claim {
	return []claim{
		{
			// An autoscaler's way to any workload. It takes a right of its own.
			subresource: "scale", paths: []string{".spec.replicas"},
		},
		{
			// k8s.io/kubernetes pkg/controller/deployment/util: RevisionAnnotation.
			managers: []string{"kube-controller-manager"}, match: v1alpha1.ObjectMatch{Group: "apps", Kinds: []string{"Deployment"}},
			annotations: []string{"deployment.kubernetes.io/"},
		},
		{
			// The binder of volumes: component-helpers/storage/volume.
			managers:    []string{"kube-controller-manager", "kube-scheduler"},
			match:       v1alpha1.ObjectMatch{Group: coreGroup, Kinds: []string{"PersistentVolumeClaim", "PersistentVolume"}},
			paths:       []string{".spec.volumeName", ".spec.claimRef"},
			annotations: []string{"pv.kubernetes.io/", "volume.kubernetes.io/", "volume.beta.kubernetes.io/"},
		},
		{
			// Tokens of accounts, on clusters that make Secrets of them.
			managers: []string{"kube-controller-manager"}, match: v1alpha1.ObjectMatch{Group: coreGroup, Kinds: []string{"ServiceAccount"}},
			paths: []string{".secrets"},
		},
		{
			// What a node is and what runs there.
			managers: []string{"kube-controller-manager", "cloud-controller-manager", "kubelet", "cluster-autoscaler", "karpenter"},
			match:    v1alpha1.ObjectMatch{Group: coreGroup, Kinds: []string{"Node"}},
			paths:    []string{".spec.podCIDR", ".spec.podCIDRs", ".spec.providerID", ".spec.taints", ".metadata.labels", ".metadata.annotations"},
		},
		{
			// The keys of a certificate's Secret: cert-manager.io/docs/usage/certificate.
			managers: []string{"cert-manager*"}, match: v1alpha1.ObjectMatch{Group: coreGroup, Kinds: []string{"Secret"}},
			paths: []string{
				`.data["tls.crt"]`, `.data["tls.key"]`, `.data["ca.crt"]`, `.data["tls-combined.pem"]`, `.data["key.der"]`,
				`.data["keystore.jks"]`, `.data["truststore.jks"]`, `.data["keystore.p12"]`, `.data["truststore.p12"]`,
			},
			annotations: []string{"cert-manager.io/"},
		},
		{
			// Pods that a person named for deletion, and that are gone: openkruise.io/docs/user-manuals/cloneset.
			managers: []string{"kruise-manager"}, match: v1alpha1.ObjectMatch{Group: "apps.kruise.io", Kinds: []string{"CloneSet"}},
			paths: []string{".spec.scaleStrategy.podsToDelete"},
		},
		{
			// A workload that a Rollout refers to is scaled down: argo-rollouts.readthedocs.io/en/stable/migrating.
			managers: []string{"argo-rollouts*", "rollouts-controller"}, match: v1alpha1.ObjectMatch{Group: "apps", Kinds: []string{"Deployment"}},
			paths: []string{".spec.replicas"},
		},
		{
			// Shares of the traffic: argo-rollouts.readthedocs.io/en/stable/features/traffic-management.
			managers: []string{"argo-rollouts*", "rollouts-controller"},
			match:    v1alpha1.ObjectMatch{Group: "networking.istio.io", Kinds: []string{"VirtualService", "DestinationRule"}},
			paths:    []string{".spec.http", ".spec.tls", ".spec.tcp", ".spec.subsets"},
		},
		{
			managers: []string{"argo-rollouts*", "rollouts-controller"},
			match:    v1alpha1.ObjectMatch{Group: "gateway.networking.k8s.io", Kinds: []string{"HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute"}},
			paths:    []string{".spec.rules"},
		},
		{
			managers: []string{"argo-rollouts*", "rollouts-controller"}, match: v1alpha1.ObjectMatch{Group: "networking.k8s.io", Kinds: []string{"Ingress"}},
			annotations: []string{"alb.ingress.kubernetes.io/actions.", "nginx.ingress.kubernetes.io/canary"},
		},
	}
}

// claimsOf are those of a manager on an object.
func claimsOf(id ID, manager, subresource string) []claim {
	return slices.DeleteFunc(claims(), func(c claim) bool {
		byName := len(c.managers) > 0 && matchesAny(c.managers, manager)
		bySubresource := c.subresource != "" && c.subresource == subresource
		return !byName && !bySubresource || !Matches(c.match, id)
	})
}

// has reports whether the claim is on the field, or on one that it lies in.
func (c claim) has(p fieldpath.Path) bool {
	for _, text := range c.paths {
		if pattern, err := parsePattern(text); err == nil && pattern.matches(p) {
			return true
		}
	}
	if len(p) != 3 || len(c.annotations) == 0 {
		return false
	}
	for i, name := range []string{"metadata", "annotations"} {
		if p[i].FieldName == nil || *p[i].FieldName != name {
			return false
		}
	}
	return p[2].FieldName != nil && slices.ContainsFunc(c.annotations, func(prefix string) bool {
		return strings.HasPrefix(*p[2].FieldName, prefix)
	})
}
