package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Limits of probes.
const (
	maxProbes        = 20
	maxProbeSubjects = 20
	maxProbeReplicas = 100
	// maxProbeName bounds the combined length of the names of a probe and a subject. A
	// StatefulSet's pods have a label with the object's name and a hash of 10 letters.
	maxProbeName      = 63 - len("probe--") - 11
	leastProbe        = 10 * time.Second // the shortest interval between runs
	checkProbeTimeout = 30 * time.Minute // for a check without a timeout
)

func decodeProbe(data []byte) *probeFile {
	f := &probeFile{}
	doc := decodeFile(data, v1alpha1.KindProbe, &f.spec)
	if !doc.Broken {
		c := checker{doc}
		f.selector = c.selector([]string{"clusterSelector"}, f.spec.ClusterSelector)
		if wrong := naming.Check(f.spec.Namespace); wrong != "" && f.spec.Namespace != "" {
			c.value([]string{"namespace"}, wrong, "")
		}
		if f.spec.Namespace == v1alpha1.Namespace {
			c.value([]string{"namespace"}, "Keelson's own namespace is not for probes", "")
		}
		c.wait([]string{"interval"}, f.spec.Interval, leastProbe)
		c.wait([]string{"timeout"}, f.spec.Timeout, time.Second)
		for _, name := range slices.Sorted(maps.Keys(f.spec.Images)) {
			c.image(name, f.spec.Images[name])
			if f.spec.Images[name].Into != nil {
				c.key([]string{"images", name, "into"}, "into is of charts: a probe has none", "")
			}
		}
		c.subjects(f)
	}
	f.Mistakes = doc.Mistakes
	return f
}

func (c checker) subjects(f *probeFile) {
	c.most([]string{"subjects"}, len(f.spec.Subjects), maxProbeSubjects)
	if len(f.spec.Subjects) == 0 && !c.doc.Wrong("subjects") {
		c.key([]string{"subjects"}, "a probe needs at least one subject", "")
	}
	seen := map[string]bool{}
	for i, s := range f.spec.Subjects {
		path := []string{"subjects", strconv.Itoa(i)}
		c.name(yamlfile.Below(path, "name"), s.Name, seen)
		f.subjectsAt = append(f.subjectsAt, c.doc.ValuePoint(path...))
		f.readyAt = append(f.readyAt, c.doc.ValuePoint(slices.Concat(path, []string{"custom", "ready"})...))
		kind := c.one(path, "a subject", "deployment", "statefulSet", "daemonSet", "job", "custom")
		path = yamlfile.Below(path, kind)
		switch {
		case kind == "" || c.doc.Wrong(path...):
		case s.Deployment != nil:
			c.replicas(path, s.Deployment, f.spec.Images)
		case s.StatefulSet != nil:
			c.replicas(path, s.StatefulSet, f.spec.Images)
		case s.DaemonSet != nil:
			c.pod(path, *s.DaemonSet, f.spec.Images)
			if len(s.DaemonSet.NodeSelector) == 0 {
				c.key(path, "nodeSelector is missing: a DaemonSet without one has a pod on every node", "select a few nodes by a label of theirs")
			}
		case s.Job != nil:
			c.pod(path, *s.Job, f.spec.Images)
		case s.Custom != nil:
			if ref := c.template(yamlfile.Below(path, "template"), s.Custom.Template); ref != nil {
				f.templates = append(f.templates, *ref)
			}
			metadata, _ := s.Custom.Upgrade["metadata"].(map[string]any)
			if cmp.Or(metadata["name"], metadata["namespace"]) != nil {
				c.key(yamlfile.Below(path, "upgrade"), "an upgrade changes no name and no namespace", "")
			}
		}
	}
}

// one returns which of the keys is set, and reports a problem unless exactly one is set.
func (c checker) one(path []string, what string, keys ...string) string {
	set := slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		_, node := c.doc.Lookup(yamlfile.Below(path, key)...)
		return node == nil
	})
	switch {
	case len(set) > 1:
		c.value(path, fmt.Sprintf("%s is one of %s, and not %s at once", what, strings.Join(keys, ", "), strings.Join(set, " and ")), "")
	case len(set) == 1:
		return set[0]
	case !c.doc.Wrong(path...):
		c.value(path, what+" needs one of "+strings.Join(keys, ", "), "")
	}
	return ""
}

func (c checker) replicas(path []string, r *v1alpha1.ProbeReplicas, images map[string]v1alpha1.Image) {
	if r.Replicas < 0 || r.Replicas > maxProbeReplicas {
		c.value(yamlfile.Below(path, "replicas"), fmt.Sprintf("replicas is %d; 1 to %d make sense", r.Replicas, maxProbeReplicas), "")
	}
	c.pod(path, r.ProbePod, images)
}

func (c checker) pod(path []string, p v1alpha1.ProbePod, images map[string]v1alpha1.Image) {
	known := slices.Sorted(maps.Keys(images))
	for _, is := range []struct{ key, name string }{{"image", p.Image}, {"upgradeTo", p.UpgradeTo}} {
		if _, ok := images[is.name]; !ok && is.name != "" && !c.doc.Wrong("images") {
			c.value(yamlfile.Below(path, is.key), fmt.Sprintf("there is no image %q in this probe", is.name), naming.Suggest(is.name, known))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.NodeSelector)) {
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			c.key(yamlfile.Below(path, "nodeSelector"), fmt.Sprintf("label %q: %s", key, short(wrong)), "")
		}
		if wrong := validation.IsValidLabelValue(p.NodeSelector[key]); len(wrong) > 0 {
			c.value(yamlfile.Below(path, "nodeSelector"), fmt.Sprintf("label %s: %s", key, short(wrong)), "")
		}
	}
}

// probe checks a check that uses a probe.
func (c checker) probe(path []string, p v1alpha1.ProbeCheck) {
	if wrong := naming.Check(p.Name); wrong != "" && p.Name != "" {
		c.value(yamlfile.Below(path, "name"), wrong, "")
	}
	if p.Runs < 0 || p.Runs > MaxProbeRuns {
		c.value(yamlfile.Below(path, "runs"), fmt.Sprintf("runs is %d; 1 to %d make sense", p.Runs, MaxProbeRuns), "")
	}
}

// probes returns the checks of a pipeline that use a probe.
func (c checker) probes(stages []v1alpha1.Stage) []probeRef {
	var out []probeRef
	add := func(checks []v1alpha1.Check, path ...string) {
		for i, is := range checks {
			if is.Probe == nil {
				continue
			}
			ref := probeRef{spec: *is.Probe, timeout: checkProbeTimeout, at: c.doc.ValuePoint(slices.Concat(path, []string{strconv.Itoa(i), "probe", "name"})...)}
			if is.Timeout != nil {
				ref.timeout = is.Timeout.Duration
			}
			out = append(out, ref)
		}
	}
	for i, stage := range stages {
		add(stage.Before, "stages", strconv.Itoa(i), "before")
		add(stage.After, "stages", strconv.Itoa(i), "after")
	}
	return out
}
