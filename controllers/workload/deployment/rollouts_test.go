package deployment

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

// updateMachine lets a user, the controllers of Kubernetes, a kubelet and this controller act in any
// order, each with what it has read.
type updateMachine struct {
	native
	user  fields // what the user wants
	image int
	// What this controller has read.
	seenDeployment *appsv1.Deployment
	seenSets       []*appsv1.ReplicaSet
	seenPods       []*corev1.Pod

	// allowed is how many pods may have the template, and least how many old ones stay. loose: the user
	// scaled, or changed the bounds or the template during a step, and then the Deployment controller
	// divides by its own rules.
	allowed, least int
	loose          bool
	calm           bool // the user changes templates alone
	writes         int
	broken         string
}

func newUpdateMachine(rt *rapid.T) *updateMachine {
	m := &updateMachine{image: 1}
	m.now = time.Unix(1_700_000_000, 0)
	size := rapid.Int32Range(1, 12).Draw(rt, "replicas")
	amount := func(what string) *v1beta1.IntOrString {
		return new(rapid.SampledFrom([]v1beta1.IntOrString{intstr.FromInt(0), intstr.FromInt(1), intstr.FromInt(2), intstr.FromInt(3), intstr.FromString("25%"), intstr.FromString("50%")}).Draw(rt, what))
	}
	m.user = valid(fields{MinReadySeconds: rapid.Int32Range(0, 3).Draw(rt, "minReadySeconds"), ProgressDeadlineSeconds: new(int32(600)), MaxUnavailable: amount("maxUnavailable"), MaxSurge: amount("maxSurge")})
	m.d = &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "web", Generation: 1, ResourceVersion: m.next()},
		Spec: appsv1.DeploymentSpec{
			Replicas: &size, MinReadySeconds: m.user.MinReadySeconds, ProgressDeadlineSeconds: m.user.ProgressDeadlineSeconds,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "v1"}}}},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: m.user.MaxUnavailable, MaxSurge: m.user.MaxSurge}},
		},
	}
	m.loose = true
	if rapid.Bool().Draw(rt, "new") {
		m.annotate(rt) // before it has a pod
	}
	m.idle(nil)
	m.annotate(rt)
	m.idle(nil)
	m.loose, m.calm = false, rapid.IntRange(0, 3).Draw(rt, "calm") > 0
	m.onScale = m.check
	return m
}

// annotate puts an update strategy on the Deployment.
func (m *updateMachine) annotate(rt *rapid.T) {
	o := v1beta1.DeploymentUpdateStrategy{Paused: rapid.IntRange(0, 9).Draw(rt, "paused") == 0}
	if rapid.Bool().Draw(rt, "partition") {
		o.Partition = new(rapid.SampledFrom([]v1beta1.IntOrString{intstr.FromInt(1), intstr.FromInt(3), intstr.FromString("50%"), intstr.FromString("100%")}).Draw(rt, "of"))
	}
	if rapid.IntRange(0, 3).Draw(rt, "batches") > 0 {
		o.Batches = &v1beta1.UpdateBatches{
			Sizes: rapid.SampledFrom([][]v1beta1.IntOrString{
				{intstr.FromInt(1), intstr.FromString("100%")}, {intstr.FromString("30%"), intstr.FromString("70%")}, {intstr.FromInt(2), intstr.FromInt(3)}, {intstr.FromString("10%"), intstr.FromString("20%"), intstr.FromString("30%")},
			}).Draw(rt, "sizes"),
			Auto: rapid.Bool().Draw(rt, "auto"), MaxFailed: new(intstr.FromInt(rapid.IntRange(0, 2).Draw(rt, "maxFailed"))),
		}
	}
	m.annotateWith(&o)
}

func (m *updateMachine) annotateWith(o *v1beta1.DeploymentUpdateStrategy) {
	data, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	m.change(func(d *appsv1.Deployment) {
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1beta1.AnnotationUpdateStrategy, string(data))
	})
}

