package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
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
			imageChecker{c}.image(name, f.spec.Images[name])
			if f.spec.Images[name].Into != nil {
				c.key([]string{"images", name, "into"}, "into is of charts: a probe has none", "")
			}
		}
		probeChecker{c, f.spec.Images}.subjects(f)
	}
	f.Mistakes = doc.Mistakes
	return f
}

// probeChecker checks the subjects of a probe.
type probeChecker struct {
	checker
	images map[string]v1alpha1.Image // of the probe, by name
}

func (c probeChecker) subjects(f *probeFile) {
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
			c.replicas(path, s.Deployment)
		case s.StatefulSet != nil:
			c.replicas(path, s.StatefulSet)
		case s.DaemonSet != nil:
			c.pod(path, *s.DaemonSet)
			if len(s.DaemonSet.NodeSelector) == 0 {
				c.key(path, "nodeSelector is missing: a DaemonSet without one has a pod on every node", "select a few nodes by a label of theirs")
			}
		case s.Job != nil:
			c.pod(path, *s.Job)
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

func (c probeChecker) replicas(path []string, r *v1alpha1.ProbeReplicas) {
	if r.Replicas < 0 || r.Replicas > maxProbeReplicas {
		c.value(yamlfile.Below(path, "replicas"), fmt.Sprintf("replicas is %d; 1 to %d make sense", r.Replicas, maxProbeReplicas), "")
	}
	c.pod(path, r.ProbePod)
}

func (c probeChecker) pod(path []string, p v1alpha1.ProbePod) {
	known := slices.Sorted(maps.Keys(c.images))
	for _, is := range []struct{ key, name string }{{"image", p.Image}, {"upgradeTo", p.UpgradeTo}} {
		if _, ok := c.images[is.name]; !ok && is.name != "" && !c.doc.Wrong("images") {
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
