package base

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// StateByObject holds a value for each workload, from one reconcile to the next. It is safe for
// concurrent use. A value needs no lock, because a workload is never reconciled twice at once.
type StateByObject[T any] struct {
	mu   sync.Mutex
	made func() *T
	all  map[types.NamespacedName]objectState[T]
}

// objectState is the value of an object with a UID, because a later object can have the same name.
type objectState[T any] struct {
	uid  types.UID
	what *T
}

// NewStateByObject returns an empty StateByObject, which makes the first value of each workload by made.
func NewStateByObject[T any](made func() *T) *StateByObject[T] {
	return &StateByObject[T]{made: made, all: map[types.NamespacedName]objectState[T]{}}
}

// Of returns the value of a workload, or a new value if there is none for its UID.
func (k *StateByObject[T]) Of(o client.Object) *T {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := client.ObjectKeyFromObject(o)
	if k.all[name].uid != o.GetUID() {
		k.all[name] = objectState[T]{o.GetUID(), k.made()}
	}
	return k.all[name].what
}

// Forget removes the value of a deleted workload.
func (k *StateByObject[T]) Forget(name types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, name)
}
