package applier

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// Claims holds what the other components of a cluster want. An object that another component wants
// is transferred instead of deleted. No object is deleted while the target of another component is
// unknown.
type Claims struct {
	wanted  map[differ.ID][]claim
	unknown map[string]string // why, by component
	// limits are those of each component's project; nil: it is in no project. A missing entry means
	// that the component is not in git.
	limits map[string]*differ.ProjectLimits
}

// claim is an object's entry in the target of one component.
type claim struct {
	component, source string
	when              string // condition of the claim; empty: always
	moves             string // when the claim ends; empty: never
}

// describe describes what a component does about an object, and where and when it wants the object.
func (c claim) describe(does string) string {
	text := fmt.Sprintf("component %s%s (%s)", c.component, does, c.source)
	if c.when != "" {
		text += " " + c.when
	}
	return text
}

// NewClaims returns an empty set.
func NewClaims() *Claims {
	return &Claims{wanted: map[differ.ID][]claim{}, unknown: map[string]string{}, limits: map[string]*differ.ProjectLimits{}}
}

// SetLimits says that a component is in git, and in which project; nil: in none. What its project
// does not allow it to have, the component does not claim.
func (c *Claims) SetLimits(component string, limits *differ.ProjectLimits) {
	c.limits[component] = limits
}

// claimsOn returns the claims on an object, without those that a project does not allow.
func (c *Claims) claimsOn(id differ.ID) []claim {
	return slices.DeleteFunc(slices.Clone(c.wanted[id]), func(one claim) bool {
		return c.limits[one.component].Refuses(id) != ""
	})
}

// claimOf returns the claim of one component on an object.
func (c *Claims) claimOf(component string, id differ.ID) (claim, bool) {
	all := c.claimsOn(id)
	i := slices.IndexFunc(all, func(one claim) bool { return one.component == component })
	if i < 0 {
		return claim{}, false
	}
	return all[i], true
}

// Add adds the objects that a component wants.
func (c *Claims) Add(component string, t *renderer.Target) {
	for _, o := range t.Objects {
		c.add(o, claim{component: component})
	}
}

// AddPinned adds the objects of a pinned component: those of the pinned delivery, and those that
// git wants now, which it gets when the pin ends.
func (c *Claims) AddPinned(w Desired, now *renderer.Target) {
	c.addBoth(w, now, claim{when: "as long as it is " + w.Pin.String(), moves: "when the pin ends"}, "once it is no longer "+w.Pin.String())
}

// AddWaiting adds the objects of a component that a rollout has not released yet: those it has, and
// those that git wants now; nil: it is to be removed.
func (c *Claims) AddWaiting(w Desired, now *renderer.Target) {
	if now == nil {
		now = &renderer.Target{}
	}
	c.addBoth(w, now, claim{when: "until it is released in its rollout", moves: "when that is released in its rollout"}, "once it is released in its rollout")
}

// addBoth adds the objects that a component has for some time, and those that it gets later.
func (c *Claims) addBoth(w Desired, now *renderer.Target, meanwhile claim, then string) {
	has, gets := idsOf(w.Target), idsOf(now)
	for _, o := range w.Target.Objects {
		one := claim{component: w.Component}
		if id, _ := differ.Identify(o.Content); !gets[id] {
			one.when, one.moves = meanwhile.when, meanwhile.moves
		}
		c.add(o, one)
	}
	for _, o := range now.Objects {
		if id, _ := differ.Identify(o.Content); !has[id] {
			c.add(o, claim{component: w.Component, when: then})
		}
	}
}

func idsOf(t *renderer.Target) map[differ.ID]bool {
	out := make(map[differ.ID]bool, len(t.Objects))
	for _, o := range t.Objects {
		id, _ := differ.Identify(o.Content)
		out[id] = true
	}
	return out
}

func (c *Claims) add(o *renderer.Object, one claim) {
	id, _ := differ.Identify(o.Content)
	one.source = o.Source.String()
	if !slices.Contains(c.wanted[id], one) {
		c.wanted[id] = append(c.wanted[id], one)
	}
}

// AddUnknown adds a component whose target is unknown, with the reason.
func (c *Claims) AddUnknown(component, why string) { c.unknown[component] = firstLine(why) }

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return strings.TrimSuffix(line, ":")
}

// unknowns returns the first component whose target is unknown, by name.
func (c *Claims) unknowns() (component, why string) {
	for name := range c.unknown {
		if component == "" || name < component {
			component = name
		}
	}
	return component, c.unknown[component]
}

