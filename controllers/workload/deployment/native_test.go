package deployment

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// native is a model of an API server with the Deployment controller and the ReplicaSet controller of
// Kubernetes 1.36 (pkg/controller/deployment). Each controller reads a cache that may be old, and a write
// of an old version is a conflict. Nothing in it is shared with the code under test.
type native struct {
	d       *appsv1.Deployment
	sets    []*appsv1.ReplicaSet
	pods    []*corev1.Pod
	now     time.Time
	version int

	cachedDeployment *appsv1.Deployment   // as the Deployment controller has read it
	cachedSets       []*appsv1.ReplicaSet // the same
	// onScale is called for each ReplicaSet that the Deployment controller scales.
	onScale func(set *appsv1.ReplicaSet, to int32)
}

const (
	desiredReplicas = "deployment.kubernetes.io/desired-replicas"
	maxReplicas     = "deployment.kubernetes.io/max-replicas"
)

var errConflict = errors.New("conflict")

func (n *native) next() string {
	n.version++
	return strconv.Itoa(n.version)
}

// seeDeployment and seeSets bring the cache of the Deployment controller up to date.
func (n *native) seeDeployment() { n.cachedDeployment = n.d.DeepCopy() }

func (n *native) seeSets() {
	n.cachedSets = nil
	for _, s := range n.sets {
		n.cachedSets = append(n.cachedSets, s.DeepCopy())
	}
}

// update writes a ReplicaSet of the version that was read.
func (n *native) update(s *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error) {
	i := slices.IndexFunc(n.sets, func(o *appsv1.ReplicaSet) bool { return o.UID == s.UID })
	if n.sets[i].ResourceVersion != s.ResourceVersion {
		return nil, errConflict
	}
	s = s.DeepCopy()
	if *s.Spec.Replicas != *n.sets[i].Spec.Replicas || s.Spec.MinReadySeconds != n.sets[i].Spec.MinReadySeconds {
		s.Generation++
	}
	s.ResourceVersion = n.next()
	n.sets[i] = s
	return s.DeepCopy(), nil
}

// writeStatus writes the status of the Deployment, of the version that was read.
func (n *native) writeStatus(d *appsv1.Deployment, all []*appsv1.ReplicaSet, fresh *appsv1.ReplicaSet) error {
	is := appsv1.DeploymentStatus{ObservedGeneration: d.Generation}
	for _, s := range all {
		is.Replicas += s.Status.Replicas
		is.AvailableReplicas += s.Status.AvailableReplicas
	}
	if fresh != nil {
		is.UpdatedReplicas = fresh.Status.Replicas
	}
	if is.ObservedGeneration == d.Status.ObservedGeneration && is.Replicas == d.Status.Replicas && is.AvailableReplicas == d.Status.AvailableReplicas && is.UpdatedReplicas == d.Status.UpdatedReplicas {
		return nil
	}
	if d.ResourceVersion != n.d.ResourceVersion {
		return errConflict
	}
	n.d.Status = is
	n.d.ResourceVersion = n.next()
	return nil
}

// syncDeployment is one pass of the Deployment controller.
func (n *native) syncDeployment() error {
	d := n.cachedDeployment.DeepCopy()
	if d.Spec.Paused {
		return n.sync(d)
	}
	scaling, err := n.isScalingEvent(d)
	if err != nil {
		return err
	}
	if scaling {
		return n.sync(d)
	}
	return n.rollout(d)
}

func (n *native) isScalingEvent(d *appsv1.Deployment) (bool, error) {
	fresh, old, err := n.revisions(d, false)
	if err != nil {
		return false, err
	}
	for _, s := range active(with(old, fresh)) {
		if text, has := s.Annotations[desiredReplicas]; has && text != fmt.Sprint(*d.Spec.Replicas) {
			return true, nil
		}
	}
	return false, nil
}

// stands reports whether the Deployment controller leaves all pods at an old template, by a defect of its
// own. A Deployment was scaled to what its only active ReplicaSet has already. Then isScalingEvent is true for ever, because
// scale leaves the annotation of that ReplicaSet as it is.
func (n *native) stands() bool {
	all, replicas := active(n.sets), *n.d.Spec.Replicas
	return len(all) == 1 && *all[0].Spec.Replicas == replicas && all[0].Annotations[desiredReplicas] != fmt.Sprint(replicas) &&
		all[0].Spec.Template.Spec.Containers[0].Image != n.d.Spec.Template.Spec.Containers[0].Image
}

