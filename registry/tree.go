package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
)

// errTooLarge is a blob above the limit that a reader set.
var errTooLarge = errors.New("file is too large")

// tree is a folder with all below it, at one moment: a git tree, or a work tree.
type tree interface {
	// list returns the folder's entries by name, or nothing when the folder
	// is not there.
	list(ctx context.Context, folder string) ([]entry, error)
	// read returns a file's content; errTooLarge above limit bytes.
	read(ctx context.Context, e entry, limit int64) ([]byte, error)
	// size returns a file's size without reading it.
	size(ctx context.Context, e entry) (int64, error)
	// hash is the git hash of a folder, or "" when it is not there.
	hash(ctx context.Context, folder string) (string, error)
}

// entryKind is what stands under a name in a folder.
type entryKind uint8

// The zero entryKind is invalid.
const (
	entryFile entryKind = iota + 1
	entryFolder
	entrySymlink
	entrySubmodule
)

func (k entryKind) String() string {
	switch k {
	case entryFile:
		return "a file"
	case entryFolder:
		return "a folder"
	case entrySymlink:
		return "a symbolic link"
	case entrySubmodule:
		return "a submodule"
	default:
		return "of an unknown kind"
	}
}

// entry is one name in a folder.
type entry struct {
	name string
	path string // from the repository's root
	kind entryKind
	hash string // of the blob or tree
}

// objects reads git objects. go-git's storage is not safe for concurrent use,
// so every read happens whole, under the lock.
type objects struct {
	mu sync.Mutex
	s  storer.EncodedObjectStorer
}

// commitTree returns the root tree of a commit.
func (o *objects) commitTree(commit plumbing.Hash) (plumbing.Hash, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, err := object.GetCommit(o.s, commit)
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("read commit %s: %w", commit, err)
	}
	return c.TreeHash, nil
}

// peel follows annotated tags to the commit.
func (o *objects) peel(h plumbing.Hash) (plumbing.Hash, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	const maxTags = 8 // a tag of a tag of a tag …
	for range maxTags {
		raw, err := o.s.EncodedObject(plumbing.AnyObject, h)
		if err != nil {
			return plumbing.ZeroHash, fmt.Errorf("read object %s: %w", h, err)
		}
		switch raw.Type() {
		case plumbing.CommitObject:
			return h, nil
		case plumbing.TagObject:
			tag, err := object.DecodeTag(o.s, raw)
			if err != nil {
				return plumbing.ZeroHash, fmt.Errorf("read tag %s: %w", h, err)
			}
			h = tag.Target
		default:
			return plumbing.ZeroHash, fmt.Errorf("object %s is a %s, not a commit", h, raw.Type())
		}
	}
	return plumbing.ZeroHash, fmt.Errorf("object %s is a chain of more than %d tags", h, maxTags)
}

// tree returns the entries of one tree object.
func (o *objects) tree(h plumbing.Hash) ([]object.TreeEntry, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t, err := object.GetTree(o.s, h)
	if err != nil {
		return nil, fmt.Errorf("read tree %s: %w", h, err)
	}
	return t.Entries, nil
}

// blob returns a blob of at most limit bytes.
func (o *objects) blob(h plumbing.Hash, limit int64) (data []byte, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	raw, err := o.s.EncodedObject(plumbing.BlobObject, h)
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", h, err)
	}
	if raw.Size() > limit {
		return nil, errTooLarge
	}
	r, err := raw.Reader()
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", h, err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	data, err = io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", h, err)
	}
	if int64(len(data)) > limit {
		return nil, errTooLarge
	}
	return data, nil
}

// blobSize returns a blob's size without reading it.
func (o *objects) blobSize(h plumbing.Hash) (int64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	size, err := o.s.EncodedObjectSize(h)
	if err != nil {
		return 0, fmt.Errorf("read the size of blob %s: %w", h, err)
	}
	return size, nil
}

// prefixed returns the commits whose hash starts with the given bytes.
func (o *objects) prefixed(prefix []byte) ([]plumbing.Hash, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, ok := o.s.(interface {
		HashesWithPrefix(prefix []byte) ([]plumbing.Hash, error)
	})
	if !ok {
		return nil, nil
	}
	hashes, err := s.HashesWithPrefix(prefix)
	if err != nil {
		return nil, fmt.Errorf("look for a commit: %w", err)
	}
	return slices.DeleteFunc(hashes, func(h plumbing.Hash) bool {
		_, err := o.s.EncodedObject(plumbing.CommitObject, h)
		return err != nil
	}), nil
}

// gitTree is the tree of one commit.
type gitTree struct {
	objects *objects
	cache   *cache
	root    plumbing.Hash
}

func (t *gitTree) list(ctx context.Context, folder string) ([]entry, error) {
	h, err := t.folder(ctx, folder)
	if err != nil || h.IsZero() {
		return nil, err
	}
	entries, err := t.entries(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	out := make([]entry, len(entries))
	for i, e := range entries {
		out[i] = e
		out[i].path = join(folder, e.name)
	}
	return out, nil
}

func (t *gitTree) read(ctx context.Context, e entry, limit int64) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return t.objects.blob(plumbing.NewHash(e.hash), limit)
}

func (t *gitTree) size(ctx context.Context, e entry) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return t.objects.blobSize(plumbing.NewHash(e.hash))
}

func (t *gitTree) hash(ctx context.Context, folder string) (string, error) {
	h, err := t.folder(ctx, folder)
	if err != nil || h.IsZero() {
		return "", err
	}
	return h.String(), nil
}

// folder finds a folder's tree; the zero hash when there is no such folder.
func (t *gitTree) folder(ctx context.Context, folder string) (plumbing.Hash, error) {
	h := t.root
	for step := range steps(folder) {
		entries, err := t.entries(ctx, h)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		i, ok := slices.BinarySearchFunc(entries, step, func(e entry, name string) int {
			return cmp.Compare(e.name, name)
		})
		if !ok || entries[i].kind != entryFolder {
			return plumbing.ZeroHash, nil
		}
		h = plumbing.NewHash(entries[i].hash)
	}
	return h, nil
}

// entries returns the entries of a tree by name, without paths, from the cache
// where it can. The caller must not modify them.
func (t *gitTree) entries(ctx context.Context, h plumbing.Hash) ([]entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return cached(t.cache, cacheKey{job: "tree", hash: h.String()}, func() ([]entry, error) {
		raw, err := t.objects.tree(h)
		if err != nil {
			return nil, err
		}
		out := make([]entry, len(raw))
		for i, e := range raw {
			if wrong := checkEntry(e.Name); wrong != "" {
				return nil, errors.New(wrong)
			}
			out[i] = entry{name: e.Name, kind: kindOf(e.Mode), hash: e.Hash.String()}
		}
		// git sorts folders as if their names ended with a slash.
		slices.SortFunc(out, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
		for i := 1; i < len(out); i++ {
			if out[i].name == out[i-1].name {
				return nil, fmt.Errorf("%q stands twice in git tree %s", out[i].name, h)
			}
		}
		return out, nil
	})
}

func kindOf(m filemode.FileMode) entryKind {
	switch m {
	case filemode.Dir:
		return entryFolder
	case filemode.Regular, filemode.Executable, filemode.Deprecated:
		return entryFile
	case filemode.Symlink:
		return entrySymlink
	case filemode.Submodule:
		return entrySubmodule
	default:
		return 0
	}
}
