package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Load returns what the repository says at a revision (see [Repo.Resolve]), as
// of the last [Repo.Fetch].
//
// The error means that nothing can be known: the revision is not there, the
// repository can't be read, or fleet.yaml is missing or can't be parsed. Every
// other mistake is in the Problems of the Fleet, and of the cluster or delivery
// that it blocks. With the Problems of a cluster its Deliveries may be
// incomplete: one that is missing from the list is not known to be gone.
//
// With [Options.WorkTree] the revision must be "" or "HEAD"; the Fleet's is the
// commit that is checked out, whatever was changed since.
func (r *Repo) Load(ctx context.Context, rev string) (*Fleet, error) {
	if now := r.current(); r.memory != nil && !now.shared {
		if err := r.Fetch(ctx); err != nil {
			return nil, err
		}
	}
	f, err := r.load(ctx, rev)
	if r.memory != nil && (errors.As(err, new(*rewoundError)) || errors.Is(err, errOvertaken)) {
		// Another replica may have fetched what this one has not seen yet: being behind is
		// no rewind.
		r.memory.forget(memoryHeads)
		if err = r.Fetch(ctx); err == nil {
			f, err = r.load(ctx, rev)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", r.location.shown(), err)
	}
	return f, nil
}

// LoadCommit reads the fleet at a commit of the past. It leaves alone what Load
// remembers, so that the next Load is as cheap as if nothing had happened.
// Signatures are verified as in Load.
func (r *Repo) LoadCommit(ctx context.Context, commit string) (*Fleet, error) {
	f, err := r.loadCommit(ctx, commit)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", r.location.shown(), err)
	}
	return f, nil
}

func (r *Repo) loadCommit(ctx context.Context, rev string) (*Fleet, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !plumbing.IsHash(rev) {
		return nil, fmt.Errorf("%q is no commit", rev)
	}
	now := r.current()
	commit, err := now.resolve(rev)
	if err != nil {
		return nil, err
	}
	trust, err := r.trust(now.objects)
	if err != nil {
		return nil, err
	}
	var admitted *admission
	if trust != nil && !r.proposals {
		if admitted, err = r.admit(ctx, trust, "", commit); err != nil {
			return nil, err
		}
	}
	l := r.newLoader(commit, now, trust, admitted)
	root, err := now.objects.commitTree(commit)
	if err != nil {
		return nil, err
	}
	l.tree = &gitTree{objects: now.objects, cache: r.cache, root: root}
	if err := l.load(ctx); err != nil {
		return nil, fmt.Errorf("commit %s: %w", commit.String()[:12], err)
	}
	return l.fleet, nil
}

func (r *Repo) load(ctx context.Context, rev string) (*Fleet, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	now := r.current()
	commit, err := now.resolve(rev)
	if err != nil {
		return nil, err
	}
	trust, err := r.trust(now.objects)
	if err != nil {
		return nil, err
	}
	// A work tree is the caller's own, and not signed: it is looked at, never applied.
	var admitted *admission
	if trust != nil && !r.workTree && !r.proposals {
		if admitted, err = r.admit(ctx, trust, now.branchOf(rev), commit); err != nil {
			return nil, err
		}
	}
	fleet := r.unchanged(commit.String(), now, trust.digest())
	if fleet == nil {
		if fleet, err = r.newLoader(commit, now, trust, admitted).run(ctx, rev, commit); err != nil {
			return nil, err
		}
	}
	if admitted != nil {
		if err := r.accept(ctx, admitted, commit); err != nil {
			return nil, err
		}
	}
	return fleet, nil
}

