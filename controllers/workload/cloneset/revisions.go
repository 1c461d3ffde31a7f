package cloneset

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// byRevision has a value for pods of the current revision, and one for those of the update revision.
type byRevision[T any] struct{ current, updated T }

// comparison says how the revisions of the history differ, by their hashes. It is kept from one reconcile
// to the next, because to compare templates is slow.
type comparison struct {
	key string
	// equal are the other revisions that hold what the update revision holds.
	equal map[string]bool
	// otherClaims are those with other claim templates than the current or the update revision.
	otherClaims byRevision[map[string]bool]
	// recorded are the claim templates of each revision that records them.
	recorded [][]corev1.PersistentVolumeClaim
}

// compare compares the revisions again if one of them has changed.
func (c *comparison) compare(l *syncContext) {
	key := fmt.Sprint(l.distinguish, " ", l.set.Status.CurrentRevision, " ", l.updated.Name, " ", l.history.Version())
	if key == c.key {
		return
	}
	*c = comparison{key: key, equal: l.history.Equal(l.distinguish)}
	if !l.distinguish {
		return
	}
	c.otherClaims = byRevision[map[string]bool]{current: map[string]bool{}, updated: map[string]bool{}}
	for _, r := range l.history.Revisions {
		hash := revision.Hash(r.Name)
		if templates, known := revision.RecordedClaims(r); known {
			c.recorded = append(c.recorded, templates)
		}
		c.otherClaims.updated[hash] = revision.ClaimsDiffer(r, l.updated)
		c.otherClaims.current[hash] = l.current != nil && revision.ClaimsDiffer(r, l.current)
	}
}

// readRevisions finds the revision of the template, and creates it if it is missing.
func (l *syncContext) readRevisions(ctx context.Context) error {
	owner := revision.Owner{Object: l.set, Kind: v1beta1.GroupVersion.WithKind(kind), Labels: l.set.Spec.Selector.MatchLabels, Collisions: l.set.Status.CollisionCount}
	owner.Confirm = func(ctx context.Context) error { return base.CheckCurrent(ctx, l.live, owner.Kind, l.set) }
	l.distinguish = l.options.RecreateChangedClaims && l.policy != v1beta1.PodUpdateInPlaceOnly
	owner.Claims = &revision.ClaimTemplates{Templates: l.set.Spec.VolumeClaimTemplates, Distinguish: l.distinguish}
	var err error
	if l.history, err = l.Revisions.Sync(ctx, owner, &l.set.Spec.Template); err != nil {
		return err
	}
	l.updated, l.current = l.history.Updated, l.history.Named(l.set.Status.CurrentRevision)
	l.roster.compared.compare(l)
	if l.current == nil || l.roster.compared.equal[revision.Hash(l.current.Name)] {
		l.current = l.updated // the revision that pods stay at, or go back to
	}
	l.want.alone = l.current.Name == l.updated.Name
	l.readClaimTemplates()
	return nil
}

// readClaimTemplates finds the claim templates of new pods. Those of the spec count where the revision
// does not record any.
func (l *syncContext) readClaimTemplates() {
	l.claimTemplates = byRevision[[]corev1.PersistentVolumeClaim]{current: l.set.Spec.VolumeClaimTemplates, updated: l.set.Spec.VolumeClaimTemplates}
	if !l.distinguish || l.want.alone {
		return
	}
	if recorded, known := revision.RecordedClaims(l.current); known {
		l.claimTemplates.current = recorded
	}
}

// isUpdated reports whether a pod has the update revision, or one that holds the same.
func (l *syncContext) isUpdated(p *corev1.Pod) bool {
	label := p.Labels[revision.Label]
	return revision.Has(p, l.updated.Name) || label != "" && l.roster.compared.equal[revision.Hash(label)]
}

// before returns the revision that pods have beside the update revision: the current one, or the newest
// that pods have if the status does not tell.
func (l *syncContext) before() string {
	if l.current.Name != l.updated.Name {
		return l.current.Name
	}
	return l.history.Before(func(hash string) bool { return l.roster.sums.revisions[hash] > 0 && !l.roster.compared.equal[hash] })
}

// target returns the revision that a member moves to.
func (l *syncContext) target(m member) *appsv1.ControllerRevision {
	if m.updated {
		return l.current
	}
	return l.updated
}

// plan returns the plan to update a member in place to its target; nil if that is not possible.
func (l *syncContext) plan(m member) *inplace.Plan {
	others := l.roster.compared.otherClaims.updated
	if m.updated {
		others = l.roster.compared.otherClaims.current
	}
	if l.policy == v1beta1.PodUpdateRecreate || others[revision.Hash(m.pod.Labels[revision.Label])] {
		return nil
	}
	return l.plans.Between(l.history.Of(m.pod), l.target(m)) // the revision of the pod may be unknown: nil
}
