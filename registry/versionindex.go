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

type versionKey struct{ component, version string }

// versionLookup is the result of looking up a version by its name: the version, or the problems with it.
type versionLookup struct {
	key     versionKey
	version *Version
	// refused is set if no such version can exist. It is reported at the reference, not at the
	// version.
	refused *yamlfile.Problem
	// problems are those of the version, with their own positions.
	problems yamlfile.Problems
}

// at returns all problems of the answer, for a reference at place.
func (a *versionLookup) at(place yamlfile.Position) yamlfile.Problems {
	if a.refused == nil {
		return a.problems
	}
	problem := *a.refused
	problem.At = place
	return yamlfile.Problems{problem}
}

func (a *versionLookup) equal(b *versionLookup) bool {
	if (a.refused == nil) != (b.refused == nil) || a.refused != nil && *a.refused != *b.refused {
		return false
	}
	return a.key == b.key && a.version == b.version && slices.Equal(a.problems, b.problems)
}

// versionIndex finds and reads the versions of components at one revision of a fleet. Each is read
// once a Load.
type versionIndex struct {
	files    *revisionFiles // of the fleet's revision
	snapshot *gitrepo.Snapshot
	trust    *gitrepo.Trust
	verify   v1alpha1.Verify // of fleet.yaml
	sharing  *sharing
	limits   *loadLimits // of the Load
	// components have a folder at the fleet's revision. They are in order.
	components []string

	results   map[versionKey]*versionResult
	lookups   map[versionKey]*versionLookup
	current   map[*versionLookup]bool // by lookup of the previous Load: whether it is still correct
	published map[string][]string     // versions in order, by component
}

// lookup looks up a version by the name in a file, once a Load. The name "" stands for a file that
// names no version.
func (x *versionIndex) lookup(ctx context.Context, key versionKey) (*versionLookup, error) {
	if a, ok := x.lookups[key]; ok {
		return a, nil
	}
	a := &versionLookup{key: key, refused: x.refuse(key)}
	if a.refused == nil {
		result, err := x.read(ctx, key.component, key.version)
		if err != nil {
			return nil, err
		}
		a.version, a.problems = result.version, result.problems
	}
	x.lookups[key] = a
	return a, nil
}

// refuse returns why a version can't exist, or nil.
func (x *versionIndex) refuse(key versionKey) *yamlfile.Problem {
	if key.version == "" {
		problem := x.unpublished(key.component, v1alpha1.VersionHead, yamlfile.Position{})
		if problem == nil || len(x.snapshot.Versions(key.component)) > 0 {
			problem = &yamlfile.Problem{
				Message: "neither this file nor a layer names a version of " + key.component + " for this cluster",
				Hint:    "add version: vX.Y.Z",
			}
		}
		return problem
	}
	if message, hint := naming.CheckVersion(key.version); message != "" {
		return &yamlfile.Problem{Message: message, Hint: hint}
	}
	return x.unpublished(key.component, key.version, yamlfile.Position{})
}

// isCurrent reports whether an answer of an earlier Load is still correct.
func (x *versionIndex) isCurrent(ctx context.Context, before *versionLookup) (bool, error) {
	if same, ok := x.current[before]; ok {
		return same, nil
	}
	now, err := x.lookup(ctx, before.key)
	if err != nil {
		return false, err
	}
	same := before.equal(now)
	x.current[before] = same
	return same, nil
}

// read reads a version once. If it can't be read, the result has problems and no version.
func (x *versionIndex) read(ctx context.Context, component, version string) (*versionResult, error) {
	key := versionKey{component, version}
	if result, ok := x.results[key]; ok {
		return result, nil
	}
	result, err := x.readAnew(ctx, component, version)
	if err != nil {
		return nil, err
	}
	x.results[key] = result
	return result, nil
}

