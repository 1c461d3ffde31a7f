package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

const (
	// replicas is the number of replicas, which share shardClusters clusters with two
	// components each.
	replicas      = 3
	shardClusters = 6
	// earlyStep is the highest number of the write at which a replica is struck. It is
	// low because a replica with few clusters may make few writes.
	earlyStep = 8
	// takeOverLimit is how long a takeover may take after a replica's end: the duration
	// of the replica's Lease and 2 s.
	takeOverLimit = leaseDuration + 2*time.Second
)

// shardRounds is a controllerSet with the counts of its rounds.
type shardRounds struct {
	controllerSet
	killed, stopped, idle int
	moved                 int // clusters that were taken over
	took                  []time.Duration
}

// shardNames returns the names of the scenario's clusters. The first is the world's own.
func shardNames() []string {
	names := []string{target}
	for i := range shardClusters - 1 {
		names = append(names, fmt.Sprintf("%s-%d", target, i+2))
	}
	return names
}

// sharesServer permits clusters with several names on the world's only API server, as an
// administrator may (docs/decisions/056).
func (w *world) sharesServer(ctx context.Context) {
	d := w.dynamic()
	namespace := object("{apiVersion: v1, kind: Namespace, metadata: {name: " + systemNS + "}}")
	secret := object("{apiVersion: v1, kind: Secret, metadata: {name: " + maskKey + `}, stringData: {key: a key of this run that is long enough, cluster: "*"}}`)
	must.Get(d.Resource(harness.Resource("v1/namespaces")).Create(ctx, namespace, metav1.CreateOptions{}))
	must.Get(d.Resource(harness.Resource("v1/secrets")).Namespace(systemNS).Create(ctx, secret, metav1.CreateOptions{}))
}

// runShard kills one of three replicas, or stops it until its Lease has expired and then
// resumes it. Most strikes happen in the middle of an apply.
func runShard(ctx context.Context, w *world, r *result) {
	r.did, r.must = "replicas killed, or stopped past their Lease and then resumed", w.Shards
	w.sharesServer(ctx)
	g := w.newFixtureFleet(ctx, "shard", 2*shardClusters, fixtureTemplate, shardNames()...)
	s := &shardRounds{controllerSet: controllerSet{fixtureFleet: g}}
	if s.rounds(ctx, r, replicas, s.round); len(r.violations) == 0 {
		s.judge(r)
	}
}

// judge judges the audit log and adds notes to the result.
func (s *shardRounds) judge(r *result) {
	verdict, judged := s.controllerSet.judge(r)
	if s.moved < r.number {
		r.violate("%d clusters changed hands in %d rounds: nothing was tested", s.moved, r.number)
	}
	slices.Sort(s.took)
	r.notes = append(r.notes,
		fmt.Sprintf("%d SIGKILLs and %d SIGSTOPs, %d of them between applies; %d clusters were taken over, after %s to %s (median %s; the Lease lasts %s)",
			s.killed, s.stopped, s.idle, s.moved, s.took[0].Round(10*time.Millisecond), s.took[len(s.took)-1].Round(10*time.Millisecond),
			s.took[len(s.took)/2].Round(10*time.Millisecond), leaseDuration),
		fmt.Sprintf("%d writes judged, none but by the one replica whose Lease listed the cluster; %d components changed writers, %d writes of deposed ones were refused, %d accepted",
			judged, verdict.takeOvers, verdict.refused, len(verdict.violations)))
}

// round strikes a replica that has clusters. It returns the time from the strike until the
// fleet matched git again.
func (s *shardRounds) round(ctx context.Context) time.Duration {
	holders := s.settled(ctx)
	victim, clusters := s.draw(holders)
	kill := s.killed <= s.stopped // kills and stops alternate
	t := &writeTrap{left: 1 + s.rand.IntN(earlyStep), strike: victim.freeze, hold: !kill && s.rand.IntN(2) == 0}
	if kill {
		// The proxy calls strike, and can't wait for the end of the process.
		t.strike = victim.killNow
	}
	moved, took := s.strikeAndRecover(ctx, strike{
		victim: victim, clusters: clusters, trap: t,
		struck: func(ctx context.Context) { s.struck(ctx, t, victim) },
		end:    func(ctx context.Context) { s.end(ctx, victim, kill) },
	})
	if moved > takeOverLimit {
		must.Failf("%s of %s were taken over after %s, and not within %s", strings.Join(clusters, ", "), victim.agent, moved, takeOverLimit)
	}
	if kill {
		s.killed++
	} else {
		s.stopped++
	}
	s.moved += len(clusters)
	s.took = append(s.took, moved)
	return took
}

// draw chooses a random replica that has clusters, and returns the replica and its
// clusters.
func (s *shardRounds) draw(holders map[string]*writer) (*writer, []string) {
	busy := slices.DeleteFunc(slices.Clone(s.writers), func(wr *writer) bool { return len(clustersWith(holders, wr)) == 0 })
	victim := busy[s.rand.IntN(len(busy))]
	return victim, clustersWith(holders, victim)
}

// struck waits until the trap has struck. After 10 s without enough writes, it strikes
// the replica between two applies.
func (s *shardRounds) struck(ctx context.Context, t *writeTrap, victim *writer) {
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	select {
	case <-t.sprung:
		must.Do(t.err)
		return
	case <-ctx.Done():
		must.Do(ctx.Err())
	case <-timer.C:
	}
	victim.mu.Lock()
	defer victim.mu.Unlock()
	if t.left <= 0 {
		must.Do(t.err)
		return // the trap has struck meanwhile
	}
	victim.trap = nil
	s.idle++
	must.Do(t.strike())
}

// end replaces the struck replica. A stopped replica is resumed before, and has to end by
// itself.
func (s *shardRounds) end(ctx context.Context, victim *writer, killed bool) {
	if !killed {
		s.resumeAndReplace(ctx, victim)
		return
	}
	if _, err := victim.wait(ctx); !errors.Is(err, process.ErrSignaled) {
		must.Failf("%s was killed, and ended otherwise: %w (its log: %s)", victim.agent, err, victim.Log)
	}
	s.drop(victim)
}
