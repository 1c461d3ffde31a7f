package records

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/keelson-io/keelson/applier/fingerprint"
)

const (
	recordPrefix = "record-"
	// Label is on the Secrets of records; its value is the component.
	Label     = "keelson.io/record"
	partLabel = "keelson.io/record-part" // on the Secrets that hold a large record
	// recordFormat 2 has epochs and intents. Format 1 knew objects that were about
	// to be created, as intended; it is read, and written as 2.
	recordFormat = 2
	// secretSize keeps a Secret under the API server's 1 MiB with room for its
	// metadata.
	secretSize = 1000 << 10
	// recordLimit bounds the bytes of an unpacked record, recordValues its JSON values, and
	// recordParts its Secrets: the cluster may be hostile. A record of 1,000 objects has some 3 MB
	// and 150,000 values.
	recordLimit  = 32 << 20
	recordValues = 300_000
	recordParts  = 16
	// recordPage is how many records are listed at once: each may have 1 MiB.
	recordPage = 25
	// maxRecords is how many components may have a record in one cluster.
	maxRecords = 2_000
)

// The keys of a record's Secret, which has one of the first two.
const (
	keyRecord = "record" // the packed record
	keyParts  = "parts"  // the names of the Secrets that hold the parts, as JSON
	keyPart   = "part"   // content of such a Secret
)

// Options configure the records of a cluster.
type Options struct {
	// Cluster is the cluster's name, for errors.
	Cluster string
	Secrets Secrets
	Packer  *Packer
	// Writer is the session that writes.
	Writer Writer
	// Check is called before records are read: records of another cluster say nothing about this
	// one. An error forbids the read.
	Check func(context.Context) error
}

// Writer is one session that writes to a cluster. Every component has one writer at a time. A
// session takes a component over with its first write of the component's record, which begins a new
// epoch.
type Writer struct {
	// Identity distinguishes sessions.
	Identity string
	// Confirm is called before each takeover. An error forbids the takeover; it should be
	// [ErrDeposed] if another session was chosen. Nil: takeovers are allowed.
	Confirm func(context.Context) error
}

// ErrDeposed reports that another session was chosen to write, so this session must not.
var ErrDeposed = errors.New("another writer was chosen")

// Store reads and writes the records of one cluster for one session. It remembers them: another
// writer is noticed when a record is written, because its resourceVersion is stale. It is safe for
// concurrent use.
type Store struct {
	cluster   string
	secrets   Secrets
	packer    *Packer
	writer    Writer
	check     func(context.Context) error
	announcer *announcer
	parts     *partStore
	memory    *memory
}

// NewStore returns the records of a cluster. It makes no request.
func NewStore(o Options) *Store {
	return &Store{
		cluster: o.Cluster, secrets: o.Secrets, packer: o.Packer, writer: o.Writer, check: o.Check,
		announcer: newAnnouncer(o.Secrets, o.Writer.Identity), parts: newPartStore(o.Secrets), memory: newMemory(),
	}
}

// Session returns the identity of the session that writes.
func (s *Store) Session() string { return s.writer.Identity }

// Owns reports whether this session wrote a record last.
func (s *Store) Owns(r *Stored) bool { return r.Writer == s.writer.Identity }

// Epoch returns the epoch in which this session writes a record.
func (s *Store) Epoch(r *Stored) int64 {
	if s.Owns(r) {
		return r.Epoch
	}
	return r.Epoch + 1
}

// Read returns a component's record as this process last read or wrote it. Objects and History are
// empty when nothing was ever applied.
func (s *Store) Read(ctx context.Context, component string) (*Stored, error) {
	r, was, none := s.memory.known(component)
	switch {
	case r != nil:
		return r, nil
	case none:
		return noRecord(component), nil // if this is outdated, writing the record fails
	}
	r, err := s.fetch(ctx, component)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: record of %s: %w", s.cluster, component, err)
	}
	if was == nil || was.version != recordVersionOf(r.ResourceVersion) {
		s.memory.remember(r)
	}
	return r, nil
}

