package registry

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// readClusters reads clusters/.
func (l *loader) readClusters(ctx context.Context) error {
	l.made.everywhere, l.made.ways, l.made.frozen = l.everywhere, l.fleet.ways, l.brokenFreezes()
	l.made.inventory = l.inventory
	l.made.projects, l.made.required = l.fleet.Projects, l.fleet.Spec.Projects
	l.governed = !sameProjects(l.made.projects, l.before.projects) || l.made.required != l.before.required || !slices.Equal(l.made.everywhere, l.before.everywhere) || !l.made.ways.equal(l.before.ways) ||
		!slices.Equal(l.made.frozen, l.before.frozen) || !l.inventory.same(l.before.inventory)
	entries, err := l.files.tree.List(ctx, "clusters")
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch {
		case e.Kind == gitrepo.EntryFolder && !strings.HasPrefix(e.Name, "."):
			if err := l.readCluster(ctx, e); err != nil {
				return err
			}
		case e.Kind == gitrepo.EntryFile && (isYAML(e.Name) || isYML(e.Name)):
			l.report(yamlfile.Problem{
				At:      yamlfile.Position{File: e.Path},
				Message: "clusters/ holds a folder for each cluster",
				Hint:    "move it to clusters/" + e.Name[:strings.LastIndex(e.Name, ".")] + "/cluster.yaml",
			})
		case e.Kind != gitrepo.EntryFile && e.Kind != gitrepo.EntryFolder:
			// A cluster that can't be read must not count as deleted.
			problem := yamlfile.Problem{At: yamlfile.Position{File: e.Path}, Message: fmt.Sprintf("this is %s, not a folder", e.Kind)}
			l.report(problem)
			l.fleet.Clusters = append(l.fleet.Clusters, &Cluster{Name: e.Name, Problems: yamlfile.Problems{problem}, Unread: true})
		}
	}
	l.checkConnections()
	return nil
}

// loadMemo is what a Load keeps for the next Load.
type loadMemo struct {
	// everywhere are the problems that block every cluster.
	everywhere yamlfile.Problems
	ways       pipelineIndex
	frozen     []*Freeze // the broken ones
	inventory  inventory
	projects   []*Project
	required   v1alpha1.Projects
	clusters   map[string]*madeCluster
}

// madeCluster is a cluster with all its inputs. While the inputs are the same, the cluster is
// reused unread. When the cluster is made again, equal parts keep their pointers.
type madeCluster struct {
	cluster *Cluster
	// folder is the hash of the cluster's folder; empty: always make the cluster again.
	folder  string
	entries []gitrepo.Entry // of the folder
	spec    *clusterFile    // nil: it can't be read
	// recalled is cluster.yaml as it was before it broke; nil if spec is set, or if there is none.
	recalled *clusterFile
	// specHash is the hash of cluster.yaml.
	specHash  string
	own       []*ownFile // in component-name order
	layers    []*layer
	approvals []approval
	answers   []*versionLookup
	// spokenOf is the number of components that the files and layers name.
	spokenOf int

	// reported are problems of the fleet that were found here. absent are missing dependencies and
	// stages, without the name of the cluster.
	reported, absent yamlfile.Problems
}

// clusterReader reads the folder of one cluster.
type clusterReader struct {
	*loader
	cluster *Cluster
	was     *madeCluster // of the previous Load; never nil
	now     *madeCluster
}

// ownFile is clusters/CLUSTER/COMPONENT.yaml.
type ownFile struct {
	component string
	path      string
	hash      string
	file      *metaFile // nil: it can't be read
	source    *source   // nil: no values
	problems  yamlfile.Problems
}

// report adds problems to the fleet.
func (r *clusterReader) report(problems ...yamlfile.Problem) {
	r.now.reported = append(r.now.reported, problems...)
}

// block reports problems that block the cluster.
func (r *clusterReader) block(problems ...yamlfile.Problem) {
	r.report(problems...)
	r.cluster.Problems = append(r.cluster.Problems, problems...)
}

