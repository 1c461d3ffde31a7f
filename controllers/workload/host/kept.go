package host

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kept holds a value for each workload, from one reconcile to the next. It is safe for
// concurrent use. A value needs no lock, because a workload is never reconciled twice at once.
type Kept[T any] struct {
	mu   sync.Mutex
	made func() *T
	all  map[types.NamespacedName]keptOf[T]
}

// keptOf is the value of an object with a UID, because a later object can have the same name.
type keptOf[T any] struct {
	uid  types.UID
	what *T
}

// NewKept returns an empty Kept, which makes the first value of each workload by made.
func NewKept[T any](made func() *T) *Kept[T] {
	return &Kept[T]{made: made, all: map[types.NamespacedName]keptOf[T]{}}
}

// Of returns the value of a workload, or a new value if there is none for its UID.
func (k *Kept[T]) Of(o client.Object) *T {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := client.ObjectKeyFromObject(o)
	if k.all[name].uid != o.GetUID() {
		k.all[name] = keptOf[T]{o.GetUID(), k.made()}
	}
	return k.all[name].what
}

// Forget removes the value of a deleted workload.
func (k *Kept[T]) Forget(name types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, name)
}