// Objects returns the objects in the record of a component. A damaged record has none: it must not
// stop the creations of all components.
func (s *Store) Objects(ctx context.Context, component string) ([]Object, error) {
	r, err := s.Read(ctx, component)
	if Damaged(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return r.Objects, nil
}

// Pin returns the pin in a component's record; nil: not pinned.
func (s *Store) Pin(ctx context.Context, component string) (*Pin, error) {
	if was := s.memory.summary(component); was != nil {
		return was.pin, nil
	}
	r, err := s.Read(ctx, component)
	if err != nil {
		return nil, err
	}
	return r.Pin, nil
}

// Version returns the known resourceVersion of a component's record; empty: no record. For a
// settled component it makes no request. Called before [Store.Pin] and [Store.Delivered], it returns
// the version of their answers, or an earlier one.
func (s *Store) Version(ctx context.Context, component string) (string, error) {
	if was := s.memory.summary(component); was != nil {
		return was.version.String(), nil
	}
	r, err := s.Read(ctx, component)
	if err != nil {
		return "", err
	}
	return r.ResourceVersion, nil
}

// Delivered returns the last delivery of a component that was applied in whole, from its record.
// For a settled component it makes no request.
func (s *Store) Delivered(ctx context.Context, component string) (Delivered, error) {
	if was := s.memory.summary(component); was != nil {
		return was.delivered.Value(), nil
	}
	r, err := s.Read(ctx, component)
	if err != nil {
		return Delivered{}, err
	}
	return r.Delivered(), nil
}

// Unfinished reports whether the objects of a component are those of no target: see [Record].
func (s *Store) Unfinished(ctx context.Context, component string) (bool, error) {
	if s.memory.summary(component) != nil {
		return false, nil // a settled component has its target
	}
	r, err := s.Read(ctx, component)
	if err != nil {
		return false, err
	}
	return r.Unfinished, nil
}

// Seen receives the resourceVersion of a component's record from a watch. When the remembered record
// is older, or none is known, Seen forgets it and returns true: another writer wrote it, so plan
// again.
func (s *Store) Seen(component, version string) bool { return s.memory.seen(component, version) }

// Drop forgets all records, except the summaries of settled components.
func (s *Store) Drop() { s.memory.drop() }

// Summarize replaces the record of a settled component in memory by a summary. inputs identify what
// the component was settled with. Summarize returns false, and changes nothing, if another session
// wrote the record meanwhile.
func (s *Store) Summarize(r *Stored, inputs fingerprint.Sum) bool {
	return s.memory.summarize(r, &summary{
		inputs: inputs, version: recordVersionOf(r.ResourceVersion), record: r.sum, pin: r.Pin, delivered: unique.Make(r.Delivered()),
	})
}

// Settled returns the inputs with which a component was settled, and what was delivered then. It
// returns false if the component has no summary, or if the records of the cluster were dropped.
func (s *Store) Settled(component string) (inputs fingerprint.Sum, last Delivered, _ bool) {
	was := s.memory.summary(component)
	if was == nil || !s.memory.isListed() {
		return fingerprint.Sum{}, Delivered{}, false
	}
	return was.inputs, was.delivered.Value(), true
}

// Unsettle drops the summary of a component, so that its record is read again.
func (s *Store) Unsettle(component string) { s.memory.dropSummary(component) }

// IsUnfenced reports whether this session took a component over in the middle of an apply, and has
// not touched all objects with an open intent since.
func (s *Store) IsUnfenced(component string) bool { return s.memory.isUnfenced(component) }

// Fenced says that all objects with an open intent were touched.
func (s *Store) Fenced(component string) { s.memory.setUnfenced(component, false) }

// Announcing returns how many announcements wait for a write that is under way.
func (s *Store) Announcing() int {
	s.announcer.mu.Lock()
	defer s.announcer.mu.Unlock()
	return len(s.announcer.waiting)
}

// List returns the components that have a record in the cluster, in order. It remembers their
// records, and finds the components with parts that no record names.
func (s *Store) List(ctx context.Context) ([]string, error) {
	names, err := s.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", s.cluster, err)
	}
	return names, nil
}

func (s *Store) list(ctx context.Context) ([]string, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	if _, err := s.announcer.entry(ctx, droppedTakeovers, ""); err != nil {
		return nil, err // read once here instead of once per record
	}
	var names []string
	err := s.secrets.listRecords(ctx, func(head *corev1.Secret) {
		component := head.Labels[Label]
		if head.Name != recordPrefix+component {
			return // not a Secret of Keelson
		}
		names = append(names, component)
		if was := s.memory.summary(component); was != nil && was.version == recordVersionOf(head.ResourceVersion) && was.record == sumOf(head) {
			return // settled, and its record is unchanged
		}
		s.memory.forget(component)
		if r, err := s.decode(ctx, component, head); err == nil { // an error shows when the record is read
			s.memory.remember(r)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	s.memory.list(names)
	return names, s.parts.findLitter(ctx, s.memory.names)
}

// ensureListed lists the records, unless they were listed before.
func (s *Store) ensureListed(ctx context.Context) error {
	if s.memory.isListed() {
		return nil
	}
	_, err := s.list(ctx)
	return err
}
