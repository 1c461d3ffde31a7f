package registry

import (
	"path"
	"strings"
	"sync"
)

// keepLoads is how many Loads an unused cache entry survives. Two revisions
// that are loaded in turn (a preview's BASE and HEAD) keep each other's.
const keepLoads = 6

// cacheKey names what was made from a git object: the same key always has the
// same value.
type cacheKey struct {
	job  string // what was made of the object
	hash string
	name string // what else it depends on; may be empty
}

// cache remembers what was read and decoded, across Loads. It is safe for
// concurrent use; two callers that miss at once both do the work.
type cache struct {
	mu      sync.Mutex
	load    int
	entries map[cacheKey]*cacheEntry
	// produced counts by job what was not there.
	produced map[string]int
}

type cacheEntry struct {
	value any
	used  int
}

func newCache() *cache {
	return &cache{entries: map[cacheKey]*cacheEntry{}, produced: map[string]int{}}
}

// cached returns the value under the key, made by produce when it is not
// there. Errors are not remembered.
func cached[T any](c *cache, key cacheKey, produce func() (T, error)) (T, error) {
	c.mu.Lock()
	e, ok := c.entries[key]
	if ok {
		e.used = c.load
	}
	c.mu.Unlock()
	if ok {
		if v, ok := e.value.(T); ok {
			return v, nil
		}
	}
	v, err := produce()
	if err != nil {
		return v, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries[key] = &cacheEntry{value: v, used: c.load}
	c.produced[key.job]++
	return v, nil
}

// keep holds a value for as long as if it had been made now.
func (c *cache) keep(key cacheKey, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries[key] = &cacheEntry{value: value, used: c.load}
}

// count counts something that was not there.
func (c *cache) count(job string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.produced[job]++
}

// nextLoad forgets what the last Loads did not use.
func (c *cache) nextLoad() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.entries {
		if c.load-e.used >= keepLoads {
			delete(c.entries, key)
		}
	}
	c.load++
}

// join puts a name below a folder; "" is the root.
func join(folder, name string) string { return path.Join(folder, name) }

// steps iterates over the names in a path; none for the root.
func steps(folder string) func(yield func(string) bool) {
	if folder == "" {
		return func(func(string) bool) {}
	}
	return strings.SplitSeq(folder, "/")
}
