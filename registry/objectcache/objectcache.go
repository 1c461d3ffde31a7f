// Package objectcache keeps values that were computed from git objects.
//
// A git object never changes, so neither does a value that was computed from it alone.
package objectcache

import (
	"maps"
	"sync"
)

// keepLoads is how many Loads an unused cache entry survives. Two revisions
// that are loaded in turn (a preview's BASE and HEAD) keep each other's.
const keepLoads = 6

// Key names a value that was computed from a git object. The same key always has the same
// value.
type Key struct {
	Job  string // what was computed from the object
	Hash string
	Name string // a further input; may be empty
}

// Cache keeps what was read and decoded, across Loads. It is safe for concurrent use. Two callers
// that miss at once both compute the value.
type Cache struct {
	mu      sync.Mutex
	load    int
	entries map[Key]*cacheEntry
	// produced counts the cache misses by job.
	produced map[string]int
}

type cacheEntry struct {
	value any
	used  int
}

// New returns an empty cache.
func New() *Cache {
	return &Cache{entries: map[Key]*cacheEntry{}, produced: map[string]int{}}
}

// Get returns the value under the key, and calls produce if it is missing. Errors are not
// cached.
func Get[T any](c *Cache, key Key, produce func() (T, error)) (T, error) {
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
	c.produced[key.Job]++
	return v, nil
}

// Keep stores a value as if it had been computed now.
func (c *Cache) Keep(key Key, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries[key] = &cacheEntry{value: value, used: c.load}
}

// Count counts a cache miss of a job.
func (c *Cache) Count(job string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.produced[job]++
}

// NextLoad drops entries that the last keepLoads Loads did not use.
func (c *Cache) NextLoad() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.entries {
		if c.load-e.used >= keepLoads {
			delete(c.entries, key)
		}
	}
	c.load++
}

// Produced returns the number of cache misses by job.
func (c *Cache) Produced() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.produced)
}
