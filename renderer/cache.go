package renderer

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unique"
	"unsafe"

	"golang.org/x/sync/singleflight"

	"github.com/keelson-io/keelson/registry"
)

// Cache is a [Renderer] that remembers results. Clusters with the same inputs share one render and
// one Target: 300 clusters with 5 distinct configurations render 5 times, even at the same time. A
// repeated request, of this cluster or of one with the same configuration, costs a lookup and no
// hash.
//
// Errors are remembered and shared as well, except transient ones. Each cluster gets the positions
// in its own files.
//
// Objects that are not in use need not be in memory as maps: see [Cache.Pack].
type Cache struct {
	next     Renderer
	maxBytes int64
	flights  singleflight.Group

	mu      sync.Mutex
	entries map[inputHash][]*list.Element // several per hash: targets for other scopes, and errors
	recent  *list.List                    // of *cacheEntry, most recently used first
	stats   CacheStats
	hashes  hashes
}

// CacheStats counts what a [Cache] did since it was made.
type CacheStats struct {
	Hits   int64 // answered without an own render, also by another caller's render
	Misses int64 // renders
	// Entries and Bytes are the current contents. Bytes is an estimate.
	Entries int
	Bytes   int64
}

// cacheEntry is a target, or an error. It does not change.
type cacheEntry struct {
	inputs inputHash
	target *Target
	packed []byte // the encoded objects of a target without objects; nil: the target has them
	err    error
	of     Request // the request of an error
	bytes  int64
}

// answers reports whether the entry, which has the request's inputs, is its answer. An error of the
// request, not of the chart, answers only the same Values. It is found again without executing a
// template.
func (e *cacheEntry) answers(r Request) bool {
	var failed *Error
	switch {
	case e.err == nil:
		return e.target.fits(r.Capabilities)
	case errors.As(e.err, &failed) && !failed.ofChart && e.of.Values != r.Values:
		return false
	}
	return !isTransient(e.err) && maps.Equal(e.of.Capabilities.ClusterScoped, r.Capabilities.ClusterScoped)
}

// answer returns the target, or the error with the positions of the request's cluster.
func (e *cacheEntry) answer(r Request) (*Target, error) {
	if failed, ok := errors.AsType[*Error](e.err); ok {
		return nil, failed.located(r)
	}
	return e.target, e.err
}

// NewCache returns a cache in front of a renderer that keeps about maxBytes of targets, the most
// recently used. A larger target is not kept.
func NewCache(next Renderer, maxBytes int64) *Cache {
	return &Cache{
		next:     next,
		maxBytes: maxBytes,
		entries:  map[inputHash][]*list.Element{},
		recent:   list.New(),
	}
}

var _ Renderer = (*Cache)(nil)

// Stats returns the counts.
func (c *Cache) Stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Entries = c.recent.Len()
	return s
}

// Render implements [Renderer].
func (c *Cache) Render(ctx context.Context, r Request) (*Target, error) {
	if r.Version == nil {
		return c.next.Render(ctx, r)
	}
	inputs, err := c.hash(r)
	if err != nil {
		return nil, err
	}
	for {
		if e, ok := c.get(inputs, r); ok {
			return e.answer(r)
		}
		e, mine, err := c.fly(ctx, inputs, r)
		switch {
		case err != nil: // this caller's own context
			return nil, err
		case mine:
			return e.answer(r)
		case e.answers(r):
			c.hit()
			return e.answer(r)
		case ctx.Err() != nil:
			return nil, interrupted(r.Version, ctx.Err())
		}
		// The other caller's context ended, or its cluster has other scopes. The loop reads the
		// cache again, and renders if there is no answer.
	}
}

