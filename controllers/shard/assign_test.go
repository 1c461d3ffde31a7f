package shard_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/controllers/shard"
)

func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%03d", prefix, i)
	}
	return out
}

// holders is the replica of each cluster.
func holders(t rapid.TB, of map[string][]string) map[string]string {
	out := map[string]string{}
	for replica, clusters := range of {
		for _, c := range clusters {
			if before, ok := out[c]; ok {
				t.Fatalf("%s has two replicas, %s and %s", c, before, replica)
			}
			out[c] = replica
		}
	}
	return out
}

// Every cluster has one replica, and no replica more than five quarters of its
// share.
func TestAssignIsWholeAndBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.StringMatching(`[a-z]{4}`).Draw(t, "names")
		replicas := names("r"+seed, rapid.IntRange(1, 12).Draw(t, "replicas"))
		clusters := names("c"+seed, rapid.IntRange(0, 400).Draw(t, "clusters"))
		got := shard.Assign(replicas, clusters)
		if n := len(holders(t, got)); n != len(clusters) {
			t.Fatalf("%d of %d clusters have a replica", n, len(clusters))
		}
		bound := shard.Bound(len(clusters), len(replicas))
		for r, mine := range got {
			if len(mine) > bound {
				t.Fatalf("%s has %d clusters, more than %d", r, len(mine), bound)
			}
		}
		slices.Reverse(replicas)
		slices.Reverse(clusters)
		if diff := cmp.Diff(got, shard.Assign(append(replicas, replicas[0]), append(clusters, clusters...))); diff != "" {
			t.Fatalf("the order matters, or names that come twice:\n%s", diff)
		}
	})
}

// moves counts what changes hands when a replica joins (or, read backwards,
// leaves): all of it, and what moves between replicas that stay.
func moves(t rapid.TB, replicas []string, joins string, clusters []string) (all, aside int) {
	before := holders(t, shard.Assign(replicas, clusters))
	after := holders(t, shard.Assign(append(slices.Clone(replicas), joins), clusters))
	for c, was := range before {
		if is := after[c]; is != was {
			all++
			if is != joins {
				aside++
			}
		}
	}
	return all, aside
}

// smallShare is one of which a cluster more or less is a large part.
const smallShare = 8

// A replica that joins or leaves moves at most its bounded share, and beside
// that next to nothing: what had to go elsewhere when a replica was full.
func TestAssignMovesOneShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.StringMatching(`[a-z]{4}`).Draw(t, "names")
		replicas := names("r"+seed, rapid.IntRange(1, 12).Draw(t, "replicas"))
		clusters := names("c"+seed, rapid.IntRange(0, 400).Draw(t, "clusters"))
		all, aside := moves(t, replicas, "joins", clusters)
		share := shard.Bound(len(clusters), len(replicas)+1)
		few := 3 + len(clusters)/30
		if share <= smallShare {
			few += len(replicas) // with one less that each may have, each may have to give one away
		}
		if all-aside > share || aside > few {
			t.Fatalf("%d replicas, %d clusters: %d moved to the new one, at most %d should; %d moved elsewhere, at most %d should",
				len(replicas), len(clusters), all-aside, share, aside, few)
		}
	})
}

// The figures of the decision page.
func TestAssignFigures(t *testing.T) {
	t.Parallel()
	const tries = 200
	for _, replicas := range []int{1, 2, 3, 5, 10} {
		all, aside, worst, most := 0, 0, 0, 0
		clusters := names("prod-eu", 300)
		for try := range tries {
			r := names(fmt.Sprint("keelson-", try), replicas)
			moved, elsewhere := moves(t, r, "joins", clusters)
			all, aside, worst = all+moved, aside+elsewhere, max(worst, elsewhere)
			for _, mine := range shard.Assign(r, clusters) {
				most = max(most, len(mine))
			}
		}
		if share := 300 / float64(replicas+1); float64(aside)/tries > 1 || float64(all)/tries > 1.25*share {
			t.Errorf("%d replicas: %.1f move, of them %.1f between others", replicas, float64(all)/tries, float64(aside)/tries)
		}
		t.Logf("300 clusters, %d replicas and one more: %.1f move (a share is %.1f), %.1f of them between others, worst %d; the fullest has %d of at most %d",
			replicas, float64(all)/tries, 300/float64(replicas+1), float64(aside)/tries, worst, most, shard.Bound(300, replicas))
	}
}

// TestAssignIsAProtocol holds the scores: replicas of two versions of Keelson have to
// agree while one replaces the other.
func TestAssignIsAProtocol(t *testing.T) {
	t.Parallel()
	got := shard.Assign([]string{"a", "b", "c"}, names("cluster", 8))
	want := map[string][]string{
		"a": {"cluster-001", "cluster-002", "cluster-003"},
		"b": {"cluster-004", "cluster-005", "cluster-006"},
		"c": {"cluster-000", "cluster-007"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("replicas of the version before compute another assignment:\n%s", diff)
	}
	if got := slices.Collect(maps.Keys(shard.Assign(nil, names("cluster", 8)))); len(got) != 0 {
		t.Errorf("without replicas: %v", got)
	}
}
