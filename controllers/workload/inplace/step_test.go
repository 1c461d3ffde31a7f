package inplace_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// story is a pod, whoever writes to it, and what was written, in order.
type story struct {
	t     *testing.T
	pod   *corev1.Pod
	now   time.Time
	wrote []string
}

func newStory(t *testing.T, containers ...corev1.Container) *story {
	t.Helper()
	s := &story{t: t, now: start, pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-abcde", UID: "u", Generation: 1, Labels: map[string]string{revision.Label: "old"}},
		Spec:       corev1.PodSpec{Containers: containers},
	}}
	inplace.AddGate(&s.pod.Spec)
	for _, c := range containers {
		s.pod.Status.ContainerStatuses = append(s.pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: "sha256:" + c.Image, ContainerID: "containerd://" + c.Name + "-0", Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(start)}},
		})
	}
	s.settles("condition True: InPlaceUpdateComplete", "done")
	s.wrote = nil
	return s
}

// write does what a step says, and notes it.
func (s *story) write(step inplace.Step, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	switch {
	case step.Condition != nil:
		s.wrote = append(s.wrote, "condition "+string(step.Condition.Status)+": "+step.Condition.Reason)
		s.pod.Status.Conditions = slices.DeleteFunc(s.pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == step.Condition.Type })
		s.pod.Status.Conditions = append(s.pod.Status.Conditions, *step.Condition)
	case step.Patch != nil:
		before, err := json.Marshal(s.pod)
		if err != nil {
			s.t.Fatal(err)
		}
		after, err := strategicpatch.StrategicMergePatch(before, step.Patch, &corev1.Pod{})
		if err != nil {
			s.t.Fatal(err)
		}
		var pod corev1.Pod
		if err := json.Unmarshal(after, &pod); err != nil {
			s.t.Fatal(err)
		}
		var images []string
		for i, c := range pod.Spec.Containers {
			if c.Image != s.pod.Spec.Containers[i].Image {
				images = append(images, c.Name+"="+c.Image)
			}
		}
		if pod.Generation = s.pod.Generation; len(images) > 0 {
			pod.Generation++
		}
		s.pod = &pod
		s.wrote = append(s.wrote, strings.TrimSpace("patch "+strings.Join(images, " ")))
	case step.Done:
		s.wrote = append(s.wrote, "done")
	case step.After > 0:
		s.wrote = append(s.wrote, "in "+step.After.String())
	default:
		s.wrote = append(s.wrote, "waits for "+step.Waits)
	}
}

func (s *story) begins(plan *inplace.Plan, grace time.Duration, want ...string) {
	s.t.Helper()
	s.steps(func() (inplace.Step, error) { return inplace.Begin(s.pod, plan, "web-new", grace, s.now) }, want)
}

func (s *story) settles(want ...string) {
	s.t.Helper()
	s.steps(func() (inplace.Step, error) { return inplace.Settle(s.pod, s.now) }, want)
}

// steps takes as many steps as are wanted.
func (s *story) steps(next func() (inplace.Step, error), want []string) {
	s.t.Helper()
	s.wrote = nil
	for range want {
		s.write(next())
	}
	if diff := cmp.Diff(want, s.wrote); diff != "" {
		s.t.Fatalf("-want +got:\n%s", diff)
	}
}

// kubelet starts a container anew, as it does when its image has changed.
func (s *story) kubelet(container, imageID, image string) {
	i := slices.IndexFunc(s.pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == container })
	is := &s.pod.Status.ContainerStatuses[i]
	is.RestartCount++
	is.ContainerID += "'"
	is.ImageID, is.Image, is.Ready = imageID, image, true
	is.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(s.now)}}
	s.pod.Status.ObservedGeneration = s.pod.Generation
}

func image(is string) *inplace.Plan { return &inplace.Plan{Images: map[string]string{"web": is}} }

