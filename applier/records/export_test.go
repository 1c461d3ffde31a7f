package records

import (
	"fmt"
	"strconv"

	"github.com/keelson-io/keelson/differ"
)

// Unpack decodes the content of a record's Secret.
func Unpack(data []byte) (Record, error) {
	var r Record
	_, err := new(Packer).unpack(data, &r)
	return r, err
}

// RememberedBytes is what the records in memory take.
func (s *Store) RememberedBytes() (n int) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	for _, r := range s.memory.records {
		if r != nil {
			n += r.size
		}
	}
	return n
}

// KeptIDs remembers records with many objects each, and returns how many IDs are in memory, and how
// many records could hold an object that none of them has.
func KeptIDs(records, objects int) (kept, doubtful int) {
	m := newMemory()
	for i := range records {
		r := &Stored{Record: Record{Component: fmt.Sprintf("c%d", i), Objects: make([]Object, objects)}}
		for o := range r.Objects {
			r.Objects[o].ID = differ.ID{Kind: "ConfigMap", Namespace: r.Component, Name: strconv.Itoa(o)}
		}
		m.mu.Lock()
		m.keepIDs(r)
		m.mu.Unlock()
		m.records[r.Component] = nil // too large to be remembered
	}
	for _, ids := range m.ids {
		kept += len(ids)
	}
	missing := differ.ID{Kind: "ConfigMap", Namespace: "other", Name: "a"}
	return kept, len(m.mayHold("other", func(id differ.ID) bool { return id == missing }, map[uint64]bool{hashID(missing): true}))
}
