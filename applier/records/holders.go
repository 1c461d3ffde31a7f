package records

import (
	"context"
	"iter"
	"slices"

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
// no longer in git. Only components in git, as inGit says, take objects over: while an object moves,
// both records hold it, and a caller with another commit must not take it from the new one.
//
// Tidy returns the number of remaining objects and recorded hooks, and deletes a record without any.
// Hooks count because the record alone tells what ran. Only records that this process knows count;
// the record of a settled component is read if it may hold an object.
func (s *Store) Tidy(ctx context.Context, component string, inGit func(component string) bool) (int, error) {
	r, err := s.Read(ctx, component)
	if err != nil {
		return 0, err
	}
	var left []Object
	for _, o := range r.Objects {
		taken, err := s.takenOver(ctx, component, &o, inGit)
		if err != nil {
			return 0, err
		}
		if !taken {
			left = append(left, o)
		}
	}
	remaining := len(left) + len(r.Hooks)
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

// takenOver reports whether the record of another component in git holds the same object as applied.
func (s *Store) takenOver(ctx context.Context, from string, o *Object, inGit func(component string) bool) (bool, error) {
	if o.UID == "" {
		return false, nil
	}
	sure, maybe := s.memory.holders(from, o)
	if slices.ContainsFunc(sure, inGit) {
		return true, nil
	}
	for _, name := range maybe {
		if !inGit(name) {
			continue
		}
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
