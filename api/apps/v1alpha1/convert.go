package v1alpha1

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/conversion"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// annotationPreDownloadFields marks in v1beta1 a CloneSet whose v1alpha1 has the settings of image
// pre-download in fields instead of annotations. So the conversion back restores the original form.
const annotationPreDownloadFields = "workloads.keelson.io/v1alpha1-predownload-fields"

// annotationUpdateTypes has in v1alpha1 the [updateTypes] that its one type does not tell, in JSON.
const annotationUpdateTypes = "workloads.keelson.io/v1beta1-update-types"

// ConvertTo implements [conversion.Convertible].
func (c *CloneSet) ConvertTo(hub conversion.Hub) error {
	to, ok := hub.(*v1beta1.CloneSet)
	if !ok {
		return fmt.Errorf("a v1alpha1 CloneSet can't become a %T", hub)
	}
	from := c.DeepCopy()
	to.ObjectMeta, to.Status = from.ObjectMeta, from.Status
	s, u := from.Spec.ScaleStrategy, from.Spec.UpdateStrategy
	to.Spec = v1beta1.CloneSetSpec{
		Replicas: from.Spec.Replicas, Selector: from.Spec.Selector, Template: from.Spec.Template, VolumeClaimTemplates: from.Spec.VolumeClaimTemplates,
		RevisionHistoryLimit: from.Spec.RevisionHistoryLimit, MinReadySeconds: from.Spec.MinReadySeconds,
		Lifecycle: from.Spec.Lifecycle, ProgressDeadlineSeconds: from.Spec.ProgressDeadlineSeconds,
		ScaleStrategy: v1beta1.CloneSetScaleStrategy{
			PodsToDelete: s.PodsToDelete, MaxUnavailable: s.MaxUnavailable, EnablePVCReuse: !s.DisablePVCReuse,
			ExcludePreparingDelete: take(to.Labels, LabelExcludePreparingDelete, "true"),
		},
		UpdateStrategy: v1beta1.CloneSetUpdateStrategy{Type: v1beta1.CloneSetRollingUpdate, RollingUpdate: &v1beta1.CloneSetRollingUpdateStrategy{
			PodUpdatePolicy: u.Type, Partition: u.Partition, MaxUnavailable: u.MaxUnavailable, MaxSurge: u.MaxSurge, Paused: u.Paused,
			PriorityStrategy: u.PriorityStrategy, ScatterStrategy: u.ScatterStrategy, InPlaceUpdateStrategy: u.InPlaceUpdateStrategy,
			Batches: u.Batches,
		}},
	}
	when := takeUpdateTypes(to.Annotations, u.Type)
	to.Spec.UpdateStrategy.Type, to.Spec.UpdateStrategy.RollingUpdate.PodUpdatePolicy = when.Type, when.PodUpdatePolicy
	if inFields(u.InPlaceUpdateStrategy) {
		put(&to.Annotations, annotationPreDownloadFields, "true")
		return nil
	}
	to.Spec.UpdateStrategy.RollingUpdate.InPlaceUpdateStrategy = fieldsOf(to.Annotations, u.InPlaceUpdateStrategy)
	return nil
}

// ConvertFrom implements [conversion.Convertible].
func (c *CloneSet) ConvertFrom(hub conversion.Hub) error {
	stored, ok := hub.(*v1beta1.CloneSet)
	if !ok {
		return fmt.Errorf("a %T can't become a v1alpha1 CloneSet", hub)
	}
	from := stored.DeepCopy()
	c.ObjectMeta, c.Status = from.ObjectMeta, from.Status
	s, u := from.Spec.ScaleStrategy, from.Spec.UpdateStrategy.RollingUpdate
	if u == nil {
		u = &v1beta1.CloneSetRollingUpdateStrategy{}
	}
	c.Spec = CloneSetSpec{
		Replicas: from.Spec.Replicas, Selector: from.Spec.Selector, Template: from.Spec.Template, VolumeClaimTemplates: from.Spec.VolumeClaimTemplates,
		RevisionHistoryLimit: from.Spec.RevisionHistoryLimit, MinReadySeconds: from.Spec.MinReadySeconds,
		Lifecycle: from.Spec.Lifecycle, ProgressDeadlineSeconds: from.Spec.ProgressDeadlineSeconds,
		ScaleStrategy: CloneSetScaleStrategy{PodsToDelete: s.PodsToDelete, MaxUnavailable: s.MaxUnavailable, DisablePVCReuse: !s.EnablePVCReuse},
		UpdateStrategy: CloneSetUpdateStrategy{
			Type: u.PodUpdatePolicy, Partition: u.Partition, MaxUnavailable: u.MaxUnavailable, MaxSurge: u.MaxSurge, Paused: u.Paused,
			PriorityStrategy: u.PriorityStrategy, ScatterStrategy: u.ScatterStrategy, InPlaceUpdateStrategy: u.InPlaceUpdateStrategy,
			Batches: u.Batches,
		},
	}
	putUpdateTypes(c, from.Spec.UpdateStrategy.Type)
	if s.ExcludePreparingDelete {
		put(&c.Labels, LabelExcludePreparingDelete, "true")
	}
	if take(c.Annotations, annotationPreDownloadFields, "true") {
		return nil
	}
	c.Annotations = annotationsOf(c.Annotations, u.InPlaceUpdateStrategy)
	return nil
}

