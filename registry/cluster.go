package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// readClusters reads clusters/.
func (l *loader) readClusters(ctx context.Context) error {
	entries, err := l.tree.list(ctx, "clusters")
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch {
		case e.kind == entryFolder && !strings.HasPrefix(e.name, "."):
			if err := l.readCluster(ctx, e); err != nil {
				return err
			}
		case e.kind == entryFile && (isYAML(e.name) || isYML(e.name)):
			l.report(Problem{
				At:      Position{File: e.path},
				Message: "clusters/ holds a folder for each cluster",
				Hint:    "move it to clusters/" + e.name[:strings.LastIndex(e.name, ".")] + "/cluster.yaml",
			})
		case e.kind != entryFile && e.kind != entryFolder:
			// A cluster that can't be read is not a cluster that is gone.
			problem := Problem{At: Position{File: e.path}, Message: fmt.Sprintf("this is %s, not a folder", e.kind)}
			l.report(problem)
			l.fleet.Clusters = append(l.fleet.Clusters, &Cluster{Name: e.name, Problems: Problems{problem}})
		}
	}
	return nil
}

// clusterReader reads the folder of one cluster.
type clusterReader struct {
	*loader
	cluster *Cluster
	// own are the cluster's own files, by component.
	own map[string]*ownFile
	// layered is what the layers say, in their order, by component.
	layered map[string][]*layerUse
}

// ownFile is clusters/CLUSTER/COMPONENT.yaml.
type ownFile struct {
	path     string
	file     *metaFile // nil: it can't be read
	source   *source   // nil: no values
	problems Problems
}

// block reports problems of the cluster.
func (r *clusterReader) block(problems ...Problem) {
	r.report(problems...)
	r.cluster.Problems = append(r.cluster.Problems, problems...)
}

func (l *loader) readCluster(ctx context.Context, folder entry) error {
	r := &clusterReader{
		loader:  l,
		cluster: &Cluster{Name: folder.name, Problems: slices.Clone(l.everywhere)},
		own:     map[string]*ownFile{},
		layered: map[string][]*layerUse{},
	}
	l.fleet.Clusters = append(l.fleet.Clusters, r.cluster)
	if wrong := checkName(folder.name); wrong != "" {
		r.block(Problem{At: Position{File: folder.path}, Message: wrong})
	}
	entries, err := l.tree.list(ctx, folder.path)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.unreadable = true
		r.block(Problem{At: Position{File: folder.path}, Message: "can't be read: " + err.Error()})
		return nil
	}
	if err := l.budget.clusterFolder(len(entries) + 1); err != nil {
		return err
	}
	known := false
	for _, e := range entries {
		ok, err := r.readFile(ctx, e)
		if err != nil {
			return err
		}
		known = known || ok
	}
	if !slices.ContainsFunc(entries, func(e entry) bool { return e.name == "cluster.yaml" }) {
		r.block(Problem{At: Position{File: join(folder.path, "cluster.yaml")}, Message: "cluster.yaml is missing"})
	}
	if known {
		r.applyLayers()
	}
	return r.deliver(ctx)
}

// readFile reads one file of a cluster's folder. It says whether the cluster's
// labels are known from it.
func (r *clusterReader) readFile(ctx context.Context, e entry) (labelsKnown bool, err error) {
	switch {
	case e.name == "cluster.yaml":
		return r.readSpec(ctx, e)
	case isYAML(e.name):
		return false, r.readOwn(ctx, e)
	case isNote(e):
	case isYML(e.name) && strings.EqualFold(e.name[:strings.LastIndex(e.name, ".")], "cluster"):
		r.block(renameYML(e))
	case isYML(e.name):
		problem := renameYML(e)
		r.report(problem)
		name := e.name[:strings.LastIndex(e.name, ".")]
		if r.own[name] == nil { // after NAME.yaml, which sorts before NAME.yml
			r.own[name] = &ownFile{path: e.path}
		}
		r.own[name].problems = append(r.own[name].problems, problem)
	case e.kind != entryFile:
		r.block(Problem{
			At:      Position{File: e.path},
			Message: fmt.Sprintf("this is %s; a cluster's files stand right below its folder", e.kind),
		})
	}
	return false, nil
}

func (r *clusterReader) readSpec(ctx context.Context, e entry) (labelsKnown bool, err error) {
	f, problem, err := readEntry(ctx, r.loader, e, v1alpha1.KindCluster, decodeCluster)
	if err != nil {
		return false, err
	}
	if f == nil {
		r.block(problem)
		return false, nil
	}
	r.block(inFile(e.path, f.mistakes)...)
	r.cluster.Spec = f.spec
	return !f.broken, nil
}