// change changes the Deployment as a client does.
func (m *updateMachine) change(change func(*appsv1.Deployment)) {
	d := m.d.DeepCopy()
	change(d)
	before, _ := json.Marshal([]any{m.d.Spec, m.d.Annotations})
	after, _ := json.Marshal([]any{d.Spec, d.Annotations})
	if string(before) != string(after) {
		d.Generation++ // as the API server does it for a Deployment (registry/apps/deployment)
	}
	d.ResourceVersion = m.next()
	m.d = d
}

// steered reports whether the Deployment has the annotation, and the controller has taken it over.
func (m *updateMachine) steered() bool {
	return m.d.Annotations[v1beta1.AnnotationUpdateStrategy] != "" && m.d.Annotations[v1beta1.AnnotationUpdateBefore] != ""
}

// check is called for each ReplicaSet that the Deployment controller scales.
func (m *updateMachine) check(s *appsv1.ReplicaSet, to int32) {
	if m.loose || !m.steered() {
		return
	}
	fresh, old := 0, 0
	for _, o := range m.sets {
		if o.Spec.Template.Spec.Containers[0].Image == m.d.Spec.Template.Spec.Containers[0].Image {
			fresh += int(*o.Spec.Replicas)
		} else {
			old += int(*o.Spec.Replicas)
		}
	}
	surge, _ := bounds(m.user, int(*m.d.Spec.Replicas))
	if may := m.allowed; fresh > may && (may < int(*m.d.Spec.Replicas) || fresh > may+surge) { // after the last batch, the user's maxSurge holds again
		m.fail("%d pods have the template, and %d may", fresh, m.allowed)
	}
	if old < m.least && s.Spec.Template.Spec.Containers[0].Image != m.d.Spec.Template.Spec.Containers[0].Image {
		m.fail("%d old pods are left after ReplicaSet %s was scaled to %d, and %d are to stay", old, s.Name, to, m.least)
	}
	if fresh+old > int(*m.d.Spec.Replicas)+surge {
		m.fail("%d pods of %d, and maxSurge is %d", fresh+old, *m.d.Spec.Replicas, surge)
	}
}

func (m *updateMachine) fail(format string, args ...any) {
	if m.broken == "" {
		m.broken = fmt.Sprintf(format, args...)
	}
}

// reconcile is one reconcile of this controller, with what it has read.
func (m *updateMachine) reconcile(rt *rapid.T) {
	d := m.seenDeployment
	if d == nil || !base.HasUpdateStrategy(d) {
		return
	}
	p := newPlan(observation{deployment: d, sets: m.seenSets, pods: m.seenPods, known: true, now: m.now})
	change, _, err := p.change(d)
	if err != nil {
		m.fail("%v", err)
	}
	if change == nil || d.ResourceVersion != m.d.ResourceVersion {
		return
	}
	m.writes++
	data, _ := json.Marshal(change)
	was, _ := json.Marshal(m.d)
	merged, err := strategicpatch.StrategicMergePatch(was, data, &appsv1.Deployment{})
	if err != nil {
		m.fail("%v", err)
		return
	}
	now := &appsv1.Deployment{}
	if err := json.Unmarshal(merged, now); err != nil {
		m.fail("%v", err)
	}
	if u := now.Spec.Strategy.RollingUpdate; *now.Spec.ProgressDeadlineSeconds <= now.Spec.MinReadySeconds || isZero(u.MaxSurge) && isZero(u.MaxUnavailable) {
		m.fail("the API server refuses %s", data)
	}
	if rt != nil {
		rt.Logf("writes %s", data)
	}
	m.change(func(d *appsv1.Deployment) { d.Spec, d.Annotations = now.Spec, now.Annotations })
	if s := Status(m.d); s.ObservedGeneration != m.d.Generation && p.status != nil {
		m.fail("the status is of generation %d, and it is %d", s.ObservedGeneration, m.d.Generation)
	}
	if !now.Spec.Paused && p.status != nil {
		m.opened()
	}
}

