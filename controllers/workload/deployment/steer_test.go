package deployment

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// TestNext has the steps of an update of six pods, of which four are to be updated.
func TestNext(t *testing.T) {
	for name, c := range map[string]struct {
		counts               counts
		unavailable, surge   int // of the user
		wantUnavailable, add int
		moves                bool
	}{
		"the first step":          {counts{replicas: 6, old: 6}, 1, 2, 1, 2, true},
		"new pods are not well":   {counts{replicas: 6, old: 5, fresh: 3}, 1, 2, 1, 2, false},
		"one of them is":          {counts{replicas: 6, old: 5, fresh: 3, available: 1}, 1, 2, 2, 2, true},
		"the last ones":           {counts{replicas: 6, old: 5, fresh: 3, available: 3}, 1, 2, 4, 0, true},
		"the surge goes":          {counts{replicas: 6, old: 3, fresh: 4, available: 4}, 1, 2, 4, 0, true},
		"the end":                 {counts{replicas: 6, old: 2, fresh: 4, available: 4}, 1, 2, 4, 0, false},
		"surge only":              {counts{replicas: 6, old: 6}, 0, 1, 0, 1, true},
		"a pod more than allowed": {counts{replicas: 6, old: 1, fresh: 5, available: 5}, 1, 0, 5, 0, false},
		"an old pod is missing":   {counts{replicas: 6, old: 3, fresh: 3, available: 1}, 1, 0, 3, 0, false},
	} {
		unavailable, surge, moves := limits{unavailable: c.unavailable, surge: c.surge, end: 4}.next(c.counts)
		if unavailable != c.wantUnavailable || surge != c.add || moves != c.moves {
			t.Errorf("%s: maxUnavailable %d, maxSurge %d, %t", name, unavailable, surge, moves)
		}
	}
}

