package applier

import (
	"context"
	"fmt"
	"maps"

	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// recordedElsewhere finds wanted objects that are not in the cluster, that this component never
// applied, and that the record of another component has. If the other component still wants the
// object, the object stays its own. Otherwise git moved the object here, and another client deleted
// it: it is judged by that record, so that its deletion approves nothing.
//
// A damaged record does not count: its own component reports it.
func (pl *planner) recordedElsewhere(ctx context.Context, p *Prepared) error {
	missing := map[differ.ID]*differ.State{}
	for i := range p.states {
		if s := &p.states[i]; s.Target != nil && s.Live == nil && s.Recorded == nil && s.Former == nil {
			missing[s.ID] = s
		}
	}
	if len(missing) == 0 {
		return nil
	}
	names, err := pl.records.MayHold(ctx, p.want.Component, maps.Keys(missing))
	if err != nil {
		return err
	}
	for _, name := range names {
		objects, err := pl.records.Objects(ctx, name)
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
func (c *Claims) judgeMissing(s *differ.State, from string, o *records.Object, want *Desired) {
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
	s.Former, s.Foreign = o.Former(), ""
	switch {
	case !inGit:
		s.Foreign = "component " + from + " recorded it, which is no longer in git"
	case limits.Name() != want.Limits.Name():
		s.Foreign = "component " + from + " recorded it, which is not of the same project"
	}
}
