package delivery_test

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/rollout"
)

var jobs = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}

const (
	// smoke is the file of a Job that says where it runs.
	smoke = `apiVersion: batch/v1
kind: Job
metadata: {labels: {says: $(stage)-$(component)}}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: smoke, image: smoke, args: [$(cluster)]}]}}}
`
	jobPassed = `{"status": {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:01Z", "succeeded": 1, "conditions": [
		{"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
		{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}]}}`
	jobFailed = `{"status": {"startTime": "2026-01-01T00:00:00Z", "failed": 1, "conditions": [
		{"type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often", "lastTransitionTime": "2026-01-01T00:00:01Z"},
		{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often", "lastTransitionTime": "2026-01-01T00:00:01Z"}]}}`
)

// smokes has the canary stage run smoke, before or after it, from now on.
func (tr *train) smokes(when string) {
	tr.t.Helper()
	tr.write("checks/smoke.yaml", smoke)
	tr.write("pipelines/standard.yaml", strings.Replace(standard, "bake: 1h}", when+": [{name: smoke, job: {template: checks/smoke.yaml}}]}", 1))
	tr.commit("smoke")
}

// jobsOn are the Jobs that a cluster has.
func (tr *train) jobsOn(cluster string) []unstructured.Unstructured {
	tr.t.Helper()
	list, err := tr.api[cluster].Resource(jobs).Namespace(tr.name).List(tr.t.Context(), metav1.ListOptions{})
	if err != nil {
		tr.t.Fatal(err)
	}
	return list.Items
}

// job waits for the one Job that canary has.
func (tr *train) job() unstructured.Unstructured {
	tr.t.Helper()
	canary := tr.names()[1]
	tr.eventually("canary runs a Job", func() bool { return len(tr.jobsOn(canary)) > 0 })
	is := tr.jobsOn(canary)
	if len(is) != 1 {
		tr.t.Fatalf("canary has %d Jobs", len(is))
	}
	return is[0]
}

// ends does the part of the controller of Jobs.
func (tr *train) ends(job unstructured.Unstructured, status string) {
	tr.t.Helper()
	if _, err := tr.api[tr.names()[1]].Resource(jobs).Namespace(tr.name).Patch(tr.t.Context(), job.GetName(), types.MergePatchType,
		[]byte(status), metav1.PatchOptions{}, "status"); err != nil {
		tr.t.Fatal(err)
	}
}

// noJobs waits until no cluster has any, and none tells of one.
func (tr *train) noJobs() {
	tr.t.Helper()
	tr.eventually("the Jobs are deleted", func() bool {
		left := 0
		for _, name := range tr.names() {
			left += len(tr.jobsOn(name)) + len(tr.delivery(name).Checks)
		}
		return left == 0
	})
}

// created counts the Jobs that are created on canary from now on.
func (tr *train) created() func() int {
	tr.t.Helper()
	api := tr.api[tr.names()[1]].Resource(jobs).Namespace(tr.name)
	list, err := api.List(tr.t.Context(), metav1.ListOptions{})
	if err != nil {
		tr.t.Fatal(err)
	}
	watched := apiservertest.Watch(tr.t, list.GetResourceVersion(), func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return api.Watch(ctx, o)
	})
	tr.t.Cleanup(watched.Stop)
	return func() int {
		seen := map[types.UID]bool{}
		for {
			select {
			case e := <-watched.ResultChan():
				if u, ok := e.Object.(*unstructured.Unstructured); ok {
					seen[u.GetUID()] = true
				}
			case <-time.After(time.Second):
				return len(seen)
			}
		}
	}
}

// resume has a person say that the rollout goes on.
func (tr *train) resume() {
	tr.t.Helper()
	tr.eventually("it is resumed", func() bool {
		var r v1alpha1.Rollout
		err := tr.hub.Get(tr.t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: tr.name + "-web"}, &r)
		if err == nil {
			r.Status, err = rollout.Resume(r.Status, rollout.Command{By: "ada", Because: "again", At: tr.now()})
		}
		return err == nil && tr.hub.Status().Update(tr.t.Context(), &r) == nil
	})
}

