package gitrepo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"

	"github.com/keelson-io/keelson/registry/archive"
)

// workTree is a folder of files, committed or not. It keeps what it has read, so that one Load uses
// one state of each file.
type workTree struct {
	root    *os.Root
	folders map[string][]Entry
	files   map[string]workFile
}

type workFile struct {
	data []byte // nil if the file is too large
	size int64
	exec bool
}

// openWorkTree opens the folder. Symbolic links out of it are not followed.
func openWorkTree(path string) (*workTree, error) {
	if _, err := os.Lstat(filepath.Join(path, ".git")); err != nil {
		return nil, fmt.Errorf("%s has no work tree: %w", path, err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open the work tree: %w", err)
	}
	return &workTree{root: root, folders: map[string][]Entry{}, files: map[string]workFile{}}, nil
}

func (t *workTree) List(ctx context.Context, folder string) ([]Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if known, ok := t.folders[folder]; ok {
		return known, nil
	}
	items, err := fs.ReadDir(t.root.FS(), cmp.Or(folder, "."))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", folder, err)
	}
	var out []Entry
	for _, item := range items {
		if folder == "" && item.Name() == ".git" {
			continue
		}
		if wrong := archive.CheckEntry(item.Name()); wrong != "" {
			return nil, errors.New(wrong)
		}
		e := Entry{Name: item.Name(), Path: path.Join(folder, item.Name())}
		if err := t.classify(&e, item.Type()); err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	t.folders[folder] = out
	return out, nil
}

// classify sets the kind of an entry, and reads it if it is a file.
func (t *workTree) classify(e *Entry, mode fs.FileMode) error {
	switch {
	case mode&fs.ModeSymlink != 0:
		e.Kind = EntrySymlink
	case mode.IsDir():
		e.Kind = EntryFolder
		if _, err := t.root.Lstat(filepath.FromSlash(e.Path + "/.git")); err == nil {
			e.Kind = EntrySubmodule
		}
	case mode.IsRegular():
		e.Kind = EntryFile
		return t.readFile(e)
	}
	return nil
}

func (t *workTree) readFile(e *Entry) error {
	info, err := t.root.Lstat(filepath.FromSlash(e.Path))
	if err != nil {
		return fmt.Errorf("look at %s: %w", e.Path, err)
	}
	f := workFile{size: info.Size(), exec: info.Mode()&0o100 != 0}
	if f.size <= MaxFile {
		if f.data, err = t.root.ReadFile(filepath.FromSlash(e.Path)); err != nil {
			return fmt.Errorf("read %s: %w", e.Path, err)
		}
		f.size = int64(len(f.data))
	}
	e.Hash = plumbing.ComputeHash(plumbing.BlobObject, f.data).String()
	t.files[e.Path] = f
	return nil
}

func (t *workTree) Read(ctx context.Context, e Entry, limit int64) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f := t.files[e.Path]
	if f.size > limit {
		return nil, ErrTooLarge
	}
	return f.data, nil
}

func (t *workTree) Size(_ context.Context, e Entry) (int64, error) { return t.files[e.Path].size, nil }

// Hash returns the git hash that the folder would have if it were committed. It differs from git's
// for folders with symbolic links, submodules, or files over MaxFile.
func (t *workTree) Hash(ctx context.Context, folder string) (string, error) {
	entries, err := t.List(ctx, folder)
	if err != nil || len(entries) == 0 {
		return "", err
	}
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(gitSortKey(a), gitSortKey(b)) })
	var b bytes.Buffer
	for _, e := range entries {
		hash, mode := e.Hash, filemode.Regular
		switch e.Kind {
		case EntryFolder:
			mode = filemode.Dir
			if hash, err = t.Hash(ctx, e.Path); err != nil {
				return "", err
			}
		case EntrySymlink:
			mode = filemode.Symlink
		case EntrySubmodule:
			mode = filemode.Submodule
		default:
			if t.files[e.Path].exec {
				mode = filemode.Executable
			}
		}
		if e.Kind == EntryFolder && hash == "" {
			continue // git has no empty folders
		}
		h := plumbing.NewHash(hash)
		fmt.Fprintf(&b, "%o %s\x00%s", uint32(mode), e.Name, h[:])
	}
	return plumbing.ComputeHash(plumbing.TreeObject, b.Bytes()).String(), nil
}

// gitSortKey gives git's order: folders sort as if their names ended with a slash.
func gitSortKey(e Entry) string {
	if e.Kind == EntryFolder {
		return e.Name + "/"
	}
	return e.Name
}
