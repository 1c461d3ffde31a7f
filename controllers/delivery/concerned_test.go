package delivery

import (
	"slices"
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

func TestConcerned(t *testing.T) {
	delivery := func(component string, dependsOn ...string) *registry.Delivery {
		return &registry.Delivery{Component: component, Version: &registry.Version{Spec: v1alpha1.Component{DependsOn: dependsOn}}}
	}
	a, b, onB := delivery("a"), delivery("b"), delivery("on-b", "b")
	cluster := func(deliveries ...*registry.Delivery) *registry.Cluster {
		return &registry.Cluster{Name: "c", Deliveries: deliveries}
	}
	labelled := cluster(a, b)
	labelled.Spec.Labels = map[string]string{"tier": "prod"}
	broken := cluster(a, b)
	broken.Problems = yamlfile.Problems{{}}
	rest := &v1alpha1.DeliveryStatus{Sync: v1alpha1.SyncSynced, Health: v1alpha1.HealthHealthy}
	ill := &v1alpha1.DeliveryStatus{Sync: v1alpha1.SyncSynced, Health: v1alpha1.HealthDegraded}
	waits := &v1alpha1.DeliveryStatus{Sync: v1alpha1.SyncWaiting}
	all := []string{"all"}
	cases := map[string]struct {
		why      string
		was, now *registry.Cluster
		known    statuses
		want     []string
	}{
		"First":     {"Nothing was looked at yet.", nil, cluster(a), nil, all},
		"Labels":    {"Rules and health may go by the cluster's labels.", cluster(a, b), labelled, nil, all},
		"Broken":    {"Every delivery of it is blocked.", cluster(a, b), broken, nil, all},
		"Mended":    {"None is any more.", broken, cluster(a, b), nil, all},
		"Same":      {"The same pointer says the same.", cluster(a, b), cluster(a, b), statuses{"a": rest, "b": rest}, nil},
		"Changed":   {"Another pointer may say something else.", cluster(a, b), cluster(a, delivery("b")), statuses{"a": rest, "b": rest}, []string{"b"}},
		"New":       {"It was not there.", cluster(a), cluster(a, b), statuses{"a": rest}, []string{"b"}},
		"Gone":      {"It is an orphan now.", cluster(a, b), cluster(a), statuses{"a": rest, "b": rest}, []string{"b"}},
		"Orphan":    {"It was removed from git before, and may have come to nothing since.", cluster(a), cluster(a), statuses{"a": rest, "b": {Sync: v1alpha1.SyncOrphaned}}, []string{"b"}},
		"Unlooked":  {"The first look at it is still to come.", cluster(a, b), cluster(a, b), statuses{"a": rest}, []string{"b"}},
		"Ill":       {"What others do may mend it.", cluster(a, b), cluster(a, b), statuses{"a": ill, "b": rest}, []string{"a"}},
		"Waits":     {"What it waits for may be another one, or gone.", cluster(a, b), cluster(a, b), statuses{"a": rest, "b": waits}, []string{"b"}},
		"DependsOn": {"What it depends on changes.", cluster(b, onB), cluster(delivery("b"), onB), statuses{"b": rest, "on-b": rest}, []string{"b", "on-b"}},
		"DependsOnGone": {
			"What it depends on has left the cluster, which it has to say.", cluster(b, onB), cluster(onB),
			statuses{"b": rest, "on-b": rest},
			[]string{"b", "on-b"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, whole := concerned(tc.was, tc.now, tc.known)
			if whole {
				got = all
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s Got %v, want %v", tc.why, got, tc.want)
			}
		})
	}
}
