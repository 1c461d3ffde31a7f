package renderer

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/keelson-io/keelson/registry"
)

// Cache is a [Renderer] that remembers. Clusters with the same inputs share
// one render and one Target: 300 clusters with 5 distinct configurations
// render 5 times, also when they ask at once.
//
// Errors are remembered as well, except transient ones, and never shared: an
// error names a file of the cluster that it was made for. They are remembered
// for as long as that cluster's meta-config stays the same [registry.Values].
type Cache struct {
	next     Renderer
	maxBytes int64
	flights  singleflight.Group

	mu      sync.Mutex
	entries map[cacheKey]*list.Element
	recent  *list.List // of *cacheEntry, the latest used first
	stats   CacheStats
}

// CacheStats counts what a [Cache] did since it was made.
type CacheStats struct {
	Hits   int64 // answered without a render, also by another's that was under way
	Misses int64 // renders
	// Entries and Bytes are kept now. Bytes are an estimate.
	Entries int
	Bytes   int64
}

// cacheKey is the hash of a render's inputs; with values for an error.
type cacheKey struct {
	inputs inputHash
	values *registry.Values
	failed bool
}

type cacheEntry struct {
	key    cacheKey
	target *Target
	err    error
	bytes  int64
}

// NewCache returns a cache in front of a renderer that keeps about maxBytes of
// targets, the latest used. A target larger than that is not kept.
func NewCache(next Renderer, maxBytes int64) *Cache {
	return &Cache{
		next:     next,
		maxBytes: maxBytes,
		entries:  map[cacheKey]*list.Element{},
		recent:   list.New(),
	}
}

var _ Renderer = (*Cache)(nil)

// Stats returns the counts.
func (c *Cache) Stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Entries = len(c.entries)
	return s
}

// flight is the outcome of a render that several callers wait for.
type flight struct {
	target *Target
	err    error
	values *registry.Values // of the caller whose render it was
}

// Render implements [Renderer].
func (c *Cache) Render(ctx context.Context, r Request) (*Target, error) {
	if r.Version == nil {
		return c.next.Render(ctx, r)
	}
	inputs, err := hashInputs(r)
	if err != nil {
		return nil, err
	}
	for {
		if e, ok := c.get(inputs, r.Values); ok {
			return e.target, e.err
		}
		f, mine, err := c.fly(ctx, inputs, r)
		switch {
		case err != nil: // this caller's own context
			return nil, err
		case mine:
			return f.target, f.err
		case f.err == nil:
			c.hit()
			return f.target, nil
		case ctx.Err() != nil:
			return nil, interrupted(r.Version, ctx.Err())
		case isTransient(f.err):
			continue // another caller's context ended, or its render was stopped
		case f.values != r.Values:
			return c.render(ctx, inputs, r) // the error names another cluster's files
		default:
			c.hit()
			return nil, f.err
		}
	}
}

// fly renders, or waits for another caller's render of the same inputs.
func (c *Cache) fly(ctx context.Context, inputs inputHash, r Request) (f flight, mine bool, err error) {
	var leads bool // read only after the flight, which happens after its write
	done := c.flights.DoChan(string(inputs[:]), func() (any, error) {
		leads = true
		// Another flight may have landed since the caller looked.
		if e, ok := c.get(inputs, r.Values); ok {
			return flight{target: e.target, err: e.err, values: r.Values}, nil
		}
		t, err := c.render(ctx, inputs, r)
		return flight{target: t, err: err, values: r.Values}, nil
	})
	select {
	case res := <-done:
		f, _ := res.Val.(flight)
		return f, leads, nil
	case <-ctx.Done():
		return flight{}, false, interrupted(r.Version, ctx.Err())
	}
}

func (c *Cache) render(ctx context.Context, inputs inputHash, r Request) (*Target, error) {
	t, err := c.next.Render(ctx, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Misses++
	switch {
	case err == nil:
		c.put(&cacheEntry{key: cacheKey{inputs: inputs}, target: t, bytes: t.size()})
	case !isTransient(err):
		c.put(&cacheEntry{key: cacheKey{inputs: inputs, values: r.Values, failed: true}, err: err, bytes: int64(len(err.Error()))})
	}
	return t, err
}

// isTransient is true of everything but an error that says it will last.
func isTransient(err error) bool {
	var e *Error
	return !errors.As(err, &e) || e.Transient ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (c *Cache) hit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Hits++
}

func (c *Cache) get(inputs inputHash, values *registry.Values) (*cacheEntry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.entries[cacheKey{inputs: inputs}]
	if !ok {
		el, ok = c.entries[cacheKey{inputs: inputs, values: values, failed: true}]
	}
	if !ok {
		return nil, false
	}
	c.recent.MoveToFront(el)
	c.stats.Hits++
	e, ok := el.Value.(*cacheEntry)
	return e, ok
}

// put keeps an entry and drops the least recently used ones that no longer
// fit. The caller holds the lock.
func (c *Cache) put(e *cacheEntry) {
	if old, ok := c.entries[e.key]; ok {
		c.drop(old)
	}
	if e.bytes > c.maxBytes {
		return
	}
	c.entries[e.key] = c.recent.PushFront(e)
	c.stats.Bytes += e.bytes
	for c.stats.Bytes > c.maxBytes {
		c.drop(c.recent.Back())
	}
}

func (c *Cache) drop(el *list.Element) {
	e, ok := c.recent.Remove(el).(*cacheEntry)
	if !ok {
		return
	}
	delete(c.entries, e.key)
	c.stats.Bytes -= e.bytes
}