func text(t *testing.T, f fields) string {
	t.Helper()
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestSurplus has old pods that an update waits for. Each case was an update that never ended.
func TestSurplus(t *testing.T) {
	for name, c := range map[string]struct {
		why             string
		counts          counts
		old, stay, want int
	}{
		"AsPlanned":      {"Updated pods and old ones are as many as wanted.", counts{replicas: 10, fresh: 4}, 6, 6, 6},
		"TooMany":        {"A Deployment got the annotation when more pods were updated than its partition allows. Old pods that are too many go.", counts{replicas: 10, fresh: 8}, 5, 5, 8},
		"NothingUpdated": {"No pod may be updated, and no step can remove an old one.", counts{replicas: 8}, 10, 8, 8},
	} {
		if got := c.counts.surplus(c.old, c.stay); got != c.want {
			t.Errorf("%s: %s got %d, want %d", name, c.why, got, c.want)
		}
	}
}

// TestSteer has what is written in each state of an update.
func TestSteer(t *testing.T) {
	user := fields{MinReadySeconds: 5, ProgressDeadlineSeconds: new(int32(600)), MaxUnavailable: new(intstr.FromString("25%")), MaxSurge: new(intstr.FromInt(0))}
	rest := user
	rest.Paused = true
	open := step(user, false, 1, 0)
	closed := step(user, true, 1, 0)
	whole := counts{replicas: 4, old: 4, active: 1, observed: true, bounded: true}
	begun := counts{replicas: 4, old: 3, fresh: 1, active: 2, observed: true, bounded: true}
	ready := begun
	ready.available = 1
	unbounded := ready
	unbounded.bounded = false
	move := limits{unavailable: 1, end: 2, move: true}
	for name, c := range map[string]struct {
		live   fields
		counts counts
		limits limits
		want   fields
	}{
		"not taken over":   {user, whole, move, rest},
		"a step":           {rest, whole, move, open},
		"a step under way": {open, whole, move, open},
		// The user's fields return, so that a client can write them while pods start.
		"a step is done": {open, begun, move, waiting(open, user, begun)},
		// With the user's minReadySeconds, the Deployment controller would remove all old pods.
		"the last step is done": {step(user, false, 4, 0), counts{replicas: 4, fresh: 4, active: 2, observed: true, bounded: true}, limits{unavailable: 1, end: 4, move: true}, step(user, true, 4, 0)},
		// While updates are paused, it removes them only if it counts the new pods as available.
		"paused before the last old pod goes":   {step(user, false, 0, 1), counts{replicas: 4, fresh: 4, old: 1, active: 2, observed: true}, limits{}, step(user, true, 0, 1)},
		"paused before the step is carried out": {step(user, false, 2, 2), whole, limits{}, step(user, true, 2, 2)},
		"the same, not seen yet":                {step(user, true, 2, 2), counts{replicas: 4, old: 4, active: 1}, limits{}, step(user, true, 2, 2)},
		"the same, seen":                        {step(user, true, 2, 2), whole, limits{}, rest},
		"new pods are not available":            {closed, begun, move, closed},
		"the next step":                         {closed, ready, move, step(user, false, 2, 0)},
		"the next step, at once":                {open, ready, move, step(user, false, 2, 0)},
		"a status may be old":                   {closed, unbounded, move, closed},
		"new pods count, before a step":         {waiting(closed, user, ready), unbounded, move, step(waiting(closed, user, ready), true, 1, 0)},
		"the end of a batch":                    {closed, ready, limits{end: 1}, rest},
		"paused during a step":                  {open, whole, limits{}, fields{Paused: true, MinReadySeconds: 5, ProgressDeadlineSeconds: user.ProgressDeadlineSeconds, MaxUnavailable: user.MaxUnavailable, MaxSurge: new(intstr.FromInt(0))}},
		"another template during a step":        {step(user, false, 3, 0), begun, move, step(user, true, 3, 0)},
		// 'kubectl apply' of a manifest with percentages writes them into a step. They allow two pods, and the batch ends at one.
		"percentages during a step": {fields{MinReadySeconds: neverAvailable, ProgressDeadlineSeconds: new(int32(noDeadline)), MaxUnavailable: new(intstr.FromString("25%")), MaxSurge: new(intstr.FromString("25%"))}, whole, limits{unavailable: 1, surge: 1, end: 1, move: true}, fields{Paused: true, MinReadySeconds: neverAvailable, ProgressDeadlineSeconds: new(int32(noDeadline)), MaxUnavailable: new(intstr.FromString("25%")), MaxSurge: new(intstr.FromString("25%"))}},
	} {
		got := steer(c.live, user, c.counts, c.limits)
		if name == "new pods count, before a step" {
			c.want.MaxUnavailable = user.MaxUnavailable // a paused Deployment needs no other
		}
		if !equal(got, c.want) {
			t.Errorf("%s: %s, want %s", name, text(t, got), text(t, c.want))
		}
	}
}

// TestRefused has annotations that can't be followed. Nothing moves then.
func TestRefused(t *testing.T) {
	for value, want := range map[string]string{
		`{batches: {sizes: [30%, 80%]}}`:                "more than 100%",
		`{batches: {auto: true}}`:                       "batches have sizes",
		`{batch: {sizes: [1]}}`:                         "unknown field",
		`{partition: -1}`:                               "can't be negative",
		`{partition: some}`:                             "neither a number",
		`{batches: {sizes: [1], interval: fast}}`:       "invalid duration",
		`{batches: {sizes: [1]}, batches: {sizes: []}}`: "already set",
		`[1, 2]`: "cannot unmarshal",
		// An error repeats the value. With a status of that size, the write that pauses would have more bytes than an object may have.
		`{partition: "` + strings.Repeat("9", 9000) + `"}`: "neither a number",
		`# ` + strings.Repeat("x", 200_000):                "more than 10000",
		// Aliases in an annotation of 70 kB made 2.6 GB before they were refused: a tenant could end the process for all others.
		`{a: &a x, b: [*a, *a]}`:        "anchors and aliases",
		`{partition: &a 1}`:             "anchors and aliases",
		`{batches: {<<: *a}}`:           "unknown anchor",
		`{partition: 1} # *a and &b do`: "",
	} {
		d := deployment(value)
		d.Generation = 7
		p := newPlan(observation{deployment: d, now: time.Unix(1, 0)})
		if want == "" {
			if p.status.Refused != "" {
				t.Errorf("%s: %s", value, p.status.Refused)
			}
			continue
		}
		if p.status == nil || !strings.Contains(p.status.Refused, want) || !p.fields.Paused || p.status.ObservedGeneration != 8 || len(p.status.Refused) > 1010 {
			t.Errorf("%s: %+v %+v, want %s", value, p.fields, p.status, want)
		}
	}
	d := deployment(`{partition: 1}`)
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	p := newPlan(observation{deployment: d, now: time.Unix(1, 0)})
	change, _, err := p.change(d)
	if err != nil || !strings.Contains(p.status.Refused, "Recreate") || len(change["spec"].(map[string]any)) != 1 {
		t.Errorf("Recreate: %v %v", change, err)
	}
}

func deployment(strategy string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "web", Annotations: map[string]string{v1beta1.AnnotationUpdateStrategy: strategy}},
		Spec: appsv1.DeploymentSpec{Strategy: appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt(1)), MaxUnavailable: new(intstr.FromInt(0))},
		}},
	}
}

