package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

const maxClusters = 10_000

// plan is a fleet before it is written.
type plan struct {
	random     *rand.Rand
	components []*component
	clusters   []*cluster
}

// cluster is one cluster with its own settings.
type cluster struct {
	name                    string
	stage, region, provider string
	// variants are the variants of the cluster's own files, by component. 0 means no file.
	variants map[string]int
}

// axes returns the label combinations by which layers set a component's values, in
// order of how many clusters they distinguish.
func axes() []axis {
	return []axis{
		{"", func(*cluster) string { return "" }},
		{"provider", func(c *cluster) string { return c.provider }},
		{"stage", func(c *cluster) string { return c.stage }},
		{"region", func(c *cluster) string { return c.region }},
		{"provider and stage", func(c *cluster) string { return c.provider + " " + c.stage }},
		{"region and stage", func(c *cluster) string { return c.region + " " + c.stage }},
	}
}

type axis struct {
	name string
	of   func(*cluster) string
}

func (a axis) has(label string) bool { return strings.Contains(a.name, label) }

// The values of the clusters' labels. Most clusters have the last stage.
func stages() []string    { return []string{"testing", "canary", "smallflow", "production"} }
func regions() []string   { return []string{"fra", "ams", "iad", "sjc", "sin", "hkg"} }
func providers() []string { return []string{"metal", "rented", "edge"} }

// mirrored reports whether the clusters of a region pull images from a mirror.
func mirrored(region string) bool { return region == "sin" || region == "hkg" }

func newPlan(o Options) (*plan, error) {
	p := &plan{random: rand.New(rand.NewPCG(o.Seed, 0x6b65656c))} //nolint:gosec // it has to be the same each time
	p.planClusters(o.Clusters)
	for i, n := range p.spread(o) {
		c := p.newComponent(i)
		p.components = append(p.components, c)
		if err := p.vary(c, n); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *plan) planClusters(n int) {
	for i := range n {
		c := &cluster{
			stage:    stages()[min(i*20/n/2, 3)], // a tenth for each stage, and the rest is production
			region:   regions()[i%len(regions())],
			provider: providers()[i/2%len(providers())],
			variants: map[string]int{},
		}
		c.name = fmt.Sprintf("%s-%s-%04d", c.stage, c.region, i)
		p.clusters = append(p.clusters, c)
	}
	slices.SortFunc(p.clusters, func(a, b *cluster) int { return cmp.Compare(a.name, b.name) })
}

// spread returns the number of distinct renders of each component. Many components are
// the same on almost all clusters, and a few differ on every cluster.
func (p *plan) spread(o Options) []int {
	counts := make([]int, o.Components)
	left := o.Distinct - o.Components
	for i := range counts {
		counts[i] = 1
	}
	for _, i := range p.random.Perm(o.Components) {
		if left < o.Clusters || i%60 != 0 {
			continue
		}
		counts[i], left = o.Clusters, left-o.Clusters+1
	}
	for left > 0 {
		// The square gives few components many renders, and many components few.
		r := p.random.Float64()
		i := min(int(r*r*float64(o.Components)), o.Components-1)
		if counts[i] < o.Clusters {
			counts[i]++
			left--
			continue
		}
		for i := range counts {
			if counts[i] < o.Clusters && left > 0 {
				counts[i]++
				left--
			}
		}
	}
	p.random.Shuffle(len(counts), func(i, j int) { counts[i], counts[j] = counts[j], counts[i] })
	return counts
}

// vary makes n different render inputs for a component. It chooses the axis that gives
// the most inputs, but not more than n. Files of clusters give the remaining inputs.
func (p *plan) vary(c *component, n int) error {
	seen := map[string][]*cluster{}
	for _, c.mirrored = range []bool{true, false} {
		for _, a := range slices.Backward(axes()) {
			seen = p.groups(c, a)
			if c.axis = a; len(seen) <= n {
				break
			}
		}
		if len(seen) <= n {
			break
		}
	}
	if len(seen) > n {
		return fmt.Errorf("%s: %d groups of clusters for %d renders", c.name, len(seen), n)
	}
	c.ownOnly = n == len(p.clusters)
	// Each new file of a cluster adds an input. A random cluster of each group gets no
	// file, so that the group's own input stays. Further clusters reuse contents.
	distinct := len(seen)
	used := map[string][]int{}
	for _, key := range slices.Sorted(maps.Keys(seen)) {
		members := seen[key]
		for _, at := range p.random.Perm(len(members))[1:] {
			switch {
			case distinct < n:
				distinct++
				c.variants++
				members[at].variants[c.name] = c.variants
				used[key] = append(used[key], c.variants)
			case len(used[key]) > 0 && p.random.IntN(3) > 0:
				members[at].variants[c.name] = used[key][p.random.IntN(len(used[key]))]
			}
		}
	}
	return nil
}

// groups returns the clusters grouped by the render input that layers and mirrors give.
func (p *plan) groups(c *component, a axis) map[string][]*cluster {
	out := map[string][]*cluster{}
	for _, cl := range p.clusters {
		key := a.of(cl)
		if c.mirrored && mirrored(cl.region) {
			key += " mirrored"
		}
		out[key] = append(out[key], cl)
	}
	return out
}

// write writes the history: the versions of all components, oldest first, then the layers
// and clusters that use them.
func (p *plan) write(s *stream) Made {
	made := Made{}
	s.commit("a fleet", "", map[string][]byte{"fleet.yaml": []byte(fleetFile), "README.md": []byte(readme)})
	newest := 0
	for _, c := range p.components {
		newest = max(newest, c.versions)
	}
	for v := range newest {
		for _, c := range p.components {
			if v < c.versions {
				s.commit(fmt.Sprintf("%s %s", c.name, versionName(v)), "", c.files(v))
				s.tag(c.name + "/" + versionName(v))
				made.Versions++
			}
		}
	}
	s.commit("layers", "", p.layers())
	contents := map[string]bool{}
	for _, stage := range stages() {
		files := map[string][]byte{}
		for _, cl := range p.clusters {
			if cl.stage == stage {
				p.clusterFiles(cl, files)
			}
		}
		for path, data := range files {
			if !strings.HasSuffix(path, "/cluster.yaml") {
				made.Files++
				contents[string(data)] = true
			}
		}
		if len(files) > 0 {
			s.commit(stage+" clusters", "", files)
		}
	}
	made.Contents = len(contents)
	return made
}

// versionName returns the name of a component's version; 0 is the oldest version.
func versionName(v int) string { return fmt.Sprintf("v1.%d.%d", v/3, v%3) }
