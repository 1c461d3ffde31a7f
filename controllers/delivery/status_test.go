package delivery_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/controllers/delivery"
	"github.com/keelson-io/keelson/differ"
)

// TestNext says what becomes of a status. Each case begins where a synced and
// healthy delivery of revision r1 stands, an hour ago.
func TestNext(t *testing.T) {
	t.Parallel()
	web := differ.ID{Group: "apps", Kind: "Deployment", Namespace: "prod", Name: "web"}
	healthy := []health.Result{{ID: web, Health: v1alpha1.HealthHealthy}}
	progressing := []health.Result{{ID: web, Health: v1alpha1.HealthProgressing, Message: "1 of 2 ready"}}
	waiting := []health.Result{{ID: web, Health: v1alpha1.HealthProgressing, Message: "batch 1/2", Waits: true}}
	start := time.Unix(1_000_000, 0)
	synced := delivery.Attempt{Sync: v1alpha1.SyncSynced, Target: "t1", Revision: "r1", Planned: true, Health: healthy}
	before := delivery.Next(v1alpha1.DeliveryStatus{Cluster: "c", Component: "web"}, synced, start)

	cases := map[string]struct {
		why            string
		attempts       []delivery.Attempt
		apart          time.Duration // between two attempts
		wantSync       v1alpha1.Sync
		wantHealth     v1alpha1.Health
		wantMessage    string
		wantRevision   string
		wantConditions []string // the true ones
	}{
		"Nothing": {
			why:      "A pass that finds nothing leaves the status as it was, or it would be written for ever.",
			attempts: []delivery.Attempt{synced}, wantSync: v1alpha1.SyncSynced, wantHealth: v1alpha1.HealthHealthy,
			wantRevision: "r1", wantConditions: []string{"Ready"},
		},
		"CommitThatChangesNothing": {
			why:      "A commit that does not change the target must not cost a write a delivery.",
			attempts: []delivery.Attempt{{Sync: v1alpha1.SyncSynced, Target: "t1", Revision: "r2", Planned: true, Health: healthy}},
			wantSync: v1alpha1.SyncSynced, wantHealth: v1alpha1.HealthHealthy, wantRevision: "r1", wantConditions: []string{"Ready"},
		},
		"NewTarget": {
			why:      "The revision is the one that was last acted on; a rollout makes it unready.",
			attempts: []delivery.Attempt{{Sync: v1alpha1.SyncSynced, Target: "t2", Revision: "r2", Planned: true, Health: progressing, Created: 1}},
			wantSync: v1alpha1.SyncSynced, wantHealth: v1alpha1.HealthProgressing, wantRevision: "r2",
			wantMessage: "Deployment.apps prod/web: 1 of 2 ready", wantConditions: []string{"Reconciling"},
		},
		"TooLong": {
			why: "What does not become healthy within the component's timeout needs a person.",
			attempts: []delivery.Attempt{
				{Sync: v1alpha1.SyncSynced, Target: "t2", Revision: "r2", Planned: true, Health: progressing},
				{Sync: v1alpha1.SyncSynced, Target: "t2", Revision: "r2", Planned: true, Health: progressing},
			},
			apart: 2 * time.Minute, wantSync: v1alpha1.SyncSynced, wantHealth: v1alpha1.HealthDegraded, wantRevision: "r2",
			wantMessage: "not healthy after 1m0s: Deployment.apps prod/web: 1 of 2 ready", wantConditions: []string{"Stalled"},
		},
		"Waits": {
			why: "What waits for a release or an interval, as git wants it, is not late.",
			attempts: []delivery.Attempt{
				{Sync: v1alpha1.SyncSynced, Target: "t2", Revision: "r2", Planned: true, Health: waiting},
				{Sync: v1alpha1.SyncSynced, Target: "t2", Revision: "r2", Planned: true, Health: waiting},
			},
			apart: 2 * time.Minute, wantSync: v1alpha1.SyncSynced, wantHealth: v1alpha1.HealthProgressing, wantRevision: "r2",
			wantMessage: "Deployment.apps prod/web: batch 1/2", wantConditions: []string{"Reconciling"},
		},
		"GoesOn": {
			why: "When it goes on, its time to become healthy starts anew.",
			attempts: []delivery.Attempt{
				{Sync: v1alpha1.SyncSynced, Target: "t2", Revision: "r2", Planned: true, Health: waiting},
				{Sync: v1alpha1.SyncSynced, Target: "t2", Revision: "r2", Planned: true, Health: waiting},
				{Sync: v1alpha1.SyncSynced, Target: "t2", Revision: "r2", Planned: true, Health: progressing},
			},
			apart: 2 * time.Minute, wantSync: v1alpha1.SyncSynced, wantHealth: v1alpha1.HealthProgressing, wantRevision: "r2",
			wantMessage: "Deployment.apps prod/web: 1 of 2 ready", wantConditions: []string{"Reconciling"},
		},
		"WaitsAndFails": {
			why: "Another object of the component is late all the same.",
			attempts: []delivery.Attempt{
				{Sync: v1alpha1.SyncSynced, Target: "t2", Revision: "r2", Planned: true, Health: slices.Concat(waiting, progressing)},
				{Sync: v1alpha1.SyncSynced, Target: "t2", Revision: "r2", Planned: true, Health: slices.Concat(waiting, progressing)},
			},
			apart: 2 * time.Minute, wantSync: v1alpha1.SyncSynced, wantHealth: v1alpha1.HealthDegraded, wantRevision: "r2",
			wantMessage: "not healthy after 1m0s: Deployment.apps prod/web: batch 1/2", wantConditions: []string{"Stalled"},
		},
		"Blocked": {
			why:      "A mistake in git says nothing about the health of what runs: it stays known.",
			attempts: []delivery.Attempt{{Sync: v1alpha1.SyncBlocked, Message: "x.yaml:1: no", Revision: "r2"}},
			wantSync: v1alpha1.SyncBlocked, wantHealth: v1alpha1.HealthHealthy, wantRevision: "r1",
			wantMessage: "x.yaml:1: no", wantConditions: []string{"Stalled"},
		},
		"Unreachable": {
			why:      "What can't be asked is not healthy, and not unhealthy.",
			attempts: []delivery.Attempt{{Sync: v1alpha1.SyncUnreachable, Message: "refused"}},
			wantSync: v1alpha1.SyncUnreachable, wantHealth: v1alpha1.HealthUnknown, wantRevision: "r1",
			wantMessage: "refused", wantConditions: []string{"Reconciling"},
		},
		"Back": {
			why:      "After an outage the status is what it was before.",
			attempts: []delivery.Attempt{{Sync: v1alpha1.SyncUnreachable, Message: "refused"}, synced},
			wantSync: v1alpha1.SyncSynced, wantHealth: v1alpha1.HealthHealthy, wantRevision: "r1", wantConditions: []string{"Ready"},
		},
		"Held": {
			why: "A held object is never ready, however healthy what runs is.",
			attempts: []delivery.Attempt{{
				Sync: v1alpha1.SyncHeld, Message: "held", Target: "t2", Revision: "r2", Planned: true, Health: healthy,
				Plan: differ.Plan{Changes: []differ.Change{{ID: web, Op: differ.OpNone, State: differ.StateHeld, Fields: []differ.Field{
					{Path: ".spec.selector", Action: differ.ActionHold, Rule: "workload-selector", Because: "immutable"},
				}}}},
			}},
			wantSync: v1alpha1.SyncHeld, wantHealth: v1alpha1.HealthHealthy, wantRevision: "r2",
			wantMessage: "held", wantConditions: []string{"Stalled"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, now := before, start.Add(time.Hour)
			for _, a := range c.attempts {
				status = delivery.Next(status, a, now)
				now = now.Add(c.apart)
			}
			if status.Sync != c.wantSync || status.Health != c.wantHealth || status.Message != c.wantMessage || status.Revision != c.wantRevision {
				t.Errorf("%s\ngot %s, %s, %q at %s", c.why, status.Sync, status.Health, status.Message, status.Revision)
			}
			var conditions []string
			for _, kind := range []string{"Ready", "Reconciling", "Stalled"} {
				if meta.IsStatusConditionTrue(status.Conditions, kind) {
					conditions = append(conditions, kind)
				}
			}
			if diff := cmp.Diff(c.wantConditions, conditions); diff != "" {
				t.Errorf("%s\nconditions (-want +got):\n%s", c.why, diff)
			}
			if name == "Nothing" || name == "CommitThatChangesNothing" {
				if diff := cmp.Diff(before, status); diff != "" {
					t.Errorf("%s\n%s", c.why, diff)
				}
			}
			if name == "Held" && len(status.Held) != 1 {
				t.Errorf("held changes are %v", status.Held)
			}
		})
	}
}