// A resize is recorded as still to be done before it is tried, so that one which the API server refuses
// does not pass for done, and the pod is not available meanwhile.
func TestResize(t *testing.T) {
	t.Parallel()
	cpu := func(q string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q)}}
	}
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v1", Resources: cpu("1")})
	s.pod.Status.ContainerStatuses[0].Resources = new(cpu("1"))
	plan := &inplace.Plan{Resources: map[string]corev1.ResourceRequirements{"web": cpu("2")}}
	step, err := inplace.Begin(s.pod, plan, "web-new", 0, s.now)
	if err != nil || step.Resize != nil || step.Patch == nil {
		t.Fatalf("%+v, %v", step, err)
	}
	s.write(step, nil)
	if s.pod.Labels[revision.Label] != "new" || inplace.Complete(s.pod) {
		t.Errorf("%v, complete %t", s.pod.Labels, inplace.Complete(s.pod))
	}
	for range 2 { // the first is refused
		if step, err = inplace.Settle(s.pod, s.now); err != nil || step.Resize == nil || step.Patch == nil {
			t.Fatalf("%+v, %v", step, err)
		}
	}
	s.pod.Spec.Containers[0].Resources = cpu("2")
	s.write(step, nil)
	s.settles("waits for container web to be resized")
	if inplace.Complete(s.pod) {
		t.Error("it is complete before its container has the resources")
	}
	s.pod.Status.ContainerStatuses[0].Resources = new(cpu("2"))
	s.settles("done")
	if !inplace.Complete(s.pod) {
		t.Error("it is not complete")
	}
}

// Labels that say who a pod is stay as they are, whatever templates say.
func TestIdentityLabels(t *testing.T) {
	t.Parallel()
	template := func(labels map[string]string) *corev1.PodTemplateSpec {
		return &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
	}
	plan, why := inplace.NewPlan(template(map[string]string{"app": "a", "apps.kubernetes.io/pod-index": "7", v1beta1.LabelLifecycle: "Normal"}), template(map[string]string{"app": "b", "statefulset.kubernetes.io/pod-name": "x"}), inplace.Options{})
	if plan == nil || len(plan.Labels) != 1 || *plan.Labels["app"] != "b" {
		t.Errorf("%+v, %s", plan, why)
	}
}

// An update is three writes: the gate is closed, the image changes, and when that runs
// the gate is opened.
func TestUpdate(t *testing.T) {
	t.Parallel()
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v1"})
	s.begins(image("web:v2"), 0, "condition False: StartInPlaceUpdate", "patch web=web:v2")
	if s.pod.Labels[revision.Label] != "new" {
		t.Errorf("revision %q", s.pod.Labels[revision.Label])
	}
	s.settles("waits for container web to run web:v2")
	s.kubelet("web", "sha256:web:v2", "web:v2")
	s.settles("condition True: InPlaceUpdateComplete", "done")
}

// A grace period lies between the gate and the image, so that no client is left.
func TestGrace(t *testing.T) {
	t.Parallel()
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v1"})
	s.begins(image("web:v2"), 10*time.Second, "condition False: StartInPlaceUpdate", "in 10s")
	s.now = s.now.Add(4 * time.Second)
	s.begins(image("web:v2"), 10*time.Second, "in 6s")
	s.now = s.now.Add(6 * time.Second)
	s.begins(image("web:v2"), 10*time.Second, "patch web=web:v2")
}

// A pod whose update is no longer wanted serves again.
func TestCalledBack(t *testing.T) {
	t.Parallel()
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v1"})
	s.begins(image("web:v2"), 10*time.Second, "condition False: StartInPlaceUpdate")
	s.settles("condition True: InPlaceUpdateComplete", "done")
}

