package podclient

import (
	"cmp"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// eachUpTo is the highest number of pods of one reconcile that get one event each. More pods
// share a single event, because each event is a write.
const eachUpTo = 10

// EventBatch collects the pods of one reconcile that share an event. It is safe for concurrent use.
type EventBatch struct {
	// Noun is what a pod is called; "" means pod.
	Noun string

	mu   sync.Mutex
	pods []*corev1.Pod
}

// Add adds a pod.
func (t *EventBatch) Add(pod *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pods = append(t.pods, pod)
}

// Emit records on the workload what happened to its pods. The %s in the text becomes the pod, or
// the number of pods with the first names.
func (t *EventBatch) Emit(recorder events.EventRecorder, of runtime.Object, reason, action, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pods) <= eachUpTo {
		for _, p := range t.pods {
			recorder.Eventf(of, p, corev1.EventTypeNormal, reason, action, text, cmp.Or(t.Noun, "pod")+" "+p.Name)
		}
		return
	}
	var first []string
	for _, p := range t.pods[:eachUpTo] {
		first = append(first, p.Name)
	}
	recorder.Eventf(of, nil, corev1.EventTypeNormal, reason, action, text, fmt.Sprintf("%d pods (%s, …)", len(t.pods), strings.Join(first, ", ")))
}