// TestTell says which statuses wait for others before they are written.
func TestTell(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why    string
		states []v1alpha1.Sync
		want   []delivery.Told
	}{
		"Alone": {
			why:    "No other component queues: the status is written as soon as the following changes are collected.",
			states: []v1alpha1.Sync{v1alpha1.SyncSynced},
			want:   []delivery.Told{{Sync: v1alpha1.SyncSynced}},
		},
		"Many": {
			why:    "A good status waits while other components queue.",
			states: []v1alpha1.Sync{v1alpha1.SyncProgressing, v1alpha1.SyncSynced, v1alpha1.SyncSynced},
			want: []delivery.Told{
				{Sync: v1alpha1.SyncProgressing, Patient: true}, {Sync: v1alpha1.SyncSynced, Patient: true}, {Sync: v1alpha1.SyncSynced},
			},
		},
		"Trouble": {
			why:    "A person may be needed: a bad status is written without waiting for other components.",
			states: []v1alpha1.Sync{v1alpha1.SyncHeld, v1alpha1.SyncFailed},
			want:   []delivery.Told{{Sync: v1alpha1.SyncHeld}, {Sync: v1alpha1.SyncFailed}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, delivery.Tell(c.states...)); diff != "" {
				t.Errorf("statuses, -want +got:\n%s\n%s", diff, c.why)
			}
		})
	}
}

