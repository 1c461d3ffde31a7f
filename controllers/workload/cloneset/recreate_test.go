package cloneset_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// newRecreatingWorld returns a world whose controller replaces pods because of changed claim templates.
func newRecreatingWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, func(o *base.Options) { o.RecreateChangedClaims = true })
}

// sized changes the size in the claim template.
func sized(size string) func(*v1beta1.CloneSetSpec) {
	return func(s *v1beta1.CloneSetSpec) {
		s.VolumeClaimTemplates[0].Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
}

func partition(n int32) func(*v1beta1.CloneSetSpec) {
	return func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromInt32(n)) }
}

func replicas(n int32) func(*v1beta1.CloneSetSpec) {
	return func(s *v1beta1.CloneSetSpec) { s.Replicas = &n }
}

func all(changes ...func(*v1beta1.CloneSetSpec)) func(*v1beta1.CloneSetSpec) {
	return func(s *v1beta1.CloneSetSpec) {
		for _, change := range changes {
			change(s)
		}
	}
}

// sizes returns how many pods have claims of each size.
func (w *world) sizes() string {
	w.Helper()
	claims, count := w.claims(), map[string]int{}
	for _, p := range w.list() {
		c := claims["data-"+p.Name]
		q := c.Spec.Resources.Requests[corev1.ResourceStorage]
		count[q.String()]++
	}
	var out []string
	for _, size := range slices.Sorted(maps.Keys(count)) {
		out = append(out, fmt.Sprint(count[size], "×", size))
	}
	return strings.Join(out, " ")
}

// replaced waits until each pod has a claim of a size, and no other claims are left.
func (w *world) replaced(n int32, size string) {
	w.Helper()
	want := fmt.Sprint(n, "×", size)
	w.eventually(want, func(s v1beta1.CloneSetStatus) bool {
		return s.Replicas == n && s.AvailableReplicas == n && s.UpdatedReplicas == n && s.CurrentRevision == s.UpdateRevision && len(w.list()) == int(n) && w.sizes() == want
	})
	w.claimed()
}

// unchanged fails the test if pods are replaced, or are to be, after a reconcile of a change that does not
// concern them.
func (w *world) unchanged(before []corev1.Pod) {
	w.Helper()
	limit := int32(20)
	if is := w.get().Spec.RevisionHistoryLimit; is != nil {
		limit = *is + 1
	}
	w.change(func(s *v1beta1.CloneSetSpec) { s.RevisionHistoryLimit = &limit })
	n := int32(len(before)) //nolint:gosec // a few
	w.settled(n, n)
	after := w.list()
	if diff := cmp.Diff(uids(before), uids(after)); diff != "" {
		w.Errorf("-before +after:\n%s", diff)
	}
	for _, p := range after {
		if _, marked := p.Labels[v1beta1.LabelSpecifiedDelete]; marked {
			w.Errorf("%s is to be replaced", p.Name)
		}
	}
}

func (w *world) revisions() []*appsv1.ControllerRevision {
	w.Helper()
	list, err := w.pods.AppsV1().ControllerRevisions(w.namespace).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	var out []*appsv1.ControllerRevision
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	revision.Sort(out)
	return out
}

// annotate replaces what revisions record of their claim templates; "" removes it.
func (w *world) annotate(text string) {
	w.Helper()
	for _, r := range w.revisions() {
		before := r.DeepCopy()
		if delete(r.Annotations, v1beta1.AnnotationClaimTemplates); text != "" {
			r.Annotations[v1beta1.AnnotationClaimTemplates] = text
		}
		if err := w.client.Patch(w.Context(), r, client.MergeFrom(before)); err != nil {
			w.Fatal(err)
		}
	}
}

// By default, a changed claim template is for new pods alone: no pod loses its data because of it. And
// nothing is recorded.
func TestChangedClaimsIgnored(t *testing.T) {
	w := newWorld(t)
	w.create(2, stored)
	w.settled(2, 2)
	before, first := uids(w.list()), w.get().Status.UpdateRevision
	w.change(all(sized("2Gi"), replicas(3)))
	w.settled(3, 3)
	after := uids(w.list())
	for name, uid := range before {
		if after[name] != uid {
			t.Errorf("%s was replaced", name)
		}
	}
	if got := w.sizes(); got != "2×1Gi 1×2Gi" {
		t.Error(got)
	}
	if r := w.revisions(); len(r) != 1 || r[0].Name != first || len(r[0].Annotations) > 0 {
		t.Errorf("%+v", r)
	}
}

