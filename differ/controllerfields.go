package differ

import (
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
)

// controllers returns globs of the field managers that are known to write to objects of other
// clients. They are a cluster's own controllers, and some common ones. A controller that sets no
// field manager has its program's name, as client-go does it.
func controllers() []string {
	return []string{
		"kube-controller-manager", "cloud-controller-manager", "kube-scheduler", "kubelet", "kube-apiserver",
		"horizontal-pod-autoscaler", "vpa-*", "vertical-pod-autoscaler*", "keda*", "cluster-autoscaler", "karpenter",
		"cainjector", "cert-manager*", "kruise-manager", "argo-rollouts*", "rollouts-controller",
	}
}

func isController(manager string) bool { return matchesAny(controllers(), manager) }

// controllerFields names fields that a controller may own in objects from git.
type controllerFields struct {
	managers    []string // globs; empty: any manager that writes through the subresource
	subresource string   // of the write; empty: any subresource, or none
	match       v1alpha1.ObjectMatch
	paths       []string
	annotations []string // prefixes of names
	// yields: a change in git replaces the value, and the controller goes by it. Other controllers keep
	// theirs.
	yields bool
	// marks are annotations of which the object has one; empty: any object. A name of a manager proves
	// nothing, and anyone who may write such an annotation turns the controller on.
	marks []string
}

// knownControllerFields returns all fields for which a controller counts as owner. The list is short on purpose:
// any client can choose any field manager, and so the content of managedFields. Fields that are
// neither here nor kept by a rule are drift. Rules keep allocations, caBundles, finalizers and the
// fields of autoscalers; see [builtIn]. Fields that git does not have are not compared: the list
// has only fields that git may have and a controller changes.
func knownControllerFields() []controllerFields {
	return []controllerFields{
		{
			// Autoscalers write to any workload through this subresource. It needs a right of its
			// own.
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
			// Tokens of accounts, on clusters that create Secrets for them.
			managers: []string{"kube-controller-manager"}, match: v1alpha1.ObjectMatch{Group: coreGroup, Kinds: []string{"ServiceAccount"}},
			paths: []string{".secrets"},
		},
		{
			// Facts about a node, and which pods may run there.
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
			// The steps of an update: controllers/workload/deployment. It keeps the values of git in an
			// annotation, and goes by them.
			managers: []string{v1alpha1.DeploymentManager}, match: v1alpha1.ObjectMatch{Group: "apps", Kinds: []string{"Deployment"}},
			paths:       []string{".spec.paused", ".spec.minReadySeconds", ".spec.progressDeadlineSeconds", ".spec.strategy.rollingUpdate"},
			annotations: []string{v1beta1.AnnotationUpdateBefore, v1beta1.AnnotationUpdateStatus},
			yields:      true, marks: []string{v1beta1.AnnotationUpdateStrategy, v1beta1.AnnotationUpdateBefore},
		},
		{
			// Removes the names of pods that a person chose for deletion, once the pods are gone:
			// openkruise.io/docs/user-manuals/cloneset.
			managers: []string{"kruise-manager"}, match: v1alpha1.ObjectMatch{Group: "apps.kruise.io", Kinds: []string{"CloneSet"}},
			paths: []string{".spec.scaleStrategy.podsToDelete"},
		},
		{
			// Scales down a workload that a Rollout refers to:
			// argo-rollouts.readthedocs.io/en/stable/migrating.
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

// controllerFieldsOf returns the fields of an object with some annotations that a manager may own.
func controllerFieldsOf(id ID, manager, subresource string, annotations map[string]any) []controllerFields {
	return slices.DeleteFunc(knownControllerFields(), func(c controllerFields) bool {
		byName := len(c.managers) == 0 || matchesAny(c.managers, manager)
		bySubresource := c.subresource == "" || c.subresource == subresource
		marked := len(c.marks) == 0 || slices.ContainsFunc(c.marks, func(name string) bool { return annotations[name] != nil })
		return !byName || !bySubresource || !marked || !Matches(c.match, id)
	})
}

// has reports whether the claim includes the field or a field above it.
func (c controllerFields) has(p fieldpath.Path) bool {
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
