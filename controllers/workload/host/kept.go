package host

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kept is what one look at a workload leaves to the next. It is safe for concurrent use;
// what it keeps of one workload isn't: nobody looks at that twice at a time.
type Kept[T any] struct {
	mu   sync.Mutex
	made func() *T
	all  map[types.NamespacedName]keptOf[T]
}

// keptOf is of the object with a UID: another one may come under its name.
type keptOf[T any] struct {
	uid  types.UID
	what *T
}

// NewKept keeps nothing, and has something made for each workload.
func NewKept[T any](made func() *T) *Kept[T] {
	return &Kept[T]{made: made, all: map[types.NamespacedName]keptOf[T]{}}
}

// Of returns what the last look at a workload left, or something new.
func (k *Kept[T]) Of(o client.Object) *T {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := client.ObjectKeyFromObject(o)
	if k.all[name].uid != o.GetUID() {
		k.all[name] = keptOf[T]{o.GetUID(), k.made()}
	}
	return k.all[name].what
}

// Forget drops what was kept of a workload that has gone.
func (k *Kept[T]) Forget(name types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, name)
}
