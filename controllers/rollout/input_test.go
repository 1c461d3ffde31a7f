package rollout

import (
	"strings"
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// TestKnown: what a Delivery says about a cluster, and when it says nothing. A status for an older
// state of git does not count.
func TestKnown(t *testing.T) {
	t.Parallel()
	current := &v1alpha1.WantedDelivery{TargetHash: "new", Inputs: "in"}
	stale := &v1alpha1.WantedDelivery{TargetHash: "new", Inputs: "before"}
	healthy := v1alpha1.HealthHealthy
	cases := map[string]struct {
		why    string
		paused bool
		seen   *observation // nil: no Delivery
		want   string       // hash; empty: not known
		fact   Fact
		says   string // why it is not known
	}{
		"NoDelivery": {why: "Without a Delivery the state is unknown.", says: "it has no Delivery yet"},
		"Waits": {
			"The cluster is healthy with the former version.", false, &observation{wanted: current, hash: "old", sync: v1alpha1.SyncWaiting, health: healthy},
			"new",
			Fact{Hash: "old", Healthy: true},
			"",
		},
		"NotThere": {
			"A cluster without the component yet does not count as unavailable.", false, &observation{wanted: current, sync: v1alpha1.SyncWaiting, health: v1alpha1.HealthUnknown},
			"new",
			Fact{Healthy: true},
			"",
		},
		"Removed in part": {
			"A removal that was stopped has no target, and objects of the former version may be gone.", false,
			&observation{wanted: current, applied: "v1", sync: v1alpha1.SyncWaiting, health: healthy}, "new",
			Fact{},
			"",
		},
		"There": {
			"The cluster is in sync with git.", false, &observation{wanted: current, hash: "new", sync: v1alpha1.SyncSynced, health: healthy},
			"new",
			Fact{Hash: "new", Healthy: true},
			"",
		},
		"OnItsWay": {
			"Some objects are not applied yet.", false, &observation{wanted: current, hash: "new", sync: v1alpha1.SyncProgressing, health: healthy}, "new", Fact{Hash: "new"}, "",
		},
		"WaitsForAnother": {
			"The released cluster waits for a dependency: it does not have the change.", false,
			&observation{wanted: current, hash: "new", sync: v1alpha1.SyncWaiting, health: healthy}, "new",
			Fact{Hash: "new"},
			"",
		},
		"Degraded": {
			"A degraded component has failed: it does not recover by itself.", false,
			&observation{wanted: current, hash: "new", sync: v1alpha1.SyncSynced, health: v1alpha1.HealthDegraded, message: "its pods crash"},
			"new",
			Fact{Hash: "new", Failed: "its pods crash"},
			"",
		},
		"Denied": {
			"A change that a rule forbids has failed.", false,
			&observation{wanted: current, hash: "new", sync: v1alpha1.SyncDenied, health: healthy, message: "no"}, "new",
			Fact{Hash: "new", Failed: "no"},
			"",
		},
		"Stale": {
			"The status is of an older revision, so it does not count.", false, &observation{wanted: stale, hash: "new", sync: v1alpha1.SyncSynced, health: healthy},
			"",
			Fact{Hash: "new", Healthy: true},
			"the controller has not computed its target",
		},
		"StalePin": {
			"The pin may end with this revision.", false,
			&observation{wanted: stale, hash: "old", sync: v1alpha1.SyncSynced, health: healthy, pinned: "pinned to delivery 3"},
			"",
			Fact{Hash: "old", Healthy: true},
			"the controller has not computed its target",
		},
		"Pinned": {
			"It takes no part.", false, &observation{wanted: current, hash: "old", sync: v1alpha1.SyncSynced, health: healthy, pinned: "pinned to delivery 3"},
			"new",
			Fact{Hash: "old", Healthy: true, Exempt: "pinned to delivery 3"},
			"",
		},
		"Unreachable": {
			"What it said last is no longer known.", false,
			&observation{wanted: current, hash: "old", sync: v1alpha1.SyncUnreachable, health: v1alpha1.HealthUnknown, message: "connection refused"},
			"",
			Fact{Hash: "old"},
			"connection refused",
		},
		"Broken": {
			"It can't render what git says now, and says why.", false,
			&observation{wanted: stale, hash: "old", sync: v1alpha1.SyncBlocked, health: healthy, message: "web.yaml:3: no such value"},
			"",
			Fact{Hash: "old", Failed: "web.yaml:3: no such value"},
			"web.yaml:3: no such value",
		},
		"Paused": {
			"Git's word, so it needs no Delivery.", true, nil, "", Fact{Exempt: "paused in git"}, "it has no Delivery yet",
		},
		"Absent": {
			"Gone is healthy.", false,
			&observation{wanted: &v1alpha1.WantedDelivery{TargetHash: v1alpha1.HashAbsent, Inputs: "in"}, hash: v1alpha1.HashAbsent, sync: v1alpha1.SyncAbsent},
			v1alpha1.HashAbsent,
			Fact{Hash: v1alpha1.HashAbsent, Healthy: true},
			"",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := knownOf(&registry.Cluster{}, &registry.Delivery{Paused: c.paused}, "in", c.seen)
			if k.want != c.want || k.fact != c.fact || !strings.Contains(k.why, c.says) || c.want != "" && k.why != "" {
				t.Errorf("%s It is %+v", c.why, k)
			}
		})
	}
}
