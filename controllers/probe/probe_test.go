package probe_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// A run takes a subject of each kind through its steps, with the rights that keelson rbac
// prints, and leaves nothing. That it passes
// again is written when an hour has passed, or a check asks; a probe that leaves git takes
// its result with it.
func TestRunPasses(t *testing.T) {
	w := newWorld(t)
	f := w.load()
	w.restrict(f)
	p, _ := w.start(f, nil)
	w.eventually("a run has passed", func() bool { return w.result().Outcome == v1alpha1.ProbePassed })
	first := w.result()
	if left := w.left(); len(left) > 0 || len(first.Objects) != 5 || first.Passed == nil || first.Message != "" {
		t.Errorf("left are %v; %+v", left, first)
	}
	w.mu.Lock()
	for _, want := range []string{
		"Deployment registry.k8s.io/pause:3.9×2", "Deployment registry.k8s.io/pause:3.10×2", "Deployment registry.k8s.io/pause:3.10×3",
		"StatefulSet registry.k8s.io/pause:3.9×1", "StatefulSet registry.k8s.io/pause:3.10×1", "StatefulSet registry.k8s.io/pause:3.10×2",
		"DaemonSet registry.k8s.io/pause:3.9×0", "Job registry.k8s.io/pause:3.9×0", "Job registry.k8s.io/pause:3.10×0", "Backup ×0",
	} {
		if !w.seen[want] {
			t.Errorf("no %s was seen, but %v", want, w.seen)
		}
	}
	w.mu.Unlock()
	if got, want := w.steps(), []string{
		"custom create", "custom delete", "custom upgrade", "daemonSet create", "daemonSet delete", "daemonSet upgrade",
		"deployment create", "deployment delete", "deployment scaleDown", "deployment scaleUp", "deployment upgrade",
		"job create", "job delete", "job upgrade",
		"statefulSet create", "statefulSet delete", "statefulSet scaleDown", "statefulSet scaleUp", "statefulSet upgrade",
	}; !slices.Equal(got, want) {
		t.Errorf("steps (-want +got):\n%s", cmp.Diff(want, got))
	}
	if got := <-w.events.Events; !strings.HasPrefix(got, "Normal ProbePassed probe workloads passes on") {
		t.Error(got)
	}

	t.Log("it passes again, and writes neither a status nor an event")
	w.passes(p, 5*time.Minute)
	w.eventually("it ran twice", func() bool { return w.passed() == 2 })
	if diff := cmp.Diff(first, w.result()); diff != "" {
		t.Errorf("written (-first +now):\n%s", diff)
	}
	t.Log("a check asks: a run at once, and both are told")
	w.asked.Store(w.now().UnixMicro())
	w.passes(p, 2*time.Second)
	w.eventually("it is written", func() bool { return len(w.result().Runs) == 3 })
	w.asked.Store(0)

	t.Log("it leaves git")
	w.git("rm", "-q", "probes/workloads.yaml")
	f = w.load()
	p.Update(f, f.Cluster("a"))
	w.eventually("its result is gone", func() bool { return w.result().Probe == "" })
	w.eventually("its metrics are gone", func() bool { return w.passed() == 0 })
}

// steps are those that were timed.
func (w *world) steps() []string {
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		if f.GetName() != "keelson_probe_step_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			out = append(out, m.GetLabel()[1].GetValue()+" "+m.GetLabel()[0].GetValue())
			if m.GetLabel()[0].GetName() == "subject" {
				out[len(out)-1] = m.GetLabel()[0].GetValue() + " " + m.GetLabel()[1].GetValue()
			}
		}
	}
	slices.Sort(out)
	return out
}

