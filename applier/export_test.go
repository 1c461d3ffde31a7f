package applier

import (
	"context"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/differ"
)

// SetInstanceLimits makes pages and the limit of what is read small.
func (c *Cluster) SetInstanceLimits(page int64, all int) {
	c.customResources.limits = instanceLimits{page: page, all: all}
}

// ForgetInstances drops what was found of custom resources.
func (c *Cluster) ForgetInstances() { c.customResources.reset() }

// Soonest is when an apply looks again that has several reasons to.
func Soonest(words ...time.Duration) time.Duration {
	var o Outcome
	for _, after := range words {
		o.requeueAfter(after)
	}
	return o.Again
}

// SchemasFor returns the schemas that the cluster publishes for some groups and versions.
func (c *Cluster) SchemasFor(ctx context.Context, wanted ...schema.GroupVersion) (differ.Schemas, error) {
	return c.discovery.Schemas(ctx, wanted)
}

// ObserveObjects reads n objects as a plan does.
func (c *Cluster) ObserveObjects(ctx context.Context, n int, get func(context.Context, differ.ID) (map[string]any, error)) error {
	states, mappings := make([]differ.State, n), map[differ.ID]*meta.RESTMapping{}
	for i := range states {
		states[i].ID = differ.ID{Kind: "ConfigMap", Name: strconv.Itoa(i)}
		mappings[states[i].ID] = &meta.RESTMapping{}
	}
	return c.live.Observe(ctx, mappings, states, func(ctx context.Context, _ *meta.RESTMapping, s *differ.State) (map[string]any, error) {
		return get(ctx, s.ID)
	})
}

// Announcing is how many announcements wait for a write that is on its way.
func (c *Cluster) Announcing() int { return c.records.Announcing() }