// With the switch, pods with other claim templates are replaced like other pods that can't be updated in
// place, within maxUnavailable. The pod template has not changed, and still there is another
// revision. When the change is reverted, the first revision is found again.
func TestChangedClaims(t *testing.T) {
	w := newRecreatingWorld(t)
	w.create(4, all(stored, func(s *v1beta1.CloneSetSpec) {
		s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(1))
	}))
	w.settled(4, 4)
	old, first := uids(w.list()), w.get().Status.UpdateRevision
	seen := w.watch(&v1beta1.CloneSetList{})
	w.change(sized("2Gi"))
	w.replaced(4, "2Gi")
	for name := range uids(w.list()) {
		if old[name] != "" {
			t.Errorf("%s is still there", name)
		}
	}
	second := w.get().Status.UpdateRevision
	r := w.revisions()
	if first == second || len(r) != 2 || r[0].Name != first || r[1].Name != second || !revision.Same(r[0], r[1]) {
		t.Errorf("%s and %s: %+v", first, second, r)
	}
	w.change(sized("1Gi"))
	w.replaced(4, "1Gi")
	if is := w.get().Status.UpdateRevision; is != first {
		t.Errorf("it has become %s, and not %s again", is, first)
	}
	statuses := 0
	for _, o := range seen() {
		if set, ok := o.(*v1beta1.CloneSet); ok {
			if statuses++; set.Status.AvailableReplicas < 3 {
				t.Errorf("%d are available", set.Status.AvailableReplicas)
			}
		}
	}
	if statuses == 0 {
		t.Error("no status was seen")
	}
}

// What does not make a claim another one is no change: the form of a quantity, a default that is written
// out, the order of templates, and labels. New pods get the labels all the same.
func TestSameClaims(t *testing.T) {
	w := newRecreatingWorld(t)
	w.create(2, all(stored, func(s *v1beta1.CloneSetSpec) {
		other := s.VolumeClaimTemplates[0].DeepCopy()
		other.Name = "tmp"
		s.VolumeClaimTemplates = append(s.VolumeClaimTemplates, *other)
	}))
	w.settled(2, 2)
	before := w.list()
	w.change(all(sized("1024Mi"), func(s *v1beta1.CloneSetSpec) {
		s.VolumeClaimTemplates[0].Spec.VolumeMode = new(corev1.PersistentVolumeFilesystem)
		s.VolumeClaimTemplates[0].Labels["tier"] = "lead"
		slices.Reverse(s.VolumeClaimTemplates)
	}))
	w.unchanged(before)
	if r := w.revisions(); len(r) != 1 {
		t.Errorf("%+v", r)
	}
	tiers := map[string]bool{}
	w.change(replicas(4))
	w.settled(4, 4)
	for name, c := range w.claims() {
		if strings.HasPrefix(name, "data-") {
			tiers[c.Labels["tier"]] = true
		}
	}
	if !tiers["lead"] {
		t.Errorf("%v", tiers)
	}
}

// The switch itself updates no pod, and neither does anything that has changed before it. Only later
// changes count. When it is switched off, a replacement that has begun ends, and the status says
// that all pods are up to date; on again, they still are.
func TestRecreateSwitch(t *testing.T) {
	on := false
	w := newWorldWith(t, func(o *base.Options) { o.RecreateChangedClaims = on })
	turn := func(to bool) {
		t.Helper()
		w.restart(func() { on = to })
	}
	w.create(3, stored)
	w.settled(3, 3)
	first := w.list()
	w.change(sized("2Gi"))
	turn(true)
	w.unchanged(first)
	w.change(sized("3Gi"))
	w.replaced(3, "3Gi")

	w.change(all(sized("4Gi"), partition(2)))
	w.settled(3, 1)
	mixed := w.list()
	turn(false)
	w.settled(3, 3)
	w.change(partition(0))
	w.unchanged(mixed)
	turn(true)
	w.unchanged(mixed)
	w.change(sized("5Gi"))
	w.replaced(3, "5Gi")
}