// passed is how many runs have passed, by the metrics.
func (w *world) passed() (n float64) {
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "keelson_probe_runs_total" && l.GetValue() == "passed" {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// An upgrade that does not become ready fails the run with what is wrong, and is removed
// all the same. The other subjects are looked at, too. When it works again, that is told.
func TestUpgradeStuck(t *testing.T) {
	w := newWorld(t)
	w.write("probes/workloads.yaml", strings.Replace(workloads, "timeout: TIMEOUT", "timeout: 12s", 1))
	w.stuck.Store(true)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "stuck", Namespace: w.namespace, Labels: map[string]string{v1alpha1.LabelProbe: "workloads", "keelson.io/probe-subject": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "probe", Image: "registry.k8s.io/pause:3.10"}}},
	}
	if err := w.hub.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "probe", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
	if err := w.hub.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "stuck", Namespace: w.namespace}, Reason: "Failed", Message: "pulling was refused",
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "stuck", Namespace: w.namespace, UID: pod.UID},
	}
	if err := w.hub.Create(t.Context(), event); err != nil {
		t.Fatal(err)
	}
	f := w.load()
	w.restrict(f)
	p, _ := w.start(f, nil)
	w.eventually("a run has failed", func() bool { return w.result().Outcome == v1alpha1.ProbeFailed })
	s := w.result()
	if want := []string{"web/upgrade", "db/upgrade", "job/upgrade"}; !slices.Equal(s.Runs[0].Failed, want) {
		t.Errorf("failed: %v, want %v", s.Runs[0].Failed, want)
	}
	want := fmt.Sprintf("web/upgrade: not in 12s: Deployment.apps %s/probe-workloads-web: ", w.namespace)
	if !strings.HasPrefix(s.Message, want) || !strings.Contains(s.Message, "pod stuck: container probe waits: ImagePullBackOff: no such image; last events: Failed: pulling was refused") {
		t.Errorf("message: %s", s.Message)
	}
	if left := w.left(); len(left) > 0 || s.Passed != nil {
		t.Errorf("left are %v; %+v", left, s)
	}
	if got := <-w.events.Events; !strings.HasPrefix(got, "Warning ProbeFailed probe workloads fails on") {
		t.Error(got)
	}
	w.stuck.Store(false)
	w.passes(p, 5*time.Minute)
	w.eventually("it passes", func() bool { return w.result().Outcome == v1alpha1.ProbePassed })
	if s := w.result(); s.Message != "" || s.Since.Time.Equal(s.Runs[0].Begun.Time) {
		t.Errorf("it passes: %+v", s)
	}
}

// A probe neither changes nor deletes objects that are not its own: an object of the same name
// without its label, and an object of another fleet's probe.
func TestForeign(t *testing.T) {
	w := newWorld(t)
	const manifest = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "probe-workloads-web", "annotations": {"hands": "off"}}, "spec":
{"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}}}`
	web := decode(t, manifest)
	db := decode(t, strings.NewReplacer("Deployment", "StatefulSet", "-web", "-db").Replace(manifest))
	db.SetLabels(map[string]string{v1alpha1.LabelProbe: "workloads"})
	db.SetAnnotations(map[string]string{"hands": "off", v1alpha1.AnnotationFleet: "another"})
	versions := map[string]string{}
	deployments, statefulSets := w.dynamic.Resource(kinds()["Deployment"]).Namespace(w.namespace), w.dynamic.Resource(kinds()["StatefulSet"]).Namespace(w.namespace)
	if u, err := deployments.Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	} else {
		versions["web"] = u.GetResourceVersion()
	}
	if u, err := statefulSets.Create(t.Context(), db, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	} else {
		versions["db"] = u.GetResourceVersion()
	}
	p, _ := w.start(w.load(), nil)
	w.eventually("the run has failed", func() bool { return w.result().Outcome == v1alpha1.ProbeFailed })
	s := w.result()
	if want := []string{"web/create", "db/create"}; !slices.Equal(s.Runs[0].Failed, want) || !strings.Contains(s.Message, "an object of this name is there that is not this probe's") {
		t.Errorf("failed: %v, %s", s.Runs[0].Failed, s.Message)
	}
	t.Log("nor when the probe leaves git")
	w.git("rm", "-q", "probes/workloads.yaml")
	f := w.load()
	p.Update(f, f.Cluster("a"))
	w.eventually("its result is gone", func() bool { return w.result().Probe == "" })
	left := w.left()
	slices.Sort(left)
	if want := []string{"Deployment probe-workloads-web", "StatefulSet probe-workloads-db"}; !slices.Equal(left, want) {
		t.Errorf("left are %v", left)
	}
	if u, err := deployments.Get(t.Context(), "probe-workloads-web", metav1.GetOptions{}); err != nil || u.GetResourceVersion() != versions["web"] {
		t.Errorf("it was touched: %v", err)
	}
	if u, err := statefulSets.Get(t.Context(), "probe-workloads-db", metav1.GetOptions{}); err != nil || u.GetResourceVersion() != versions["db"] {
		t.Errorf("it was touched: %v", err)
	}
}

