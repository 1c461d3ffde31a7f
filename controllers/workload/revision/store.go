package revision

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// keptByDefault is how many unneeded revisions are kept by default.
const keptByDefault = 10

// Store reads and writes revisions in a cluster.
type Store struct {
	Cache client.Reader // may be behind
	API   kubernetes.Interface
}

// History is the history of the template of a workload.
type History struct {
	Revisions []*appsv1.ControllerRevision // sorted, the oldest first
	// Updated is the revision of the current template.
	Updated    *appsv1.ControllerRevision
	Collisions *int32
}

// Named returns the revision with a name; nil if there is none.
func (h History) Named(name string) *appsv1.ControllerRevision {
	i := slices.IndexFunc(h.Revisions, func(r *appsv1.ControllerRevision) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return h.Revisions[i]
}

// Of returns the revision of a pod; nil if it no longer exists.
func (h History) Of(pod *corev1.Pod) *appsv1.ControllerRevision {
	i := slices.IndexFunc(h.Revisions, func(r *appsv1.ControllerRevision) bool { return Has(pod, r.Name) })
	if i < 0 {
		return nil
	}
	return h.Revisions[i]
}

var errCollision = errors.New("another revision has the same hash")

// Sync reads the history of an owner. A template without a revision gets a new revision. An
// older revision with the same template gets the highest number again. It returns an error if a
// request fails, also on a conflict.
func (s Store) Sync(ctx context.Context, owner Owner, template *corev1.PodTemplateSpec) (History, error) {
	h := History{Collisions: owner.Collisions}
	var list appsv1.ControllerRevisionList
	if err := s.Cache.List(ctx, &list, client.InNamespace(owner.GetNamespace()), client.MatchingLabelsSelector{Selector: labels.SelectorFromSet(owner.Labels)}); err != nil {
		return h, fmt.Errorf("the revisions of %s %s/%s: %w", owner.Kind.Kind, owner.GetNamespace(), owner.GetName(), err)
	}
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], owner) {
			h.Revisions = append(h.Revisions, &list.Items[i])
		}
	}
	Sort(h.Revisions)
	for {
		made, err := New(owner, template, Next(h.Revisions))
		if err != nil {
			return h, err
		}
		err = s.keep(ctx, &h, made)
		if !errors.Is(err, errCollision) {
			return h, err
		}
		h.Collisions = new(owner.collisions() + 1)
		owner.Collisions = h.Collisions
	}
}

// keep makes a revision, or the existing one with the same template, the updated one of a
// history. It returns errCollision if the name is taken by another template.
func (s Store) keep(ctx context.Context, h *History, made *appsv1.ControllerRevision) error {
	revisions := s.API.AppsV1().ControllerRevisions(made.Namespace)
	var err error
	if found := Find(h.Revisions, made); found != nil {
		h.Updated = found
		if found == h.Revisions[len(h.Revisions)-1] {
			return nil
		}
		again := found.DeepCopy()
		again.Revision = made.Revision
		if h.Updated, err = revisions.Update(ctx, again, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("ControllerRevision %s/%s becomes the youngest: %w", again.Namespace, again.Name, err)
		}
		h.Revisions = append(slices.DeleteFunc(h.Revisions, func(r *appsv1.ControllerRevision) bool { return r == found }), h.Updated)
		return nil
	}
	h.Updated, err = revisions.Create(ctx, made, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // the cache is behind, or the hash collides
		h.Updated, err = revisions.Get(ctx, made.Name, metav1.GetOptions{})
		if err == nil && !Same(h.Updated, made) {
			return errCollision
		}
	}
	if err != nil {
		return fmt.Errorf("ControllerRevision %s/%s: %w", made.Namespace, made.Name, err)
	}
	h.Revisions = append(h.Revisions, h.Updated)
	return nil
}

// Forget deletes unneeded revisions beyond a limit; a nil limit means 10. The updated revision
// is always kept.
func (s Store) Forget(ctx context.Context, h History, limit *int32, needed func(*appsv1.ControllerRevision) bool) error {
	most := keptByDefault
	if limit != nil {
		most = int(*limit)
	}
	for _, r := range Expired(h.Revisions, most, func(r *appsv1.ControllerRevision) bool { return r.Name == h.Updated.Name || needed(r) }) {
		err := s.API.AppsV1().ControllerRevisions(r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete ControllerRevision %s/%s: %w", r.Namespace, r.Name, err)
		}
	}
	return nil
}
