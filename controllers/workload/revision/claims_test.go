package revision_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// claim returns a claim template of a size.
func claim(name, size string) corev1.PersistentVolumeClaim {
	c := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	return c
}

// recorded returns a revision that records claim templates.
func recorded(t *testing.T, claims ...corev1.PersistentVolumeClaim) *appsv1.ControllerRevision {
	t.Helper()
	o := owner(0)
	o.Claims = &revision.ClaimTemplates{Templates: claims, Distinguish: true}
	r, err := revision.New(o, template("web:v1"), 1)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A record does not change the name, the labels and the data of a revision, and claims can be made from it.
func TestRecord(t *testing.T) {
	t.Parallel()
	plain, r := made(t, template("web:v1"), 1), recorded(t, claim("data", "1Gi"))
	if r.Name != plain.Name || !maps.Equal(r.Labels, plain.Labels) || string(r.Data.Raw) != string(plain.Data.Raw) || r.Annotations["kubernetes.io/change-cause"] == "" {
		t.Errorf("%+v", r)
	}
	if got, known := revision.RecordedClaims(r); !known || len(got) != 1 || got[0].Name != "data" || got[0].Spec.AccessModes[0] != corev1.ReadWriteOnce {
		t.Errorf("%+v, %v", got, known)
	}
	if got, known := revision.RecordedClaims(recorded(t)); !known || len(got) > 0 {
		t.Errorf("no claim templates: %+v, %v", got, known)
	}
	if got, known := revision.RecordedClaims(plain); known {
		t.Errorf("no record: %+v", got)
	}
}

// Claim templates are others if claims made from them would be. What is not known differs from nothing.
func TestClaimsDiffer(t *testing.T) {
	t.Parallel()
	change := func(change func(*corev1.PersistentVolumeClaim)) []corev1.PersistentVolumeClaim {
		c := claim("data", "1Gi")
		change(&c)
		return []corev1.PersistentVolumeClaim{c}
	}
	long := func(size string) []corev1.PersistentVolumeClaim {
		c := claim("data", size)
		c.Annotations = map[string]string{"example.com/long": strings.Repeat("x", 70<<10)}
		return []corev1.PersistentVolumeClaim{c}
	}
	text := func(text string) *appsv1.ControllerRevision {
		r := recorded(t)
		r.Annotations[v1beta1.AnnotationClaimTemplates] = text
		return r
	}
	base := recorded(t, claim("data", "1Gi"))
	for name, c := range map[string]struct {
		why  string
		is   *appsv1.ControllerRevision
		want bool
	}{
		"Same":       {"Nothing differs.", recorded(t, claim("data", "1Gi")), false},
		"Size":       {"Larger claims are other claims.", recorded(t, claim("data", "2Gi")), true},
		"Form":       {"The size is the same.", recorded(t, claim("data", "1024Mi")), false},
		"Bytes":      {"The size is the same in bytes.", recorded(t, claim("data", "1073741824")), false},
		"Name":       {"Pods mount a claim by the name of its template.", recorded(t, claim("logs", "1Gi")), true},
		"More":       {"A pod has one claim more.", recorded(t, claim("data", "1Gi"), claim("logs", "1Gi")), true},
		"None":       {"A pod has no claim.", recorded(t), true},
		"Class":      {"The class differs.", recorded(t, change(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("fast") })...), true},
		"NoClass":    {"No class is not the default class.", recorded(t, change(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("") })...), true},
		"Mode":       {"The default is written out.", recorded(t, change(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeFilesystem) })...), false},
		"Block":      {"The volume mode differs.", recorded(t, change(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })...), true},
		"Order":      {"The order of access modes means nothing.", recorded(t, change(func(c *corev1.PersistentVolumeClaim) { slices.Reverse(c.Spec.AccessModes) })...), false},
		"Labels":     {"Data is not given up for a label.", recorded(t, change(func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"tier": "gold"} })...), false},
		"Status":     {"A status is no wish.", recorded(t, change(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending })...), false},
		"Long":       {"The hash is that of the same templates.", recorded(t, long("1Gi")...), false},
		"LongOther":  {"The hash is that of other templates.", recorded(t, long("2Gi")...), true},
		"Unrecorded": {"There is no record.", made(t, template("web:v1"), 1), false},
		"Void":       {"The record is void.", text("unknown"), false},
		"Broken":     {"It is no JSON.", text("["), false},
		"Null":       {"It is no list.", text("null"), false},
		"Object":     {"It is no list.", text("{}"), false},
		"Nameless":   {"A template has a name.", text("[{}]"), false},
		"Twice":      {"Two templates have the same name.", text(`[{"metadata":{"name":"a"}},{"metadata":{"name":"a"}}]`), false},
		"Quantity":   {"A size is no quantity.", text(`[{"metadata":{"name":"data"},"spec":{"resources":{"requests":{"storage":"much"}}}}]`), false},
		"NoHash":     {"The hash is too short.", text("sha256:00"), false},
		"BrokenHash": {"The hash has other characters.", text("sha256:" + strings.Repeat("x", 64)), false},
		"Huge":       {"No record is that long.", text("[" + strings.Repeat(" ", 64<<10) + "]"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if revision.ClaimsDiffer(base, c.is) != c.want || revision.ClaimsDiffer(c.is, base) != c.want {
				t.Errorf("%s They differ: %v", c.why, !c.want)
			}
		})
	}
}