// What a killed process leaves, the next one removes before all else, also of a probe that
// left git meanwhile; and a run that is stopped in an orderly way removes it by itself.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	w.stuck.Store(true) // it stops in the middle
	f := w.load()
	half := func() bool { return slices.Contains(w.left(), "Deployment probe-workloads-web") }
	var killed atomic.Bool
	_, stop := w.start(f, &killed)
	w.eventually("it is in the middle of a run", half)
	killed.Store(true)
	stop()
	if !half() {
		t.Fatal("it could still delete: this proves nothing")
	}

	t.Log("the next process")
	w.stuck.Store(false)
	_, stop = w.start(f, nil)
	w.eventually("it ran", func() bool { return w.result().Outcome == v1alpha1.ProbePassed })
	stop()
	if left := w.left(); len(left) > 0 {
		t.Errorf("left are %v", left)
	}

	t.Log("killed again, and the probe left git meanwhile")
	w.stuck.Store(true)
	var again, orderly atomic.Bool
	w.ahead.Store(int64(time.Hour))
	_, stop = w.start(f, &again)
	w.eventually("it is in the middle of a run", half)
	again.Store(true)
	stop()
	w.git("mv", "probes/workloads.yaml", "elsewhere.yaml")
	_, stop = w.start(w.load(), &orderly)
	w.eventually("nothing is left", func() bool { return len(w.left()) == 0 && w.result().Probe == "" })
	stop()

	t.Log("stopped in an orderly way")
	_, stop = w.start(f, &orderly)
	w.eventually("it is in the middle of a run", half)
	stop()
	w.eventually("nothing is left", func() bool { return len(w.left()) == 0 })
	if s := w.result(); s.Outcome != "" {
		t.Errorf("a run that was stopped has a result: %+v", s)
	}
}

// A paused cluster is left alone, as is one whose files are broken; a probe that is broken
// does not run, and what is known of it stays.
func TestLeftAlone(t *testing.T) {
	w := newWorld(t)
	f := w.load()
	p, _ := w.start(f, nil)
	w.eventually("a run has passed", func() bool { return w.result().Outcome == v1alpha1.ProbePassed })
	ran := w.passed()
	quiet := func(what string) {
		t.Helper()
		w.passes(p, time.Hour)
		w.settles(p)
		if n := w.passed(); n != ran {
			t.Errorf("%s: it ran", what)
		}
		if s := w.result(); s.Probe != "workloads" {
			t.Errorf("%s: its result is gone", what)
		}
	}
	p.Update(f, f.Cluster("paused"))
	quiet("paused")
	w.write("probes/workloads.yaml", strings.Replace(workloads, "subjects:", "subject:", 1))
	broken := w.loadBroken()
	p.Update(broken, broken.Cluster("a"))
	quiet("a broken probe")
	w.write("probes/workloads.yaml", workloads)
	w.write("clusters/a/cluster.yaml", head+"Cluster\nlabel: {}\nconnection: {context: test}\n")
	broken = w.loadBroken()
	p.Update(broken, broken.Cluster("a"))
	quiet("a broken cluster")
	p.Update(f, f.Cluster("a"))
	w.eventually("it runs again", func() bool { return w.passed() > ran })
}

// A namespace that is not there is said, and not created; so is what no controller deletes.
func TestNoNamespace(t *testing.T) {
	w := newWorld(t)
	w.write("probes/workloads.yaml", strings.Replace(workloads, "namespace: NAMESPACE", "namespace: nowhere", 1))
	w.start(w.load(), nil)
	w.eventually("it fails", func() bool { return strings.Contains(w.result().Message, "a probe creates no namespace") })
}

// A run fails if another client deletes one of its objects.
func TestDeletedMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.stuck.Store(true)
	w.start(w.load(), nil)
	gone := func() bool {
		api := w.dynamic.Resource(kinds()["Deployment"]).Namespace(w.namespace)
		u, err := api.Get(t.Context(), "probe-workloads-web", metav1.GetOptions{})
		if err != nil || imageOf(u) != "registry.k8s.io/pause:3.10" {
			return false
		}
		if _, err := api.Patch(t.Context(), u.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			return false
		}
		return api.Delete(t.Context(), u.GetName(), metav1.DeleteOptions{}) == nil
	}
	w.eventually("another client deletes it", gone)
	w.stuck.Store(false)
	w.eventually("the run fails", func() bool {
		return strings.Contains(w.result().Message, "web/upgrade: Deployment.apps "+w.namespace+"/probe-workloads-web: another client deleted it")
	})
}
