// Package renderer makes target objects from a component version, its images,
// a cluster's meta-config and that cluster's capabilities.
//
// Rendering is a function of the [Request]: the same request gives the same
// [Target], unless the chart itself is not deterministic. It reads no network,
// no file and no cluster.
package renderer

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Renderer makes target objects. Implementations are safe for concurrent use.
type Renderer interface {
	// Render returns the target objects, or a *[Error] that names the file and line of the fault.
	// With an error the Target is nil: there is no partial target.
	Render(ctx context.Context, r Request) (*Target, error)
}

// Request is everything that a render depends on.
type Request struct {
	Version *registry.Version
	Values  *registry.Values // nil: none
	// ImageMirrors rewrites registry hosts of the version's images.
	ImageMirrors map[string]string
	// Capabilities of the cluster. They must not be modified after a request was rendered.
	Capabilities Capabilities
}

// Capabilities are what a chart may read about the target cluster.
type Capabilities struct {
	// KubeVersion as the API server reports it: v1.36.3.
	KubeVersion string
	// APIVersions served, both as GROUP/VERSION and GROUP/VERSION/KIND.
	APIVersions []string
	// ClusterScoped kinds; every other kind counts as namespaced.
	ClusterScoped map[schema.GroupKind]bool
}

// Target holds the objects that one component should have on one cluster.
type Target struct {
	// Hash of the objects, stable between processes.
	Hash string
	// Objects in Helm's install order, crds/ first. No object occurs twice.
	Objects []*Object
	// Hooks are the chart's Helm hooks, without its tests.
	Hooks []*Object
	// Warnings name template lines, for example a lookup that was answered empty.
	Warnings []string
	// Unused are values of meta-config that have no effect.
	Unused []Unused
	// Scopes are the kinds of the objects whose scope came from the cluster. On a cluster with
	// other scopes, the same render gives another target.
	Scopes []Scope
	// Exposed are encrypted values that the chart shows in clear text.
	Exposed []Exposed `cbor:"-"` // set only in the parent process, as Secrets
	// Secrets are the decrypted values that the objects were made of; nil: none. With them, the
	// objects must not be shown or written to a disk as they are.
	Secrets *Secrets `cbor:"-"`
}

// Scope is the scope of a kind on a cluster.
type Scope struct {
	Kind          schema.GroupKind
	ClusterScoped bool
}

// fits reports whether the target is also valid for a cluster with the given capabilities.
func (t *Target) fits(c Capabilities) bool {
	return !slices.ContainsFunc(t.Scopes, func(s Scope) bool { return c.ClusterScoped[s.Kind] != s.ClusterScoped })
}

// Object is one target object. It is shared between clusters: read only.
type Object struct {
	// Content is the object as JSON would decode it (int64, float64, string,
	// bool, nil, []any, map[string]any), with the namespace filled in and the
	// label keelson.io/component set.
	Content map[string]any
	// Source is the template's file, and the line of the object's document in the template's
	// source; line 0: unknown.
	Source yamlfile.Position
}

// Error is a failed render.
type Error struct {
	Component, Version string
	At                 yamlfile.Position
	Message            string
	// Transient is set when the same request may succeed later, for example after an interruption.
	// All other errors last until git or the cluster changes.
	Transient bool
	Err       error // the cause, may be nil

	// violations of a schema replace the message until the positions of the values in meta-config
	// are known.
	violations []violation
	// ofChart: every request with the same inputs fails in the same way.
	ofChart bool
}

// Error is "COMPONENT VERSION: FILE:LINE: message".
func (e *Error) Error() string {
	return e.Component + " " + e.Version + ": " + e.At.String() + ": " + e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
