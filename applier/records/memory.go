package records

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/differ"
)

const (
	// idsKept bounds how many objects of all records of one cluster are remembered by the hash of
	// their ID: 8 bytes each. The cluster may be hostile.
	idsKept = 500_000
	// rememberedBytes bounds the memory of all records of one cluster that are remembered. Other
	// records are read again when they are needed.
	rememberedBytes = 32 << 20
)

// memory holds what is known of the records of one cluster. It is safe for concurrent use.
type memory struct {
	mu sync.Mutex
	// records by component, as last read or written; nil: must be read again. If all records were
	// listed, a missing entry means that the record does not exist, unless it has a summary.
	records map[string]*Stored
	listed  bool
	// ids hold, by component, the hashed IDs of the objects in each record, as last read or written.
	// They stay in memory when the record does not.
	ids map[string][]uint64
	// summaries are those of settled components, whose records are not in memory.
	summaries map[string]*summary
	// unfenced are components that were taken over in the middle of an apply, and of which some
	// objects were not touched yet.
	unfenced map[string]bool
}

func newMemory() *memory {
	return &memory{
		records: map[string]*Stored{}, ids: map[string][]uint64{}, summaries: map[string]*summary{},
		unfenced: map[string]bool{},
	}
}

// summary is what stays in memory of the record of a settled component. The record is read again
// when it is needed.
type summary struct {
	inputs    fingerprint.Sum // with which the component was settled
	version   recordVersion
	record    fingerprint.Sum // of the Secret: a restored store counts resourceVersions anew
	pin       *Pin
	delivered unique.Handle[Delivered] // shared by the many clusters that have it
}

// recordVersion is a resourceVersion: nearly always a number, which needs no memory of its own, or
// else its text.
type recordVersion struct {
	number uint64
	text   string
}

func recordVersionOf(version string) recordVersion {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != version {
		return recordVersion{text: version}
	}
	return recordVersion{number: n}
}

func (v recordVersion) String() string {
	if v.number == 0 {
		return v.text
	}
	return strconv.FormatUint(v.number, 10)
}

// known returns what is in memory of a record: itself, or its summary. none: it does not exist, if
// the list of records is not outdated.
func (m *memory) known(component string) (r *Stored, s *summary, none bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, found := m.records[component]
	s = m.summaries[component]
	return r, s, !found && s == nil && m.listed
}

// summary returns the summary of a component's record; nil: none.
func (m *memory) summary(component string) *summary {
	_, s, _ := m.known(component)
	return s
}

func (m *memory) remember(r *Stored) {
	m.mu.Lock()
	defer m.mu.Unlock()
	total := r.size
	for component, other := range m.records {
		if other != nil && component != r.Component {
			total += other.size
		}
	}
	delete(m.summaries, r.Component)
	m.keepIDs(r)
	if total > rememberedBytes {
		m.records[r.Component] = nil // the next use reads it again
		return
	}
	m.records[r.Component] = r
}

// keepIDs keeps the hashed IDs of a record's objects, within idsKept. It requires m.mu.
func (m *memory) keepIDs(r *Stored) {
	total := len(r.Objects)
	for component, ids := range m.ids {
		if component != r.Component {
			total += len(ids)
		}
	}
	if total > idsKept {
		delete(m.ids, r.Component)
		return
	}
	ids := make([]uint64, 0, len(r.Objects))
	for i := range r.Objects {
		ids = append(ids, hashID(r.Objects[i].ID))
	}
	m.ids[r.Component] = ids
}

func hashID(id differ.ID) uint64 {
	s := sha256.Sum256([]byte(id.String()))
	return binary.LittleEndian.Uint64(s[:])
}

// summarize replaces a record by its summary. It returns false, and changes nothing, if the record
// is another one by now, or if the takeover of the component is not complete.
func (m *memory) summarize(r *Stored, s *summary) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[r.Component] != r || m.unfenced[r.Component] {
		return false
	}
	m.summaries[r.Component] = s
	delete(m.records, r.Component)
	return true
}

