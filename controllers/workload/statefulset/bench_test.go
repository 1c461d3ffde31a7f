package statefulset

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/worldtest"
)

// What one look costs that an event of one pod causes: where nothing is to be done, and in the middle
// of a rollout, where the next pod has to wait.
func BenchmarkLook(b *testing.B) {
	for name, rolling := range map[string]bool{"AtRest": false, "Rolling": true} {
		for _, n := range []int{100, 1000, 5000} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) { benchmarkLook(b, n, rolling) })
		}
	}
}

func benchmarkLook(b *testing.B, n int, rolling bool) {
	b.Helper()
	h := &base.Reconciler{Specs: base.NewSpecs(spec), Owned: podclient.NewOwnedIndex[*corev1.Pod](kind), Expect: expectations.New(time.Now)}
	off := worldtest.NewOffline(b, podclient.NewEventHandler(h.Owned, h.Expect))
	h.Objects, h.API, h.Revisions = off.Client, off.Pods, revision.Store{Cache: off.Client, API: off.Pods}
	set := &v1beta1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "shop", Generation: 1}}
	set.Spec.Replicas, set.Spec.Selector = new(int32(n)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}} //nolint:gosec // of the list above
	set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	set.Spec.UpdateStrategy.RollingUpdate = &v1beta1.StatefulSetRollingUpdateStrategy{PodUpdatePolicy: v1beta1.PodUpdateInPlaceIfPossible}
	set.Spec.Template.Labels = map[string]string{"app": "db"}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main"}}
	off.Add(set)
	made := off.Revisions(set, kind, &set.Spec.Template, "main:v1", "main:v2")
	pod := func(i int) *corev1.Pod {
		p := worldtest.Running(set, kind, made[1].Name, i)
		if rolling && i < n/2 {
			p.Labels[revision.Label] = made[0].Name
		}
		return p
	}
	if rolling {
		set.Status.CurrentRevision = made[0].Name
	}
	for i := range n {
		p := pod(i)
		if rolling && i == n-1 {
			unready := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
			p.Status.Conditions[unready].Status = corev1.ConditionFalse
		}
		off.Add(p)
	}
	r := newReconciler(h, off.Client, base.Options{Now: time.Now})
	off.Until("all pods are known", func() bool { return len(h.Owned.Since(new(podclient.Mark[*corev1.Pod]), set).Are) == n })
	l, err := r.newSyncContext(b.Context(), set)
	if err != nil {
		b.Fatal(err)
	}
	if set.Status = l.status(); int(set.Status.Replicas) != n || (int(set.Status.AvailableReplicas) == n-1) != rolling || l.want.idle(l.roster.sums) != true {
		b.Fatalf("%+v, %+v", set.Status, l.roster.sums)
	}
	off.Change(set, &v1beta1.StatefulSet{})
	off.Looks(b, r, set, func(i int) *corev1.Pod { return pod(i % (n - 1)) })
}
