package applier_test

import (
	"errors"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

const (
	jobPassed = `{"status": {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:01Z", "succeeded": 1, "conditions": [
		{"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
		{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}]}}`
	jobFailed = `{"status": {"startTime": "2026-01-01T00:00:00Z", "failed": 1, "conditions": [
		{"type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often", "lastTransitionTime": "2026-01-01T00:00:01Z"},
		{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often", "lastTransitionTime": "2026-01-01T00:00:01Z"}]}}`
)

// check is a Job smoke-1, of run 1, in the world's namespace.
func (w *world) check() applier.CheckJob {
	w.t.Helper()
	return applier.CheckJob{
		Want: w.want("v1.0.0"), Name: "smoke-1", Run: "1", Fleet: w.component,
		Job: &batchv1.Job{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "a", Image: "a"}},
		}}}},
	}
}

// become does the part of the controller of Jobs.
func (w *world) become(name, status string) {
	w.t.Helper()
	if _, err := w.resource(jobs).Patch(w.t.Context(), name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		w.t.Fatal(err)
	}
}

// TestCheckJob: the Job of a check is created once, found again by whoever looks, by its
// name and by its label, and deleted by its run. To its component it is a stranger's: a
// plan that removes all of it has nothing to do with it.
func TestCheckJob(t *testing.T) {
	w := newWorld(t)
	const config = `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: NS}, data: {a: b}}`
	w.apply(w.want("v1.0.0", config, strings.Replace(config, "name: a", "name: b", 1)))
	check := w.check()
	live, err := w.cluster.BeginCheck(t.Context(), check, false)
	if err != nil {
		t.Fatal(err)
	}
	made := &unstructured.Unstructured{Object: live}
	if l := made.GetLabels(); l[v1alpha1.LabelCheck] != w.component || l[v1alpha1.LabelComponent] != "" || made.GetNamespace() != w.ns {
		t.Errorf("it is %v", made.Object["metadata"])
	}
	w.reconnect()
	for _, begun := range []bool{false, true} {
		again, err := w.cluster.BeginCheck(t.Context(), check, begun)
		if err != nil || (&unstructured.Unstructured{Object: again}).GetUID() != made.GetUID() {
			t.Errorf("begun again: %v, %v", again, err)
		}
	}
	for i := range w.plan(w.want("v2.0.0", config)).Plan.Changes {
		if c := &w.plan(w.want("v2.0.0", config)).Plan.Changes[i]; c.ID.Kind == "Job" {
			t.Errorf("a plan has it: %+v", c)
		}
	}
	record, err := w.cluster.Record(t.Context(), w.component)
	if err != nil || len(record.Objects) != 2 {
		t.Errorf("the record has %+v, %v", record.Objects, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.cluster.AwaitCheck(t.Context(), check, live) }()
	w.become("smoke-1", jobPassed)
	if err := <-ended; err != nil {
		t.Errorf("it passed: %v", err)
	}
	found, err := w.cluster.Checks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	is := applier.FoundCheck{Component: w.component, Fleet: w.component, Run: "1", Namespace: w.ns, Name: "smoke-1"}
	ours := 0
	for _, one := range found { // others run their tests
		if one == is {
			ours++
		}
	}
	if ours != 1 {
		t.Errorf("found %v; want %v", found, is)
	}
	another := is
	another.Run = "2"
	for _, of := range []applier.FoundCheck{another, is, is} {
		if err := w.cluster.EndCheck(t.Context(), check.Want, of); err != nil {
			t.Errorf("end %v: %v", of, err)
		}
		if _, err := w.resource(jobs).Get(t.Context(), "smoke-1", metav1.GetOptions{}); (err == nil) != (of == another) {
			t.Errorf("after the end of %v: %v", of, err)
		}
	}
}

// TestCheckJobFails: a failure that no retry can repair is distinguished from one that may pass.
func TestCheckJobFails(t *testing.T) {
	w := newWorld(t)
	rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{{
		Name: "no-jobs", Match: v1alpha1.ObjectMatch{Kinds: []string{"Job"}}, Path: ".spec", Effect: v1alpha1.EffectDeny, Because: "none here",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		why    string
		change func(*applier.CheckJob)
		begun  bool
		fails  bool // for certain
		want   string
	}{
		{"The namespace may still come, with this component or another one.", func(*applier.CheckJob) {}, false, false, "namespace checkjobfails does not exist"},
		{"A danger rule will deny the Job on every try.", func(c *applier.CheckJob) { c.Want.Rules = rules }, false, true, "is denied: none here (rule no-jobs)"},
		{"The API server refuses a Job that the registry accepted.", func(c *applier.CheckJob) { c.Job.Spec.Template.Spec.Containers[0].Image = "" }, false, true, "the API server refuses it: "},
		{"The Job was deleted, so its result is unknown.", func(*applier.CheckJob) {}, true, true, "it was deleted before it was seen to come to its end"},
		{"A Job of another check with the same name is not used.", func(c *applier.CheckJob) { c.Name = "strange" }, false, true, "is not of this check"},
		{"Without the account's rights, Keelson does not create the Job with its own.", func(c *applier.CheckJob) { c.Want.ServiceAccount = "deployer" }, false, false, "service account checkjobfails/deployer may not patch or create jobs.batch"},
	}
	for i, c := range cases {
		if i == 1 {
			w.apply(w.want("v1.0.0", `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: NS}}`))
			stranger := w.check()
			stranger.Name, stranger.Run = "strange", "another"
			if _, err := w.cluster.BeginCheck(t.Context(), stranger, false); err != nil {
				t.Fatal(err)
			}
		}
		job := w.check()
		c.change(&job)
		_, err := w.cluster.BeginCheck(t.Context(), job, c.begun)
		if failed := errors.As(err, new(*applier.CheckError)); err == nil || failed != c.fails || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s It is %v; want one that says %q, for certain: %v", c.why, err, c.want, c.fails)
		}
	}
	job := w.check()
	live, err := w.cluster.BeginCheck(t.Context(), job, false)
	if err != nil {
		t.Fatal(err)
	}
	w.become(job.Name, jobFailed)
	err = w.cluster.AwaitCheck(t.Context(), job, live)
	if !errors.As(err, new(*applier.CheckError)) || !strings.Contains(err.Error(), "BackoffLimitExceeded: too often") {
		t.Errorf("it failed: %v", err)
	}
}
