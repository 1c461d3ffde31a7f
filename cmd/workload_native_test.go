package cmd_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// pod creates a pod with a controller and a label, as the kubelet and the controllers would leave it.
func (s *shop) pod(name, image string, owner metav1.OwnerReference, labels map[string]string) {
	s.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{owner}}}
	p.Spec.Containers = []corev1.Container{{Name: "main", Image: image}}
	s.create(p)
}

// A Deployment of Kubernetes is shown, paused and rolled back by its ReplicaSets, with fields that
// this program does not know.
func TestWorkloadDeployment(t *testing.T) {
	s := newShop(t)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "api"}}
	d.Spec = appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "api"}}}
	d.Spec.Template.Labels = map[string]string{"app": "api"}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "api:v2"}}
	s.create(d)
	for i, image := range []string{"api:v1", "api:v2"} {
		hash := fmt.Sprintf("hash%d", i+1)
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: s.namespace, Name: "api-" + hash, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
			Annotations: map[string]string{"deployment.kubernetes.io/revision": fmt.Sprint(i + 1), "kubernetes.io/change-cause": "release " + image},
		}}
		labels := map[string]string{"app": "api", appsv1.DefaultDeploymentUniqueLabelKey: hash}
		set.Spec = appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: *d.Spec.Template.DeepCopy()}
		set.Spec.Template.Labels, set.Spec.Template.Spec.Containers[0].Image = labels, image
		s.create(set)
		s.pod("api-"+hash+"-x", image, *metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet")), labels)
	}
	s.pod("api-stranger", "api:v1", metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n", UID: "n", Controller: new(true)}, map[string]string{"app": "api"})
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1, UnavailableReplicas: 1}
	if err := s.client.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	s.keelson("status", "api").want(t, 1).says(t, "Deployment workloaddeployment/api: Progressing: ", "pods: 2 wanted, 2 there, 1 ready, 1 available, 1 updated", "update: RollingUpdate, to revision hash2",
		"2         api-hash2  1     api:v2  release api:v2", "api-hash1-x  hash1", "api-hash2-x  hash2").saysNot(t, "stranger")
	s.keelson("pause", "deploy/api").want(t, 0).says(t, "Deployment workloaddeployment/api is paused")
	get := func() *appsv1.Deployment {
		t.Helper()
		var now appsv1.Deployment
		if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(d), &now); err != nil {
			t.Fatal(err)
		}
		return &now
	}
	if !get().Spec.Paused {
		t.Error("it is not paused")
	}
	s.keelson("rollback", "api", "--to", "hash2").want(t, 2).says(t, "has the template of revision 2 (api-hash2) already")
	s.keelson("rollback", "api").want(t, 0).says(t, "has the template of revision 1 (api-hash1) again: api:v2 → api:v1", "while it is paused: 'keelson workload resume deployment/api -n workloaddeployment'")
	now := get()
	if _, extra := now.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; extra || now.Spec.Template.Spec.Containers[0].Image != "api:v1" {
		t.Errorf("the template is %+v", now.Spec.Template)
	}
	s.keelson("resume", "api").want(t, 0)
	if get().Spec.Paused {
		t.Error("it is still paused")
	}
	// 'keelson workloads' follows an annotation without a value, and keeps the Deployment paused. To resume it by its
	// own field would update all pods at once.
	now = get()
	now.Annotations, now.Spec.Paused = map[string]string{"workloads.keelson.io/update-strategy": ""}, true
	if err := s.client.Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	s.keelson("resume", "api").want(t, 0)
	if !get().Spec.Paused {
		t.Error("its own field is resumed")
	}
	s.keelson("pause", "api").want(t, 0)
	if value := get().Annotations["workloads.keelson.io/update-strategy"]; value != `{"paused":true}` {
		t.Errorf("the annotation is %q", value)
	}
}

