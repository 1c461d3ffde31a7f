package differ

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const (
	// ruleOtherComponent holds what another component applied.
	ruleOtherComponent = "other-component"
	ruleBudget         = "deletion-budget"
	// helmPolicy is Helm's word for an object that outlives its release.
	helmPolicy = "helm.sh/resource-policy"
)

// remove plans the end of an object that is no longer wanted: it is deleted if
// it is still what Keelson applied and nobody may miss it. What is somebody
// else's by now is forgotten, with the reason.
func (c *comparison) remove() error {
	if c.recorded == nil {
		// Somebody else's, or found by label alone: without a record nothing is
		// deleted by inference.
		return nil
	}
	released, err := c.released()
	switch {
	case err != nil:
		return err
	case released != "":
		c.forget(released)
	case deleting(c.state.Live):
		c.change.State, c.change.Because = StateChanged, beingDeleted(c.state.Live)
	case c.change.OwnersUnread:
	default:
		c.delete()
	}
	return nil
}

// forget drops the object from the record and leaves it where it is.
func (c *comparison) forget(because string) {
	c.change.Op, c.change.State, c.change.Because = OpForget, StateSynced, because
	c.change.Record, c.change.RecordStale = nil, true
}

// released is why an object is no longer Keelson's to delete; empty: it is, or
// that can't be told before its managedFields are read.
func (c *comparison) released() (string, error) {
	uid := nested(c.state.Live, "metadata", "uid")
	switch bearer := c.bearer(); {
	case c.state.RecordedUID != "" && uid != c.state.RecordedUID:
		return "somebody deleted it and created another of its name, which was left in place", nil
	case c.policy.AnyComponent:
	case bearer == "":
		return "it no longer carries the label " + v1alpha1.LabelComponent + "=" + c.policy.Component + " and was left in place", nil
	case bearer != c.policy.Component:
		return "component " + bearer + " has taken it over", nil
	}
	if c.annotated(helmPolicy, "keep") {
		return helmPolicy + ": keep", nil
	}
	if c.annotated(v1alpha1.AnnotationPrune, v1alpha1.PruneDisabled) {
		return v1alpha1.AnnotationPrune + ": " + v1alpha1.PruneDisabled, nil
	}
	if c.policy.AnyComponent { // files seldom have managedFields
		return "", nil
	}
	if err := c.readOwners(); err != nil {
		return "", err
	}
	switch {
	case !c.who.read:
		c.change.OwnersUnread = true
	case !slices.ContainsFunc(c.who.entries, func(e ownerEntry) bool { return e.manager == v1alpha1.FieldManager }):
		return "none of its fields is Keelson's any more, and it was left in place", nil
	}
	return "", nil
}

// bearer is the component whose label the live object carries.
func (c *comparison) bearer() string {
	if c.policy.AnyComponent {
		return c.policy.Component
	}
	name, _ := nested(c.live, "metadata", "labels", v1alpha1.LabelComponent).(string)
	return name
}

// annotated reports whether the object has an annotation, or had it when it was
// applied: who takes the word away that protects it does not say that it may go.
func (c *comparison) annotated(name, value string) bool {
	return nested(c.live, "metadata", "annotations", name) == value ||
		nested(c.recorded, "metadata", "annotations", name) == value
}

// delete plans a deletion, as far as other components and the danger rules let it.
func (c *comparison) delete() {
	if c.state.Waits != "" {
		c.change.postpone(c.state.Waits)
		return
	}
	c.change.Op, c.change.State = OpDelete, StateChanged
	c.change.Hash = hashOf("delete", c.state.ID.String(), fmt.Sprint(nested(c.state.Live, "metadata", "uid")))
	c.change.Approved = c.approved()
	r, found := c.find(v1alpha1.OnDeleteObject, nil)
	for _, f := range c.fired {
		c.warn(f, "")
	}
	if found {
		switch r.effect() {
		case v1alpha1.EffectHold:
			if !c.change.Approved {
				c.change.stop(StateHeld, r.Name, r.because())
			}
		case v1alpha1.EffectKeep:
			c.forget("rule " + r.Name + ": " + r.Because)
			c.change.Warnings = nil
		case v1alpha1.EffectAllow:
		default: // deny, or an effect that this version does not know
			c.change.stop(StateDenied, r.Name, r.because())
		}
	}
}

