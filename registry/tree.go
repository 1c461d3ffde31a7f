package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"

	"github.com/keelson-io/keelson/registry/archive"
	"github.com/keelson-io/keelson/registry/objectcache"
)

// tree is a folder with its content at one moment: a git tree, or a work tree.
type tree interface {
	// list returns the folder's entries by name, or nothing if the folder does not exist.
	list(ctx context.Context, folder string) ([]entry, error)
	// read returns a file's content. The error for more than limit bytes is errTooLarge.
	read(ctx context.Context, e entry, limit int64) ([]byte, error)
	// size returns a file's size without reading it; 0 if its object is not found.
	size(ctx context.Context, e entry) (int64, error)
	// hash returns the git hash of a folder, or "" if the folder does not exist.
	hash(ctx context.Context, folder string) (string, error)
}

// entryKind is the kind of an entry in a folder.
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
	path string // relative to the repository's root
	kind entryKind
	hash string // of the blob or tree
}

// gitTree is the tree of one commit.
type gitTree struct {
	objects *objects
	cache   *objectcache.Cache
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
		out[i].path = path.Join(folder, e.name)
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

// folder finds a folder's tree; zero if there is no such folder.
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

// entries returns the entries of a tree by name, without paths, from the cache if possible. The
// caller must not modify them.
func (t *gitTree) entries(ctx context.Context, h plumbing.Hash) ([]entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return objectcache.Get(t.cache, objectcache.Key{Job: "tree", Hash: h.String()}, func() ([]entry, error) {
		raw, err := t.objects.tree(h)
		if err != nil {
			return nil, err
		}
		out := make([]entry, len(raw))
		for i, e := range raw {
			if wrong := archive.CheckEntry(e.Name); wrong != "" {
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

// steps iterates over the names in a path; the root has none.
func steps(folder string) func(yield func(string) bool) {
	if folder == "" {
		return func(func(string) bool) {}
	}
	return strings.SplitSeq(folder, "/")
}
