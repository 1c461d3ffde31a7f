package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

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
	raw, err := r.Snapshot().objects.readTyped(plumbing.CommitObject, h, maxCommitBytes)
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
	objects, end := r.Snapshot().objects, plumbing.NewHash(from)
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
	for name, at := range r.Snapshot().branches {
		if strings.HasPrefix(name, prefix) {
			out[name] = at.String()
		}
	}
	return out
}

// FindCommit returns a commit at which matches is true for the content of a file, of at most 1 MiB:
// the given commit, a full hash, or one of its ancestors; "" if there is none. Ancestors of the
// commit of oldest, a tag, are skipped. All other ancestors are searched, because commits do not
// record which commit a branch had when.
func (r *Repo) FindCommit(ctx context.Context, commit, oldest, file string, matches func(data []byte) bool) (string, error) {
	now := r.Snapshot()
	end, err := now.CommitOf(oldest)
	if err != nil {
		return "", err
	}
	seen := map[plumbing.Hash]bool{}
	l := &historySearch{
		paths: paths{objects: now.objects, found: map[pathKey]plumbing.Hash{}}, file: file, matches: matches,
		known: map[plumbing.Hash]bool{plumbing.ZeroHash: false},
	}
	for queue := []plumbing.Hash{plumbing.NewHash(commit)}; len(queue) > 0; queue = queue[1:] {
		h := queue[0]
		if seen[h] {
			continue
		}
		seen[h] = true
		found, parents, err := l.at(h)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case len(seen) > maxAncestors:
			return "", fmt.Errorf("it has more than %d commits", maxAncestors)
		case err != nil:
			return "", err
		case found:
			return h.String(), nil
		case h != end:
			queue = append(queue, parents...)
		}
	}
	return "", nil
}

// Past is the history of a branch: a commit, and its first parents, as the branch had them. Its
// searches are bounded together, as many files may be looked for in one history. It is not safe for
// concurrent use.
type Past struct {
	paths
	newest  plumbing.Hash
	commits int
	entries int // of trees that may still be read
	bytes   int // of contents that may still be read
}

// maxPastBytes bounds the contents that the searches of one [Past] read.
const maxPastBytes = 16 << 20

// NewPast returns the history of a commit. Each search reads at most a number of commits, and all of
// them together at most a number of entries of trees, and 16 MiB of contents.
func (s *Snapshot) NewPast(commit plumbing.Hash, commits, entries int) *Past {
	p := &Past{newest: commit, commits: commits, entries: entries, bytes: maxPastBytes}
	p.paths = paths{objects: s.objects, found: map[pathKey]plumbing.Hash{}, read: func(entries int) { p.entries -= entries }}
	return p
}

// Last returns the content of a file, of at most 1 MiB, at the newest commit for which matches is
// true. It returns nil if no commit within the bounds has such a content. A content that can't be
// read, for example because it is too large, does not match. A history that ends early, as that of a
// shallow clone, and a folder that can't be read end the search. The error is that of ctx.
func (p *Past) Last(ctx context.Context, file string, matches func(data []byte) bool) ([]byte, error) {
	var found []byte
	l := &historySearch{
		paths: p.paths, file: file, passOver: true,
		matches: func(data []byte) bool {
			found = data
			p.bytes -= len(data)
			return matches(data)
		},
		known: map[plumbing.Hash]bool{plumbing.ZeroHash: false},
	}
	at := p.newest
	for range p.commits {
		if p.entries <= 0 || p.bytes <= 0 {
			break
		}
		is, parents, err := l.at(at)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case is:
			return found, nil
		case err != nil || len(parents) == 0:
			return nil, nil //nolint:nilerr // the caller has reported what it can't read
		}
		at = parents[0]
	}
	return nil, nil
}

// historySearch searches commits for the content of a file.
type historySearch struct {
	paths
	file    string
	matches func(data []byte) bool
	// passOver: a content that can't be read does not match, and is no error.
	passOver bool
	known    map[plumbing.Hash]bool // by blob
}

// at reports whether the file matches at a commit, and returns the parents of the commit.
func (l *historySearch) at(h plumbing.Hash) (found bool, parents []plumbing.Hash, err error) {
	c, err := l.objects.commit(h)
	if err != nil {
		return false, nil, err
	}
	blob, err := l.blob(c.tree, l.file)
	if err != nil {
		return false, nil, err
	}
	found, known := l.known[blob]
	if !known {
		data, err := l.objects.blob(blob, maxSmallFile)
		if err != nil && !l.passOver {
			return false, nil, err
		}
		found = err == nil && l.matches(data)
		l.known[blob] = found
	}
	return found, c.parents, nil
}

// paths finds files in trees, and caches the results.
type paths struct {
	objects *objects
	found   map[pathKey]plumbing.Hash
	// read is called with the number of entries of each tree that is read; nil: it is not counted.
	read func(entries int)
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
	if p.read != nil {
		p.read(len(entries))
	}
	var is plumbing.Hash
	for _, e := range entries {
		switch kind := kindOf(e.Mode); {
		case e.Name != name:
		case deeper && kind == EntryFolder:
			if is, err = p.blob(e.Hash, rest); err != nil {
				return is, err
			}
		case !deeper && kind == EntryFile:
			is = e.Hash
		}
	}
	p.found[key] = is
	return is, nil
}
