package cmd

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// renderCacheBytes bounds the targets that a command keeps.
const renderCacheBytes = 256 << 20

// capabilityFlags say what a cluster can do, where none is asked.
type capabilityFlags struct {
	kubeVersion string
	apiVersions []string
}

func (f *capabilityFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeVersion, "kube-version", "",
		"Kubernetes `VERSION` to render for\n(default "+renderer.DefaultCapabilities().KubeVersion+")")
	cmd.Flags().StringSliceVarP(&f.apiVersions, "api-versions", "a", nil,
		"more API `VERSIONS` that the cluster serves,\nas monitoring.coreos.com/v1")
}

func (f *capabilityFlags) given() bool { return f.kubeVersion != "" || len(f.apiVersions) > 0 }

func (f *capabilityFlags) capabilities() renderer.Capabilities {
	caps := renderer.DefaultCapabilities()
	if f.kubeVersion != "" {
		caps.KubeVersion = f.kubeVersion
	}
	caps.APIVersions = append(caps.APIVersions, f.apiVersions...)
	return caps
}

// targets renders the deliveries of one cluster, each one once.
type targets struct {
	renderer renderer.Renderer
	cluster  *registry.Cluster
	caps     renderer.Capabilities
	done     map[*registry.Delivery]*targetResult
}

type targetResult struct {
	target *renderer.Target
	err    error
	// below are the targets of all that the delivery depends on.
	below map[*registry.Delivery]*renderer.Target
}

// dependencyError says that a dependency can't be rendered, so that it is not
// known which kinds the cluster will have.
type dependencyError struct {
	component, on string
	err           error
}

func (e *dependencyError) Error() string {
	return fmt.Sprintf("component %s depends on %s, which can't be rendered: %v", e.component, e.on, e.err)
}

func (e *dependencyError) Unwrap() error { return e.err }

func newTargets(r renderer.Renderer, c *registry.Cluster, caps renderer.Capabilities) *targets {
	return &targets{renderer: r, cluster: c, caps: caps, done: map[*registry.Delivery]*targetResult{}}
}

// render returns the target of a delivery. The kinds that its dependencies
// define are taken for served: they are there before it is applied.
func (t *targets) render(ctx context.Context, d *registry.Delivery) (*renderer.Target, error) {
	r := t.result(ctx, d)
	return r.target, r.err
}

func (t *targets) result(ctx context.Context, d *registry.Delivery) *targetResult {
	if r := t.done[d]; r != nil {
		return r
	}
	r := &targetResult{below: map[*registry.Delivery]*renderer.Target{}}
	t.done[d] = r // also ends a circle, which the registry reports
	if r.err = checkDelivery(d); r.err != nil {
		return r
	}
	for _, name := range d.Version.Spec.DependsOn {
		on := t.cluster.Delivery(name)
		if on == nil {
			continue // a problem of d, so never here
		}
		dependency := t.result(ctx, on)
		if dependency.err != nil {
			r.err = &dependencyError{component: d.Component, on: name, err: dependency.err}
			return r
		}
		maps.Copy(r.below, dependency.below)
		r.below[on] = dependency.target
	}
	caps := t.caps
	if len(r.below) > 0 {
		caps = caps.Including(slices.Collect(maps.Values(r.below))...)
	}
	r.target, r.err = t.renderer.Render(ctx, renderer.Request{
		Version: d.Version, Values: d.Values, ImageMirrors: t.cluster.Spec.ImageMirrors, Capabilities: caps,
	})
	return r
}
