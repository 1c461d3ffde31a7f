package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/objectcache"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Limits of a version. They are far above any real chart. They keep a broken or hostile commit from
// using up the memory of a process that serves every cluster.
const (
	maxFleetFile      = 1 << 20
	maxComponentFile  = gitrepo.MaxFile
	maxComponentBytes = 50 << 20
	maxComponentFiles = 10_000
	// maxFolderDepth bounds the nesting, and maxComponentFolders the folders. A small repository
	// can hold endless folders, with the same tree under many names at each level.
	maxFolderDepth      = 64
	maxComponentFolders = 10_000
)

// versionResult is a version, or why it can't be read.
type versionResult struct {
	version  *Version
	problems yamlfile.Problems
	holds    holding
}

// Errors of results that a later Load may change, which keep these results out of the cache.
var (
	errUnreadable = errors.New("something could not be read")
	errOverLimits = errors.New("the limits of the Load are reached")
)

// versionReader reads one version of a component from a tree.
type versionReader struct {
	tree      gitrepo.Tree
	cache     *objectcache.Cache
	sharing   *sharing
	component string
	folder    string
	revision  string // for positions: the tag, or "" at the fleet's own revision

	problems yamlfile.Problems
	// unreadable: something could not be read, and a later Load may succeed.
	unreadable bool
	limits     *loadLimits // of the Load
	files      int
	folders    int
	bytes      int64
	unpacked   holding
	full       bool            // a limit was reached
	entries    []gitrepo.Entry // all files below the folder
}

// holds returns how much the version adds to the Load, as far as it is known.
func (r *versionReader) holds() holding {
	return holding{r.files + r.folders + r.unpacked.files, r.bytes + r.unpacked.bytes}
}

// read returns the version. Its error is that of ctx, or errOverLimits if the files exceed the
// limits.
func (r *versionReader) read(ctx context.Context, name, commit, hash string) (*versionResult, error) {
	if err := r.walk(ctx, r.folder); err != nil {
		return nil, err
	}
	if !r.limits.allows(r.holds()) {
		return nil, errOverLimits
	}
	if r.full {
		return r.failed(), nil
	}
	v := &Version{Component: r.component, Name: name, Commit: commit, Tree: hash}
	if err := r.readSpec(ctx, v); err != nil {
		return nil, err
	}
	if err := r.readImages(ctx, v); err != nil {
		return nil, err
	}
	if err := r.readSource(ctx, v); err != nil {
		return nil, err
	}
	if err := r.readChart(ctx, v); err != nil {
		return nil, err
	}
	if len(r.problems) > 0 {
		return r.failed(), nil
	}
	return &versionResult{version: v, holds: r.holds()}, nil
}

// failed returns the result with the problems.
func (r *versionReader) failed() *versionResult {
	return &versionResult{problems: r.problems, holds: r.holds()}
}

// overLimits returns the result of a version above the limits. All later versions are refused, too,
// even small ones. So the result depends only on the fleet, not on what an earlier Load has read.
func (r *versionReader) overLimits() *versionResult {
	r.problems = nil
	r.add(r.folder, "the versions in use hold more than %d files and folders or %d MiB in all", maxVersionFiles, maxVersionBytes>>20)
	return r.failed()
}

func (r *versionReader) add(path string, format string, args ...any) {
	r.problems = append(r.problems, yamlfile.Problem{
		At:      yamlfile.Position{File: path, Revision: r.revision},
		Message: fmt.Sprintf(format, args...),
	})
}

// walk lists the files below a folder, and reports entries that a component can't hold.
func (r *versionReader) walk(ctx context.Context, folder string) error {
	r.folders++
	switch {
	case r.folders > maxComponentFolders:
		r.add(r.folder, "the component holds more than %d folders", maxComponentFolders)
		r.full = true
		return nil
	case strings.Count(folder, "/") > maxFolderDepth:
		r.add(r.folder, "the component is nested deeper than %d folders", maxFolderDepth)
		r.full = true
		return nil
	}
	entries, err := r.tree.List(ctx, folder)
	if err != nil {
		return r.trouble(ctx, folder, err)
	}
	for _, e := range entries {
		switch e.Kind {
		case gitrepo.EntryFile:
			err = r.addFile(ctx, e)
		case gitrepo.EntryFolder:
			err = r.walk(ctx, e.Path)
		default:
			r.add(e.Path, "this is %s; a component holds plain files only", e.Kind)
		}
		if err != nil || r.full {
			return err
		}
	}
	return nil
}

