package webhook

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/ordinal"
)

// maxMinReadySeconds is the limit of OpenKruise.
const maxMinReadySeconds = 300

// validateStatefulSet does for a StatefulSet what [validateCloneSet] does. KRUISE-WORKLOADS.md has the
// rules.
func validateStatefulSet(is, was *v1beta1.StatefulSet) field.ErrorList {
	spec, s := field.NewPath("spec"), &is.Spec
	all := notNegative(spec, map[string]*int32{"replicas": s.Replicas, "revisionHistoryLimit": s.RevisionHistoryLimit})
	all = append(all, validatePods(spec, s.Selector, &s.Template)...)
	all = append(all, base.OneOf(spec.Child("podManagementPolicy"), s.PodManagementPolicy, v1beta1.PodManagementPolicies())...)
	all = append(all, base.OneOf(spec.Child("volumeClaimUpdateStrategy", "type"), s.VolumeClaimUpdateStrategy.Type, v1beta1.VolumeClaimUpdateTypes())...)
	if r, path := s.PersistentVolumeClaimRetentionPolicy, spec.Child("persistentVolumeClaimRetentionPolicy"); r != nil {
		all = append(all, base.OneOf(path.Child("whenDeleted"), r.WhenDeleted, v1beta1.ClaimRetentions())...)
		all = append(all, base.OneOf(path.Child("whenScaled"), r.WhenScaled, v1beta1.ClaimRetentions())...)
	}
	if _, invalid := ordinal.Parse(s); invalid != nil {
		all = append(all, invalid)
	}
	parallel := s.PodManagementPolicy == appsv1.ParallelPodManagement
	if s.ScaleStrategy != nil {
		all = append(all, unavailable(spec.Child("scaleStrategy", "maxUnavailable"), s.ScaleStrategy.MaxUnavailable, parallel)...)
	}
	all = append(all, validateStatefulSetUpdate(spec, s, parallel)...)
	if was == nil {
		return all
	}
	all = append(all, unchanged(spec.Child("selector"), s.Selector, was.Spec.Selector)...)
	all = append(all, unchanged(spec.Child("serviceName"), s.ServiceName, was.Spec.ServiceName)...)
	all = append(all, unchanged(spec.Child("podManagementPolicy"), s.PodManagementPolicy, was.Spec.PodManagementPolicy)...)
	if u := s.UpdateStrategy.RollingUpdate; u != nil && u.PodUpdatePolicy == v1beta1.PodUpdateInPlaceOnly {
		all = append(all, inPlace(spec.Child("template"), &s.Template, &was.Spec.Template)...)
	}
	return append(all, validateClaimTemplates(spec.Child("volumeClaimTemplates"), s, &was.Spec)...)
}

func validateStatefulSetUpdate(spec *field.Path, s *v1beta1.StatefulSetSpec, parallel bool) field.ErrorList {
	update, u := spec.Child("updateStrategy"), s.UpdateStrategy.RollingUpdate
	all := base.OneOf(update.Child("type"), s.UpdateStrategy.Type, v1beta1.StatefulSetUpdateStrategyTypes())
	if u == nil {
		return all
	}
	all = append(all, batch.Validate(update.Child("rollingUpdate", "batches"), u.Batches, s.UpdateStrategy.Type == v1beta1.StatefulSetOnDelete)...)
	path := update.Child("rollingUpdate")
	if s.UpdateStrategy.Type == v1beta1.StatefulSetOnDelete {
		all = append(all, field.Invalid(path, s.UpdateStrategy.Type, "only allowed for updateStrategy 'RollingUpdate'"))
	}
	all = append(all, notNegative(path, map[string]*int32{"partition": u.Partition, "minReadySeconds": u.MinReadySeconds})...)
	if m := u.MinReadySeconds; m != nil && *m > maxMinReadySeconds {
		all = append(all, field.Invalid(path.Child("minReadySeconds"), *m, "must be no more than 300 seconds"))
	}
	all = append(all, unavailable(path.Child("maxUnavailable"), u.MaxUnavailable, parallel)...)
	all = append(all, base.OneOf(path.Child("podUpdatePolicy"), u.PodUpdatePolicy, v1beta1.PodUpdatePolicies())...)
	if u.PodUpdatePolicy != "" && u.PodUpdatePolicy != v1beta1.PodUpdateRecreate && !inplace.HasGate(&corev1.Pod{Spec: s.Template.Spec}) {
		all = append(all, field.Invalid(spec.Child("template", "spec", "readinessGates"), s.Template.Spec.ReadinessGates,
			"must contains InPlaceUpdateReady when podUpdatePolicy is "+string(u.PodUpdatePolicy)))
	}
	if o := u.UnorderedUpdate; o != nil {
		unordered := path.Child("unorderedUpdate")
		if !parallel {
			all = append(all, field.Forbidden(unordered, "unorderedUpdate can only work with Parallel PodManagementPolicyType"))
		}
		if o.PriorityStrategy != nil {
			all = append(all, validatePriority(unordered.Child("priorityStrategy"), o.PriorityStrategy)...)
		}
	}
	if p := u.InPlaceUpdateStrategy; p != nil {
		all = append(all, notNegative(path.Child("inPlaceUpdateStrategy"), map[string]*int32{"gracePeriodSeconds": &p.GracePeriodSeconds})...)
	}
	return all
}

