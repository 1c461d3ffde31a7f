package worldtest

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// Running returns a pod of a workload as in a cluster after an update in place: ready, and with
// all fields that the API server, a kubelet and an injector add.
func Running(owner metav1.Object, kind, hash string, i int) *corev1.Pod {
	name := fmt.Sprint(owner.GetName(), "-", i)
	since := metav1.NewTime(time.Unix(1_700_000_000, 0))
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: owner.GetNamespace(), UID: types.UID(name), CreationTimestamp: since, Generation: 2,
		Labels: map[string]string{"app": owner.GetName(), revision.Label: hash, v1beta1.LabelLifecycle: string(v1beta1.LifecycleNormal)},
		Annotations: map[string]string{v1beta1.AnnotationInPlaceState: fmt.Sprintf(
			`{"revision":%q,"updateTimestamp":"2023-11-14T22:13:20Z","lastContainerStatuses":{"main":{"imageID":"sha256:1","containerID":"containerd://1"}},"updateImages":true}`, hash)},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1beta1.GroupVersion.WithKind(kind))},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "keelson", FieldsV1: metav1.NewFieldsV1(string(make([]byte, 2000)))}},
	}}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz"}}}
	projected := corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: make([]corev1.VolumeProjection, 3)}}}
	p.Spec = corev1.PodSpec{
		NodeName: fmt.Sprint("node-", i), ReadinessGates: []corev1.PodReadinessGate{{ConditionType: v1beta1.InPlaceUpdateReady}}, Volumes: []corev1.Volume{projected},
		Containers: []corev1.Container{{
			Name: "main", Image: "main:v2", Env: []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: v1beta1.EnvContainerPriority, Value: "7"}}, LivenessProbe: probe, ReadinessProbe: probe,
			VolumeMounts: []corev1.VolumeMount{{Name: "token", MountPath: "/token"}},
		}},
	}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, ObservedGeneration: 2, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", Image: "main:v2", ImageID: "sha256:2", ContainerID: "containerd://2", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}},
		}},
	}
	for _, t := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady, v1beta1.InPlaceUpdateReady} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: since})
	}
	return p
}
