package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/objectcache"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// newLoader returns a loader for the files of one commit.
func (r *Repo) newLoader(at *gitrepo.Admission, tree gitrepo.Tree) *loader {
	return &loader{
		at:        at,
		repo:      r,
		tree:      tree,
		fleet:     &Fleet{Revision: at.Commit.String(), Signer: at.Signer},
		versions:  map[versionKey]*versionResult{},
		answers:   map[versionKey]*versionLookup{},
		same:      map[*versionLookup]bool{},
		layerings: map[string]*layering{},
		published: map[string][]string{},
		checked:   map[overrideKey]yamlfile.Problems{},
		absent:    map[yamlfile.Problem][]string{},
		before:    r.previousMemo(),
		made:      &loadMemo{clusters: map[string]*madeCluster{}},
	}
}

// loader loads one Fleet.
type loader struct {
	repo   *Repo
	at     *gitrepo.Admission
	budget budget
	tree   gitrepo.Tree
	fleet  *Fleet
	layers []*layer
	// approvals are the valid approvals of all files.
	approvals []approval
	// components are the components with a folder at this revision.
	components []string
	// everywhere are the problems that block every cluster.
	everywhere yamlfile.Problems
	pipelineAt yamlfile.Position // of the fleet's pipeline
	inventory  inventory

	versions  map[versionKey]*versionResult
	answers   map[versionKey]*versionLookup
	same      map[*versionLookup]bool // by answer of the previous Load: whether it is still correct
	layerings map[string]*layering
	published map[string][]string // versions in order, by component
	before    *loadMemo           // of the previous Load
	governed  bool                // an input of all clusters changed since the previous Load
	made      *loadMemo
	scratch   []Delivery // of the cluster that is being loaded
	checked   map[overrideKey]yamlfile.Problems
	// unreadable: something could not be read, and a later Load may succeed.
	unreadable bool
	// absent collects the clusters by missing dependency or stage, so that the fleet lists each in
	// one Problem.
	absent map[yamlfile.Problem][]string
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

// report adds problems to the fleet.
func (l *loader) report(problems ...yamlfile.Problem) {
	l.fleet.Problems = append(l.fleet.Problems, problems...)
}

// block adds problems that block every cluster.
func (l *loader) block(problems ...yamlfile.Problem) {
	l.report(problems...)
	l.everywhere = append(l.everywhere, problems...)
}

func (l *loader) readFleet(ctx context.Context) error {
	const name = "fleet.yaml"
	top, err := l.tree.List(ctx, "")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(top, func(e gitrepo.Entry) bool { return e.Name == name })
	if i < 0 {
		if slices.ContainsFunc(top, func(e gitrepo.Entry) bool { return e.Name == "fleet.yml" }) {
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
	problems := f.In(name)
	if f.broken {
		return problems.Err()
	}
	l.fleet.Spec, l.pipelineAt = f.spec, f.pipelineAt.In(name, "")
	if f.spec.Verify != "" && l.at.Trust == nil && !l.repo.git.WorkTree() {
		return errors.Join(errors.New("fleet.yaml says that this repository is signed (verify), and no trusted keys were given "+
			"to check it with: give --trusted-keys FILE"), problems.Err())
	}
	l.block(problems...)
	return nil
}

// readEntry reads and decodes one file, or finds it in the cache. If the file is nil, the problem
// says why it can't be read. The error is only that of ctx.
func readEntry[T any](ctx context.Context, l *loader, e gitrepo.Entry, kind string, decode func([]byte) *T) (*T, yamlfile.Problem, error) {
	problem := yamlfile.Problem{At: yamlfile.Position{File: e.Path}}
	if e.Kind != gitrepo.EntryFile {
		problem.Message = fmt.Sprintf("this is %s, not a file", e.Kind)
		return nil, problem, nil
	}
	f, err := objectcache.Get(l.repo.cache, objectcache.Key{Job: kind, Hash: e.Hash}, func() (*T, error) {
		data, err := l.tree.Read(ctx, e, maxFleetFile)
		if err != nil {
			return nil, err
		}
		return decode(data), nil
	})
	if err == nil {
		return f, yamlfile.Problem{}, nil
	}
	if errors.Is(err, gitrepo.ErrTooLarge) {
		problem.Message = fmt.Sprintf("the file is larger than %d MiB", maxFleetFile>>20)
	} else {
		l.unreadable = true
		problem.Message = "can't be read: " + err.Error()
	}
	return nil, problem, ctx.Err()
}

// isNote reports whether a file is for people, not for Keelson.
func isNote(e gitrepo.Entry) bool {
	return strings.HasPrefix(e.Name, ".") || e.Kind == gitrepo.EntryFile && strings.HasSuffix(e.Name, ".md")
}

// isYAML reports whether a file name has the ending that Keelson reads. isYML reports whether it
// has another spelling of this ending.
func isYAML(name string) bool { return strings.HasSuffix(name, ".yaml") }

func isYML(name string) bool {
	lower := strings.ToLower(name)
	return !isYAML(name) && (strings.HasSuffix(lower, ".yml") || strings.HasSuffix(lower, ".yaml"))
}

// renameYML returns the problem of a file with an ending like .yml.
func renameYML(e gitrepo.Entry) yamlfile.Problem {
	stem := e.Name[:strings.LastIndex(e.Name, ".")]
	return yamlfile.Problem{
		At:      yamlfile.Position{File: e.Path},
		Message: "files must be called .yaml, so that none is overlooked",
		Hint:    "rename it to " + stem + ".yaml",
	}
}

// readComponents checks the components of this revision, including components that no cluster runs
// at HEAD. A mistake should be found before its version is tagged.
func (l *loader) readComponents(ctx context.Context) error {
	entries, err := l.tree.List(ctx, "components")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if isNote(e) {
			continue
		}
		if e.Kind != gitrepo.EntryFolder {
			l.report(yamlfile.Problem{
				At:      yamlfile.Position{File: e.Path},
				Message: fmt.Sprintf("this is %s; components/ holds a folder for each component", e.Kind),
			})
			continue
		}
		if wrong := naming.CheckComponent(e.Name); wrong != "" {
			l.report(yamlfile.Problem{At: yamlfile.Position{File: e.Path}, Message: wrong})
			continue
		}
		l.components = append(l.components, e.Name)
		result, err := l.version(ctx, e.Name, v1alpha1.VersionHead)
		if err != nil {
			return err
		}
		l.report(result.problems...)
		if err := l.readPipelineOf(ctx, e.Name); err != nil {
			return err
		}
	}
	return nil
}

// version reads a version once. If it can't be read, the result has problems and no version.
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
		h, err := l.at.Snapshot.CommitOf(reader.revision)
		if err != nil {
			return l.noVersion(ctx, &reader, err)
		}
		commit = h.String()
		if reader.tree, err = l.at.Snapshot.TreeOf(h); err != nil {
			return l.noVersion(ctx, &reader, err)
		}
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
	result, err := objectcache.Get(l.repo.cache, objectcache.Key{Job: "version", Hash: hash, Name: component + "/" + version + "@" + commit},
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

// folderAt returns the hash of a folder. The hash at a commit is cached, so that the trees above
// the folder need not be.
func (l *loader) folderAt(ctx context.Context, t gitrepo.Tree, commit, folder string) (string, error) {
	if commit == "" {
		return t.Hash(ctx, folder)
	}
	return objectcache.Get(l.repo.cache, objectcache.Key{Job: "folder", Hash: commit, Name: folder}, func() (string, error) {
		return t.Hash(ctx, folder)
	})
}

// noVersion returns the result for a version that could not be read.
func (l *loader) noVersion(ctx context.Context, r *versionReader, err error) (*versionResult, error) {
	if err := r.trouble(ctx, r.folder, err); err != nil {
		return nil, err
	}
	l.unreadable = true
	return &versionResult{problems: r.problems}, nil
}

// nowhere reports a component that no revision has; nil if one has it.
func (l *loader) nowhere(component string, at yamlfile.Position) *yamlfile.Problem {
	if _, atHead := slices.BinarySearch(l.components, component); atHead || len(l.at.Snapshot.Versions(component)) > 0 {
		return nil
	}
	return &yamlfile.Problem{
		At: at,
		Message: fmt.Sprintf("component %q exists nowhere: there is neither a folder components/%s nor a tag %s/vX.Y.Z",
			component, component, component),
		Hint: naming.Suggest(component, l.components),
	}
}

// unpublished returns why a version does not exist or can't be used, or nil.
func (l *loader) unpublished(component, version string, at yamlfile.Position) *yamlfile.Problem {
	if problem := l.nowhere(component, at); problem != nil {
		return problem
	}
	if version == v1alpha1.VersionHead {
		if _, atHead := slices.BinarySearch(l.components, component); !atHead {
			return &yamlfile.Problem{At: at, Message: fmt.Sprintf("components/%s does not exist at this revision", component)}
		}
		return nil
	}
	tag := component + "/" + version
	if !l.at.Snapshot.HasTag(tag) {
		hint := fmt.Sprintf("publish it with: git tag %s && git push origin %s", tag, tag)
		if near := nearest(version, l.sorted(component)); len(near) > 0 {
			hint += "; there is " + strings.Join(near, ", ")
		}
		return &yamlfile.Problem{At: at, Message: "there is no tag " + tag, Hint: hint}
	}
	if problem := l.moved(tag, at); problem != nil {
		return problem
	}
	return l.distrusted(tag, at)
}

// moved reports a tag that no longer points to the commit that it was first seen at. readVersion
// reports a tag that can't be read.
func (l *loader) moved(tag string, at yamlfile.Position) *yamlfile.Problem {
	first, now, moved := l.at.Snapshot.Moved(tag)
	if !moved {
		return nil
	}
	return &yamlfile.Problem{
		At: at,
		Message: fmt.Sprintf("tag %s was moved: it was at %.12s when first seen and is at %.12s now; a version can't change",
			tag, first, now),
		Hint: fmt.Sprintf("publish a new version, or move the tag back with: git push -f origin %s:refs/tags/%s",
			first, tag),
	}
}

// distrusted returns why a version's tag may not be used, or nil.
func (l *loader) distrusted(tag string, at yamlfile.Position) *yamlfile.Problem {
	lightweight, err := l.at.Trust.Tag(tag)
	if err == nil && lightweight && l.fleet.Spec.Verify == v1alpha1.VerifySignedTags {
		err = fmt.Errorf("tag %s is lightweight, and fleet.yaml wants tags that are signed themselves", tag)
	}
	if err == nil {
		return nil
	}
	return &yamlfile.Problem{
		At: at, Message: err.Error(),
		Hint: fmt.Sprintf("let the owner of a trusted key review it and sign it with: git tag -s -f %s %s^{} && git push -f origin %s",
			tag, tag, tag),
	}
}

// sorted returns the published versions of a component in order.
func (l *loader) sorted(component string) []string {
	if _, ok := l.published[component]; !ok {
		l.published[component] = slices.SortedFunc(slices.Values(l.at.Snapshot.Versions(component)), compareVersions)
	}
	return l.published[component]
}

// nearest returns the few versions in a sorted list that are nearest to a version outside the list.
func nearest(version string, sorted []string) []string {
	const few = 4
	i, _ := slices.BinarySearchFunc(sorted, version, compareVersions)
	from := max(0, min(i-few/2, len(sorted)-few))
	return sorted[from:min(len(sorted), from+few)]
}

// compareVersions compares two valid versions.
func compareVersions(a, b string) int {
	va, errA := naming.ParseVersion(a)
	vb, errB := naming.ParseVersion(b)
	if errA != nil || errB != nil {
		return cmp.Compare(a, b)
	}
	return cmp.Or(va.Compare(vb), cmp.Compare(a, b))
}

// finish sorts the fleet's problems and removes duplicates.
func (l *loader) finish() {
	l.checkApprovals()
	l.findPlaces()
	for problem, clusters := range l.absent {
		slices.Sort(clusters)
		problem.Message += onClusters(clusters)
		l.report(problem)
	}
	slices.SortFunc(l.fleet.Problems, yamlfile.Problem.Compare)
	l.fleet.Problems = slices.Compact(l.fleet.Problems)
}

// onClusters returns the names of the clusters, or the first few names of a long list.
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
