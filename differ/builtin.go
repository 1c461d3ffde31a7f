package differ

import (
	"fmt"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// builtIn is the catalogue that holds without any rule in git. Every rule has
// a case in testdata.
func builtIn(env environment) (Rules, error) {
	autoscaled := func(id ID, p Policy) bool { return p.Autoscaled[id] }
	core := func(id ID, _ Policy) bool { return id.Group == "" } // Knative has Services, too
	changed := []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove}
	return compile(env, []catalogued{
		{
			name: "autoscaled-replicas", effect: v1alpha1.EffectKeep, applies: autoscaled,
			because: "an autoscaler owns the number of replicas",
			paths:   []string{".spec.replicas"},
		},
		{
			name: "service-allocations", effect: v1alpha1.EffectKeep, on: changed,
			kinds: []string{"Service"}, applies: core, because: "the cluster allocated it, and clients may use it",
			paths: []string{
				".spec.clusterIP", ".spec.clusterIPs", ".spec.ports[*].nodePort",
				".spec.healthCheckNodePort", ".spec.loadBalancerIP",
			},
		},
		{
			name: "workload-selector", effect: v1alpha1.EffectHold,
			kinds:   []string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CloneSet"},
			because: "a selector is immutable: the object would have to be deleted and created anew, with all its pods",
			paths:   []string{".spec.selector"},
		},
		{
			name: "service-selector", effect: v1alpha1.EffectHold,
			kinds: []string{"Service"}, applies: core, because: "a Service with another selector sends its traffic to other pods at once",
			paths: []string{".spec.selector"},
		},
		{
			name: "volume-claim-templates", effect: v1alpha1.EffectHold,
			kinds:   []string{"StatefulSet", "CloneSet"},
			because: "claim templates are immutable, and existing volumes would not follow",
			paths:   []string{".spec.volumeClaimTemplates"},
		},
		{
			name: "service-name", effect: v1alpha1.EffectHold, on: changed,
			kinds: []string{"StatefulSet"}, because: "serviceName is immutable: it is part of every pod's DNS name",
			paths: []string{".spec.serviceName"},
		},
		deletion("", "Namespace", "deleting a Namespace deletes everything in it"),
		deletion("apiextensions.k8s.io", "CustomResourceDefinition", "deleting a CRD deletes every custom resource of its kind"),
		deletion("", "PersistentVolumeClaim", "deleting a claim may delete its data"),
		deletion("", "PersistentVolume", "deleting a volume may delete its data"),
		deletion("storage.k8s.io", "StorageClass", "claims that name the class would no longer bind"),
	})
}

// catalogued is a built-in rule; one danger rule a path.
type catalogued struct {
	name    string
	kinds   []string
	paths   []string
	on      []v1alpha1.Event
	effect  v1alpha1.Effect
	because string
	when    string
	applies func(ID, Policy) bool
}

func deletion(group, kind, because string) catalogued {
	return catalogued{
		name: "delete-" + kind, effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnDeleteObject},
		kinds: []string{kind}, because: because, paths: []string{""},
		applies: func(id ID, _ Policy) bool { return id.Group == group },
	}
}

func compile(env environment, catalogue []catalogued) (Rules, error) {
	var out Rules
	for _, c := range catalogue {
		when := newCondition(env, c.when)
		for _, path := range c.paths {
			p, err := parsePattern(path)
			if err != nil {
				return nil, fmt.Errorf("built-in rule %q: %w", c.name, err)
			}
			out = append(out, rule{
				DangerRule: v1alpha1.DangerRule{
					Name: c.name, Path: path, On: c.on, Effect: c.effect, Because: c.because, When: c.when,
					Match: v1alpha1.ObjectMatch{Kinds: c.kinds},
				},
				pattern: p, condition: when, applies: c.applies,
			})
		}
	}
	return out, nil
}