// askOthers finds out what the other components of the cluster want, if this matters: before a
// deletion, and before a takeover. A converged cluster does not need it.
func (pl *planner) askOthers(ctx context.Context, p *Prepared) error {
	concerned := false
	for i := range p.Plan.Changes {
		concerned = concerned || p.concernsOthers(i)
	}
	if p.want.Others == nil || !concerned {
		return nil
	}
	claims, err := p.others(ctx)
	if err != nil {
		return err
	}
	for i := range p.Plan.Changes {
		s := &p.states[i]
		switch {
		case !p.concernsOthers(i):
		case s.Target == nil && p.Plan.Changes[i].Op == differ.OpForget:
			if s.Waits, err = pl.waitsForRecord(ctx, claims, s); err != nil {
				return err
			}
		case s.Target == nil:
			s.Waits = claims.waits(s.ID)
		default:
			if err := pl.contest(ctx, claims, s, p.want.Pin); err != nil {
				return err
			}
		}
	}
	if err := p.compare(ctx); err != nil {
		return err
	}
	return pl.readOwners(ctx, p) // of the objects to take over
}

// concernsOthers reports whether a change depends on what other components want. This holds for a
// deletion, even a held one, and for an object with another component's label. It holds, too, for
// an object that leaves the record, because another client deleted or changed it: the entry must
// stay until the component that wants the object now has it.
func (p *Prepared) concernsOthers(i int) bool {
	s, ch := &p.states[i], &p.Plan.Changes[i]
	switch {
	case s.Target != nil:
		return s.Live != nil && ch.OtherComponent()
	case ch.Op == differ.OpForget:
		return p.recorded(s.ID) != nil
	}
	return ch.Op == differ.OpDelete || ch.State == differ.StateHeld
}

// waits returns what the deletion of an object waits for; empty: nothing.
func (c *Claims) waits(id differ.ID) string {
	if by := c.claimsOn(id); len(by) > 0 {
		return "waits until " + by[0].describe(" has taken it over, which wants it")
	}
	if name, why := c.unknowns(); name != "" {
		return fmt.Sprintf("waits until it is known whether component %s wants it: %s", name, why)
	}
	return ""
}

// waitsForRecord returns what an entry of the record waits for before it is forgotten; empty:
// nothing. The component that wants the object now must have it in its record, as applied.
// Otherwise a deletion by another client would approve what git changes.
//
// A component whose target is unknown holds nothing up: the object is not deleted.
func (pl *planner) waitsForRecord(ctx context.Context, claims *Claims, s *differ.State) (string, error) {
	by := claims.claimsOn(s.ID)
	for _, one := range by {
		rec, err := pl.records.Read(ctx, one.component)
		if records.Damaged(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		if o := rec.Find(s.ID); o != nil && o.UID != "" && o.Intent == "" && (s.Live == nil || o.UID == uidOf(s.Live)) {
			return "", nil
		}
	}
	if len(by) == 0 {
		return "", nil
	}
	return "waits until " + by[0].describe(" has it, which wants it"), nil
}

// contest decides which component has an object that carries another component's label. The object
// is taken over if the other component's record has it, and its target does not.
func (pl *planner) contest(ctx context.Context, claims *Claims, s *differ.State, pin *records.Pin) error {
	from := (&unstructured.Unstructured{Object: s.Live}).GetLabels()[v1alpha1.LabelComponent]
	if by := claims.claimsOn(s.ID); len(by) > 0 {
		what := "leave it out of one of them"
		switch {
		case by[0].moves != "":
			what = "it moves " + by[0].moves
		case pin != nil:
			what = "this one is " + pin.String() + ", so end the pin, or leave it out of the other"
		}
		s.Contested = fmt.Sprintf("%s, beside this one (%s): %s", by[0].describe(" wants it, too"), s.Target.Source, what)
		return nil
	}
	if why, unknown := claims.unknown[from]; unknown {
		s.Contested = fmt.Sprintf("it belongs to component %s, and it is not known whether that wants it still: %s", from, why)
		return nil
	}
	rec, err := pl.records.Read(ctx, from)
	if err != nil {
		return err
	}
	o := rec.Find(s.ID)
	if o == nil || o.UID == "" || o.UID != uidOf(s.Live) {
		if s.RecordedUID != "" && s.RecordedUID == uidOf(s.Live) {
			relabelled(claims, s, from)
			return nil
		}
		s.Contested = fmt.Sprintf("its label names component %s, whose record does not have it: "+
			"find out who made it, and take the label off if it may be taken over", from)
		return nil
	}
	s.TransferredFrom, s.Recorded, s.Normal = from, o.Content, o.Normal
	return nil
}

// relabelled decides about an object of this component's own record, by its UID, with the label of
// another component. That component has no record of the object, and does not want it. Any tenant
// of a cluster can change a label, so the label is drift, unless the target of some component is
// unknown.
func relabelled(claims *Claims, s *differ.State, from string) {
	if name, why := claims.unknowns(); name != "" {
		s.Contested = fmt.Sprintf("its label names component %s, and whether component %s wants it is unknown: %s", from, name, why)
		return
	}
	s.Relabelled = true
}
