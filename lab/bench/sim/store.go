package sim

import (
	"errors"
	"slices"
	"sort"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// freshFor is how long events are kept for watches that start in the past. keptEvents is the
	// least number of kept events. API servers use the same values.
	freshFor   = 75 * time.Second
	keptEvents = 100
	// keptPages is the number of lists kept for clients that read page by page.
	keptPages = 16
)

// errRaced is returned if an object is no longer the one from which a write was computed.
var errRaced = errors.New("the object changed meanwhile")

// store holds the objects of one cluster.
type store struct {
	mu      sync.RWMutex
	now     func() time.Time
	seed    uint64 // of UIDs
	version uint64 // of the last write
	first   uint64 // before any write
	tables  map[schema.GroupResource]*table
	pages   []page
}

// table holds the objects of one kind.
type table struct {
	objects  map[key]*object
	events   []event
	forgot   uint64 // version of the newest dropped event
	watchers map[chan struct{}]bool
}

// event is one change.
type event struct {
	version    uint64
	before, is *object // nil: absent; a deleted object has the version of its deletion
	at         time.Time
}

// page is a list at one version, for clients that read the next pages.
type page struct {
	of      schema.GroupResource
	version uint64
	objects []*object
}

func newStore(now func() time.Time, seed uint64) *store {
	first := 100 + mix(seed)%900
	return &store{now: now, seed: seed << 40, version: first, first: first, tables: map[schema.GroupResource]*table{}}
}

// table returns the table of a resource. The caller holds the write lock.
func (s *store) table(gr schema.GroupResource) *table {
	t := s.tables[gr]
	if t == nil {
		t = &table{objects: map[key]*object{}, watchers: map[chan struct{}]bool{}, forgot: s.first}
		s.tables[gr] = t
	}
	return t
}

func (s *store) get(gr schema.GroupResource, k key) *object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t := s.tables[gr]; t != nil {
		return t.objects[k]
	}
	return nil
}

// put replaces before by an object with the body next. A nil before means that no object exists. A
// nil next deletes the object. It returns [errRaced] if before is not the stored object.
func (s *store) put(gr schema.GroupResource, k key, before *object, next *body) (*object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.table(gr)
	if t.objects[k] != before {
		return nil, errRaced
	}
	if before == nil && next == nil {
		return nil, nil
	}
	s.version++
	now := s.now()
	if next == nil {
		delete(t.objects, k)
		last := *before
		last.version = s.version
		t.happened(event{version: s.version, before: &last, at: now})
		return &last, nil
	}
	o := &object{body: next, key: k, version: s.version, change: now.Unix()}
	if before != nil {
		o.key, o.uid, o.birth = before.key, before.uid, before.birth
	} else {
		o.uid, o.birth = s.seed+s.version, now.Unix()
	}
	t.objects[o.key] = o
	t.happened(event{version: s.version, before: before, is: o, at: now})
	return o, nil
}

// happened records an event, drops old events, and wakes the watchers.
func (t *table) happened(e event) {
	t.events = append(t.events, e)
	old := 0
	for len(t.events)-old > keptEvents && e.at.Sub(t.events[old].at) > freshFor {
		old++
	}
	if old > keptEvents || old > 0 && old >= len(t.events)/2 { // not at each event
		t.forgot = t.events[old-1].version
		t.events = slices.Clone(t.events[old:])
	}
	for wake := range t.watchers {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// since returns the events after a version. ok is false if some of them were dropped.
func (s *store) since(gr schema.GroupResource, version uint64) (events []event, now uint64, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tables[gr]
	if t == nil {
		return nil, s.version, version >= s.first
	}
	if version < t.forgot {
		return nil, s.version, false
	}
	at := sort.Search(len(t.events), func(i int) bool { return t.events[i].version > version })
	return t.events[at:len(t.events):len(t.events)], s.version, true
}

// watch returns a channel that is signalled at each event, until stop is called.
func (s *store) watch(gr schema.GroupResource) (wake chan struct{}, stop func()) {
	wake = make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table(gr).watchers[wake] = true
	return wake, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.table(gr).watchers, wake)
	}
}

// list returns the sorted objects of a resource, and the store's version.
func (s *store) list(gr schema.GroupResource) ([]*object, uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []*object
	if t := s.tables[gr]; t != nil {
		out = make([]*object, 0, len(t.objects))
		for _, o := range t.objects {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b *object) int { return a.compare(b.key) })
	return out, s.version
}

// keep stores a list for clients that read the next pages.
func (s *store) keep(p page) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pages) == keptPages {
		s.pages = slices.Delete(s.pages, 0, 1)
	}
	s.pages = append(s.pages, p)
}

// listAt returns the list of a resource at a version, if it is still stored.
func (s *store) listAt(gr schema.GroupResource, version uint64) ([]*object, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.pages {
		if p.of == gr && p.version == version {
			return p.objects, true
		}
	}
	return nil, false
}

// within returns the objects of all kinds in a namespace.
func (s *store) within(namespace string) map[schema.GroupResource][]*object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := map[schema.GroupResource][]*object{}
	for gr, t := range s.tables {
		for k, o := range t.objects {
			if k.namespace == namespace {
				out[gr] = append(out[gr], o)
			}
		}
	}
	return out
}

// counts returns the number of objects by resource, and the number of all watches.
func (s *store) counts() (objects map[string]int, watches int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	objects = map[string]int{}
	for gr, t := range s.tables {
		if len(t.objects) > 0 {
			objects[gr.String()] = len(t.objects)
		}
		watches += len(t.watchers)
	}
	return objects, watches
}
