package v1alpha1_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
	"sigs.k8s.io/randfill"

	"github.com/keelson-io/keelson/api/apps/v1alpha1"
	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

const rounds = 2000

// types are values of the types of update, in any version, and one that none has.
var types = []string{"", "RollingUpdate", "OnDelete", "ReCreate", "InPlaceIfPossible", "InPlaceOnly", "Sometimes"}

// filler fills every field there is, so that one which a conversion forgets is missed.
func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.3).NumElements(1, 3).MaxDepth(12).Funcs(
		func(m *metav1.TypeMeta, _ randfill.Continue) { *m = metav1.TypeMeta{} },
		func(t *corev1.PodTemplateSpec, c randfill.Continue) { // is handed through
			t.Labels = map[string]string{"app": c.String(5)}
			t.Spec.Containers = []corev1.Container{{Name: "a", Image: c.String(5)}}
		},
		func(p *corev1.PersistentVolumeClaim, c randfill.Continue) { p.Name = c.String(5) },
		func(v *v1beta1.CloneSetUpdateStrategyType, c randfill.Continue) {
			*v = v1beta1.CloneSetUpdateStrategyType(types[c.Intn(len(types))])
		},
		func(v *v1beta1.PodUpdatePolicy, c randfill.Continue) {
			*v = v1beta1.PodUpdatePolicy(types[c.Intn(len(types))])
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			if *v = intstr.FromInt32(c.Int31n(100)); c.Bool() {
				*v = intstr.FromString(v.String() + "%")
			}
		},
	)
}

// there and back.
func through(t *testing.T, from, hub, back any) {
	t.Helper()
	spoke, ok := from.(conversion.Convertible)
	if !ok {
		spoke, _ = back.(conversion.Convertible)
		stored, _ := from.(conversion.Hub)
		to, _ := hub.(conversion.Hub)
		if err := spoke.ConvertFrom(stored); err != nil {
			t.Fatal(err)
		}
		if err := spoke.ConvertTo(to); err != nil {
			t.Fatal(err)
		}
		return
	}
	stored, _ := hub.(conversion.Hub)
	to, _ := back.(conversion.Convertible)
	if err := spoke.ConvertTo(stored); err != nil {
		t.Fatal(err)
	}
	if err := to.ConvertFrom(stored); err != nil {
		t.Fatal(err)
	}
}

// An object that a client writes in v1alpha1 reads the same in v1alpha1, down to its annotations. A
// GitOps tool would try to undo any difference.
func TestV1alpha1ComesBack(t *testing.T) {
	t.Parallel()
	texts := []string{"1", "0", "10%", "007", "+5", "", "abc", "1.5", "-1%", "true", "false", "True", "99999999999"}
	names := []string{
		v1alpha1.AnnotationPreDownloadParallelism, v1alpha1.AnnotationPreDownloadTimeoutSeconds, v1alpha1.AnnotationPreDownloadMinUpdated,
		v1alpha1.AnnotationProgressiveCreate, "example.com/other", "workloads.keelson.io/v1beta1-fields",
	}
	for seed := range int64(rounds) {
		f := filler(seed)
		var c, cBack v1alpha1.CloneSet
		f.Fill(&c)
		var d, dBack v1alpha1.DaemonSet
		f.Fill(&d)
		var s, sBack v1alpha1.StatefulSet
		f.Fill(&s)
		f.Funcs(func(s *string, c randfill.Continue) { *s = texts[c.Intn(len(texts))] })
		for _, name := range names {
			var of, value string
			if f.Fill(&of); of != "" {
				f.Fill(&value)
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, name, value)
				metav1.SetMetaDataAnnotation(&d.ObjectMeta, name, value)
				metav1.SetMetaDataAnnotation(&s.ObjectMeta, name, value)
				metav1.SetMetaDataLabel(&c.ObjectMeta, v1alpha1.LabelExcludePreparingDelete, value)
			}
		}
		through(t, c.DeepCopy(), &v1beta1.CloneSet{}, &cBack)
		if c.Spec.UpdateStrategy.InPlaceUpdateStrategy == nil && cBack.Spec.UpdateStrategy.InPlaceUpdateStrategy != nil {
			c.Spec.UpdateStrategy.InPlaceUpdateStrategy = &v1beta1.InPlaceUpdateStrategy{} // which says nothing
		}
		if diff := cmp.Diff(&c, &cBack, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: -wrote +reads:\n%s", seed, diff)
		}
		through(t, d.DeepCopy(), &v1beta1.DaemonSet{}, &dBack)
		if diff := cmp.Diff(&d, &dBack, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: -wrote +reads:\n%s", seed, diff)
		}
		through(t, s.DeepCopy(), &v1beta1.StatefulSet{}, &sBack)
		if diff := cmp.Diff(&s, &sBack, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: -wrote +reads:\n%s", seed, diff)
		}
	}
}

