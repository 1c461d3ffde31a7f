package renderer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chartutil"

	"github.com/keelson-io/keelson/registry"
)

// Engine renders charts with Helm's engine in this process: in-memory files,
// no DNS, no cluster. The zero Engine is ready to use.
//
// Helm can't be stopped from inside: ctx is looked at before and after the
// templates run, and a template that never ends never ends. Render charts
// that are not trusted in a process that can be killed.
type Engine struct{}

// New returns an [Engine].
func New() *Engine { return &Engine{} }

var _ Renderer = (*Engine)(nil)

// Render implements [Renderer]. The same calls in the same order as
// `helm template COMPONENT --namespace NAMESPACE --include-crds` decide what a
// template sees.
func (*Engine) Render(ctx context.Context, r Request) (t *Target, err error) {
	if r.Version == nil {
		return nil, &Error{Message: "no version to render"}
	}
	// Charts are outside input, and libraries below are known to panic on
	// some of it. One bad chart must not end the process of all clusters.
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, newError(r.Version, chartPosition(r.Version, "Chart.yaml", 0),
				fmt.Sprintf("the chart makes Helm panic: %v", p), nil)
		}
	}()
	t, failed := render(ctx, r)
	if failed != nil { // a nil *Error must not become an error that is not nil
		return nil, failed
	}
	return t, nil
}

func render(ctx context.Context, r Request) (*Target, *Error) {
	if err := ctx.Err(); err != nil {
		return nil, interrupted(r.Version, err)
	}
	c, err := loadChart(r.Version)
	if err != nil {
		return nil, err
	}
	top, err := c.renderValues(r)
	if err != nil {
		return nil, err
	}
	files, warnings, err := c.execute(top)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, interrupted(r.Version, err)
	}
	t, err := c.target(files, r.Capabilities)
	if err != nil {
		return nil, err
	}
	t.Warnings = append(t.Warnings, warnings...)
	slices.Sort(t.Warnings)
	t.Warnings = slices.Compact(t.Warnings)
	return t, nil
}

func interrupted(v *registry.Version, cause error) *Error {
	e := newError(v, chartPosition(v, "Chart.yaml", 0), "rendering was interrupted: "+cause.Error(), cause)
	e.Transient = true
	return e
}

// renderValues are what templates see: .Values, .Release, .Capabilities, .Chart.
func (c *loadedChart) renderValues(r Request) (chartutil.Values, *Error) {
	values, err := userValues(r)
	if err != nil {
		return nil, err
	}
	caps, err := helmCapabilities(r)
	if err != nil {
		return nil, err
	}
	if err := c.processDependencies(values, caps); err != nil {
		return nil, err
	}
	options := chartutil.ReleaseOptions{
		Name:      r.Version.Component,
		Namespace: r.Version.Spec.Namespace,
		Revision:  1,
		IsInstall: true,
	}
	// Helm's own validation would fetch remote schemas: ours comes below.
	top, cause := chartutil.ToRenderValuesWithSchemaValidation(c.chart, values, options, caps, true)
	if cause != nil {
		return nil, c.fail("values.yaml", 0, "values can't be merged: "+cause.Error(), cause)
	}
	merged, ok := top["Values"].(chartutil.Values)
	if !ok {
		return nil, c.fail("values.yaml", 0, fmt.Sprintf("values can't be merged: Helm returned a %T", top["Values"]), nil)
	}
	if err := c.validate(merged, r.Values); err != nil {
		return nil, err
	}
	return top, nil
}

func helmCapabilities(r Request) (*chartutil.Capabilities, *Error) {
	kube, err := chartutil.ParseKubeVersion(r.Capabilities.KubeVersion)
	if err != nil {
		return nil, newError(r.Version, chartPosition(r.Version, "Chart.yaml", 0),
			fmt.Sprintf("the cluster's Kubernetes version %q can't be read", r.Capabilities.KubeVersion), err)
	}
	caps := chartutil.DefaultCapabilities.Copy() // for Helm's own version
	// What the API server says, with a vendor's suffix: charts look at it.
	kube.Version = "v" + strings.TrimPrefix(r.Capabilities.KubeVersion, "v")
	caps.KubeVersion = *kube
	// Sorted, so that two clusters that serve the same render the same.
	caps.APIVersions = slices.Sorted(slices.Values(r.Capabilities.APIVersions))
	return caps, nil
}
