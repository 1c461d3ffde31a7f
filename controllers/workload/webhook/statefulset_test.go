package webhook

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// statefulSet is one with a claim of 1Gi, of a class.
func statefulSet(class string, change func(*v1beta1.StatefulSetSpec)) *v1beta1.StatefulSet {
	set := &v1beta1.StatefulSet{Spec: v1beta1.StatefulSetSpec{
		Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		UpdateStrategy: v1beta1.StatefulSetUpdateStrategy{RollingUpdate: &v1beta1.StatefulSetRollingUpdateStrategy{}},
	}}
	set.Spec.Template.Labels = map[string]string{"app": "db"}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "db", Image: "db:v1"}}
	claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
	if class != "" {
		claim.Spec.StorageClassName = &class
	}
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{claim}
	sized("1Gi")(&set.Spec)
	if change != nil {
		change(&set.Spec)
	}
	return set
}

func sized(size string) func(*v1beta1.StatefulSetSpec) {
	return func(s *v1beta1.StatefulSetSpec) {
		s.VolumeClaimTemplates[0].Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
}

func TestValidateStatefulSet(t *testing.T) {
	t.Parallel()
	type spec = v1beta1.StatefulSetSpec
	const update = "updateStrategy.rollingUpdate."
	one := func(v *intstr.IntOrString) func(*spec) {
		return func(s *spec) { s.UpdateStrategy.RollingUpdate.MaxUnavailable = v }
	}
	parallel := func(change func(*spec)) func(*spec) {
		return func(s *spec) {
			s.PodManagementPolicy = appsv1.ParallelPodManagement
			change(s)
		}
	}
	for name, c := range map[string]struct {
		change func(*spec)
		want   []string
	}{
		"what is least is valid":              {nil, nil},
		"an empty selector would be all pods": {func(s *spec) { s.Selector = &metav1.LabelSelector{} }, []string{"selector"}},
		"fewer than no pods":                  {func(s *spec) { s.Replicas = new(int32(-1)) }, []string{"replicas"}},
		"an unknown order":                    {func(s *spec) { s.PodManagementPolicy = "Sometimes" }, []string{"podManagementPolicy"}},
		"an unknown type":                     {func(s *spec) { s.UpdateStrategy = v1beta1.StatefulSetUpdateStrategy{Type: "Sometimes"} }, []string{"updateStrategy.type"}},
		"a rolling update that is none":       {func(s *spec) { s.UpdateStrategy.Type = "OnDelete" }, []string{"updateStrategy.rollingUpdate"}},
		"OnDelete":                            {func(s *spec) { s.UpdateStrategy = v1beta1.StatefulSetUpdateStrategy{Type: "OnDelete"} }, nil},
		"an unknown policy":                   {func(s *spec) { s.UpdateStrategy.RollingUpdate.PodUpdatePolicy = "Sometimes" }, []string{"template.spec.readinessGates", update + "podUpdatePolicy"}},
		"in place, without its gate":          {func(s *spec) { s.UpdateStrategy.RollingUpdate.PodUpdatePolicy = "InPlaceIfPossible" }, []string{"template.spec.readinessGates"}},
		"in place, with its gate":             {gated, nil},
		"a partition below 0":                 {func(s *spec) { s.UpdateStrategy.RollingUpdate.Partition = new(int32(-1)) }, []string{update + "partition"}},
		"ready for 300 seconds":               {func(s *spec) { s.UpdateStrategy.RollingUpdate.MinReadySeconds = new(int32(300)) }, nil},
		"ready for longer":                    {func(s *spec) { s.UpdateStrategy.RollingUpdate.MinReadySeconds = new(int32(301)) }, []string{update + "minReadySeconds"}},
		"one unavailable, in order":           {one(new(intstr.FromInt32(1))), nil},
		"two unavailable, in order":           {one(new(intstr.FromInt32(2))), []string{update + "maxUnavailable"}},
		"a percentage, in order":              {one(new(intstr.FromString("10%"))), []string{update + "maxUnavailable"}},
		"two unavailable":                     {parallel(one(new(intstr.FromInt32(2)))), nil},
		"none unavailable":                    {parallel(one(new(intstr.FromInt32(0)))), []string{update + "maxUnavailable"}},
		"0 % unavailable":                     {parallel(one(new(intstr.FromString("0%")))), []string{update + "maxUnavailable"}},
		"a number as text":                    {parallel(one(new(intstr.FromString("2")))), []string{update + "maxUnavailable"}},
		"creation, none unavailable": {parallel(func(s *spec) {
			s.ScaleStrategy = &v1beta1.StatefulSetScaleStrategy{MaxUnavailable: new(intstr.FromInt32(0))}
		}), []string{"scaleStrategy.maxUnavailable"}},
		"by priority":                 {parallel(func(s *spec) { s.UpdateStrategy.RollingUpdate.UnorderedUpdate = &v1beta1.UnorderedUpdateStrategy{} }), nil},
		"by priority, in order":       {func(s *spec) { s.UpdateStrategy.RollingUpdate.UnorderedUpdate = &v1beta1.UnorderedUpdateStrategy{} }, []string{update + "unorderedUpdate"}},
		"reserved numbers and ranges": {func(s *spec) { s.ReserveOrdinals = []intstr.IntOrString{intstr.FromInt32(0), intstr.FromString("2-5")} }, nil},
		"a reserved number as text":   {func(s *spec) { s.ReserveOrdinals = []intstr.IntOrString{intstr.FromString("5")} }, []string{"reserveOrdinals[0]"}},
		"a start below 0":             {func(s *spec) { s.Ordinals = &v1beta1.StatefulSetOrdinals{Start: -1} }, []string{"ordinals.start"}},
		"unknown retention": {func(s *spec) {
			s.PersistentVolumeClaimRetentionPolicy = &v1beta1.ClaimRetentionPolicy{WhenDeleted: "Maybe"}
		}, []string{"persistentVolumeClaimRetentionPolicy.whenDeleted"}},
		"claims that follow at an unknown time": {func(s *spec) { s.VolumeClaimUpdateStrategy.Type = "Sometimes" }, []string{"volumeClaimUpdateStrategy.type"}},
		"pods that end by themselves":           {func(s *spec) { s.Template.Spec.RestartPolicy = "Never" }, []string{"template.spec.restartPolicy"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := at(validateStatefulSet(statefulSet("", c.change), nil)); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// gated updates in place, with the gate in the template.
func gated(s *v1beta1.StatefulSetSpec) {
	s.UpdateStrategy.RollingUpdate.PodUpdatePolicy = v1beta1.PodUpdateInPlaceOnly
	s.Template.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1beta1.InPlaceUpdateReady}}
}

func TestValidateStatefulSetChange(t *testing.T) {
	t.Parallel()
	type spec = v1beta1.StatefulSetSpec
	follow := func(s *spec) { s.VolumeClaimUpdateStrategy.Type = v1beta1.ClaimOnPodRollingUpdate }
	for name, c := range map[string]struct {
		before, change func(*spec)
		want           []string
	}{
		"the number of pods may change":     {nil, func(s *spec) { s.Replicas = new(int32(9)) }, nil},
		"the Service is part of the names":  {nil, func(s *spec) { s.ServiceName = "other" }, []string{"serviceName"}},
		"the order stays":                   {nil, func(s *spec) { s.PodManagementPolicy = appsv1.ParallelPodManagement }, []string{"podManagementPolicy"}},
		"in place only, an image":           {gated, func(s *spec) { s.Template.Spec.Containers[0].Image = "db:v2" }, nil},
		"in place only, more than an image": {gated, func(s *spec) { s.Template.Spec.HostNetwork = true }, []string{"template"}},
		"new claims may be what they want":  {nil, sized("1Mi"), nil},
		"claims that follow may grow":       {follow, sized("2Gi"), nil},
		"claims that follow can't shrink":   {follow, sized("1Mi"), []string{"volumeClaimTemplates[0].spec.resources.requests.storage"}},
		"claims that follow keep their modes": {follow, func(s *spec) {
			s.VolumeClaimTemplates[0].Spec.AccessModes = []corev1.PersistentVolumeAccessMode{"ReadWriteMany"}
		}, []string{"volumeClaimTemplates[0]"}},
		"claims that follow can't be replaced": {follow, func(s *spec) { s.VolumeClaimTemplates = nil }, []string{"volumeClaimTemplates"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			was := statefulSet("", c.before)
			is := was.DeepCopy()
			c.change(&is.Spec)
			if got := at(validateStatefulSet(is, was)); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// A claim can grow if its class lets it. The API server would refuse it otherwise, long after the
// change was accepted.
func TestGrowable(t *testing.T) {
	c := connect(t)
	for name, grows := range map[string]*bool{"grows": new(true), "stays": new(false), "says-nothing": nil} {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "test.keelson.io/volumes", AllowVolumeExpansion: grows}
		if name == "stays" {
			class.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
		}
		if err := c.Create(t.Context(), class); err != nil {
			t.Fatal(err)
		}
	}
	h := &hooks{reader: c}
	for class, want := range map[string]string{
		"grows": "", "stays": "storage class stays does not support volume expansion", "says-nothing": "storage class says-nothing does not support volume expansion",
		"": "storage class stays does not support volume expansion", "unknown": "",
	} {
		was := statefulSet(class, func(s *v1beta1.StatefulSetSpec) { s.VolumeClaimUpdateStrategy.Type = v1beta1.ClaimOnPodRollingUpdate })
		is := was.DeepCopy()
		if got := h.growable(t.Context(), is, was); len(got) > 0 {
			t.Errorf("class %q, and nothing grows: %v", class, got)
		}
		sized("2Gi")(&is.Spec)
		got := h.growable(t.Context(), is, was)
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0].Error(), want)) {
			t.Errorf("class %q: %v, want %q", class, got, want)
		}
	}
}
