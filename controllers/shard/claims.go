package shard

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// step updates the assignment once. A failure is retried in the next step.
func (m *Member) step(ctx context.Context) error {
	known, synced := m.others.all()
	if !synced || !m.lease.Holds() {
		return nil // without the list of replicas the free clusters are unknown
	}
	known, err := m.bury(ctx, known)
	if err != nil {
		return err
	}
	m.decide(known)
	if err := m.publish(ctx); err != nil {
		return err
	}
	return m.begin(ctx)
}

// bury deletes the Leases that ran out, at the version last seen, and returns the rest. After a
// conflict the Lease was renewed, or another replica deleted it: the watch will report that.
func (m *Member) bury(ctx context.Context, known []*coordinationv1.Lease) ([]*coordinationv1.Lease, error) {
	var alive []*coordinationv1.Lease
	for _, l := range known {
		if !m.others.ranOut(l) {
			alive = append(alive, l)
			continue
		}
		err := m.lease.Client().Delete(ctx, l.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion},
		})
		switch {
		case err == nil:
			m.log.Warn("the lease of a replica ran out: its clusters are taken over", "identity", holder(l), "clusters", len(listed(l)))
			m.others.buried(l)
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			alive = append(alive, l)
		default:
			return nil, fmt.Errorf("delete the Lease %s, which ran out: %w", l.Name, err)
		}
	}
	return alive, nil
}

// decide compares the assignment of this replica with its clusters.
func (m *Member) decide(known []*coordinationv1.Lease) {
	replicas, theirs := []string{m.identity}, map[string]string{}
	for _, l := range known {
		if l.Labels[v1alpha1.LabelShare] == m.group {
			replicas = append(replicas, holder(l))
		}
		for _, c := range listed(l) {
			theirs[c] = holder(l)
		}
	}
	slices.Sort(replicas)
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.Copy(m.had, theirs)
	m.stats.Replicas = len(replicas)
	if m.mine == nil || !slices.Equal(replicas, m.replicas) {
		m.replicas, m.mine = replicas, map[string]bool{}
		for _, c := range Assign(replicas, m.clusters)[m.identity] {
			m.mine[c] = true
		}
	}
	for c, at := range m.states {
		switch {
		case m.mine[c] || at == leaving:
		case at == working:
			m.states[c] = leaving
			signal(m.changed)
		default:
			delete(m.states, c)
		}
	}
	for c := range m.mine {
		if m.states[c] == 0 && theirs[c] == "" {
			m.states[c] = asked
		}
	}
}

// publish writes the clusters in the states of this replica into its Lease.
func (m *Member) publish(ctx context.Context) error {
	m.mu.Lock()
	want := slices.Sorted(maps.Keys(m.states))
	same := m.published != nil && slices.Equal(m.published, want)
	m.published = nil
	called := m.callLocked(ctx)
	says := map[string]string{v1alpha1.AnnotationClusters: strings.Join(want, ",")}
	if m.call != "" {
		says[v1alpha1.AnnotationFetch] = m.call
	}
	m.mu.Unlock()
	if !same || called {
		if err := m.lease.Renew(ctx, says); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.published = append([]string{}, want...)
	return nil
}

// begin takes the clusters that this Lease lists and no other Lease lists now.
func (m *Member) begin(ctx context.Context) error {
	m.mu.Lock()
	var ask []string
	for _, c := range m.published {
		if m.states[c] == asked {
			ask = append(ask, c)
		}
	}
	m.mu.Unlock()
	if len(ask) == 0 {
		return nil
	}
	// Without a resourceVersion the list comes from etcd, not from a cache.
	list, err := m.lease.Client().List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelShare})
	if err != nil {
		return fmt.Errorf("list the Leases of the other replicas: %w", err)
	}
	theirs := map[string]string{}
	ours := false
	for i := range list.Items {
		l := &list.Items[i]
		if l.Name == m.lease.Name() {
			ours = true
			continue
		}
		for _, c := range listed(l) {
			theirs[c] = holder(l)
		}
	}
	if !ours {
		return nil // the Lease is lost; the next renewal returns the error
	}
	m.markHeld(ask, theirs)
	return nil
}

// markHeld marks the clusters that no other replica lists as held, and gives up the rest.
func (m *Member) markHeld(ask []string, theirs map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var taken, from []string
	for _, c := range ask {
		if who := theirs[c]; who != "" {
			delete(m.states, c)
			m.log.Info("another replica asked for a cluster, too", "cluster", c, "identity", who)
			continue
		}
		m.states[c] = held
		taken = append(taken, c)
		if before, ok := m.had[c]; ok {
			from = append(from, before)
			delete(m.had, c)
			if m.others.died(before) {
				m.stats.TakenOver++
			} else {
				m.stats.Handed++
			}
		}
	}
	if len(taken) == 0 {
		return
	}
	slices.Sort(from)
	m.log.Info("clusters are this replica's now", "clusters", taken, "from", slices.Compact(from), "replicas", m.stats.Replicas)
	signal(m.changed)
}

// listed returns the clusters that a Lease lists.
func listed(l *coordinationv1.Lease) []string {
	text := l.Annotations[v1alpha1.AnnotationClusters]
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

func holder(l *coordinationv1.Lease) string { return ptr.Deref(l.Spec.HolderIdentity, l.Name) }
