package webhook

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

func cloneSet(change func(*v1beta1.CloneSetSpec, *v1beta1.CloneSetRollingUpdateStrategy)) *v1beta1.CloneSet {
	u := &v1beta1.CloneSetRollingUpdateStrategy{}
	set := &v1beta1.CloneSet{Spec: v1beta1.CloneSetSpec{
		Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		UpdateStrategy: v1beta1.CloneSetUpdateStrategy{RollingUpdate: u},
	}}
	set.Spec.Template.Labels = map[string]string{"app": "web", "tier": "front"}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "web:v1"}}
	if change != nil {
		change(&set.Spec, u)
	}
	return set
}

// at are the fields of problems, sorted.
func at(all field.ErrorList) []string {
	var fields []string
	for _, e := range all {
		fields = append(fields, strings.TrimPrefix(e.Field, "spec."))
	}
	slices.Sort(fields)
	return fields
}

func TestValidateCloneSet(t *testing.T) {
	t.Parallel()
	type spec = v1beta1.CloneSetSpec
	type rolling = v1beta1.CloneSetRollingUpdateStrategy
	number := func(n int) *intstr.IntOrString { return new(intstr.FromInt32(int32(n))) } //nolint:gosec // small
	percent := func(s string) *intstr.IntOrString { return new(intstr.FromString(s)) }
	const update = "updateStrategy.rollingUpdate."
	for name, c := range map[string]struct {
		change func(*spec, *rolling)
		want   []string
	}{
		"what is least is valid":                  {nil, nil},
		"an empty selector would be all pods":     {func(s *spec, _ *rolling) { s.Selector = &metav1.LabelSelector{} }, []string{"selector"}},
		"pods have to be found again":             {func(s *spec, _ *rolling) { s.Template.Labels["app"] = "other" }, []string{"template.metadata.labels"}},
		"fewer than no pods":                      {func(s *spec, _ *rolling) { s.Replicas = new(int32(-1)) }, []string{"replicas"}},
		"less than no history":                    {func(s *spec, _ *rolling) { s.RevisionHistoryLimit = new(int32(-1)) }, []string{"revisionHistoryLimit"}},
		"no pod can be available by the deadline": {func(s *spec, _ *rolling) { s.MinReadySeconds, s.ProgressDeadlineSeconds = 10, new(int32(10)) }, []string{"progressDeadlineSeconds"}},
		"the highest number is no deadline": {func(s *spec, _ *rolling) {
			s.MinReadySeconds, s.ProgressDeadlineSeconds = math.MaxInt32, new(int32(math.MaxInt32))
		}, nil},
		"update by a deletion":                {func(s *spec, _ *rolling) { s.UpdateStrategy.Type = v1beta1.CloneSetOnDelete }, nil},
		"pods that end are no service":        {func(s *spec, _ *rolling) { s.Template.Spec.RestartPolicy = corev1.RestartPolicyNever }, []string{"template.spec.restartPolicy"}},
		"nor are those that are ended":        {func(s *spec, _ *rolling) { s.Template.Spec.ActiveDeadlineSeconds = new(int64(5)) }, []string{"template.spec.activeDeadlineSeconds"}},
		"an unknown type":                     {func(s *spec, _ *rolling) { s.UpdateStrategy.Type = "InPlaceIfPossible" }, []string{"updateStrategy.type"}},
		"an unknown policy":                   {func(_ *spec, u *rolling) { u.PodUpdatePolicy = "InPlace" }, []string{update + "podUpdatePolicy"}},
		"a partition in words":                {func(_ *spec, u *rolling) { u.Partition = percent("half") }, []string{update + "partition"}},
		"more than all":                       {func(_ *spec, u *rolling) { u.Partition = percent("101%") }, []string{update + "partition"}},
		"all":                                 {func(_ *spec, u *rolling) { u.Partition = percent("100%") }, nil},
		"more pods than there are, by number": {func(_ *spec, u *rolling) { u.Partition = number(1000) }, nil},
		"fewer than none may be unavailable":  {func(_ *spec, u *rolling) { u.MaxUnavailable = number(-1) }, []string{update + "maxUnavailable"}},
		"nothing could move":                  {func(_ *spec, u *rolling) { u.MaxUnavailable, u.MaxSurge = number(0), percent("0%") }, []string{update + "maxUnavailable"}},
		"surplus pods can move":               {func(_ *spec, u *rolling) { u.MaxUnavailable, u.MaxSurge = number(0), number(1) }, nil},
		"never replaced, so never surplus": {func(_ *spec, u *rolling) {
			u.PodUpdatePolicy, u.MaxSurge = v1beta1.PodUpdateInPlaceOnly, number(1)
		}, []string{update + "maxSurge"}},
		"two orders at once": {func(_ *spec, u *rolling) {
			u.PriorityStrategy = &v1beta1.UpdatePriorityStrategy{
				OrderPriority:  []v1beta1.UpdatePriorityOrderTerm{{OrderedKey: "a"}},
				WeightPriority: []v1beta1.UpdatePriorityWeightTerm{{Weight: 1}},
			}
		}, []string{update + "priorityStrategy"}},
		"a weight of nothing, an order by nothing": {func(_ *spec, u *rolling) {
			u.PriorityStrategy = &v1beta1.UpdatePriorityStrategy{WeightPriority: []v1beta1.UpdatePriorityWeightTerm{{Weight: 0}, {Weight: 101}}}
			u.ScatterStrategy = []v1beta1.UpdateScatterTerm{{Value: "b"}}
		}, []string{update + "priorityStrategy.weightPriority[0].weight", update + "priorityStrategy.weightPriority[1].weight", update + "scatterStrategy[0].key"}},
		"a grace before now": {func(_ *spec, u *rolling) {
			u.InPlaceUpdateStrategy = &v1beta1.InPlaceUpdateStrategy{GracePeriodSeconds: -1}
		}, []string{update + "inPlaceUpdateStrategy.gracePeriodSeconds"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, at(validateCloneSet(cloneSet(c.change), nil))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// What a CloneSet may become depends on what it was.
func TestValidateChange(t *testing.T) {
	t.Parallel()
	only := func(image string, more func(*v1beta1.CloneSetSpec)) *v1beta1.CloneSet {
		return cloneSet(func(s *v1beta1.CloneSetSpec, u *v1beta1.CloneSetRollingUpdateStrategy) {
			u.PodUpdatePolicy = v1beta1.PodUpdateInPlaceOnly
			s.Template.Spec.Containers[0].Image = image
			if more != nil {
				more(s)
			}
		})
	}
	was := only("web:v1", nil)
	for name, c := range map[string]struct {
		is   *v1beta1.CloneSet
		want []string
	}{
		"an image, in place": {only("web:v2", nil), nil},
		"more than that":     {only("web:v2", func(s *v1beta1.CloneSetSpec) { s.Template.Spec.HostNetwork = true }), []string{"template"}},
		"other pods":         {only("web:v1", func(s *v1beta1.CloneSetSpec) { s.Selector.MatchLabels = map[string]string{"tier": "front"} }), []string{"selector"}},
	} {
		if diff := cmp.Diff(c.want, at(validateCloneSet(c.is, was))); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

func TestValidateDaemonSet(t *testing.T) {
	t.Parallel()
	set := func(change func(*v1beta1.DaemonSetSpec, *v1beta1.DaemonSetRollingUpdateStrategy)) *v1beta1.DaemonSet {
		u := &v1beta1.DaemonSetRollingUpdateStrategy{}
		s := &v1beta1.DaemonSet{}
		like := cloneSet(nil)
		s.Spec.Selector, s.Spec.Template, s.Spec.UpdateStrategy.RollingUpdate = like.Spec.Selector, like.Spec.Template, u
		change(&s.Spec, u)
		return s
	}
	type spec = v1beta1.DaemonSetSpec
	type rolling = v1beta1.DaemonSetRollingUpdateStrategy
	const update = "updateStrategy.rollingUpdate."
	for name, c := range map[string]struct {
		change func(*spec, *rolling)
		want   []string
	}{
		"what is least is valid":         {func(*spec, *rolling) {}, nil},
		"update by a deletion":           {func(s *spec, _ *rolling) { s.UpdateStrategy.Type = v1beta1.DaemonSetOnDelete }, nil},
		"an unknown type":                {func(s *spec, _ *rolling) { s.UpdateStrategy.Type = "Never" }, []string{"updateStrategy.type"}},
		"an unknown rolling update type": {func(_ *spec, u *rolling) { u.Type = "Surging" }, []string{update + "rollingUpdateType"}},
		"a burst in words":               {func(s *spec, _ *rolling) { s.BurstReplicas = new(intstr.FromString("many")) }, []string{"burstReplicas"}},
		"nodes by no selector": {func(_ *spec, u *rolling) {
			u.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}
		}, []string{update + "selector.matchLabels"}},
		"nothing could move": {func(_ *spec, u *rolling) { u.MaxUnavailable = new(intstr.FromInt32(0)) }, []string{update + "maxUnavailable"}},
	} {
		if diff := cmp.Diff(c.want, at(validateDaemonSet(set(c.change), nil))); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	was, is := set(func(*spec, *rolling) {}), set(func(s *spec, _ *rolling) {
		s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "front"}}
	})
	if diff := cmp.Diff([]string{"selector"}, at(validateDaemonSet(is, was))); diff != "" {
		t.Errorf("other pods: -want +got:\n%s", diff)
	}
}

// A message counts some children, and names them to who may know. Of more it says so.
func TestCount(t *testing.T) {
	t.Parallel()
	for names, want := range map[string][2]string{
		"":            {"", ""},
		"a":           {"1 pod", "1 pod (a)"},
		"a b c d e":   {"5 pods", "5 pods (a, b, c, d, e)"},
		"a b c d e f": {"more than 5 pods", "more than 5 pods (a, b, c, d, e, …)"},
	} {
		for i, named := range []bool{false, true} {
			if got := count(strings.Fields(names), "pod", named); got != want[i] {
				t.Errorf("%q, want %q", got, want[i])
			}
		}
	}
}