// updateTypes are the two types of v1beta1, when and how pods are updated, for which v1alpha1 has
// one field.
type updateTypes struct {
	Type            v1beta1.CloneSetUpdateStrategyType `json:"type"`
	PodUpdatePolicy v1beta1.PodUpdatePolicy            `json:"podUpdatePolicy,omitempty"`
}

// updateTypesOf returns what the type of v1alpha1 means.
func updateTypesOf(alpha v1beta1.PodUpdatePolicy) updateTypes {
	if string(alpha) == string(v1beta1.CloneSetOnDelete) {
		return updateTypes{Type: v1beta1.CloneSetOnDelete}
	}
	return updateTypes{Type: v1beta1.CloneSetRollingUpdate, PodUpdatePolicy: alpha}
}

// alpha returns the one type of v1alpha1.
func (t updateTypes) alpha() v1beta1.PodUpdatePolicy {
	if t.Type == "" || t.Type == v1beta1.CloneSetRollingUpdate {
		return t.PodUpdatePolicy
	}
	return v1beta1.PodUpdatePolicy(t.Type)
}

// putUpdateTypes writes the type of a CloneSet that still has the policy of v1beta1. If the two
// types of v1beta1 could not be read from it again, they are kept in an annotation: a client that
// knows v1alpha1 alone would change them otherwise.
func putUpdateTypes(c *CloneSet, when v1beta1.CloneSetUpdateStrategyType) {
	is := updateTypes{Type: cmp.Or(when, v1beta1.CloneSetRollingUpdate), PodUpdatePolicy: c.Spec.UpdateStrategy.Type}
	c.Spec.UpdateStrategy.Type = is.alpha()
	delete(c.Annotations, annotationUpdateTypes) // it would be taken for what is told here
	if updateTypesOf(is.alpha()) != is {
		text, _ := json.Marshal(is) // it has only strings, so it never fails
		put(&c.Annotations, annotationUpdateTypes, string(text))
	}
}

// takeUpdateTypes returns the two types of v1beta1, and removes the annotation with them. The
// annotation is for the type that was read: another type is the wish of the client.
func takeUpdateTypes(annotations map[string]string, alpha v1beta1.PodUpdatePolicy) updateTypes {
	text, ok := annotations[annotationUpdateTypes]
	var kept updateTypes
	if !ok || json.Unmarshal([]byte(text), &kept) != nil {
		return updateTypesOf(alpha)
	}
	delete(annotations, annotationUpdateTypes)
	if kept.alpha() != alpha {
		return updateTypesOf(alpha)
	}
	return kept
}

// inFields reports whether the settings of image pre-download are in fields.
func inFields(s *v1beta1.InPlaceUpdateStrategy) bool {
	return s != nil && (s.ImagePreDownloadParallelism != nil || s.ImagePreDownloadTimeoutSeconds != nil || s.ImagePreDownloadMinUpdatedReadyPods != nil)
}

// fieldsOf moves the settings of image pre-download from annotations to fields. Annotations with
// other values stay unchanged.
func fieldsOf(annotations map[string]string, s *v1beta1.InPlaceUpdateStrategy) *v1beta1.InPlaceUpdateStrategy {
	var found v1beta1.InPlaceUpdateStrategy
	if p, ok := parallelism(annotations[AnnotationPreDownloadParallelism]); ok {
		found.ImagePreDownloadParallelism = p
		delete(annotations, AnnotationPreDownloadParallelism)
	}
	for name, field := range seconds(&found) {
		if n, ok := number(annotations[name]); ok {
			*field = &n
			delete(annotations, name)
		}
	}
	if !inFields(&found) {
		return s
	}
	if s != nil {
		found.GracePeriodSeconds = s.GracePeriodSeconds
	}
	return &found
}

// annotationsOf moves these settings from fields to annotations. The struct stays even if it is
// empty afterwards: removing it would look like drift.
func annotationsOf(annotations map[string]string, s *v1beta1.InPlaceUpdateStrategy) map[string]string {
	if s == nil {
		return annotations
	}
	if p := s.ImagePreDownloadParallelism; p != nil {
		put(&annotations, AnnotationPreDownloadParallelism, p.String())
		s.ImagePreDownloadParallelism = nil
	}
	for name, field := range seconds(s) {
		if *field != nil {
			put(&annotations, name, strconv.Itoa(int(**field)))
			*field = nil
		}
	}
	return annotations
}

