package workloadcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/deployment"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// kindDeployment is the kind whose revisions are ReplicaSets.
const kindDeployment = "Deployment"

// annotationNumber is on a ReplicaSet: the number of its revision.
const annotationNumber = "deployment.kubernetes.io/revision"

func (s *workloadObject) ofDeployment(o *appsv1.Deployment) {
	s.template, s.selector, s.minReadySeconds, s.paused = &o.Spec.Template, o.Spec.Selector, o.Spec.MinReadySeconds, o.Spec.Paused
	s.policy = cmp.Or(string(o.Spec.Strategy.Type), string(appsv1.RollingUpdateDeploymentStrategyType))
	is := &o.Status
	s.pods = workloadPods{Wanted: wanted(o.Spec.Replicas), Total: is.Replicas, Ready: is.ReadyReplicas, Available: is.AvailableReplicas, Updated: is.UpdatedReplicas}
	if _, has := o.Annotations[v1beta1.AnnotationUpdateStrategy]; has { // an empty one is followed, too
		s.ofUpdateStrategy(o)
	}
}

// ofUpdateStrategy reads the annotations of a Deployment whose updates are divided. Its own fields are those of the
// current step.
func (s *workloadObject) ofUpdateStrategy(o *appsv1.Deployment) {
	s.divided, s.paused, s.batch = true, false, deployment.Status(o).Batches
	if kept := deployment.Before(o); kept != nil {
		s.paused, s.minReadySeconds = kept.Before.Paused, kept.Before.MinReadySeconds
	}
	if strategy, err := deployment.Strategy(o); err == nil { // the health says what is wrong
		s.partition, s.batches, s.paused = strategy.Partition, strategy.Batches, s.paused || strategy.Paused
	}
}

// pauseUpdates returns the annotations that pause or resume a Deployment whose updates are divided.
func (s *workloadObject) pauseUpdates(paused bool) (map[string]any, error) {
	annotations, strategy := map[string]any{}, map[string]any{}
	if err := deployment.Decode(s.GetAnnotations()[v1beta1.AnnotationUpdateStrategy], &strategy); err != nil {
		return nil, fmt.Errorf("%s: annotation %s: %w", s.title(), v1beta1.AnnotationUpdateStrategy, err)
	}
	if delete(strategy, "paused"); paused {
		strategy["paused"] = true
	}
	data, err := json.Marshal(strategy)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.title(), err)
	}
	annotations[v1beta1.AnnotationUpdateStrategy] = string(data)
	if kept := deployment.Before(s); kept != nil && kept.Before.Paused && !paused { // it was paused before it got the annotation
		kept.Before.Paused = false
		if data, err = json.Marshal(kept); err != nil {
			return nil, fmt.Errorf("%s: %w", s.title(), err)
		}
		annotations[v1beta1.AnnotationUpdateBefore] = string(data)
	}
	return annotations, nil
}

func (s *workloadObject) ofStatefulSet(o *appsv1.StatefulSet) {
	s.template, s.selector, s.minReadySeconds = &o.Spec.Template, o.Spec.Selector, o.Spec.MinReadySeconds
	s.policy = cmp.Or(string(o.Spec.UpdateStrategy.Type), string(appsv1.RollingUpdateStatefulSetStrategyType))
	if u := o.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil {
		s.partition = new(intstr.FromInt32(*u.Partition))
	}
	is := &o.Status
	s.updated, s.before = is.UpdateRevision, is.CurrentRevision
	s.pods = workloadPods{Wanted: wanted(o.Spec.Replicas), Total: is.Replicas, Ready: is.ReadyReplicas, Available: is.AvailableReplicas, Updated: is.UpdatedReplicas}
}

func (s *workloadObject) ofNativeDaemonSet(o *appsv1.DaemonSet) {
	s.template, s.selector, s.minReadySeconds = &o.Spec.Template, o.Spec.Selector, o.Spec.MinReadySeconds
	s.policy = cmp.Or(string(o.Spec.UpdateStrategy.Type), string(appsv1.RollingUpdateDaemonSetStrategyType))
	is := &o.Status
	s.pods = workloadPods{
		Wanted: is.DesiredNumberScheduled, Total: is.CurrentNumberScheduled, Ready: is.NumberReady, Available: is.NumberAvailable, Updated: is.UpdatedNumberScheduled,
	}
}