// What is stored survives a client that only knows v1alpha1 and writes what it read.
func TestV1beta1Survives(t *testing.T) {
	t.Parallel()
	for seed := range int64(rounds) {
		f := filler(seed)
		var c, cBack v1beta1.CloneSet
		f.Fill(&c)
		through(t, c.DeepCopy(), &cBack, &v1alpha1.CloneSet{})
		if c.Spec.UpdateStrategy.Type == "" {
			c.Spec.UpdateStrategy.Type = v1beta1.CloneSetRollingUpdate
		}
		if c.Spec.UpdateStrategy.RollingUpdate == nil {
			c.Spec.UpdateStrategy.RollingUpdate = &v1beta1.CloneSetRollingUpdateStrategy{}
		}
		if diff := cmp.Diff(&c, &cBack, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: -stored +stored after it:\n%s", seed, diff)
		}
		var d, dBack v1beta1.DaemonSet
		f.Fill(&d)
		through(t, d.DeepCopy(), &dBack, &v1alpha1.DaemonSet{})
		if diff := cmp.Diff(&d, &dBack, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: -stored +stored after it:\n%s", seed, diff)
		}
		var s, sBack v1beta1.StatefulSet
		f.Fill(&s)
		through(t, s.DeepCopy(), &sBack, &v1alpha1.StatefulSet{})
		if diff := cmp.Diff(&s, &sBack, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: -stored +stored after it:\n%s", seed, diff)
		}
	}
}

// What is a label or an annotation in one version is a field in the other: its users
// find it where their version has it.
func TestWhatMoves(t *testing.T) {
	t.Parallel()
	alpha := &v1alpha1.CloneSet{
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{v1alpha1.LabelExcludePreparingDelete: "true"},
			Annotations: map[string]string{
				v1alpha1.AnnotationPreDownloadParallelism: "10%", v1alpha1.AnnotationPreDownloadTimeoutSeconds: "30", v1alpha1.AnnotationPreDownloadMinUpdated: "2",
			},
		},
		Spec: v1alpha1.CloneSetSpec{UpdateStrategy: v1alpha1.CloneSetUpdateStrategy{Type: v1beta1.PodUpdateInPlaceOnly, Paused: true}},
	}
	var beta v1beta1.CloneSet
	if err := alpha.ConvertTo(&beta); err != nil {
		t.Fatal(err)
	}
	want := v1beta1.CloneSetSpec{
		ScaleStrategy: v1beta1.CloneSetScaleStrategy{EnablePVCReuse: true, ExcludePreparingDelete: true},
		UpdateStrategy: v1beta1.CloneSetUpdateStrategy{Type: "RollingUpdate", RollingUpdate: &v1beta1.CloneSetRollingUpdateStrategy{
			PodUpdatePolicy: "InPlaceOnly", Paused: true,
			InPlaceUpdateStrategy: &v1beta1.InPlaceUpdateStrategy{
				ImagePreDownloadParallelism: new(intstr.FromString("10%")), ImagePreDownloadTimeoutSeconds: new(int32(30)), ImagePreDownloadMinUpdatedReadyPods: new(int32(2)),
			},
		}},
	}
	if diff := cmp.Diff(want, beta.Spec); diff != "" || len(beta.Labels)+len(beta.Annotations) > 0 {
		t.Errorf("labels %v, annotations %v; -want +got:\n%s", beta.Labels, beta.Annotations, diff)
	}
	daemon := &v1alpha1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationProgressiveCreate: "true"}},
		Status:     v1alpha1.DaemonSetStatus{DaemonSetHash: "abc"},
	}
	var stored v1beta1.DaemonSet
	if err := daemon.ConvertTo(&stored); err != nil {
		t.Fatal(err)
	}
	if s := stored.Spec.ScaleStrategy; s == nil || !s.PartitionedScaling || stored.Status.UpdateRevision != "abc" || len(stored.Annotations) > 0 {
		t.Errorf("%v, revision %q, annotations %v", s, stored.Status.UpdateRevision, stored.Annotations)
	}
}

