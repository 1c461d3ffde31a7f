package base

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

func owned(by string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: "a", Namespace: "shop", UID: "1", ResourceVersion: "5", Generation: 2, Labels: map[string]string{"app": "a"}, Finalizers: []string{"example.com/f"},
		Annotations:     map[string]string{v1beta1.AnnotationInPlaceState: "{}", corev1.LastAppliedConfigAnnotation: "long"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: by, Kind: "CloneSet", Name: "web", UID: "2", Controller: new(true)}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
	}
}

func kept(t *testing.T, o any) any {
	t.Helper()
	out, err := slim(o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Of a pod is kept what says how it is, where, and what of it can change.
func TestSlimPod(t *testing.T) {
	t.Parallel()
	small := corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
	resize := []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
	claim := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-a"}}}
	gate := []corev1.PodReadinessGate{{ConditionType: v1beta1.InPlaceUpdateReady}}
	affinity := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	priority := corev1.EnvVar{Name: v1beta1.EnvContainerPriority, Value: "3"}
	conditions := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: "m"}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	pod := &corev1.Pod{
		ObjectMeta: owned("apps.kruise.io/v1beta1"),
		Spec: corev1.PodSpec{
			NodeName: "node", HostNetwork: true, Affinity: affinity, ReadinessGates: gate, Volumes: []corev1.Volume{{Name: "token"}, claim}, Tolerations: []corev1.Toleration{{Key: "k"}},
			InitContainers: []corev1.Container{{Name: "init"}},
			Containers: []corev1.Container{{
				Name: "main", Image: "main:v1", Resources: small, ResizePolicy: resize, Env: []corev1.EnvVar{{Name: "A", Value: "b"}, priority}, Command: []string{"long"}, LivenessProbe: &corev1.Probe{},
			}, {Name: "side", Image: "side:v1", Env: []corev1.EnvVar{{Name: "A"}}}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Reason: "r", ObservedGeneration: 2, Conditions: conditions, PodIP: "10.0.0.1", InitContainerStatuses: []corev1.ContainerStatus{{Name: "init"}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", Image: "main:v1", ImageID: "i", ContainerID: "c", Ready: true, RestartCount: 4, State: running, Resources: &small,
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}, VolumeMounts: []corev1.VolumeMountStatus{{Name: "data"}},
			}},
		},
	}
	meta := owned("apps.kruise.io/v1beta1")
	meta.ManagedFields = nil
	delete(meta.Annotations, corev1.LastAppliedConfigAnnotation)
	pod.Annotations[v1beta1.AnnotationConfigurationPrefix+"app_app.yaml"] = "a large file"
	want := &corev1.Pod{
		ObjectMeta: meta,
		Spec: corev1.PodSpec{
			NodeName: "node", HostNetwork: true, Affinity: affinity, ReadinessGates: gate, Volumes: []corev1.Volume{claim},
			Containers: []corev1.Container{
				{Name: "main", Image: "main:v1", Resources: small, ResizePolicy: resize, Env: []corev1.EnvVar{priority}}, {Name: "side", Image: "side:v1"},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Reason: "r", ObservedGeneration: 2, Conditions: conditions, PodIP: "10.0.0.1",
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Image: "main:v1", ImageID: "i", ContainerID: "c", Ready: true, RestartCount: 4, State: running, Resources: &small}},
		},
	}
	if diff := cmp.Diff(want, kept(t, pod)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Of objects of other owners as few fields as possible are kept.
func TestSlimOthers(t *testing.T) {
	t.Parallel()
	ours, theirs := owned("apps.kruise.io/v1beta1"), owned("apps/v1")
	ours.ManagedFields, theirs.ManagedFields = nil, nil
	data := runtime.RawExtension{Raw: []byte("{}")}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}, Spec: corev1.NodeSpec{Unschedulable: true}}
	full := node.DeepCopy()
	full.Annotations, full.Status.Images = map[string]string{"a": "long"}, []corev1.ContainerImage{{Names: []string{"long"}}}
	for name, c := range map[string]struct {
		why       string
		from, are any
	}{
		"Pod": {
			"Only its version is needed, to know which writes were seen.", &corev1.Pod{ObjectMeta: owned("apps/v1"), Spec: corev1.PodSpec{NodeName: "n"}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "shop", UID: "1", ResourceVersion: "5"}},
		},
		"Revision":       {"It is a template of ours.", &appsv1.ControllerRevision{ObjectMeta: owned("apps.kruise.io/v1beta1"), Data: data}, &appsv1.ControllerRevision{ObjectMeta: ours, Data: data}},
		"OthersRevision": {"No controller reads its data.", &appsv1.ControllerRevision{ObjectMeta: owned("apps/v1"), Data: data}, &appsv1.ControllerRevision{ObjectMeta: theirs}},
		"Node":           {"Its labels and taints say which pods it runs.", full, node},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.are, kept(t, c.from)); diff != "" {
				t.Errorf("%s -want +got:\n%s", c.why, diff)
			}
		})
	}
}

// A Deployment is kept whole if its updates are divided, and by its name if not.
func TestSlimDeployment(t *testing.T) {
	t.Parallel()
	plain := &appsv1.Deployment{ObjectMeta: owned("v1"), Spec: appsv1.DeploymentSpec{MinReadySeconds: 5}}
	want := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "shop", UID: "1", ResourceVersion: "5"}}
	if diff := cmp.Diff(any(want), kept(t, plain)); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{v1beta1.AnnotationUpdateStrategy, v1beta1.AnnotationUpdateBefore, v1beta1.AnnotationUpdateStatus} {
		divided := &appsv1.Deployment{ObjectMeta: owned("v1"), Spec: appsv1.DeploymentSpec{MinReadySeconds: 5}}
		divided.Annotations[name] = "{}"
		if is, ok := kept(t, divided).(*appsv1.Deployment); !ok || is.Spec.MinReadySeconds != 5 || len(is.Annotations) != 2 {
			t.Errorf("%s: %+v", name, is)
		}
	}
	lost := &appsv1.Deployment{ObjectMeta: owned("v1"), Spec: appsv1.DeploymentSpec{MinReadySeconds: NeverAvailable}}
	if is, ok := kept(t, lost).(*appsv1.Deployment); !ok || is.Spec.MinReadySeconds != NeverAvailable {
		t.Errorf("a step without annotations: %+v", is)
	}
}
