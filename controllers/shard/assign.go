package shard

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// slack bounds the clusters of a replica: slack for each four of its even share.
const slack = 5

// Bound returns the most clusters that [Assign] gives one replica: five quarters of the even share,
// rounded up; 0 without replicas.
func Bound(clusters, replicas int) int {
	if replicas == 0 {
		return 0
	}
	return (clusters*slack + 4*replicas - 1) / (4 * replicas)
}

// Assign returns the clusters of each replica, sorted. Every cluster has one replica, and no
// replica has more than [Bound]. A replica that comes or goes moves little more than its own share.
//
// It is rendezvous hashing with bounded loads: each pair of cluster and replica has a score. Pairs
// are chosen in the order of falling scores while replicas have room. The order of the arguments
// does not matter, and duplicates count once.
//
// All replicas must compute the same result, also during an update of Keelson: the scores are part
// of the protocol. The time is n log n in the number of pairs.
func Assign(replicas, clusters []string) map[string][]string {
	replicas = slices.Compact(slices.Sorted(slices.Values(replicas)))
	clusters = slices.Compact(slices.Sorted(slices.Values(clusters)))
	pairs := make([]pair, 0, len(replicas)*len(clusters))
	for r, replica := range replicas {
		for c, cluster := range clusters {
			pairs = append(pairs, pair{score: score(replica, cluster), replica: r, cluster: c})
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.replica, b.replica))
	})
	out := make(map[string][]string, len(replicas))
	taken := make([]bool, len(clusters))
	bound := Bound(len(clusters), len(replicas))
	for _, p := range pairs {
		if name := replicas[p.replica]; !taken[p.cluster] && len(out[name]) < bound {
			taken[p.cluster] = true
			out[name] = append(out[name], clusters[p.cluster])
		}
	}
	for _, mine := range out {
		slices.Sort(mine)
	}
	return out
}

type pair struct {
	score            uint64
	replica, cluster int
}

// score returns the first 64 bits of the SHA-256 of replica, a zero byte and cluster.
func score(replica, cluster string) uint64 {
	sum := sha256.Sum256([]byte(replica + "\x00" + cluster))
	return binary.BigEndian.Uint64(sum[:])
}
