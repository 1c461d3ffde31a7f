// Package inplace updates a pod without replacing it: what can change so, in which
// steps, and when it is done. It decides; whoever calls it writes.
//
// A pod with the readiness gate InPlaceUpdateReady goes through
//
//	condition False → (grace period) → new images and metadata → containers run them → condition True
//
// which are three writes: the first and last to its status, one to the pod.
package inplace

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Plan is what has to change of a pod to come from one revision to another.
type Plan struct {
	// Images are new ones, by container.
	Images map[string]string
	// Resources are new ones, by container.
	Resources map[string]corev1.ResourceRequirements
	// Labels and Annotations are new values; nil: it goes.
	Labels, Annotations map[string]*string
}

// Options are what depends on the cluster.
type Options struct {
	// Resize: the API server has the subresource pods/resize (from 1.33 on).
	Resize bool
}

// NewPlan compares the templates of two revisions. Where the change can't be made in
// place the plan is nil, and why says what stands in the way.
func NewPlan(from, to *corev1.PodTemplateSpec, o Options) (plan *Plan, why string) {
	p := &Plan{
		Images: map[string]string{}, Resources: map[string]corev1.ResourceRequirements{},
		Labels: changed(from.Labels, to.Labels), Annotations: changed(from.Annotations, to.Annotations),
	}
	if len(from.Spec.Containers) != len(to.Spec.Containers) {
		return nil, "containers come or go"
	}
	// What is left when all that can change is as it was must be what was.
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

// changed are the values that a map gets, and the keys that it loses.
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

// resizable reports whether a change of resources is one of amounts of CPU and memory
// that were set before, which is all that the API server takes for a running pod; it
// must not change the pod's class of service, which guaranteed pods tie to equality.
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

// different names the parts of a spec that differ, as its JSON does.
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

// readInEnv is a label or an annotation that changes, and that a container reads when
// it starts; "": none.
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
