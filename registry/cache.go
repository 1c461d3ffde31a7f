package registry

import (
	"path"
	"strings"
	"sync"
)

// keepLoads is how many Loads an unused cache entry survives. Two revisions
// that are loaded in turn (a preview's BASE and HEAD) keep each other's.
const keepLoads = 6

// cacheKey names a value that was computed from a git object. The same key always has the same
// value.
type cacheKey struct {
	job  string // what was computed from the object
	hash string
	name string // a further input; may be empty
}

// cache keeps what was read and decoded, across Loads. It is safe for concurrent use. Two callers
// that miss at once both compute the value.
type cache struct {
	mu      sync.Mutex
	load    int
	entries map[cacheKey]*cacheEntry
	// produced counts the cache misses by job.
	produced map[string]int
}

type cacheEntry struct {
	value any
	used  int
}

func newCache() *cache {
	return &cache{entries: map[cacheKey]*cacheEntry{}, produced: map[string]int{}}
}

// cached returns the value under the key, and calls produce if it is missing. Errors are not
// cached.
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

// keep stores a value as if it had been computed now.
func (c *cache) keep(key cacheKey, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries[key] = &cacheEntry{value: value, used: c.load}
}

// count counts a cache miss of a job.
func (c *cache) count(job string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.produced[job]++
}

// nextLoad drops entries that the last keepLoads Loads did not use.
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

// join joins a folder and a name; the folder "" is the root.
func join(folder, name string) string { return path.Join(folder, name) }

// steps iterates over the names in a path; the root has none.
func steps(folder string) func(yield func(string) bool) {
	if folder == "" {
		return func(func(string) bool) {}
	}
	return strings.SplitSeq(folder, "/")
}
