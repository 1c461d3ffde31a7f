package differ

import "maps"

// recreate judges the creation anew of an object that was deleted in the cluster. It is
// judged as if the object were still there as it was recorded: a deletion is no approval,
// and nothing that git has to approve passes because somebody deleted the object. It
// reports whether the object stays as it was recorded.
//
// An object that Keelson itself deleted, to replace it, comes without a record.
func (c *comparison) recreate() (bool, error) {
	if c.live != nil || c.state.Recorded == nil {
		return false, nil
	}
	// Of another version of the API, it is compared by the names of its fields.
	recorded := maps.Clone(c.state.Recorded)
	recorded["apiVersion"] = c.target["apiVersion"]
	was := c.asIfLive(recorded)
	if err := was.readOwners(); err != nil {
		return false, err
	}
	worst := was.decideApproved(was.rows(was.recorded))
	c.change.NodesUnread = c.change.NodesUnread || was.change.NodesUnread
	c.change.Hash, c.change.Approved = was.change.Hash, was.change.Approved
	if was.change.State != StateHeld && was.change.State != StateDenied {
		return false, nil
	}
	c.trials = was.trials
	c.change.Warnings, c.change.Rule = was.change.Warnings, was.change.Rule
	c.change.Fields = was.change.Fields
	for i := range c.change.Fields {
		c.change.Fields[i].Live = nil
	}
	c.restore(was, worst)
	return true, nil
}

// asIfLive compares the target with an object that is not there.
func (c *comparison) asIfLive(object map[string]any) *comparison {
	policy := c.policy
	policy.OwnersByRecord = true
	was := newComparison(Schemas{}, State{ID: c.state.ID, Recorded: object, Target: c.state.Target, Live: object, OwnersRead: true, Instances: &Instances{}}, policy, c.effort)
	was.typ, was.schema, was.tracing = c.typ, c.schema, c.tracing
	return was
}

const (
	becauseRestored = "it was deleted in the cluster, and its change waits: it is created as it was recorded"
	becauseGone     = "it was deleted in the cluster, and its change waits: Keelson records no data of Secrets, so it stays away until the change is approved, or taken back in git"
)

// restore creates the object with what was recorded of the fields that are held.
func (c *comparison) restore(was *comparison, worst ObjectState) {
	object := was.recorded
	if worst == StateChanged { // some fields wait, and the rest goes its way
		carve := carver{c.typ.Schema}
		object, _ = carve.graft(c.typ.TypeRef, carve.without(c.typ.TypeRef, c.target, was.waiting),
			carve.extract(c.typ.TypeRef, was.recorded, was.waiting)).(map[string]any)
	}
	if c.mask.hides(object) {
		c.change.stop(was.change.State, c.change.Rule, becauseGone)
		return
	}
	c.change.Op, c.change.State = OpCreate, was.change.State
	c.change.Because = becauseRestored
	c.change.Patch, c.change.Probe, c.change.Record = object, object, c.mask.of(object)
	c.change.RecordStale = !equal(c.change.Record, any(c.state.Recorded))
	c.differing = nil // nothing of git's is sent that could not fit
	c.foresee()
}