// v1alpha1 has one type for the two of v1beta1. What it can't tell is kept, until its client wants
// another type.
func TestOnDeleteConverts(t *testing.T) {
	t.Parallel()
	stored := func(when v1beta1.CloneSetUpdateStrategyType, how v1beta1.PodUpdatePolicy) *v1beta1.CloneSet {
		return &v1beta1.CloneSet{Spec: v1beta1.CloneSetSpec{UpdateStrategy: v1beta1.CloneSetUpdateStrategy{
			Type: when, RollingUpdate: &v1beta1.CloneSetRollingUpdateStrategy{PodUpdatePolicy: how},
		}}}
	}
	cases := map[string]struct {
		why           string
		stored        *v1beta1.CloneSet
		reads, writes v1beta1.PodUpdatePolicy
		want          *v1beta1.CloneSet
	}{
		"OnDelete": {"The type has the same name.", stored("OnDelete", ""), "OnDelete", "OnDelete", stored("OnDelete", "")},
		"Policy":   {"The policy is kept.", stored("OnDelete", "InPlaceOnly"), "OnDelete", "OnDelete", stored("OnDelete", "InPlaceOnly")},
		"Leaves":   {"The client wants updates.", stored("OnDelete", "InPlaceOnly"), "OnDelete", "ReCreate", stored("RollingUpdate", "ReCreate")},
		"Comes":    {"The client wants none.", stored("RollingUpdate", "InPlaceOnly"), "InPlaceOnly", "OnDelete", stored("OnDelete", "")},
		"Unknown":  {"A type that is refused does not become one that is not.", stored("InPlaceOnly", "ReCreate"), "InPlaceOnly", "InPlaceOnly", stored("InPlaceOnly", "ReCreate")},
		"Stale": {
			"A copied annotation decides nothing.", func() *v1beta1.CloneSet {
				c := stored("OnDelete", "")
				c.Annotations = map[string]string{"workloads.keelson.io/v1beta1-update-types": `{"type":"OnDelete","podUpdatePolicy":"InPlaceOnly"}`}
				return c
			}(), "OnDelete", "OnDelete", stored("OnDelete", ""),
		},
		"UnknownAlone": {"Nor without a policy.", stored("ReCreate", ""), "ReCreate", "ReCreate", stored("ReCreate", "")},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var alpha v1alpha1.CloneSet
			if err := alpha.ConvertFrom(c.stored.DeepCopy()); err != nil || alpha.Spec.UpdateStrategy.Type != c.reads {
				t.Fatalf("%s It reads %q, want %q; error %v", c.why, alpha.Spec.UpdateStrategy.Type, c.reads, err)
			}
			alpha.Spec.UpdateStrategy.Type = c.writes
			var back v1beta1.CloneSet
			if err := alpha.ConvertTo(&back); err != nil {
				t.Fatal(err)
			}
			c.want.Spec.ScaleStrategy.EnablePVCReuse = c.stored.Spec.ScaleStrategy.EnablePVCReuse
			if diff := cmp.Diff(c.want, &back, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s -want +stored:\n%s", c.why, diff)
			}
		})
	}
}

// Nothing else is taken for one of them.
func TestConvertsItsOwnKindAlone(t *testing.T) {
	t.Parallel()
	if (&v1alpha1.CloneSet{}).ConvertTo(&v1beta1.DaemonSet{}) == nil || (&v1alpha1.CloneSet{}).ConvertFrom(&v1beta1.DaemonSet{}) == nil ||
		(&v1alpha1.DaemonSet{}).ConvertTo(&v1beta1.CloneSet{}) == nil || (&v1alpha1.DaemonSet{}).ConvertFrom(&v1beta1.CloneSet{}) == nil {
		t.Error("a CloneSet became a DaemonSet, or a DaemonSet a CloneSet")
	}
}

// Fields that only v1beta1 has survive a client of v1alpha1 that changes another field. A copy of their
// annotation in v1beta1 says nothing.
func TestBetaFieldsConvert(t *testing.T) {
	t.Parallel()
	stored := &v1beta1.StatefulSet{Spec: v1beta1.StatefulSetSpec{
		ReserveOrdinals: []intstr.IntOrString{intstr.FromInt32(1), intstr.FromString("3-5")}, Ordinals: &v1beta1.StatefulSetOrdinals{Start: 2},
		PersistentVolumeClaimRetentionPolicy: &v1beta1.ClaimRetentionPolicy{WhenScaled: v1beta1.ClaimDelete},
	}}
	var alpha v1alpha1.StatefulSet
	if err := alpha.ConvertFrom(stored); err != nil {
		t.Fatal(err)
	}
	alpha.Spec.Replicas = new(int32(7))
	var back v1beta1.StatefulSet
	if err := alpha.ConvertTo(&back); err != nil {
		t.Fatal(err)
	}
	want := stored.DeepCopy()
	want.Spec.Replicas = new(int32(7))
	if diff := cmp.Diff(want, &back, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	stale := &v1beta1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Annotations: alpha.Annotations}}
	if err := alpha.ConvertFrom(stale); err != nil {
		t.Fatal(err)
	}
	if err := alpha.ConvertTo(&back); err != nil || len(back.Spec.ReserveOrdinals) > 0 {
		t.Errorf("%v, %v", back.Spec.ReserveOrdinals, err)
	}
}
