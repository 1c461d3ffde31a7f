package inplace_test

import (
	"fmt"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// Concurrent callers ask for plans from several revisions to one, and get the same plans.
func TestPlans(t *testing.T) {
	t.Parallel()
	of := func(number int64, spec corev1.PodSpec) *appsv1.ControllerRevision {
		r, err := revision.New(revision.Owner{Object: &metav1.ObjectMeta{Name: "web"}}, &corev1.PodTemplateSpec{Spec: spec}, number)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	image := func(is string) corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: is}}}
	}
	to, other := of(9, image("web:v9")), of(8, corev1.PodSpec{HostNetwork: true, Containers: image("web:v8").Containers})
	plans := inplace.NewPlans(inplace.Options{})
	got := make([]*inplace.Plan, 8)
	var wg sync.WaitGroup
	for i := range got {
		from := of(int64(i%4), image(fmt.Sprint("web:v", i%4)))
		wg.Go(func() { got[i] = plans.Between(from, to) })
	}
	wg.Wait()
	for i, p := range got {
		if p == nil || p != got[i%4] {
			t.Errorf("%d: %v, and %v before", i, p, got[i%4])
		}
	}
	broken := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "broken"}}
	for why, from := range map[string]*appsv1.ControllerRevision{"more than images differs": other, "the revision is unknown": nil, "the revision can't be read": broken} {
		if p := plans.Between(from, to); p != nil {
			t.Errorf("%s: %+v", why, p)
		}
	}
}