// cluster has the revisions of one workload.
type cluster struct {
	client.Reader
	api     kubernetes.Interface
	missing string // the cache does not show this revision yet
}

func (c *cluster) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	all, err := c.api.AppsV1().ControllerRevisions("shop").List(ctx, metav1.ListOptions{})
	if into, ok := list.(*appsv1.ControllerRevisionList); ok && err == nil {
		into.Items = slices.DeleteFunc(all.Items, func(r appsv1.ControllerRevision) bool { return r.Name == c.missing })
	}
	return err
}

func revisionsOf(rt *rapid.T, api kubernetes.Interface) []appsv1.ControllerRevision {
	rt.Helper()
	list, err := api.AppsV1().ControllerRevisions("shop").List(rt.Context(), metav1.ListOptions{})
	if err != nil {
		rt.Fatal(err)
	}
	return list.Items
}

// spec is what a user wants, and holds what a pod was made from.
type spec struct{ image, size string }

// workload is a workload with pods, each at a revision, and what it was made from.
type workload struct {
	*cluster
	spec
	on      bool
	pods    map[string]spec // by the hash of the revision; "": that of the spec when the switch was off
	history revision.History
	owner   revision.Owner
}

func (w *workload) sync(rt *rapid.T) {
	w.owner.Claims = &revision.ClaimTemplates{Templates: []corev1.PersistentVolumeClaim{claim("data", w.size)}, Distinguish: w.on}
	var err error
	if w.history, err = (revision.Store{Cache: w.cluster, API: w.api}).Sync(rt.Context(), w.owner, template(w.image)); err != nil {
		rt.Fatal(err)
	}
	w.owner.Collisions = w.history.Collisions
	names := map[string]bool{}
	for _, r := range w.history.Revisions {
		if names[r.Name] {
			rt.Fatalf("%s is there twice", r.Name)
		}
		names[r.Name] = true
	}
	if got, err := revision.Template(w.history.Updated); err != nil || got.Spec.Containers[0].Image != w.image {
		rt.Fatalf("%+v, %v; want the template of %s", got, err, w.image)
	}
}

// current reports whether pods of a revision are up to date.
func (w *workload) current(hash string) bool {
	return hash == revision.Hash(w.history.Updated.Name) || w.history.Equal(w.on)[hash]
}

func (w *workload) currentPods() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(w.pods)), func(hash string) bool { return !w.current(hash) })
}