// addFile records one file, unless it exceeds a limit.
func (r *versionReader) addFile(ctx context.Context, e gitrepo.Entry) error {
	size, err := r.tree.Size(ctx, e)
	if err != nil {
		return r.trouble(ctx, e.Path, err)
	}
	r.files++
	if size <= maxComponentFile {
		r.bytes += size
	}
	switch {
	case r.files > maxComponentFiles:
		r.add(r.folder, "the component holds more than %d files", maxComponentFiles)
		r.full = true
	case size > maxComponentFile:
		r.add(e.Path, "the file is larger than %d MiB", maxComponentFile>>20)
	case r.bytes > maxComponentBytes:
		r.add(r.folder, "the component is larger than %d MiB", maxComponentBytes>>20)
		r.full = true
	default:
		r.entries = append(r.entries, e)
	}
	return nil
}

// trouble reports a read error. If ctx has ended, it returns the error of ctx instead.
func (r *versionReader) trouble(ctx context.Context, path string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.unreadable = true
	r.add(path, "can't be read: %v", err)
	return nil
}

// file reads one file of the component's folder; nil if it does not exist or can't be read.
func (r *versionReader) file(ctx context.Context, name string) (data []byte, path string, err error) {
	path = join(r.folder, name)
	i := slices.IndexFunc(r.entries, func(e gitrepo.Entry) bool { return e.Path == path })
	if i < 0 {
		return nil, path, nil
	}
	data, err = r.tree.Read(ctx, r.entries[i], maxFleetFile)
	if errors.Is(err, gitrepo.ErrTooLarge) {
		r.add(path, "the file is larger than %d MiB", maxFleetFile>>20)
		return nil, path, nil
	}
	if err != nil {
		return nil, path, r.trouble(ctx, path, err)
	}
	return data, path, nil
}

func (r *versionReader) mistakes(path string, mistakes []yamlfile.Mistake) {
	for _, m := range mistakes {
		r.problems = append(r.problems, m.In(path, r.revision))
	}
}

func (r *versionReader) readSpec(ctx context.Context, v *Version) error {
	before := len(r.problems)
	data, path, err := r.file(ctx, "component.yaml")
	if err != nil {
		return err
	}
	if data == nil {
		if len(r.problems) == before {
			r.missing(path, "component.yml")
		}
		return nil
	}
	f := decodeComponent(data)
	r.mistakes(path, f.Mistakes)
	v.Spec = f.spec
	v.keysAt = map[string]yamlfile.Position{}
	for key, at := range f.keysAt {
		v.keysAt[key] = at.In(path, r.revision)
	}
	for _, fields := range f.healthAt {
		at := map[string]yamlfile.Position{}
		for field, p := range fields {
			at[field] = p.In(path, r.revision)
		}
		v.healthAt = append(v.healthAt, at)
	}
	for i, p := range f.dependsAt {
		v.dependsAt = append(v.dependsAt, p.In(path, r.revision))
		if f.spec.DependsOn[i] == r.component {
			r.problems = append(r.problems, yamlfile.Problem{At: v.dependsAt[i], Message: r.component + " depends on itself"})
		}
	}
	return nil
}

// missing reports a missing file, and a misspelled name if such a file exists.
func (r *versionReader) missing(path, misnamed string) {
	p := yamlfile.Problem{At: yamlfile.Position{File: path, Revision: r.revision}, Message: "the file is missing"}
	if r.has(misnamed) {
		p.Hint = "rename " + misnamed
	}
	r.problems = append(r.problems, p)
}

func (r *versionReader) has(name string) bool {
	path := join(r.folder, name)
	return slices.ContainsFunc(r.entries, func(e gitrepo.Entry) bool { return e.Path == path })
}

func (r *versionReader) readImages(ctx context.Context, v *Version) error {
	data, path, err := r.file(ctx, "images.yaml")
	if err != nil {
		return err
	}
	if data == nil {
		if r.has("images.yml") {
			r.missing(path, "images.yml")
		}
		return nil
	}
	f := decodeImages(data)
	r.mistakes(path, f.Mistakes)
	v.Images = f.spec.Images
	if v.Images == nil {
		v.Images = map[string]v1alpha1.Image{}
	}
	for _, image := range v.Images {
		v.into = v.into || image.Into != nil
	}
	v.imagesAt = f.places
	v.imagesFile, v.revision = path, r.revision
	return nil
}
