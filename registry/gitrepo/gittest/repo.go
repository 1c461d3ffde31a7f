// Package gittest makes git repositories, servers and keys for tests.
//
// Objects are written one by one, so that a repository can hold what git's own commands refuse.
package gittest

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// Repo is a bare repository whose objects are written one by one, so that
// it can hold what git's own commands would refuse to commit.
type Repo struct {
	T       testing.TB
	Path    string
	Storage *filesystem.Storage
	Files   map[string]File
	Last    plumbing.Hash
	Commits int
	// Sign makes the armored signature of a payload; nil: objects are unsigned.
	Sign func(payload []byte) string
}

// File is a file of the next commit, by its blob.
type File struct {
	Mode filemode.FileMode
	Hash plumbing.Hash
}

// NewRepo makes an empty bare repository, whose HEAD names main.
func NewRepo(t testing.TB) *Repo {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fleet.git")
	storage := filesystem.NewStorage(osfs.New(path), cache.NewObjectLRUDefault())
	if _, err := git.InitWithOptions(storage, nil, git.InitOptions{DefaultBranch: "refs/heads/main"}); err != nil {
		t.Fatal(err)
	}
	return &Repo{T: t, Path: path, Storage: storage, Files: map[string]File{}}
}

// Store stores an object.
func (g *Repo) Store(o interface {
	Encode(plumbing.EncodedObject) error
},
) plumbing.Hash {
	g.T.Helper()
	raw := g.Storage.NewEncodedObject()
	if err := o.Encode(raw); err != nil {
		g.T.Fatal(err)
	}
	h, err := g.Storage.SetEncodedObject(raw)
	if err != nil {
		g.T.Fatal(err)
	}
	return h
}

// Blob stores a blob.
func (g *Repo) Blob(data []byte) plumbing.Hash {
	g.T.Helper()
	return g.Raw(plumbing.BlobObject, data)
}

// Write adds a file to the files of the next commit.
func (g *Repo) Write(path, content string) {
	g.T.Helper()
	g.Files[path] = File{filemode.Regular, g.Blob([]byte(content))}
}

// Remove removes a file or folder from the files of the next commit.
func (g *Repo) Remove(path string) {
	maps.DeleteFunc(g.Files, func(p string, _ File) bool { return p == path || strings.HasPrefix(p, path+"/") })
}

// Symlink adds a symbolic link to the files of the next commit.
func (g *Repo) Symlink(path, target string) {
	g.Files[path] = File{filemode.Symlink, g.Blob([]byte(target))}
}

// Submodule adds a submodule to the files of the next commit.
func (g *Repo) Submodule(path string) {
	g.Files[path] = File{filemode.Submodule, plumbing.NewHash("1234567890123456789012345678901234567890")}
}

// Tree stores the folder with the given prefix.
func (g *Repo) Tree(prefix string) plumbing.Hash {
	g.T.Helper()
	entries := map[string]object.TreeEntry{}
	for path, f := range g.Files {
		rest, ok := strings.CutPrefix(path, prefix)
		if !ok {
			continue
		}
		name, _, deeper := strings.Cut(rest, "/")
		if !deeper {
			entries[name] = object.TreeEntry{Name: name, Mode: f.Mode, Hash: f.Hash}
		} else if _, ok := entries[name]; !ok {
			entries[name] = object.TreeEntry{Name: name, Mode: filemode.Dir, Hash: g.Tree(prefix + name + "/")}
		}
	}
	t := &object.Tree{Entries: slices.Collect(maps.Values(entries))}
	slices.SortFunc(t.Entries, func(a, b object.TreeEntry) int {
		return strings.Compare(treeKey(a), treeKey(b))
	})
	return g.Store(t)
}

func treeKey(e object.TreeEntry) string {
	if e.Mode == filemode.Dir {
		return e.Name + "/"
	}
	return e.Name
}

// Commit commits the files to the branch main.
func (g *Repo) Commit() plumbing.Hash {
	g.T.Helper()
	g.Last = g.Object()
	g.Ref("refs/heads/main", g.Last)
	return g.Last
}

// CommitTagged writes the tag before the branch, so that no reader sees a branch that names a
// missing version.
func (g *Repo) CommitTagged(tag string) {
	g.T.Helper()
	g.Last = g.Object()
	g.Tag(tag)
	g.Ref("refs/heads/main", g.Last)
}

// Object stores a commit of the files that no branch has yet.
func (g *Repo) Object() plumbing.Hash {
	g.T.Helper()
	g.Commits++
	who := object.Signature{Name: "a", Email: "a@b", When: time.Unix(int64(1700000000+g.Commits), 0).UTC()}
	c := &object.Commit{Author: who, Committer: who, Message: fmt.Sprintf("commit %d\n", g.Commits), TreeHash: g.Tree("")}
	if !g.Last.IsZero() {
		c.ParentHashes = []plumbing.Hash{g.Last}
	}
	if g.Sign != nil {
		c.PGPSignature = g.Sign(g.Payload(c))
	}
	return g.Store(c)
}

