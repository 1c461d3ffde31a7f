package applier

import (
	"cmp"
	"slices"
	"strconv"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// phase orders kinds. Kinds that others need come first. Kinds that intercept the API (webhooks,
// APIServices) come last, when they can answer.
type phase int

const (
	phaseCRD phase = iota
	phaseNamespace
	phaseConfig  // roles, configuration, storage classes and other passive kinds
	phaseBinding // an account that may not bind every role binds only roles that exist
	phaseService
	phaseWorkload
	phaseCustom // kinds that Keelson does not know: custom resources
	phaseIntercept
)

func phaseOf(id differ.ID) phase {
	switch id.Group {
	case "apiextensions.k8s.io":
		return phaseCRD
	case "admissionregistration.k8s.io", "apiregistration.k8s.io":
		return phaseIntercept
	case "apps", "batch":
		return phaseWorkload
	case "":
		return corePhase(id.Kind)
	case rbacv1.GroupName:
		if isBinding(id) {
			return phaseBinding
		}
	case "storage.k8s.io", "scheduling.k8s.io", "node.k8s.io", "policy",
		"networking.k8s.io", "autoscaling", "coordination.k8s.io", "discovery.k8s.io", "flowcontrol.apiserver.k8s.io",
		"certificates.k8s.io", "resource.k8s.io", "events.k8s.io":
	default:
		return phaseCustom
	}
	return phaseConfig
}

func isBinding(id differ.ID) bool {
	return id.Group == rbacv1.GroupName && (id.Kind == "RoleBinding" || id.Kind == "ClusterRoleBinding")
}

func corePhase(kind string) phase {
	switch kind {
	case "Namespace":
		return phaseNamespace
	case "Service", "Endpoints":
		return phaseService
	case "Pod", "ReplicationController":
		return phaseWorkload
	}
	return phaseConfig
}

// batch is a set of changes that do not depend on each other.
type batch struct {
	wave    int
	phase   phase
	changes []*differ.Change
}

// removes reports whether the batch deletes.
func (b batch) removes() bool { return b.changes[0].Op == differ.OpDelete }

// batches orders the changes that write: by wave, then by phase. Deletions come last and in the
// opposite order, dependents first.
func batches(plan *differ.Plan) []batch {
	var bring, remove []batch
	for i := range plan.Changes {
		c := &plan.Changes[i]
		b := batch{wave: waveOf(c), phase: phaseOf(c.ID)}
		switch c.Op {
		case differ.OpCreate, differ.OpUpdate, differ.OpReplace:
			bring = insert(bring, b, c)
		case differ.OpDelete:
			remove = insert(remove, b, c)
		case differ.OpNone, differ.OpForget:
		}
	}
	slices.Reverse(remove)
	return append(bring, remove...)
}

func insert(list []batch, b batch, c *differ.Change) []batch {
	i, found := slices.BinarySearchFunc(list, b, func(a, b batch) int {
		return cmp.Or(cmp.Compare(a.wave, b.wave), cmp.Compare(a.phase, b.phase))
	})
	if !found {
		list = slices.Insert(list, i, b)
	}
	list[i].changes = append(list[i].changes, c)
	return list
}

// waveOf reads keelson.io/wave; a malformed value counts as 0.
func waveOf(c *differ.Change) int {
	for _, object := range []map[string]any{c.Patch, c.Live} {
		meta, _ := object["metadata"].(map[string]any)
		annotations, _ := meta["annotations"].(map[string]any)
		if s, ok := annotations[v1alpha1.AnnotationWave].(string); ok {
			if n, err := strconv.Atoi(s); err == nil {
				return n
			}
		}
	}
	return 0
}