func with(old []*appsv1.ReplicaSet, fresh *appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	all := slices.Clone(old)
	if fresh != nil {
		all = append(all, fresh)
	}
	return all
}

func active(sets []*appsv1.ReplicaSet) (out []*appsv1.ReplicaSet) {
	for _, s := range sets {
		if *s.Spec.Replicas > 0 {
			out = append(out, s)
		}
	}
	return out
}

func sum(sets []*appsv1.ReplicaSet) (n int32) {
	for _, s := range sets {
		n += *s.Spec.Replicas
	}
	return n
}

// revisions is getAllReplicaSetsAndSyncRevision.
func (n *native) revisions(d *appsv1.Deployment, create bool) (fresh *appsv1.ReplicaSet, old []*appsv1.ReplicaSet, err error) {
	for _, s := range n.cachedSets {
		if fresh == nil && s.Spec.Template.Spec.Containers[0].Image == d.Spec.Template.Spec.Containers[0].Image {
			fresh = s.DeepCopy()
		} else {
			old = append(old, s.DeepCopy())
		}
	}
	if fresh != nil {
		changed := fresh.Spec.MinReadySeconds != d.Spec.MinReadySeconds
		if fresh.Annotations == nil {
			fresh.Annotations = map[string]string{}
		}
		for name, value := range d.Annotations {
			changed = changed || fresh.Annotations[name] != value
			fresh.Annotations[name] = value
		}
		most, _ := nativeBounds(d)
		for name, number := range map[string]int32{desiredReplicas: *d.Spec.Replicas, maxReplicas: *d.Spec.Replicas + most} {
			if _, has := fresh.Annotations[name]; !has {
				fresh.Annotations[name], changed = fmt.Sprint(number), true
			}
		}
		fresh.Spec.MinReadySeconds = d.Spec.MinReadySeconds
		if changed {
			fresh, err = n.update(fresh)
		}
		return fresh, old, err
	}
	if !create {
		return nil, old, nil
	}
	image := d.Spec.Template.Spec.Containers[0].Image
	if slices.ContainsFunc(n.sets, func(s *appsv1.ReplicaSet) bool { return s.Name == image }) {
		return nil, nil, errConflict // it exists, and the cache is old
	}
	surge, _ := nativeBounds(d)
	size := max(0, min(*d.Spec.Replicas+surge-sum(old), *d.Spec.Replicas))
	fresh = &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: image, UID: types.UID(image), Generation: 1, ResourceVersion: n.next(), CreationTimestamp: metav1.NewTime(n.now), Annotations: maps.Clone(d.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &size, MinReadySeconds: d.Spec.MinReadySeconds, Template: *d.Spec.Template.DeepCopy()},
	}
	if fresh.Annotations == nil {
		fresh.Annotations = map[string]string{}
	}
	fresh.Annotations[desiredReplicas], fresh.Annotations[maxReplicas] = fmt.Sprint(*d.Spec.Replicas), fmt.Sprint(*d.Spec.Replicas+surge)
	n.sets = append(n.sets, fresh.DeepCopy())
	n.scaled(fresh, size)
	return fresh, old, nil
}

func (n *native) scaled(s *appsv1.ReplicaSet, to int32) {
	if n.onScale != nil {
		n.onScale(s, to)
	}
}

// nativeBounds is ResolveFenceposts.
func nativeBounds(d *appsv1.Deployment) (surge, unavailable int32) {
	u := d.Spec.Strategy.RollingUpdate
	of := func(v *v1beta1.IntOrString, up float64) int32 {
		if v.Type == 0 {
			return v.IntVal
		}
		percent, _ := strconv.Atoi(v.StrVal[:len(v.StrVal)-1])
		return int32(math.Floor(float64(percent)*float64(*d.Spec.Replicas)/100 + up))
	}
	surge, unavailable = of(u.MaxSurge, 0.999), of(u.MaxUnavailable, 0)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, *d.Spec.Replicas)
}

