package delivery

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// announce writes an event when the state of a delivery changed, or when drift was undone.
func (w *writer) announce(d *v1alpha1.Delivery, before v1alpha1.DeliveryStatus) {
	s := d.Status
	if diff := s.LastDiff; diff != nil && diff.Restored > 0 && (before.LastDiff == nil || !before.LastDiff.Time.Equal(&diff.Time)) {
		w.events.Eventf(d, corev1.EventTypeNormal, "DriftRestored", "drifted objects that match git again: %d", diff.Restored)
	}
	if before.Sync == s.Sync || before.Sync == "" && s.Sync == v1alpha1.SyncSynced {
		return // a Delivery that starts as Synced needs no event
	}
	kind := corev1.EventTypeNormal
	switch s.Sync {
	case v1alpha1.SyncHeld, v1alpha1.SyncDenied, v1alpha1.SyncFailed, v1alpha1.SyncBlocked, v1alpha1.SyncUnreachable:
		kind = corev1.EventTypeWarning
	case v1alpha1.SyncSynced, v1alpha1.SyncProgressing, v1alpha1.SyncWaiting, v1alpha1.SyncPaused, v1alpha1.SyncOrphaned,
		v1alpha1.SyncAbsent:
	}
	text := s.Component + " " + s.Version
	if s.Message != "" {
		text += ": " + s.Message
	}
	w.events.Event(d, kind, string(s.Sync), text)
}

// repository writes an event when the fleet repository becomes unreadable or readable.
func (w *writer) repository(err error) {
	if err != nil {
		w.writeEvent(corev1.EventTypeWarning, "RepositoryUnreadable", "every cluster stays as it is: "+err.Error())
		return
	}
	w.writeEvent(corev1.EventTypeNormal, "RepositoryReadable", "the fleet repository can be read again")
}

// Forge writes an event when the forge of the pull requests becomes unreachable (err) or reachable
// again (nil).
func (c *Controller) Forge(err error) {
	if err != nil {
		c.writer.writeEvent(corev1.EventTypeWarning, "ForgeUnreachable", "pull requests keep the previews that they have: "+err.Error())
		return
	}
	c.writer.writeEvent(corev1.EventTypeNormal, "ForgeReachable", "pull requests get previews again")
}

// writeEvent writes an event about Keelson's own namespace, if the writer to the hub runs.
func (w *writer) writeEvent(kind, reason, text string) {
	w.mu.Lock()
	events := w.events
	w.mu.Unlock()
	if events != nil {
		about := &corev1.ObjectReference{Kind: "Namespace", APIVersion: "v1", Name: v1alpha1.Namespace}
		events.Event(about, kind, reason, w.redactor.Text(text))
	}
}
