package records

import (
	"context"
	"iter"

	"github.com/keelson-io/keelson/differ"
)

// MayHold returns the components, except one, whose records may have one of some objects, by name.
// It includes components of which too little is in memory to know.
func (s *Store) MayHold(ctx context.Context, but string, ids iter.Seq[differ.ID]) ([]string, error) {
	if err := s.ensureListed(ctx); err != nil {
		return nil, err
	}
	has, hashes := map[differ.ID]bool{}, map[uint64]bool{}
	for id := range ids {
		has[id], hashes[hashID(id)] = true, true
	}
	return s.memory.mayHold(but, func(id differ.ID) bool { return has[id] }, hashes), nil
}

// Holders returns the components, except the given one, whose records hold the same object as
// applied, or may hold it. It makes no request.
func (s *Store) Holders(but string, o *Object) []string {
	sure, maybe := s.memory.holders(but, o)
	return append(sure, maybe...)
}

// Tidy removes objects that other components have taken over from the record of a component that is
// no longer in git. While an object moves, the records of both components hold it; moved tells
// whether it has moved to the other one.
//
// Tidy returns the number of remaining objects, and deletes a record without any. If a record never
// had an object, its hooks count: the record alone tells what ran. Only records that this process
// knows count; the record of a settled component is read if it may hold an object.
func (s *Store) Tidy(ctx context.Context, component string, moved Moved) (int, error) {
	r, err := s.Read(ctx, component)
	if err != nil {
		return 0, err
	}
	var left []Object
	for i := range r.Objects {
		taken, err := s.takenOver(ctx, component, &r.Objects[i], moved)
		if err != nil {
			return 0, err
		}
		if !taken {
			left = append(left, r.Objects[i])
		}
	}
	remaining := len(left)
	if len(r.Objects) == 0 {
		remaining = len(r.Hooks)
	}
	switch {
	case remaining == 0 && r.ResourceVersion != "":
		if err := s.Remove(ctx, r); err != nil {
			return 0, err
		}
	case len(left) < len(r.Objects):
		next := r.Record
		next.Objects = left
		if _, err := s.Write(ctx, r, next); err != nil {
			return remaining, err
		}
	}
	return remaining, nil
}

// Moved tells whether a recorded object is now another component's, whose record holds it, too.
type Moved func(ctx context.Context, o *Object, to string) (bool, error)

// takenOver reports whether another component has taken an object over.
func (s *Store) takenOver(ctx context.Context, from string, o *Object, moved Moved) (bool, error) {
	if o.UID == "" {
		return false, nil
	}
	sure, maybe := s.memory.holders(from, o)
	for _, name := range maybe {
		r, err := s.Read(ctx, name)
		if err != nil {
			return false, err
		}
		if r.Has(o) {
			sure = append(sure, name)
		}
	}
	for _, name := range sure {
		if taken, err := moved(ctx, o, name); taken || err != nil {
			return taken, err
		}
	}
	return false, nil
}