// readCluster reuses the cluster of the previous Load, or makes it again.
func (l *loader) readCluster(ctx context.Context, folder gitrepo.Entry) error {
	was := l.before.clusters[folder.Name]
	if was == nil {
		was = &madeCluster{}
	}
	same, err := l.unchangedCluster(ctx, was, folder)
	if err != nil {
		return err
	}
	now := was
	if same { // the limit counts reused clusters, too
		err = l.limits.clusterFolder(len(was.entries) + 1)
	} else {
		now, err = l.makeCluster(ctx, was, folder)
	}
	if err != nil {
		return err
	}
	if err := l.limits.cluster(now.spokenOf); err != nil {
		return err
	}
	l.made.clusters[folder.Name] = now
	l.fleet.Clusters = append(l.fleet.Clusters, now.cluster)
	l.report(now.reported...)
	for _, p := range now.absent {
		l.absent[p] = append(l.absent[p], folder.Name)
	}
	return nil
}

// unchangedCluster reports whether all inputs of a cluster are unchanged.
func (l *loader) unchangedCluster(ctx context.Context, was *madeCluster, folder gitrepo.Entry) (bool, error) {
	if was.folder == "" || was.folder != folder.Hash || l.governed {
		return false, nil
	}
	if !was.cluster.Unread && !slices.Equal(was.layers, l.layers.matching(was.cluster.Spec.Labels).layers) {
		return false, nil
	}
	if !slices.Equal(was.approvals, l.approvals.on(was.cluster)) {
		return false, nil
	}
	for _, a := range was.answers {
		if same, err := l.versions.isCurrent(ctx, a); err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

func (l *loader) makeCluster(ctx context.Context, was *madeCluster, folder gitrepo.Entry) (*madeCluster, error) {
	r := &clusterReader{
		loader:  l,
		cluster: &Cluster{Name: folder.Name, Problems: slices.Clone(l.everywhere)},
		was:     was,
		now:     &madeCluster{folder: folder.Hash},
	}
	r.now.cluster = r.cluster
	before := l.files.unreadable
	l.files.unreadable = false
	if err := r.read(ctx, folder); err != nil {
		return nil, err
	}
	r.cluster.Unread = r.now.spec == nil && r.now.recalled == nil
	if l.files.unreadable { // so that the next Load tries again
		r.now.folder = ""
	}
	l.files.unreadable = l.files.unreadable || before
	if same := r.was.cluster; same != nil && r.sameCluster(same) {
		r.now.cluster = same
	}
	return r.now, nil
}

// sameCluster reports whether the new cluster equals the old one.
func (r *clusterReader) sameCluster(was *Cluster) bool {
	return slices.Equal(was.Deliveries, r.cluster.Deliveries) && slices.Equal(was.Problems, r.cluster.Problems) &&
		was.Unread == r.cluster.Unread && reflect.DeepEqual(was.Spec, r.cluster.Spec)
}

func (r *clusterReader) read(ctx context.Context, folder gitrepo.Entry) error {
	if wrong := naming.Check(folder.Name); wrong != "" {
		r.block(yamlfile.Problem{At: yamlfile.Position{File: folder.Path}, Message: wrong})
	}
	entries, err := r.list(ctx, folder)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.files.unreadable = true
		r.block(yamlfile.Problem{At: yamlfile.Position{File: folder.Path}, Message: "can't be read: " + err.Error()})
		return nil
	}
	if err := r.limits.clusterFolder(len(entries) + 1); err != nil {
		return err
	}
	r.now.entries = entries
	for _, e := range entries {
		if err := r.readFile(ctx, e); err != nil {
			return err
		}
	}
	slices.SortFunc(r.now.own, func(a, b *ownFile) int { return strings.Compare(a.component, b.component) })
	if !slices.ContainsFunc(entries, func(e gitrepo.Entry) bool { return e.Name == "cluster.yaml" }) {
		r.block(yamlfile.Problem{At: yamlfile.Position{File: join(folder.Path, "cluster.yaml")}, Message: "cluster.yaml is missing"})
	}
	if r.now.spec == nil {
		if err := r.recall(ctx, folder); err != nil {
			return err
		}
	}
	var layered []*layered
	if r.now.spec != nil || r.now.recalled != nil {
		layering := r.layers.matching(r.cluster.Spec.Labels)
		r.cluster.Problems = append(r.cluster.Problems, layering.vague...)
		r.now.layers, layered = layering.layers, layering.put(r.sharing)
	}
	r.now.approvals = r.approvals.on(r.cluster)
	return r.deliver(ctx, layered)
}

// list returns the entries of the cluster's folder.
func (r *clusterReader) list(ctx context.Context, folder gitrepo.Entry) ([]gitrepo.Entry, error) {
	if r.was.folder != "" && r.was.folder == folder.Hash {
		return r.was.entries, nil
	}
	return r.files.tree.List(ctx, folder.Path)
}

// readFile reads one file of a cluster's folder.
func (r *clusterReader) readFile(ctx context.Context, e gitrepo.Entry) error {
	switch {
	case e.Name == "cluster.yaml":
		return r.readSpec(ctx, e)
	case isYAML(e.Name):
		return r.readOwn(ctx, e)
	case isNote(e):
	case isYML(e.Name) && strings.EqualFold(e.Name[:strings.LastIndex(e.Name, ".")], "cluster"):
		r.block(renameYML(e))
	case isYML(e.Name):
		problem := renameYML(e)
		r.report(problem)
		name := e.Name[:strings.LastIndex(e.Name, ".")]
		own := ownFile{component: name, path: e.Path}
		i := slices.IndexFunc(r.now.own, func(f *ownFile) bool { return f.component == name })
		if i >= 0 { // NAME.yaml sorts before NAME.yml
			own = *r.now.own[i]
			own.hash = "" // so that the next Load does not reuse it
			r.now.own = slices.Delete(r.now.own, i, i+1)
		}
		own.problems = append(slices.Clip(own.problems), problem)
		r.now.own = append(r.now.own, &own)
	case e.Kind != gitrepo.EntryFile:
		r.block(yamlfile.Problem{
			At:      yamlfile.Position{File: e.Path},
			Message: fmt.Sprintf("this is %s; a cluster's files must be directly in its folder", e.Kind),
		})
	}
	return nil
}

// readSpec reads cluster.yaml. The cluster's labels are known unless the file is broken.
func (r *clusterReader) readSpec(ctx context.Context, e gitrepo.Entry) error {
	f := r.was.spec
	if f == nil || r.was.specHash != e.Hash || e.Kind != gitrepo.EntryFile {
		var (
			problem yamlfile.Problem
			err     error
		)
		f, problem, err = readEntry(ctx, r.files, e, v1alpha1.KindCluster, decodeCluster)
		if err != nil {
			return err
		}
		if f == nil {
			r.block(problem)
			return nil
		}
	}
	r.block(f.In(e.Path)...)
	r.cluster.Spec = f.spec
	if !f.broken {
		r.block(r.identify(f, e.Path)...)
		r.now.spec, r.now.specHash = f, e.Hash
	}
	return nil
}

// maxRecalled is the number of commits that are searched for a readable cluster.yaml, and
// maxRecalledEntries how many entries of folders are read for all broken clusters together: 600
// commits of a fleet with 300 clusters.
const (
	maxRecalled        = 200
	maxRecalledEntries = 200_000
)

// recall takes the cluster's labels from the last cluster.yaml that could be read. The problems of
// the file of today block the cluster. The labels say which stages it belongs to, so that rollouts
// wait for it there, and not everywhere.
func (r *clusterReader) recall(ctx context.Context, folder gitrepo.Entry) error {
	file := join(folder.Path, "cluster.yaml")
	f := r.was.recalled
	if f == nil || r.was.folder != folder.Hash {
		data, err := r.past.Last(ctx, file, func(data []byte) bool { return len(decodeCluster(data).Mistakes) == 0 })
		if err != nil || data == nil {
			return err
		}
		f = decodeCluster(data)
	}
	r.now.recalled = f
	r.cluster.Spec = f.spec
	_ = r.identify(f, file) // the mistakes of an older file are not mistakes of this commit
	r.cluster.Unconnected = nil
	return nil
}

func (r *clusterReader) readOwn(ctx context.Context, e gitrepo.Entry) error {
	name := strings.TrimSuffix(e.Name, ".yaml")
	if wrong := naming.Check(name); wrong != "" {
		r.block(yamlfile.Problem{At: yamlfile.Position{File: e.Path}, Message: wrong, Hint: "the file is named after its component"})
		return nil
	}
	i, ok := slices.BinarySearchFunc(r.was.own, name, func(f *ownFile, name string) int { return strings.Compare(f.component, name) })
	if ok && r.was.own[i].file != nil && r.was.own[i].hash == e.Hash && e.Kind == gitrepo.EntryFile {
		r.now.own = append(r.now.own, r.was.own[i])
		r.report(r.was.own[i].problems...)
		return nil
	}
	f, problem, err := readEntry(ctx, r.files, e, v1alpha1.KindMetaConfig, decodeMeta)
	if err != nil {
		return err
	}
	own := &ownFile{component: name, path: e.Path, hash: e.Hash}
	r.now.own = append(r.now.own, own)
	if f == nil {
		own.problems = yamlfile.Problems{problem}
		r.report(problem)
		return nil
	}
	own.problems = f.In(e.Path)
	r.report(own.problems...)
	if f.broken {
		return nil
	}
	own.file = f
	if len(f.spec.Values) > 0 || f.encrypted != nil { // encrypted values are verified as a whole
		own.source = r.sharing.source(&source{
			file: e.Path, values: f.spec.Values, places: f.places, encrypted: f.encrypted, encryptedAt: []string{"values"},
		})
	}
	return nil
}

// deliver determines the components of the cluster: each with its own file here, and each for which
// a layer sets a version or absent.
func (r *clusterReader) deliver(ctx context.Context, layers []*layered) error {
	made := r.scratch[:0]
	own := r.now.own
	r.now.spokenOf = len(layers) + len(own)
	for len(layers) > 0 || len(own) > 0 {
		var (
			mine *ownFile
			base *layered
		)
		if len(own) > 0 && (len(layers) == 0 || own[0].component <= layers[0].component) {
			mine, own = own[0], own[1:]
		}
		if len(layers) > 0 && (mine == nil || mine.component == layers[0].component) {
			base, layers = layers[0], layers[1:]
		}
		if mine == nil && base.version == "" && !base.absent {
			continue
		}
		d, err := r.delivery(ctx, base, mine)
		if err != nil {
			return err
		}
		made = append(made, d)
	}
	r.scratch = made
	r.checkDependencies(made)
	r.keep(made)
	slices.SortFunc(r.cluster.Problems, yamlfile.Problem.Compare)
	r.cluster.Problems = slices.Compact(r.cluster.Problems)
	return nil
}

// keep sets the cluster's deliveries. A delivery that equals the previous one keeps its pointer.
func (r *clusterReader) keep(made []Delivery) {
	if len(made) == 0 {
		return
	}
	var was []*Delivery
	if r.was.cluster != nil {
		was = r.was.cluster.Deliveries
	}
	r.cluster.Deliveries = make([]*Delivery, len(made))
	for i := range made {
		d := &made[i]
		for len(was) > 0 && was[0].Component < d.Component {
			was = was[1:]
		}
		if len(was) > 0 && was[0].equal(d) {
			r.cluster.Deliveries[i] = was[0]
			continue
		}
		c := *d
		r.cluster.Deliveries[i] = &c
	}
}

// equal reports whether two deliveries of one cluster are equal.
func (d *Delivery) equal(e *Delivery) bool {
	return d.Component == e.Component && d.VersionName == e.VersionName && d.VersionAt == e.VersionAt &&
		d.Absent == e.Absent && d.AbsentAt == e.AbsentAt && d.Version == e.Version && d.Values == e.Values && d.Paused == e.Paused &&
		slices.Equal(d.Approvals, e.Approvals) && slices.Equal(d.Problems, e.Problems) && maps.Equal(d.mirrors, e.mirrors)
}

func (r *clusterReader) delivery(ctx context.Context, base *layered, own *ownFile) (Delivery, error) {
	d := Delivery{
		Cluster:  r.cluster.Name,
		Paused:   r.cluster.Spec.Paused,
		Problems: slices.Clone(r.everywhere),
		mirrors:  r.cluster.Spec.ImageMirrors,
	}
	var sources []*source
	if base != nil {
		d.Component, d.VersionName, d.VersionAt, d.Values = base.component, base.version, base.versionAt, base.values
		d.setAbsent(base.absent, base.absentAt)
		d.Problems = append(d.Problems, base.problems...)
		sources = base.sources
	}
	if own != nil {
		d.Component = own.component
		d.Problems = append(d.Problems, own.problems...)
		d.nearest(own)
		d.Paused = d.Paused || own.file != nil && own.file.spec.Paused
		d.Values = r.sharing.lay(d.Values, own.source)
	}
	for _, a := range r.now.approvals {
		if a.spec.Component == d.Component {
			d.Approvals = append(d.Approvals, Approval{a.spec, a.at.In(a.file, "")})
		}
	}
	if err := r.findVersion(ctx, &d, own); err != nil {
		return d, err
	}
	if r.now.spec != nil { // otherwise the labels are unknown, and the cluster is blocked
		r.checkStage(&d)
		r.checkFreezes(&d)
	}
	r.checkProject(&d)
	r.checkOverrides(&d, sources)
	if own != nil && own.source != nil {
		r.checkOverrides(&d, []*source{own.source})
	}
	slices.SortFunc(d.Problems, yamlfile.Problem.Compare)
	d.Problems = slices.Compact(d.Problems)
	return d, nil
}

// nearest applies version and absent of the cluster's own file, which override the layers. A
// version there cancels the absent of a layer.
func (d *Delivery) nearest(own *ownFile) {
	if own.file == nil {
		return
	}
	spec := &own.file.spec
	if spec.Version != "" {
		d.VersionName, d.VersionAt = spec.Version, own.file.versionAt.In(own.path, "")
	}
	if spec.Version != "" || spec.Absent {
		d.setAbsent(spec.Absent, own.file.absentAt.In(own.path, ""))
	}
}

func (d *Delivery) setAbsent(absent bool, at yamlfile.Position) {
	d.Absent, d.AbsentAt = absent, yamlfile.Position{}
	if absent {
		d.AbsentAt = at
	}
}

// findVersion sets a delivery's version, or the problem of having none. An absent component needs a
// version, too, because its rules hold while it is removed.
func (r *clusterReader) findVersion(ctx context.Context, d *Delivery, own *ownFile) error {
	place := d.VersionAt
	if d.VersionName == "" {
		if d.Absent {
			r.needsVersion(d)
			return nil
		}
		if own == nil || len(own.problems) > 0 {
			return nil // the file's problems explain it
		}
		place = yamlfile.Position{File: own.path}
	}
	a, err := r.versions.lookup(ctx, versionKey{d.Component, d.VersionName})
	if err != nil {
		return err
	}
	r.now.answers = append(r.now.answers, a)
	problems := a.at(place)
	d.Version = a.version
	d.Problems = append(d.Problems, problems...)
	r.report(problems...)
	return nil
}

// needsVersion reports an absent component without a version: the rules for its removal are
// unknown.
func (r *clusterReader) needsVersion(d *Delivery) {
	problem := yamlfile.Problem{
		At:      d.AbsentAt,
		Message: d.Component + " is absent, and no version of it is named",
		Hint: "leave its version beside it, version: vX.Y.Z, until it is gone: " +
			"its danger rules, dependencies, service account and hooks hold while it goes",
	}
	r.report(problem)
	d.Problems = append(d.Problems, problem)
}

// checkOverrides reports meta-config that sets what the version's images set.
func (r *clusterReader) checkOverrides(d *Delivery, sources []*source) {
	if d.Version == nil || !d.Version.into {
		return
	}
	for _, s := range sources {
		key := overrideKey{s, d.Version}
		problems, ok := r.checked[key]
		if !ok {
			problems = imageOverrides(s, d.Version)
			r.checked[key] = problems
		}
		d.Problems = append(d.Problems, problems...)
		r.report(problems...)
	}
}
