package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/keelson-io/keelson/differ"
)

// recordedElsewhere finds wanted objects that are not in the cluster, that this component never
// applied, and that the record of another component has. If the other component still wants the
// object, the object stays its own. Otherwise git moved the object here, and another client deleted
// it: it is judged by that record, so that its deletion approves nothing.
//
// A damaged record does not count: its own component reports it.
func (c *Cluster) recordedElsewhere(ctx context.Context, p *Prepared) error {
	missing := map[differ.ID]*differ.State{}
	for i := range p.states {
		if s := &p.states[i]; s.Target != nil && s.Live == nil && s.Recorded == nil && s.Former == nil {
			missing[s.ID] = s
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := c.haveListed(ctx); err != nil {
		return err
	}
	for _, name := range c.mayHold(p.want.Component, missing) {
		objects, err := c.validObjects(ctx, name)
		if err != nil {
			return err
		}
		for i := range objects {
			s := missing[objects[i].ID]
			if s == nil {
				continue
			}
			claims, err := p.others(ctx)
			if err != nil {
				return err
			}
			claims.judgeMissing(s, name, &objects[i], &p.want)
		}
	}
	return nil
}

// haveListed lists the records, unless they were listed before.
func (c *Cluster) haveListed(ctx context.Context) error {
	c.mu.Lock()
	listed := c.listed
	c.mu.Unlock()
	if listed {
		return nil
	}
	_, err := c.listRecords(ctx)
	return err
}

// validObjects returns the objects in the record of a component. A damaged record has none: it must
// not stop the creations of all components.
func (c *Cluster) validObjects(ctx context.Context, component string) ([]RecordedObject, error) {
	rec, err := c.readRecord(ctx, component)
	if damaged(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return rec.Objects, nil
}

// others returns what the other components want, computed once a plan; an empty set: there are none.
func (p *Prepared) others(ctx context.Context) (*Claims, error) {
	if p.claims != nil {
		return p.claims, nil
	}
	if p.want.Others == nil {
		return NewClaims(), nil
	}
	claims, err := p.want.Others(ctx)
	if err != nil {
		return nil, fmt.Errorf("what other components want: %w", err)
	}
	p.claims = claims
	return claims, nil
}

// judgeMissing decides what the record of another component says about a wanted object that is not
// in the cluster.
func (c *Claims) judgeMissing(s *differ.State, from string, o *RecordedObject, want *Desired) {
	limits, inGit := c.limits[from]
	if limits.Refuses(s.ID) != "" {
		return // what a project may no longer have says nothing about the object of another component
	}
	if one, wants := c.claimOf(from, s.ID); wants {
		s.Contested = fmt.Sprintf("%s, beside this one (%s): leave it out of one of them", one.describe(" has it and wants it"), s.Target.Source)
		return
	}
	if why, unknown := c.unknown[from]; unknown {
		s.Contested = fmt.Sprintf("component %s has it, and it is not known whether that wants it still: %s", from, why)
		return
	}
	if s.Former != nil && !inGit {
		return // the record of a component in git is newer
	}
	s.Former, s.Foreign = former(o), ""
	switch {
	case !inGit:
		s.Foreign = "component " + from + " recorded it, which is no longer in git"
	case limits.Name() != want.Limits.Name():
		s.Foreign = "component " + from + " recorded it, which is not of the same project"
	}
}

// damaged reports whether an error says that a record exists, and has no valid content.
func damaged(err error) bool {
	return errors.As(err, new(*unreadableRecordError)) || errors.As(err, new(*missingPartError))
}

// mayHold returns the components, except one, whose records may have one of some objects, by name.
// It includes components of which neither the record nor the IDs of its objects are in memory.
func (c *Cluster) mayHold(but string, objects map[differ.ID]*differ.State) []string {
	hashes := make(map[uint64]bool, len(objects))
	for id := range objects {
		hashes[hashID(id)] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for name, ids := range c.recordedObjects {
		if c.records[name] == nil && slices.ContainsFunc(ids, func(hash uint64) bool { return hashes[hash] }) {
			out = append(out, name)
		}
	}
	for name, r := range c.records {
		_, known := c.recordedObjects[name]
		switch {
		case r == nil && !known:
			out = append(out, name)
		case r != nil && slices.ContainsFunc(r.Objects, func(o RecordedObject) bool { return objects[o.ID] != nil }):
			out = append(out, name)
		}
	}
	for name := range c.settledCache {
		if _, known := c.recordedObjects[name]; !known {
			out = append(out, name)
		}
	}
	out = slices.DeleteFunc(out, func(name string) bool { return name == but })
	slices.Sort(out)
	return out
}
