// Package shard shares the clusters of a fleet among the replicas of the
// controller, so that each cluster has one writer.
//
// Each replica has a Lease of its own ([lease.Lease]), which lists the clusters
// that it may be writing to. From the Leases that are alive every replica computes
// the same [Assign]ment. It decides who asks for a cluster, and not who has it: a
// replica begins with a cluster when its own Lease lists it, and a list of all
// Leases that was read after that was written shows it in no other. Of two that
// ask at the same time at least one sees the other, and draws back. So replicas
// that disagree, for a moment or for ever, leave a cluster alone, and never share
// it.
//
// A cluster leaves a Lease when its agent has put it down. A Lease that ran out is
// deleted, as it was when it was last seen, by whoever notices first; until it is
// gone its clusters belong to it.
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
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/controllers/lease"
)

// The groups that share: the replicas of a hub, and those of a cluster that
// delivers to itself alone.
const (
	Fleet  = "fleet"
	Single = "cluster"
)

// Duties are shared as if they were clusters: what one member does for all of them. No
// cluster can be called so.
const (
	Rollouts      = "(rollouts)"
	Previews      = "(previews)"
	Notifications = "(notifications)"
)

// Duties are all of them.
func Duties() []string { return []string{Rollouts, Previews, Notifications} }

// stage is how far a cluster is with this replica.
type stage uint8

const (
	// asked: the Lease lists it, or is about to.
	asked stage = iota + 1
	// held: this replica may work on it; nobody was told yet.
	held
	// working: somebody was told, by [Member.Granted].
	working
	// leaving: it is being put down.
	leaving
)

// Options are the settings of a [Member].
type Options struct {
	lease.Options

	// Group that the member belongs to; empty: [Fleet]. What is assigned to members
	// of other groups is not this one's concern, but what they have is theirs.
	Group string
	// Topic is what [Member.Call] calls are about: members of a group with the same
	// topic hear each other's.
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
	wake     chan struct{} // something is to be decided
	changed  chan struct{} // what is granted changed
	called   chan struct{} // another replica calls

	others  *others
	watched coordinationclient.LeaseInterface // whose requests may last

	mu       sync.Mutex
	clusters []string         // that there are
	stages   map[string]stage // of those that this replica has to do with
	// mine are those that are assigned to this replica, of these replicas; nil: to
	// be computed.
	mine     map[string]bool
	replicas []string
	had      map[string]string // who had a cluster last, by another's Lease
	stats    Stats
	// published are the clusters that the Lease lists for sure; nil: not known.
	published []string
	// call is what the Lease says of a call, since calledAt. calling: another is to be
	// written.
	topic    string
	call     string
	calledAt time.Time
	calling  bool
}

// Stats are what a member knows of the group.
type Stats struct {
	// Clusters that there are, and those that this replica works on.
	Clusters, Held int
	// Replicas that live, this one included; 0 before it has a Lease.
	Replicas int
	// Handed counts clusters that another replica let go of and this one took;
	// TakenOver those of replicas whose Leases ran out.
	Handed, TakenOver int
}

// New prepares a member; it makes no call.
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
		watched: watching.Leases(v1alpha1.Namespace), others: newOthers(l.Name(), o.Now), stages: map[string]stage{}, had: map[string]string{},
	}, nil
}

// Gate is what connections to the hub and to clusters are to be wrapped with.
func (m *Member) Gate() *lease.Gate { return m.lease.Gate() }

// Holds says whether this replica surely has its Lease now.
func (m *Member) Holds() bool { return m.lease.Holds() }

// Stats returns what is known now.
func (m *Member) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Clusters = 0
	for _, c := range m.clusters {
		if !slices.Contains(Duties(), c) {
			s.Clusters++
		}
	}
	for c, at := range m.stages {
		if at != asked && !slices.Contains(Duties(), c) {
			s.Held++
		}
	}
	return s
}

// Share says which clusters there are. A replica that was not told has no say in
// the assignment: [Member.Run] may only be called afterwards.
func (m *Member) Share(clusters []string) {
	m.mu.Lock()
	m.clusters, m.mine = slices.Clone(clusters), nil
	m.mu.Unlock()
	signal(m.wake)
}

// Changed receives when what is granted may have changed.
func (m *Member) Changed() <-chan struct{} { return m.changed }

// Granted are the clusters that the caller is to work on. What was granted and is
// not any more it has to put down; of each cluster that it was ever granted it
// has to say [Member.Done] once it does not work on it.
func (m *Member) Granted() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]bool{}
	for c, at := range m.stages {
		if at == held || at == working {
			m.stages[c] = working
			out[c] = true
		}
	}
	return out
}

// Done says that nothing is being written to a cluster, and will be before it is
// granted again.
func (m *Member) Done(cluster string) {
	m.mu.Lock()
	if at := m.stages[cluster]; at == working || at == leaving {
		delete(m.stages, cluster)
	}
	m.mu.Unlock()
	signal(m.wake)
}

// Confirm asks the hub whether this replica may take over components of a
// cluster. The error is [lease.ErrLost] and [applier.ErrDeposed] when its Lease is
// gone or does not list it; any other means that it could not be learned.
func (m *Member) Confirm(ctx context.Context, cluster string) error {
	l, err := m.lease.Confirm(ctx)
	if err == nil && !slices.Contains(listed(l), cluster) {
		err = fmt.Errorf("%w: %s does not list cluster %s", lease.ErrLost, m.lease, cluster)
	}
	if errors.Is(err, lease.ErrLost) {
		return fmt.Errorf("%w: %w", applier.ErrDeposed, err)
	}
	return err
}

// Run makes the Lease, and works as [lease.Lease.Run] does.
func (m *Member) Run(ctx context.Context, work func(context.Context) error) error {
	return m.lease.Run(ctx, func(ctx context.Context) error {
		// Clusters change hands until the work has put them down.
		tending, stop := context.WithCancel(context.WithoutCancel(ctx))
		var wg sync.WaitGroup
		wg.Go(func() { m.others.watch(tending, m.watched, m.log, m.sees) })
		wg.Go(func() { m.tend(tending, ctx.Done()) })
		defer wg.Wait()
		defer stop()
		return work(ctx)
	})
}

// tend decides whenever something changed, and once in a period.
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
		case <-ending: // what is put down now goes with the Lease
			continue
		default:
		}
		if err := m.step(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, lease.ErrLost) {
			m.log.Warn("the clusters can't be shared; trying again", "error", err)
		}
	}
}

// signal wakes who waits on the channel; one signal is enough.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
