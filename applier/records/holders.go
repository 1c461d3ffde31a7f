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
// no longer in git. It returns the number of remaining objects, and deletes a record without
// objects. Only records that this process knows count; the record of a settled component is read if
// it may hold an object.
func (s *Store) Tidy(ctx context.Context, component string) (int, error) {
	r, err := s.Read(ctx, component)
	if err != nil {
		return 0, err
	}
	var left []Object
	for _, o := range r.Objects {
		taken, err := s.takenOver(ctx, component, &o)
		if err != nil {
			return 0, err
		}
		if !taken {
			left = append(left, o)
		}
	}
	switch {
	case len(left) == 0 && r.ResourceVersion != "":
		if err := s.Remove(ctx, r); err != nil {
			return 0, err
		}
	case len(left) < len(r.Objects):
		next := r.Record
		next.Objects = left
		if _, err := s.Write(ctx, r, next); err != nil {
			return len(r.Objects), err
		}
	}
	return len(left), nil
}

// takenOver reports whether the record of another component holds the same object as applied.
func (s *Store) takenOver(ctx context.Context, from string, o *Object) (bool, error) {
	if o.UID == "" {
		return false, nil
	}
	sure, maybe := s.memory.holders(from, o)
	if len(sure) > 0 {
		return true, nil
	}
	for _, name := range maybe {
		r, err := s.Read(ctx, name)
		if err != nil {
			return false, err
		}
		if r.Has(o) {
			return true, nil
		}
	}
	return false, nil
}
