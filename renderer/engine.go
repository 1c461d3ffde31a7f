package renderer

import (
	"context"
	"fmt"
	"strings"

	"helm.sh/helm/v3/pkg/chartutil"

	"github.com/keelson-io/keelson/registry"
)

// Engine renders charts with Helm's engine in this process: in-memory files, no DNS, no cluster.
// The zero Engine is ready to use.
//
// Helm can't be interrupted: ctx is checked before and after the templates run, and an endless
// template never ends. A [Pool] does the same in processes that can be killed.
type Engine struct{}

// New returns an [Engine].
func New() *Engine { return &Engine{} }

var _ Renderer = (*Engine)(nil)

// Render implements [Renderer]. It makes the same calls in the same order as `helm template
// COMPONENT --namespace NAMESPACE --include-crds`, so that a template sees the same.
func (*Engine) Render(ctx context.Context, r Request) (*Target, error) {
	return render(ctx, r, defaultMaxOutput, func(_ context.Context, j *job) (*Target, *Error) { return j.run() })
}

// render makes a job of a request, runs the job, and adds what only the request knows. A nil *Error
// does not become an error that is not nil.
func render(ctx context.Context, r Request, maxOutput int64, run func(context.Context, *job) (*Target, *Error)) (*Target, error) {
	if r.Version == nil {
		return nil, &Error{Message: "no version to render"}
	}
	if err := ctx.Err(); err != nil {
		return nil, interrupted(r.Version, err)
	}
	j, err := newJob(r, maxOutput)
	if err != nil {
		return nil, err
	}
	t, err := run(ctx, j)
	if cause := ctx.Err(); cause != nil {
		return nil, interrupted(r.Version, cause)
	}
	if err != nil {
		err.ofChart = true
		return nil, err.located(r)
	}
	return t, nil
}

func interrupted(v *registry.Version, cause error) *Error {
	e := newError(v, chartPosition(v, "Chart.yaml", 0), "rendering was interrupted: "+cause.Error(), cause)
	e.Transient = true
	return e
}

// renderValues returns what templates see: .Values, .Release, .Capabilities, .Chart.
func (c *loadedChart) renderValues(values map[string]any) (chartutil.Values, *Error) {
	caps, err := c.capabilities()
	if err != nil {
		return nil, err
	}
	if err := c.processDependencies(values, caps); err != nil {
		return nil, err
	}
	options := chartutil.ReleaseOptions{
		Name:      c.version.Component,
		Namespace: c.version.Spec.Namespace,
		Revision:  1,
		IsInstall: true,
	}
	// Helm's own validation would fetch remote schemas; validate below does not.
	top, cause := chartutil.ToRenderValuesWithSchemaValidation(c.chart, values, options, caps, true)
	if cause != nil {
		return nil, c.fail("values.yaml", 0, "values can't be merged: "+cause.Error(), cause)
	}
	merged, ok := top["Values"].(chartutil.Values)
	if !ok {
		return nil, c.fail("values.yaml", 0, fmt.Sprintf("values can't be merged: Helm returned a %T", top["Values"]), nil)
	}
	if err := c.validate(merged); err != nil {
		return nil, err
	}
	return top, nil
}

// capabilities returns the cluster's capabilities in Helm's form.
func (c *loadedChart) capabilities() (*chartutil.Capabilities, *Error) {
	kube, err := chartutil.ParseKubeVersion(c.job.KubeVersion)
	if err != nil {
		return nil, c.fail("Chart.yaml", 0, fmt.Sprintf("the cluster's Kubernetes version %q can't be read", c.job.KubeVersion), err)
	}
	caps := chartutil.DefaultCapabilities.Copy() // for Helm's own version
	// The API server's version, with a vendor's suffix, which charts read.
	kube.Version = "v" + strings.TrimPrefix(c.job.KubeVersion, "v")
	caps.KubeVersion = *kube
	caps.APIVersions = c.job.APIVersions
	return caps, nil
}
