package lifecycle_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/lifecycle"
)

// The gate is closed while a hook or another client wants it closed.
func TestGate(t *testing.T) {
	t.Parallel()
	const (
		ours  = `[{"userAgent":"Lifecycle","key":"PreparingUpdate"}]`
		other = `[{"userAgent":"ContainerRecreateRequest","key":"shop/again"}]`
		both  = `[{"userAgent":"ContainerRecreateRequest","key":"shop/again"},{"userAgent":"Lifecycle","key":"PreparingDelete"}]`
	)
	before, now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), time.Date(2026, 1, 1, 13, 0, 0, 0, time.UTC)
	is := func(s corev1.ConditionStatus, message string, since time.Time) *corev1.PodCondition {
		return &corev1.PodCondition{Type: v1beta1.KruisePodReady, Status: s, Message: message, LastTransitionTime: metav1.NewTime(since)}
	}
	hold, free := lifecycle.Verdict{State: preparingUpdate, NotReady: true}, lifecycle.Verdict{State: normal}
	for name, c := range map[string]struct {
		why     string
		is      *corev1.PodCondition
		verdict lifecycle.Verdict
		want    *corev1.PodCondition
		open    bool // before
	}{
		"Born":       {"No hook and no other client closes the gate.", nil, free, is("True", "", now), false},
		"BornHeld":   {"The hook closes the gate before the pod serves.", nil, hold, is("False", ours, now), false},
		"Open":       {"The gate stays open.", is("True", "", before), free, nil, true},
		"Close":      {"A hook closes the gate.", is("True", "", before), hold, is("False", ours, now), true},
		"Closed":     {"The gate stays closed.", is("False", ours, before), hold, nil, false},
		"Later":      {"The gate stays closed in the next state.", is("False", ours, before), lifecycle.Verdict{State: updating, NotReady: true}, nil, false},
		"Opens":      {"No hook closes the gate any more.", is("False", ours, before), free, is("True", "[]", now), false},
		"OpenAgain":  {"The gate stays open.", is("True", "[]", before), free, nil, true},
		"OtherToo":   {"Another client has closed the gate, and our hook is added.", is("False", other, before), lifecycle.Verdict{State: preparingDelete, NotReady: true}, is("False", both, before), false},
		"OtherStays": {"The other client still closes the gate.", is("False", both, before), free, is("False", other, before), false},
		"OtherAlone": {"Only another client closes the gate, so it stays closed.", is("False", other, before), free, nil, false},
		"Text":       {"A message without our format is from another client.", is("False", "maintenance", before), free, is("False", `[{"userAgent":"maintenance","key":""}]`, before), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pod(normal, false, false)
			lifecycle.AddGate(&p.Spec, &v1beta1.Lifecycle{InPlaceUpdate: &v1beta1.LifecycleHook{MarkPodNotReady: true}})
			if c.is != nil {
				p.Status.Conditions = []corev1.PodCondition{*c.is}
			}
			if lifecycle.Open(p) != c.open {
				t.Errorf("it is open: %v", !c.open)
			}
			got := lifecycle.Gate(p, c.verdict, now)
			if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
				t.Errorf("%s %+v, want %+v", c.why, got, c.want)
			}
		})
	}
	if p := pod(normal, false, false); lifecycle.Gate(p, hold, now) != nil || !lifecycle.Open(p) {
		t.Error("a pod without the gate has one")
	}
}

// Pods get the gate once, and only where a hook closes it.
func TestAddGate(t *testing.T) {
	t.Parallel()
	marks := &v1beta1.LifecycleHook{MarkPodNotReady: true}
	for _, c := range []struct {
		hooks *v1beta1.Lifecycle
		want  int
	}{
		{nil, 0},
		{&v1beta1.Lifecycle{PreDelete: &v1beta1.LifecycleHook{}, PreNormal: &v1beta1.LifecycleHook{}}, 0},
		{&v1beta1.Lifecycle{PreDelete: &v1beta1.LifecycleHook{}, InPlaceUpdate: marks}, 1},
		{&v1beta1.Lifecycle{PreDelete: marks, InPlaceUpdate: marks}, 1},
	} {
		var spec corev1.PodSpec
		lifecycle.AddGate(&spec, c.hooks)
		lifecycle.AddGate(&spec, c.hooks)
		if len(spec.ReadinessGates) != c.want {
			t.Errorf("%+v: %+v", c.hooks, spec.ReadinessGates)
		}
	}
}
