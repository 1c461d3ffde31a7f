package base

import (
	"maps"
	"math"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// slim removes unused fields from an object before an informer keeps it. Slimmed pods and nodes
// must never be written back: pods are patched, and templates come from revisions. Code that
// needs another field must add it here.
func slim(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	switch o := o.(type) {
	case *corev1.Pod:
		return slimPod(o), nil
	case *corev1.PersistentVolumeClaim:
		return slimClaim(o), nil
	case *corev1.Node:
		o.Status, o.Annotations = corev1.NodeStatus{}, nil // large: it lists all images of the node
	case *appsv1.Deployment:
		if !HasUpdateStrategy(o) {
			return &appsv1.Deployment{ObjectMeta: identity(o)}, nil
		}
		delete(o.Annotations, corev1.LastAppliedConfigAnnotation)
	case *appsv1.ControllerRevision:
		if !ours(o) {
			o.Data.Raw, o.Data.Object = nil, nil // it belongs to a StatefulSet or DaemonSet of apps/v1
		}
	}
	return o, nil
}

// HasUpdateStrategy reports whether a Deployment has the annotation that divides its updates, or has to be handed
// back after that.
func HasUpdateStrategy(o client.Object) bool {
	for _, name := range []string{v1beta1.AnnotationUpdateStrategy, v1beta1.AnnotationUpdateBefore, v1beta1.AnnotationUpdateStatus} {
		if _, has := o.GetAnnotations()[name]; has {
			return true
		}
	}
	d, ok := o.(*appsv1.Deployment)
	return ok && d.Spec.MinReadySeconds == NeverAvailable
}

// NeverAvailable is the minReadySeconds of a Deployment during a step of its update. No user writes it.
const NeverAvailable = math.MaxInt32 - 1

// identity returns the name and version of an object.
func identity(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
}

// ours reports whether the controller of an object is a workload of apps.kruise.io.
func ours(o metav1.Object) bool {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil {
		return false
	}
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && gv.Group == v1beta1.GroupVersion.Group
}

// slimPod keeps the state of a pod, its place, and the fields that can change. A pod with
// another controller keeps only its identity and version, because its version counts for
// expectations.
func slimPod(p *corev1.Pod) *corev1.Pod {
	if metav1.GetControllerOfNoCopy(p) != nil && !ours(p) { // a pod without a controller may be adopted
		return &corev1.Pod{ObjectMeta: identity(p)}
	}
	maps.DeleteFunc(p.Annotations, func(key, _ string) bool { // large, and read from the revisions
		return key == corev1.LastAppliedConfigAnnotation || strings.HasPrefix(key, v1beta1.AnnotationConfigurationPrefix)
	})
	kept := &corev1.Pod{ObjectMeta: p.ObjectMeta}
	kept.Spec = corev1.PodSpec{
		NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork, Affinity: p.Spec.Affinity, ReadinessGates: p.Spec.ReadinessGates,
		Containers: make([]corev1.Container, len(p.Spec.Containers)), // without spare capacity
		// Only volumes of claims are needed.
		Volumes: slices.Clip(slices.DeleteFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim == nil })),
	}
	for i, c := range p.Spec.Containers {
		kept.Spec.Containers[i] = corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources, ResizePolicy: c.ResizePolicy, Env: prioritized(c.Env)}
	}
	kept.Status = corev1.PodStatus{
		ObservedGeneration: p.Status.ObservedGeneration, Phase: p.Status.Phase, Reason: p.Status.Reason, Conditions: p.Status.Conditions,
		ContainerStatuses: p.Status.ContainerStatuses, PodIP: p.Status.PodIP,
	}
	for _, s := range p.Status.InitContainerStatuses {
		if s.State.Waiting != nil { // it matters only that one can't run
			kept.Status.InitContainerStatuses = append(kept.Status.InitContainerStatuses, corev1.ContainerStatus{Name: s.Name, State: s.State})
		}
	}
	for i := range kept.Status.ContainerStatuses {
		s := &kept.Status.ContainerStatuses[i]
		s.LastTerminationState, s.VolumeMounts, s.AllocatedResourcesStatus, s.User = corev1.ContainerState{}, nil, nil, nil
	}
	return kept
}

// slimClaim keeps what says whose a claim is, and how large. Claims of a StatefulSet have no label of
// their own, so the informer has those of all others, too.
func slimClaim(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	kept := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: c.Name, Namespace: c.Namespace, UID: c.UID, ResourceVersion: c.ResourceVersion, OwnerReferences: c.OwnerReferences, DeletionTimestamp: c.DeletionTimestamp,
	}}
	if id, has := c.Labels[v1beta1.LabelInstanceID]; has {
		kept.Labels = map[string]string{v1beta1.LabelInstanceID: id}
	}
	kept.Spec = corev1.PersistentVolumeClaimSpec{
		AccessModes: c.Spec.AccessModes, StorageClassName: c.Spec.StorageClassName, VolumeMode: c.Spec.VolumeMode, Resources: c.Spec.Resources,
	}
	kept.Status = corev1.PersistentVolumeClaimStatus{Phase: c.Status.Phase, Capacity: c.Status.Capacity, Conditions: c.Status.Conditions}
	return kept
}

// prioritized returns only the variable of the update priority of a container; nil if there is
// none.
func prioritized(env []corev1.EnvVar) []corev1.EnvVar {
	i := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == v1beta1.EnvContainerPriority })
	if i < 0 {
		return nil
	}
	return []corev1.EnvVar{env[i]}
}
