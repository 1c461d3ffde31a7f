package registry

import (
	"runtime"
	"sync"
	"weak"
)

// interned gives equal values one address while a value is referenced. Equal values then need no
// comparison, and are in memory once. The zero value is empty. It is safe for concurrent use.
type interned[K comparable, V any] struct {
	mu sync.Mutex
	at map[K]weak.Pointer[V]
}

// get returns the value of the key, and calls produce if no value is referenced. The key must not
// reference the value, or the value would never be freed.
func (t *interned[K, V]) get(key K, produce func() *V) *V {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.at[key].Value(); v != nil {
		return v
	}
	v := produce()
	if t.at == nil {
		t.at = map[K]weak.Pointer[V]{}
	}
	t.at[key] = weak.Make(v)
	runtime.AddCleanup(v, t.forget, key)
	return v
}

// held returns the value of the key, or nil if no value is referenced.
func (t *interned[K, V]) held(key K) *V {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[key].Value()
}

// forget drops a key whose value was freed, unless there is a new value.
func (t *interned[K, V]) forget(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at[key].Value() == nil {
		delete(t.at, key)
	}
}
