package cmd_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// createRollout writes one that is in its canary, as a controller would.
func createRollout(t *testing.T, hub client.Client, component string) {
	t.Helper()
	r := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: component}}
	if err := hub.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	at := func(minutes int) time.Time { return statusTime().Add(time.Duration(minutes-60) * time.Minute) }
	second := func(minutes int) *metav1.Time { return &metav1.Time{Time: at(minutes)} }
	micro := func(minutes int) *metav1.MicroTime { return &metav1.MicroTime{Time: at(minutes)} }
	r.Status = v1alpha1.RolloutStatus{
		Component: component, Pipeline: "standard", Change: "203c1434945bb65c8a1f21de12d456ab", Revision: "0123456789abcdef0123", From: "v1.11.0", To: "v1.12.0",
		Phase: v1alpha1.RolloutProgressing, Stage: "canary", Progress: "1/3", Begun: second(0),
		Stages: []v1alpha1.RolloutStage{
			{Name: "testing", Evidence: "aa", Opened: second(0), Passed: second(2), Checks: []v1alpha1.RolloutCheck{{Name: "smoke", After: true, Asked: *second(1), Passed: second(2)}}},
			{Name: "canary", Evidence: "bb", Opened: second(2), Checks: []v1alpha1.RolloutCheck{{
				Name: "smoke", After: true, Asked: *second(3), Message: "its Job runs on canary-01",
				Job: &v1alpha1.RolloutJob{Template: "checks/smoke.yaml", Hash: "dd", Revision: "ee", Run: "ff"},
			}}},
			{Name: "production", Evidence: "cc"},
		},
		Clusters: []v1alpha1.RolloutCluster{
			{Name: "test-01", Stage: "testing", Want: "new", From: "old", Released: micro(0), Settled: micro(1)},
			{Name: "canary-01", Stage: "canary", Want: "new", From: "old", Released: micro(2), Because: "it is on its way"},
			{Name: "prod-01", Stage: "production", Want: "new", Because: "stage canary comes first"},
			{Name: "left-01", Stage: "production", Want: v1alpha1.HashAbsent, From: "old", Released: micro(2), Settled: micro(3)},
		},
		Timeline: []v1alpha1.RolloutEvent{
			{Time: *second(0), Message: "begins: v1.11.0 → v1.12.0"}, {Time: *second(0), Stage: "testing", Cluster: "test-01", Message: "released"},
		},
	}
	if err := hub.Status().Update(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// TestRollout: how far a change is, why a cluster waits, and what a person may say about
// it: with a reason, and not when it makes no sense.
func TestRollout(t *testing.T) {
	c := live(t)
	hub := hubClient(t)
	ensureNamespace(t, c)
	w := world{now: statusTime()}
	run := func(args ...string) result {
		t.Helper()
		return w.run(t, append([]string{"rollout", "--kubeconfig", kubeconfig, "--context", "prod"}, args...)...)
	}
	// Tests share the hub: there may be rollouts of others.
	listed := func() (row []string) {
		t.Helper()
		for line := range strings.Lines(run("list").want(t, 0).out) {
			if cells := strings.Fields(line); cells[0] == "rolling" {
				row = cells
			}
		}
		return row
	}
	if got := listed(); got != nil {
		t.Errorf("before it is there: %q", got)
	}
	run("show", "rolling").want(t, 2).says(t, `the hub has no rollout of "rolling"`)
	createRollout(t, hub, "rolling")
	if diff := cmp.Diff([]string{"rolling", "standard", "v1.11.0", "v1.12.0", "Progressing", "canary", "1/3", "60m"}, listed()); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if got, want := run("show", "rolling").want(t, 0).out, `rolling: v1.11.0 → v1.12.0, pipeline standard, revision 0123456789ab, change 203c1434945bb65c8a1f21de12d456ab
Progressing, 1/3 clusters

STAGE       OPENED                PASSED                HASH  PROMOTED
testing     2026-03-01T11:00:00Z  2026-03-01T11:02:00Z  aa
canary      2026-03-01T11:02:00Z                        bb
production                                              cc

CHECK  STAGE    WHEN   ASKED                 STATE   WHY
smoke  testing  after  2026-03-01T11:01:00Z  passed
smoke  canary   after  2026-03-01T11:03:00Z  waits   its Job runs on canary-01

CLUSTER    STAGE       RELEASED              SETTLED               WHY NOT YET
test-01    testing     2026-03-01T11:00:00Z  2026-03-01T11:01:00Z
canary-01  canary      2026-03-01T11:02:00Z                        it is on its way
prod-01    production                                              stage canary comes first
left-01    production  2026-03-01T11:02:00Z  2026-03-01T11:03:00Z

2026-03-01T11:00:00Z  begins: v1.11.0 → v1.12.0
2026-03-01T11:00:00Z  testing test-01: released
`; got != want {
		t.Errorf("show:\n%s\nwant:\n%s", got, want)
	}
	run("explain", "rolling", "prod-01").want(t, 0).says(t, "prod-01 (stage production) waits: stage canary comes first.\n")
	run("explain", "rolling", "test-01").want(t, 0).says(t, "test-01 has v1.12.0.\n")
	run("explain", "rolling", "left-01").want(t, 0).says(t, "left-01 has rolling no longer, as git says.\n")
	run("explain", "rolling", "elsewhere").want(t, 2).says(t, `the rollout of rolling has no cluster "elsewhere"`)
	var why []struct {
		Cluster, Because string
		Has              bool
	}
	decode(t, run("explain", "rolling", "-o", "json").want(t, 0).out, &why)
	if len(why) != 2 || why[1].Cluster != "prod-01" || why[1].Has {
		t.Errorf("explain: %+v", why)
	}

	t.Log("a person has a say")
	run("pause", "rolling").want(t, 2).says(t, "give --reason")
	run("promote", "rolling", "--reason", "CVE-1").want(t, 2).says(t, "give --now")
	run("promote", "rolling", "--now", "--stage", "nowhere", "--reason", "CVE-1").want(t, 2).says(t, `it has no stage "nowhere"`)
	run("promote", "rolling", "--now", "--reason", "CVE-1").want(t, 0).says(t, "the rollout of rolling to v1.12.0 is promoted\n")
	run("pause", "rolling", "--reason", "odd\nlatency").want(t, 0)
	run("pause", "rolling", "--reason", "again").want(t, 2).says(t, "it is paused by ")
	run("show", "rolling").want(t, 0).says(t, "Paused, 1/3 clusters: paused by ", ": odd latency", ": CVE-1", "promoted by ")
	run("resume", "rolling", "--reason", "gone").want(t, 0)
	run("resume", "rolling", "--reason", "gone").want(t, 2).says(t, "it is not paused")
	run("abort", "rolling", "--reason", "wrong flag").want(t, 0)
	var r v1alpha1.Rollout
	decode(t, run("show", "rolling", "-o", "json").want(t, 0).out, &r)
	if r.Status.Phase != v1alpha1.RolloutRollingBack || !r.Status.Clusters[1].Back || r.Status.Clusters[0].Back || r.Kind != "Rollout" {
		t.Errorf("aborted: %+v", r.Status)
	}
	run("list", "--moving", "-o", "json").want(t, 0).says(t, `"RolloutList"`, `"rolling"`)
	run("go").want(t, 2).says(t, `it takes no arguments, and got "go"`)
}
