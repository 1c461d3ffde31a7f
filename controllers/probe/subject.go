package probe

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
)

// The kinds of subjects, and the steps of a run. Both are labels of metrics.
const (
	kindDeployment  = "deployment"
	kindStatefulSet = "statefulSet"
	kindDaemonSet   = "daemonSet"
	kindJob         = "job"
	kindCustom      = "custom"

	stepCreate    = "create"
	stepUpgrade   = "upgrade"
	stepScaleUp   = "scaleUp"
	stepScaleDown = "scaleDown"
	stepDelete    = "delete"
)

const (
	labelSubject      = "keelson.io/probe-subject"
	annotationUpgrade = "keelson.io/probe-upgrade"
	// user is the UID of the pods; no image needs to know it.
	user = int64(65532)
)

// Subject is one object of a probe, and what a run does with it.
type Subject struct {
	Name string
	// Kind is the key of the subject in the probe's file, such as deployment.
	Kind   string
	ID     differ.ID
	GVK    schema.GroupVersionKind
	Health health.Rules
	Steps  []Step
	// Err is why the subject can't be tested: its condition is invalid.
	Err error
}

// Step is one action, after which the run waits for the object. It is a Create, which replaces an
// existing object, or a merge Patch. With neither, it is the deletion.
type Step struct {
	Name   string
	Create map[string]any
	Patch  map[string]any
}

// Object returns the record of the subject in a result.
func (s *Subject) Object() v1alpha1.ProbeObject {
	return v1alpha1.ProbeObject{APIVersion: s.GVK.GroupVersion().String(), Kind: s.GVK.Kind, Namespace: s.ID.Namespace, Name: s.ID.Name}
}

// maker makes the subjects of one probe on a cluster.
type maker struct {
	probe   *registry.Probe
	fleet   string
	mirrors map[string]string // of the cluster
}

// Subjects returns the subjects of a probe on a cluster. The probe must have no Problems.
func Subjects(p *registry.Probe, fleet string, c *registry.Cluster) []Subject {
	m := maker{p, fleet, c.Spec.ImageMirrors}
	out := make([]Subject, 0, len(p.Spec.Subjects))
	for _, spec := range p.Spec.Subjects {
		var s Subject
		switch {
		case spec.Deployment != nil:
			s = m.scaled(kindDeployment, "Deployment", spec.Name, spec.Deployment)
		case spec.StatefulSet != nil:
			s = m.scaled(kindStatefulSet, "StatefulSet", spec.Name, spec.StatefulSet)
		case spec.DaemonSet != nil:
			s = m.daemonSet(spec.Name, spec.DaemonSet)
		case spec.Job != nil:
			s = m.job(spec.Name, spec.Job)
		case spec.Custom != nil:
			s = m.custom(spec.Name, spec.Custom)
		}
		s.Steps = append(s.Steps, Step{Name: stepDelete})
		out = append(out, s)
	}
	return out
}

func (m maker) subject(kind, name string, gvk schema.GroupVersionKind) Subject {
	return Subject{Name: name, Kind: kind, GVK: gvk, ID: differ.ID{
		Group: gvk.Group, Kind: gvk.Kind, Namespace: m.probe.Spec.Namespace, Name: "probe-" + m.probe.Name + "-" + name,
	}}
}

// object returns the object of a subject, with the marks of the probe.
func (m maker) object(s *Subject, spec map[string]any) map[string]any {
	return map[string]any{
		"apiVersion": s.GVK.GroupVersion().String(), "kind": s.GVK.Kind, "spec": spec,
		"metadata": map[string]any{
			"name": s.ID.Name, "namespace": s.ID.Namespace,
			"labels":      map[string]any{v1alpha1.LabelProbe: m.probe.Name},
			"annotations": map[string]any{v1alpha1.AnnotationFleet: m.fleet},
		},
	}
}

func (m maker) labels(name string) map[string]any {
	return map[string]any{v1alpha1.LabelProbe: m.probe.Name, labelSubject: name}
}

// pods returns a pod template that any cluster accepts. Its pods have one second to stop.
func (m maker) pods(name string, p *v1alpha1.ProbePod, restart string) map[string]any {
	container := map[string]any{
		"name": "probe", "image": m.image(p.Image),
		"resources": map[string]any{
			"requests": map[string]any{"cpu": "10m", "memory": "16Mi"},
			"limits":   map[string]any{"memory": "64Mi"},
		},
		"securityContext": map[string]any{"allowPrivilegeEscalation": false, "capabilities": map[string]any{"drop": []any{"ALL"}}},
	}
	if len(p.Command) > 0 {
		container["command"] = texts(p.Command)
	}
	spec := map[string]any{
		"containers": []any{container}, "restartPolicy": restart,
		"automountServiceAccountToken": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": int64(1),
		"securityContext": map[string]any{
			"runAsNonRoot": true, "runAsUser": user, "runAsGroup": user, "seccompProfile": map[string]any{"type": "RuntimeDefault"},
		},
	}
	if len(p.NodeSelector) > 0 {
		selector := map[string]any{}
		for key, value := range p.NodeSelector {
			selector[key] = value
		}
		spec["nodeSelector"] = selector
	}
	return map[string]any{"metadata": map[string]any{"labels": m.labels(name)}, "spec": spec}
}