// opened computes what a step allows, from the annotations alone.
func (m *updateMachine) opened() {
	strategy, err := Strategy(m.d)
	if err != nil {
		m.fail("a step begins, and the annotation is refused: %v", err)
		return
	}
	status := Status(m.d)
	replicas := int(*m.d.Spec.Replicas)
	stay, _ := partition(strategy.Partition, replicas)
	end := replicas - stay
	if ends := batch.Ends(batchesOf(strategy).Sizes, replicas); status.Batches != nil && len(ends) > 0 {
		end = min(end, ends[status.Batches.Number-1])
	}
	if strategy.Paused || m.user.Paused {
		m.fail("a step begins, and updates are paused")
	}
	_, unavailable := bounds(m.user, replicas)
	available, fresh := 0, 0
	for _, s := range m.sets {
		if s.Spec.Template.Spec.Containers[0].Image == m.d.Spec.Template.Spec.Containers[0].Image {
			fresh = int(*s.Spec.Replicas)
		}
	}
	for _, p := range m.seenPods {
		if at := readyAt(p); strings.HasPrefix(p.Name, m.d.Spec.Template.Spec.Containers[0].Image+"-") && !at.IsZero() && !at.Add(time.Duration(m.user.MinReadySeconds)*time.Second).After(m.now) {
			available++
		}
	}
	m.allowed = max(m.allowed, end, fresh)
	m.least = replicas - available - unavailable
}

func (m *updateMachine) see() {
	m.seenDeployment, m.seenSets, m.seenPods = m.d.DeepCopy(), slices.Clone(m.sets), slices.Clone(m.pods)
}

// idle lets all act until nothing changes.
func (m *updateMachine) idle(rt *rapid.T) {
	quiet := 0
	for i := 0; quiet < 6; i++ {
		if i > 2000 {
			m.fail("it doesn't end: %s", m)
			return
		}
		version := m.version
		m.round(rt)
		if quiet++; m.version != version {
			quiet = 0
		}
	}
}

// round lets all act once, with all that there is; pods become ready.
func (m *updateMachine) round(rt *rapid.T) {
	m.seeDeployment()
	m.seeSets()
	_ = m.syncDeployment()
	for i := range m.sets {
		m.syncSet(i)
	}
	for i, p := range m.pods {
		if readyAt(p).IsZero() {
			m.ready(i, true)
			m.version++
		}
	}
	m.see()
	m.reconcile(rt)
	m.now = m.now.Add(time.Second)
}

func (m *updateMachine) String() string {
	var b strings.Builder
	live, _ := json.Marshal(fieldsOf(m.d))
	fmt.Fprintf(&b, "replicas %d, template %s, generation %d/%d, %s", *m.d.Spec.Replicas, m.d.Spec.Template.Spec.Containers[0].Image, m.d.Generation, m.d.Status.ObservedGeneration, live)
	for _, s := range m.sets {
		fmt.Fprintf(&b, "; %s: %d, available %d", s.Name, *s.Spec.Replicas, s.Status.AvailableReplicas)
	}
	fmt.Fprintf(&b, "; allowed %d, least %d, loose %t; %s", m.allowed, m.least, m.loose, m.d.Annotations[v1beta1.AnnotationUpdateStatus])
	return b.String()
}

