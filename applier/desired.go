package applier

import (
	"cmp"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// NewDesired joins a delivery in git with its rendered target. An absent delivery is rendered for its
// hooks; nil: it has none. The delivery must have no problems. The error names the malformed rule.
func NewDesired(f *registry.Fleet, d *registry.Delivery, t *renderer.Target) (Desired, error) {
	return new(DesiredBuilder).Build(f, d, t)
}

// DesiredBuilder builds many values of Desired, which share equal rules. Compiled rules take thousands of times
// the memory of their text, and a fleet has few different ones. It is safe for concurrent use; the
// zero value is ready.
type DesiredBuilder struct {
	mu        sync.Mutex
	catalogue differ.Catalogue
	danger    map[fingerprint.Sum]differ.Rules
	health    map[fingerprint.Sum]health.Rules // without cluster labels
}

// rulesKept bounds how many different rules are remembered.
const rulesKept = 1024

// Build does the same as [NewDesired], with shared rules.
func (w *DesiredBuilder) Build(f *registry.Fleet, d *registry.Delivery, t *renderer.Target) (Desired, error) {
	spec := d.Version.Spec
	var labels map[string]string
	if c := f.Cluster(d.Cluster); c != nil {
		labels = c.Spec.Labels
	}
	scopes := ScopesOf(f, d)
	rules, healthy, err := w.rules(scopes, spec.Health)
	if err != nil {
		return Desired{}, fmt.Errorf("component %s %s: %w", d.Component, d.VersionName, err)
	}
	approved, approvals := map[string][]string{}, []differ.Approval(nil)
	for _, a := range d.Approvals {
		approved[a.Object] = append(approved[a.Object], a.Hash)
		approvals = append(approvals, differ.Approval{Object: a.Object, Hash: a.Hash, At: a.At.String()})
	}
	if t == nil { // absent, without hooks
		t = &renderer.Target{}
	}
	return Desired{
		Component: d.Component, Version: d.Version.Name, Tree: d.Version.Tree, Revision: f.Revision, Absent: d.Absent,
		Namespace: spec.Namespace, ServiceAccount: spec.ServiceAccount, Target: t, Rules: rules, Health: healthy.On(labels), Labels: labels, Adopt: spec.Adopt,
		Limits: LimitsOf(f, d.Component), Drift: cmp.Or(spec.Drift, f.Spec.Drift), Approved: approved, Approvals: approvals,
	}, nil
}

// ScopesOf returns the danger rules of a delivery, which must have a version.
func ScopesOf(f *registry.Fleet, d *registry.Delivery) differ.Scopes {
	s := differ.Scopes{
		Fleet: f.Spec.Danger, Component: d.Version.Spec.Danger,
		FleetProfile: f.Spec.DangerProfile, ComponentProfile: d.Version.Spec.DangerProfile,
	}
	if p := f.ProjectOf(d.Component); p != nil {
		s.Project, s.InProject = p.Spec.Danger, true
	}
	return s
}

// LimitsOf returns which objects a component may have; nil: any.
func LimitsOf(f *registry.Fleet, component string) *differ.ProjectLimits {
	if p := f.ProjectOf(component); p != nil {
		return &differ.ProjectLimits{Project: p.Name, Objects: p.Spec.Objects}
	}
	return nil
}

// rules compiles danger and health rules, unless they are remembered.
func (w *DesiredBuilder) rules(danger differ.Scopes, ofComponent []v1alpha1.HealthRule) (differ.Rules, health.Rules, error) {
	ofDanger, err := sumOfJSON(danger)
	if err != nil {
		return differ.Rules{}, health.Rules{}, err
	}
	ofHealth, err := sumOfJSON(ofComponent)
	if err != nil {
		return differ.Rules{}, health.Rules{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.danger == nil || len(w.danger)+len(w.health) > rulesKept {
		w.danger, w.health = map[fingerprint.Sum]differ.Rules{}, map[fingerprint.Sum]health.Rules{}
	}
	rules, known := w.danger[ofDanger]
	if !known {
		if rules, err = w.catalogue.NewRules(danger); err != nil {
			return differ.Rules{}, health.Rules{}, err
		}
		w.danger[ofDanger] = rules
	}
	healthy, known := w.health[ofHealth]
	if !known {
		if healthy, err = health.NewRules(ofComponent, nil); err != nil {
			return differ.Rules{}, health.Rules{}, err
		}
		w.health[ofHealth] = healthy
	}
	return rules, healthy, nil
}

func sumOfJSON(values ...any) (fingerprint.Sum, error) {
	text, err := json.Marshal(values)
	if err != nil {
		return fingerprint.Sum{}, fmt.Errorf("encode rules: %w", err)
	}
	return fingerprint.Of(text), nil
}
