package podclient

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// Known are the pods of the workloads of one kind as the informer showed them last. A
// list of the informer's own copies each pod; this one has pointers to them, which
// nobody may change. It is filled by the events that [Heard] tells expectations of, so
// what was seen is known. It is safe for concurrent use.
type Known struct {
	kind string

	mu   sync.Mutex
	pods map[key]map[types.UID]*fact // by owner, by pod
}

// key is a workload's. A pod of another namespace may say that it belongs to it, and
// doesn't.
type key struct {
	namespace string
	uid       types.UID
}

// fact is a pod, and what was found out about it: it holds until the pod changes.
type fact struct {
	pod *corev1.Pod
	// settled: nothing was to be done about it, by the hooks of a generation.
	settled int64
}

// NewKnown knows of no pods of a kind of apps.kruise.io.
func NewKnown(kind string) *Known {
	return &Known{kind: kind, pods: map[key]map[types.UID]*fact{}}
}

// Of returns the pods of a workload, in no order.
func (k *Known) Of(owner metav1.Object) []*corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	pods := k.pods[key{owner.GetNamespace(), owner.GetUID()}]
	out := make([]*corev1.Pod, 0, len(pods))
	for _, f := range pods {
		out = append(out, f.pod)
	}
	return out
}

// saw takes in a pod that came or changed.
func (k *Known) saw(owner types.UID, pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := key{pod.Namespace, owner}
	if k.pods[of] == nil {
		k.pods[of] = map[types.UID]*fact{}
	}
	k.pods[of][pod.UID] = &fact{pod: pod}
}

// lost takes in that a pod has gone.
func (k *Known) lost(owner types.UID, pod metav1.Object) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := key{pod.GetNamespace(), owner}
	delete(k.pods[of], pod.GetUID())
	if len(k.pods[of]) == 0 {
		delete(k.pods, of)
	}
}

// unsettled are the pods but for those about which nothing was to be done as they are,
// by the workload of a generation.
func (k *Known) unsettled(owner types.UID, pods []*corev1.Pod, generation int64) []*corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []*corev1.Pod
	for _, p := range pods {
		if f := k.pods[key{p.Namespace, owner}][p.UID]; f == nil || f.pod != p || f.settled != generation {
			out = append(out, p)
		}
	}
	return out
}

// settle takes in that nothing is to be done about a pod as it is.
func (k *Known) settle(owner types.UID, pod *corev1.Pod, generation int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.pods[key{pod.Namespace, owner}][pod.UID]; f != nil && f.pod == pod {
		f.settled = generation
	}
}

// ownerOf is the workload of apps.kruise.io that an object belongs to. Kubernetes' own
// have the same kinds in another group.
func ownerOf(o metav1.Object, kind string) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil || owner.Kind != kind {
		return nil
	}
	if gv, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || gv.Group != v1beta1.GroupVersion.Group {
		return nil
	}
	return owner
}
