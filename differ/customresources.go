package differ

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ/catalogue"
)

// ruleCRDSchema is the name of the danger rules on the custom resources of a changed CRD: the
// built-in rule, and rules in git that replace it.
const ruleCRDSchema = catalogue.CRDSchema

// JudgeOf returns the judge for a CRD that has both a live object and a target. The judge gets the
// targets of custom resources among the states. The error says which schema can't be read.
func JudgeOf(crd *State, all []State) (*CRDJudge, error) {
	j, err := NewCRDJudge(crd.Live, content(crd.Target))
	if err != nil {
		return nil, err
	}
	for i := range all {
		if wanted := content(all[i].Target); wanted != nil && j.Takes(all[i].ID) {
			j.Expect(wanted)
		}
	}
	return j, nil
}

// JudgeAmong judges every CRD with a live object and a target by the custom resources among the
// states. It assumes that the cluster has no other custom resources, and sets [State.CustomResources].
// The error names the CRD.
func JudgeAmong(ctx context.Context, states []State) error {
	for i := range states {
		s := &states[i]
		if !IsCRD(s.ID) || s.Live == nil || s.Target == nil {
			continue
		}
		judge, err := JudgeOf(s, states)
		if err != nil {
			continue // Compare holds the CRD with this reason
		}
		for k := range states {
			if states[k].Live == nil || !judge.Takes(states[k].ID) {
				continue
			}
			if err := judge.LookAtAll(ctx, states[k].Live); err != nil {
				return fmt.Errorf("judge %s: %w", s.ID, err)
			}
		}
		s.CustomResources = judge.Instances()
	}
	return nil
}

// judgeCustomResources holds a CRD if custom resources do not satisfy its new schema. If these were not
// read, it notes that. It is separate from the rules on fields: a rule that allows
// changes of the versions does not allow this. An approval from before there was such a custom
// resource does not count.
func (c *comparison) judgeCustomResources(rows []row, hash io.Writer) ObjectState {
	c.change.Unread.CustomResources, c.change.Rule, c.change.Because, c.change.Fix = false, "", "", ""
	w := c.schemaRow(rows)
	if w == nil {
		return StateSynced
	}
	r := c.rules.findJudged(w)
	if r == nil {
		return StateSynced
	}
	if r.Effect == v1alpha1.EffectAllow {
		c.rules.tried(r, event(w), nil, OutcomeFires)
		return StateSynced
	}
	because, refused := c.verdict()
	c.change.Because = because
	if !refused {
		c.rules.tried(r, event(w), nil, OutcomeCondition)
		return StateSynced
	}
	c.rules.tried(r, event(w), nil, OutcomeFires)
	_, _ = io.WriteString(hash, ruleCRDSchema) // a hash never fails
	c.change.Rule = r.Name
	switch r.Effect {
	case v1alpha1.EffectWarn:
		c.change.warn(finding{rule: r}, "")
		return StateSynced
	case v1alpha1.EffectHold, v1alpha1.EffectKeep: // a schema can't be kept for some objects
		if !c.change.Approved {
			c.change.Fix = r.Fix
			return StateHeld
		}
		c.change.Because = becauseApproved + because
		return StateSynced
	default: // deny, or an effect that this version does not know
		c.change.Fix = r.Fix
		return StateDenied
	}
}

// schemaRow returns a row of a CRD that changes the requirements on custom resources.
func (c *comparison) schemaRow(rows []row) *row {
	if !IsCRD(c.state.ID) || c.live == nil || c.target == nil {
		return nil
	}
	goes := map[string]bool{}
	for _, f := range c.change.Fields {
		goes[f.Path] = stateOf(f.Action) != StateSynced && f.Action != ActionAdopt
	}
	for i := range rows {
		path := rows[i].path.String()
		if goes[path] && !c.waiting.Has(rows[i].path) && (strings.HasPrefix(path, ".spec.versions") || path == ".spec.preserveUnknownFields") {
			return &rows[i]
		}
	}
	return nil
}

// verdict returns what is known of the custom resources, and whether this refuses the change. The
// text is empty if there is nothing to say.
func (c *comparison) verdict() (because string, refused bool) {
	switch i := c.state.CustomResources; {
	case i == nil:
		j, err := NewCRDJudge(c.live, c.target)
		if err != nil {
			return fmt.Sprintf("whether the custom resources that exist satisfy the schema is not known: %v", err), true
		}
		c.change.Unread.CustomResources = len(j.Versions()) > 0
		return "", false
	case i.Refused > 0:
		return i.String(), true
	case i.Partly:
		return i.String(), false
	}
	return "", false
}
