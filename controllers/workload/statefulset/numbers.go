package statefulset

import (
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/ordinal"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
	"github.com/keelson-io/keelson/controllers/workload/reload"
)

// want is the desired state of a StatefulSet, in numbers.
type want struct {
	ordinals ordinal.Set
	// partition is how many pods stay at their revision, and maxUnavailable how many may be
	// unavailable for an update or a requested deletion.
	partition, maxUnavailable int
	// toCreate is how many pods may be unavailable while pods are created.
	toCreate int
	// ordered: the policy is OrderedReady. unordered: pods are updated by priority.
	ordered, unordered bool
	// paused keeps every pod at its revision, and so does onDelete: only a user's deletion brings the
	// update revision.
	paused, onDelete bool
	// stopped: too many pods of a batch have failed. divided: the update goes in batches.
	stopped, divided bool
	// ahead are positions in the partition, sorted, whose pods are updated all the same.
	ahead []int
	// inPlaceOnly: a pod that cannot be updated in place stays at its revision.
	inPlaceOnly bool
	// resize: claims grow before the update of their pod.
	resize bool
}

// still reports whether no pod comes to the update revision now.
func (w want) still() bool { return w.paused || w.onDelete || w.stopped }

// stays reports whether the pod at a position stays at its revision because of the partition.
func (w want) stays(position int) bool {
	return !w.unordered && position < w.partition && !slices.Contains(w.ahead, position)
}

// rolling returns the settings of rolling updates; never nil.
func rolling(s *v1beta1.StatefulSetSpec) *v1beta1.StatefulSetRollingUpdateStrategy {
	if s.UpdateStrategy.RollingUpdate == nil {
		return &v1beta1.StatefulSetRollingUpdateStrategy{}
	}
	return s.UpdateStrategy.RollingUpdate
}

// minReadySeconds returns how long a pod has to be ready to be available.
func minReadySeconds(s *v1beta1.StatefulSetSpec) int32 {
	if m := rolling(s).MinReadySeconds; m != nil {
		return *m
	}
	return 0
}

// newWant parses a spec with the rules of OpenKruise: KRUISE-WORKLOADS.md, 1. It returns an error
// for an invalid number, percentage or range.
func newWant(s *v1beta1.StatefulSetSpec) (want, error) {
	u := rolling(s)
	w := want{
		ordered: s.PodManagementPolicy != appsv1.ParallelPodManagement, unordered: u.UnorderedUpdate != nil,
		paused: u.Paused, onDelete: s.UpdateStrategy.Type == v1beta1.StatefulSetOnDelete,
		inPlaceOnly: u.PodUpdatePolicy == v1beta1.PodUpdateInPlaceOnly, resize: s.VolumeClaimUpdateStrategy.Type == v1beta1.ClaimOnPodRollingUpdate,
	}
	var bad *field.Error
	if w.ordinals, bad = ordinal.Parse(s); bad != nil {
		return w, bad
	}
	var err error
	if u.Partition != nil {
		w.partition = max(int(*u.Partition), 0)
	}
	replicas := w.ordinals.Count()
	read := func(name string, value *intstr.IntOrString) int {
		if value == nil {
			return 1
		}
		n, e := intstr.GetScaledValueFromIntOrPercent(value, replicas, false)
		if e != nil && err == nil {
			err = fmt.Errorf("spec.%s: %w", name, e)
		}
		return max(n, 1)
	}
	w.maxUnavailable = read("updateStrategy.rollingUpdate.maxUnavailable", u.MaxUnavailable)
	w.toCreate = replicas
	if scale := s.ScaleStrategy; scale != nil && scale.MaxUnavailable != nil {
		w.toCreate = read("scaleStrategy.maxUnavailable", scale.MaxUnavailable)
	}
	if err == nil && w.ordered {
		err = needsParallel(s)
	}
	return w, err
}

// needsParallel returns an error if a field has no meaning with the policy OrderedReady, which takes
// one pod at a time.
func needsParallel(s *v1beta1.StatefulSetSpec) error {
	u, scale := rolling(s), s.ScaleStrategy
	one := func(v *intstr.IntOrString) bool { return v == nil || *v == intstr.FromInt32(1) }
	for _, c := range []struct {
		name string
		fits bool
	}{
		{"updateStrategy.rollingUpdate.unorderedUpdate", u.UnorderedUpdate == nil},
		{"updateStrategy.rollingUpdate.maxUnavailable", one(u.MaxUnavailable)},
		{"scaleStrategy.maxUnavailable", scale == nil || one(scale.MaxUnavailable)},
	} {
		if !c.fits {
			return fmt.Errorf("spec.%s can only work with Parallel PodManagementPolicyType", c.name)
		}
	}
	return nil
}

// check returns an error for a spec that cannot be followed. The webhook refuses more, but may be
// away.
func check(s *v1beta1.StatefulSetSpec) error {
	if _, err := newWant(s); err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(s.Selector)
	switch {
	case err != nil:
		return fmt.Errorf("spec.selector: %w", err)
	case selector.Empty():
		return errors.New("spec.selector finds every pod")
	case !selector.Matches(labels.Set(s.Template.Labels)):
		return errors.New("spec.selector doesn't find pods of spec.template") // they would be released, and their names never free
	}
	if unknown := enums(s); len(unknown) > 0 {
		return unknown.ToAggregate() //nolint:wrapcheck // it names the fields
	}
	if u := rolling(s).UnorderedUpdate; u != nil {
		if _, err := podorder.NewPriority(u.PriorityStrategy); err != nil {
			return fmt.Errorf("spec.updateStrategy.rollingUpdate.unorderedUpdate.priorityStrategy.%w", err)
		}
	}
	return nil
}

// enums returns an error for each field with an unknown value, and for batches and a reload method that
// cannot be followed.
func enums(s *v1beta1.StatefulSetSpec) field.ErrorList {
	spec := field.NewPath("spec")
	update := spec.Child("updateStrategy")
	all := base.OneOf(spec.Child("podManagementPolicy"), s.PodManagementPolicy, v1beta1.PodManagementPolicies())
	all = append(all, base.OneOf(update.Child("type"), s.UpdateStrategy.Type, v1beta1.StatefulSetUpdateStrategyTypes())...)
	all = append(all, base.OneOf(update.Child("rollingUpdate", "podUpdatePolicy"), rolling(s).PodUpdatePolicy, v1beta1.PodUpdatePolicies())...)
	all = append(all, base.OneOf(spec.Child("volumeClaimUpdateStrategy", "type"), s.VolumeClaimUpdateStrategy.Type, v1beta1.VolumeClaimUpdateTypes())...)
	all = append(all, batch.Validate(update.Child("rollingUpdate", "batches"), rolling(s).Batches, s.UpdateStrategy.Type == v1beta1.StatefulSetOnDelete)...)
	all = append(all, reload.Validate(spec.Child("template"), &s.Template)...)
	if r := s.PersistentVolumeClaimRetentionPolicy; r != nil {
		path := spec.Child("persistentVolumeClaimRetentionPolicy")
		all = append(all, base.OneOf(path.Child("whenDeleted"), r.WhenDeleted, v1beta1.ClaimRetentions())...)
		all = append(all, base.OneOf(path.Child("whenScaled"), r.WhenScaled, v1beta1.ClaimRetentions())...)
	}
	return all
}
