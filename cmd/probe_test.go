package cmd_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const probeFile = `apiVersion: keelson.io/v1alpha1
kind: Probe
clusterSelector: {matchLabels: {stage: nowhere}}
namespace: probes
images: {old: {repository: registry.k8s.io/pause, tag: "3.9"}}
subjects:
- {name: web, deployment: {image: old}}
- {name: backup, custom: {template: manifests/backup.yaml, ready: object.status.phase == "Done"}}
`

// TestValidateProbes: a condition that does not compile, a check that can't pass because
// the probe does not run there, and a probe that runs nowhere are said with their lines.
func TestValidateProbes(t *testing.T) {
	t.Parallel()
	f := staged(t)
	f.write("probes/workloads.yaml", probeFile)
	f.write("manifests/backup.yaml", "apiVersion: backups.example/v1\nkind: Backup\n")
	f.edit("pipelines/standard.yaml", `cel: delivery.health == "Healthy"`, `probe: {name: workloads, runs: 3}`)
	f.commit()
	f.keelson("validate").want(t, 1).says(t, "pipelines/standard.yaml:11:5: probe workloads does not run on all clusters of the stage, so that this check can't pass (on prod) (widen the clusterSelector of probes/workloads.yaml)",
		"warning: probes/workloads.yaml: it is for no cluster", "1 problem")
	f.edit("probes/workloads.yaml", "{matchLabels: {stage: nowhere}}", "{}")
	f.commit()
	f.keelson("validate").want(t, 0).says(t, "no problems")
	f.edit("probes/workloads.yaml", `object.status.phase == "Done"`, `object.status.phase = "Done"`)
	f.commit()
	f.keelson("validate").want(t, 1).says(t, "probes/workloads.yaml:8:67: ready: ", "Syntax error")
}

// TestProbe: what came of probes, and since when; the exit code says whether one passes.
func TestProbe(t *testing.T) {
	c := live(t)
	hub := hubClient(t)
	ensureNamespace(t, c)
	w := world{now: statusTime()}
	run := func(args ...string) result {
		t.Helper()
		return w.run(t, append([]string{"probe", "--kubeconfig", kubeconfig, "--context", "prod"}, args...)...)
	}
	run("list").want(t, 0).says(t, "no results\n")
	run("show", "workloads", "prod-01").want(t, 2).says(t, `the hub has no result of probe "workloads" on cluster "prod-01"`)
	at := func(minutes int) time.Time { return statusTime().Add(time.Duration(minutes-60) * time.Minute) }
	create := func(cluster string, outcome v1alpha1.ProbeOutcome, message string, failed ...string) {
		t.Helper()
		r := &v1alpha1.ProbeResult{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: cluster + ".workloads"}}
		if err := hub.Create(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		r.Status = v1alpha1.ProbeResultStatus{
			Cluster: cluster, Probe: "workloads", Outcome: outcome, Message: message, Since: &metav1.Time{Time: at(30)}, Passed: &metav1.Time{Time: at(31)},
			Runs: []v1alpha1.ProbeRun{{Begun: metav1.NewMicroTime(at(30)), Ended: metav1.NewMicroTime(at(31)), Outcome: outcome, Failed: failed}},
		}
		if err := hub.Status().Update(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	create("prod-01", v1alpha1.ProbePassed, "")
	create("prod-02", v1alpha1.ProbeFailed, "web/upgrade: not in 2m0s: no pod", "web/upgrade")
	if got, want := run("list").want(t, 0).out, `CLUSTER  PROBE      OUTCOME  SINCE  LAST PASSED  MESSAGE
prod-01  workloads  Passed   30m    29m
prod-02  workloads  Failed   30m    29m          web/upgrade: not in 2m0s: no pod
`; got != want {
		t.Errorf("list:\n%s\nwant:\n%s", got, want)
	}
	run("list", "--failing").want(t, 0).says(t, "prod-02").saysNot(t, "prod-01")
	var list v1alpha1.ProbeResultList
	decode(t, run("list", "-o", "json").want(t, 0).out, &list)
	if len(list.Items) != 2 || list.Kind != "ProbeResultList" || list.Items[0].Kind != "ProbeResult" {
		t.Errorf("list: %+v", list)
	}
	run("show", "workloads", "prod-01").want(t, 0).says(t, "workloads on prod-01: Passed since 2026-03-01T11:30:00Z\n")
	if got, want := run("show", "workloads", "prod-02").want(t, 1).out, `workloads on prod-02: Failed since 2026-03-01T11:30:00Z, passed last at 2026-03-01T11:31:00Z
web/upgrade: not in 2m0s: no pod

BEGUN                 TOOK  OUTCOME  FAILED
2026-03-01T11:30:00Z  1m0s  Failed   web/upgrade
`; got != want {
		t.Errorf("show:\n%s\nwant:\n%s", got, want)
	}
	run("show", "workloads").want(t, 2)
	run("go").want(t, 2).says(t, `it takes no arguments, and got "go"`)
}
