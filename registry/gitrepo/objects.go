package gitrepo

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
)

// ErrTooLarge is the error for an object above the reader's limit.
var ErrTooLarge = errors.New("it is too large")

// MaxFile is the size of the largest file that is read, in bytes. Larger files are not fetched if
// the server can leave them out.
const MaxFile = 5 << 20

// Limits of single objects. A tree of 4 MiB has about 100,000 entries.
const (
	maxCommitBytes = 1 << 20
	maxTreeBytes   = 4 << 20
)

// objects reads git objects. It checks their sizes before it inflates them and their hashes after,
// because neither go-git nor a disk does.
//
// go-git's storage is not safe for concurrent use, so every read is done completely under the lock.
type objects struct {
	mu sync.Mutex
	s  storer.EncodedObjectStorer
	fs billy.Filesystem // of the repository; nil: it has no loose objects
	// inflate is the reader of the last loose object. It is reused, because each reader takes 40
	// KB.
	inflate io.ReadCloser
	// clone is the folder of the clone with these objects; empty for a repository that is read in
	// place.
	clone string
}

// read returns an object of at most limit bytes. The error for a larger object is ErrTooLarge.
func (o *objects) read(h plumbing.Hash, limit int64) (plumbing.ObjectType, []byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t, data, err := o.readLoose(h, limit)
	if errors.Is(err, fs.ErrNotExist) {
		t, data, err = o.readPacked(h, limit)
	}
	switch {
	case errors.Is(err, ErrTooLarge):
		return t, nil, err
	case errors.Is(err, plumbing.ErrObjectNotFound) && o.clone != "":
		return t, nil, fmt.Errorf("object %s is missing: it is larger than %d MiB and was left out, or the clone is damaged: remove %s",
			h, MaxFile>>20, o.clone)
	case errors.Is(err, plumbing.ErrObjectNotFound):
		return t, nil, fmt.Errorf("object %s is missing: the repository is damaged or was cloned in part", h)
	case err != nil && o.clone != "":
		return t, nil, fmt.Errorf("read object %s: %w; the clone is damaged: remove %s", h, err, o.clone)
	case err != nil:
		return t, nil, fmt.Errorf("read object %s: %w", h, err)
	}
	if got := plumbing.ComputeHash(t, data); got != h {
		return t, nil, fmt.Errorf("object %s is damaged: its content is that of object %s", h, got)
	}
	return t, data, nil
}

// readTyped returns an object of the type want.
func (o *objects) readTyped(want plumbing.ObjectType, h plumbing.Hash, limit int64) ([]byte, error) {
	t, data, err := o.read(h, limit)
	switch {
	case errors.Is(err, ErrTooLarge) && want != plumbing.BlobObject:
		return nil, fmt.Errorf("%s %s is larger than %d MiB", want, h, limit>>20)
	case err != nil:
		return nil, err
	case t != want:
		return nil, fmt.Errorf("object %s is a %s, not a %s", h, t, want)
	}
	return data, nil
}