// Payload is what is signed of a commit or tag.
func (g *Repo) Payload(o interface {
	EncodeWithoutSignature(plumbing.EncodedObject) error
},
) []byte {
	g.T.Helper()
	raw := &plumbing.MemoryObject{}
	if err := o.EncodeWithoutSignature(raw); err != nil {
		g.T.Fatal(err)
	}
	r, err := raw.Reader()
	if err != nil {
		g.T.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		g.T.Fatal(err)
	}
	return data
}

// Raw stores an object whose bytes need not mean anything.
func (g *Repo) Raw(t plumbing.ObjectType, data []byte) plumbing.Hash {
	g.T.Helper()
	raw := g.Storage.NewEncodedObject()
	raw.SetType(t)
	w, err := raw.Writer()
	if err != nil {
		g.T.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		g.T.Fatal(err)
	}
	h, err := g.Storage.SetEncodedObject(raw)
	if err != nil {
		g.T.Fatal(err)
	}
	return h
}

// BytesOf returns an object as it is stored.
func (g *Repo) BytesOf(h plumbing.Hash) []byte {
	g.T.Helper()
	raw, err := g.Storage.EncodedObject(plumbing.AnyObject, h)
	if err != nil {
		g.T.Fatal(err)
	}
	r, err := raw.Reader()
	if err != nil {
		g.T.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		g.T.Fatal(err)
	}
	return data
}

// Ref writes a ref.
func (g *Repo) Ref(name string, h plumbing.Hash) {
	g.T.Helper()
	if err := g.Storage.SetReference(plumbing.NewHashReference(plumbing.ReferenceName(name), h)); err != nil {
		g.T.Fatal(err)
	}
}

// Tag writes a lightweight tag of the last commit.
func (g *Repo) Tag(name string) { g.T.Helper(); g.Ref("refs/tags/"+name, g.Last) }

// Annotate writes an annotated tag.
func (g *Repo) Annotate(name string, target plumbing.Hash) plumbing.Hash {
	g.T.Helper()
	tag := &object.Tag{
		Name: name, Message: "a\n", Target: target, TargetType: plumbing.CommitObject,
		Tagger: object.Signature{Name: "a", Email: "a@b", When: time.Unix(1700000000, 0).UTC()},
	}
	if g.Sign != nil {
		tag.PGPSignature = g.Sign(g.Payload(tag))
	}
	h := g.Store(tag)
	g.Ref("refs/tags/"+name, h)
	return h
}

// DeleteTag deletes a tag.
func (g *Repo) DeleteTag(name string) {
	g.T.Helper()
	if err := g.Storage.RemoveReference(plumbing.ReferenceName("refs/tags/" + name)); err != nil {
		g.T.Fatal(err)
	}
}

// TreeEntry is one entry of a tree object, whatever git would say to it.
type TreeEntry struct {
	Mode, Name string
	Hash       plumbing.Hash
}

// RawTree stores a tree with exactly these entries.
func (g *Repo) RawTree(entries ...TreeEntry) plumbing.Hash {
	g.T.Helper()
	var b bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&b, "%s %s\x00%s", e.Mode, e.Name, e.Hash[:])
	}
	return g.Raw(plumbing.TreeObject, b.Bytes())
}

// Graft puts a tree under a path.
func (g *Repo) Graft(path string, tree plumbing.Hash) { g.Files[path] = File{filemode.Dir, tree} }

// Many is a tree of n entries.
func (g *Repo) Many(n int, mode string, target plumbing.Hash) plumbing.Hash {
	g.T.Helper()
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "%s n%07d\x00%s", mode, i, target[:])
	}
	return g.Raw(plumbing.TreeObject, b.Bytes())
}

// Loose writes a file where git keeps an object, with what it says it has and
// with what it has.
func (g *Repo) Loose(h plumbing.Hash, header string, content io.Reader) {
	g.T.Helper()
	file := filepath.Join(g.Path, "objects", h.String()[:2], h.String()[2:])
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		g.T.Fatal(err)
	}
	_ = os.Remove(file) // git's are read-only
	f, err := os.Create(file)
	if err != nil {
		g.T.Fatal(err)
	}
	z, err := zlib.NewWriterLevel(f, zlib.BestSpeed)
	if err != nil {
		g.T.Fatal(err)
	}
	_, errHeader := io.WriteString(z, header)
	_, errContent := io.Copy(z, content)
	if err := errors.Join(errHeader, errContent, z.Close(), f.Close()); err != nil {
		g.T.Fatal(err)
	}
}

// Endless is one byte, without end.
type Endless byte

func (e Endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

// Git runs git in the repository.
func (g *Repo) Git(args ...string) string {
	g.T.Helper()
	cmd := exec.Command("git", args...) //nolint:noctx // it ends
	cmd.Dir = g.Path
	cmd.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	out, err := cmd.CombinedOutput()
	if err != nil {
		g.T.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}
