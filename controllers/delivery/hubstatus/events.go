package hubstatus

import (
	"cmp"
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Events writes events to the hub, from the start of its [Writer] on. It is safe for concurrent use.
type Events struct {
	core     typedcorev1.CoreV1Interface
	scheme   *runtime.Scheme
	redactor *redact.Redactor

	mu       sync.Mutex
	recorder record.EventRecorder // nil: not started
}

// start writes the events that are recorded from now on, until stop is called.
func (e *Events) start(ctx context.Context) (stop func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: e.core.Events("")})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recorder = broadcaster.NewRecorder(e.scheme, corev1.EventSource{Component: v1alpha1.FieldManager})
	return broadcaster.Shutdown
}

// Recorder returns the recorder of events; nil: the writer does not run yet.
func (e *Events) Recorder() record.EventRecorder {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.recorder
}

// stateChanged writes an event when the state of a delivery changed, or when drift was undone.
func (e *Events) stateChanged(d *v1alpha1.Delivery, before v1alpha1.DeliveryStatus) {
	s, recorder := d.Status, e.Recorder()
	if diff := s.LastDiff; diff != nil && diff.Restored > 0 && (before.LastDiff == nil || !before.LastDiff.Time.Equal(&diff.Time)) {
		recorder.Eventf(d, corev1.EventTypeNormal, "DriftRestored", "drifted objects that match git again: %d", diff.Restored)
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
	recorder.Event(d, kind, string(s.Sync), text)
}

// Repository writes an event when the fleet repository becomes unreadable or readable.
func (e *Events) Repository(err error) {
	if err != nil {
		e.Record(corev1.EventTypeWarning, "RepositoryUnreadable", "every cluster stays as it is: "+err.Error())
		return
	}
	e.Record(corev1.EventTypeNormal, "RepositoryReadable", "the fleet repository can be read again")
}

// Record writes an event about Keelson's own namespace, if the writer to the hub runs.
func (e *Events) Record(kind, reason, text string) {
	if recorder := e.Recorder(); recorder != nil {
		recorder.Event(aboutKeelson(), kind, reason, e.redactor.Text(text))
	}
}

// Credentials writes an event when the credentials of a connection can't be renewed, or can be
// renewed again (text is empty).
func (e *Events) Credentials(cluster, text string) {
	recorder := e.Recorder()
	if recorder == nil {
		return
	}
	kind, reason := corev1.EventTypeWarning, "CredentialsUnusable"
	if text == "" {
		kind, reason = corev1.EventTypeNormal, "CredentialsUsable"
	}
	recorder.Eventf(aboutKeelson(), kind, reason, "cluster %s: %s", cluster, e.redactor.Text(cmp.Or(text, "its credentials can be used again")))
}

// aboutKeelson refers to Keelson's own namespace.
func aboutKeelson() *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Namespace", APIVersion: "v1", Name: v1alpha1.Namespace}
}