// TestPartition has how many of ten pods stay.
func TestPartition(t *testing.T) {
	for p, want := range map[v1beta1.IntOrString]int{intstr.FromInt(0): 0, intstr.FromInt(3): 3, intstr.FromInt(12): 10, intstr.FromString("33%"): 4, intstr.FromString("99%"): 9, intstr.FromString("100%"): 10} {
		if got, err := partition(&p, 10); got != want || err != nil {
			t.Errorf("%s: %d, %v", p.String(), got, err)
		}
	}
}

// TestLostFields loses the annotation with the user's fields during a step, as 'kubectl rollout undo' does. The
// newest ReplicaSet has a copy.
func TestLostFields(t *testing.T) {
	user := fields{Paused: true, MinReadySeconds: 9, ProgressDeadlineSeconds: new(int32(100)), MaxUnavailable: new(intstr.FromInt(2)), MaxSurge: new(intstr.FromInt(3))}
	kept := func(token string, before fields) map[string]string {
		data, err := json.Marshal(v1beta1.DeploymentUpdateBefore{Before: before, Wrote: step(user, false, 1, 0), Token: token})
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{v1beta1.AnnotationUpdateBefore: string(data)}
	}
	d := deployment("")
	d.Annotations = nil
	d.Spec.MinReadySeconds, d.Spec.ProgressDeadlineSeconds = neverAvailable, new(int32(noDeadline))
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt(0)), MaxUnavailable: new(intstr.FromInt(1))}
	if p := newPlan(observation{deployment: d}); !p.needs {
		t.Fatal("it is handed back without a look at the ReplicaSets")
	}
	sets := []*appsv1.ReplicaSet{{ObjectMeta: metav1.ObjectMeta{Annotations: kept("20", user)}}, {ObjectMeta: metav1.ObjectMeta{Annotations: kept("3", fields{})}}, {}}
	if p := newPlan(observation{deployment: d, sets: sets, known: true}); !equal(p.fields, user) || p.kept != nil {
		t.Errorf("handed back %s", text(t, p.fields))
	}
	d.Annotations = kept("4", fields{}) // an older ReplicaSet had it
	if p := newPlan(observation{deployment: d, sets: sets, known: true}); !equal(p.fields, user) {
		t.Errorf("handed back %s from an older write", text(t, p.fields))
	}
	d.Annotations = nil
	p := newPlan(observation{deployment: d, known: true})
	if p.fields.MinReadySeconds != 0 || *p.fields.ProgressDeadlineSeconds != 600 || p.fields.MaxSurge.String() != "25%" {
		t.Errorf("nothing is left, and it is handed back %s", text(t, p.fields))
	}
}