// A Deployment with an update strategy is shown, paused and released by its annotations.
func TestWorkloadRollout(t *testing.T) {
	s := newShop(t)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "api", Annotations: map[string]string{
		v1beta1.AnnotationUpdateStrategy: "batches:\n  sizes: [1, 100%]\npartition: 2\nnew: 1\n",
		v1beta1.AnnotationUpdateBefore:   `{"before": {"paused": true, "minReadySeconds": 7}, "wrote": {"paused": true}, "token": "5"}`,
	}}}
	d.Spec = appsv1.DeploymentSpec{Paused: true, Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "api"}}}
	d.Spec.Template.Labels = map[string]string{"app": "api"}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "api:v2"}}
	s.create(d)
	put := func(annotations map[string]string) {
		t.Helper()
		before := d.DeepCopy()
		maps.Copy(d.Annotations, annotations)
		if err := s.client.Patch(t.Context(), d, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 2, UpdatedReplicas: 1, ReadyReplicas: 2, AvailableReplicas: 2}
		if err := s.client.Status().Update(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	says := func(reason v1beta1.BatchReason) map[string]string {
		is := v1beta1.DeploymentUpdateStatus{ObservedGeneration: d.Generation + 1, Batches: &v1beta1.BatchStatus{Batch: "1/2", Number: 1, Revision: "api-1", Started: metav1.Unix(1000, 0), Reason: reason, Message: "as it is"}}
		data, err := json.Marshal(is)
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{v1beta1.AnnotationUpdateStatus: string(data)}
	}
	put(says(v1beta1.BatchPaused))
	s.keelson("status", "api").want(t, 1).says(t, "Deployment workloadrollout/api: Progressing: batch 1/2: as it is", "update: RollingUpdate, paused")
	s.keelson("pause", "api").want(t, 0).says(t, "is paused already")
	s.keelson("resume", "api").want(t, 0).says(t, "is not paused")
	get := func() {
		t.Helper()
		if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
			t.Fatal(err)
		}
	}
	get()
	if !d.Spec.Paused || strings.Contains(d.Annotations[v1beta1.AnnotationUpdateBefore], `"before":{"paused"`) || d.Annotations[v1beta1.AnnotationUpdateStrategy] != `{"batches":{"sizes":[1,"100%"]},"new":1,"partition":2}` {
		t.Errorf("after resume: paused %t, %v", d.Spec.Paused, d.Annotations)
	}
	s.keelson("pause", "api").want(t, 0).says(t, "is paused")
	get()
	if !strings.Contains(d.Annotations[v1beta1.AnnotationUpdateStrategy], `"paused":true`) {
		t.Errorf("after pause: %v", d.Annotations)
	}
	s.keelson("next-batch", "api").want(t, 2).says(t, "it has no batches in the annotation workloads.keelson.io/update-strategy") // it can't be read
	put(map[string]string{v1beta1.AnnotationUpdateStrategy: "batches: {sizes: [1, 100%]}\npartition: 2"})
	put(says(v1beta1.BatchApproval))
	s.keelson("status", "api").want(t, 1).says(t, "batch: 1/2 since ", "update: RollingUpdate, partition 2")
	s.keelson("next-batch", "api").want(t, 0).says(t, "batch 2 of revision api-1 is released")
	get()
	if got := d.Annotations[v1beta1.AnnotationNextBatch]; got != "api-1@1000/2" {
		t.Errorf("released %s", got)
	}
}

// A StatefulSet and a DaemonSet of Kubernetes have no field to pause them, and are found beside
// workloads of the same name.
func TestWorkloadNative(t *testing.T) {
	s := newShop(t)
	labels := map[string]string{"app": "db"}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "db"}}
	set.Spec = appsv1.StatefulSetSpec{Replicas: new(int32(3)), ServiceName: "db", Selector: &metav1.LabelSelector{MatchLabels: labels}}
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2))}
	set.Spec.Template.Labels = labels
	set.Spec.Template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}} // of every revision
	settings := func(i int) []corev1.EnvFromSource {
		return []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprint("settings-", i)}}}}
	}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "db:v2", EnvFrom: settings(2)}}
	s.create(set)
	agent := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "agent"}}
	agent.Spec = appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: *set.Spec.Template.DeepCopy()}
	s.create(agent)
	s.daemonSet("agent", nil) // of apps.kruise.io
	for _, owner := range []revision.Owner{
		{Object: set, Kind: appsv1.SchemeGroupVersion.WithKind("StatefulSet"), Labels: labels}, {Object: agent, Kind: appsv1.SchemeGroupVersion.WithKind("DaemonSet"), Labels: labels},
	} {
		for i, image := range []string{"db:v1", "db:v2"} {
			template := set.Spec.Template.DeepCopy()
			template.Spec.Containers[0].Image = image
			template.Spec.Containers[0].EnvFrom = settings(i + 1)
			r, err := revision.New(owner, template, int64(i+1))
			if err != nil {
				t.Fatal(err)
			}
			s.create(r)
			if owner.Kind.Kind == "StatefulSet" && i == 1 {
				set.Status.UpdateRevision = r.Name
				s.pod("db-2", image, *metav1.NewControllerRef(set, owner.Kind), map[string]string{"app": "db", revision.Label: r.Name})
			}
		}
	}
	set.Status.ObservedGeneration, set.Status.Replicas, set.Status.ReadyReplicas, set.Status.AvailableReplicas, set.Status.UpdatedReplicas = 1, 3, 3, 3, 1
	if err := s.client.Status().Update(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	s.keelson("status", "sts/db").says(t, "StatefulSet workloadnative/db: ", "update: RollingUpdate, partition 2, to revision ", "2         db-", "db-2",
		"IMAGES  CONFIGURATION", "db:v2   ConfigMap/settings-2", "db:v1   ConfigMap/settings-1").saysNot(t, "Secret/pull")
	s.keelson("pause", "db").want(t, 2).says(t, "has no field that pauses its update", "partition keeps the pods with lower ordinals")
	s.keelson("rollback", "db").want(t, 0).says(t, "db:v2 → db:v1")
	s.keelson("status", "agent").want(t, 2).says(t, "has several workloads agent: say daemon/agent or ds/agent")
	s.keelson("status", "ds/agent").says(t, "DaemonSet workloadnative/agent: ", "update: RollingUpdate, to revision ")
	s.keelson("resume", "ds/agent").want(t, 2).says(t, "has no field that pauses its update")
	s.keelson("rollback", "ds/agent").want(t, 0).says(t, "db:v2 → db:v1")
	s.keelson("status", "daemon/agent").want(t, 1).says(t, "update: Standard")
}
