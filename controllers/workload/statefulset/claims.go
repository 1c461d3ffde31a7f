package statefulset

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/ordinal"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
)

// claimFacts are the state of a claim of a pod.
type claimFacts struct {
	missing bool
	// compatible: class and modes are those of the template, and the request is at least as large.
	// sized: it also has that size.
	compatible, sized bool
	// misowned: its owners are not as the retention policy wants.
	misowned bool
}

// claimCounts are how many claims of a template follow it.
type claimCounts struct{ compatible, sized int32 }

func (c *claimCounts) add(f claimFacts, by int32) {
	if f.compatible {
		c.compatible += by
	}
	if f.sized {
		c.sized += by
	}
}

// needsClaims reports whether a pod waits for a missing claim, or owners of its claims have to
// change.
func needsClaims(f *facts) bool {
	return !f.stranger && slices.ContainsFunc(f.claims, func(c claimFacts) bool {
		return c.misowned || c.missing && f.kept && f.live() && f.pod.Status.Phase == corev1.PodPending
	})
}

// claimOwner says who owns the claims of a pod: the StatefulSet, the pod, or neither. Kubernetes
// deletes a claim with its owner.
type claimOwner struct{ set, pod bool }

// claimOwners returns the owners of the claims of kept pods and of condemned pods. The rules are
// those of StatefulSets of apps/v1.
func claimOwners(p *v1beta1.ClaimRetentionPolicy) (kept, condemned claimOwner) {
	if p == nil {
		return kept, condemned
	}
	kept.set = p.WhenDeleted == v1beta1.ClaimDelete
	condemned.pod = p.WhenScaled == v1beta1.ClaimDelete
	condemned.set = kept.set && !condemned.pod
	return kept, condemned
}

// owner returns the owners that the claims of a pod should have.
func (l *syncContext) owner(kept bool) claimOwner {
	if kept {
		return l.keptOwner
	}
	return l.condemnedOwner
}

func (l *syncContext) claimName(t *corev1.PersistentVolumeClaim, ordinal int) string {
	return strings.Join([]string{t.Name, l.set.Name, strconv.Itoa(ordinal)}, "-")
}

// cached returns a claim of the informer; nil if it has none.
func (l *syncContext) cached(ctx context.Context, t *corev1.PersistentVolumeClaim, ordinal int) *corev1.PersistentVolumeClaim {
	var c corev1.PersistentVolumeClaim
	if err := l.Objects.Get(ctx, client.ObjectKey{Namespace: l.set.Namespace, Name: l.claimName(t, ordinal)}, &c); err != nil {
		return nil // the informer fails in no other way
	}
	return &c
}

// judgeClaims adds the facts about the claims of a pod.
func (l *syncContext) judgeClaims(ctx context.Context, f *facts) {
	for i := range l.set.Spec.VolumeClaimTemplates {
		t := &l.set.Spec.VolumeClaimTemplates[i]
		c := l.cached(ctx, t, f.ordinal)
		if c == nil {
			f.claims = append(f.claims, claimFacts{missing: true})
			continue
		}
		is := judgeClaim(t, c)
		is.misowned = l.misowned(c, f)
		f.claims = append(f.claims, is)
		if l.want.resize && f.kept && f.live() {
			f.undersized = f.undersized || isUndersized(t, c)
			f.resizing = f.resizing || isResizing(c)
		}
	}
}

func judgeClaim(t, c *corev1.PersistentVolumeClaim) claimFacts {
	f := claimFacts{compatible: podclient.SameClaimKind(t, c) && podclient.ClaimSize(c).Cmp(*podclient.ClaimSize(t)) >= 0}
	capacity := c.Status.Capacity[corev1.ResourceStorage]
	f.sized = f.compatible && capacity.Cmp(*podclient.ClaimSize(t)) >= 0
	return f
}

// isUndersized reports whether a claim has to grow to the size of its template. A claim never shrinks,
// and one that is not bound cannot change: its pod must not wait for it.
func isUndersized(t, c *corev1.PersistentVolumeClaim) bool {
	return podclient.SameClaimKind(t, c) && c.DeletionTimestamp == nil && c.Status.Phase == corev1.ClaimBound && podclient.ClaimSize(c).Cmp(*podclient.ClaimSize(t)) < 0
}

// isResizing reports whether a bound claim does not have its size yet. A file system that grows when a
// pod mounts it is not waited for: the update of the pod lets it grow, and without one the pod
// serves as before.
func isResizing(c *corev1.PersistentVolumeClaim) bool {
	capacity, has := c.Status.Capacity[corev1.ResourceStorage]
	pending := slices.ContainsFunc(c.Status.Conditions, func(o corev1.PersistentVolumeClaimCondition) bool {
		return o.Type == corev1.PersistentVolumeClaimFileSystemResizePending && o.Status == corev1.ConditionTrue
	})
	return has && c.Status.Phase == corev1.ClaimBound && capacity.Cmp(*podclient.ClaimSize(c)) < 0 && !pending
}

