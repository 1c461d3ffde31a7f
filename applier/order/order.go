// Package order decides in which order the changes of a plan are carried out: by wave, then by what
// kinds need of each other. Deletions come last.
package order

import (
	"cmp"
	"slices"
	"strconv"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// KindRank orders kinds. Kinds that others need come first. Kinds that intercept the API (webhooks,
// APIServices) come last, when they can answer.
type KindRank int

// The values of [KindRank].
const (
	CRD KindRank = iota
	Namespace
	Config  // roles, configuration, storage classes and other passive kinds
	Binding // an account that may not bind every role binds only roles that exist
	Service
	Workload
	Custom // kinds that Keelson does not know: custom resources
	Intercept
)

func kindRankOf(id differ.ID) KindRank {
	switch id.Group {
	case "apiextensions.k8s.io":
		return CRD
	case "admissionregistration.k8s.io", "apiregistration.k8s.io":
		return Intercept
	case "apps", "batch":
		return Workload
	case "":
		return coreKindRank(id.Kind)
	case rbacv1.GroupName:
		if IsBinding(id) {
			return Binding
		}
	case "storage.k8s.io", "scheduling.k8s.io", "node.k8s.io", "policy",
		"networking.k8s.io", "autoscaling", "coordination.k8s.io", "discovery.k8s.io", "flowcontrol.apiserver.k8s.io",
		"certificates.k8s.io", "resource.k8s.io", "events.k8s.io":
	default:
		return Custom
	}
	return Config
}

// IsBinding reports whether an object binds a role.
func IsBinding(id differ.ID) bool {
	return id.Group == rbacv1.GroupName && (id.Kind == "RoleBinding" || id.Kind == "ClusterRoleBinding")
}

func coreKindRank(kind string) KindRank {
	switch kind {
	case "Namespace":
		return Namespace
	case "Service", "Endpoints":
		return Service
	case "Pod", "ReplicationController":
		return Workload
	}
	return Config
}

// Batch is a set of changes that do not depend on each other.
type Batch struct {
	Wave     int
	KindRank KindRank
	Changes  []*differ.Change
}

// Removes reports whether the batch deletes.
func (b Batch) Removes() bool { return b.Changes[0].Op == differ.OpDelete }

// Batches orders the changes that write: by wave, then by the rank of the kind. Deletions come last
// and in the opposite order, dependents first.
func Batches(plan *differ.Plan) []Batch {
	var bring, remove []Batch
	for i := range plan.Changes {
		c := &plan.Changes[i]
		b := Batch{Wave: WaveOf(c), KindRank: kindRankOf(c.ID)}
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

func insert(list []Batch, b Batch, c *differ.Change) []Batch {
	i, found := slices.BinarySearchFunc(list, b, func(a, b Batch) int {
		return cmp.Or(cmp.Compare(a.Wave, b.Wave), cmp.Compare(a.KindRank, b.KindRank))
	})
	if !found {
		list = slices.Insert(list, i, b)
	}
	list[i].Changes = append(list[i].Changes, c)
	return list
}

// WaveOf reads keelson.io/wave; a malformed value counts as 0.
func WaveOf(c *differ.Change) int {
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
