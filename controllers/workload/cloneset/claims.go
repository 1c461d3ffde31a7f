package cloneset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/slowstart"
)

// late is how long a pod may still be stopping after its grace period. After that time no new
// pod waits for its claims.
const late = 30 * time.Second

// instance is the instance ID of some claims, with the state of its pod.
type instance struct {
	id string
	// pod: a pod has the ID, even if it is being deleted.
	pod bool
	// ends is the end of the grace period of the pod; zero if it is not being deleted.
	ends time.Time
	// deleted: at least one claim is being deleted.
	deleted bool
	fit     fit
}

// fit says whether claims fit the claim templates of pods of the current and of the update revision.
type fit byRevision[bool]

// shares is what happens to claims.
type shares struct {
	// free are the IDs whose claims new pods can reuse, in order.
	free []freeClaims
	// waits is for how many new pods claims become free soon. after is the time until the next
	// check.
	waits map[fit]int
	after time.Duration
	// unneeded are the IDs whose claims are deleted.
	unneeded []string
}

type freeClaims struct {
	id  string
	fit fit
}

// share decides about claims whose pods are gone or being deleted: new pods reuse them, or they
// are deleted. Claims that fit no new pod are deleted.
func share(instances []instance, reuse bool, now time.Time) shares {
	var s shares
	for _, i := range instances {
		reuse := reuse && i.fit != fit{}
		left := i.ends.Add(late).Sub(now)
		switch {
		case !i.pod && (!reuse || i.deleted):
			s.unneeded = append(s.unneeded, i.id)
		case !i.pod:
			s.free = append(s.free, freeClaims{i.id, i.fit})
		case reuse && !i.deleted && !i.ends.IsZero() && left > 0:
			if len(s.waits) == 0 || left < s.after {
				s.after = left
			}
			if s.waits == nil {
				s.waits = map[fit]int{}
			}
			s.waits[i.fit]++
		}
	}
	return s
}

// limit leaves only the new pods that are created now: pods that can reuse free claims, and pods for
// which no claims become free soon. It reports whether others wait.
func (s shares) limit(c *counts) bool {
	free, waits := map[fit]int{}, maps.Clone(s.waits)
	for _, f := range s.free {
		free[f.fit]++
	}
	// take takes claims for n pods, first those that fit no other revision. It returns how many pods get
	// none.
	take := func(n int, of map[fit]int, only fit) int {
		for _, f := range []fit{only, {current: true, updated: true}} {
			taken := min(n, of[f])
			if n -= taken; taken > 0 {
				of[f] -= taken
			}
		}
		return n
	}
	limited := false
	limit := func(n *int, only fit) {
		without := take(*n, free, only)
		waiting := without - take(without, waits, only)
		*n -= waiting
		limited = limited || waiting > 0
	}
	limit(&c.createOld, fit{current: true})
	limit(&c.createNew, fit{updated: true})
	return limited
}

// claims are the known claims of a CloneSet, and the decision about them.
type claims struct {
	mark   podclient.Mark[*corev1.PersistentVolumeClaim]
	all    map[types.UID]*corev1.PersistentVolumeClaim
	byID   map[string][]*corev1.PersistentVolumeClaim
	shares shares
	// stale: a change of pods may change the decision.
	stale bool
}

// readClaims reads the changed claims, and decides again if necessary.
func (l *syncContext) readClaims() {
	c := &l.roster.claims
	changes := l.claims.Since(&c.mark, l.set)
	if changes.Anew {
		c.stale = c.stale || len(c.all) > 0
		c.all = map[types.UID]*corev1.PersistentVolumeClaim{}
	}
	for _, uid := range changes.Gone {
		delete(c.all, uid)
	}
	for _, claim := range changes.Are {
		c.all[claim.UID] = claim
	}
	// A wait for claims ends by time, without a change.
	if c.stale || len(changes.Are)+len(changes.Gone) > 0 || len(c.shares.waits) > 0 {
		l.share(c)
	}
}

