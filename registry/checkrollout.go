package registry

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/window"
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

// pipeline reports an invalid name of a pipeline.
func (c checker) pipeline(name string) {
	path := []string{"pipeline"}
	_, set := c.doc.Lookup(path...)
	if set == nil || c.doc.Wrong(path...) {
		return
	}
	if wrong := naming.Check(name); wrong != "" {
		c.value(path, "pipeline: "+wrong, "name one of pipelines/, without .yaml")
	}
}

// most reports a list that is too long.
func (c checker) most(path []string, got, most int) {
	if got > most {
		c.key(path, fmt.Sprintf("%s has %d items; at most %d are allowed", path[len(path)-1], got, most), "")
	}
}

// stages checks the stages of a pipeline, and returns them with the templates that they use.
func (c checker) stages(specs []v1alpha1.Stage) (stages []*Stage, templates []templateRef) {
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

// name reports an invalid name, and a name that an earlier item has.
func (c checker) name(path []string, name string, seen map[string]bool) {
	switch wrong := naming.Check(name); {
	case c.doc.Wrong(path...):
	case wrong != "":
		c.value(path, wrong, "")
	case seen[name]:
		c.value(path, fmt.Sprintf("%q stands above already", name), "")
	}
	seen[name] = true
}

func (c checker) wait(path []string, d *metav1.Duration, least time.Duration) {
	if d != nil && !c.doc.Wrong(path...) && (d.Duration < least || d.Duration > maxWait) {
		c.value(path, fmt.Sprintf("%s is %s; %s to %s makes sense", path[len(path)-1], d.Duration, least, maxWait), "")
	}
}

// windows compiles the windows, and reports and skips invalid ones.
func (c checker) windows(path []string, specs []v1alpha1.Window) window.Windows {
	c.most(path, len(specs), maxWindows)
	var out window.Windows
	for i, spec := range specs {
		path := yamlfile.Below(path, strconv.Itoa(i))
		if c.doc.Wrong(path...) {
			continue
		}
		w, err := window.New(spec.Cron, spec.Duration.Duration, spec.TimeZone)
		if err != nil {
			c.value(path, err.Error(), "for example {cron: 0 9 * * 1-5, duration: 8h, timeZone: Europe/Berlin}")
			continue
		}
		out = append(out, w)
	}
	return out
}

// checks returns the positions of the CEL conditions, and the templates of the jobs.
func (c checker) checks(path []string, checks []v1alpha1.Check) (at []yamlfile.Point, templates []templateRef) {
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
func (c checker) check(path []string, one v1alpha1.Check) *templateRef {
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

// text checks a text with placeholders.
func (c checker) text(path []string, text string) {
	if len(text) > maxQuery {
		c.value(path, fmt.Sprintf("%s has %d bytes; at most %d are allowed", path[len(path)-1], len(text), maxQuery), "")
	}
	if unknown := unknownPlaceholder(text); unknown != "" {
		c.value(path, unknown+" stands for nothing", knownPlaceholders)
	}
}

func (c checker) address(path []string, address string) {
	u, err := url.Parse(address)
	switch {
	case c.doc.Wrong(path...):
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		c.value(path, fmt.Sprintf("%s %q is not an http or https URL", path[len(path)-1], address), "")
	case u.User != nil:
		c.value(path, path[len(path)-1]+" holds credentials: what stands in git can be read by many", "")
	}
}

func (c checker) template(at []string, name string) *templateRef {
	if name != path.Clean(name) || path.IsAbs(name) || strings.HasPrefix(name, "../") || !isYAML(name) {
		c.value(at, fmt.Sprintf("template %q is not the path of a .yaml file from the root of the repository", name), "")
		return nil
	}
	return &templateRef{name, c.doc.ValuePoint(at...)}
}

// span checks that a freeze ends after its start.
func (c checker) span(f v1alpha1.Freeze) {
	if f.From != nil && f.Until != nil && !f.From.Before(f.Until) {
		c.value([]string{"until"}, "it ends before it begins", "")
	}
}

// names checks a list of names, and returns their positions.
func (c checker) names(key string, names []string) (at []yamlfile.Point) {
	c.some(key, len(names))
	for i, name := range names {
		path := []string{key, strconv.Itoa(i)}
		if wrong := naming.Check(name); wrong != "" && !c.doc.Wrong(path...) {
			c.value(path, wrong, "")
		}
		at = append(at, c.doc.ValuePoint(path...))
	}
	return at
}

// some reports a list that is set but empty, or too long.
func (c checker) some(key string, n int) {
	if _, set := c.doc.Lookup(key); set != nil && n == 0 && !c.doc.Wrong(key) {
		c.key([]string{key}, key+" names none", "leave it out for all")
	}
	c.most([]string{key}, n, maxFrozen)
}