func texts(list []string) []any {
	out := make([]any, len(list))
	for i, text := range list {
		out[i] = text
	}
	return out
}

func (m maker) image(name string) string {
	return registry.ResolveImage(m.probe.Spec.Images[name], m.mirrors).Ref
}

// upgrade changes the pods, by another image or only by an annotation. A merge patch replaces
// lists, so it has all containers.
func (m maker) upgrade(name string, p *v1alpha1.ProbePod) Step {
	next := *p
	if p.UpgradeTo != "" {
		next.Image = p.UpgradeTo
	}
	template := m.pods(name, &next, "Always")
	spec, _ := template["spec"].(map[string]any)
	return Step{Name: stepUpgrade, Patch: map[string]any{"spec": map[string]any{"template": map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{annotationUpgrade: "true"}},
		"spec":     map[string]any{"containers": spec["containers"]},
	}}}}
}

func (m maker) workload(kind, name string, p *v1alpha1.ProbePod) (Subject, map[string]any) {
	gvk := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: kind}
	return m.subject("", name, gvk), map[string]any{
		"selector": map[string]any{"matchLabels": m.labels(name)},
		"template": m.pods(name, p, "Always"),
	}
}

func (m maker) scaled(word, kind, name string, r *v1alpha1.ProbeReplicas) Subject {
	s, spec := m.workload(kind, name, &r.ProbePod)
	s.Kind = word
	replicas := int64(max(1, r.Replicas))
	spec["replicas"] = replicas
	if kind == "StatefulSet" {
		spec["serviceName"], spec["podManagementPolicy"] = s.ID.Name, "Parallel"
	}
	scale := func(step string, to int64) Step {
		return Step{Name: step, Patch: map[string]any{"spec": map[string]any{"replicas": to}}}
	}
	s.Steps = []Step{
		{Name: stepCreate, Create: m.object(&s, spec)},
		m.upgrade(name, &r.ProbePod),
		scale(stepScaleUp, replicas+1), scale(stepScaleDown, replicas),
	}
	return s
}

func (m maker) daemonSet(name string, p *v1alpha1.ProbePod) Subject {
	s, spec := m.workload("DaemonSet", name, p)
	s.Kind = kindDaemonSet
	s.Steps = []Step{{Name: stepCreate, Create: m.object(&s, spec)}, m.upgrade(name, p)}
	return s
}

// job has no retries: the probe tests what the cluster does to its pods.
func (m maker) job(name string, p *v1alpha1.ProbePod) Subject {
	s := m.subject(kindJob, name, schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"})
	of := func(p v1alpha1.ProbePod) map[string]any {
		return m.object(&s, map[string]any{"backoffLimit": int64(0), "template": m.pods(name, &p, "Never")})
	}
	s.Steps = []Step{{Name: stepCreate, Create: of(*p)}}
	if p.UpgradeTo != "" {
		next := *p
		next.Image = p.UpgradeTo
		s.Steps = append(s.Steps, Step{Name: stepUpgrade, Create: of(next)})
	}
	return s
}

func (m maker) custom(name string, spec *v1alpha1.ProbeCustom) Subject {
	template := m.probe.Templates[spec.Template]
	apiVersion, _ := template["apiVersion"].(string)
	kind, _ := template["kind"].(string)
	s := m.subject(kindCustom, name, schema.FromAPIVersionAndKind(apiVersion, kind))
	if spec.Ready != "" {
		s.Health, s.Err = Ready(spec.Ready)
	}
	object := overlaid(runtime.DeepCopyJSON(template), m.object(&s, nil))
	s.Steps = []Step{{Name: stepCreate, Create: object}}
	if len(spec.Upgrade) > 0 {
		marks := m.object(&s, nil)
		s.Steps = append(s.Steps, Step{Name: stepUpgrade, Patch: overlaid(runtime.DeepCopyJSON(spec.Upgrade), map[string]any{"metadata": marks["metadata"]})})
	}
	return s
}

// Ready compiles the condition of a custom subject.
func Ready(condition string) (health.Rules, error) {
	rules, err := health.NewRules([]v1alpha1.HealthRule{{Current: condition, Because: "it waits for " + condition}}, nil)
	if wrong, ok := errors.AsType[*health.RuleError](err); ok {
		return rules, fmt.Errorf("ready: %w", wrong.Err)
	}
	return rules, err
}

// overlaid merges over into under, and returns under.
func overlaid(under, over map[string]any) map[string]any {
	for key, value := range over {
		above, nested := value.(map[string]any)
		below, both := under[key].(map[string]any)
		switch {
		case nested && above == nil:
		case nested && both:
			under[key] = overlaid(below, above)
		default:
			under[key] = value
		}
	}
	return under
}

// objectsOf returns the objects that subjects may leave behind, in their order.
func objectsOf(subjects []Subject) []v1alpha1.ProbeObject {
	var out []v1alpha1.ProbeObject
	for i := range subjects {
		if o := subjects[i].Object(); !slices.Contains(out, o) {
			out = append(out, o)
		}
	}
	return out
}