func (l *syncContext) share(c *claims) {
	c.stale, c.shares, c.byID = false, shares{}, map[string][]*corev1.PersistentVolumeClaim{}
	if len(c.all) == 0 {
		return
	}
	for _, claim := range c.all {
		if id := claim.Labels[v1beta1.LabelInstanceID]; id != "" {
			c.byID[id] = append(c.byID[id], claim)
		}
	}
	ids := l.roster.ids()
	var instances []instance
	for _, id := range slices.Sorted(maps.Keys(c.byID)) {
		ends, taken := ids[id]
		deleted := slices.ContainsFunc(c.byID[id], func(c *corev1.PersistentVolumeClaim) bool { return c.DeletionTimestamp != nil })
		instances = append(instances, instance{id: id, pod: taken, ends: ends, deleted: deleted, fit: l.fits(id, c.byID[id])})
	}
	c.shares = share(instances, l.set.Spec.ScaleStrategy.EnablePVCReuse, l.at)
	if len(l.claimTemplates.current)+len(l.claimTemplates.updated) == 0 {
		c.shares.free, c.shares.waits = nil, nil // new pods have no claims
	}
}

// fits reports which new pods the claims of an instance fit: all, unless revisions are told apart by
// their claim templates. Claims that fit no recorded revision are older than the records, so a new pod
// reuses them as it would without records: their data is not given up for a change that did not count.
func (l *syncContext) fits(id string, claims []*corev1.PersistentVolumeClaim) fit {
	anyPod := fit{current: true, updated: true}
	if !l.distinguish || len(l.claimTemplates.current)+len(l.claimTemplates.updated) == 0 {
		return anyPod
	}
	follow := func(templates []corev1.PersistentVolumeClaim) bool {
		return len(templates) == len(claims) && !slices.ContainsFunc(templates, func(t corev1.PersistentVolumeClaim) bool {
			return !slices.ContainsFunc(claims, func(c *corev1.PersistentVolumeClaim) bool {
				return c.Name == claimName(l.set, &t, id) && podclient.SameClaimKind(&t, c) && podclient.ClaimSize(c).Cmp(*podclient.ClaimSize(&t)) >= 0
			})
		})
	}
	is := fit{current: follow(l.claimTemplates.current), updated: follow(l.claimTemplates.updated)}
	if is == (fit{}) && !slices.ContainsFunc(l.roster.compared.recorded, follow) {
		return anyPod
	}
	return is
}

// newIDs returns the IDs of new pods, those of the current revision first: free IDs whose claims are
// reused, and unused ones. It returns an error if the pods cannot be listed.
func (l *syncContext) newIDs(ctx context.Context, c counts) ([]string, error) {
	if c.createOld+c.createNew == 0 {
		return nil, nil
	}
	free := slices.Clone(l.roster.claims.shares.free)
	if len(free) > 0 {
		taken, err := l.embodied(ctx)
		if err != nil {
			return nil, err
		}
		free = slices.DeleteFunc(free, func(f freeClaims) bool { return taken[f.id] })
	}
	has := l.roster.ids()
	var ids []string
	add := func(n int, only fit) {
		for _, f := range []fit{only, {current: true, updated: true}} {
			free = slices.DeleteFunc(free, func(o freeClaims) bool {
				if n == 0 || o.fit != f {
					return false
				}
				ids = append(ids, o.id)
				n--
				return true
			})
		}
		for n > 0 {
			id := rand.String(5)
			_, pod := has[id]
			if _, claim := l.roster.claims.byID[id]; !pod && !claim && !slices.Contains(ids, id) {
				ids = append(ids, id)
				n--
			}
		}
	}
	add(c.createOld, fit{current: true})
	add(c.createNew, fit{updated: true})
	return ids, nil
}

// embodied returns the IDs of the pods in the namespace, from the API server. The informer may
// not show a pod yet, and the data of its claims must not be deleted or reused.
func (l *syncContext) embodied(ctx context.Context) (map[string]bool, error) {
	list, err := l.API.CoreV1().Pods(l.set.Namespace).List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelInstanceID})
	if err != nil {
		return nil, fmt.Errorf("which pods of %s have claims: %w", l.set.Namespace, err)
	}
	ids := map[string]bool{}
	for _, p := range list.Items {
		ids[p.Labels[v1beta1.LabelInstanceID]] = true
	}
	return ids, nil
}

