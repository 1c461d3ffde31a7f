package applier

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// Claims are what the other components of a cluster want there. Nothing that one
// of them wants is deleted: it moves. And nothing is, as long as it can't be told
// what one of them wants.
type Claims struct {
	wanted  map[differ.ID][]claim
	unknown map[string]string // why, by component
}

// claim is one component's wish for an object.
type claim struct {
	component, source string
	when              string // tells on what the wish depends; empty: always
	moves             string // when the wish ends; empty: not
}

// tell says of a component what it does about an object, and where and when it
// wants it.
func (c claim) tell(does string) string {
	text := fmt.Sprintf("component %s%s (%s)", c.component, does, c.source)
	if c.when != "" {
		text += " " + c.when
	}
	return text
}

// NewClaims are those of nobody.
func NewClaims() *Claims {
	return &Claims{wanted: map[differ.ID][]claim{}, unknown: map[string]string{}}
}

// Add notes what a component wants.
func (c *Claims) Add(component string, t *renderer.Target) {
	for _, o := range t.Objects {
		c.add(o, claim{component: component})
	}
}

// AddPinned notes what a pinned component wants: what it is pinned to, and what git
// says of it now, which it gets when the pin ends.
func (c *Claims) AddPinned(w Want, now *renderer.Target) {
	c.addBoth(w, now, claim{when: "as long as it is " + w.Pin.String(), moves: "when the pin ends"}, "once it is no longer "+w.Pin.String())
}

// AddWaiting notes what a component wants whose turn in a rollout has not come: what
// it has, and what git says of it now; nil: it is to be removed.
func (c *Claims) AddWaiting(w Want, now *renderer.Target) {
	if now == nil {
		now = &renderer.Target{}
	}
	c.addBoth(w, now, claim{when: "until it is let go in its rollout", moves: "when that is let go in its rollout"}, "once it is let go in its rollout")
}

// addBoth notes what a component has for some time, and what it gets then.
func (c *Claims) addBoth(w Want, now *renderer.Target, meanwhile claim, then string) {
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

// AddUnknown notes a component whose target can't be known, and why.
func (c *Claims) AddUnknown(component, why string) { c.unknown[component] = firstLine(why) }

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return strings.TrimSuffix(line, ":")
}

// unknowns names the first component of which nothing is known.
func (c *Claims) unknowns() (component, why string) {
	for name := range c.unknown {
		if component == "" || name < component {
			component = name
		}
	}
	return component, c.unknown[component]
}

// askOthers asks what the other components of the cluster want, where that counts:
// before anything is deleted, and before anything is taken over. A converged
// cluster does not come here.
func (c *Cluster) askOthers(ctx context.Context, p *Prepared) error {
	concerned := false
	for i := range p.Plan.Changes {
		concerned = concerned || concernsOthers(&p.states[i], &p.Plan.Changes[i])
	}
	if p.want.Others == nil || !concerned {
		return nil
	}
	claims, err := p.want.Others(ctx)
	if err != nil {
		return fmt.Errorf("what other components want: %w", err)
	}
	for i := range p.Plan.Changes {
		s, ch := &p.states[i], &p.Plan.Changes[i]
		switch {
		case !concernsOthers(s, ch):
		case s.Target == nil:
			s.Waits = claims.waits(s.ID)
		default:
			if err := c.contest(ctx, claims, s, p.want.Pin); err != nil {
				return err
			}
		}
	}
	if p.Plan, err = differ.Compare(ctx, p.schemas, p.states, p.policy); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	return c.readOwners(ctx, p) // of what is taken over
}

// concernsOthers reports whether what other components want decides about a
// change: about a deletion, be it held, and about what bears another's label.
func concernsOthers(s *differ.State, ch *differ.Change) bool {
	if s.Target == nil {
		return ch.Op == differ.OpDelete || ch.State == differ.StateHeld
	}
	return ch.OtherComponent()
}

// waits says whom the deletion of an object waits for; empty: for nobody.
func (c *Claims) waits(id differ.ID) string {
	if by := c.wanted[id]; len(by) > 0 {
		return "waits until " + by[0].tell(" has taken it over, which wants it")
	}
	if name, why := c.unknowns(); name != "" {
		return fmt.Sprintf("waits until it is known whether component %s wants it: %s", name, why)
	}
	return ""
}

// contest decides who has an object that carries another component's label. It is
// taken over from a component whose record has it and that does without it now.
func (c *Cluster) contest(ctx context.Context, claims *Claims, s *differ.State, pin *Pin) error {
	from := (&unstructured.Unstructured{Object: s.Live}).GetLabels()[v1alpha1.LabelComponent]
	if by := claims.wanted[s.ID]; len(by) > 0 {
		what := "leave it out of one of them"
		switch {
		case by[0].moves != "":
			what = "it moves " + by[0].moves
		case pin != nil:
			what = "this one is " + pin.String() + ", so end the pin, or leave it out of the other"
		}
		s.Contested = fmt.Sprintf("%s, beside this one (%s): %s", by[0].tell(" wants it, too"), s.Target.Source, what)
		return nil
	}
	if why, unknown := claims.unknown[from]; unknown {
		s.Contested = fmt.Sprintf("it belongs to component %s, and it is not known whether that wants it still: %s", from, why)
		return nil
	}
	rec, err := c.readRecord(ctx, from)
	if err != nil {
		return err
	}
	o := rec.find(s.ID)
	if o == nil || o.UID == "" || o.UID != uidOf(s.Live) {
		if s.RecordedUID != "" && s.RecordedUID == uidOf(s.Live) {
			relabelled(claims, s, from)
			return nil
		}
		s.Contested = fmt.Sprintf("its label says that it belongs to component %s, which has no record of it: "+
			"find out who made it, and take the label off if it may be taken over", from)
		return nil
	}
	s.MovedFrom, s.Recorded, s.Normal = from, o.Content, o.Normal
	return nil
}

// relabelled decides about an object of this component's own record, by its UID, on
// which stands the label of a component that has no record of it, and doesn't want it.
// A label is a word that any of a cluster's tenants may change: it is drift, unless
// there is a component of which it isn't known what it wants.
func relabelled(claims *Claims, s *differ.State, from string) {
	if name, why := claims.unknowns(); name != "" {
		s.Contested = fmt.Sprintf("its label says that it belongs to component %s, and it is not known whether component %s wants it: %s", from, name, why)
		return
	}
	s.Relabelled = true
}
