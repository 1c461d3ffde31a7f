package shard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// callGap is the shortest time between two calls that are written into the Lease. The receivers of
// a call do not fetch more often either.
const callGap = time.Second

// topicOf returns a hash of a topic, because the URL of a repository may contain a login.
func topicOf(topic string) string {
	sum := sha256.Sum256([]byte(topic))
	return hex.EncodeToString(sum[:8])
}

// Call tells the other members of the group to read the shared source: a webhook reaches one
// replica only. Call does not block. The call is written into the Lease, which the other members
// already watch. Calls within one second are combined.
func (m *Member) Call() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.calling {
		m.calling = true
		signal(m.wake)
	}
}

// Called returns a channel that receives after another member called.
func (m *Member) Called() <-chan struct{} { return m.called }

// onLease handles a change of another replica's Lease; nil: the Lease does not exist. A call in a new
// Lease counts as new: at worst it causes an extra fetch.
func (m *Member) onLease(before, now *coordinationv1.Lease) {
	if now != nil && now.Labels[v1alpha1.LabelShare] == m.group {
		topic, _, _ := strings.Cut(now.Annotations[v1alpha1.AnnotationFetch], "@")
		if topic == m.topic && (before == nil || before.Annotations[v1alpha1.AnnotationFetch] != now.Annotations[v1alpha1.AnnotationFetch]) {
			signal(m.called)
		}
	}
	if before == nil || now == nil || before.Annotations[v1alpha1.AnnotationClusters] != now.Annotations[v1alpha1.AnnotationClusters] {
		signal(m.wake)
	}
}

// callLocked reports whether to write a call now, and sets its text. If callGap has not passed, it
// wakes the member later.
func (m *Member) callLocked(ctx context.Context) bool {
	if !m.calling {
		return false
	}
	if m.stats.Replicas < 2 { // there is no receiver
		m.calling = false
		return false
	}
	now := m.now()
	if wait := callGap - now.Sub(m.calledAt); !m.calledAt.IsZero() && wait > 0 {
		time.AfterFunc(wait, func() {
			if ctx.Err() == nil {
				signal(m.wake)
			}
		})
		return false
	}
	m.calling, m.calledAt = false, now
	m.call = m.topic + "@" + now.UTC().Format(time.RFC3339Nano)
	return true
}
