package podclient

import (
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// eachUpTo is how many pods of one look get an event each. Of more there is one for
// all: an event is a write, and nobody reads a thousand.
const eachUpTo = 10

// Told are the pods of one look that the same is to be said of. It is safe for
// concurrent use.
type Told struct {
	mu   sync.Mutex
	pods []*corev1.Pod
}

// Add adds a pod.
func (t *Told) Add(pod *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pods = append(t.pods, pod)
}

// Tell tells of the workload what has happened to its pods; %s in the text is the pod,
// or how many pods.
func (t *Told) Tell(recorder events.EventRecorder, of runtime.Object, reason, action, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pods) <= eachUpTo {
		for _, p := range t.pods {
			recorder.Eventf(of, p, corev1.EventTypeNormal, reason, action, text, "pod "+p.Name)
		}
		return
	}
	var first []string
	for _, p := range t.pods[:eachUpTo] {
		first = append(first, p.Name)
	}
	recorder.Eventf(of, nil, corev1.EventTypeNormal, reason, action, text, fmt.Sprintf("%d pods (%s, …)", len(t.pods), strings.Join(first, ", ")))
}
