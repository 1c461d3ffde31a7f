package applier

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// kindWait waits until the kinds of new CRDs can be used.
type kindWait struct {
	plan      *Prepared
	discovery *discoverer
	reader    Reader
}

// await waits until new CRDs are served, and then reads their schemas for the rest of the plan.
func (w kindWait) await(ctx context.Context, crds []*differ.Change) error {
	for _, c := range crds {
		if c.Op == differ.OpDelete {
			continue
		}
		err := wait.PollUntilContextTimeout(ctx, pollInterval, establishTimeout, true, func(ctx context.Context) (bool, error) {
			live, err := w.reader.Fresh(ctx, w.plan.mappings[c.ID], c.ID)
			if err != nil || live == nil {
				return false, err
			}
			return w.plan.want.Health.Of(c.ID, live).Health == v1alpha1.HealthHealthy, nil
		})
		if err != nil {
			return fmt.Errorf("%s was not established within %s: %w", c.ID, establishTimeout, err)
		}
	}
	if err := w.published(ctx, crds); err != nil {
		return err
	}
	versions := map[differ.ID]schema.GroupVersionKind{}
	for i := range w.plan.Plan.Changes {
		c := &w.plan.Plan.Changes[i]
		versions[c.ID] = schema.FromAPIVersionAndKind(c.APIVersion, c.ID.Kind)
	}
	schemas, err := w.discovery.schemasOf(ctx, versions)
	if err != nil {
		return err
	}
	w.plan.schemas = schemas
	return nil
}

// published waits until the API server publishes the schemas of new kinds, some moments after it
// serves them. Without schemas types are deduced, so a timeout is no error.
func (w kindWait) published(ctx context.Context, crds []*differ.Change) error {
	var versions []schema.GroupVersion
	var kinds []schema.GroupVersionKind
	var groups []string
	for _, c := range crds {
		for _, gv := range servedVersions(c.Patch) {
			versions, groups = append(versions, gv), append(groups, gv.Group)
			kinds = append(kinds, gv.WithKind(definedKind(c.Patch).Kind))
		}
	}
	err := wait.PollUntilContextTimeout(ctx, pollInterval, publishTimeout, true, func(ctx context.Context) (bool, error) {
		w.discovery.rediscover(groups...)
		schemas, err := w.discovery.schemasFor(ctx, versions)
		if err != nil {
			return false, err
		}
		unknown := func(gvk schema.GroupVersionKind) bool { return !schemas.Knows(gvk) }
		return !slices.ContainsFunc(kinds, unknown), nil
	})
	if err != nil && (!wait.Interrupted(err) || ctx.Err() != nil) {
		return fmt.Errorf("schemas of new kinds: %w", err)
	}
	// Discovered now, so that the next plan of a settled cluster needs no request.
	if _, err := w.discovery.surface(ctx); err != nil {
		return err
	}
	return nil
}

// servedVersions returns the served versions of the kind that a CRD defines.
func servedVersions(crd map[string]any) []schema.GroupVersion {
	spec, _ := crd["spec"].(map[string]any)
	versions, _ := spec["versions"].([]any)
	group := definedKind(crd).Group
	var out []schema.GroupVersion
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if name, ok := version["name"].(string); ok && version["served"] == true {
			out = append(out, schema.GroupVersion{Group: group, Version: name})
		}
	}
	return out
}