// unavailable validates how many pods may be unavailable: at least one, and without the policy
// Parallel exactly one.
func unavailable(path *field.Path, v *intstr.IntOrString, parallel bool) field.ErrorList {
	if v == nil {
		return nil
	}
	all := amount(path, v)
	if len(all) == 0 && nothing(v) {
		all = append(all, field.Invalid(path, v.String(), "cannot be 0"))
	}
	if !parallel && *v != intstr.FromInt32(1) {
		all = append(all, field.Forbidden(path, "maxUnavailable can only work with Parallel PodManagementPolicyType"))
	}
	return all
}

// validateClaimTemplates denies a change of claim templates that existing claims could not follow, if
// they are to follow.
func validateClaimTemplates(path *field.Path, is, was *v1beta1.StatefulSetSpec) field.ErrorList {
	if is.VolumeClaimUpdateStrategy.Type != v1beta1.ClaimOnPodRollingUpdate {
		return nil
	}
	if len(is.VolumeClaimTemplates) != len(was.VolumeClaimTemplates) {
		return field.ErrorList{field.Forbidden(path, "with OnPodRollingUpdate no claim may come or go")}
	}
	var all field.ErrorList
	for i := range is.VolumeClaimTemplates {
		now, before := &is.VolumeClaimTemplates[i], &was.VolumeClaimTemplates[i]
		sized := now.Spec.DeepCopy()
		sized.Resources = before.Spec.Resources
		if now.Name != before.Name || !apiequality.Semantic.DeepEqual(*sized, before.Spec) {
			all = append(all, field.Forbidden(path.Index(i), "with OnPodRollingUpdate only the size may change"))
			continue
		}
		size, had := now.Spec.Resources.Requests[corev1.ResourceStorage], before.Spec.Resources.Requests[corev1.ResourceStorage]
		if size.Cmp(had) < 0 {
			all = append(all, field.Invalid(path.Index(i).Child("spec", "resources", "requests", "storage"), size.String(), "a claim can't shrink: it has "+had.String()))
		}
	}
	return all
}

// growable denies claims that are to grow, but whose class does not let them. What it cannot find out
// it admits: the API server refuses the growth itself.
func (h *hooks) growable(ctx context.Context, is, was *v1beta1.StatefulSet) field.ErrorList {
	if was == nil || is.Spec.VolumeClaimUpdateStrategy.Type != v1beta1.ClaimOnPodRollingUpdate || len(is.Spec.VolumeClaimTemplates) != len(was.Spec.VolumeClaimTemplates) {
		return nil
	}
	var all field.ErrorList
	for i := range is.Spec.VolumeClaimTemplates {
		now, before := &is.Spec.VolumeClaimTemplates[i], &was.Spec.VolumeClaimTemplates[i]
		size, had := now.Spec.Resources.Requests[corev1.ResourceStorage], before.Spec.Resources.Requests[corev1.ResourceStorage]
		if size.Cmp(had) <= 0 {
			continue
		}
		class := h.class(ctx, now.Spec.StorageClassName)
		if class != nil && (class.AllowVolumeExpansion == nil || !*class.AllowVolumeExpansion) {
			path := field.NewPath("spec", "volumeClaimTemplates").Index(i).Child("spec", "resources", "requests", "storage")
			all = append(all, field.Invalid(path, size.String(), "storage class "+class.Name+" does not support volume expansion"))
		}
	}
	return all
}

// class returns a storage class, or the default one if none is named; nil if that is unknown.
func (h *hooks) class(ctx context.Context, name *string) *storagev1.StorageClass {
	if name != nil {
		var class storagev1.StorageClass
		if err := h.reader.Get(ctx, client.ObjectKey{Name: *name}, &class); err != nil {
			return nil
		}
		return &class
	}
	var list storagev1.StorageClassList
	if err := h.reader.List(ctx, &list); err != nil {
		return nil
	}
	i := slices.IndexFunc(list.Items, func(c storagev1.StorageClass) bool {
		return c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true"
	})
	if i < 0 {
		return nil
	}
	return &list.Items[i]
}
