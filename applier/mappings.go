package applier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/differ"
)

// findMappings finds each object's resource. A target's kind may be missing when its CRD is among the
// targets: the CRD is created first. A recorded object's kind may be missing when a complete
// discovery made for this plan lacks it: then its CRD is gone, and the object with it. After an
// incomplete discovery, the object is not read.
func findMappings(ctx context.Context, d *apis.Discoverer, states []differ.State, versions map[differ.ID]schema.GroupVersionKind) (map[differ.ID]*meta.RESTMapping, error) {
	defined := map[schema.GroupKind]bool{}
	for _, s := range states {
		if s.Target != nil && s.ID.Kind == "CustomResourceDefinition" {
			defined[definedKind(s.Target.Content)] = true
		}
	}
	for fresh := false; ; fresh = true {
		if fresh {
			d.Rediscover()
		}
		s, err := d.Surface(ctx)
		if err != nil {
			return nil, err
		}
		out, again, missing := mapAll(s, states, versions, defined)
		if missing == nil && !again || fresh {
			return out, missing
		}
	}
}

// mapAll maps the objects with one discovery. again reports that an object that is no longer wanted
// needs a fresh discovery.
func mapAll(s *apis.Surface, states []differ.State, versions map[differ.ID]schema.GroupVersionKind, defined map[schema.GroupKind]bool) (
	out map[differ.ID]*meta.RESTMapping, again bool, missing error,
) {
	out = make(map[differ.ID]*meta.RESTMapping, len(states))
	for i := range states {
		state := &states[i]
		gvk := versions[state.ID]
		m, err := s.Mapping(gvk)
		not, unserved := apis.AsNotServed(err)
		if state.Target == nil {
			state.Unread = unread(s, gvk)
			again = again || state.Unread != "" || unserved
		}
		switch {
		case state.Unread != "":
		case err == nil:
			out[state.ID] = m
		case unserved && not.Unknown == nil && (state.Target == nil || defined[gvk.GroupKind()]):
		default:
			missing = errors.Join(missing, fmt.Errorf("%s: %w", state.ID, err))
		}
	}
	return out, again, missing
}

// unread returns why a kind that is no longer wanted can't be looked up: a part of its group could
// not be discovered. An aggregated API that is down answers 404, too.
func unread(s *apis.Surface, gvk schema.GroupVersionKind) string {
	if gv, err := s.Undiscovered(gvk.Group); err != nil {
		return fmt.Sprintf("waits until the API group %s can be discovered: %v", gv, err)
	}
	return ""
}

// autoscalers returns the kinds of autoscalers that the cluster serves.
func autoscalers(ctx context.Context, d *apis.Discoverer) ([]schema.GroupVersionResource, error) {
	s, err := d.Surface(ctx)
	if err != nil {
		return nil, err
	}
	var served []schema.GroupVersionResource
	for gvk := range observe.Autoscalers() {
		m, err := s.Mapping(gvk)
		var not *apis.NotServedError
		switch {
		case err == nil && m.GroupVersionKind == gvk:
			served = append(served, m.Resource)
		case errors.As(err, &not) && not.Unknown != nil:
			return nil, fmt.Errorf("autoscalers: %w", err)
		}
	}
	slices.SortFunc(served, func(a, b schema.GroupVersionResource) int { return strings.Compare(a.String(), b.String()) })
	return served, nil
}

// schemasOf returns the schemas of some kinds.
func schemasOf(ctx context.Context, d *apis.Discoverer, versions map[differ.ID]schema.GroupVersionKind) (differ.Schemas, error) {
	wanted := map[schema.GroupVersion]bool{}
	for _, gvk := range versions {
		wanted[gvk.GroupVersion()] = true
	}
	return d.Schemas(ctx, slices.Collect(maps.Keys(wanted)))
}

func definedKind(crd map[string]any) schema.GroupKind {
	spec, _ := crd["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	group, _ := spec["group"].(string)
	kind, _ := names["kind"].(string)
	return schema.GroupKind{Group: group, Kind: kind}
}

// mapping finds the resource of an object, also of a kind whose CRD this apply created.
func (p *Prepared) mapping(ctx context.Context, d *apis.Discoverer, id differ.ID, apiVersion string) (*meta.RESTMapping, error) {
	if m := p.mappings[id]; m != nil {
		return m, nil
	}
	s, err := d.Surface(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.Mapping(schema.FromAPIVersionAndKind(apiVersion, id.Kind))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	return m, nil
}
