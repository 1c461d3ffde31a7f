package podclient

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// OwnedIndex holds the pods, or the claims, of the workloads of one kind as the informer last showed
// them. It also holds which objects changed since the last call of Since. A list of the informer
// copies each object; OwnedIndex has pointers, whose objects must not be changed. [NewEventHandler] fills it
// before it updates expectations, so a seen write is in it. It is safe for concurrent use.
type OwnedIndex[T client.Object] struct {
	kind string

	mu   sync.Mutex
	have map[key]*ownedObjects[T]
}

// key identifies a workload. The namespace is part of it because an object of another namespace
// can name the workload as its owner, without belonging to it.
type key struct {
	namespace string
	uid       types.UID
}

// ownedObjects holds the objects of a workload. It is deleted with its last object, so that nothing
// remains of deleted workloads.
type ownedObjects[T client.Object] struct {
	all     map[types.UID]T
	changed map[types.UID]struct{} // added, changed or deleted since the last call of Since
}

// NewOwnedIndex returns an empty OwnedIndex of a kind of apps.kruise.io.
func NewOwnedIndex[T client.Object](kind string) *OwnedIndex[T] {
	return &OwnedIndex[T]{kind: kind, have: map[key]*ownedObjects[T]{}}
}

// Mark is the position of a reader in the changes of a workload. After the zero Mark, Since
// returns all objects.
type Mark[T client.Object] struct{ have *ownedObjects[T] }

// Changes are the changes of the objects of a workload since a [Mark].
type Changes[T client.Object] struct {
	// Anew: discard all earlier objects; Are holds all objects that exist.
	Anew bool
	// Are are the added or changed objects, in no order.
	Are []T
	// Gone are the UIDs of deleted objects, including objects that existed only briefly.
	Gone []types.UID
}

// Since returns the changes of the objects of a workload since a mark, and moves the mark. A
// workload must have only one mark, because each change is returned once.
func (k *OwnedIndex[T]) Since(mark *Mark[T], owner metav1.Object) Changes[T] {
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

func (h *ownedObjects[T]) list() []T {
	out := make([]T, 0, len(h.all))
	for _, o := range h.all {
		out = append(out, o)
	}
	return out
}

// onSeen records an added or changed object.
func (k *OwnedIndex[T]) onSeen(owner types.UID, o T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := key{o.GetNamespace(), owner}
	h := k.have[of]
	if h == nil {
		h = &ownedObjects[T]{map[types.UID]T{}, map[types.UID]struct{}{}}
		k.have[of] = h
	}
	h.all[o.GetUID()] = o
	h.changed[o.GetUID()] = struct{}{}
}

// onDeleted records a deleted object.
func (k *OwnedIndex[T]) onDeleted(owner types.UID, o T) {
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

// ownerOf returns the controller of an object if it has the kind and the group apps.kruise.io,
// otherwise nil. Workloads of Kubernetes have the same kinds in another group.
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
