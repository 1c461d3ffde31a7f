package webhook

import (
	"math"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/reload"
)

// validateCloneSet returns the errors of a CloneSet, and of its change from was. A nil was means
// a new object. KRUISE.md has the rules.
func validateCloneSet(is, was *v1beta1.CloneSet) field.ErrorList {
	spec := field.NewPath("spec")
	all := notNegative(spec, map[string]*int32{
		"replicas": is.Spec.Replicas, "revisionHistoryLimit": is.Spec.RevisionHistoryLimit, "minReadySeconds": &is.Spec.MinReadySeconds,
	})
	all = append(all, validatePods(spec, is.Spec.Selector, &is.Spec.Template)...)
	if d := is.Spec.ProgressDeadlineSeconds; d != nil && *d != math.MaxInt32 && *d <= is.Spec.MinReadySeconds {
		all = append(all, field.Invalid(spec.Child("progressDeadlineSeconds"), *d, "must be greater than minReadySeconds"))
	}
	all = append(all, amount(spec.Child("scaleStrategy", "maxUnavailable"), is.Spec.ScaleStrategy.MaxUnavailable)...)
	update := spec.Child("updateStrategy")
	all = append(all, base.OneOf(update.Child("type"), is.Spec.UpdateStrategy.Type, v1beta1.CloneSetUpdateStrategyTypes())...)
	u := is.Spec.UpdateStrategy.RollingUpdate
	if u == nil {
		u = &v1beta1.CloneSetRollingUpdateStrategy{}
	}
	all = append(all, validateRolling(update.Child("rollingUpdate"), u)...)
	all = append(all, batch.Validate(update.Child("rollingUpdate", "batches"), u.Batches, is.Spec.UpdateStrategy.Type == v1beta1.CloneSetOnDelete)...)
	if was == nil {
		return all
	}
	all = append(all, unchanged(spec.Child("selector"), is.Spec.Selector, was.Spec.Selector)...)
	if u.PodUpdatePolicy == v1beta1.PodUpdateInPlaceOnly {
		all = append(all, inPlace(spec.Child("template"), &is.Spec.Template, &was.Spec.Template)...)
	}
	return all
}

func validateRolling(path *field.Path, u *v1beta1.CloneSetRollingUpdateStrategy) field.ErrorList {
	all := move(path, u.Partition, u.MaxUnavailable, u.MaxSurge)
	all = append(all, base.OneOf(path.Child("podUpdatePolicy"), u.PodUpdatePolicy, v1beta1.PodUpdatePolicies())...)
	if u.PodUpdatePolicy == v1beta1.PodUpdateInPlaceOnly && !nothing(u.MaxSurge) {
		all = append(all, field.Forbidden(path.Child("maxSurge"), "pods that are only ever updated in place are never replaced, so none may be surplus"))
	}
	if p := u.PriorityStrategy; p != nil {
		all = append(all, validatePriority(path.Child("priorityStrategy"), p)...)
	}
	for i, term := range u.ScatterStrategy {
		if term.Key == "" {
			all = append(all, field.Required(path.Child("scatterStrategy").Index(i).Child("key"), "the label to scatter by"))
		}
	}
	if s := u.InPlaceUpdateStrategy; s != nil {
		all = append(all, notNegative(path.Child("inPlaceUpdateStrategy"), map[string]*int32{"gracePeriodSeconds": &s.GracePeriodSeconds})...)
	}
	return all
}

func validatePriority(path *field.Path, p *v1beta1.UpdatePriorityStrategy) field.ErrorList {
	var all field.ErrorList
	if len(p.OrderPriority) > 0 && len(p.WeightPriority) > 0 {
		all = append(all, field.Forbidden(path, "pods are sorted by orderPriority or by weightPriority, not by both"))
	}
	for i, term := range p.OrderPriority {
		if term.OrderedKey == "" {
			all = append(all, field.Required(path.Child("orderPriority").Index(i).Child("orderedKey"), "the label to sort by"))
		}
	}
	for i, term := range p.WeightPriority {
		at := path.Child("weightPriority").Index(i)
		if term.Weight < 1 || term.Weight > 100 {
			all = append(all, field.Invalid(at.Child("weight"), term.Weight, "must be 1 to 100"))
		}
		all = append(all, metav1validation.ValidateLabelSelector(&term.MatchSelector, metav1validation.LabelSelectorValidationOptions{}, at.Child("matchSelector"))...)
	}
	return all
}