// The warnings of a change are about what runs: they stay as long as its target, whatever else
// is written, and go with the next target. A status lists 32 at most.
func TestNextWarnings(t *testing.T) {
	t.Parallel()
	web := differ.ID{Kind: "Service", Namespace: "prod", Name: "web"}
	warned := func(n int) differ.Plan {
		c := differ.Change{ID: web, Op: differ.OpUpdate, State: differ.StateChanged}
		for range n {
			c.Warnings = append(c.Warnings, differ.Warning{Rule: "service-exposed", Because: "it opens", Fix: "close it", Paths: []string{".spec.type", ".spec.ports"}})
		}
		return differ.Plan{Changes: []differ.Change{c}}
	}
	attempt := func(target string, plan differ.Plan, updated int) delivery.Attempt {
		return delivery.Attempt{Sync: v1alpha1.SyncSynced, Target: target, Revision: "r", Planned: true, Plan: plan, Created: updated}
	}
	now := time.Unix(1_000_000, 0)
	status := delivery.Next(v1alpha1.DeliveryStatus{Cluster: "c", Component: "web"}, attempt("t1", warned(1), 1), now)
	want := []v1alpha1.ChangeWarning{{Object: "Service prod/web", Path: ".spec.type", Rule: "service-exposed", Because: "it opens", Fix: "close it"}}
	if diff := cmp.Diff(want, status.Warnings); diff != "" {
		t.Errorf("after the change (-want +got):\n%s", diff)
	}
	settled := delivery.Next(status, attempt("t1", differ.Plan{}, 0), now)
	if diff := cmp.Diff(want, settled.Warnings); diff != "" {
		t.Errorf("once it is settled (-want +got):\n%s", diff)
	}
	unreachable := delivery.Next(settled, delivery.Attempt{Sync: v1alpha1.SyncUnreachable}, now)
	if diff := cmp.Diff(want, unreachable.Warnings); diff != "" {
		t.Errorf("while the cluster can't be reached (-want +got):\n%s", diff)
	}
	if got := delivery.Next(settled, attempt("t2", differ.Plan{}, 0), now).Warnings; len(got) != 0 {
		t.Errorf("after another target: %v", got)
	}
	if diff := cmp.Diff(want, delivery.Next(settled, attempt("t1", differ.Plan{}, 1), now).Warnings); diff != "" {
		t.Errorf("after the pass that deletes what left git (-want +got):\n%s", diff)
	}
	other := differ.Plan{Changes: []differ.Change{{ID: web, Warnings: []differ.Warning{{Rule: "other", Because: "it closes"}}}}}
	both := append([]v1alpha1.ChangeWarning{{Object: "Service prod/web", Rule: "other", Because: "it closes"}}, want...)
	if diff := cmp.Diff(both, delivery.Next(settled, attempt("t1", other, 1), now).Warnings); diff != "" {
		t.Errorf("after another pass that is warned of (-want +got):\n%s", diff)
	}
	if got := delivery.Next(settled, attempt("t2", warned(100), 1), now).Warnings; len(got) != 32 {
		t.Errorf("%d warnings of 100 are listed, want 32", len(got))
	}
}