// newLoader makes what loads one commit.
func (r *Repo) newLoader(commit plumbing.Hash, now *refs, trust *trust, admitted *admission) *loader {
	l := &loader{
		trust:     trust,
		repo:      r,
		refs:      now,
		fleet:     &Fleet{Revision: commit.String()},
		versions:  map[versionKey]*versionResult{},
		answers:   map[versionKey]*answer{},
		same:      map[*answer]bool{},
		layerings: map[string]*layering{},
		published: map[string][]string{},
		checked:   map[overrideKey]Problems{},
		absent:    map[Problem][]string{},
		before:    r.madeBefore(),
		made:      &making{clusters: map[string]*madeCluster{}},
	}
	if admitted != nil {
		l.fleet.Signer = &admitted.signer
	}
	return l
}

// run makes the Fleet, and leaves what was made to the Load behind it.
func (l *loader) run(ctx context.Context, rev string, commit plumbing.Hash) (*Fleet, error) {
	r := l.repo
	done, err := l.openTree(commit, rev)
	if err != nil {
		return nil, err
	}
	defer done()
	r.cache.nextLoad()
	if err := l.load(ctx); err != nil {
		return nil, fmt.Errorf("commit %s: %w", commit.String()[:12], err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.workTree {
		r.lastMade = l.made
	}
	if !l.unreadable && !r.workTree {
		r.last, r.lastTags, r.lastKeys = l.fleet, l.refs.tags, l.trust.digest()
	}
	return l.fleet, nil
}

// openTree opens the files to load: those of the commit, or the work tree's.
func (l *loader) openTree(commit plumbing.Hash, rev string) (done func(), err error) {
	if !l.repo.workTree {
		root, err := l.refs.objects.commitTree(commit)
		if err != nil {
			return nil, err
		}
		l.tree = &gitTree{objects: l.refs.objects, cache: l.repo.cache, root: root}
		return func() {}, nil
	}
	if rev != "" && rev != "HEAD" {
		return nil, fmt.Errorf("a work tree has one revision, and not %q", rev)
	}
	tree, err := openWorkTree(l.repo.location.path)
	if err != nil {
		return nil, err
	}
	l.tree = tree
	return func() { _ = tree.root.Close() }, nil // nothing was written
}

// unchanged returns the Fleet of the last Load if it would be the same again.
func (r *Repo) unchanged(commit string, now *refs, keys string) *Fleet {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.last != nil && r.last.Revision == commit && r.lastKeys == keys && maps.Equal(r.lastTags, now.tags) {
		return r.last
	}
	return nil
}

func (r *Repo) madeBefore() *making {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return cmp.Or(r.lastMade, &making{})
}

// loader makes one Fleet.
type loader struct {
	repo   *Repo
	refs   *refs
	trust  *trust
	budget budget
	tree   tree
	fleet  *Fleet
	layers []*layer
	// approvals that hold, of all files, and where they name a cluster.
	approvals []approval
	// components that have a folder at this revision.
	components []string
	// everywhere blocks every cluster.
	everywhere Problems
	pipelineAt Position // of the fleet's pipeline
	inventory  inventory

	versions  map[versionKey]*versionResult
	answers   map[versionKey]*answer
	same      map[*answer]bool // of the Load before, whether they still hold
	layerings map[string]*layering
	published map[string][]string // versions in order, by component
	before    *making             // of the Load before
	governed  bool                // what all clusters are subject to is another than before
	made      *making
	scratch   []Delivery // of the cluster that is being made
	checked   map[overrideKey]Problems
	// unreadable: something could not be read, and may be the next time.
	unreadable bool
	// absent collects the clusters without a dependency, so that the fleet
	// lists them in one Problem.
	absent map[Problem][]string
}

type overrideKey struct {
	source  *source
	version *Version
}

func (l *loader) load(ctx context.Context) error {
	if err := l.readFleet(ctx); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		l.readProbes, l.readPipelines, l.readComponents, l.readProjects, l.readFreezes, l.readNotifications, l.readLayers, l.readApprovals, l.readInventory, l.readClusters,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	l.finish()
	return nil
}

// report adds problems of the fleet.
func (l *loader) report(problems ...Problem) {
	l.fleet.Problems = append(l.fleet.Problems, problems...)
}

// block adds problems that block every cluster.
func (l *loader) block(problems ...Problem) {
	l.report(problems...)
	l.everywhere = append(l.everywhere, problems...)
}

func (l *loader) readFleet(ctx context.Context) error {
	const name = "fleet.yaml"
	top, err := l.tree.list(ctx, "")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(top, func(e entry) bool { return e.name == name })
	if i < 0 {
		if slices.ContainsFunc(top, func(e entry) bool { return e.name == "fleet.yml" }) {
			return errors.New("fleet.yaml is missing: rename fleet.yml")
		}
		return errors.New("fleet.yaml is missing: this is not a fleet repository")
	}
	f, problem, err := readEntry(ctx, l, top[i], v1alpha1.KindFleet, decodeFleet)
	if err != nil {
		return err
	}
	if f == nil {
		return problem
	}
	problems := f.in(name)
	if f.broken {
		return problems.Err()
	}
	l.fleet.Spec, l.pipelineAt = f.spec, f.pipelineAt.in(name, "")
	if f.spec.Verify != "" && l.trust == nil && !l.repo.workTree {
		return errors.Join(errors.New("fleet.yaml says that this repository is signed (verify), and no trusted keys were given "+
			"to check it with: give --trusted-keys FILE"), problems.Err())
	}
	l.block(problems...)
	return nil
}

// readEntry reads and decodes one file, or finds it in the cache. Without a
// file, the problem says why it can't be read; the error is one of ctx alone.
func readEntry[T any](ctx context.Context, l *loader, e entry, kind string, decode func([]byte) *T) (*T, Problem, error) {
	problem := Problem{At: Position{File: e.path}}
	if e.kind != entryFile {
		problem.Message = fmt.Sprintf("this is %s, not a file", e.kind)
		return nil, problem, nil
	}
	f, err := cached(l.repo.cache, cacheKey{job: kind, hash: e.hash}, func() (*T, error) {
		data, err := l.tree.read(ctx, e, maxFleetFile)
		if err != nil {
			return nil, err
		}
		return decode(data), nil
	})
	if err == nil {
		return f, Problem{}, nil
	}
	if errors.Is(err, errTooLarge) {
		problem.Message = fmt.Sprintf("the file is larger than %d MiB", maxFleetFile>>20)
	} else {
		l.unreadable = true
		problem.Message = "can't be read: " + err.Error()
	}
	return nil, problem, ctx.Err()
}

// isNote says whether a file is for people and not for Keelson.
func isNote(e entry) bool {
	return strings.HasPrefix(e.name, ".") || e.kind == entryFile && strings.HasSuffix(e.name, ".md")
}

// isYAML says whether a name is that of a file that Keelson reads, and isYML
// whether it would be if it were spelt as the others are.
func isYAML(name string) bool { return strings.HasSuffix(name, ".yaml") }

func isYML(name string) bool {
	lower := strings.ToLower(name)
	return !isYAML(name) && (strings.HasSuffix(lower, ".yml") || strings.HasSuffix(lower, ".yaml"))
}

// renameYML is the problem of a file that is called .yml.
func renameYML(e entry) Problem {
	stem := e.name[:strings.LastIndex(e.name, ".")]
	return Problem{
		At:      Position{File: e.path},
		Message: "files must be called .yaml, so that none is overlooked",
		Hint:    "rename it to " + stem + ".yaml",
	}
}

// readComponents checks the components of this revision, also those that no
// cluster runs at HEAD: a mistake is best found before its version is tagged.
func (l *loader) readComponents(ctx context.Context) error {
	entries, err := l.tree.list(ctx, "components")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if isNote(e) {
			continue
		}
		if e.kind != entryFolder {
			l.report(Problem{
				At:      Position{File: e.path},
				Message: fmt.Sprintf("this is %s; components/ holds a folder for each component", e.kind),
			})
			continue
		}
		if wrong := CheckComponentName(e.name); wrong != "" {
			l.report(Problem{At: Position{File: e.path}, Message: wrong})
			continue
		}
		l.components = append(l.components, e.name)
		result, err := l.version(ctx, e.name, v1alpha1.VersionHead)
		if err != nil {
			return err
		}
		l.report(result.problems...)
		if err := l.readWay(ctx, e.name); err != nil {
			return err
		}
	}
	return nil
}

// version reads a version that exists, once. Without a result, it is not there.
func (l *loader) version(ctx context.Context, component, version string) (*versionResult, error) {
	key := versionKey{component, version}
	if result, ok := l.versions[key]; ok {
		return result, nil
	}
	result, err := l.readVersion(ctx, component, version)
	if err != nil {
		return nil, err
	}
	l.versions[key] = result
	return result, nil
}

func (l *loader) readVersion(ctx context.Context, component, version string) (*versionResult, error) {
	reader := versionReader{budget: &l.budget, tree: l.tree, repo: l.repo, component: component, folder: join("components", component)}
	commit := ""
	if version != v1alpha1.VersionHead {
		reader.revision = component + "/" + version
	}
	if !l.budget.allows(holding{}) {
		return reader.overBudget(), nil
	}
	if version != v1alpha1.VersionHead {
		h, err := l.refs.commitOf(reader.revision)
		if err != nil {
			return l.noVersion(ctx, &reader, err)
		}
		commit = h.String()
		root, err := cached(l.repo.cache, cacheKey{job: "root", hash: commit}, func() (plumbing.Hash, error) {
			return l.refs.objects.commitTree(h)
		})
		if err != nil {
			return l.noVersion(ctx, &reader, err)
		}
		reader.tree = &gitTree{objects: l.refs.objects, cache: l.repo.cache, root: root}
	}
	hash, err := l.folderAt(ctx, reader.tree, commit, reader.folder)
	if err != nil {
		return l.noVersion(ctx, &reader, err)
	}
	if hash == "" {
		reader.add(reader.folder, "there is no such folder")
		return &versionResult{problems: reader.problems}, nil
	}
	var fresh *versionResult
	result, err := cached(l.repo.cache, cacheKey{job: "version", hash: hash, name: component + "/" + version + "@" + commit},
		func() (*versionResult, error) {
			var err error
			fresh, err = reader.read(ctx, version, commit, hash)
			if err == nil && reader.unreadable {
				err = errUnreadable
			}
			return fresh, err
		})
	switch {
	case errors.Is(err, errUnreadable):
		l.unreadable = true
		result = fresh
	case errors.Is(err, errOverBudget):
		l.budget.exhaust()
		return reader.overBudget(), nil
	case err != nil:
		return nil, err
	}
	if !l.budget.version(result.holds) {
		return reader.overBudget(), nil
	}
	return result, nil
}

// folderAt is the hash of a folder. What it is at a commit is remembered, so
// that the trees above it need not be.
func (l *loader) folderAt(ctx context.Context, t tree, commit, folder string) (string, error) {
	if commit == "" {
		return t.hash(ctx, folder)
	}
	return cached(l.repo.cache, cacheKey{job: "folder", hash: commit, name: folder}, func() (string, error) {
		return t.hash(ctx, folder)
	})
}

// noVersion is the result for a version of which nothing could be read.
func (l *loader) noVersion(ctx context.Context, r *versionReader, err error) (*versionResult, error) {
	if err := r.trouble(ctx, r.folder, err); err != nil {
		return nil, err
	}
	l.unreadable = true
	return &versionResult{problems: r.problems}, nil
}

// nowhere reports a component that is at no revision; nil: it is.
func (l *loader) nowhere(component string, at Position) *Problem {
	if _, atHead := slices.BinarySearch(l.components, component); atHead || len(l.refs.versions[component]) > 0 {
		return nil
	}
	return &Problem{
		At: at,
		Message: fmt.Sprintf("component %q exists nowhere: there is neither a folder components/%s nor a tag %s/vX.Y.Z",
			component, component, component),
		Hint: Suggest(component, l.components),
	}
}

// unpublished says why a version is not there to be read.
func (l *loader) unpublished(component, version string, at Position) *Problem {
	if problem := l.nowhere(component, at); problem != nil {
		return problem
	}
	if version == v1alpha1.VersionHead {
		if _, atHead := slices.BinarySearch(l.components, component); !atHead {
			return &Problem{At: at, Message: fmt.Sprintf("components/%s does not exist at this revision", component)}
		}
		return nil
	}
	tag := component + "/" + version
	raw, ok := l.refs.tags[tag]
	if !ok {
		hint := fmt.Sprintf("publish it with: git tag %s && git push origin %s", tag, tag)
		if near := nearest(version, l.sorted(component)); len(near) > 0 {
			hint += "; there is " + strings.Join(near, ", ")
		}
		return &Problem{At: at, Message: "there is no tag " + tag, Hint: hint}
	}
	if problem := l.moved(tag, raw, at); problem != nil {
		return problem
	}
	return l.distrusted(tag, raw, at)
}

// moved reports a tag that no longer points to the commit it was first seen at.
func (l *loader) moved(tag string, raw plumbing.Hash, at Position) *Problem {
	first, ok := l.refs.seen[tag]
	if !ok || first.raw == raw {
		return nil
	}
	// A tag that can't be read is reported by who reads it.
	if commit, err := l.refs.commitOf(tag); err == nil && commit != first.commit {
		return &Problem{
			At: at,
			Message: fmt.Sprintf("tag %s was moved: it was at %s when first seen and is at %s now; a version can't change",
				tag, first.commit.String()[:12], commit.String()[:12]),
			Hint: fmt.Sprintf("publish a new version, or move the tag back with: git push -f origin %s:refs/tags/%s",
				first.commit, tag),
		}
	}
	return nil
}

// sorted returns the published versions of a component in order.
func (l *loader) sorted(component string) []string {
	if _, ok := l.published[component]; !ok {
		l.published[component] = slices.SortedFunc(slices.Values(l.refs.versions[component]), compareVersions)
	}
	return l.published[component]
}

// nearest returns the few versions of a sorted list that are nearest to one that
// is not in it.
func nearest(version string, sorted []string) []string {
	const few = 4
	i, _ := slices.BinarySearchFunc(sorted, version, compareVersions)
	from := max(0, min(i-few/2, len(sorted)-few))
	return sorted[from:min(len(sorted), from+few)]
}

// compareVersions orders two valid versions.
func compareVersions(a, b string) int {
	va, errA := parseVersion(a)
	vb, errB := parseVersion(b)
	if errA != nil || errB != nil {
		return cmp.Compare(a, b)
	}
	return cmp.Or(va.Compare(vb), cmp.Compare(a, b))
}

// finish orders the fleet's problems and lets each stand once.
func (l *loader) finish() {
	l.checkApprovals()
	l.findPlaces()
	for problem, clusters := range l.absent {
		slices.Sort(clusters)
		problem.Message += onClusters(clusters)
		l.report(problem)
	}
	slices.SortFunc(l.fleet.Problems, Problem.Compare)
	l.fleet.Problems = slices.Compact(l.fleet.Problems)
}

// onClusters names the clusters, or the first few of many.
func onClusters(clusters []string) string {
	const few = 5
	switch {
	case len(clusters) == 1:
		return " cluster " + clusters[0]
	case len(clusters) <= few:
		return " clusters " + strings.Join(clusters, ", ")
	default:
		return fmt.Sprintf(" clusters %s and %d more", strings.Join(clusters[:few], ", "), len(clusters)-few)
	}
}