// seconds returns the numeric fields of image pre-download, by annotation.
func seconds(s *v1beta1.InPlaceUpdateStrategy) map[string]**int32 {
	return map[string]**int32{
		AnnotationPreDownloadTimeoutSeconds: &s.ImagePreDownloadTimeoutSeconds,
		AnnotationPreDownloadMinUpdated:     &s.ImagePreDownloadMinUpdatedReadyPods,
	}
}

// number parses a number in Go's canonical form.
func number(text string) (int32, bool) {
	n, err := strconv.ParseInt(text, 10, 32)
	return int32(n), err == nil && strconv.FormatInt(n, 10) == text
}

// parallelism parses a number or a percentage in Go's canonical form.
func parallelism(text string) (*intstr.IntOrString, bool) {
	digits, percent := strings.CutSuffix(text, "%")
	n, ok := number(digits)
	p := intstr.FromInt32(n)
	if percent {
		p = intstr.FromString(text)
	}
	return &p, ok
}

// ConvertTo implements [conversion.Convertible].
func (d *DaemonSet) ConvertTo(hub conversion.Hub) error {
	to, ok := hub.(*v1beta1.DaemonSet)
	if !ok {
		return fmt.Errorf("a v1alpha1 DaemonSet can't become a %T", hub)
	}
	from := d.DeepCopy()
	to.ObjectMeta = from.ObjectMeta
	to.Spec = v1beta1.DaemonSetSpec{
		Selector: from.Spec.Selector, Template: from.Spec.Template, UpdateStrategy: from.Spec.UpdateStrategy, MinReadySeconds: from.Spec.MinReadySeconds,
		BurstReplicas: from.Spec.BurstReplicas, RevisionHistoryLimit: from.Spec.RevisionHistoryLimit, Lifecycle: from.Spec.Lifecycle,
	}
	for _, progressive := range []bool{true, false} {
		if take(to.Annotations, AnnotationProgressiveCreate, strconv.FormatBool(progressive)) {
			to.Spec.ScaleStrategy = &v1beta1.DaemonSetScaleStrategy{PartitionedScaling: progressive}
		}
	}
	s := from.Status
	to.Status = v1beta1.DaemonSetStatus{
		CurrentNumberScheduled: s.CurrentNumberScheduled, NumberMisscheduled: s.NumberMisscheduled, DesiredNumberScheduled: s.DesiredNumberScheduled,
		NumberReady: s.NumberReady, ObservedGeneration: s.ObservedGeneration, UpdatedNumberScheduled: s.UpdatedNumberScheduled,
		NumberAvailable: s.NumberAvailable, NumberUnavailable: s.NumberUnavailable, CollisionCount: s.CollisionCount,
		Conditions: s.Conditions, UpdateRevision: s.DaemonSetHash, Batches: s.Batches,
	}
	return nil
}

// ConvertFrom implements [conversion.Convertible].
func (d *DaemonSet) ConvertFrom(hub conversion.Hub) error {
	stored, ok := hub.(*v1beta1.DaemonSet)
	if !ok {
		return fmt.Errorf("a %T can't become a v1alpha1 DaemonSet", hub)
	}
	from := stored.DeepCopy()
	d.ObjectMeta = from.ObjectMeta
	d.Spec = DaemonSetSpec{
		Selector: from.Spec.Selector, Template: from.Spec.Template, UpdateStrategy: from.Spec.UpdateStrategy, MinReadySeconds: from.Spec.MinReadySeconds,
		BurstReplicas: from.Spec.BurstReplicas, RevisionHistoryLimit: from.Spec.RevisionHistoryLimit, Lifecycle: from.Spec.Lifecycle,
	}
	if s := from.Spec.ScaleStrategy; s != nil {
		put(&d.Annotations, AnnotationProgressiveCreate, strconv.FormatBool(s.PartitionedScaling))
	}
	s := from.Status
	d.Status = DaemonSetStatus{
		CurrentNumberScheduled: s.CurrentNumberScheduled, NumberMisscheduled: s.NumberMisscheduled, DesiredNumberScheduled: s.DesiredNumberScheduled,
		NumberReady: s.NumberReady, ObservedGeneration: s.ObservedGeneration, UpdatedNumberScheduled: s.UpdatedNumberScheduled,
		NumberAvailable: s.NumberAvailable, NumberUnavailable: s.NumberUnavailable, CollisionCount: s.CollisionCount,
		Conditions: s.Conditions, DaemonSetHash: s.UpdateRevision, Batches: s.Batches,
	}
	return nil
}

// take removes a key with the given value, and reports whether it did.
func take(from map[string]string, key, value string) bool {
	if from[key] != value {
		return false
	}
	delete(from, key)
	return true
}

func put(in *map[string]string, key, value string) {
	if *in == nil {
		*in = map[string]string{}
	}
	(*in)[key] = value
}
