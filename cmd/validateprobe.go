package cmd

import (
	"fmt"
	"slices"

	"github.com/keelson-io/keelson/controllers/probe"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// probes compiles the conditions of probes, and warns about probes without a cluster.
func (v *validation) probes() {
	for _, p := range v.fleet.Probes {
		if len(p.Problems) > 0 {
			continue
		}
		if !slices.ContainsFunc(v.fleet.Clusters, p.Selects) {
			v.warn([]string{fmt.Sprintf("%s: it is for no cluster", p.At())})
		}
		for i, s := range p.Spec.Subjects {
			if s.Custom == nil || s.Custom.Ready == "" {
				continue
			}
			if _, err := probe.Ready(s.Custom.Ready); err != nil {
				v.broken[yamlfile.Problem{At: p.ReadyAt(i), Message: err.Error()}] = nil
			}
		}
	}
}

// probed finds the clusters of a stage without the probe that the stage's check needs. The check
// would wait for them until it fails.
func (v *validation) probed(name string, at yamlfile.Position, clusters []*registry.Cluster) {
	p := v.fleet.Probe(name)
	if p == nil || len(p.Problems) > 0 {
		return // reported already
	}
	problem := yamlfile.Problem{At: at, Message: fmt.Sprintf("probe %s does not run on all clusters of the stage, so that this check can't pass", name), Hint: "widen the clusterSelector of " + p.At().File}
	for _, c := range clusters {
		if !p.Selects(c) {
			v.broken[problem] = append(v.broken[problem], c.Name)
		}
	}
}
