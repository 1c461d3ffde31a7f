package revision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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

// Before returns the name of the newest revision but the update revision that has pods, by its hash; "":
// there is none.
func (h History) Before(has func(hash string) bool) string {
	for _, r := range slices.Backward(h.Revisions) {
		if r.Name != h.Updated.Name && has(Hash(r.Name)) {
			return r.Name
		}
	}
	return ""
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
// older revision with the same template gets the highest number again. Revisions without a controller
// are adopted. It returns an error if a
// request fails, also on a conflict.
func (s Store) Sync(ctx context.Context, owner Owner, template *corev1.PodTemplateSpec) (History, error) {
	h := History{Collisions: owner.Collisions}
	var list appsv1.ControllerRevisionList
	if err := s.Cache.List(ctx, &list, client.InNamespace(owner.GetNamespace()), client.MatchingLabelsSelector{Selector: labels.SelectorFromSet(owner.Labels)}); err != nil {
		return h, fmt.Errorf("the revisions of %s %s/%s: %w", owner.Kind.Kind, owner.GetNamespace(), owner.GetName(), err)
	}
	for i := range list.Items {
		r, err := s.own(ctx, owner, &list.Items[i])
		if err != nil {
			return h, err
		}
		if r != nil {
			h.Revisions = append(h.Revisions, r)
		}
	}
	Sort(h.Revisions)
	for {
		made, err := New(owner, template, Next(h.Revisions))
		if err != nil {
			return h, err
		}
		err = s.keep(ctx, &h, owner, made)
		if err == nil {
			return h, s.writeRecords(ctx, &h, owner, made)
		}
		if !errors.Is(err, errCollision) {
			return h, err
		}
		h.Collisions = new(owner.collisions() + 1)
		owner.Collisions = h.Collisions
	}
}

// own returns a revision if it belongs to an owner, and adopts it if it has no controller and the name
// that the owner gives; nil if it belongs to another one. It returns a conflict while the revision
// belongs to an earlier workload of the owner's name.
func (s Store) own(ctx context.Context, owner Owner, r *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	if metav1.IsControlledBy(r, owner) {
		return r, nil
	}
	if c := metav1.GetControllerOfNoCopy(r); c != nil {
		gv, err := schema.ParseGroupVersion(c.APIVersion)
		if err == nil && gv.Group == owner.Kind.Group && c.Kind == owner.Kind.Kind && c.Name == owner.GetName() {
			// The garbage collector deletes it, or releases it. Until then pods would get another revision.
			return nil, apierrors.NewConflict(appsv1.Resource("controllerrevisions"), r.Name, errors.New("it belongs to a deleted "+c.Kind+" of this name"))
		}
		return nil, nil //nolint:nilnil // it is none of the owner's
	}
	if hash, named := strings.CutPrefix(r.Name, owner.GetName()+"-"); owner.Confirm == nil || !named || strings.Contains(hash, "-") {
		return nil, nil //nolint:nilnil // as above
	}
	if err := owner.Confirm(ctx); err != nil {
		return nil, err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": r.UID, "resourceVersion": r.ResourceVersion, "ownerReferences": append(slices.Clone(r.OwnerReferences), *metav1.NewControllerRef(owner, owner.Kind)),
	}})
	if err != nil {
		return nil, fmt.Errorf("adopt ControllerRevision %s/%s: %w", r.Namespace, r.Name, err)
	}
	adopted, err := s.API.AppsV1().ControllerRevisions(r.Namespace).Patch(ctx, r.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("adopt ControllerRevision %s/%s: %w", r.Namespace, r.Name, err)
	}
	return adopted, nil
}

// keep makes a revision, or the existing one that holds the same, the updated one of a
// history. It returns errCollision if the name is taken by another template, or by a revision of
// another workload.
func (s Store) keep(ctx context.Context, h *History, owner Owner, made *appsv1.ControllerRevision) error {
	found := owner.find(h.Revisions, made)
	if found == nil {
		return s.create(ctx, h, owner, made)
	}
	h.Updated = found
	if found == h.Revisions[len(h.Revisions)-1] {
		return nil
	}
	again := found.DeepCopy()
	again.Revision = made.Revision
	var err error
	if h.Updated, err = s.API.AppsV1().ControllerRevisions(made.Namespace).Update(ctx, again, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("ControllerRevision %s/%s becomes the youngest: %w", again.Namespace, again.Name, err)
	}
	h.Revisions = append(slices.DeleteFunc(h.Revisions, func(r *appsv1.ControllerRevision) bool { return r == found }), h.Updated)
	return nil
}

// create creates a revision, as keep does.
func (s Store) create(ctx context.Context, h *History, owner Owner, made *appsv1.ControllerRevision) error {
	revisions := s.API.AppsV1().ControllerRevisions(made.Namespace)
	beside := Find(h.Revisions, made) != nil // with other claim templates
	if beside {
		made = owner.nameByClaims(made)
	}
	is, err := revisions.Create(ctx, made, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // the cache is behind, or the hash collides
		is, err = revisions.Get(ctx, made.Name, metav1.GetOptions{})
		if err == nil && Same(is, made) {
			is, err = s.own(ctx, owner, is)
		}
		switch {
		case err != nil:
		case is == nil || !Same(is, made):
			return errCollision
		case ClaimsDiffer(is, made) && beside:
			return errCollision
		case ClaimsDiffer(is, made):
			h.Revisions = append(h.Revisions, is)
			return s.create(ctx, h, owner, made)
		}
	}
	if err != nil {
		return fmt.Errorf("ControllerRevision %s/%s: %w", made.Namespace, made.Name, err)
	}
	h.Updated = is
	// A broken record can hide that the history has it.
	h.Revisions = append(slices.DeleteFunc(h.Revisions, func(r *appsv1.ControllerRevision) bool { return r.Name == is.Name }), is)
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
