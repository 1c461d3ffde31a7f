package registry_test

import (
	"fmt"
	"io"
	"maps"
	"os"
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

	"github.com/keelson-io/keelson/registry"
)

// gitRepo is a bare repository whose objects are written one by one, so that
// it can hold what git's own commands would refuse to commit.
type gitRepo struct {
	t       testing.TB
	path    string
	storage *filesystem.Storage
	files   map[string]gitFile
	last    plumbing.Hash
	commits int
	// sign makes the armored signature of a payload; nil: objects are unsigned.
	sign func(payload []byte) string
}

type gitFile struct {
	mode filemode.FileMode
	hash plumbing.Hash
}

func newGitRepo(t testing.TB) *gitRepo {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fleet.git")
	storage := filesystem.NewStorage(osfs.New(path), cache.NewObjectLRUDefault())
	if _, err := git.InitWithOptions(storage, nil, git.InitOptions{DefaultBranch: "refs/heads/main"}); err != nil {
		t.Fatal(err)
	}
	return &gitRepo{t: t, path: path, storage: storage, files: map[string]gitFile{}}
}

func (g *gitRepo) store(o interface {
	Encode(plumbing.EncodedObject) error
},
) plumbing.Hash {
	g.t.Helper()
	raw := g.storage.NewEncodedObject()
	if err := o.Encode(raw); err != nil {
		g.t.Fatal(err)
	}
	h, err := g.storage.SetEncodedObject(raw)
	if err != nil {
		g.t.Fatal(err)
	}
	return h
}

func (g *gitRepo) blob(data []byte) plumbing.Hash {
	g.t.Helper()
	return g.raw(plumbing.BlobObject, data)
}

func (g *gitRepo) write(path, content string) {
	g.t.Helper()
	g.files[path] = gitFile{filemode.Regular, g.blob([]byte(content))}
}

func (g *gitRepo) remove(path string) {
	maps.DeleteFunc(g.files, func(p string, _ gitFile) bool { return p == path || strings.HasPrefix(p, path+"/") })
}

func (g *gitRepo) symlink(path, target string) {
	g.files[path] = gitFile{filemode.Symlink, g.blob([]byte(target))}
}

func (g *gitRepo) submodule(path string) {
	g.files[path] = gitFile{filemode.Submodule, plumbing.NewHash("1234567890123456789012345678901234567890")}
}

// tree stores the folder with the given prefix.
func (g *gitRepo) tree(prefix string) plumbing.Hash {
	g.t.Helper()
	entries := map[string]object.TreeEntry{}
	for path, f := range g.files {
		rest, ok := strings.CutPrefix(path, prefix)
		if !ok {
			continue
		}
		name, _, deeper := strings.Cut(rest, "/")
		if !deeper {
			entries[name] = object.TreeEntry{Name: name, Mode: f.mode, Hash: f.hash}
		} else if _, ok := entries[name]; !ok {
			entries[name] = object.TreeEntry{Name: name, Mode: filemode.Dir, Hash: g.tree(prefix + name + "/")}
		}
	}
	t := &object.Tree{Entries: slices.Collect(maps.Values(entries))}
	slices.SortFunc(t.Entries, func(a, b object.TreeEntry) int {
		return strings.Compare(treeKey(a), treeKey(b))
	})
	return g.store(t)
}

func treeKey(e object.TreeEntry) string {
	if e.Mode == filemode.Dir {
		return e.Name + "/"
	}
	return e.Name
}

// commit commits the files to the branch main.
func (g *gitRepo) commit() plumbing.Hash {
	g.t.Helper()
	g.last = g.object()
	g.ref("refs/heads/main", g.last)
	return g.last
}

// commitTagged writes the tag before the branch, so that no reader sees a branch that names a
// missing version.
func (g *gitRepo) commitTagged(tag string) {
	g.t.Helper()
	g.last = g.object()
	g.tag(tag)
	g.ref("refs/heads/main", g.last)
}

