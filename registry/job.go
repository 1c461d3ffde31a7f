package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// maxTemplate bounds the file of a Job, in bytes. It is far above any real file.
const maxTemplate = 64 << 10

// template is the file of a Job.
type template struct {
	text string
	yamlfile.Mistakes
}

func decodeTemplate(data []byte) *template {
	t := &template{text: string(data)}
	if len(data) > maxTemplate {
		t.Mistakes = []yamlfile.Mistake{{Message: fmt.Sprintf("the file has %d bytes; a Job of a check has at most %d", len(data), maxTemplate)}}
		return t
	}
	if unknown := unknownPlaceholder(t.text); unknown != "" {
		before, _, _ := strings.Cut(t.text, unknown)
		line := before[strings.LastIndexByte(before, '\n')+1:]
		t.Mistakes = []yamlfile.Mistake{{
			Point: yamlfile.Point{Line: strings.Count(before, "\n") + 1, Column: len([]rune(line)) + 1}, Message: unknown + " stands for nothing", Hint: knownPlaceholders,
		}}
		return t
	}
	doc := yamlfile.Parse([]byte(standIns().Expand(t.text)))
	if !doc.Broken {
		jobChecker{checker{doc}}.job()
	}
	t.Mistakes = doc.Mistakes
	return t
}

// standIns returns names of the same length as their placeholders, so that positions stay correct.
func standIns() Names {
	like := func(placeholder string) string { return strings.Repeat("a", len(placeholder)) }
	return Names{
		Component: like("$(component)"), Pipeline: like("$(pipeline)"), Stage: like("$(stage)"),
		Cluster: like(perCluster), Clusters: []string{like("$(clusters)")},
	}
}

// ParseJob decodes the Job of a check after its placeholders were replaced. The error is the first
// mistake.
func ParseJob(text string) (*batchv1.Job, error) {
	doc := yamlfile.Parse([]byte(text))
	var job *batchv1.Job
	if !doc.Broken {
		job = jobChecker{checker{doc}}.job()
	}
	if len(doc.Mistakes) > 0 {
		return nil, errors.New(doc.Mistakes[0].Message)
	}
	return job, nil
}

// jobChecker checks the Job of a check.
type jobChecker struct{ checker }

// job decodes a Job, and reports fields that a Job of a check may not have. Keelson creates, finds
// and deletes the Job, so these fields would make it another object, or a Job that runs nothing.
func (c jobChecker) job() *batchv1.Job {
	header, _ := c.doc.Value.(map[string]any)
	if header["apiVersion"] != "batch/v1" || header["kind"] != "Job" {
		c.value([]string{"kind"}, fmt.Sprintf("it holds apiVersion %s, kind %s, and not a Job of batch/v1", yamlfile.Describe(header["apiVersion"]), yamlfile.Describe(header["kind"])), "")
		return nil
	}
	job := &batchv1.Job{}
	if !c.decode(job) {
		return nil
	}
	metadata, _ := header["metadata"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if key != "labels" && key != "annotations" {
			c.key([]string{"metadata", key}, fmt.Sprintf("a Job of a check has no %s of its own", key), "its metadata may hold labels and annotations; Keelson names it")
		}
	}
	if _, set := header["status"]; set {
		c.key([]string{"status"}, "a Job of a check has no status of its own", "")
	}
	pods := &job.Spec.Template
	c.ours([]string{"metadata", "labels"}, job.Labels)
	c.ours([]string{"metadata", "annotations"}, job.Annotations)
	c.ours([]string{"spec", "template", "metadata", "labels"}, pods.Labels)
	c.ours([]string{"spec", "template", "metadata", "annotations"}, pods.Annotations)
	c.jobSpec(&job.Spec)
	return job
}

// decode decodes strictly into a Job, and reports fields that do not fit.
func (c jobChecker) decode(into *batchv1.Job) bool {
	data, err := json.Marshal(c.doc.Value)
	if err != nil {
		c.value(nil, "not a Job: "+err.Error(), "")
		return false
	}
	unknown, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		var at []string
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](json.Unmarshal(data, &batchv1.Job{})); ok {
			at = strings.Split(wrong.Field, ".")
		}
		c.value(at, "not a Job: "+err.Error(), "")
		return false
	}
	for _, one := range unknown {
		var at []string
		if field, ok := errors.AsType[kjson.FieldError](one); ok {
			at = strings.FieldsFunc(field.FieldPath(), func(r rune) bool { return strings.ContainsRune(".[]", r) })
		}
		c.key(at, "not a Job: "+one.Error(), "")
	}
	return len(unknown) == 0
}

// ours reports labels or annotations in Keelson's group. With them, the Job would count as
// another object.
func (c jobChecker) ours(path []string, set map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if prefix, _, _ := strings.Cut(name, "/"); prefix == v1alpha1.GroupVersion.Group {
			c.key(yamlfile.Below(path, name), name+" is Keelson's to give", "")
		}
	}
}

func (c jobChecker) jobSpec(spec *batchv1.JobSpec) {
	const outcome = "Keelson deletes the Job when its outcome was taken in"
	at := func(key string) []string { return []string{"spec", key} }
	refuse := func(set bool, key, why string) {
		if set {
			c.key(at(key), fmt.Sprintf("a Job of a check has no %s: %s", key, why), "leave it out")
		}
	}
	refuse(spec.TTLSecondsAfterFinished != nil, "ttlSecondsAfterFinished", outcome)
	refuse(spec.Suspend != nil, "suspend", "it would not run")
	refuse(spec.Selector != nil, "selector", "the API server sets it")
	refuse(spec.ManualSelector != nil, "manualSelector", "the API server sets its selector")
	refuse(spec.ManagedBy != nil, "managedBy", "another controller would decide its outcome")
	atLeastOne := func(n *int32, key string) {
		if n != nil && *n < 1 {
			c.value(at(key), fmt.Sprintf("with %s %d the Job runs nothing", key, *n), "")
		}
	}
	atLeastOne(spec.Parallelism, "parallelism")
	atLeastOne(spec.Completions, "completions")
	pods := []string{"spec", "template", "spec"}
	if len(spec.Template.Spec.Containers) == 0 {
		c.value(pods, "the Job has no containers", "")
	}
	if policy := spec.Template.Spec.RestartPolicy; policy != corev1.RestartPolicyNever && policy != corev1.RestartPolicyOnFailure {
		c.value(yamlfile.Below(pods, "restartPolicy"), fmt.Sprintf("restartPolicy is %q; a Job needs Never or OnFailure", policy), "")
	}
}