// Whatever users, other clients and the switch do: the switch and damaged records make no pod out of date,
// without the switch only the pod template counts, and with it a pod whose claims are known to be
// others is never up to date.
func TestClaimRevisions(t *testing.T) {
	t.Parallel()
	api := fake.NewClientset() // it takes long to be made
	rapid.Check(t, func(rt *rapid.T) {
		for _, r := range revisionsOf(rt, api) {
			if err := api.AppsV1().ControllerRevisions("shop").Delete(rt.Context(), r.Name, metav1.DeleteOptions{}); err != nil {
				rt.Fatal(err)
			}
		}
		w := &workload{cluster: &cluster{api: api}, spec: spec{"web:v1", "1Gi"}, pods: map[string]spec{}, owner: owner(0), on: rapid.Bool().Draw(rt, "on")}
		w.owner.Collisions = nil
		certain := w.on // records have always been kept
		start := func() { w.pods[revision.Hash(w.history.Updated.Name)] = w.spec }
		w.sync(rt)
		start()
		// keeps fails if a change makes pods out of date.
		keeps := func(rt *rapid.T, change func()) {
			before := w.currentPods()
			change()
			w.sync(rt)
			for _, hash := range before {
				if !w.current(hash) {
					rt.Fatalf("%s is out of date now: %+v", hash, w.pods)
				}
			}
		}
		damage := func(rt *rapid.T) {
			certain = false
			all := w.history.Revisions
			r := all[rapid.IntRange(0, len(all)-1).Draw(rt, "revision")].DeepCopy()
			delete(r.Annotations, v1beta1.AnnotationClaimTemplates)
			if text := rapid.SampledFrom([]string{"[", "unknown", "sha256:0", ""}).Draw(rt, "text"); text != "" || !w.on {
				r.Annotations[v1beta1.AnnotationClaimTemplates] = text
			}
			if _, err := w.api.AppsV1().ControllerRevisions("shop").Update(rt.Context(), r, metav1.UpdateOptions{}); err != nil {
				rt.Fatal(err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				for hash, made := range w.pods {
					switch is := w.current(hash); {
					case is && made.image != w.image:
						rt.Fatalf("%s has another template, and is up to date", hash)
					case !w.on && is != (made.image == w.image) && w.owner.Claims != nil && w.history.Updated.Annotations[v1beta1.AnnotationClaimTemplates] != "":
						rt.Fatalf("%s has the template, and is out of date", hash)
					case certain && is != (made == w.spec):
						rt.Fatalf("%s was made from %+v, the spec is %+v, and it is up to date: %v", hash, made, w.spec, is)
					}
				}
			},
			"image": func(rt *rapid.T) {
				w.image = rapid.SampledFrom([]string{"web:v1", "web:v2"}).Draw(rt, "image")
				w.sync(rt)
			},
			"claims": func(rt *rapid.T) {
				size := rapid.SampledFrom([]string{"1Gi", "2Gi", "3Gi"}).Draw(rt, "size")
				if w.on {
					w.size = size
					w.sync(rt)
					return
				}
				keeps(rt, func() { w.size = size })
			},
			"create": func(*rapid.T) { start() },
			"switch": func(rt *rapid.T) {
				certain = false
				keeps(rt, func() { w.on = !w.on })
			},
			"damage": func(rt *rapid.T) { keeps(rt, func() { damage(rt) }) },
			"behind": func(rt *rapid.T) {
				w.missing = w.history.Revisions[rapid.IntRange(0, len(w.history.Revisions)-1).Draw(rt, "revision")].Name
				w.sync(rt)
				w.missing = ""
				w.sync(rt)
			},
			"forget": func(rt *rapid.T) {
				err := (revision.Store{Cache: w.cluster, API: w.api}).Forget(rt.Context(), w.history, new(int32), func(r *appsv1.ControllerRevision) bool {
					_, has := w.pods[revision.Hash(r.Name)]
					return has
				})
				if err != nil {
					rt.Fatal(err)
				}
				w.sync(rt)
			},
			"replace": func(*rapid.T) { // all pods come to the update revision
				clear(w.pods)
				start()
			},
		})
	})
}

// Another revision has the name that a revision would get: it gets another one, and so does the revision
// with other claim templates beside it.
func TestClaimsCollide(t *testing.T) {
	t.Parallel()
	taken := recorded(t, claim("data", "1Gi"))
	taken.OwnerReferences, taken.Data.Raw = nil, []byte(`{"spec":{"template":{"$patch":"replace"}}}`)
	c := &cluster{api: fake.NewClientset(taken)}
	o := owner(0)
	seen := map[string]bool{taken.Name: true}
	for i := range 3 {
		o.Claims = &revision.ClaimTemplates{Templates: []corev1.PersistentVolumeClaim{claim("data", fmt.Sprint(i+1, "Gi"))}, Distinguish: true}
		h, err := revision.Store{Cache: c, API: c.api}.Sync(t.Context(), o, template("web:v1"))
		if err != nil || seen[h.Updated.Name] || len(h.Revisions) != i+1 {
			t.Fatalf("%v, %+v", err, h)
		}
		seen[h.Updated.Name], o.Collisions = true, h.Collisions
	}
	if *o.Collisions != 1 {
		t.Errorf("%d collisions", *o.Collisions)
	}
}

// A revision with a broken record still has the name that its claim templates give it. If they come back, it
// is found by that name, and its record is written again.
func TestBrokenRecordFound(t *testing.T) {
	t.Parallel()
	c := &cluster{api: fake.NewClientset()}
	o := owner(0)
	o.Collisions = nil
	sync := func(size string) revision.History {
		t.Helper()
		o.Claims = &revision.ClaimTemplates{Templates: []corev1.PersistentVolumeClaim{claim("data", size)}, Distinguish: true}
		h, err := revision.Store{Cache: c, API: c.api}.Sync(t.Context(), o, template("web:v1"))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	sync("1Gi")
	second := sync("2Gi").Updated
	sync("1Gi")
	second.Annotations[v1beta1.AnnotationClaimTemplates] = "["
	if _, err := c.api.AppsV1().ControllerRevisions("shop").Update(t.Context(), second, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	h := sync("2Gi")
	if _, known := revision.RecordedClaims(h.Updated); h.Updated.Name != second.Name || len(h.Revisions) != 2 || !known || h.Collisions != nil {
		t.Errorf("%+v", h)
	}
}