// Another tag of the same image is done when the container was started anew, though
// the image is the same and the runtime still tells of the old tag.
func TestSameDigest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why      string
		observed bool          // the kubelet says which generation it has read
		late     time.Duration // of the start
		image    string
		want     string
	}{
		"OldTag":      {"The kubelet had read the spec when it started it.", true, 0, "web:v1", "done"},
		"NewTag":      {"It tells of the new tag.", false, -time.Minute, "web:v2", "done"},
		"Normalized":  {"It is the same name.", false, -time.Minute, "docker.io/library/web:v2", "done"},
		"OldKubelet":  {"It was started after the change.", false, time.Second, "web:v1", "done"},
		"CrashBefore": {"It crashed just before the change, and has to go again.", false, -time.Minute, "web:v1", "waits for container web to run web:v2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t, corev1.Container{Name: "web", Image: "web:v1"})
			s.begins(image("web:v2"), 0, "condition False: StartInPlaceUpdate", "patch web=web:v2")
			s.settles("waits for container web to run web:v2")
			s.now = s.now.Add(c.late)
			s.kubelet("web", "sha256:web:v1", c.image)
			if !c.observed {
				s.pod.Status.ObservedGeneration = 0
			}
			if c.want == "done" {
				s.settles("condition True: InPlaceUpdateComplete", "done")
				return
			}
			s.settles(c.want)
		})
	}
}

// What can't be pulled is waited for, with the kubelet's reason, and can be taken back.
func TestRollback(t *testing.T) {
	t.Parallel()
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v1"})
	s.begins(image("web:none"), 0, "condition False: StartInPlaceUpdate", "patch web=web:none")
	is := &s.pod.Status.ContainerStatuses[0]
	is.Ready, is.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	s.settles("waits for container web to run web:none: ImagePullBackOff")
	s.begins(image("web:v1"), 0, "patch web=web:v1") // the gate is closed already
	s.settles("waits for container web to run web:v1: ImagePullBackOff")
	s.kubelet("web", "sha256:web:v1", "web:v1")
	s.settles("condition True: InPlaceUpdateComplete", "done")
}

// What is taken back before its kubelet has read of it changes no container.
func TestRollbackAtOnce(t *testing.T) {
	t.Parallel()
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v1"})
	s.begins(image("web:none"), 0, "condition False: StartInPlaceUpdate", "patch web=web:none")
	s.settles("waits for container web to run web:none")
	s.begins(image("web:v1"), 0, "patch web=web:v1")
	s.settles("condition True: InPlaceUpdateComplete", "done")
	s.begins(image("web:v2"), 0, "condition False: StartInPlaceUpdate", "patch web=web:v2")
	s.settles("waits for container web to run web:v2")
	s.kubelet("web", "sha256:web:v1", "web:v2") // the same digest
	s.settles("condition True: InPlaceUpdateComplete", "done")
}

// Containers with a priority go one after the other, the highest first, each when the
// one before it is ready.
func TestBatches(t *testing.T) {
	t.Parallel()
	first := []corev1.EnvVar{{Name: v1beta1.EnvContainerPriority, Value: "10"}}
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v1"}, corev1.Container{Name: "mesh", Image: "mesh:v1", Env: first}, corev1.Container{Name: "log", Image: "log:v1"})
	plan := &inplace.Plan{Images: map[string]string{"web": "web:v2", "mesh": "mesh:v2", "log": "log:v2"}}
	s.begins(plan, 0, "condition False: StartInPlaceUpdate", "patch mesh=mesh:v2")
	s.settles("waits for container mesh to run mesh:v2")
	s.kubelet("mesh", "sha256:mesh:v2", "mesh:v2")
	s.pod.Status.ContainerStatuses[1].Ready = false
	s.settles("waits for container mesh to be ready before the next ones change")
	s.pod.Status.ContainerStatuses[1].Ready = true
	s.settles("patch web=web:v2 log=log:v2", "waits for container web to run web:v2")
	s.kubelet("web", "sha256:web:v2", "web:v2")
	s.settles("waits for container log to run log:v2")
	s.kubelet("log", "sha256:log:v2", "log:v2")
	s.settles("condition True: InPlaceUpdateComplete", "done")
}

