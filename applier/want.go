package applier

import (
	"cmp"
	"fmt"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// NewWant joins what git says of a delivery with its rendered target. One that is
// absent is rendered for its hooks; nil says that it has none. The delivery must
// have no problems. The error says which rule is malformed.
func NewWant(f *registry.Fleet, d *registry.Delivery, t *renderer.Target) (Want, error) {
	spec := d.Version.Spec
	rules, err := differ.NewRules(spec.Danger, f.Spec.Danger)
	if err != nil {
		return Want{}, fmt.Errorf("component %s %s: %w", d.Component, d.VersionName, err)
	}
	var labels map[string]string
	if c := f.Cluster(d.Cluster); c != nil {
		labels = c.Spec.Labels
	}
	health, err := NewHealthRules(spec.Health, labels)
	if err != nil {
		return Want{}, fmt.Errorf("component %s %s: %w", d.Component, d.VersionName, err)
	}
	approved := map[string][]string{}
	for _, a := range d.Approvals {
		approved[a.Object] = append(approved[a.Object], a.Hash)
	}
	if t == nil { // absent, and nothing is left of it
		t = &renderer.Target{}
	}
	return Want{
		Component: d.Component, Version: d.Version.Name, Tree: d.Version.Tree, Revision: f.Revision, Absent: d.Absent,
		Namespace: spec.Namespace, ServiceAccount: spec.ServiceAccount, Target: t, Rules: rules, Health: health, Labels: labels, Adopt: spec.Adopt,
		Drift: cmp.Or(spec.Drift, f.Spec.Drift), Approved: approved,
	}, nil
}