// JudgeDeletion says what the danger rules make of the deletion of a live object that no
// plan has: the Op is [OpDelete], unless a rule holds, denies or keeps, or [Change.NodesUnread]. Who owns the object,
// and what its annotations say, is for the caller. The error names the object that is no
// JSON, nested too deeply, or larger than any API server takes; or it is as that of [Compare].
func JudgeDeletion(ctx context.Context, schemas Schemas, id ID, live map[string]any, policy Policy) (Change, error) {
	c := newComparison(schemas, State{ID: id, Live: live, OwnersRead: true}, policy, newEffort(ctx, compareEffort))
	if err := checkObject("live object", c.live); err != nil {
		return Change{}, fmt.Errorf("%s: %w", id, err)
	}
	c.delete()
	if c.change.NodesUnread {
		c.change.Op = OpNone
	}
	if err := c.effort.err; err != nil {
		return Change{}, fmt.Errorf("%s: %w", id, err)
	}
	return c.change, nil
}

// postpone lets a deletion wait.
func (c *Change) postpone(because string) {
	c.stop(StateChanged, "", because)
}

func deleting(live map[string]any) bool {
	return nested(live, "metadata", "deletionTimestamp") != nil
}

func beingDeleted(live map[string]any) string {
	list, _ := nested(live, "metadata", "finalizers").([]any)
	if len(list) == 0 {
		return "it is being deleted"
	}
	names := make([]string, 0, len(list))
	for _, f := range list {
		names = append(names, fmt.Sprint(f))
	}
	return "it is being deleted, and waits for the finalizers " + strings.Join(names, ", ")
}

// deletionsLast lets the deletions wait while anything that is wanted can't be
// brought about: what goes may be what the other is to replace.
func (p *Plan) deletionsLast(states []State) {
	because := ""
	for i := range p.Changes {
		c := &p.Changes[i]
		if states[i].Target == nil {
			continue
		}
		switch {
		case c.State == StateHeld:
			because = fmt.Sprintf("waits until %s is as git wants it, which is held", c.ID)
		case c.State == StateDenied:
			because = fmt.Sprintf("waits until %s is as git wants it, which is denied", c.ID)
		case c.Op == OpNone && c.State == StateChanged && !c.OwnersUnread && !c.InstancesUnread && !c.NodesUnread:
			because = fmt.Sprintf("waits until %s is as git wants it: %s", c.ID, c.Because)
		}
		if because != "" {
			break
		}
	}
	if because == "" {
		return
	}
	for i := range p.Changes {
		if p.Changes[i].Op == OpDelete {
			p.Changes[i].postpone(because)
		}
	}
}

// boundDeletions holds every deletion when there are more than
// max(10, 10 % of the component's objects): a mistake in git or in a chart
// looks just like this. Approved ones are no mistake.
func (p *Plan) boundDeletions() {
	const least, percent = 10, 10
	bound := func(c *Change) bool { return (c.Op == OpDelete || c.Op == OpReplace) && !c.Approved }
	deletions := 0
	for i := range p.Changes {
		if bound(&p.Changes[i]) {
			deletions++
		}
	}
	if deletions <= max(least, len(p.Changes)*percent/100) {
		return
	}
	for i := range p.Changes {
		if c := &p.Changes[i]; bound(c) {
			c.stop(StateHeld, ruleBudget,
				fmt.Sprintf("%d of %d objects would be deleted at once", deletions, len(p.Changes)))
		}
	}
}
