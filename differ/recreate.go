package differ

import (
	"errors"
	"maps"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/renderer"
)

// recreate judges the creation of an object that was deleted in the cluster. The object is
// judged as if it were still there as it was recorded: a deletion is no approval of what git
// changes. recreate reports whether a rule holds or denies that change. The object is then
// created as it was recorded. A version of a ConfigMap or Secret is judged by the version in force.
func (c *comparison) recreate() (bool, error) {
	recorded := c.state.Recorded
	if recorded == nil {
		recorded = c.state.Former
	}
	if stopped, err := c.policy.configVersions().judge(c); err != nil || stopped {
		return stopped, err
	}
	if c.live != nil || recorded == nil {
		return false, nil
	}
	was := c.asIfLive(recorded)
	if err := was.readOwners(); err != nil {
		return false, err
	}
	worst := was.decideApproved(was.rows())
	c.change.Unread.Nodes = c.change.Unread.Nodes || was.change.Unread.Nodes
	if was.change.State != StateHeld && was.change.State != StateDenied {
		c.change.warnToo(was.change.Warnings)
		c.change.Hash, c.change.Approved = was.change.Hash, was.change.Approved
		return false, nil
	}
	c.change.Hash, c.change.Approved = was.change.Hash, was.change.Approved
	c.rules.trials = was.rules.trials
	c.change.Warnings, c.change.Rule = was.change.Warnings, was.change.Rule
	c.change.Fields = was.change.Fields
	for i := range c.change.Fields {
		c.change.Fields[i].Live = nil
	}
	c.restore(was, recorded, worst)
	return true, nil
}

// asIfLive compares the target with an object that is not there. Of another version of the
// API, the object is compared by the names of its fields.
func (c *comparison) asIfLive(object map[string]any) *comparison {
	object = maps.Clone(object)
	object["apiVersion"] = c.target["apiVersion"]
	policy := c.policy
	policy.OwnersByRecord = true
	was := newComparison(Schemas{}, State{ID: c.state.ID, Recorded: object, Target: c.state.Target, Live: object, OwnersRead: true, CustomResources: &CustomResources{}}, policy, c.effort)
	was.view.typ, was.view.hash = c.view.typ, c.view.hash
	was.rules.tracing, was.rules.imagined = c.rules.tracing, true
	return was
}

// errStatusGone is why a condition that reads the status has no answer.
var errStatusGone = errors.New("the object was deleted, and its status with it")

const (
	becauseRestored = "it was deleted in the cluster, and its change waits: it is created as it was recorded"
	becauseGone     = "it was deleted in the cluster, and its change waits: it stays away until the change is approved, or taken back in git, because "
)

// restore creates the object with what was recorded of the fields that are held.
func (c *comparison) restore(was *comparison, recorded map[string]any, worst ObjectState) {
	object := was.recorded
	if worst == StateChanged { // some fields wait, and the rest goes its way
		carve := carver{c.view.typ.Schema}
		object, _ = carve.graft(c.view.typ.TypeRef, carve.without(c.view.typ.TypeRef, c.target, was.waiting),
			carve.extract(c.view.typ.TypeRef, was.recorded, was.waiting)).(map[string]any)
	}
	object = labelledAs(c.target, object)
	if why := c.unfitToRestore(object, recorded); why != "" {
		c.change.stop(was.change.State, c.change.Rule, becauseGone+why)
		return
	}
	c.change.Op, c.change.State = OpCreate, was.change.State
	c.change.Because = becauseRestored
	c.change.Patch, c.change.DryRunBody, c.change.Record = object, object, c.view.mask.apply(object)
	c.change.RecordStale = !equal(c.change.Record, any(c.state.Recorded))
	c.differing = nil // nothing of git's is sent that could not fit
	c.foresee()
}

// labelledAs returns an object with the component's label, as the target has it. The record of an object that git moved to
// this component has another label.
func labelledAs(target, object map[string]any) map[string]any {
	label, _ := nested(target, "metadata", "labels", v1alpha1.LabelComponent).(string)
	if label == "" || nested(object, "metadata", "labels", v1alpha1.LabelComponent) == label {
		return object
	}
	object = maps.Clone(object)
	metadata, _ := object["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	labels, _ := metadata["labels"].(map[string]any)
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]any{}
	}
	labels[v1alpha1.LabelComponent] = label
	metadata["labels"], object["metadata"] = labels, metadata
	return object
}

// unfitToRestore is why an object can't be created as it was recorded; empty: it can. The
// record is in the cluster, and another client may have changed it: it is judged as any
// creation is.
func (c *comparison) unfitToRestore(object, recorded map[string]any) string {
	id, _ := Identify(object)
	switch {
	case c.state.Foreign != "":
		return c.state.Foreign
	case recorded["apiVersion"] != c.target["apiVersion"]:
		return "it was recorded in another version of the API"
	case c.view.mask.hides(object):
		return "Keelson records no data of Secrets"
	case id != c.state.ID:
		return "the record names another object"
	}
	creation := newComparison(Schemas{}, State{ID: c.state.ID, Target: &renderer.Object{Content: object}}, c.policy, c.effort)
	creation.view.typ, creation.view.hash = c.view.typ, c.view.hash
	if creation.decideAll(creation.rows()) == StateDenied {
		return "a rule denies the creation of the recorded object"
	}
	c.change.Unread.Nodes = c.change.Unread.Nodes || creation.change.Unread.Nodes
	return ""
}