func (x *versionIndex) readAnew(ctx context.Context, component, version string) (*versionResult, error) {
	reader := versionReader{limits: x.limits, tree: x.files.tree, cache: x.files.cache, sharing: x.sharing, component: component, folder: join("components", component)}
	commit := ""
	if version != v1alpha1.VersionHead {
		reader.revision = component + "/" + version
	}
	if !x.limits.allows(holding{}) {
		return reader.overLimits(), nil
	}
	if version != v1alpha1.VersionHead {
		h, err := x.snapshot.CommitOf(reader.revision)
		if err != nil {
			return x.noVersion(ctx, &reader, err)
		}
		commit = h.String()
		if reader.tree, err = x.snapshot.TreeOf(h); err != nil {
			return x.noVersion(ctx, &reader, err)
		}
	}
	hash, err := x.folderAt(ctx, reader.tree, commit, reader.folder)
	if err != nil {
		return x.noVersion(ctx, &reader, err)
	}
	if hash == "" {
		reader.add(reader.folder, "there is no such folder")
		return &versionResult{problems: reader.problems}, nil
	}
	var fresh *versionResult
	result, err := objectcache.Get(x.files.cache, objectcache.Key{Job: "version", Hash: hash, Name: component + "/" + version + "@" + commit},
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
		x.files.unreadable = true
		result = fresh
	case errors.Is(err, errOverLimits):
		x.limits.exhaust()
		return reader.overLimits(), nil
	case err != nil:
		return nil, err
	}
	if !x.limits.version(result.holds) {
		return reader.overLimits(), nil
	}
	return result, nil
}

// folderAt returns the hash of a folder. The hash at a commit is cached, so that the trees above
// the folder need not be.
func (x *versionIndex) folderAt(ctx context.Context, t gitrepo.Tree, commit, folder string) (string, error) {
	if commit == "" {
		return t.Hash(ctx, folder)
	}
	return objectcache.Get(x.files.cache, objectcache.Key{Job: "folder", Hash: commit, Name: folder}, func() (string, error) {
		return t.Hash(ctx, folder)
	})
}

// noVersion returns the result for a version that could not be read.
func (x *versionIndex) noVersion(ctx context.Context, r *versionReader, err error) (*versionResult, error) {
	if err := r.trouble(ctx, r.folder, err); err != nil {
		return nil, err
	}
	x.files.unreadable = true
	return &versionResult{problems: r.problems}, nil
}

// nowhere reports a component that no revision has; nil if one has it.
func (x *versionIndex) nowhere(component string, at yamlfile.Position) *yamlfile.Problem {
	if _, atHead := slices.BinarySearch(x.components, component); atHead || len(x.snapshot.Versions(component)) > 0 {
		return nil
	}
	return &yamlfile.Problem{
		At: at,
		Message: fmt.Sprintf("component %q exists nowhere: there is neither a folder components/%s nor a tag %s/vX.Y.Z",
			component, component, component),
		Hint: naming.Suggest(component, x.components),
	}
}

// unpublished returns why a version does not exist or can't be used, or nil.
func (x *versionIndex) unpublished(component, version string, at yamlfile.Position) *yamlfile.Problem {
	if problem := x.nowhere(component, at); problem != nil {
		return problem
	}
	if version == v1alpha1.VersionHead {
		if _, atHead := slices.BinarySearch(x.components, component); !atHead {
			return &yamlfile.Problem{At: at, Message: fmt.Sprintf("components/%s does not exist at this revision", component)}
		}
		return nil
	}
	tag := component + "/" + version
	if !x.snapshot.HasTag(tag) {
		hint := fmt.Sprintf("publish it with: git tag %s && git push origin %s", tag, tag)
		if near := nearest(version, x.sorted(component)); len(near) > 0 {
			hint += "; there is " + strings.Join(near, ", ")
		}
		return &yamlfile.Problem{At: at, Message: "there is no tag " + tag, Hint: hint}
	}
	if problem := x.moved(tag, at); problem != nil {
		return problem
	}
	return x.distrusted(tag, at)
}

// moved reports a tag that no longer points to the commit that it was first seen at. readAnew
// reports a tag that can't be read.
func (x *versionIndex) moved(tag string, at yamlfile.Position) *yamlfile.Problem {
	first, now, moved := x.snapshot.Moved(tag)
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
func (x *versionIndex) distrusted(tag string, at yamlfile.Position) *yamlfile.Problem {
	lightweight, err := x.trust.Tag(tag)
	if err == nil && lightweight && x.verify == v1alpha1.VerifySignedTags {
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
func (x *versionIndex) sorted(component string) []string {
	if _, ok := x.published[component]; !ok {
		x.published[component] = slices.SortedFunc(slices.Values(x.snapshot.Versions(component)), compareVersions)
	}
	return x.published[component]
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