// validateDaemonSet does for a DaemonSet what [validateCloneSet] does.
func validateDaemonSet(is, was *v1beta1.DaemonSet) field.ErrorList {
	spec := field.NewPath("spec")
	all := notNegative(spec, map[string]*int32{"revisionHistoryLimit": is.Spec.RevisionHistoryLimit, "minReadySeconds": &is.Spec.MinReadySeconds})
	all = append(all, validatePods(spec, is.Spec.Selector, &is.Spec.Template)...)
	all = append(all, amount(spec.Child("burstReplicas"), is.Spec.BurstReplicas)...)
	update := spec.Child("updateStrategy")
	all = append(all, base.OneOf(update.Child("type"), is.Spec.UpdateStrategy.Type, v1beta1.DaemonSetUpdateStrategyTypes())...)
	if u := is.Spec.UpdateStrategy.RollingUpdate; u != nil {
		path := update.Child("rollingUpdate")
		all = append(all, move(path, u.Partition, u.MaxUnavailable, u.MaxSurge)...)
		all = append(all, base.OneOf(path.Child("rollingUpdateType"), u.Type, v1beta1.DaemonSetRollingUpdateTypes())...)
		all = append(all, batch.Validate(path.Child("batches"), u.Batches, is.Spec.UpdateStrategy.Type == v1beta1.DaemonSetOnDelete)...)
		if u.Selector != nil {
			all = append(all, metav1validation.ValidateLabelSelector(u.Selector, metav1validation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
		}
	}
	if was != nil {
		all = append(all, unchanged(spec.Child("selector"), is.Spec.Selector, was.Spec.Selector)...)
	}
	return all
}

// validatePods checks that the selector matches pods of the template, that these run permanently, and
// how they are told to reload. Only the API server can validate the rest of a template: see templates.
func validatePods(spec *field.Path, selector *metav1.LabelSelector, template *corev1.PodTemplateSpec) field.ErrorList {
	path := spec.Child("selector")
	if selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		return field.ErrorList{field.Required(path, "which pods are its own; an empty one would be all pods")}
	}
	all := metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, path)
	if len(all) > 0 {
		return all
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return append(all, field.Invalid(path, selector, err.Error()))
	}
	if !s.Matches(labels.Set(template.Labels)) {
		all = append(all, field.Invalid(spec.Child("template", "metadata", "labels"), template.Labels, "spec.selector does not select them: the pods would not be found again"))
	}
	if p := template.Spec.RestartPolicy; p != "" && p != corev1.RestartPolicyAlways {
		all = append(all, field.NotSupported(spec.Child("template", "spec", "restartPolicy"), p, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if d := template.Spec.ActiveDeadlineSeconds; d != nil {
		all = append(all, field.Forbidden(spec.Child("template", "spec", "activeDeadlineSeconds"), "the pods run for good"))
	}
	return append(all, reload.Validate(spec.Child("template"), template)...)
}

// move validates the limits of an update.
func move(path *field.Path, partition, maxUnavailable, maxSurge *intstr.IntOrString) field.ErrorList {
	all := amount(path.Child("partition"), partition)
	all = append(all, amount(path.Child("maxUnavailable"), maxUnavailable)...)
	all = append(all, amount(path.Child("maxSurge"), maxSurge)...)
	if maxUnavailable != nil && nothing(maxUnavailable) && nothing(maxSurge) {
		all = append(all, field.Invalid(path.Child("maxUnavailable"), maxUnavailable.String(), "may not be 0 when maxSurge is 0: nothing would ever be updated"))
	}
	return all
}

// nothing reports whether a value is 0, 0% or missing.
func nothing(v *intstr.IntOrString) bool {
	if v == nil {
		return true
	}
	of, err := intstr.GetScaledValueFromIntOrPercent(v, 100, true)
	return err == nil && of == 0
}

var percentage = regexp.MustCompile(`^[0-9]+%$`)

// amount validates a number of at least 0, or a percentage of up to 100%.
func amount(path *field.Path, v *intstr.IntOrString) field.ErrorList {
	const wanted = "must be a number from 0 on, or a percentage from 0% to 100%"
	switch {
	case v == nil:
		return nil
	case v.Type == intstr.Int && v.IntVal >= 0:
		return nil
	case v.Type == intstr.String && percentage.MatchString(v.StrVal):
		if of, err := intstr.GetScaledValueFromIntOrPercent(v, 100, true); err == nil && of <= 100 {
			return nil
		}
	}
	return field.ErrorList{field.Invalid(path, v.String(), wanted)}
}

func notNegative(path *field.Path, values map[string]*int32) field.ErrorList {
	var all field.ErrorList
	for name, v := range values {
		if v != nil && *v < 0 {
			all = append(all, field.Invalid(path.Child(name), *v, "must be greater than or equal to 0"))
		}
	}
	return all
}

func unchanged(path *field.Path, is, was any) field.ErrorList {
	if apiequality.Semantic.DeepEqual(is, was) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, is, "field is immutable: the pods there are would not be found again")}
}

// inPlace returns an error if the change of a template cannot be made in place.
func inPlace(path *field.Path, is, was *corev1.PodTemplateSpec) field.ErrorList {
	if apiequality.Semantic.DeepEqual(is, was) {
		return nil
	}
	if plan, why := inplace.NewPlan(was, is, inplace.Options{Resize: true}); plan == nil {
		return field.ErrorList{field.Forbidden(path, "podUpdatePolicy is InPlaceOnly, and this can't be updated in place: "+why)}
	}
	return nil
}
