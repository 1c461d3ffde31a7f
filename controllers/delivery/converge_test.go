package delivery_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/delivery"
	"github.com/keelson-io/keelson/registry"
)

// TestConvergence: from the moment that git was seen to want something new until the
// cluster has it. Each event comes a second after the one before.
func TestConvergence(t *testing.T) {
	t.Parallel()
	type event struct {
		git    bool // a commit that says something of the component
		status v1alpha1.DeliveryStatus
		recall bool // it is what the hub shows as the process starts
	}
	commit := event{git: true}
	look := func(sync v1alpha1.Sync, health v1alpha1.Health, target string) event {
		return event{status: v1alpha1.DeliveryStatus{Component: "web", Sync: sync, Health: health, TargetHash: target}}
	}
	recall := func(target string) event {
		return event{recall: true, status: v1alpha1.DeliveryStatus{Component: "web", TargetHash: target}}
	}
	const (
		synced, progressing, held, paused = v1alpha1.SyncSynced, v1alpha1.SyncProgressing, v1alpha1.SyncHeld, v1alpha1.SyncPaused
		failed, absent, orphaned          = v1alpha1.SyncFailed, v1alpha1.SyncAbsent, v1alpha1.SyncOrphaned
		healthy, starting, unknown        = v1alpha1.HealthHealthy, v1alpha1.HealthProgressing, v1alpha1.HealthUnknown
	)
	cases := map[string]struct {
		why             string
		events          []event
		synced, healthy []time.Duration
		running         int
	}{
		"First": {
			why:    "It was wanted since the process saw it.",
			events: []event{commit, look(progressing, unknown, ""), look(synced, starting, "a"), look(synced, healthy, "a")},
			synced: []time.Duration{2 * time.Second}, healthy: []time.Duration{3 * time.Second},
		},
		"Restart": {
			why:    "A process that starts, and finds all as git wants it, has delivered nothing.",
			events: []event{recall("a"), commit, look(synced, healthy, "a")},
		},
		"Behind": {
			why:    "What was pushed while no process was there is delivered late.",
			events: []event{recall("a"), commit, look(progressing, healthy, "b"), look(synced, healthy, "b")},
			synced: []time.Duration{2 * time.Second}, healthy: []time.Duration{2 * time.Second},
		},
		"Comment": {
			why:    "A commit that changes no object takes no time.",
			events: []event{recall("a"), commit, look(synced, healthy, "a"), commit, look(synced, healthy, "a")},
		},
		"Drift": {
			why:    "Drift is not news of git.",
			events: []event{recall("a"), commit, look(synced, healthy, "a"), look(progressing, starting, "a"), look(synced, healthy, "a")},
		},
		"Overtaken": {
			why:    "Commits that come faster than they are delivered must not hide that.",
			events: []event{commit, look(progressing, unknown, "a"), commit, look(progressing, unknown, "b"), look(synced, healthy, "b")},
			synced: []time.Duration{4 * time.Second}, healthy: []time.Duration{4 * time.Second},
		},
		"Failing": {
			why:    "The API server's trouble is time that passes.",
			events: []event{commit, look(failed, unknown, "a"), look(failed, unknown, "a"), look(synced, healthy, "a")},
			synced: []time.Duration{3 * time.Second}, healthy: []time.Duration{3 * time.Second},
		},
		"Approved": {
			why:    "How long a person takes is not Keelson's time.",
			events: []event{commit, look(held, healthy, "a"), look(held, healthy, "a"), commit, look(synced, healthy, "a")},
			synced: []time.Duration{time.Second}, healthy: []time.Duration{time.Second},
		},
		"Resumed": {
			why:    "Nor is it while they paused it.",
			events: []event{commit, look(paused, healthy, "a"), commit, look(synced, healthy, "a")},
			synced: []time.Duration{time.Second}, healthy: []time.Duration{time.Second},
		},
		"NeverHealthy": {
			why:    "The next commit is measured anew: this one was in sync, and nothing came of it.",
			events: []event{commit, look(synced, starting, "a"), commit, look(synced, starting, "b"), look(synced, healthy, "b")},
			synced: []time.Duration{time.Second, time.Second}, healthy: []time.Duration{2 * time.Second},
		},
		"Pin": {
			why:    "A rollback is no commit: its time begins with the look that finds it.",
			events: []event{recall("a"), commit, look(synced, healthy, "a"), look(progressing, healthy, "b"), look(synced, healthy, "b")},
			synced: []time.Duration{2 * time.Second}, healthy: []time.Duration{2 * time.Second},
		},
		"Absent": {
			why:    "What git wants gone has arrived when it is gone.",
			events: []event{recall("a"), commit, look(synced, healthy, "a"), commit, look(progressing, healthy, "a"), look(absent, unknown, "a"), look(absent, unknown, "a")},
			synced: []time.Duration{2 * time.Second}, healthy: []time.Duration{2 * time.Second},
		},
		"Orphaned": {
			why:    "Nothing is wanted of what git no longer has.",
			events: []event{commit, look(orphaned, unknown, "")},
		},
		"OnItsWay": {
			why:     "A clock runs on.",
			events:  []event{commit, look(progressing, unknown, "a")},
			running: 1,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var clocks delivery.Clocks
			var inSync, wellThen []time.Duration
			now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			for _, e := range c.events {
				switch {
				case e.git:
					clocks.See(&registry.Cluster{Deliveries: []*registry.Delivery{{Component: "web"}}}, now)
				case e.recall:
					clocks.Recall(e.status)
				default:
					if synced, healthy := clocks.Look(e.status, now.Add(-time.Second), now); synced > 0 || healthy > 0 {
						if synced > 0 {
							inSync = append(inSync, synced)
						}
						if healthy > 0 {
							wellThen = append(wellThen, healthy)
						}
					}
				}
				now = now.Add(time.Second)
			}
			if diff := cmp.Diff(c.synced, inSync); diff != "" {
				t.Errorf("%s: synced (-want +got):\n%s", c.why, diff)
			}
			if diff := cmp.Diff(c.healthy, wellThen); diff != "" {
				t.Errorf("%s: healthy (-want +got):\n%s", c.why, diff)
			}
			if clocks.Running() != c.running {
				t.Errorf("%s: %d clocks run on, and not %d", c.why, clocks.Running(), c.running)
			}
		})
	}
}