func (r *clusterReader) readOwn(ctx context.Context, e entry) error {
	name := strings.TrimSuffix(e.name, ".yaml")
	if wrong := checkName(name); wrong != "" {
		r.block(Problem{At: Position{File: e.path}, Message: wrong, Hint: "the file is named after its component"})
		return nil
	}
	f, problem, err := readEntry(ctx, r.loader, e, v1alpha1.KindMetaConfig, decodeMeta)
	if err != nil {
		return err
	}
	own := &ownFile{path: e.path}
	r.own[name] = own
	if f == nil {
		own.problems = Problems{problem}
		r.report(problem)
		return nil
	}
	own.problems = inFile(e.path, f.mistakes)
	r.report(own.problems...)
	if f.broken {
		return nil
	}
	own.file = f
	if len(f.spec.Values) > 0 || f.sealed != nil { // what is encrypted is verified as a whole
		own.source, err = cached(r.repo.cache, cacheKey{job: "source", hash: e.hash, name: e.path}, func() (*source, error) {
			return &source{file: e.path, values: f.spec.Values, places: f.places, sealed: f.sealed, sealedAt: []string{"values"}}, nil
		})
	}
	return err
}

// applyLayers collects what the layers say to this cluster.
func (r *clusterReader) applyLayers() {
	for _, layer := range r.layers {
		if !layer.mayMatch(r.cluster.Spec.Labels) {
			continue
		}
		r.cluster.Problems = append(r.cluster.Problems, layer.vague...)
		for name, use := range layer.entries {
			r.layered[name] = append(r.layered[name], use)
		}
	}
}

// deliver decides what runs on the cluster.
func (r *clusterReader) deliver(ctx context.Context) error {
	names := map[string]bool{}
	for name := range r.own {
		names[name] = true
	}
	for name, uses := range r.layered {
		if slices.ContainsFunc(uses, func(u *layerUse) bool { return u.version != "" }) {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		d, err := r.delivery(ctx, name)
		if err != nil {
			return err
		}
		r.cluster.Deliveries = append(r.cluster.Deliveries, d)
	}
	r.checkDependencies()
	slices.SortFunc(r.cluster.Problems, compareProblems)
	r.cluster.Problems = slices.Compact(r.cluster.Problems)
	return nil
}

func (r *clusterReader) delivery(ctx context.Context, component string) (*Delivery, error) {
	d := &Delivery{
		Cluster:   r.cluster.Name,
		Component: component,
		Paused:    r.cluster.Spec.Paused,
		Problems:  slices.Clone(r.everywhere),
		mirrors:   r.cluster.Spec.ImageMirrors,
	}
	var sources []*source
	for _, use := range r.layered[component] {
		d.Problems = append(d.Problems, use.problems...)
		if use.version != "" {
			d.VersionName, d.VersionAt = use.version, use.versionAt
		}
		sources = append(sources, use.source)
	}
	own := r.own[component]
	if own != nil {
		d.Problems = append(d.Problems, own.problems...)
		if own.file != nil && own.file.spec.Version != "" {
			d.VersionName, d.VersionAt = own.file.spec.Version, own.file.versionAt.in(own.path, "")
		}
		d.Paused = d.Paused || own.file != nil && own.file.spec.Paused
		sources = append(sources, own.source)
	}
	for _, s := range sources {
		d.Values = r.chain(d.Values, s)
	}
	d.Approvals = r.approvalsFor(r.cluster, component)
	if err := r.findVersion(ctx, d, own); err != nil {
		return nil, err
	}
	r.checkOverrides(d, sources)
	slices.SortFunc(d.Problems, compareProblems)
	d.Problems = slices.Compact(d.Problems)
	return d, nil
}

// chain lays a source over Values, and gives the same Values for the same.
func (r *clusterReader) chain(base *Values, s *source) *Values {
	if s == nil {
		return base
	}
	key := chainKey{base, s}
	if v, ok := r.chains[key]; ok {
		return v
	}
	v, ok := r.before[key]
	if !ok {
		v = &Values{base: base, source: s}
	}
	r.chains[key] = v
	return v
}

// findVersion sets a delivery's version, or the problem of having none.
func (r *clusterReader) findVersion(ctx context.Context, d *Delivery, own *ownFile) error {
	if d.VersionName == "" {
		if own == nil || len(own.problems) > 0 {
			return nil // what is wrong with the file says enough
		}
		at := Position{File: own.path}
		problem := r.unpublished(d.Component, v1alpha1.VersionHead, at)
		if problem == nil || len(r.refs.versions[d.Component]) > 0 {
			problem = &Problem{
				At:      at,
				Message: "neither this file nor a layer names a version of " + d.Component + " for this cluster",
				Hint:    "add version: vX.Y.Z",
			}
		}
		d.Problems = append(d.Problems, *problem)
		r.report(*problem)
		return nil
	}
	version, problems, err := r.wanted(ctx, d.Component, d.VersionName, d.VersionAt)
	if err != nil {
		return err
	}
	d.Version = version
	d.Problems = append(d.Problems, problems...)
	r.report(problems...)
	return nil
}

// checkOverrides reports meta-config that sets what the version's images set.
func (r *clusterReader) checkOverrides(d *Delivery, sources []*source) {
	if d.Version == nil {
		return
	}
	for _, s := range sources {
		if s == nil {
			continue
		}
		key := overrideKey{s, d.Version}
		problems, ok := r.checked[key]
		if !ok {
			problems = imageOverrides(s, d.Version)
			r.checked[key] = problems
			r.report(problems...)
		}
		d.Problems = append(d.Problems, problems...)
	}
}
