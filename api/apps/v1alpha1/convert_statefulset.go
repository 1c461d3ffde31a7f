package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/conversion"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// annotationBetaFields has in v1alpha1 the [betaFields] of a StatefulSet, in JSON. A client that
// knows v1alpha1 alone reads and writes them with the annotations.
const annotationBetaFields = "workloads.keelson.io/v1beta1-fields"

// betaFields are the fields of a StatefulSet that only v1beta1 has.
type betaFields struct {
	VolumeClaimUpdateStrategy v1beta1.VolumeClaimUpdateStrategy `json:"volumeClaimUpdateStrategy,omitzero"`
	ReserveOrdinals           []v1beta1.IntOrString             `json:"reserveOrdinals,omitempty"`
	Lifecycle                 *v1beta1.Lifecycle                `json:"lifecycle,omitempty"`
	ScaleStrategy             *v1beta1.StatefulSetScaleStrategy `json:"scaleStrategy,omitempty"`
	Retention                 *v1beta1.ClaimRetentionPolicy     `json:"persistentVolumeClaimRetentionPolicy,omitempty"`
	Ordinals                  *v1beta1.StatefulSetOrdinals      `json:"ordinals,omitempty"`
	Status                    betaStatus                        `json:"status,omitzero"`
}

// betaStatus are the fields of the status that only v1beta1 has.
type betaStatus struct {
	UpdatedReadyReplicas     int32                       `json:"updatedReadyReplicas,omitempty"`
	UpdatedAvailableReplicas int32                       `json:"updatedAvailableReplicas,omitempty"`
	VolumeClaims             []v1beta1.VolumeClaimStatus `json:"volumeClaims,omitempty"`
}

// ConvertTo implements [conversion.Convertible].
func (s *StatefulSet) ConvertTo(hub conversion.Hub) error {
	to, ok := hub.(*v1beta1.StatefulSet)
	if !ok {
		return fmt.Errorf("a v1alpha1 StatefulSet can't become a %T", hub)
	}
	from := s.DeepCopy()
	to.ObjectMeta = from.ObjectMeta
	kept := takeBetaFields(to.Annotations)
	to.Spec = v1beta1.StatefulSetSpec{
		Replicas: from.Spec.Replicas, Selector: from.Spec.Selector, Template: from.Spec.Template, VolumeClaimTemplates: from.Spec.VolumeClaimTemplates,
		ServiceName: from.Spec.ServiceName, PodManagementPolicy: from.Spec.PodManagementPolicy, UpdateStrategy: from.Spec.UpdateStrategy,
		RevisionHistoryLimit: from.Spec.RevisionHistoryLimit, VolumeClaimUpdateStrategy: kept.VolumeClaimUpdateStrategy, ReserveOrdinals: kept.ReserveOrdinals,
		Lifecycle: kept.Lifecycle, ScaleStrategy: kept.ScaleStrategy, PersistentVolumeClaimRetentionPolicy: kept.Retention, Ordinals: kept.Ordinals,
	}
	is := from.Status
	to.Status = v1beta1.StatefulSetStatus{
		ObservedGeneration: is.ObservedGeneration, Replicas: is.Replicas, ReadyReplicas: is.ReadyReplicas, AvailableReplicas: is.AvailableReplicas,
		CurrentReplicas: is.CurrentReplicas, UpdatedReplicas: is.UpdatedReplicas, CurrentRevision: is.CurrentRevision, UpdateRevision: is.UpdateRevision,
		CollisionCount: is.CollisionCount, Conditions: is.Conditions, LabelSelector: is.LabelSelector, Batches: is.Batches,
		UpdatedReadyReplicas: kept.Status.UpdatedReadyReplicas, UpdatedAvailableReplicas: kept.Status.UpdatedAvailableReplicas, VolumeClaims: kept.Status.VolumeClaims,
	}
	return nil
}

// ConvertFrom implements [conversion.Convertible].
func (s *StatefulSet) ConvertFrom(hub conversion.Hub) error {
	stored, ok := hub.(*v1beta1.StatefulSet)
	if !ok {
		return fmt.Errorf("a %T can't become a v1alpha1 StatefulSet", hub)
	}
	from := stored.DeepCopy()
	s.ObjectMeta = from.ObjectMeta
	takeBetaFields(s.Annotations) // of nothing that is stored: it would be taken for what is told below
	s.Spec = StatefulSetSpec{
		Replicas: from.Spec.Replicas, Selector: from.Spec.Selector, Template: from.Spec.Template, VolumeClaimTemplates: from.Spec.VolumeClaimTemplates,
		ServiceName: from.Spec.ServiceName, PodManagementPolicy: from.Spec.PodManagementPolicy, UpdateStrategy: from.Spec.UpdateStrategy,
		RevisionHistoryLimit: from.Spec.RevisionHistoryLimit,
	}
	is := from.Status
	s.Status = StatefulSetStatus{
		ObservedGeneration: is.ObservedGeneration, Replicas: is.Replicas, ReadyReplicas: is.ReadyReplicas, AvailableReplicas: is.AvailableReplicas,
		CurrentReplicas: is.CurrentReplicas, UpdatedReplicas: is.UpdatedReplicas, CurrentRevision: is.CurrentRevision, UpdateRevision: is.UpdateRevision,
		CollisionCount: is.CollisionCount, Conditions: is.Conditions, LabelSelector: is.LabelSelector, Batches: is.Batches,
	}
	return putBetaFields(s, betaFields{
		VolumeClaimUpdateStrategy: from.Spec.VolumeClaimUpdateStrategy, ReserveOrdinals: from.Spec.ReserveOrdinals, Lifecycle: from.Spec.Lifecycle,
		ScaleStrategy: from.Spec.ScaleStrategy, Retention: from.Spec.PersistentVolumeClaimRetentionPolicy, Ordinals: from.Spec.Ordinals,
		Status: betaStatus{UpdatedReadyReplicas: is.UpdatedReadyReplicas, UpdatedAvailableReplicas: is.UpdatedAvailableReplicas, VolumeClaims: is.VolumeClaims},
	})
}

// putBetaFields keeps the fields in an annotation; no fields need none.
func putBetaFields(s *StatefulSet, fields betaFields) error {
	if equality.Semantic.DeepEqual(fields, betaFields{}) {
		return nil
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("annotation %s: %w", annotationBetaFields, err)
	}
	put(&s.Annotations, annotationBetaFields, string(text))
	return nil
}

// takeBetaFields returns the fields in the annotation, and removes it. An annotation that
// [putBetaFields] can't have written stays where it is, and says nothing.
func takeBetaFields(annotations map[string]string) betaFields {
	var kept betaFields
	text, ok := annotations[annotationBetaFields]
	if !ok || json.Unmarshal([]byte(text), &kept) != nil {
		return betaFields{}
	}
	again, err := json.Marshal(kept)
	if err != nil || !bytes.Equal(again, []byte(text)) || equality.Semantic.DeepEqual(kept, betaFields{}) {
		return betaFields{}
	}
	delete(annotations, annotationBetaFields)
	return kept
}
