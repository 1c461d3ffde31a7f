package cmd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

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
	caps     *extensions

	mu   sync.Mutex
	done map[*registry.Delivery]*targetResult
}

// extensions are what clusters can do once custom resource definitions are in
// them: the same value for the same definitions, so that a cache of renders
// knows it again.
type extensions struct {
	base renderer.Capabilities

	mu    sync.Mutex
	known map[string]renderer.Capabilities // by the hashes of the targets
}

func newExtensions(base renderer.Capabilities) *extensions {
	return &extensions{base: base, known: map[string]renderer.Capabilities{}}
}

// including adds the kinds that targets define.
func (e *extensions) including(targets map[*registry.Delivery]*renderer.Target) renderer.Capabilities {
	if len(targets) == 0 {
		return e.base
	}
	key := make([]string, 0, len(targets))
	for _, t := range targets {
		key = append(key, t.Hash)
	}
	slices.Sort(key)
	name := strings.Join(slices.Compact(key), " ")
	e.mu.Lock()
	defer e.mu.Unlock()
	caps, ok := e.known[name]
	if !ok {
		caps = e.base.Including(slices.Collect(maps.Values(targets))...)
		e.known[name] = caps
	}
	return caps
}

type targetResult struct {
	target *renderer.Target
	err    error
	// below are the targets of all that the delivery depends on, and that
	// define kinds.
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
	return newTargetsWith(r, c, newExtensions(caps))
}

func newTargetsWith(r renderer.Renderer, c *registry.Cluster, caps *extensions) *targets {
	return &targets{renderer: r, cluster: c, caps: caps, done: map[*registry.Delivery]*targetResult{}}
}

// render returns the target of a delivery. The kinds that its dependencies
// define are taken for served: they are there before it is applied.
func (t *targets) render(ctx context.Context, d *registry.Delivery) (*renderer.Target, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
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
		if definesSome(dependency.target) {
			r.below[on] = dependency.target
		}
	}
	r.target, r.err = t.renderer.Render(ctx, renderer.Request{
		Version: d.Version, Values: d.Values, ImageMirrors: t.cluster.Spec.ImageMirrors, Capabilities: t.caps.including(r.below),
	})
	return r
}

func definesSome(t *renderer.Target) bool {
	return slices.ContainsFunc(t.Objects, func(o *renderer.Object) bool { return o.Content["kind"] == "CustomResourceDefinition" })
}