// TestLostFieldsAtRest loses the annotation with the user's fields between two steps, as a tool that removes unknown
// annotations does. Without the copy, the pause would be the user's: no update would begin, and the Deployment
// would be handed back paused.
func TestLostFieldsAtRest(t *testing.T) {
	user := fields{MaxUnavailable: new(intstr.FromInt(1)), MaxSurge: new(intstr.FromInt(2))}
	rest := user
	rest.Paused = true
	d := deployment("{}")
	d.Annotations[v1beta1.AnnotationUpdateStatus] = "{}"
	d.Spec.Paused, d.Spec.Strategy.RollingUpdate = true, &appsv1.RollingUpdateDeployment{MaxSurge: user.MaxSurge, MaxUnavailable: user.MaxUnavailable}
	set := func(wrote fields) []*appsv1.ReplicaSet {
		data, err := json.Marshal(v1beta1.DeploymentUpdateBefore{Before: user, Wrote: wrote, Token: "5"})
		if err != nil {
			t.Fatal(err)
		}
		return []*appsv1.ReplicaSet{{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1beta1.AnnotationUpdateBefore: string(data)}}}}
	}
	if p := newPlan(observation{deployment: d}); !p.needs {
		t.Error("the pause is the user's without a look at the ReplicaSets")
	}
	if p := newPlan(observation{deployment: d, sets: set(rest), known: true}); !equal(p.kept.Before, user) {
		t.Errorf("the user has %s", text(t, p.kept.Before))
	}
	if p := newPlan(observation{deployment: d, sets: set(step(user, false, 1, 0)), known: true}); !equal(p.kept.Before, rest) {
		t.Errorf("the user has %s by a copy of another write", text(t, p.kept.Before))
	}
	delete(d.Annotations, v1beta1.AnnotationUpdateStrategy)
	if p := newPlan(observation{deployment: d, sets: set(rest), known: true}); !equal(p.fields, user) || p.kept != nil {
		t.Errorf("handed back %s", text(t, p.fields))
	}
}

// TestPausedByUser annotates a Deployment that its user had paused. It gets no pod, and no pod of another template,
// until its user resumes it: the annotation may not take the pause away.
func TestPausedByUser(t *testing.T) {
	d := deployment("{}")
	d.Spec.Paused, d.Spec.Replicas = true, new(int32(2))
	old := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "v1", UID: "v1", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32(2)), Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"v": "1"}}}},
	}
	for name, sets := range map[string][]*appsv1.ReplicaSet{"no pods": nil, "another template": {old}} {
		p := newPlan(observation{deployment: d, sets: sets, known: true, now: time.Unix(60, 0)})
		if !p.fields.Paused || p.fields.MinReadySeconds == neverAvailable || !p.kept.Before.Paused {
			t.Errorf("%s: %s", name, text(t, p.fields))
		}
	}
}

