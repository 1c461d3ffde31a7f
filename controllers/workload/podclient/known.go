package podclient

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// Known are the pods, or the claims, of the workloads of one kind as the informer showed
// them last, and which of them changed since somebody asked. A list of the informer's
// own copies each object; this one has pointers to them, which nobody may change. It is
// filled by the events that [Heard] tells expectations of, so what was seen is known. It
// is safe for concurrent use.
type Known[T client.Object] struct {
	kind string

	mu   sync.Mutex
	have map[key]*have[T]
}

// key is a workload's. An object of another namespace may say that it belongs to it, and
// doesn't.
type key struct {
	namespace string
	uid       types.UID
}

// have is what a workload has. It is dropped with the last object, so that nothing stays
// of workloads that were.
type have[T client.Object] struct {
	all     map[types.UID]T
	changed map[types.UID]struct{} // came, changed or went, since somebody asked
}

// NewKnown knows of no objects of a kind of apps.kruise.io.
func NewKnown[T client.Object](kind string) *Known[T] {
	return &Known[T]{kind: kind, have: map[key]*have[T]{}}
}

// Mark is how far somebody knows what a workload has. The zero Mark knows nothing.
type Mark[T client.Object] struct{ have *have[T] }

// Changes are what befell the objects of a workload since a [Mark].
type Changes[T client.Object] struct {
	// Anew: whatever was known is void, and these are all that there are.
	Anew bool
	// Are came or changed, in no order.
	Are []T
	// Gone are those that went; some may have come and gone meanwhile.
	Gone []types.UID
}

// Since returns what befell the objects of a workload since a mark, and moves that. A
// workload has one mark: what one has been told of isn't told again.
func (k *Known[T]) Since(mark *Mark[T], owner metav1.Object) Changes[T] {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.have[key{owner.GetNamespace(), owner.GetUID()}]
	if h == nil {
		mark.have = nil
		return Changes[T]{Anew: true}
	}
	if mark.have != h {
		mark.have = h
		clear(h.changed)
		return Changes[T]{Anew: true, Are: h.list()}
	}
	var c Changes[T]
	for uid := range h.changed {
		if o, is := h.all[uid]; is {
			c.Are = append(c.Are, o)
		} else {
			c.Gone = append(c.Gone, uid)
		}
	}
	clear(h.changed)
	return c
}

func (h *have[T]) list() []T {
	out := make([]T, 0, len(h.all))
	for _, o := range h.all {
		out = append(out, o)
	}
	return out
}

// saw takes in an object that came or changed.
func (k *Known[T]) saw(owner types.UID, o T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := key{o.GetNamespace(), owner}
	h := k.have[of]
	if h == nil {
		h = &have[T]{map[types.UID]T{}, map[types.UID]struct{}{}}
		k.have[of] = h
	}
	h.all[o.GetUID()] = o
	h.changed[o.GetUID()] = struct{}{}
}

// lost takes in that an object has gone.
func (k *Known[T]) lost(owner types.UID, o T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := key{o.GetNamespace(), owner}
	h := k.have[of]
	if h == nil {
		return
	}
	delete(h.all, o.GetUID())
	h.changed[o.GetUID()] = struct{}{}
	if len(h.all) == 0 {
		delete(k.have, of)
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