// hash returns the hash of a request's inputs, which is computed only the first time.
func (c *Cache) hash(r Request) (inputHash, error) {
	id := identityOf(r)
	c.mu.Lock()
	h, ok := c.hashes.get(id)
	c.mu.Unlock()
	if ok {
		return h, nil
	}
	h, err := hashInputs(r)
	if err != nil {
		return h, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hashes.put(id, knownHash{h, r})
	return h, nil
}

// fly renders, or waits for another caller's render of the same inputs.
func (c *Cache) fly(ctx context.Context, inputs inputHash, r Request) (_ *cacheEntry, mine bool, _ error) {
	var leads bool // read only after the flight, which happens after its write
	done := c.flights.DoChan(string(inputs[:]), func() (any, error) {
		leads = true
		// Another flight may have ended since the caller's lookup.
		if e, ok := c.get(inputs, r); ok {
			return e, nil
		}
		return c.render(ctx, inputs, r), nil
	})
	select {
	case res := <-done:
		e, _ := res.Val.(*cacheEntry)
		return e, leads, nil
	case <-ctx.Done():
		return nil, false, interrupted(r.Version, ctx.Err())
	}
}

func (c *Cache) render(ctx context.Context, inputs inputHash, r Request) *cacheEntry {
	t, err := c.next.Render(ctx, r)
	e := &cacheEntry{inputs: inputs, target: t, err: err, of: r}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Misses++
	switch {
	case err == nil:
		e.of, e.bytes = Request{}, t.size()
		c.put(e)
	case !isTransient(err):
		e.bytes = int64(len(err.Error()))
		c.put(e)
	}
	return e
}

// isTransient reports whether an error is not known to last.
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

func (c *Cache) get(inputs inputHash, r Request) (*cacheEntry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, el := range c.entries[inputs] {
		e := entryOf(el)
		if !e.answers(r) {
			continue
		}
		whole, err := e.unpack()
		if err != nil {
			c.drop(el) // as if it had never been kept
			break
		}
		c.recent.MoveToFront(el)
		c.replace(el, whole)
		c.stats.Hits++
		return whole, true
	}
	return nil, false
}

func entryOf(el *list.Element) *cacheEntry {
	e, _ := el.Value.(*cacheEntry)
	return e
}

// put keeps an entry and drops the least recently used ones that no longer
// fit. The caller holds the lock.
func (c *Cache) put(e *cacheEntry) {
	if e.bytes > c.maxBytes {
		return
	}
	c.entries[e.inputs] = append(c.entries[e.inputs], c.recent.PushFront(e))
	c.stats.Bytes += e.bytes
	c.evict()
}

// replace stores another form of an entry. The caller holds the lock.
func (c *Cache) replace(el *list.Element, e *cacheEntry) {
	c.stats.Bytes += e.bytes - entryOf(el).bytes
	el.Value = e
	c.evict()
}

func (c *Cache) evict() {
	for c.stats.Bytes > c.maxBytes {
		c.drop(c.recent.Back())
	}
}

// Pack encodes all targets until their next use. An encoded target takes a quarter of the memory,
// in one piece instead of thousands that fragment it. Call Pack when no request is expected for a
// while. Returned targets stay unchanged.
func (c *Cache) Pack() {
	c.mu.Lock()
	var all []*list.Element
	for el := c.recent.Front(); el != nil; el = el.Next() {
		all = append(all, el)
	}
	c.mu.Unlock()
	for _, el := range all { // the lock is held for one target at a time
		c.mu.Lock()
		if e := entryOf(el); slices.Contains(c.entries[e.inputs], el) { // it may be gone by now
			c.replace(el, e.pack())
		}
		c.mu.Unlock()
	}
}

// contents are the large parts of a target.
type contents struct{ Objects, Hooks []*Object }

// pack returns the entry with encoded objects, or unchanged if they can't be encoded.
func (e *cacheEntry) pack() *cacheEntry {
	if e.target == nil || e.packed != nil {
		return e
	}
	mode, err := encoding()
	if err != nil {
		return e
	}
	data, err := mode.Marshal(contents{e.target.Objects, e.target.Hooks})
	if err != nil {
		return e
	}
	packed, rest := *e, *e.target
	rest.Objects, rest.Hooks, rest.Scopes = nil, nil, slices.Clone(rest.Scopes)
	for i := range rest.Scopes { // each target came with its own copies of a few names
		k := &rest.Scopes[i].Kind
		k.Group, k.Kind = unique.Make(k.Group).Value(), unique.Make(k.Kind).Value()
	}
	packed.target, packed.packed = &rest, slices.Clip(data)
	packed.bytes = rest.size() + int64(len(data))
	return &packed
}

// unpack returns the entry with its objects.
func (e *cacheEntry) unpack() (*cacheEntry, error) {
	if e.packed == nil {
		return e, nil
	}
	mode, err := decoding()
	if err != nil {
		return nil, err
	}
	var is contents
	if err := mode.Unmarshal(e.packed, &is); err != nil {
		return nil, fmt.Errorf("decode a target: %w", err)
	}
	whole, target := *e, *e.target
	target.Objects, target.Hooks = is.Objects, is.Hooks
	whole.target, whole.packed, whole.bytes = &target, nil, target.size()
	return &whole, nil
}

func (c *Cache) drop(el *list.Element) {
	e := entryOf(el)
	c.recent.Remove(el)
	c.stats.Bytes -= e.bytes
	rest := slices.DeleteFunc(c.entries[e.inputs], func(other *list.Element) bool { return other == el })
	if len(rest) == 0 {
		delete(c.entries, e.inputs)
		return
	}
	c.entries[e.inputs] = rest
}

// identity distinguishes requests by the parts they share: unchanged versions and values of one
// fleet keep their pointers.
type identity struct {
	version     *registry.Version
	values      any // registry.Values.Identity: shared by clusters with equal files
	mirrors     string
	kubeVersion string
	apiVersions *string
	served      int
}

// identityOf ignores scopes, as the hash does.
func identityOf(r Request) identity {
	return identity{
		version: r.Version, values: r.Values.Identity(), mirrors: joinMirrors(r.ImageMirrors),
		kubeVersion: r.Capabilities.KubeVersion,
		apiVersions: unsafe.SliceData(r.Capabilities.APIVersions), served: len(r.Capabilities.APIVersions),
	}
}

func joinMirrors(mirrors map[string]string) string {
	if len(mirrors) == 0 {
		return ""
	}
	var b strings.Builder
	for _, host := range slices.Sorted(maps.Keys(mirrors)) {
		b.WriteString(host + "=" + mirrors[host] + "\n")
	}
	return b.String()
}

// hashes remembers hashes by identity, in two generations: a hash that was not used while the
// younger one filled up is forgotten.
type hashes struct{ young, old map[identity]knownHash }

// knownHash keeps the request in memory, so that its addresses are not reused.
type knownHash struct {
	inputHash
	of Request
}

// generation is the number of deliveries of a large fleet.
const generation = 1 << 16

func (h *hashes) get(id identity) (inputHash, bool) {
	if k, ok := h.young[id]; ok {
		return k.inputHash, true
	}
	k, ok := h.old[id]
	if ok {
		h.put(id, k)
	}
	return k.inputHash, ok
}

func (h *hashes) put(id identity, k knownHash) {
	if h.young == nil || len(h.young) >= generation {
		h.young, h.old = map[identity]knownHash{}, h.young
	}
	h.young[id] = k
}