// TestClockWentBack opens a step by a clock that is behind the one of the writes before it, as that of another
// replica can be. The copy of the write before may not count as the latest one: the fields of the step would
// become the user's.
func TestClockWentBack(t *testing.T) {
	for name, token := range map[string]string{"an hour": "3600000000000", "a token that no clock has": "99999999999999999999", "the last number": "9223372036854775807"} {
		user := fields{MinReadySeconds: 5, ProgressDeadlineSeconds: new(int32(600)), MaxUnavailable: new(intstr.FromString("25%")), MaxSurge: new(intstr.FromInt(1))}
		rest := user
		rest.Paused = true
		d := deployment("{}")
		d.Spec.Replicas = new(int32(4))
		live := func(p plan) {
			f := p.fields
			d.Spec.Paused, d.Spec.MinReadySeconds, d.Spec.ProgressDeadlineSeconds = f.Paused, f.MinReadySeconds, f.ProgressDeadlineSeconds
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: f.MaxSurge, MaxUnavailable: f.MaxUnavailable}
			for name, value := range map[string]any{v1beta1.AnnotationUpdateBefore: p.kept, v1beta1.AnnotationUpdateStatus: p.status} {
				data, err := json.Marshal(value)
				if err != nil {
					t.Fatal(err)
				}
				d.Annotations[name] = string(data)
			}
		}
		live(plan{fields: rest, kept: &v1beta1.DeploymentUpdateBefore{Before: user, Wrote: rest, Token: token}})
		set := &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{
				Name: "v1", UID: "v1", Annotations: map[string]string{v1beta1.AnnotationUpdateBefore: d.Annotations[v1beta1.AnnotationUpdateBefore]},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
			},
			Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(4)), Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"v": "1"}}}},
		}
		for i := range 3 {
			p := newPlan(observation{deployment: d, sets: []*appsv1.ReplicaSet{set}, known: true, now: time.Unix(60+int64(i), 0)})
			if !equal(p.kept.Before, user) {
				t.Errorf("%s: the user has %s now", name, text(t, p.kept.Before))
			}
			live(p)
		}
		if d.Spec.Paused {
			t.Errorf("%s: no step is open", name)
		}
	}
}

// TestBounded has what shows that a step is bounded: the Deployment controller counts no new pod as available.
func TestBounded(t *testing.T) {
	d := deployment("{}")
	d.Spec.MinReadySeconds = neverAvailable
	is := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Generation: 3, Annotations: map[string]string{v1beta1.AnnotationUpdateBefore: `{"token":"5"}`}},
		Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32(2)), MinReadySeconds: neverAvailable}, Status: appsv1.ReplicaSetStatus{ObservedGeneration: 3, Replicas: 2},
	}
	if !isBounded(d, is, "5") || !isBounded(d, nil, "5") {
		t.Error("it is bounded")
	}
	for name, change := range map[string]func(*appsv1.ReplicaSet){
		"an older write":          func(s *appsv1.ReplicaSet) { s.Annotations[v1beta1.AnnotationUpdateBefore] = `{"token":"4"}` },
		"no write":                func(s *appsv1.ReplicaSet) { s.Annotations = nil },
		"the user's seconds":      func(s *appsv1.ReplicaSet) { s.Spec.MinReadySeconds = 5 },
		"an older status":         func(s *appsv1.ReplicaSet) { s.Status.ObservedGeneration = 2 },
		"a pod that is available": func(s *appsv1.ReplicaSet) { s.Status.AvailableReplicas = 1 },
	} {
		other := is.DeepCopy()
		if change(other); isBounded(d, other, "5") {
			t.Errorf("%s: it is not bounded", name)
		}
	}
	d.Status.UpdatedReplicas = 1
	if isBounded(d, nil, "5") {
		t.Error("a ReplicaSet that is not seen yet has pods")
	}
}

// TestSlim keeps what decisions need.
func TestSlim(t *testing.T) {
	owner := []metav1.OwnerReference{{UID: "set"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}, OwnerReferences: owner}, Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if _, err := slim(pod); err != nil || pod.Labels != nil || pod.Spec.NodeName != "" || pod.Status.Phase != corev1.PodRunning || len(pod.OwnerReferences) != 1 {
		t.Errorf("%+v, %v", pod, err)
	}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "s", Annotations: map[string]string{"a": "b", v1beta1.AnnotationUpdateBefore: "c"}}, Spec: appsv1.ReplicaSetSpec{MinReadySeconds: 4}}
	if _, err := slim(set); err != nil || len(set.Annotations) != 1 || set.Spec.MinReadySeconds != 4 {
		t.Errorf("%+v, %v", set, err)
	}
	if is, err := slim(3); is != 3 || err != nil {
		t.Error("what is no object stays")
	}
}