// dropSummary makes the next read fetch the record of a component that has a summary.
func (m *memory) dropSummary(component string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.summaries[component] != nil {
		delete(m.summaries, component)
		m.records[component] = nil
	}
}

// seen receives the resourceVersion of a component's record from a watch; see [Store.Seen].
func (m *memory) seen(component, version string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, found := m.records[component]
	if found && r == nil {
		delete(m.ids, component) // it may have other objects now
		return false
	}
	known := ""
	if r != nil {
		known = r.ResourceVersion
	} else if s := m.summaries[component]; s != nil {
		known = s.version.String()
	}
	if known != "" {
		if order, err := resourceversion.CompareResourceVersion(version, known); version == known || err == nil && order < 0 {
			return false
		}
	}
	if len(m.records) > 2*maxRecords { // a hostile cluster may report ever new names
		m.clear()
	}
	m.forgetLocked(component)
	return true
}

// forget makes the next read fetch the record from the cluster.
func (m *memory) forget(component string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLocked(component)
}

// forgetLocked requires m.mu. A missing entry would mean that no record exists.
func (m *memory) forgetLocked(component string) {
	m.records[component] = nil
	delete(m.summaries, component)
	delete(m.ids, component)
}

// drop forgets all records, except what stays of settled components.
func (m *memory) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clear()
}

// clear requires m.mu.
func (m *memory) clear() {
	clear(m.records)
	m.listed = false
	maps.DeleteFunc(m.ids, func(component string, _ []uint64) bool { return m.summaries[component] == nil })
}

// list says which components have a record.
func (m *memory) list(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed = true
	gone := func(component string) bool {
		_, found := slices.BinarySearch(names, component)
		return !found
	}
	maps.DeleteFunc(m.summaries, func(component string, _ *summary) bool { return gone(component) })
	maps.DeleteFunc(m.ids, func(component string, _ []uint64) bool { return gone(component) })
}

func (m *memory) isListed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.listed
}

// holders returns the components, except the given one, whose records hold the same object as
// applied (sure). Components whose records may hold it, and are not in memory, are in maybe.
func (m *memory) holders(but string, o *Object) (sure, maybe []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, r := range m.records {
		if name != but && r != nil && r.Has(o) {
			sure = append(sure, name)
		}
	}
	hash := hashID(o.ID)
	for name, ids := range m.ids {
		if name != but && m.records[name] == nil && slices.Contains(ids, hash) {
			maybe = append(maybe, name)
		}
	}
	return sure, maybe
}

// mayHold returns the components, except one, whose records may have one of some objects, by name.
// It includes components of which neither the record nor the IDs of its objects are in memory.
func (m *memory) mayHold(but string, has func(differ.ID) bool, hashes map[uint64]bool) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for name, ids := range m.ids {
		if m.records[name] == nil && slices.ContainsFunc(ids, func(hash uint64) bool { return hashes[hash] }) {
			out = append(out, name)
		}
	}
	for name, r := range m.records {
		_, known := m.ids[name]
		switch {
		case r == nil && !known:
			out = append(out, name)
		case r != nil && slices.ContainsFunc(r.Objects, func(o Object) bool { return has(o.ID) }):
			out = append(out, name)
		}
	}
	for name := range m.summaries {
		if _, known := m.ids[name]; !known {
			out = append(out, name)
		}
	}
	out = slices.DeleteFunc(out, func(name string) bool { return name == but })
	slices.Sort(out)
	return out
}

func (m *memory) isUnfenced(component string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unfenced[component]
}

func (m *memory) setUnfenced(component string, unfenced bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unfenced[component] = unfenced
}

// names reports whether the remembered head of a record names a part.
func (m *memory) names(component, part string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[component]
	return r != nil && slices.Contains(r.parts, part)
}
