// Package shard distributes the clusters of a fleet among the replicas of the controller, so that
// each cluster has one writer.
//
// Each replica has its own Lease ([lease.Lease]), which lists the clusters that the replica may
// write to. From the live Leases every replica computes the same [Assign]ment. The assignment
// decides which replica asks for a cluster, not which replica has it. A replica starts with a
// cluster after two steps. Its own Lease lists the cluster, and a later list of all Leases shows
// the cluster in no other Lease. Of two replicas that ask at the same time, at least one sees the
// other, and gives up. So replicas that disagree, for a moment or for ever, leave a cluster without
// a writer, and never with two.
//
// A cluster is removed from a Lease after its agent has stopped. The first replica that notices an
// expired Lease deletes it, at the version last seen. Until then its clusters belong to its
// replica.
package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/controllers/lease"
)

// The groups of members: the replicas of a hub, and the replicas of a cluster that delivers only to
// itself.
const (
	Fleet  = "fleet"
	Single = "cluster"
)

// The singleton tasks, which one member runs for the group. They are assigned like clusters. No
// cluster can have such a name.
const (
	Rollouts      = "(rollouts)"
	Previews      = "(previews)"
	Notifications = "(notifications)"
)

// SingletonTasks returns the names of all singleton tasks.
func SingletonTasks() []string { return []string{Rollouts, Previews, Notifications} }

// clusterState is the state of a cluster at this replica.
type clusterState uint8

const (
	// asked: the Lease lists the cluster, or is about to.
	asked clusterState = iota + 1
	// held: this replica may work on the cluster, and the caller does not know yet.
	held
	// working: [Member.Granted] has returned the cluster.
	working
	// leaving: the caller is to stop work on the cluster.
	leaving
)

// Options are the settings of a [Member].
type Options struct {
	lease.Options

	// Group of the member; empty: [Fleet]. Members of other groups are not part of this assignment,
	// but no cluster that they list is taken.
	Group string
	// Topic of [Member.Call]: a call reaches the members of the group with the same topic.
	Topic string
}

// Member is one replica. It is safe for concurrent use.
type Member struct {
	group    string
	identity string
	period   time.Duration
	lease    *lease.Lease
	log      *slog.Logger
	now      func() time.Time
	wake     chan struct{} // a step is due
	changed  chan struct{} // the granted clusters changed
	called   chan struct{} // another replica called

	others  *others
	watched coordinationclient.LeaseInterface // a client without a request timeout

	mu       sync.Mutex
	clusters []string                // all clusters to share
	states   map[string]clusterState // of the clusters that concern this replica
	// mine are the clusters assigned to this replica, computed for replicas; nil: not computed.
	mine     map[string]bool
	replicas []string
	had      map[string]string // the last other replica whose Lease listed the cluster
	stats    Stats
	// published are the clusters that the Lease lists with certainty; nil: unknown.
	published []string
	// call is the text of the last call in the Lease, written at calledAt. calling: another call is
	// to be written.
	topic    string
	call     string
	calledAt time.Time
	calling  bool
}

// Stats is what a member knows about its group.
type Stats struct {
	// Clusters is the number of all clusters, and Held the number that this replica has.
	Clusters, Held int
	// Replicas is the number of live replicas, including this one; 0 before it has a Lease.
	Replicas int
	// Handed counts clusters that this replica took after another replica released them. TakenOver
	// counts clusters of replicas whose Leases ran out.
	Handed, TakenOver int
}

// New creates a member without making a call.
func New(o Options) (*Member, error) {
	if o.Group == "" {
		o.Group = Fleet
	}
	o.Labels = map[string]string{v1alpha1.LabelShare: o.Group}
	l, err := lease.New(o.Options)
	if err != nil {
		return nil, err
	}
	watching, err := coordinationclient.NewForConfig(o.Hub)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return &Member{
		group: o.Group, identity: o.Identity, period: o.RetryPeriod, lease: l, log: o.Log, now: o.Now,
		wake: make(chan struct{}, 1), changed: make(chan struct{}, 1), called: make(chan struct{}, 1), topic: topicOf(o.Topic),
		watched: watching.Leases(v1alpha1.Namespace), others: newOthers(l.Name(), o.Now), states: map[string]clusterState{}, had: map[string]string{},
	}, nil
}