// Labels take no pod out of service.
func TestMetadataOnly(t *testing.T) {
	t.Parallel()
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v1"})
	s.pod.Annotations = map[string]string{"goes": "1"}
	s.begins(&inplace.Plan{Labels: map[string]*string{"tier": new("back")}, Annotations: map[string]*string{"goes": nil}}, time.Minute, "patch")
	if _, has := s.pod.Annotations["goes"]; has || s.pod.Labels["tier"] != "back" {
		t.Errorf("labels %v, annotations %v", s.pod.Labels, s.pod.Annotations)
	}
	s.settles("done")
}

// A pod without the gate is updated as well, but is not taken out of its Services.
func TestWithoutGate(t *testing.T) {
	t.Parallel()
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v1"})
	s.pod.Spec.ReadinessGates, s.pod.Status.Conditions = nil, nil
	s.begins(image("web:v2"), time.Minute, "patch web=web:v2")
	s.kubelet("web", "sha256:web:v2", "web:v2")
	s.settles("done")
}

// What OpenKruise began is ended: its state knows no containers.
func TestBegunByOpenKruise(t *testing.T) {
	t.Parallel()
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v2"})
	s.pod.Annotations = map[string]string{v1beta1.AnnotationInPlaceState: `{"revision":"web-new","updateTimestamp":"2026-01-01T11:00:00Z","lastContainerStatuses":{"web":{"imageID":"sha256:web:v1"}}}`}
	is := &s.pod.Status.ContainerStatuses[0]
	is.ImageID, is.Image = "sha256:web:v1", "web:v1"
	s.settles("waits for container web to run web:v2")
	is.Image = "web:v2"
	s.settles("done")
}

// A state that can't be read is an error, and nothing is changed.
func TestBrokenState(t *testing.T) {
	t.Parallel()
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v1"})
	s.pod.Annotations = map[string]string{v1beta1.AnnotationInPlaceState: "{"}
	if step, err := inplace.Settle(s.pod, s.now); err == nil || !strings.Contains(err.Error(), "web-abcde: annotation apps.kruise.io/inplace-update-state") || step.Patch != nil || step.Condition != nil {
		t.Errorf("%+v, %v", step, err)
	}
}

// A change of configuration is one write, with no closed gate. The pod is complete when its container has
// answered, and not before; a container that has to run another image is waited for first.
func TestReload(t *testing.T) {
	t.Parallel()
	s := newStory(t, corev1.Container{Name: "web", Image: "web:v1"})
	s.pod.Annotations = map[string]string{v1beta1.AnnotationReload: `{"http": {"port": 8080}}`}
	configuration := map[string]*string{v1beta1.AnnotationConfigurationVersion: new("b")}
	s.begins(&inplace.Plan{Annotations: configuration}, time.Minute, "patch")
	if inplace.Complete(s.pod) {
		t.Error("it is complete before the container has answered")
	}
	step, err := inplace.Settle(s.pod, s.now)
	if err != nil || step.Reload == nil || step.Done {
		t.Fatalf("%+v, %v", step, err)
	}
	s.pod.Annotations[v1beta1.AnnotationReloadState] = `{"version": "b", "result": "Reloaded"}`
	s.settles("done")
	if !inplace.Complete(s.pod) {
		t.Error("it is not complete")
	}

	both := &inplace.Plan{Images: map[string]string{"web": "web:v2"}, Annotations: map[string]*string{v1beta1.AnnotationConfigurationVersion: new("c")}}
	s.begins(both, 0, "condition False: StartInPlaceUpdate", "patch web=web:v2")
	s.settles("waits for container web to run web:v2")
	s.kubelet("web", "sha256:web:v2", "web:v2")
	s.settles("condition True: InPlaceUpdateComplete")
	if step, err = inplace.Settle(s.pod, s.now); err != nil || step.Reload == nil || inplace.Complete(s.pod) {
		t.Fatalf("%+v, %v", step, err)
	}
	s.pod.Annotations[v1beta1.AnnotationReloadState] = "text"
	if _, err = inplace.Settle(s.pod, s.now); err == nil || inplace.Complete(s.pod) {
		t.Error("a state that can't be parsed counts as complete")
	}
}