// newClaim returns the claim of an instance for a template.
func (l *syncContext) newClaim(t *corev1.PersistentVolumeClaim, id string) *corev1.PersistentVolumeClaim {
	c := t.DeepCopy()
	c.Name, c.GenerateName, c.Namespace = claimName(l.set, t, id), "", l.set.Namespace
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	maps.Copy(c.Labels, l.set.Spec.Selector.MatchLabels)
	c.Labels[v1beta1.LabelInstanceID] = id
	c.OwnerReferences = append(c.OwnerReferences, *metav1.NewControllerRef(l.set, v1beta1.GroupVersion.WithKind(kind)))
	return c
}

func claimName(set *v1beta1.CloneSet, t *corev1.PersistentVolumeClaim, id string) string {
	return strings.Join([]string{t.Name, set.Name, id}, "-")
}

// createClaims creates the missing claims of an instance.
func (l *syncContext) createClaims(ctx context.Context, templates []corev1.PersistentVolumeClaim, id string) error {
	for i := range templates {
		c := l.newClaim(&templates[i], id)
		made, err := l.API.CoreV1().PersistentVolumeClaims(c.Namespace).Create(ctx, c, metav1.CreateOptions{})
		switch {
		case err == nil:
			l.claimed.Wrote(l.set.UID, made)
			continue
		case apierrors.IsAlreadyExists(err):
			err = l.usable(ctx, c.Name)
		}
		if err != nil {
			l.Events.Eventf(l.set, nil, corev1.EventTypeWarning, "FailedCreate", "Creating", "failed to create pvc %s: %v", c.Name, err)
			return fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err)
		}
	}
	return nil
}

// usable returns why an existing claim cannot be used by a new pod; nil if it can.
func (l *syncContext) usable(ctx context.Context, name string) error {
	is, err := l.API.CoreV1().PersistentVolumeClaims(l.set.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return err //nolint:wrapcheck // the caller names it
	case !metav1.IsControlledBy(is, l.set):
		return errors.New("it exists, and belongs to another owner")
	case is.DeletionTimestamp != nil:
		return errors.New("it is being deleted")
	}
	return nil
}

// dropClaims deletes unneeded claims.
func (l *syncContext) dropClaims(ctx context.Context) error {
	var unneeded []string
	for _, id := range l.roster.claims.shares.unneeded {
		if slices.ContainsFunc(l.roster.claims.byID[id], func(c *corev1.PersistentVolumeClaim) bool { return c.DeletionTimestamp == nil }) {
			unneeded = append(unneeded, id)
		}
	}
	if len(unneeded) == 0 {
		return nil
	}
	taken, err := l.embodied(ctx)
	if err != nil {
		return err
	}
	unneeded = slices.DeleteFunc(unneeded, func(id string) bool { return taken[id] })
	_, err = slowstart.Run(min(len(unneeded), maxPodsPerReconcile), podclient.AtOnce, func(i int) error { return l.deleteClaims(ctx, unneeded[i]) })
	return err
}

// deleteClaims deletes the claims of an instance. The API server protects claims in use, so they
// remain until the pod is gone.
func (l *syncContext) deleteClaims(ctx context.Context, id string) error {
	for _, c := range l.roster.claims.byID[id] {
		if c.DeletionTimestamp != nil {
			continue
		}
		var answer corev1.PersistentVolumeClaim
		err := l.API.CoreV1().RESTClient().Delete().Namespace(c.Namespace).Resource("persistentvolumeclaims").Name(c.Name).
			Body(&metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(c.UID))}).Do(ctx).Into(&answer)
		switch {
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // it is gone already
		case err != nil:
			return fmt.Errorf("delete claim %s/%s: %w", c.Namespace, c.Name, err)
		default:
			l.claimed.Wrote(l.set.UID, &answer)
		}
	}
	return nil
}
