package differ

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const (
	// ruleOtherComponent holds an object that another component applied.
	ruleOtherComponent = "other-component"
	ruleBudget         = "deletion-budget"
	// helmPolicy is Helm's annotation for an object that outlives its release.
	helmPolicy = "helm.sh/resource-policy"
)

// remove plans for an object that is no longer wanted. The object is deleted if it is still
// Keelson's, and no rule prevents it. An object that another client took over is forgotten, with the
// reason.
func (c *comparison) remove() error {
	if c.recorded == nil {
		// Not Keelson's, or found only by its label. Without a record no object is deleted.
		return nil
	}
	released, err := c.released()
	switch {
	case err != nil:
		return err
	case c.change.Retained != "" || c.change.Unread.Uses || c.change.Because != "": // an earlier version that stays
	case released != "" && c.state.Waits != "":
		c.change.postpone(c.state.Waits)
	case released != "":
		c.forget(released)
	case deleting(c.state.Live):
		c.change.State, c.change.Because = StateChanged, beingDeleted(c.state.Live)
	case c.change.Unread.Owners:
	default:
		c.delete()
	}
	return nil
}

// forget drops the object from the record and leaves it in the cluster.
func (c *comparison) forget(because string) {
	c.change.Op, c.change.State, c.change.Because = OpForget, StateSynced, because
	c.change.Record, c.change.RecordStale = nil, true
}

// released returns why Keelson may no longer delete an object. It is empty if Keelson may, if
// managedFields have to be read first, or if the object is an earlier version that stays.
func (c *comparison) released() (string, error) {
	uid := nested(c.state.Live, "metadata", "uid")
	switch bearer := c.bearer(); {
	case c.state.RecordedUID != "" && uid != c.state.RecordedUID:
		return "another client deleted it and created another object of its name, which was left in place", nil
	case c.policy.AnyComponent:
	case bearer == "":
		return "it no longer carries the label " + v1alpha1.LabelComponent + "=" + c.policy.Component + " and was left in place", nil
	case bearer != c.policy.Component:
		return "component " + bearer + " has taken it over", nil
	}
	if annotation := keepAnnotation(c.live, c.recorded); annotation != "" {
		return annotation, nil
	}
	if c.policy.configVersions().retain(c) {
		return "", nil
	}
	if c.policy.AnyComponent { // files seldom have managedFields
		return "", nil
	}
	if err := c.readOwners(); err != nil {
		return "", err
	}
	switch {
	case !c.who.read:
		c.change.Unread.Owners = true
	case !slices.ContainsFunc(c.who.entries, func(e ownerEntry) bool { return e.manager == v1alpha1.FieldManager }):
		return "Keelson owns none of its fields anymore, so it was left in place", nil
	}
	return "", nil
}

// bearer returns the component whose label the live object has.
func (c *comparison) bearer() string {
	if c.policy.AnyComponent {
		return c.policy.Component
	}
	name, _ := nested(c.live, "metadata", "labels", v1alpha1.LabelComponent).(string)
	return name
}

// annotated reports whether the object has an annotation, or had it when it was applied. Removing
// an annotation that protects the object does not allow its deletion.
func annotated(live, recorded map[string]any, name, value string) bool {
	return nested(live, "metadata", "annotations", name) == value ||
		nested(recorded, "metadata", "annotations", name) == value
}

// keepAnnotation returns the annotation that forbids to delete an object; "" without one.
func keepAnnotation(live, recorded map[string]any) string {
	switch {
	case annotated(live, recorded, helmPolicy, "keep"):
		return helmPolicy + ": keep"
	case annotated(live, recorded, v1alpha1.AnnotationPrune, v1alpha1.PruneDisabled):
		return v1alpha1.AnnotationPrune + ": " + v1alpha1.PruneDisabled
	}
	return ""
}

// delete plans a deletion, unless another component or a danger rule prevents it.
func (c *comparison) delete() {
	if c.state.Waits != "" {
		c.change.postpone(c.state.Waits)
		return
	}
	c.change.Op, c.change.State = OpDelete, StateChanged
	c.change.Hash = hashOf("delete", c.state.ID.String(), fmt.Sprint(nested(c.state.Live, "metadata", "uid")))
	c.change.Approved = c.approved()
	c.policy.configVersions().nameLast(c)
	r, found := c.rules.find(v1alpha1.OnDeleteObject, nil)
	for _, f := range c.rules.fired {
		c.change.warn(f, "")
	}
	if found {
		switch r.effect() {
		case v1alpha1.EffectHold:
			if !c.change.Approved {
				c.change.stopBy(r, StateHeld)
			}
		case v1alpha1.EffectKeep:
			c.forget("rule " + r.Name + ": " + r.Because)
			c.change.Warnings = nil
		case v1alpha1.EffectAllow:
		default: // deny, or an effect that this version does not know
			c.change.stopBy(r, StateDenied)
		}
	}
}

// JudgeDeletion returns what danger rules decide about the deletion of a live object that is in no
// plan. The Op is [OpDelete], unless a rule holds, denies or keeps, or [Change.Unread] is set.
// The caller must check the object's owner and annotations. The error names an object that is no
// JSON or is nested too deeply, or is like that of [Compare]: [ErrTooMuch], or the end of ctx.
func JudgeDeletion(ctx context.Context, schemas Schemas, id ID, live map[string]any, policy Policy) (Change, error) {
	c := newComparison(schemas, State{ID: id, Live: live, OwnersRead: true}, policy, newEffort(ctx, compareEffort))
	if err := checkObject("live object", c.live); err != nil {
		return Change{}, fmt.Errorf("%s: %w", id, err)
	}
	c.delete()
	if c.change.Unread.Nodes {
		c.change.Op = OpNone
	}
	if err := c.effort.err; err != nil {
		return Change{}, fmt.Errorf("%s: %w", id, err)
	}
	return c.change, nil
}

// postpone makes a deletion wait.
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

// deletionsLast makes deletions wait while any wanted object can't reach its target. The deleted
// objects may be those that the wanted object replaces.
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
		case c.Op == OpNone && c.State == StateChanged && !c.Unread.Any():
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

// boundDeletions holds all deletions and replacements if there are more than max(10, 10 % of the
// component's objects). Such a plan looks like a mistake in git or in a chart. Approved deletions, and
// those of unused earlier versions, are no mistake: they do not count, and are not held.
func (p *Plan) boundDeletions() {
	const least, percent = 10, 10
	bound := func(c *Change) bool { return (c.Op == OpDelete || c.Op == OpReplace) && !c.Approved && !c.Unused }
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