// misowned reports whether the owners of a claim are not those that it should have.
func (l *syncContext) misowned(c *corev1.PersistentVolumeClaim, f *facts) bool {
	want := l.owner(f.kept)
	return owns(c, l.set.UID) != want.set || owns(c, f.pod.UID) != want.pod
}

func owns(c *corev1.PersistentVolumeClaim, uid types.UID) bool {
	return slices.ContainsFunc(c.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == uid })
}

// stalePatience is how long a new pod waits before it looks again whether the claims of its
// predecessor are gone.
const stalePatience = 5 * time.Second

// createClaims creates the missing claims of a pod. It returns false if the pod has to wait: the
// garbage collector deletes a claim with an earlier pod.
func (l *syncContext) createClaims(ctx context.Context, pod string, ordinal int) (free bool, err error) {
	for i := range l.set.Spec.VolumeClaimTemplates {
		t := &l.set.Spec.VolumeClaimTemplates[i]
		is := l.cached(ctx, t, ordinal)
		if is == nil {
			if is, err = l.createClaim(ctx, t, pod, ordinal); err != nil {
				return false, err
			}
		}
		switch {
		case slices.ContainsFunc(is.OwnerReferences, func(o metav1.OwnerReference) bool { return o.APIVersion == "v1" && o.Kind == "Pod" && o.Name == pod }):
			l.RequeueAfter(stalePatience)
			return false, nil
		case is.DeletionTimestamp != nil:
			err := fmt.Errorf("%w: pvc %s is to be deleted", errNameTaken, is.Name)
			l.Events.Eventf(l.set, nil, corev1.EventTypeWarning, "FailedCreate", "Creating", "create Pod %s in StatefulSet %s failed error: %v", pod, l.set.Name, err)
			l.RequeueAfter(stalePatience)
			return false, err
		}
	}
	return true, nil
}

// createClaim creates a claim, or returns the one that the informer does not show yet.
func (l *syncContext) createClaim(ctx context.Context, t *corev1.PersistentVolumeClaim, pod string, ordinal int) (*corev1.PersistentVolumeClaim, error) {
	c := t.DeepCopy()
	c.Name, c.GenerateName, c.Namespace, c.Status = l.claimName(t, ordinal), "", l.set.Namespace, corev1.PersistentVolumeClaimStatus{}
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	maps.Copy(c.Labels, l.set.Spec.Selector.MatchLabels)
	if l.keptOwner.set {
		c.OwnerReferences = append(c.OwnerReferences, l.setReference())
	}
	claims := l.API.CoreV1().PersistentVolumeClaims(c.Namespace)
	made, err := claims.Create(ctx, c, metav1.CreateOptions{})
	switch {
	case err == nil:
		l.claims.expect.Wrote(l.set.UID, made)
		l.Events.Eventf(l.set, nil, corev1.EventTypeNormal, "SuccessfulCreate", "Creating", "create Claim %s Pod %s in StatefulSet %s success", c.Name, pod, l.set.Name)
	case apierrors.IsAlreadyExists(err):
		made, err = claims.Get(ctx, c.Name, metav1.GetOptions{})
	}
	if err != nil {
		l.Events.Eventf(l.set, nil, corev1.EventTypeWarning, "FailedCreate", "Creating", "create Claim %s for Pod %s in StatefulSet %s failed error: %v", c.Name, pod, l.set.Name, err)
		return nil, fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	return made, nil
}

// setReference is no controller reference: a claim is its own master, and only deleted with its owner.
func (l *syncContext) setReference() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1beta1.GroupVersion.String(), Kind: kind, Name: l.set.Name, UID: l.set.UID}
}

// ownClaims gives the claims of a pod the owners that they should have.
func (l *syncContext) ownClaims(ctx context.Context, f *facts) error {
	want := l.owner(f.kept)
	for i := range l.set.Spec.VolumeClaimTemplates {
		c := l.cached(ctx, &l.set.Spec.VolumeClaimTemplates[i], f.ordinal)
		if c == nil || !l.misowned(c, f) {
			continue
		}
		var owners []any
		for _, o := range []struct {
			reference metav1.OwnerReference
			want      bool
		}{
			{l.setReference(), want.set},
			{metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: f.pod.Name, UID: f.pod.UID}, want.pod},
		} {
			switch is := owns(c, o.reference.UID); {
			case o.want && !is:
				owners = append(owners, o.reference)
			case is && !o.want:
				owners = append(owners, map[string]any{"$patch": "delete", "uid": o.reference.UID})
			}
		}
		if err := l.patchClaim(ctx, c, map[string]any{"metadata": map[string]any{"uid": c.UID, "ownerReferences": owners}}); err != nil {
			return err
		}
	}
	return nil
}