// TestRollouts lets all act in any order. No more pods are updated than the batch and the partition allow.
// No more old pods go than maxUnavailable allows. What the user has is given back exactly, and each update
// ends.
func TestRollouts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newUpdateMachine(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if m.broken != "" {
					rt.Fatalf("%s\n%s", m.broken, m)
				}
			},
			"deployment controller reads the Deployment": func(*rapid.T) { m.seeDeployment() },
			"deployment controller reads ReplicaSets":    func(*rapid.T) { m.seeSets() },
			"deployment controller":                      func(*rapid.T) { _ = m.syncDeployment() },
			"deployment controller, up to date": func(*rapid.T) {
				m.seeDeployment()
				m.seeSets()
				_ = m.syncDeployment()
			},
			"replica set controller and kubelets": func(*rapid.T) {
				for i := range m.sets {
					m.syncSet(i)
				}
				for i, p := range m.pods {
					if readyAt(p).IsZero() {
						m.ready(i, true)
					}
				}
			},
			"all":                    func(rt *rapid.T) { m.round(rt) },
			"replica set controller": func(rt *rapid.T) { m.syncSet(rapid.IntRange(0, len(m.sets)-1).Draw(rt, "set")) },
			"pod": func(rt *rapid.T) {
				if len(m.pods) == 0 {
					rt.Skip("there is no pod")
				}
				m.ready(rapid.IntRange(0, len(m.pods)-1).Draw(rt, "pod"), rapid.IntRange(0, 9).Draw(rt, "ready") > 0)
			},
			"time": func(rt *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 5).Draw(rt, "seconds")) * time.Second)
			},
			"reads the Deployment": func(*rapid.T) { m.seenDeployment = m.d.DeepCopy() },
			"reads ReplicaSets":    func(*rapid.T) { m.seenSets = slices.Clone(m.sets) },
			"reads pods":           func(*rapid.T) { m.seenPods = slices.Clone(m.pods) },
			"reconcile":            m.reconcile,
			"reads, and reconciles": func(rt *rapid.T) {
				m.see()
				m.reconcile(rt)
			},
			"next batch": func(*rapid.T) {
				if b := Status(m.d).Batches; b != nil && b.Reason == v1beta1.BatchApproval {
					m.change(func(d *appsv1.Deployment) {
						metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1beta1.AnnotationNextBatch, batch.Release(b, b.Number+1))
					})
				}
			},
			"user changes the template": m.changeTemplate,
			"user changes a field":      m.changeField,
			"user scales":               m.scale,
			"user changes the strategy": m.changeStrategy,
			"user takes it away":        m.takeAway,
		})
		if m.broken != "" {
			rt.Fatalf("%s\n%s", m.broken, m)
		}
		m.finish(rt)
	})
}

func (m *updateMachine) changeTemplate(rt *rapid.T) {
	if rapid.IntRange(0, 2).Draw(rt, "really") > 0 {
		rt.Skip("not now")
	}
	to := fmt.Sprintf("v%d", rapid.IntRange(1, 4).Draw(rt, "image"))
	if to == m.d.Spec.Template.Spec.Containers[0].Image {
		rt.Skip("it is the same")
	}
	// A step is under way, for the API server or for the Deployment controller.
	m.loose = m.loose || !m.d.Spec.Paused || !m.cachedDeployment.Spec.Paused
	m.change(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = to })
	m.allowed, m.least = 0, 0
	for _, s := range m.sets {
		if s.Name == to {
			m.allowed = int(*s.Spec.Replicas)
		}
	}
	if !m.loose && len(active(m.sets)) <= 1 { // it can get no pod more before the next step
		m.least = int(*m.d.Spec.Replicas)
	}
}

func (m *updateMachine) changeField(rt *rapid.T) {
	if m.calm || rapid.IntRange(0, 2).Draw(rt, "really") > 0 || !m.steered() {
		rt.Skip("not now")
	}
	live, kept := fieldsOf(m.d), Before(m.d) // a value that is written back before it was read is no wish
	switch rapid.IntRange(0, 3).Draw(rt, "field") {
	case 0:
		to := rapid.Int32Range(0, 5).Draw(rt, "minReadySeconds")
		m.change(func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = to })
		if m.user.MinReadySeconds = to; to == kept.Wrote.MinReadySeconds {
			m.user.MinReadySeconds = kept.Before.MinReadySeconds
		}
	case 1:
		to := rapid.SampledFrom([]v1beta1.IntOrString{intstr.FromInt(4), intstr.FromInt(5), intstr.FromString("34%")}).Draw(rt, "maxUnavailable")
		m.change(func(d *appsv1.Deployment) { d.Spec.Strategy.RollingUpdate.MaxUnavailable = &to })
		if m.user.MaxUnavailable = &to; same(&to, kept.Wrote.MaxUnavailable) {
			m.user.MaxUnavailable = kept.Before.MaxUnavailable
		}
	case 2:
		to := rapid.SampledFrom([]v1beta1.IntOrString{intstr.FromInt(4), intstr.FromInt(5), intstr.FromString("34%")}).Draw(rt, "maxSurge")
		m.change(func(d *appsv1.Deployment) { d.Spec.Strategy.RollingUpdate.MaxSurge = &to })
		if m.user.MaxSurge = &to; same(&to, kept.Wrote.MaxSurge) {
			m.user.MaxSurge = kept.Before.MaxSurge
		}
	case 3:
		if !live.Paused {
			rt.Skip("it is a step")
		}
		m.change(func(d *appsv1.Deployment) { d.Spec.Paused = false })
		m.user.Paused = false
	}
	m.loose = true
}

