package records

import (
	"context"
	"errors"
	"fmt"

	"github.com/keelson-io/keelson/differ"
)

// mergeAnnouncement adds the updates that were announced since a record was written to the record,
// as intents.
func (s *Store) mergeAnnouncement(ctx context.Context, r *Stored) error {
	a, err := s.announcer.entry(ctx, r.Component, r.ResourceVersion)
	if err != nil || a == nil {
		return err
	}
	r.announced = a
	for _, id := range a.Objects {
		// Only updates of recorded objects are announced.
		if o := r.Find(id); o != nil && o.Intent == "" {
			o.Intent = IntentUpdate
			r.Unfinished = true // an announcement names no target
		}
	}
	if a.Writer != s.announcer.writer {
		r.Writer = a.Writer // so that this session takes the component over
	}
	return nil
}

// takeOver takes over a component whose record another session wrote last, if this session is still
// the chosen one.
func (s *Store) takeOver(ctx context.Context, old *Stored) error {
	if s.Owns(old) {
		return nil
	}
	if err := s.confirm(ctx); err != nil {
		return err
	}
	return s.announceTakeover(ctx, old)
}

// announceTakeover announces that this session takes a component over, with the objects that the session
// before had announced. From then on no other session can announce updates of the component
// without a newer record. The error is a [takeoverError] when there is an entry that the record lacks.
func (s *Store) announceTakeover(ctx context.Context, old *Stored) error {
	if old.ResourceVersion == "" {
		return nil // updates are announced only of components with a record
	}
	a := &announceRequest{component: old.Component, record: old.ResourceVersion, takeover: true, known: old.announced}
	if old.announced != nil {
		a.objects = old.announced.Objects
	}
	err := s.announcer.write(ctx, a)
	refusal, refused := errors.AsType[*takeoverError](err)
	if refused && (before(old.ResourceVersion, refusal.by.Record) || before(old.ResourceVersion, refusal.by.TakenOverAt)) {
		// An entry that is newer than the current record comes from a backup of another
		// cluster, or from the time before this cluster was restored.
		head, getErr := s.secrets.Get(ctx, recordPrefix+old.Component)
		if getErr != nil {
			return getErr
		}
		if head != nil && head.ResourceVersion == old.ResourceVersion {
			a.invalid = &refusal.by
			err = s.announcer.write(ctx, a)
		}
	}
	return err
}

func (s *Store) confirm(ctx context.Context) error {
	if s.writer.Confirm == nil {
		return nil
	}
	if err := s.writer.Confirm(ctx); err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	return nil
}

// Announce announces updates of recorded objects, instead of writing their intents into the record.
// It returns false if the intents have to be written into the record: another session wrote the
// record last, the record has open intents, or the announcement failed.
func (s *Store) Announce(ctx context.Context, r *Stored, ids []differ.ID) bool {
	if r.ResourceVersion == "" || !s.Owns(r) || r.Open() || len(ids) > announcedObjects {
		return false
	}
	err := s.announcer.write(ctx, &announceRequest{component: r.Component, record: r.ResourceVersion, objects: ids})
	if err != nil {
		s.announcer.release(r.Component)
		return false // the write of the record reports errors of the API server
	}
	return true
}

// EndAnnouncement ends this session's announcement of a component, whose record was written since:
// the record now holds what is still uncertain.
func (s *Store) EndAnnouncement(component string) { s.announcer.release(component) }

// RetractAnnouncement removes this session's announcement of a component whose record did not
// change.
func (s *Store) RetractAnnouncement(ctx context.Context, component string) {
	s.announcer.retract(ctx, component)
}
