package catalogue

import (
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// ofClaims returns the rules on changes that let a controller, or the garbage collector, delete the
// claims of pods. No plan lists these deletions.
//
// Sources: StatefulSetSpec.persistentVolumeClaimRetentionPolicy of Kubernetes, whose default is
// Retain, and CloneSetSpec of OpenKruise. A CloneSet owns its claims. With PVC reuse, it keeps the
// claims of removed pods for new pods; in v1alpha1, PVC reuse is the default.
func ofClaims() []catalogued {
	const (
		has    = `live != null && live.spec.?volumeClaimTemplates.orValue([]) != []`
		scaled = `(X.kind == 'StatefulSet' ? X.spec.?persistentVolumeClaimRetentionPolicy.?whenScaled.orValue('Retain') == 'Delete' :
X.apiVersion.endsWith('/v1alpha1') ? X.spec.?scaleStrategy.?disablePVCReuse.orValue(false) : !X.spec.?scaleStrategy.?enablePVCReuse.orValue(false))`
		deleted = `(X.kind == 'CloneSet' || X.spec.?persistentVolumeClaimRetentionPolicy.?whenDeleted.orValue('Retain') == 'Delete')`
		// An absent, empty or unknown type means ReCreate. For the in-place types, only the
		// controller knows whether an update in place is possible.
		recreated = `!((object.apiVersion.endsWith('/v1alpha1') ? object.spec.?updateStrategy.?type.orValue('') :
object.spec.?updateStrategy.?rollingUpdate.?podUpdatePolicy.orValue('')) in ['InPlaceOnly', 'InPlaceIfPossible'])`
	)
	of := func(what, condition string) string { return strings.ReplaceAll(condition, "X", what) }
	list := []catalogued{
		{
			name: "delete-with-claims", kinds: []string{"StatefulSet", "CloneSet"}, on: []v1alpha1.Event{v1alpha1.OnDeleteObject},
			because: "the claims of its pods are deleted with it, and so is their data, unless the volumes have reclaim policy Retain",
			fix:     "set whenDeleted of a StatefulSet's persistentVolumeClaimRetentionPolicy to Retain first; for a CloneSet, save the data",
			when:    of("live", deleted), paths: []string{""},
		},
		{
			// The rule includes drift: undoing a scale-up by a person would delete data.
			name: "fewer-claims", kinds: []string{"StatefulSet", "CloneSet"}, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			because: "the claims of the pods that are removed are deleted, and so is their data, unless the volumes have reclaim policy Retain",
			fix:     "keep the claims of removed pods (whenScaled: Retain, or PVC reuse), or save the data first",
			when:    of("object", scaled) + ` && (new == null ? 1 : new) < old`, paths: []string{".spec.replicas"},
		},
		{
			name: "claims-not-kept", kinds: []string{"StatefulSet", "CloneSet"},
			because: "claims that are kept today are deleted once their pods or the workload are removed, and so is their data",
			fix:     "keep the policy that retains the claims",
			when: `(` + of("object", scaled) + ` && !` + of("live", scaled) + ` || ` +
				of("object", deleted) + ` && !` + of("live", deleted) + `)`,
			paths: []string{
				".spec.persistentVolumeClaimRetentionPolicy.whenDeleted", ".spec.persistentVolumeClaimRetentionPolicy.whenScaled",
				".spec.scaleStrategy.enablePVCReuse", ".spec.scaleStrategy.disablePVCReuse",
			},
		},
		{
			name: "chosen-claims", kinds: []string{"CloneSet"}, on: []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "the named pods are deleted with their claims, and so is the data, unless the volumes have reclaim policy Retain",
			fix:     "save the data of these pods, or keep claims for new pods (enablePVCReuse)",
			when:    of("object", scaled) + ` && new != []`, paths: []string{".spec.scaleStrategy.podsToDelete"},
		},
		{
			name: "recreated-claims", kinds: []string{"CloneSet"},
			because: "pods are deleted and created again with new claims; the old claims are deleted, and so is their data",
			fix:     "update the pods in place, or keep claims for new pods (enablePVCReuse)",
			when:    of("object", scaled) + ` && ` + recreated,
			// A change of policy, partition or pause can roll out a template that waits.
			paths: []string{
				".spec.template", ".spec.updateStrategy.type", ".spec.updateStrategy.partition", ".spec.updateStrategy.paused",
				".spec.updateStrategy.rollingUpdate.podUpdatePolicy", ".spec.updateStrategy.rollingUpdate.partition", ".spec.updateStrategy.rollingUpdate.paused",
			},
		},
		{
			name: "other-ordinals", kinds: []string{"StatefulSet"},
			because: "pods whose ordinals are no longer used are deleted with their claims, and so is the data",
			fix:     "retain the claims (whenScaled: Retain), or move the data first",
			when:    of("object", scaled), paths: []string{".spec.ordinals", ".spec.reserveOrdinals"},
		},
	}
	for i := range list {
		list[i].effect, list[i].when = v1alpha1.EffectHold, has+" && "+list[i].when
		list[i].source = kubernetesDocs + "concepts/workloads/controllers/statefulset/#persistentvolumeclaim-retention"
		if len(list[i].kinds) == 1 && list[i].kinds[0] == "CloneSet" {
			list[i].source = "https://openkruise.io/docs/user-manuals/cloneset/"
		}
	}
	return list
}