// A change of an image alone would be made in place. With a change of the claim templates, the pods are
// replaced.
func TestClaimsAndImage(t *testing.T) {
	w := newRecreatingWorld(t)
	w.create(2, stored)
	w.settled(2, 2)
	before := uids(w.list())
	w.change(image("web:v2"))
	w.settled(2, 2)
	if diff := cmp.Diff(before, uids(w.list())); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	w.change(all(image("web:v3"), sized("2Gi")))
	w.replaced(2, "2Gi")
	for _, p := range w.list() {
		if before[p.Name] != "" || p.Spec.Containers[0].Image != "web:v3" {
			t.Errorf("%s runs %s", p.Name, p.Spec.Containers[0].Image)
		}
	}
}

// With InPlaceOnly, claim templates are no part of the update: pods are updated in place, and keep their
// claims. Another policy counts only what changes after it.
func TestClaimsInPlaceOnly(t *testing.T) {
	w := newRecreatingWorld(t)
	w.create(2, all(stored, func(s *v1beta1.CloneSetSpec) {
		s.UpdateStrategy.RollingUpdate.PodUpdatePolicy = v1beta1.PodUpdateInPlaceOnly
	}))
	w.settled(2, 2)
	before := w.list()
	w.change(sized("2Gi"))
	w.settled(2, 2)
	w.change(all(image("web:v2"), sized("3Gi")))
	w.settled(2, 2)
	if diff := cmp.Diff(uids(before), uids(w.list())); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	if got := w.sizes(); got != "2×1Gi" {
		t.Error(got)
	}
	w.change(inPlace)
	w.unchanged(before)
	w.change(sized("4Gi"))
	w.replaced(2, "4Gi")
}

// A pod that a partition leaves at its revision gets the claim templates of that revision when it is
// created again, and a pod that a raised partition takes back, too.
func TestClaimsOfPartition(t *testing.T) {
	w := newRecreatingWorld(t)
	w.create(3, stored)
	w.settled(3, 3)
	first := revision.Hash(w.get().Status.CurrentRevision)
	w.change(all(sized("2Gi"), partition(2)))
	w.settled(3, 1)
	old := w.list()
	lost := old[slices.IndexFunc(old, func(p corev1.Pod) bool { return p.Labels[revision.Label] == first })]
	w.deletePod(&lost)
	w.gone(&lost, 3)
	w.settled(3, 1)
	if got := w.sizes(); got != "2×1Gi 1×2Gi" {
		t.Error(got)
	}
	w.change(partition(3))
	w.settled(3, 0)
	if got := w.sizes(); got != "3×1Gi" {
		t.Error(got)
	}
	w.claimed()
	w.change(partition(0))
	w.replaced(3, "2Gi")
}

// With OnDelete, or paused, no pod is replaced. A pod that a user deletes gets new claims.
func TestClaimsOnDelete(t *testing.T) {
	w := newRecreatingWorld(t)
	w.create(2, all(stored, func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.Type = v1beta1.CloneSetOnDelete }))
	w.settled(2, 2)
	w.change(sized("2Gi"))
	w.settled(2, 0)
	lost := w.list()[0]
	w.deletePod(&lost)
	w.gone(&lost, 2)
	w.settled(2, 1)
	if got := w.sizes(); got != "1×1Gi 1×2Gi" {
		t.Error(got)
	}
	w.change(func(s *v1beta1.CloneSetSpec) {
		s.UpdateStrategy.Type, s.UpdateStrategy.RollingUpdate = v1beta1.CloneSetRollingUpdate, &v1beta1.CloneSetRollingUpdateStrategy{Paused: true}
	})
	w.settled(2, 1)
	w.change(func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Paused = false })
	w.replaced(2, "2Gi")
}

// A new pod reuses only claims that fit its revision. Claims that fit no new pod any more are deleted when
// the update has ended.
func TestFittingClaimsReused(t *testing.T) {
	w := newRecreatingWorld(t)
	w.create(2, reused)
	w.settled(2, 2)
	before := w.claimed()
	w.change(all(sized("2Gi"), partition(2)))
	w.settled(2, 0)
	lost := w.list()[0]
	w.deletePod(&lost)
	w.gone(&lost, 2)
	if diff := cmp.Diff(before, w.claimed()); diff != "" {
		t.Errorf("a pod of the old revision was lost: -before +after:\n%s", diff)
	}
	w.change(all(partition(0), func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Paused = true }))
	w.settled(2, 0)
	lost = w.list()[0]
	w.deletePod(&lost)
	w.gone(&lost, 2)
	w.settled(2, 1)
	if now := w.sizes(); now != "1×1Gi 1×2Gi" || slices.ContainsFunc(w.list(), func(p corev1.Pod) bool { return p.Name == lost.Name }) {
		t.Errorf("the new pod has a claim of %s, or its name", now)
	}
	w.change(func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Paused = false })
	w.replaced(2, "2Gi")
	lost, before = w.list()[0], w.claimed()
	w.deletePod(&lost)
	w.gone(&lost, 2)
	if diff := cmp.Diff(before, w.claimed()); diff != "" {
		t.Errorf("a pod of the new revision was lost: -before +after:\n%s", diff)
	}
}