// patchClaim writes a strategic merge patch that names the UID of a claim. A claim that no longer
// exists is not an error.
func (l *syncContext) patchClaim(ctx context.Context, c *corev1.PersistentVolumeClaim, patch map[string]any) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("patch claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	answer, err := l.API.CoreV1().PersistentVolumeClaims(c.Namespace).Patch(ctx, c.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("patch claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	l.claims.expect.Wrote(l.set.UID, answer)
	return nil
}

// mendClaims creates claims that pending pods wait for, and mends the owners of claims.
func (l *syncContext) mendClaims(ctx context.Context) error {
	open := slices.SortedFunc(maps.Keys(l.roster.unclaimed), byOrdinal)
	open = open[:min(len(open), maxPodsPerReconcile)]
	return each(open, func(e *entry) error {
		if e.kept && e.live() && e.pod.Status.Phase == corev1.PodPending {
			for j := range l.set.Spec.VolumeClaimTemplates {
				if t := &l.set.Spec.VolumeClaimTemplates[j]; j < len(e.claims) && e.claims[j].missing {
					if _, err := l.createClaim(ctx, t, e.name, e.ordinal); err != nil {
						return err
					}
				}
			}
		}
		return l.ownClaims(ctx, &e.facts)
	})
}

// resizeClaims lets the claims of pods grow to the size of their templates.
func (l *syncContext) resizeClaims(ctx context.Context, members []member) error {
	return each(members, func(m member) error {
		for j := range l.set.Spec.VolumeClaimTemplates {
			t := &l.set.Spec.VolumeClaimTemplates[j]
			c := l.cached(ctx, t, m.ordinal)
			if c == nil || !isUndersized(t, c) {
				continue
			}
			err := l.patchClaim(ctx, c, map[string]any{
				"metadata": map[string]any{"uid": c.UID, "annotations": map[string]any{v1beta1.AnnotationOwnedBySet: "true"}},
				"spec":     map[string]any{"resources": map[string]any{"requests": map[string]any{string(corev1.ResourceStorage): podclient.ClaimSize(t)}}},
			})
			if err != nil {
				l.Events.Eventf(l.set, nil, corev1.EventTypeWarning, "FailedResize", "Resizing", "resize Claim %s of Pod %s failed error: %v", c.Name, m.name, err)
				return err
			}
			l.Events.Eventf(l.set, nil, corev1.EventTypeNormal, "SuccessfulResize", "Resizing", "resize Claim %s of Pod %s from %s to %s", c.Name, m.name, podclient.ClaimSize(c), podclient.ClaimSize(t))
		}
		return nil
	})
}

// claimChanges tell which claims of StatefulSets have changed since they were last taken. They are
// safe for concurrent use.
type claimChanges struct {
	expect *expectations.Expectations

	mu      sync.Mutex
	changed map[types.NamespacedName]map[int]struct{} // ordinals, by StatefulSet
}

func newClaimChanges(now func() time.Time) *claimChanges {
	return &claimChanges{expect: expectations.New(now), changed: map[types.NamespacedName]map[int]struct{}{}}
}

// take returns the ordinals of a StatefulSet whose claims have changed, and forgets them.
func (c *claimChanges) take(set types.NamespacedName) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer delete(c.changed, set)
	return slices.Sorted(maps.Keys(c.changed[set]))
}

func (c *claimChanges) add(set types.NamespacedName, ordinal int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed[set] == nil {
		c.changed[set] = map[int]struct{}{}
	}
	c.changed[set][ordinal] = struct{}{}
}

// eventHandler returns a handler that records changes of claims, and enqueues their StatefulSets. A
// claim has no owner that would say whose it is, so its name does.
func (c *claimChanges) eventHandler(sets client.Reader) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	heard := func(ctx context.Context, claim client.Object, q queue) {
		var list v1beta1.StatefulSetList
		err := sets.List(ctx, &list, client.InNamespace(claim.GetNamespace()), client.UnsafeDisableDeepCopy)
		if err != nil {
			return // a list of the informer fails only when the process ends
		}
		for i := range list.Items {
			set := &list.Items[i]
			for j := range set.Spec.VolumeClaimTemplates {
				if n, ok := ordinal.Of(set.Spec.VolumeClaimTemplates[j].Name+"-"+set.Name, claim.GetName()); ok {
					c.add(client.ObjectKeyFromObject(set), n)
					q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(set)}, podclient.Gather)
				}
			}
		}
		c.expect.Saw(claim)
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { heard(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { heard(ctx, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { heard(ctx, e.Object, q) },
	}
}