func (m *updateMachine) scale(rt *rapid.T) {
	if m.calm || rapid.IntRange(0, 2).Draw(rt, "really") > 0 {
		rt.Skip("not now")
	}
	m.loose = true
	to := rapid.Int32Range(0, 12).Draw(rt, "replicas")
	m.change(func(d *appsv1.Deployment) { d.Spec.Replicas = &to })
}

func (m *updateMachine) changeStrategy(rt *rapid.T) {
	if m.calm || rapid.IntRange(0, 2).Draw(rt, "really") > 0 {
		rt.Skip("not now")
	}
	if !m.steered() {
		m.loose = true
	}
	m.annotate(rt)
}

func (m *updateMachine) takeAway(rt *rapid.T) {
	if m.calm || rapid.IntRange(0, 2).Draw(rt, "really") > 0 || !m.steered() {
		rt.Skip("not now")
	}
	m.change(func(d *appsv1.Deployment) { delete(d.Annotations, v1beta1.AnnotationUpdateStrategy) })
	m.see()
	m.reconcile(rt)
	m.handedBack(rt)
	m.loose = true
}

// handedBack checks that the user has all fields again.
func (m *updateMachine) handedBack(rt *rapid.T) {
	if got := fieldsOf(m.d); !equal(got, valid(m.user)) {
		is, _ := json.Marshal(got)
		want, _ := json.Marshal(valid(m.user))
		rt.Fatalf("handed back %s, and the user had %s\n%s", is, want, m)
	}
	for name := range m.d.Annotations {
		if strings.HasPrefix(name, v1beta1.AnnotationUpdateStrategy) {
			rt.Fatalf("annotation %s is left", name)
		}
	}
}

// finish lets the update end: all pods are well, and all batches released.
func (m *updateMachine) finish(rt *rapid.T) {
	if m.d.Annotations[v1beta1.AnnotationUpdateStrategy] != "" {
		m.annotateWith(&v1beta1.DeploymentUpdateStrategy{Batches: &v1beta1.UpdateBatches{Sizes: []v1beta1.IntOrString{intstr.FromInt(1), intstr.FromString("50%")}, Auto: true}})
	}
	m.idle(rt)
	if m.stands() { // the user has to scale it: no other field helps
		for _, more := range []int32{1, -1} {
			m.change(func(d *appsv1.Deployment) { *d.Spec.Replicas += more })
			m.idle(rt)
		}
	}
	if m.broken != "" {
		rt.Fatalf("%s\n%s", m.broken, m)
	}
	// With no pods there is nothing to update. Those that come later are old ones if no ReplicaSet of the
	// template exists.
	if fresh := newest(m.d, m.sets); *m.d.Spec.Replicas > 0 && (fresh == nil || *fresh.Spec.Replicas != *m.d.Spec.Replicas || sum(m.sets) != *m.d.Spec.Replicas) {
		rt.Fatalf("not all pods are updated: %s", m)
	}
	if m.d.Annotations[v1beta1.AnnotationUpdateStrategy] == "" {
		m.handedBack(rt)
		return
	}
	want := valid(m.user)
	want.Paused = true
	if got := fieldsOf(m.d); !equal(got, want) {
		rt.Fatalf("at rest it has other fields than the user: %s", m)
	}
	if s := Status(m.d); *m.d.Spec.Replicas > 0 && s.Batches != nil && s.Batches.Reason != v1beta1.BatchDone {
		rt.Fatalf("the update is done, and its status is not: %s", m)
	}
	before := m.writes
	m.idle(rt)
	if m.writes != before {
		rt.Fatalf("it writes at rest: %s", m)
	}
}