// wanted returns a number of replicas, which is 1 by default.
func wanted(replicas *int32) int32 {
	if replicas == nil {
		return 1
	}
	return *replicas
}

// pauseField returns the field that pauses updates; "": the kind has none.
func (s *workloadObject) pauseField() string {
	switch {
	case !s.kind.native():
		return "spec.updateStrategy.rollingUpdate.paused"
	case s.divided:
		return "paused in the annotation " + v1beta1.AnnotationUpdateStrategy
	case s.kind.Kind == kindDeployment:
		return "spec.paused"
	}
	return ""
}

// batchesField returns the field that divides updates.
func (s *workloadObject) batchesField() string {
	if s.kind.Kind == kindDeployment {
		return "batches in the annotation " + v1beta1.AnnotationUpdateStrategy
	}
	return "spec.updateStrategy.rollingUpdate.batches"
}

// partitionHint returns what else stops an update of a kind that can't be paused.
func (s *workloadObject) partitionHint() string {
	if s.kind.Kind == "StatefulSet" {
		return ", and spec.updateStrategy.rollingUpdate.partition keeps the pods with lower ordinals as they are"
	}
	return ""
}

// revisionLabel returns the label of a pod that names its revision.
func (s *workloadObject) revisionLabel() string {
	if s.kind.Kind == kindDeployment {
		return appsv1.DefaultDeploymentUniqueLabelKey
	}
	return revision.Label
}

// podOwners returns the UIDs of the controllers of a workload's pods: its own, and those of a
// Deployment's ReplicaSets, which are its revisions.
func (s *workloadObject) podOwners(revisions []*appsv1.ControllerRevision) map[types.UID]bool {
	owners := map[types.UID]bool{s.GetUID(): true}
	for _, r := range revisions {
		owners[r.UID] = true
	}
	return owners
}

// replicaSets returns the history of a Deployment, oldest first: its ReplicaSets as the revisions
// that other kinds have. They are read without their type, so that a rollback puts back fields that
// this program does not know, too.
func (w *workloads) replicaSets(ctx context.Context, of *workloadObject) ([]*appsv1.ControllerRevision, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSetList"))
	if err := w.client.List(ctx, list, client.InNamespace(of.GetNamespace())); err != nil {
		return nil, fmt.Errorf("the ReplicaSets of %s: %w", of.title(), err)
	}
	var out []*appsv1.ControllerRevision
	for i := range list.Items {
		set := &list.Items[i]
		if !metav1.IsControlledBy(set, of) {
			continue
		}
		r, err := asControllerRevision(set)
		if err != nil {
			return nil, fmt.Errorf("ReplicaSet %s of %s: %w", set.GetName(), of.title(), err)
		}
		out = append(out, r)
	}
	revision.Sort(out)
	return out, nil
}

// asControllerRevision returns a ReplicaSet in the form of a revision. Its template has one label
// more than that of its Deployment. A ReplicaSet without a number is the oldest.
func asControllerRevision(set *unstructured.Unstructured) (*appsv1.ControllerRevision, error) {
	template, _, err := unstructured.NestedMap(set.Object, "spec", "template")
	if err != nil {
		return nil, fmt.Errorf("read spec.template: %w", err)
	}
	unstructured.RemoveNestedField(template, "metadata", "labels", appsv1.DefaultDeploymentUniqueLabelKey)
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
	if err != nil {
		return nil, fmt.Errorf("encode spec.template: %w", err)
	}
	number, _ := strconv.ParseInt(set.GetAnnotations()[annotationNumber], 10, 64) // 0 if it is missing
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: set.GetName(), Namespace: set.GetNamespace(), UID: set.GetUID(), CreationTimestamp: set.GetCreationTimestamp(), Annotations: set.GetAnnotations(),
		},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}, nil
}