// A Job runs on the clusters of its stage, in the component's namespace, when they have the change.
// The next stage waits for it. It runs once, also when the controller restarts, or when it ends
// while no controller runs. It is deleted when its outcome is recorded.
func TestRolloutJob(t *testing.T) {
	tr := newTrain(t)
	tr.begin()
	tr.smokes("after")
	created := tr.created()
	tr.release("v1.1.0", "bye")
	job := tr.job()
	if got := tr.texts(); got != "bye bye hello hello" {
		t.Errorf("when it runs the clusters have %s", got)
	}
	component := tr.name + "-web"
	args, _, _ := unstructured.NestedSlice(job.Object, "spec", "template", "spec", "containers")
	if job.GetLabels()["says"] != "canary-"+component || len(args) != 1 || args[0].(map[string]any)["args"].([]any)[0] != tr.names()[1] {
		t.Errorf("its placeholders became %v, %v", job.GetLabels(), args)
	}
	if l := job.GetLabels(); l[v1alpha1.LabelCheck] != component || l[v1alpha1.LabelComponent] != "" {
		t.Errorf("its labels are %v", l)
	}
	canary, first := tr.names()[1], tr.names()[2]
	tr.eventually("it is told what is waited for", func() bool {
		checks := tr.delivery(canary).Checks
		why := ""
		for _, c := range tr.rollout().Clusters {
			if c.Name == first {
				why = c.Because
			}
		}
		return len(checks) == 1 && checks[0].State == v1alpha1.CheckRunning && checks[0].Job == tr.name+"/"+job.GetName() &&
			why == "stage canary comes first: check smoke has not passed: its Job runs on "+canary
	})
	tr.stops()
	tr.stops = tr.start(tr.connect)
	tr.eventually("the next one knows it", func() bool { return strings.Contains(tr.log.String(), "state=Running") })
	tr.stops()
	tr.ends(job, jobPassed)
	tr.stops = tr.start(tr.connect)
	tr.have("bye bye bye bye")
	tr.phase(v1alpha1.RolloutComplete, "")
	tr.noJobs()
	tr.atRest()
	if n := created(); n != 1 {
		t.Errorf("%d Jobs were created", n)
	}
}

// A Job that fails stops the stage with its reason, and no later cluster is released. When a person
// resumes the rollout, a new Job runs. A Job that no rollout needs any more is deleted, also one
// that an earlier process left.
func TestRolloutJobFails(t *testing.T) {
	tr := newTrain(t)
	tr.begin()
	tr.smokes("before")
	tr.release("v1.1.0", "bye")
	job := tr.job()
	tr.ends(job, jobFailed)
	tr.phase(v1alpha1.RolloutPaused, "stage canary: check smoke failed: "+tr.names()[1]+": Job "+tr.name+"/"+job.GetName()+": ")
	if because := tr.rollout().Because; !strings.Contains(because, "BackoffLimitExceeded: too often") {
		t.Errorf("it is paused because %s", because)
	}
	tr.noJobs()
	if got := tr.texts(); got != "bye hello hello hello" {
		t.Errorf("the clusters have %s", got)
	}
	tr.resume()
	again := tr.job()
	if again.GetName() == job.GetName() {
		t.Error("it is the same one")
	}
	tr.stops() // and no rollout needs the Job when the next controller starts
	if _, err := tr.api[tr.names()[1]].Resource(jobs).Namespace(tr.name).Patch(t.Context(), again.GetName(), types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"keelson.io/check-run":"forgotten"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	tr.want("v1.0.0")
	tr.stops = tr.start(tr.connect)
	tr.have("hello hello hello hello")
	tr.noJobs()
}

// A cluster that git pauses takes no part: its Job is deleted, and the rollout does not wait for
// the Job.
func TestRolloutJobPaused(t *testing.T) {
	tr := newTrain(t)
	tr.begin()
	tr.smokes("before")
	tr.release("v1.1.0", "bye")
	tr.job()
	canary := tr.names()[1]
	tr.write("clusters/"+canary+"/cluster.yaml", head+"Cluster\nlabels: {stage: canary, rank: \"1\"}\nconnection: {context: "+canary+"}\npaused: true\n")
	tr.commit("pause canary")
	tr.have("bye hello bye bye")
	tr.noJobs()
}
