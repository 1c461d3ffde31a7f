package cloneset

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/worldtest"
)

// What one look costs that an event of one pod causes, where nothing is to be done.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			known, expect := podclient.NewKnown(kind), expectations.New(time.Now)
			off := worldtest.NewOffline(b, podclient.Heard(known, expect))
			set := &v1beta1.CloneSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", Generation: 1}}
			set.Spec.Replicas, set.Spec.Selector = new(int32(n)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}} //nolint:gosec // of the list above
			set.Spec.Template.Labels = map[string]string{"app": "web"}
			set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "main:v2"}}
			off.Add(set)
			made, err := revision.New(revision.Owner{Object: set, Kind: v1beta1.GroupVersion.WithKind(kind), Labels: set.Spec.Selector.MatchLabels}, &set.Spec.Template, 1)
			if err != nil {
				b.Fatal(err)
			}
			off.Add(made)
			for i := range n {
				off.Add(worldtest.Running(set, kind, revision.Hash(made.Name), i))
			}
			off.Until("all pods are known", func() bool { return len(known.Of(set)) == n })
			r := &Reconciler{objects: off.Client, known: known, now: time.Now, expect: expect, revisions: revision.Store{Cache: off.Client, API: off.Pods}, statuses: map[types.UID]time.Time{}}
			l, err := r.look(b.Context(), set)
			if err != nil {
				b.Fatal(err)
			}
			set.Status = l.status(nil)
			off.Change(set, &v1beta1.CloneSet{})
			q := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(set)}
			b.ReportAllocs()
			for i := range b.N {
				b.StopTimer()
				p := worldtest.Running(set, kind, revision.Hash(made.Name), i%n)
				off.Change(p, &corev1.Pod{})
				b.StartTimer()
				if _, err := r.Reconcile(b.Context(), q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