// object stores a commit of the files that no branch has yet.
func (g *gitRepo) object() plumbing.Hash {
	g.t.Helper()
	g.commits++
	who := object.Signature{Name: "a", Email: "a@b", When: time.Unix(int64(1700000000+g.commits), 0).UTC()}
	c := &object.Commit{Author: who, Committer: who, Message: fmt.Sprintf("commit %d\n", g.commits), TreeHash: g.tree("")}
	if !g.last.IsZero() {
		c.ParentHashes = []plumbing.Hash{g.last}
	}
	if g.sign != nil {
		c.PGPSignature = g.sign(g.payload(c))
	}
	return g.store(c)
}

// payload is what is signed of a commit or tag.
func (g *gitRepo) payload(o interface {
	EncodeWithoutSignature(plumbing.EncodedObject) error
},
) []byte {
	g.t.Helper()
	raw := &plumbing.MemoryObject{}
	if err := o.EncodeWithoutSignature(raw); err != nil {
		g.t.Fatal(err)
	}
	r, err := raw.Reader()
	if err != nil {
		g.t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		g.t.Fatal(err)
	}
	return data
}

// raw stores an object whose bytes need not mean anything.
func (g *gitRepo) raw(t plumbing.ObjectType, data []byte) plumbing.Hash {
	g.t.Helper()
	raw := g.storage.NewEncodedObject()
	raw.SetType(t)
	w, err := raw.Writer()
	if err != nil {
		g.t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		g.t.Fatal(err)
	}
	h, err := g.storage.SetEncodedObject(raw)
	if err != nil {
		g.t.Fatal(err)
	}
	return h
}

// bytesOf returns an object as it is stored.
func (g *gitRepo) bytesOf(h plumbing.Hash) []byte {
	g.t.Helper()
	raw, err := g.storage.EncodedObject(plumbing.AnyObject, h)
	if err != nil {
		g.t.Fatal(err)
	}
	r, err := raw.Reader()
	if err != nil {
		g.t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		g.t.Fatal(err)
	}
	return data
}

func (g *gitRepo) ref(name string, h plumbing.Hash) {
	g.t.Helper()
	if err := g.storage.SetReference(plumbing.NewHashReference(plumbing.ReferenceName(name), h)); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gitRepo) tag(name string) { g.t.Helper(); g.ref("refs/tags/"+name, g.last) }

func (g *gitRepo) annotate(name string, target plumbing.Hash) plumbing.Hash {
	g.t.Helper()
	tag := &object.Tag{
		Name: name, Message: "a\n", Target: target, TargetType: plumbing.CommitObject,
		Tagger: object.Signature{Name: "a", Email: "a@b", When: time.Unix(1700000000, 0).UTC()},
	}
	if g.sign != nil {
		tag.PGPSignature = g.sign(g.payload(tag))
	}
	h := g.store(tag)
	g.ref("refs/tags/"+name, h)
	return h
}

func (g *gitRepo) deleteTag(name string) {
	g.t.Helper()
	if err := g.storage.RemoveReference(plumbing.ReferenceName("refs/tags/" + name)); err != nil {
		g.t.Fatal(err)
	}
}

// writeFleet writes a small fleet that has no problems: two clusters that run
// coredns v1.0.0.
func (g *gitRepo) writeFleet() {
	g.t.Helper()
	for path, content := range baseFleet(g.t) {
		g.write(path, content)
	}
	g.commit()
	g.tag("coredns/v1.0.0")
}

func open(t testing.TB, url string) *registry.Repo {
	t.Helper()
	r, err := registry.Open(t.Context(), registry.Options{URL: url, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func load(t testing.TB, r *registry.Repo, rev string) *registry.Fleet {
	t.Helper()
	f, err := r.Load(t.Context(), rev)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func mustCommit(t testing.TB, s *filesystem.Storage, h plumbing.Hash) *object.Commit {
	t.Helper()
	c, err := object.GetCommit(s, h)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
