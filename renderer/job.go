package renderer

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// job is a render as the templates see it. It is all that a worker gets: no positions of values, no
// key, nothing of another delivery.
type job struct {
	Component, Version, Namespace string
	Determinism                   v1alpha1.Determinism
	Chart                         []registry.File
	// Archive is the .tgz that the chart came in; "": a folder.
	Archive string
	// Values are meta-config merged with the images, in the form in which Helm passes values files
	// to charts: every number is a float64.
	Values map[string]any
	// Images are the merged images; nil: the version has none.
	Images        map[string]any
	KubeVersion   string
	APIVersions   []string
	ClusterScoped []schema.GroupKind
	// MaxOutput bounds the bytes that the templates may render to.
	MaxOutput int64
}

// newJob takes from a request the data that its templates may see.
func newJob(r Request, maxOutput int64) (*job, *Error) {
	values, err := userValues(r)
	if err != nil {
		return nil, err
	}
	sees := seenBy(r)
	j := &job{
		Component:   r.Version.Component,
		Version:     r.Version.Name,
		Namespace:   r.Version.Spec.Namespace,
		Determinism: r.Version.Spec.Determinism,
		Chart:       r.Version.Chart,
		Archive:     r.Version.Archive,
		Values:      values,
		Images:      r.Version.ImageValues(r.ImageMirrors),
		KubeVersion: sees.kubeVersion,
		APIVersions: sees.apiVersions,
		MaxOutput:   maxOutput,
	}
	for k, scoped := range r.Capabilities.ClusterScoped {
		if scoped {
			j.ClusterScoped = append(j.ClusterScoped, k)
		}
	}
	return j, nil
}

// version returns the job's version, with the fields that a render uses.
func (j *job) version() *registry.Version {
	return &registry.Version{
		Component: j.Component, Name: j.Version, Chart: j.Chart, Archive: j.Archive,
		Spec: v1alpha1.Component{Namespace: j.Namespace},
	}
}

func (j *job) scoped() map[schema.GroupKind]bool {
	scoped := make(map[schema.GroupKind]bool, len(j.ClusterScoped))
	for _, k := range j.ClusterScoped {
		scoped[k] = true
	}
	return scoped
}

// maxMessage bounds an error message of a template, in bytes: it goes into statuses and logs.
const maxMessage = 2 << 10

// run renders. Charts are outside input, and libraries are known to panic on some of it: that is an
// error of the chart.
func (j *job) run() (t *Target, err *Error) {
	defer func() {
		if p := recover(); p != nil {
			v := j.version()
			t, err = nil, newError(v, chartPosition(v, "Chart.yaml", 0), fmt.Sprintf("the chart makes Helm panic: %v", p), nil)
		}
		if err != nil && len(err.Message) > maxMessage {
			err.Message = strings.ToValidUTF8(err.Message[:maxMessage], "") + " …"
		}
	}()
	first, err := j.templates(j.Values)
	if err != nil {
		return nil, err
	}
	drift, err := first.determinism()
	if err != nil {
		return nil, err
	}
	t, err = first.target(first.files, j.scoped())
	if err != nil {
		return nil, err
	}
	if drift == nil {
		t.Unused = j.unused(first)
	}
	t.Warnings = append(t.Warnings, drift...)
	t.Warnings = append(t.Warnings, first.warnings...)
	slices.Sort(t.Warnings)
	t.Warnings = slices.Compact(t.Warnings)
	return t, nil
}

// templates loads the chart anew, since Helm changes charts while it works
// with them, and executes its templates.
func (j *job) templates(values map[string]any) (*execution, *Error) {
	c, err := loadChart(j)
	if err != nil {
		return nil, err
	}
	top, err := c.renderValues(copyMap(values))
	if err != nil {
		return nil, err
	}
	return c.execute(top)
}
