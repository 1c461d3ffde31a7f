package renderer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/keelson-io/keelson/registry"
)

// Targets renders the deliveries of one cluster, each one once. It is safe for
// concurrent use.
type Targets struct {
	renderer Renderer
	cluster  *registry.Cluster
	caps     *Extensions

	mu   sync.Mutex
	done map[*registry.Delivery]*targetResult
}

// Extensions holds the capabilities of clusters after custom resource definitions were applied. The
// same definitions give the same value, so that a cache of renders recognizes it.
type Extensions struct {
	base Capabilities

	mu    sync.Mutex
	known map[string]Capabilities // by the hashes of the targets
}

// NewExtensions returns the Extensions of clusters whose capabilities without any definition are
// base.
func NewExtensions(base Capabilities) *Extensions {
	return &Extensions{base: base, known: map[string]Capabilities{}}
}

// including returns the capabilities with the kinds that targets define.
func (e *Extensions) including(targets map[*registry.Delivery]*Target) Capabilities {
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
	target *Target
	err    error
	// below has the targets of all direct and indirect dependencies that define kinds.
	below map[*registry.Delivery]*Target
}

// DependencyError reports that a dependency can't be rendered, so that the kinds of the cluster are
// unknown.
type DependencyError struct {
	Component, On string
	Err           error
}

func (e *DependencyError) Error() string {
	return fmt.Sprintf("component %s depends on %s, which can't be rendered: %v", e.Component, e.On, e.Err)
}

// Unwrap returns the cause.
func (e *DependencyError) Unwrap() error { return e.Err }

// NewTargets returns Targets that render with r for a cluster. Several Targets share caps, so that
// a [Cache] finds their common renders.
func NewTargets(r Renderer, c *registry.Cluster, caps *Extensions) *Targets {
	return &Targets{renderer: r, cluster: c, caps: caps, done: map[*registry.Delivery]*targetResult{}}
}

// Render returns the target of a delivery. The kinds that its dependencies define count as served,
// because they are applied before. The error may be of the registry (the delivery is blocked), a
// *[DependencyError], or an *[Error].
func (t *Targets) Render(ctx context.Context, d *registry.Delivery) (*Target, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.result(ctx, d)
	return r.target, r.err
}

func (t *Targets) result(ctx context.Context, d *registry.Delivery) *targetResult {
	if r := t.done[d]; r != nil {
		return r
	}
	r := &targetResult{below: map[*registry.Delivery]*Target{}}
	t.done[d] = r // also ends a cycle, which the registry reports
	if r.err = d.Blocked(); r.err != nil {
		return r
	}
	for _, name := range d.Version.Spec.DependsOn {
		on := t.cluster.Delivery(name)
		if on == nil {
			continue // a problem of d, so never reached here
		}
		dependency := t.result(ctx, on)
		if dependency.err != nil {
			r.err = &DependencyError{Component: d.Component, On: name, Err: dependency.err}
			return r
		}
		maps.Copy(r.below, dependency.below)
		if definesSome(dependency.target) {
			r.below[on] = dependency.target
		}
	}
	r.target, r.err = t.renderer.Render(ctx, Request{
		Version: d.Version, Values: d.Values, ImageMirrors: t.cluster.Spec.ImageMirrors, Capabilities: t.caps.including(r.below),
	})
	return r
}

func definesSome(t *Target) bool {
	return slices.ContainsFunc(t.Objects, func(o *Object) bool { return o.Content["kind"] == "CustomResourceDefinition" })
}
