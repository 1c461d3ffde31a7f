package registry

import (
	"runtime"
	"sync"
	"weak"
)

// interned gives equal things one address, for as long as anybody holds it.
// What has the same address needs no comparing, and is in memory once. The
// zero value is empty; it is safe for concurrent use.
type interned[K comparable, V any] struct {
	mu sync.Mutex
	at map[K]weak.Pointer[V]
}

// get returns the value of the key, made where nobody holds one. The key must
// not lead to the value, which would then never be let go.
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

// held returns the value of the key, or nil where nobody holds one.
func (t *interned[K, V]) held(key K) *V {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[key].Value()
}

// forget drops a key whose value is gone, unless there is a new one.
func (t *interned[K, V]) forget(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at[key].Value() == nil {
		delete(t.at, key)
	}
}