// Claims from before the switch may fit no recorded revision. They are reused as without the switch: a change
// that replaced no pod does not cost the data of a lost one, either.
func TestOlderClaimsReused(t *testing.T) {
	on := false
	w := newWorldWith(t, func(o *base.Options) { o.RecreateChangedClaims = on })
	w.create(2, reused)
	w.settled(2, 2)
	before := w.claimed()
	w.change(sized("2Gi"))
	w.restart(func() { on = true })
	w.unchanged(w.list())
	lost := w.list()[0]
	w.deletePod(&lost)
	w.gone(&lost, 2)
	if diff := cmp.Diff(before, w.claimed()); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	w.change(sized("3Gi"))
	w.replaced(2, "3Gi")
}

// A record that can't be read, or is gone, is no reason to replace a pod. It is written again, so that the
// next change counts.
func TestUnreadableClaims(t *testing.T) {
	w := newRecreatingWorld(t)
	w.create(2, stored)
	w.settled(2, 2)
	for i, text := range []string{"", "{", "null", "[{}]", `[{"metadata":{"name":"data"},"spec":{"resources":{"requests":{"storage":"much"}}}}]`, "sha256:00", "unknown", "[" + strings.Repeat(" ", 64<<10) + "]"} {
		before := w.list()
		w.restart(func() {
			w.annotate(text)
			w.change(sized(fmt.Sprint(2*i+2, "Gi")))
		})
		w.unchanged(before)
		if _, known := revision.RecordedClaims(w.revisions()[0]); !known {
			t.Errorf("%.20s was left", text)
		}
	}
	w.change(sized("100Gi"))
	w.replaced(2, "100Gi")
}

// Of claim templates that are too long for an annotation, only a hash is recorded. They are told apart, and
// new pods of an earlier revision get the templates of the spec.
func TestLongClaims(t *testing.T) {
	w := newRecreatingWorld(t)
	w.create(2, all(stored, func(s *v1beta1.CloneSetSpec) {
		s.VolumeClaimTemplates[0].Annotations = map[string]string{"example.com/long": strings.Repeat("x", 70<<10)}
	}))
	w.settled(2, 2)
	if text := w.revisions()[0].Annotations[v1beta1.AnnotationClaimTemplates]; len(text) != len("sha256:")+64 {
		t.Errorf("%.100s", text)
	}
	w.unchanged(w.list())
	w.change(all(sized("2Gi"), partition(1)))
	w.settled(2, 1)
	first := revision.Hash(w.get().Status.CurrentRevision)
	pods := w.list()
	lost := pods[slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Labels[revision.Label] == first })]
	w.deletePod(&lost)
	w.gone(&lost, 2)
	w.settled(2, 1)
	if got := w.sizes(); got != "2×2Gi" {
		t.Error(got)
	}
}

// A CloneSet of another implementation is taken over: its revisions record no claim templates, and two may
// hold the same pod template. No pod is updated, and the next change replaces all of them.
func TestClaimsTakenOver(t *testing.T) {
	on := false
	w := newWorldWith(t, func(o *base.Options) { o.RecreateChangedClaims = on })
	w.create(2, stored)
	w.settled(2, 2)
	twin := w.revisions()[0].DeepCopy()
	twin.ObjectMeta = metav1.ObjectMeta{Name: "web-twin", Namespace: w.namespace, Labels: map[string]string{"app": "web", revision.Label: "twin"}, OwnerReferences: twin.OwnerReferences}
	w.restart(func() {
		on = true
		if err := w.client.Create(t.Context(), twin); err != nil {
			t.Fatal(err)
		}
		w.edit(w.list()[0].Name, func(p *corev1.Pod) { p.Labels[revision.Label] = "web-twin" })
	})
	w.unchanged(w.list())
	w.change(sized("2Gi"))
	w.replaced(2, "2Gi")
}
