package sim

import (
	"errors"
	"slices"
	"sort"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// freshFor is how long events are kept for watches that begin in the past, and
	// keptEvents how many at least: as API servers do.
	freshFor   = 75 * time.Second
	keptEvents = 100
	// keptPages is how many lists are kept for who reads them page by page.
	keptPages = 16
)

// errRaced says that an object is no longer what a write was computed from.
var errRaced = errors.New("the object changed meanwhile")

// store is what one cluster holds.
type store struct {
	mu      sync.RWMutex
	now     func() time.Time
	seed    uint64 // of UIDs
	version uint64 // of the last write
	first   uint64 // before any write
	tables  map[schema.GroupResource]*table
	pages   []page
}

// table are the objects of one kind.
type table struct {
	objects  map[key]*object
	events   []event
	forgot   uint64 // the version of the newest event that is not kept any more
	watchers map[chan struct{}]bool
}

// event is one change.
type event struct {
	version    uint64
	before, is *object // nil: not there; a deleted object has the version of its end
	at         time.Time
}

// page is a list as it was, for those that read on.
type page struct {
	of      schema.GroupResource
	version uint64
	objects []*object
}

func newStore(now func() time.Time, seed uint64) *store {
	first := 100 + mix(seed)%900
	return &store{now: now, seed: seed << 40, version: first, first: first, tables: map[schema.GroupResource]*table{}}
}

// table returns that of a resource; the store has to be locked for writing.
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

// put replaces an object, nil for none, by one of another body; nil deletes it.
// [errRaced] says that it is not what is there.
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

// happened notes an event, forgets old ones, and wakes who watches.
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

// since returns the events after a version, and whether all of them are known.
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

// watch returns what is signalled at each event, until stop is called.
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

// list returns the objects in their order, and the version at which it is so.
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

// keep has a list ready for who reads on.
func (s *store) keep(p page) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pages) == keptPages {
		s.pages = slices.Delete(s.pages, 0, 1)
	}
	s.pages = append(s.pages, p)
}

// kept returns the list of a resource at a version, if it still is there.
func (s *store) kept(gr schema.GroupResource, version uint64) ([]*object, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.pages {
		if p.of == gr && p.version == version {
			return p.objects, true
		}
	}
	return nil, false
}

// within returns the objects of a namespace, of all kinds, for its end.
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

// counts are how many objects there are by resource, and watches in all.
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

// selectionOf is what a list or watch asks for.
type selectionOf struct {
	namespace string
	labels    labels.Selector
	fields    map[string]string // by path; metadata.name and what events are about
	not       map[string]string
}

func (s *selectionOf) matches(o *object) bool {
	if s.namespace != "" && o.namespace != s.namespace || !s.labels.Matches(labels.Set(o.labels)) {
		return false
	}
	for path, want := range s.fields {
		if o.field(path) != want {
			return false
		}
	}
	for path, bad := range s.not {
		if o.field(path) == bad {
			return false
		}
	}
	return true
}
