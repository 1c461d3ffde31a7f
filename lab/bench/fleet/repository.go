package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/keelson-io/keelson/lab/harness/must"

	"github.com/keelson-io/keelson/lab/bench/addons"
	"github.com/keelson-io/keelson/lab/fleet"
)

// tiers is the number of cluster tiers. Each component is rendered from this many different inputs.
const tiers = 10

// size is the size of a fleet; objects is per component.
type size struct{ clusters, components, objects int }

func (s size) deliveries() int { return s.clusters * s.components }
func (s size) all() int        { return s.deliveries() * s.objects }
func (s size) String() string {
	return fmt.Sprintf("%d clusters × %d components × %d objects", s.clusters, s.components, s.objects)
}

// repository is the fleet's git repository.
type repository struct {
	dir        string
	components []string
	levels     []int // by component
}

// makeRepository writes the fleet: small charts with the kinds of typical add-ons, each component
// in its own namespace.
func makeRepository(ctx context.Context, dir string, s size) *repository {
	r := &repository{dir: filepath.Join(dir, "fleet.git"), levels: make([]int, s.components)}
	files := addons.New()
	chart := addons.Mixed(s.objects)
	for i := range s.components {
		c := fmt.Sprintf("addon-%03d", i)
		r.components = append(r.components, c)
		files.Component(c, c, chart)
	}
	for i := range s.clusters {
		files.Cluster(clusterName(i), "tier", tier(i%tiers))
	}
	for t := range min(tiers, s.clusters) {
		files.Layer(fmt.Sprintf("layers/20-tier-%d.yaml", t), "matchLabels: {tier: "+tier(t)+"}", r.components, func(int) string {
			return "values: {tier: " + tier(t) + "}"
		})
	}
	r.run(files)
	must.Do(files.Publish(ctx, r.dir, r.components))
	return r
}

func tier(i int) string { return fmt.Sprintf("t%d", i) }

// run adds the layer for all clusters: the versions, and the one value that commits change.
func (r *repository) run(files addons.Files) {
	files.Layer("layers/10-all.yaml", "", r.components, func(i int) string { return addons.Running(strconv.Itoa(r.levels[i])) })
}

// push changes the level of one component for all clusters.
func (r *repository) push(ctx context.Context, of int) {
	r.levels[of]++
	files := addons.Files{}
	r.run(files)
	must.Do(fleet.Push(ctx, r.dir, fleet.Commit{Files: files}))
}
