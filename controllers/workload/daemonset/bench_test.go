package daemonset

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/host"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/worldtest"
)

// What one look costs that an event of one pod causes, where nothing is to be done.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := &host.Host{Known: podclient.NewKnown(kind), Expect: expectations.New(time.Now)}
			off := worldtest.NewOffline(b, podclient.Heard(h.Known, h.Expect))
			h.Objects, h.Pods, h.Revisions = off.Client, off.Pods, revision.Store{Cache: off.Client, API: off.Pods}
			set := &v1beta1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", Generation: 1}}
			set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
			set.Spec.Template.Labels = map[string]string{"app": "web"}
			set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "main:v2"}}
			off.Add(set)
			made, err := revision.New(revision.Owner{Object: set, Kind: v1beta1.GroupVersion.WithKind(kind), Labels: set.Spec.Selector.MatchLabels}, &set.Spec.Template, 1)
			if err != nil {
				b.Fatal(err)
			}
			off.Add(made)
			for i := range n {
				off.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}}, worldtest.Running(set, kind, revision.Hash(made.Name), i))
			}
			off.Until("all pods are known", func() bool { return len(h.Known.Of(set)) == n })
			r := &Reconciler{Host: h, now: time.Now, backoff: newBackoff()}
			l, err := r.look(b.Context(), set)
			if err != nil {
				b.Fatal(err)
			}
			if set.Status = l.status(); int(set.Status.NumberAvailable) != n {
				b.Fatalf("%+v", set.Status)
			}
			off.Change(set, &v1beta1.DaemonSet{})
			q := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(set)}
			b.ReportAllocs()
			for i := range b.N {
				b.StopTimer()
				off.Change(worldtest.Running(set, kind, revision.Hash(made.Name), i%n), &corev1.Pod{})
				b.StartTimer()
				if _, err := r.Reconcile(b.Context(), q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
