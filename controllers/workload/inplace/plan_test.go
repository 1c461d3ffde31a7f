package inplace_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/controllers/workload/inplace"
)

// template has a container that reads a label when it starts, and one that does not.
func template() *corev1.PodTemplateSpec {
	amounts := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
	}
	return &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "tier": "front"}, Annotations: map[string]string{"team": "a"}},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init", Image: "init:v1"}},
			Containers: []corev1.Container{
				{
					Name: "web", Image: "web:v1", Resources: corev1.ResourceRequirements{Requests: amounts("1", "1Gi"), Limits: amounts("2", "2Gi")},
					Env: []corev1.EnvVar{{Name: "MODE", Value: "fast"}},
				},
				{
					Name: "proxy", Image: "proxy:v1", Resources: corev1.ResourceRequirements{Requests: amounts("1", "1Gi"), Limits: amounts("1", "1Gi")},
					Env: []corev1.EnvVar{{Name: "TIER", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['tier']"}}}},
				},
			},
			Volumes: []corev1.Volume{{Name: "scratch"}},
		},
	}
}

// What can change in place does, and all else is named.
func TestNewPlan(t *testing.T) {
	t.Parallel()
	set := func(list corev1.ResourceList, name corev1.ResourceName, amount string) {
		list[name] = resource.MustParse(amount)
	}
	web := func(s *corev1.PodTemplateSpec) *corev1.Container { return &s.Spec.Containers[0] }
	proxy := func(s *corev1.PodTemplateSpec) *corev1.Container { return &s.Spec.Containers[1] }
	for name, c := range map[string]struct {
		why    string
		change func(*corev1.PodTemplateSpec)
		want   *inplace.Plan
		says   string
	}{
		"Nothing": {"There is nothing to do.", func(*corev1.PodTemplateSpec) {}, &inplace.Plan{}, ""},
		"Image":   {"The kubelet starts the container again.", func(s *corev1.PodTemplateSpec) { web(s).Image = "web:v2" }, &inplace.Plan{Images: map[string]string{"web": "web:v2"}}, ""},
		"Labels": {"They are only metadata.", func(s *corev1.PodTemplateSpec) {
			s.Labels = map[string]string{"app": "web", "tier": "front", "new": "1"}
			s.Annotations = map[string]string{}
		}, &inplace.Plan{Labels: map[string]*string{"new": new("1")}, Annotations: map[string]*string{"team": nil}}, ""},
		"ReadLabel":        {"The container would go on with the old one.", func(s *corev1.PodTemplateSpec) { s.Labels["tier"] = "back" }, nil, "container proxy reads metadata.labels['tier']"},
		"ReadLabelRemoved": {"It would go on with what has gone.", func(s *corev1.PodTemplateSpec) { delete(s.Labels, "tier") }, nil, "container proxy reads metadata.labels['tier']"},
		"ReadLabelImage": {"It starts again anyway.", func(s *corev1.PodTemplateSpec) { s.Labels["tier"] = "back"; proxy(s).Image = "proxy:v2" }, &inplace.Plan{
			Images: map[string]string{"proxy": "proxy:v2"}, Labels: map[string]*string{"tier": new("back")},
		}, ""},
		"CPU": {"The API server resizes containers.", func(s *corev1.PodTemplateSpec) { set(web(s).Resources.Requests, "cpu", "1500m") }, &inplace.Plan{
			Resources: map[string]corev1.ResourceRequirements{"web": {
				Requests: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("1Gi")},
				Limits:   corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("2Gi")},
			}},
		}, ""},
		"SameCPU":  {"1000m is 1.", func(s *corev1.PodTemplateSpec) { set(web(s).Resources.Requests, "cpu", "1000m") }, &inplace.Plan{}, ""},
		"Storage":  {"Only CPU and memory can be resized.", func(s *corev1.PodTemplateSpec) { set(web(s).Resources.Requests, "ephemeral-storage", "1Gi") }, nil, "spec.containers"},
		"NoLimit":  {"A limit can't go.", func(s *corev1.PodTemplateSpec) { delete(web(s).Resources.Limits, "cpu") }, nil, "spec.containers"},
		"Class":    {"The pod's class of service can't change.", func(s *corev1.PodTemplateSpec) { set(proxy(s).Resources.Limits, "cpu", "2") }, nil, "spec.containers"},
		"Env":      {"A container's environment can't change.", func(s *corev1.PodTemplateSpec) { web(s).Env[0].Value = "slow"; web(s).Image = "web:v2" }, nil, "spec.containers"},
		"Volume":   {"A pod's volumes can't change.", func(s *corev1.PodTemplateSpec) { s.Spec.Volumes = nil }, nil, "spec.volumes"},
		"Init":     {"It ran already.", func(s *corev1.PodTemplateSpec) { s.Spec.InitContainers[0].Image = "init:v2" }, nil, "spec.initContainers"},
		"NodeName": {"A pod doesn't move.", func(s *corev1.PodTemplateSpec) { s.Spec.HostNetwork = true }, nil, "the spec"},
		"More": {"Containers can't be added.", func(s *corev1.PodTemplateSpec) {
			s.Spec.Containers = append(s.Spec.Containers, corev1.Container{Name: "c"})
		}, nil, "containers come or go"},
		"Others": {"They can't be replaced either.", func(s *corev1.PodTemplateSpec) { web(s).Name = "site" }, nil, "come, go or change places"},
		"AnotherPlaces": {"Their order is part of the spec.", func(s *corev1.PodTemplateSpec) {
			s.Spec.Containers[0], s.Spec.Containers[1] = s.Spec.Containers[1], s.Spec.Containers[0]
		}, nil, "change places"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := template()
			c.change(to)
			plan, why := inplace.NewPlan(template(), to, inplace.Options{Resize: true})
			if (plan == nil) != (c.want == nil) || plan == nil != (why != "") || !strings.Contains(why, c.says) {
				t.Fatalf("%s %+v, %q", c.why, plan, why)
			}
			if plan == nil {
				return
			}
			if diff := cmp.Diff(c.want, plan, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s -want +got:\n%s", c.why, diff)
			}
		})
	}
}

// Where the API server can't resize, other resources are another pod.
func TestNewPlanWithoutResize(t *testing.T) {
	t.Parallel()
	to := template()
	to.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("1500m")
	if plan, why := inplace.NewPlan(template(), to, inplace.Options{}); plan != nil || !strings.Contains(why, "spec.containers") {
		t.Errorf("%+v, %q", plan, why)
	}
}
