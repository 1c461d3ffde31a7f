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

// callGap lies at least between two calls that are written into the Lease: whoever
// hears one fetches no more often.
const callGap = time.Second

// topicOf is a hash of a topic: a URL of a repository may hold a login.
func topicOf(topic string) string {
	sum := sha256.Sum256([]byte(topic))
	return hex.EncodeToString(sum[:8])
}

// Call tells the other members of the group that what they share is news: a webhook
// reaches one replica alone. It returns at once; the call is written into the Lease,
// whose watches the others have anyway. Calls of one second are one.
func (m *Member) Call() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.calling {
		m.calling = true
		signal(m.wake)
	}
}

// Called receives when another member called since it was received last.
func (m *Member) Called() <-chan struct{} { return m.called }

// sees takes in the Lease of another replica as it was and is; nil: it is not there.
// Who appears with a call has just made it, or it is as good as a poll.
func (m *Member) sees(before, now *coordinationv1.Lease) {
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

// callLocked says whether a call is to be written now, and makes it what the Lease is
// to say. One that has to wait wakes the member when its time has come.
func (m *Member) callLocked(ctx context.Context) bool {
	if !m.calling {
		return false
	}
	if m.stats.Replicas < 2 { // nobody would hear it
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
