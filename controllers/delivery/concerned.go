package delivery

import (
	"maps"
	"reflect"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// concerned returns the components that a new revision of a cluster may concern; all is true if
// more changed than deliveries. The same pointer means the same content (docs/decisions/010). A
// component at rest with an unchanged pointer stays at rest: of 60,000 deliveries a commit changes
// a few.
func concerned(was, now *registry.Cluster, known statuses) (components []string, all bool) {
	if was == nil || len(was.Problems)+len(now.Problems) > 0 || !reflect.DeepEqual(was.Spec, now.Spec) {
		return nil, true
	}
	changed := map[string]bool{}
	before := make(map[string]*registry.Delivery, len(was.Deliveries))
	for _, d := range was.Deliveries {
		before[d.Component] = d
		changed[d.Component] = true
	}
	for _, d := range now.Deliveries {
		changed[d.Component] = before[d.Component] != d
	}
	out := map[string]bool{}
	for _, d := range now.Deliveries {
		s := known.get(d.Component)
		out[d.Component] = changed[d.Component] || s.Sync != v1alpha1.SyncSynced || s.Health != v1alpha1.HealthHealthy ||
			d.Version != nil && slices.ContainsFunc(d.Version.Spec.DependsOn, func(on string) bool { return changed[on] })
	}
	for component := range known { // components that left git, now or earlier
		if _, listed := out[component]; !listed {
			out[component] = true
		}
	}
	maps.DeleteFunc(out, func(_ string, concerned bool) bool { return !concerned })
	return slices.Sorted(maps.Keys(out)), false
}
