package revision_test

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/controllers/workload/revision"
)

func template(image string) *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "tier": "front"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "web", Image: image, Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}},
		}}},
	}
}

func owner(collisions int32) revision.Owner {
	return revision.Owner{
		Object: &metav1.ObjectMeta{Name: "my-web", Namespace: "shop", UID: "u", Annotations: map[string]string{
			"kubernetes.io/change-cause": "a faster one", "kubectl.kubernetes.io/last-applied-configuration": "all of it",
		}},
		Kind:   schema.GroupVersionKind{Group: "apps.kruise.io", Version: "v1beta1", Kind: "CloneSet"},
		Labels: map[string]string{"app": "web"}, Collisions: &collisions,
	}
}

func made(t *testing.T, template *corev1.PodTemplateSpec, number int64) *appsv1.ControllerRevision {
	t.Helper()
	r, err := revision.New(owner(0), template, number)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A revision is named and labelled after its hash, belongs to its workload, and gives
// back the template that it was made from.
func TestNew(t *testing.T) {
	t.Parallel()
	r := made(t, template("web:v1"), 3)
	hash := r.Labels[revision.Label]
	if hash == "" || strings.Contains(hash, "-") || r.Name != "my-web-"+hash || r.Namespace != "shop" || r.Revision != 3 || r.Labels["app"] != "web" || !metav1.IsControlledBy(r, owner(0)) {
		t.Errorf("%+v", r.ObjectMeta)
	}
	if len(r.Annotations) != 1 || r.Annotations["kubernetes.io/change-cause"] != "a faster one" {
		t.Errorf("annotations %q: want only the cause, which kubectl shows", r.Annotations)
	}
	got, err := revision.Template(r)
	if err != nil || !equality.Semantic.DeepEqual(got, template("web:v1")) {
		t.Errorf("%v, %v", got, err)
	}
	if again := made(t, template("web:v1"), 4); again.Name != r.Name {
		t.Errorf("the same template is %s and %s", r.Name, again.Name)
	}
	if other := made(t, template("web:v2"), 4); other.Name == r.Name {
		t.Errorf("another template is %s, too", r.Name)
	}
	collided, err := revision.New(owner(1), template("web:v1"), 3)
	if err != nil || collided.Name == r.Name {
		t.Errorf("after a collision it is %s again, %v", collided.Name, err)
	}
}

// What another implementation wrote of the same template is the same revision: to
// change the implementation updates no pod.
func TestSame(t *testing.T) {
	t.Parallel()
	ours := made(t, template("web:v1"), 1)
	for name, c := range map[string]struct {
		why, data string
		want      bool
	}{
		"Ordered": {"The fields come in another order, and one is null.", `{"spec":{"template":{"spec":{"containers":[{"image":"web:v1","name":"web","resources":{"requests":{"cpu":"1"}}}]},` +
			`"$patch":"replace","metadata":{"labels":{"tier":"front","app":"web"},"creationTimestamp":null}}}}`, true},
		"Quantity": {"1000m is 1.", `{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"web","tier":"front"}},"spec":{"containers":[{"image":"web:v1","name":"web","resources":{"requests":{"cpu":"1000m"}}}]}}}}`, true},
		"Image":    {"The image differs.", `{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"web","tier":"front"}},"spec":{"containers":[{"image":"web:v2","name":"web","resources":{"requests":{"cpu":"1"}}}]}}}}`, false},
		"Broken":   {"The data can't be read.", `{"spec":`, false},
		"Empty":    {"The data holds no template.", `{"spec":{}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			theirs := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(c.data)}}
			if got := revision.Same(theirs, ours); got != c.want || revision.Same(ours, theirs) != c.want {
				t.Errorf("%s It is the same: %v", c.why, got)
			}
			found := revision.Find([]*appsv1.ControllerRevision{theirs}, ours)
			if (found != nil) != c.want {
				t.Errorf("%s Found: %v", c.why, found)
			}
		})
	}
}

// History goes from the oldest to the youngest, and the next number is beyond all.
func TestHistory(t *testing.T) {
	t.Parallel()
	at := func(name string, number int64, age time.Duration) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}, Revision: number}
	}
	all := []*appsv1.ControllerRevision{at("d", 9, 0), at("b", 2, time.Hour), at("c", 2, time.Minute), at("a", 1, 0), at("cc", 2, time.Minute)}
	revision.Sort(all)
	if got := names(all); got != "a b c cc d" || revision.Next(all) != 10 || revision.Next(nil) != 1 {
		t.Errorf("%s, next %d, first %d", got, revision.Next(all), revision.Next(nil))
	}
	needed := func(r *appsv1.ControllerRevision) bool { return r.Name == "b" || r.Name == "d" }
	for limit, want := range map[int]string{0: "a c cc", 1: "a c", 2: "a", 3: "", 9: "", -1: "a c cc"} {
		if got := names(revision.Expired(all, limit, needed)); got != want {
			t.Errorf("expired with a limit of %d unneeded revisions: %q, want %q", limit, got, want)
		}
	}
}

func names(revisions []*appsv1.ControllerRevision) string {
	var all []string
	for _, r := range revisions {
		all = append(all, r.Name)
	}
	return strings.Join(all, " ")
}

// A rollback finds the youngest of its like: its name is the one that pods have.
func TestFindYoungest(t *testing.T) {
	t.Parallel()
	old, young := made(t, template("web:v1"), 1), made(t, template("web:v1"), 3)
	if got := revision.Find([]*appsv1.ControllerRevision{old, made(t, template("web:v2"), 2), young}, made(t, template("web:v1"), 4)); got != young {
		t.Errorf("%v", got)
	}
}

// Pods are recognized by what comes after the last "-", whoever labelled them.
func TestHas(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why, label, revision string
		want                 bool
	}{
		"Short":    {"It has the hash.", "7c9b4", "my-web-7c9b4", true},
		"Full":     {"OpenKruise's labels may have the whole name.", "my-web-7c9b4", "my-web-7c9b4", true},
		"HashOnly": {"The hash says it all.", "my-web-7c9b4", "7c9b4", true},
		"Other":    {"It is another one.", "my-web-7c9b5", "my-web-7c9b4", false},
		"None":     {"It has none.", "", "my-web-7c9b4", false},
		"OfNone":   {"There is none yet.", "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{revision.Label: c.label}}}
			if revision.Has(pod, c.revision) != c.want {
				t.Errorf("%s It has it: %v", c.why, !c.want)
			}
		})
	}
}
