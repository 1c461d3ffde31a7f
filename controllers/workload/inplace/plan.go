// Package inplace plans the update of a pod without its replacement: which changes are possible,
// in which steps, and when the update is complete. It only decides; the caller writes.
//
// A pod with the readiness gate InPlaceUpdateReady goes through
//
//	condition False → (grace period) → new images and metadata → containers run them → condition True
//
// These are three writes: two to the status and one to the pod. A resize, and each further batch
// of containers by priority, adds writes.
package inplace

import (
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// Plan is the change of a pod from one revision to another.
type Plan struct {
	// Images are the new images, by container.
	Images map[string]string
	// Resources are the new resources, by container.
	Resources map[string]corev1.ResourceRequirements
	// Labels and Annotations are new values by key; nil removes the key.
	Labels, Annotations map[string]*string
}

// Options are the abilities of the cluster.
type Options struct {
	// Resize: the API server has the subresource pods/resize (from 1.33 on).
	Resize bool
}

// NewPlan compares the templates of two revisions. If the change cannot be made in place, the
// plan is nil and why is the reason.
func NewPlan(from, to *corev1.PodTemplateSpec, o Options) (plan *Plan, why string) {
	p := &Plan{
		Images: map[string]string{}, Resources: map[string]corev1.ResourceRequirements{},
		Labels: changed(from.Labels, to.Labels), Annotations: changed(from.Annotations, to.Annotations),
	}
	for _, key := range identity() {
		delete(p.Labels, key)
	}
	if len(from.Spec.Containers) != len(to.Spec.Containers) {
		return nil, "containers come or go"
	}
	// With all permitted changes undone, the rest must equal the old spec.
	rest := to.DeepCopy()
	rest.Labels, rest.Annotations = from.Labels, from.Annotations
	for i := range rest.Spec.Containers {
		now, was := &rest.Spec.Containers[i], &from.Spec.Containers[i]
		if now.Name != was.Name {
			return nil, "containers come, go or change places"
		}
		if now.Image != was.Image {
			p.Images[now.Name] = now.Image
			now.Image = was.Image
		}
		if o.Resize && resizable(&from.Spec, was.Resources, now.Resources) {
			p.Resources[now.Name] = now.Resources
			now.Resources = was.Resources
		}
	}
	if !equality.Semantic.DeepEqual(rest.Spec, from.Spec) {
		return nil, "more than images, labels and annotations changes: " + strings.Join(different(&from.Spec, &rest.Spec), ", ")
	}
	for _, c := range to.Spec.Containers {
		if key := p.readInEnv(c); key != "" && p.Images[c.Name] == "" {
			return nil, "container " + c.Name + " reads " + key + " in its environment, and only another image has it started again"
		}
	}
	return p, ""
}

// identity returns the labels that a controller gives a pod, whatever its template says.
func identity() []string {
	return []string{
		revision.Label, v1beta1.LabelInstanceID, v1beta1.LabelLifecycle, appsv1.StatefulSetPodNameLabel, appsv1.PodIndexLabel,
		appsv1.DefaultDeploymentUniqueLabelKey,
	}
}

// changed returns the new values of a map by key; nil for a key that is removed.
func changed(from, to map[string]string) map[string]*string {
	out := map[string]*string{}
	for k, v := range to {
		if was, had := from[k]; !had || was != v {
			out[k] = &v
		}
	}
	for k := range from {
		if _, has := to[k]; !has {
			out[k] = nil
		}
	}
	return out
}

// resizable reports whether resources differ only in amounts of CPU and memory that were set
// before. The API server accepts no other change for a running pod. The change must keep the QoS
// class of the pod, which is Guaranteed only if requests equal limits.
func resizable(spec *corev1.PodSpec, from, to corev1.ResourceRequirements) bool {
	if equality.Semantic.DeepEqual(from, to) || !equality.Semantic.DeepEqual(from.Claims, to.Claims) {
		return false
	}
	return amounts(from.Requests, to.Requests) && amounts(from.Limits, to.Limits) && guaranteed(from) == guaranteed(to) && spec.Resources == nil
}

func amounts(from, to corev1.ResourceList) bool {
	if len(from) != len(to) {
		return false
	}
	for name, was := range from {
		now, has := to[name]
		if !has || now.Cmp(was) != 0 && name != corev1.ResourceCPU && name != corev1.ResourceMemory {
			return false
		}
	}
	return true
}

func guaranteed(r corev1.ResourceRequirements) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit, limited := r.Limits[name]
		request, requested := r.Requests[name]
		if !limited || requested && request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}

// different returns the JSON paths of the parts of a spec that differ.
func different(a, b *corev1.PodSpec) []string {
	parts := map[string][2]any{
		"containers":     {a.Containers, b.Containers},
		"initContainers": {a.InitContainers, b.InitContainers},
		"volumes":        {a.Volumes, b.Volumes},
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if !equality.Semantic.DeepEqual(parts[name][0], parts[name][1]) {
			out = append(out, "spec."+name)
		}
	}
	if len(out) == 0 {
		return []string{"the spec"}
	}
	return out
}

// readInEnv returns the field path of a changing label or annotation that a container reads when
// it starts; "" if there is none.
func (p *Plan) readInEnv(c corev1.Container) string {
	for _, e := range c.Env {
		if e.ValueFrom == nil || e.ValueFrom.FieldRef == nil {
			continue
		}
		for field, keys := range map[string]map[string]*string{"metadata.labels": p.Labels, "metadata.annotations": p.Annotations} {
			key, ok := strings.CutPrefix(e.ValueFrom.FieldRef.FieldPath, field+"['")
			if _, changes := keys[strings.TrimSuffix(key, "']")]; ok && changes {
				return e.ValueFrom.FieldRef.FieldPath
			}
		}
	}
	return ""
}