// openLoose opens an object that has its own file, after its header. go-git would inflate the file
// with or without a header.
func (o *objects) openLoose(h plumbing.Hash) (t plumbing.ObjectType, size int64, content io.Reader, done func() error, err error) {
	if o.fs == nil {
		return 0, 0, nil, nil, fs.ErrNotExist
	}
	name := h.String()
	f, err := o.fs.Open(o.fs.Join("objects", name[:2], name[2:]))
	if err != nil {
		return 0, 0, nil, nil, err //nolint:wrapcheck // the caller wraps it
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if again, ok := o.inflate.(zlib.Resetter); ok {
		err = again.Reset(f, nil)
	} else {
		o.inflate, err = zlib.NewReader(f)
	}
	if err != nil {
		o.inflate = nil
		return 0, 0, nil, nil, err //nolint:wrapcheck // as above
	}
	z := o.inflate
	const longest = 32 // "commit 9223372036854775807\0" and a few bytes more
	var head []byte
	for one := make([]byte, 1); len(head) == 0 || head[len(head)-1] != 0; head = append(head, one[0]) {
		if len(head) == longest {
			return 0, 0, nil, nil, errors.New("its header is too long")
		}
		if _, err := io.ReadFull(z, one); err != nil {
			return 0, 0, nil, nil, fmt.Errorf("read its header: %w", err)
		}
	}
	kind, length, _ := strings.Cut(string(head[:len(head)-1]), " ")
	if t, err = plumbing.ParseObjectType(kind); err != nil {
		return 0, 0, nil, nil, err //nolint:wrapcheck // as above
	}
	size, err = strconv.ParseInt(length, 10, 64)
	if err != nil || size < 0 {
		return 0, 0, nil, nil, fmt.Errorf("%q is no size", length)
	}
	return t, size, z, f.Close, nil
}

func (o *objects) readLoose(h plumbing.Hash, limit int64) (t plumbing.ObjectType, data []byte, err error) {
	t, size, content, done, err := o.openLoose(h)
	if err != nil {
		return t, nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if size > limit {
		return t, nil, ErrTooLarge
	}
	data, err = io.ReadAll(io.LimitReader(content, size+1))
	if err != nil {
		return t, nil, err //nolint:wrapcheck // the caller wraps it
	}
	if int64(len(data)) != size {
		return t, nil, fmt.Errorf("its header gives %d bytes, but its content has another length", size)
	}
	return t, data, nil
}

func (o *objects) readPacked(h plumbing.Hash, limit int64) (t plumbing.ObjectType, data []byte, err error) {
	// An object without a known size may be in another repository that this repository borrows
	// from.
	size, err := o.s.EncodedObjectSize(h)
	if err != nil && !errors.Is(err, plumbing.ErrObjectNotFound) {
		return 0, nil, err //nolint:wrapcheck // the caller wraps it
	}
	if size > limit {
		return 0, nil, ErrTooLarge
	}
	raw, err := o.s.EncodedObject(plumbing.AnyObject, h)
	if err != nil {
		return 0, nil, err //nolint:wrapcheck // as above
	}
	if raw.Size() > limit {
		return 0, nil, ErrTooLarge
	}
	r, err := raw.Reader()
	if err != nil {
		return 0, nil, err //nolint:wrapcheck // as above
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	data, err = io.ReadAll(io.LimitReader(r, limit+1))
	if int64(len(data)) > limit {
		return 0, nil, ErrTooLarge
	}
	return raw.Type(), data, err
}

// has reports whether an object exists, without reading it.
func (o *objects) has(h plumbing.Hash) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.s.HasEncodedObject(h) == nil
}

// commit reads a commit.
func (o *objects) commit(h plumbing.Hash) (commitObject, error) {
	raw, err := o.readTyped(plumbing.CommitObject, h, maxCommitBytes)
	if err != nil {
		return commitObject{}, fmt.Errorf("read commit %s: %w", h, err)
	}
	c, err := parseCommit(raw)
	if err != nil {
		return commitObject{}, fmt.Errorf("commit %s is malformed: %w", h, err)
	}
	return c, nil
}

// commitTree returns the root tree of a commit.
func (o *objects) commitTree(h plumbing.Hash) (plumbing.Hash, error) {
	c, err := o.commit(h)
	return c.tree, err
}

// peel follows annotated tags to the commit.
func (o *objects) peel(h plumbing.Hash) (plumbing.Hash, error) {
	const maxTags = 8 // a tag of a tag of a tag …
	for range maxTags {
		t, raw, err := o.read(h, maxCommitBytes)
		switch {
		case errors.Is(err, ErrTooLarge):
			return plumbing.ZeroHash, fmt.Errorf("object %s is larger than %d MiB, which no tag is", h, maxCommitBytes>>20)
		case err != nil:
			return plumbing.ZeroHash, err
		case t == plumbing.CommitObject:
			return h, nil
		case t != plumbing.TagObject:
			return plumbing.ZeroHash, fmt.Errorf("object %s is a %s, not a commit", h, t)
		}
		tag, err := parseTag(raw)
		if err != nil {
			return plumbing.ZeroHash, fmt.Errorf("tag object %s is malformed: %w", h, err)
		}
		h = tag.target
	}
	return plumbing.ZeroHash, fmt.Errorf("object %s is a chain of more than %d tags", h, maxTags)
}

// tree returns the entries of one tree object.
func (o *objects) tree(h plumbing.Hash) ([]object.TreeEntry, error) {
	raw, err := o.readTyped(plumbing.TreeObject, h, maxTreeBytes)
	if err != nil {
		return nil, err
	}
	var out []object.TreeEntry
	for len(raw) > 0 {
		mode, rest, ok := bytes.Cut(raw, []byte{' '})
		name, rest, okName := bytes.Cut(rest, []byte{0})
		if !ok || !okName || len(rest) < len(plumbing.ZeroHash) {
			return nil, fmt.Errorf("tree %s is malformed", h)
		}
		m, err := filemode.New(string(mode))
		if err != nil {
			return nil, fmt.Errorf("tree %s is malformed: %q has the mode %.10q", h, name, mode)
		}
		e := object.TreeEntry{Name: string(name), Mode: m}
		copy(e.Hash[:], rest)
		out = append(out, e)
		raw = rest[len(e.Hash):]
	}
	return out, nil
}

// blob returns a blob of at most limit bytes.
func (o *objects) blob(h plumbing.Hash, limit int64) ([]byte, error) {
	return o.readTyped(plumbing.BlobObject, h, limit)
}

// blobSize returns a blob's size without reading it, or 0 if the blob is not found.
func (o *objects) blobSize(h plumbing.Hash) (size int64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, size, _, done, err := o.openLoose(h)
	if err == nil {
		return size, done()
	}
	if errors.Is(err, fs.ErrNotExist) {
		size, err = o.s.EncodedObjectSize(h)
	}
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		// A full read finds the blob elsewhere, or reports the error.
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the size of object %s: %w", h, err)
	}
	return size, nil
}

// prefixed returns the commits whose hash starts with the given bytes.
func (o *objects) prefixed(prefix []byte) ([]plumbing.Hash, error) {
	o.mu.Lock()
	s, ok := o.s.(interface {
		HashesWithPrefix(prefix []byte) ([]plumbing.Hash, error)
	})
	var hashes []plumbing.Hash
	var err error
	if ok {
		hashes, err = s.HashesWithPrefix(prefix)
	}
	o.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("look for a commit: %w", err)
	}
	return slices.DeleteFunc(hashes, func(h plumbing.Hash) bool {
		_, err := o.commit(h)
		return err != nil
	}), nil
}
