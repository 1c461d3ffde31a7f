package gitrepo

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

// Tree is a folder with its content at one moment: a git tree, or a work tree.
type Tree interface {
	// List returns the folder's entries by name, or nothing if the folder does not exist.
	List(ctx context.Context, folder string) ([]Entry, error)
	// Read returns a file's content. The error for more than limit bytes is ErrTooLarge.
	Read(ctx context.Context, e Entry, limit int64) ([]byte, error)
	// Size returns a file's size without reading it; 0 if its object is not found.
	Size(ctx context.Context, e Entry) (int64, error)
	// Hash returns the git hash of a folder, or "" if the folder does not exist.
	Hash(ctx context.Context, folder string) (string, error)
}

// EntryKind is the kind of an entry in a folder.
type EntryKind uint8

// The zero entryKind is invalid.
const (
	EntryFile EntryKind = iota + 1
	EntryFolder
	EntrySymlink
	EntrySubmodule
)

func (k EntryKind) String() string {
	switch k {
	case EntryFile:
		return "a file"
	case EntryFolder:
		return "a folder"
	case EntrySymlink:
		return "a symbolic link"
	case EntrySubmodule:
		return "a submodule"
	default:
		return "of an unknown kind"
	}
}

// Entry is one name in a folder.
type Entry struct {
	Name string
	Path string // relative to the repository's root
	Kind EntryKind
	Hash string // of the blob or tree
}

// gitTree is the tree of one commit.
type gitTree struct {
	objects *objects
	cache   *objectcache.Cache
	root    plumbing.Hash
}

func (t *gitTree) List(ctx context.Context, folder string) ([]Entry, error) {
	h, err := t.folder(ctx, folder)
	if err != nil || h.IsZero() {
		return nil, err
	}
	entries, err := t.entries(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	out := make([]Entry, len(entries))
	for i, e := range entries {
		out[i] = e
		out[i].Path = path.Join(folder, e.Name)
	}
	return out, nil
}

func (t *gitTree) Read(ctx context.Context, e Entry, limit int64) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return t.objects.blob(plumbing.NewHash(e.Hash), limit)
}

func (t *gitTree) Size(ctx context.Context, e Entry) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return t.objects.blobSize(plumbing.NewHash(e.Hash))
}

func (t *gitTree) Hash(ctx context.Context, folder string) (string, error) {
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
		i, ok := slices.BinarySearchFunc(entries, step, func(e Entry, name string) int {
			return cmp.Compare(e.Name, name)
		})
		if !ok || entries[i].Kind != EntryFolder {
			return plumbing.ZeroHash, nil
		}
		h = plumbing.NewHash(entries[i].Hash)
	}
	return h, nil
}

// entries returns the entries of a tree by name, without paths, from the cache if possible. The
// caller must not modify them.
func (t *gitTree) entries(ctx context.Context, h plumbing.Hash) ([]Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return objectcache.Get(t.cache, objectcache.Key{Job: "tree", Hash: h.String()}, func() ([]Entry, error) {
		raw, err := t.objects.tree(h)
		if err != nil {
			return nil, err
		}
		out := make([]Entry, len(raw))
		for i, e := range raw {
			if wrong := archive.CheckEntry(e.Name); wrong != "" {
				return nil, errors.New(wrong)
			}
			out[i] = Entry{Name: e.Name, Kind: kindOf(e.Mode), Hash: e.Hash.String()}
		}
		// git sorts folders as if their names ended with a slash.
		slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
		for i := 1; i < len(out); i++ {
			if out[i].Name == out[i-1].Name {
				return nil, fmt.Errorf("%q is twice in git tree %s", out[i].Name, h)
			}
		}
		return out, nil
	})
}

func kindOf(m filemode.FileMode) EntryKind {
	switch m {
	case filemode.Dir:
		return EntryFolder
	case filemode.Regular, filemode.Executable, filemode.Deprecated:
		return EntryFile
	case filemode.Symlink:
		return EntrySymlink
	case filemode.Submodule:
		return EntrySubmodule
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
