package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Refuses returns why a version can't be used, or nil. A version with a tag can be refused, for
// example because the tag was moved or has no signature of a trusted key.
func (r *Repo) Refuses(component, version string) (*yamlfile.Problem, error) {
	now := r.current()
	trust, err := r.trust(now.objects)
	if err != nil {
		return nil, err
	}
	l := &loader{repo: r, refs: now, trust: trust, published: map[string][]string{}}
	return l.unpublished(component, version, yamlfile.Position{}), nil
}

// CommitInfo is the author's data of a commit, which is not verified.
type CommitInfo struct {
	Parents []string // full hashes
	// Author and Committer have the form NAME <EMAIL>.
	Author, Committer string
	Message           string
}

// Commit reads a commit by its full hash.
func (r *Repo) Commit(hash string) (CommitInfo, error) {
	h := plumbing.NewHash(hash)
	raw, err := r.current().objects.readTyped(plumbing.CommitObject, h, maxCommitBytes)
	if err != nil {
		return CommitInfo{}, fmt.Errorf("read commit %.12s: %w", hash, err)
	}
	var data plumbing.MemoryObject
	data.SetType(plumbing.CommitObject)
	_, _ = data.Write(raw) // a write into memory can't fail
	var c object.Commit
	if err := c.Decode(&data); err != nil {
		return CommitInfo{}, fmt.Errorf("commit %.12s is malformed: %w", hash, err)
	}
	by := func(s object.Signature) string { return fmt.Sprintf("%s <%s>", s.Name, s.Email) }
	out := CommitInfo{Author: by(c.Author), Committer: by(c.Committer), Message: c.Message}
	for _, p := range c.ParentHashes {
		out.Parents = append(out.Parents, p.String())
	}
	return out, nil
}

// ErrNotBehind is the error for a commit that is not in the chain of first parents of another.
var ErrNotBehind = errors.New("not among the commits that it was made from, each the first parent of the next")

// FirstParents returns the full hashes of the commits after from up to to, oldest first. Each is
// the first parent of the next, as a branch had them. The error wraps [ErrNotBehind] if the walk
// does not reach from within most commits.
func (r *Repo) FirstParents(ctx context.Context, from, to string, most int) ([]string, error) {
	var out []string
	objects, end := r.current().objects, plumbing.NewHash(from)
	for h := plumbing.NewHash(to); h != end; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c, err := objects.commit(h)
		if err != nil {
			return nil, err
		}
		if out = append(out, h.String()); len(out) > most || len(c.parents) == 0 {
			return nil, fmt.Errorf("%.12s: %w; %d commits before %.12s were read", from, ErrNotBehind, len(out), to)
		}
		h = c.parents[0]
	}
	slices.Reverse(out)
	return out, nil
}

// Branches returns the full commit hashes of the branches whose names begin with prefix, by name,
// as of the last [Repo.Fetch].
func (r *Repo) Branches(prefix string) map[string]string {
	out := map[string]string{}
	for name, at := range r.current().branches {
		if strings.HasPrefix(name, prefix) {
			out[name] = at.String()
		}
	}
	return out
}

// FindVersionCommit returns a commit at which a file, of a layer or of a cluster, named a version of a
// component. The commit is the given commit, a full hash, or one of its ancestors; "" if there is
// none. No file could name a version before it was tagged, so ancestors of the tag's commit are
// skipped. All other ancestors are searched, because commits do not record which commit a branch
// had when.
func (r *Repo) FindVersionCommit(ctx context.Context, commit, file, component, version string) (string, error) {
	now := r.current()
	tagged, err := now.commitOf(component + "/" + version)
	if err != nil {
		return "", err
	}
	seen := map[plumbing.Hash]bool{}
	l := &historySearch{
		paths: paths{objects: now.objects, found: map[pathKey]plumbing.Hash{}}, file: file, component: component, version: version,
		says: map[plumbing.Hash]bool{plumbing.ZeroHash: false},
	}
	for queue := []plumbing.Hash{plumbing.NewHash(commit)}; len(queue) > 0; queue = queue[1:] {
		h := queue[0]
		if seen[h] {
			continue
		}
		seen[h] = true
		says, parents, err := l.matches(h)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case len(seen) > maxAncestors:
			return "", fmt.Errorf("look for %s %s in the past of %s: it has more than %d commits", component, version, file, maxAncestors)
		case err != nil:
			return "", fmt.Errorf("look for %s %s in the past of %s: %w", component, version, file, err)
		case says:
			return h.String(), nil
		case h != tagged:
			queue = append(queue, parents...)
		}
	}
	return "", nil
}

// historySearch searches commits for a version in a file.
type historySearch struct {
	paths
	file, component, version string
	says                     map[plumbing.Hash]bool // by blob
}

// matches reports whether the file names the version at a commit, and returns the parents of the commit.
func (l *historySearch) matches(h plumbing.Hash) (says bool, parents []plumbing.Hash, err error) {
	c, err := l.objects.commit(h)
	if err != nil {
		return false, nil, err
	}
	blob, err := l.blob(c.tree, l.file)
	if err != nil {
		return false, nil, err
	}
	says, known := l.says[blob]
	if !known {
		data, err := l.objects.blob(blob, maxFleetFile)
		if err != nil {
			return false, nil, err
		}
		says = versionIn(data, l.file, l.component) == l.version
		l.says[blob] = says
	}
	return says, c.parents, nil
}

// versionIn returns the version of a component in a file; "" if the file names none or can't be
// read.
func versionIn(data []byte, file, component string) string {
	if strings.HasPrefix(file, "layers/") {
		return decodeLayer(data).spec.Components[component].Version
	}
	return decodeMeta(data).spec.Version
}

// paths finds files in trees, and caches the results.
type paths struct {
	objects *objects
	found   map[pathKey]plumbing.Hash
}

type pathKey struct {
	tree plumbing.Hash
	file string // relative to the tree
}

// blob returns the hash of a file's blob; zero if there is no such file.
func (p *paths) blob(tree plumbing.Hash, file string) (plumbing.Hash, error) {
	key := pathKey{tree, file}
	if h, known := p.found[key]; known {
		return h, nil
	}
	name, rest, deeper := strings.Cut(file, "/")
	entries, err := p.objects.tree(tree)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	var is plumbing.Hash
	for _, e := range entries {
		switch kind := kindOf(e.Mode); {
		case e.Name != name:
		case deeper && kind == entryFolder:
			if is, err = p.blob(e.Hash, rest); err != nil {
				return is, err
			}
		case !deeper && kind == entryFile:
			is = e.Hash
		}
	}
	p.found[key] = is
	return is, nil
}
