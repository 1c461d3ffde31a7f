package registry

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Limits of pipelines and freezes. They are far above any real use.
const (
	maxStages  = 50
	maxChecks  = 20
	maxWindows = 20
	maxFrozen  = 1000
	maxQuery   = 4096 // bytes of a query, or a URL
	maxWait    = 30 * 24 * time.Hour
)

// pipelineChecker checks the stages of a pipeline.
type pipelineChecker struct{ checker }

// stages checks the stages of a pipeline, and returns them with the templates that they use.
func (c pipelineChecker) stages(specs []v1alpha1.Stage) (stages []*Stage, templates []templateRef) {
	c.most([]string{"stages"}, len(specs), maxStages)
	if len(specs) == 0 && !c.doc.Wrong("stages") {
		c.key([]string{"stages"}, "a pipeline needs at least one stage", "")
	}
	seen := map[string]bool{}
	for i, spec := range specs {
		path := []string{"stages", strconv.Itoa(i)}
		c.name(yamlfile.Below(path, "name"), spec.Name, seen)
		s := &Stage{Spec: spec, at: c.doc.KeyPoint(path...), selector: c.selector(yamlfile.Below(path, "clusterSelector"), spec.ClusterSelector)}
		if wrong := validation.IsQualifiedName(spec.Order); len(wrong) > 0 && spec.Order != "" {
			c.value(yamlfile.Below(path, "order"), fmt.Sprintf("order %q is not the name of a label: %s", spec.Order, short(wrong)), "")
		}
		c.wait(yamlfile.Below(path, "silence"), spec.Silence, 0)
		c.wait(yamlfile.Below(path, "bake"), spec.Bake, 0)
		c.wait(yamlfile.Below(path, "timeout"), spec.Timeout, time.Second)
		s.Windows = c.windows(yamlfile.Below(path, "windows"), spec.Windows)
		c.oneOf(yamlfile.Below(path, "onFailure"), string(spec.OnFailure), string(v1alpha1.OnFailurePause), string(v1alpha1.OnFailureRollback))
		var of []templateRef
		s.before, of = c.checks(yamlfile.Below(path, "before"), spec.Before)
		templates = append(templates, of...)
		s.after, of = c.checks(yamlfile.Below(path, "after"), spec.After)
		templates = append(templates, of...)
		s.ranges, s.promotedAt = c.promotion(yamlfile.Below(path, "promotion"), spec.Promotion)
		stages = append(stages, s)
	}
	return stages, templates
}

// checks returns the positions of the CEL conditions, and the templates of the jobs.
func (c pipelineChecker) checks(path []string, checks []v1alpha1.Check) (at []yamlfile.Point, templates []templateRef) {
	c.most(path, len(checks), maxChecks)
	seen := map[string]bool{}
	for i, one := range checks {
		path := yamlfile.Below(path, strconv.Itoa(i))
		at = append(at, c.doc.ValuePoint(yamlfile.Below(path, "cel")...))
		c.name(yamlfile.Below(path, "name"), one.Name, seen)
		c.wait(yamlfile.Below(path, "for"), one.For, 0)
		c.wait(yamlfile.Below(path, "timeout"), one.Timeout, time.Second)
		if one.For != nil && one.Timeout != nil && one.Timeout.Duration < one.For.Duration {
			c.value(yamlfile.Below(path, "timeout"), fmt.Sprintf("timeout %s is shorter than for %s, so it can't pass", one.Timeout.Duration, one.For.Duration), "")
		}
		if one.For != nil && (one.Job != nil || one.Approval != nil || one.Probe != nil) {
			c.key(yamlfile.Below(path, "for"), "for is of checks that are asked again and again: cel, prometheus and http", "")
		}
		if ref := c.check(path, one); ref != nil {
			templates = append(templates, *ref)
		}
	}
	return at, templates
}

// check checks one check, and returns the template of its job, if any.
func (c pipelineChecker) check(path []string, one v1alpha1.Check) *templateRef {
	kind := c.one(path, "a check", "cel", "prometheus", "job", "http", "approval", "probe")
	if kind == "" || c.doc.Wrong(yamlfile.Below(path, kind)...) {
		return nil
	}
	path = yamlfile.Below(path, kind)
	switch {
	case one.Prometheus != nil:
		c.address(yamlfile.Below(path, "address"), one.Prometheus.Address)
		c.text(yamlfile.Below(path, "query"), one.Prometheus.Query)
		c.oneOf(yamlfile.Below(path, "operator"), one.Prometheus.Operator, "<", "<=", ">", ">=", "==", "!=")
	case one.HTTP != nil:
		c.text(yamlfile.Below(path, "url"), one.HTTP.URL)
		c.address(yamlfile.Below(path, "url"), Names{Component: "a", Pipeline: "a", Stage: "a", Cluster: "a", Clusters: []string{"a"}}.Expand(one.HTTP.URL))
		if s := one.HTTP.Status; s != 0 && (s < http.StatusOK || s > 599) {
			c.value(yamlfile.Below(path, "status"), fmt.Sprintf("status %d is not the status of an answer", s), "")
		}
	case one.Job != nil:
		return c.template(yamlfile.Below(path, "template"), one.Job.Template)
	case one.Probe != nil:
		c.probe(path, *one.Probe)
	case one.Approval != nil:
	default:
		if one.CEL == "" {
			c.value(path, "cel is empty", "")
		}
	}
	return nil
}

// probe checks a check that uses a probe.
func (c pipelineChecker) probe(path []string, p v1alpha1.ProbeCheck) {
	if wrong := naming.Check(p.Name); wrong != "" && p.Name != "" {
		c.value(yamlfile.Below(path, "name"), wrong, "")
	}
	if p.Runs < 0 || p.Runs > MaxProbeRuns {
		c.value(yamlfile.Below(path, "runs"), fmt.Sprintf("runs is %d; 1 to %d make sense", p.Runs, MaxProbeRuns), "")
	}
}

// probes returns the checks of a pipeline that use a probe.
func (c pipelineChecker) probes(stages []v1alpha1.Stage) []probeRef {
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