// Gate returns the gate that connections to the hub and to clusters must be wrapped with.
func (m *Member) Gate() *lease.Gate { return m.lease.Gate() }

// Holds reports whether this replica certainly holds its Lease now.
func (m *Member) Holds() bool { return m.lease.Holds() }

// Stats returns the current numbers, without singleton tasks.
func (m *Member) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Clusters = 0
	for _, c := range m.clusters {
		if !slices.Contains(SingletonTasks(), c) {
			s.Clusters++
		}
	}
	for c, at := range m.states {
		if at != asked && !slices.Contains(SingletonTasks(), c) {
			s.Held++
		}
	}
	return s
}

// Share sets the names of all clusters. It must be called before [Member.Run], because a replica
// that does not know the clusters cannot compute the assignment.
func (m *Member) Share(clusters []string) {
	m.mu.Lock()
	m.clusters, m.mine = slices.Clone(clusters), nil
	m.mu.Unlock()
	signal(m.wake)
}

// Changed returns a channel that receives after the granted clusters may have changed.
func (m *Member) Changed() <-chan struct{} { return m.changed }

// Granted returns the clusters that the caller must work on. The caller must stop work on clusters
// that are not granted any more. For each cluster that was ever granted, the caller must call
// [Member.Done] after it has stopped.
func (m *Member) Granted() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]bool{}
	for c, at := range m.states {
		if at == held || at == working {
			m.states[c] = working
			out[c] = true
		}
	}
	return out
}

// Done says that the caller has stopped, and writes nothing to the cluster until it is granted
// again.
func (m *Member) Done(cluster string) {
	m.mu.Lock()
	if at := m.states[cluster]; at == working || at == leaving {
		delete(m.states, cluster)
	}
	m.mu.Unlock()
	signal(m.wake)
}

// Confirm asks the hub whether this replica may take over components of a cluster. If its Lease is
// gone or does not list the cluster, the error is [lease.ErrLost] and [records.ErrDeposed]. Any
// other error means that the answer is unknown.
func (m *Member) Confirm(ctx context.Context, cluster string) error {
	l, err := m.lease.Confirm(ctx)
	if err == nil && !slices.Contains(listed(l), cluster) {
		err = fmt.Errorf("%w: %s does not list cluster %s", lease.ErrLost, m.lease, cluster)
	}
	if errors.Is(err, lease.ErrLost) {
		return fmt.Errorf("%w: %w", records.ErrDeposed, err)
	}
	return err
}

// Run makes the Lease, shares clusters, and runs work like [lease.Lease.Run].
func (m *Member) Run(ctx context.Context, work func(context.Context) error) error {
	return m.lease.Run(ctx, func(ctx context.Context) error {
		// Sharing goes on until the work has released its clusters.
		tending, stop := context.WithCancel(context.WithoutCancel(ctx))
		var wg sync.WaitGroup
		wg.Go(func() { m.others.watch(tending, m.watched, m.log, m.onLease) })
		wg.Go(func() { m.tend(tending, ctx.Done()) })
		defer wg.Wait()
		defer stop()
		return work(ctx)
	})
}

// tend runs a step after each change, and at least once per period.
func (m *Member) tend(ctx context.Context, ending <-chan struct{}) {
	ticker := time.NewTicker(m.period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-ticker.C:
		}
		select {
		case <-ending: // clusters released now are freed with the Lease
			continue
		default:
		}
		if err := m.step(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, lease.ErrLost) {
			m.log.Warn("the clusters can't be shared; trying again", "error", err)
		}
	}
}

// signal wakes the receiver of the channel; a pending signal is enough.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