// scaleSet is scaleReplicaSet.
func (n *native) scaleSet(d *appsv1.Deployment, s *appsv1.ReplicaSet, to int32, force bool) (bool, *appsv1.ReplicaSet, error) {
	surge, _ := nativeBounds(d)
	desired, most := fmt.Sprint(*d.Spec.Replicas), fmt.Sprint(*d.Spec.Replicas+surge)
	resized := *s.Spec.Replicas != to
	noted := s.Annotations[desiredReplicas] != desired || s.Annotations[maxReplicas] != most
	if !resized && (!force || !noted) {
		return false, s, nil
	}
	s = s.DeepCopy()
	s.Spec.Replicas = &to
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[desiredReplicas], s.Annotations[maxReplicas] = desired, most
	s, err := n.update(s)
	if err == nil && resized {
		n.scaled(s, to)
	}
	return resized && err == nil, s, err
}

// sync is the pass for a paused Deployment, and after it was scaled.
func (n *native) sync(d *appsv1.Deployment) error {
	fresh, old, err := n.revisions(d, false)
	if err != nil {
		return err
	}
	if err := n.scale(d, fresh, old); err != nil {
		return err
	}
	return n.writeStatus(d, with(old, fresh), fresh)
}

func (n *native) scale(d *appsv1.Deployment, fresh *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) error {
	all := active(with(old, fresh))
	if len(all) <= 1 {
		one := fresh
		switch {
		case len(all) == 1:
			one = all[0]
		case fresh == nil && len(old) > 0:
			one = old[len(old)-1]
		}
		if one == nil {
			return nil
		}
		_, _, err := n.scaleSet(d, one, *d.Spec.Replicas, false)
		return err
	}
	if fresh != nil && *fresh.Spec.Replicas == *d.Spec.Replicas && fresh.Annotations[desiredReplicas] == fmt.Sprint(*d.Spec.Replicas) && fresh.Status.AvailableReplicas == *d.Spec.Replicas {
		for _, s := range active(old) {
			if _, _, err := n.scaleSet(d, s, 0, false); err != nil {
				return err
			}
		}
		return nil
	}
	surge, _ := nativeBounds(d)
	allowed := int32(0)
	if *d.Spec.Replicas > 0 {
		allowed = *d.Spec.Replicas + surge
	}
	add, added := allowed-sum(all), int32(0)
	slices.SortStableFunc(all, func(a, b *appsv1.ReplicaSet) int {
		if *a.Spec.Replicas != *b.Spec.Replicas {
			return int(*b.Spec.Replicas - *a.Spec.Replicas)
		}
		older := slices.IndexFunc(n.cachedSets, func(s *appsv1.ReplicaSet) bool { return s.UID == a.UID }) - slices.IndexFunc(n.cachedSets, func(s *appsv1.ReplicaSet) bool { return s.UID == b.UID })
		if add > 0 {
			return -older
		}
		return older
	})
	sizes := make([]int32, len(all))
	for i, s := range all {
		sizes[i] = *s.Spec.Replicas
		if add == 0 || add == added {
			continue
		}
		share := -sizes[i]
		if *d.Spec.Replicas > 0 {
			before, _ := strconv.Atoi(s.Annotations[maxReplicas])
			if before == 0 {
				before = int(d.Status.Replicas)
			}
			share = 0
			if before > 0 {
				share = int32(math.Round(float64(sizes[i]*allowed)/float64(before))) - sizes[i]
			}
		}
		if add > 0 {
			share = min(share, add-added)
		} else {
			share = max(share, add-added)
		}
		sizes[i] += share
		added += share
	}
	for i, s := range all {
		if i == 0 && add != 0 {
			sizes[0] = max(0, sizes[0]+add-added)
		}
		if _, _, err := n.scaleSet(d, s, sizes[i], true); err != nil {
			return err
		}
	}
	return nil
}

// rollout is rolloutRolling.
func (n *native) rollout(d *appsv1.Deployment) error {
	fresh, old, err := n.revisions(d, true)
	if err != nil {
		return err
	}
	replicas, is := *d.Spec.Replicas, *fresh.Spec.Replicas
	surge, unavailable := nativeBounds(d)
	to := replicas
	if is < replicas {
		to = is
		if total := is + sum(old); total < replicas+surge {
			to += min(replicas+surge-total, replicas-is)
		}
	}
	scaled, fresh, err := n.scaleSet(d, fresh, to, false)
	if err != nil {
		return err
	}
	if !scaled {
		old = n.scaleDown(d, fresh, old, unavailable)
	}
	return n.writeStatus(d, with(old, fresh), fresh)
}

// scaleDown is reconcileOldReplicaSets. It drops errors, as that does.
func (n *native) scaleDown(d *appsv1.Deployment, fresh *appsv1.ReplicaSet, old []*appsv1.ReplicaSet, unavailable int32) []*appsv1.ReplicaSet {
	least := *d.Spec.Replicas - unavailable
	most := sum(old) + *fresh.Spec.Replicas - least - (*fresh.Spec.Replicas - fresh.Status.AvailableReplicas)
	if sum(old) == 0 || most <= 0 {
		return old
	}
	done := int32(0)
	for i, s := range old {
		if done >= most {
			break
		}
		if *s.Spec.Replicas == 0 || *s.Spec.Replicas == s.Status.AvailableReplicas {
			continue
		}
		less := min(most-done, *s.Spec.Replicas-s.Status.AvailableReplicas)
		if less < 0 {
			return old
		}
		_, now, err := n.scaleSet(d, s, *s.Spec.Replicas-less, false)
		if err != nil {
			return old // as the Deployment controller does
		}
		old[i], done = now, done+less
	}
	available := fresh.Status.AvailableReplicas
	for _, s := range old {
		available += s.Status.AvailableReplicas
	}
	done = 0
	for i, s := range old {
		if done >= available-least {
			break
		}
		if *s.Spec.Replicas == 0 {
			continue
		}
		less := min(*s.Spec.Replicas, available-least-done)
		_, now, err := n.scaleSet(d, s, *s.Spec.Replicas-less, false)
		if err != nil {
			return old // as the Deployment controller does
		}
		old[i], done = now, done+less
	}
	return old
}

// syncSet is one pass of the ReplicaSet controller: pods, and then the status.
func (n *native) syncSet(i int) {
	s := n.sets[i]
	var have []*corev1.Pod
	for _, p := range n.pods {
		if metav1.IsControlledBy(p, s) {
			have = append(have, p)
		}
	}
	for len(have) < int(*s.Spec.Replicas) {
		n.version++
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", s.Name, n.version), UID: types.UID(fmt.Sprint(n.version)), CreationTimestamp: metav1.NewTime(n.now),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
		}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
		n.pods, have = append(n.pods, p), append(have, p)
	}
	slices.SortStableFunc(have, func(a, b *corev1.Pod) int { // pods that are not ready go first
		x, y := readyAt(a).IsZero(), readyAt(b).IsZero()
		switch {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	})
	for len(have) > int(*s.Spec.Replicas) {
		n.pods = slices.DeleteFunc(n.pods, func(p *corev1.Pod) bool { return p == have[0] })
		have = have[1:]
	}
	is := appsv1.ReplicaSetStatus{ObservedGeneration: s.Generation, Replicas: int32(len(have))}
	for _, p := range have {
		if at := readyAt(p); !at.IsZero() {
			is.ReadyReplicas++
			if !at.Add(time.Duration(s.Spec.MinReadySeconds) * time.Second).After(n.now) {
				is.AvailableReplicas++
			}
		}
	}
	if is.ObservedGeneration != s.Status.ObservedGeneration || is.Replicas != s.Status.Replicas || is.ReadyReplicas != s.Status.ReadyReplicas || is.AvailableReplicas != s.Status.AvailableReplicas {
		s = s.DeepCopy()
		s.Status, s.ResourceVersion = is, n.next()
		n.sets[i] = s
	}
}

func readyAt(p *corev1.Pod) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// ready makes a pod ready, or broken.
func (n *native) ready(i int, is bool) {
	p := n.pods[i].DeepCopy()
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	if is {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(n.now)}}
	} else {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
	}
	n.pods[i] = p
}
