package gitrepo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	gitcache "github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/objectcache"
)

// Snapshot holds a repository's branches and tags at one moment, with their objects. It does not
// change.
type Snapshot struct {
	objects  *objects
	cache    *objectcache.Cache
	head     plumbing.Hash // zero: HEAD has no commit
	headName string        // the branch that HEAD names, for errors
	branches map[string]plumbing.Hash
	remotes  map[string]plumbing.Hash // branches of remotes, as REMOTE/BRANCH; of a user's repository
	tags     map[string]plumbing.Hash // not peeled
	seen     map[string]firstSeen     // by tag
	shared   bool                     // the memory has seen, too
	keys     string                   // the digest of the trusted keys that seen was checked with
	// versions are the versions with a tag, by component, unordered.
	versions map[string][]string

	digest func() string // of the tags and the trusted keys

	mu     sync.Mutex
	peeled map[string]plumbing.Hash // commits, by tag
}

// Tags are the tags of a repository at one moment.
type Tags struct{ hashes map[string]plumbing.Hash }

// Equal reports whether two repositories have the same tags, with the same hashes.
func (t Tags) Equal(u Tags) bool { return maps.Equal(t.hashes, u.hashes) }

// openPacks is how many packs stay open between two reads, while the objects are referenced. A new
// clone has one pack.
const openPacks = 4

// packed is the folder of Keelson's own clone, in which every object is in a pack, because a fetch
// writes only packs. go-git would first look for a file of each object, through every folder above
// it, which took half the time of a load.
type packed struct{ billy.Filesystem }

func (p packed) Open(path string) (billy.File, error) {
	if _, name, ok := strings.Cut(filepath.ToSlash(path), "objects/"); ok && len(name) > 2 && name[2] == '/' {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return p.Filesystem.Open(path) //nolint:wrapcheck // it is one
}

// withoutLocks is the folder of a repository that other processes may write to. git writes
// main.lock and renames it to main. go-git reads main.lock as a ref, and fails while it is empty.
type withoutLocks struct{ billy.Filesystem }

func (w withoutLocks) ReadDir(path string) ([]os.FileInfo, error) {
	files, err := w.Filesystem.ReadDir(path)
	return slices.DeleteFunc(files, func(f os.FileInfo) bool { return strings.HasSuffix(f.Name(), ".lock") }), err
}

// takeSnapshot reads the repository's branches and tags, and remembers new tags.
func (r *Repo) takeSnapshot(ctx context.Context) (*Snapshot, error) {
	repo, objects, err := r.openObjects()
	if err != nil {
		return nil, err
	}
	out := &Snapshot{
		objects:  objects,
		cache:    r.cache,
		branches: map[string]plumbing.Hash{},
		remotes:  map[string]plumbing.Hash{},
		tags:     map[string]plumbing.Hash{},
		versions: map[string][]string{},
		peeled:   map[string]plumbing.Hash{},
	}
	if err := out.read(repo, r.limits.Refs); err != nil {
		return nil, fmt.Errorf("read the refs of %s: %w", r.location.shown(), err)
	}
	out.shared = r.memory != nil && r.opened
	trust, err := r.Trust(out)
	if err == nil {
		err = r.tags.remember(ctx, out, trust)
	}
	if err != nil {
		return nil, fmt.Errorf("remember the tags of %s: %w", r.location.shown(), err)
	}
	out.digest = sync.OnceValue(out.hashTags)
	return out, nil
}

// openObjects opens the clone, or the repository that is read in place.
func (r *Repo) openObjects() (*git.Repository, *objects, error) {
	path := r.location.path
	if path == "" {
		path = r.clone().path
	}
	repo, err := git.PlainOpenWithOptions(path, &git.PlainOpenOptions{EnableDotGitCommonDir: true})
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", r.location.shown(), err)
	}
	s, ok := repo.Storer.(*filesystem.Storage)
	if ok {
		folder := s.Filesystem()
		if r.location.path == "" {
			folder = packed{folder}
		}
		s = filesystem.NewStorageWithOptions(withoutLocks{folder}, gitcache.NewObjectLRUDefault(), filesystem.Options{MaxOpenDescriptors: openPacks})
		repo.Storer = s
	}
	o := &objects{s: repo.Storer}
	switch {
	case r.location.path == "":
		o.clone = path
	case ok:
		o.fs = s.Filesystem()
	}
	return repo, o, nil
}

func (r *Snapshot) read(repo *git.Repository, most int) error {
	iter, err := repo.References()
	if err != nil {
		return fmt.Errorf("list refs: %w", err)
	}
	defer iter.Close()
	err = iter.ForEach(func(ref *plumbing.Reference) error {
		name := ref.Name()
		branch, isBranch := strings.CutPrefix(name.String(), "refs/heads/")
		tag, isTag := strings.CutPrefix(name.String(), "refs/tags/")
		remote, isRemote := strings.CutPrefix(name.String(), "refs/remotes/")
		switch {
		case name == plumbing.HEAD && ref.Type() == plumbing.SymbolicReference:
			r.headName = ref.Target().Short()
		case name == plumbing.HEAD:
			r.head = ref.Hash()
		case ref.Type() != plumbing.HashReference:
		case isBranch && naming.CheckRef(branch) == "":
			r.branches[branch] = ref.Hash()
		case isRemote && naming.CheckRef(remote) == "":
			if len(r.remotes) < most { // a user's own, which no server bounds: the rest has no name
				r.remotes[remote] = ref.Hash()
			}
		case isTag && naming.CheckRef(tag) == "":
			r.tags[tag] = ref.Hash()
			if component, version, ok := naming.SplitTag(tag); ok {
				r.versions[component] = append(r.versions[component], version)
			}
		}
		if len(r.branches)+len(r.tags) > most {
			return fmt.Errorf("there are more than %d branches and tags", most)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list refs: %w", err)
	}
	if r.headName != "" {
		r.head = r.branches[r.headName]
	}
	return nil
}

// HasTag reports whether there is a tag with the given name.
func (r *Snapshot) HasTag(name string) bool { return !r.tags[name].IsZero() }

// Tags returns all tags.
func (r *Snapshot) Tags() Tags { return Tags{r.tags} }

// Versions returns the versions of a component that have a tag, unordered. The caller must not
// modify them.
func (r *Snapshot) Versions(component string) []string { return r.versions[component] }

// Moved reports whether the tag of a version no longer leads to the commit that it was first seen
// at. It returns both commits. A tag that can't be read is not moved.
func (r *Snapshot) Moved(tag string) (first, now plumbing.Hash, moved bool) {
	seen, ok := r.seen[tag]
	if !ok || seen.raw == r.tags[tag] {
		return first, now, false
	}
	now, err := r.CommitOf(tag)
	return seen.commit, now, err == nil && now != seen.commit
}

// TreeOf returns the files of a commit. Its root is cached.
func (r *Snapshot) TreeOf(commit plumbing.Hash) (Tree, error) {
	root, err := objectcache.Get(r.cache, objectcache.Key{Job: "root", Hash: commit.String()}, func() (plumbing.Hash, error) {
		return r.objects.commitTree(commit)
	})
	if err != nil {
		return nil, err
	}
	return r.tree(root), nil
}

func (r *Snapshot) tree(root plumbing.Hash) Tree {
	return &gitTree{objects: r.objects, cache: r.cache, root: root}
}

// CommitOf returns the commit of a tag.
func (r *Snapshot) CommitOf(tag string) (plumbing.Hash, error) {
	r.mu.Lock()
	h, ok := r.peeled[tag]
	r.mu.Unlock()
	if ok {
		return h, nil
	}
	h, err := r.objects.peel(r.tags[tag])
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("tag %s: %w", tag, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peeled[tag] = h
	return h, nil
}

// ancestorSuffix is the end of a revision that names an ancestor, as in git: each ~N stands for N
// first parents, and each ^ for one.
var (
	ancestorSuffix = regexp.MustCompile(`(~[0-9]*|\^)+$`)
	ancestorStep   = regexp.MustCompile(`~[0-9]*|\^`)
)

// maxAncestor is how far back a revision may go.
const maxAncestor = 10_000

// resolve returns the commit of a revision.
func (r *Snapshot) resolve(rev string) (plumbing.Hash, error) {
	suffix := ancestorSuffix.FindString(rev)
	h, err := r.resolveName(strings.TrimSuffix(rev, suffix))
	if err != nil || suffix == "" {
		return h, err
	}
	back, err := ancestorsOf(suffix)
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("revision %q: %w", rev, err)
	}
	for range back {
		c, err := r.objects.commit(h)
		if err != nil {
			return plumbing.ZeroHash, fmt.Errorf("revision %q: %w", rev, err)
		}
		if len(c.parents) == 0 {
			return plumbing.ZeroHash, fmt.Errorf("revision %q: the history begins with commit %.12s: give a smaller number", rev, h)
		}
		h = c.parents[0]
	}
	return h, nil
}

// ancestorsOf returns by how many commits a suffix goes back.
func ancestorsOf(suffix string) (int, error) {
	back := 0
	for _, step := range ancestorStep.FindAllString(suffix, -1) {
		n := 1
		if number := step[1:]; number != "" {
			var err error
			if n, err = strconv.Atoi(number); err != nil {
				n = maxAncestor + 1
			}
		}
		if n > maxAncestor-back {
			return 0, fmt.Errorf("it goes back by more than %d commits: give the hash of the commit", maxAncestor)
		}
		back += n
	}
	return back, nil
}

// resolveName returns the commit of a revision that names a branch, a tag or a commit.
func (r *Snapshot) resolveName(rev string) (plumbing.Hash, error) {
	if rev == "" || rev == "HEAD" {
		if r.head.IsZero() {
			return plumbing.ZeroHash, fmt.Errorf("the repository's HEAD names the branch %q, which has no commit", r.headName)
		}
		return r.head, nil
	}
	if wrong := naming.CheckRef(rev); wrong != "" {
		return plumbing.ZeroHash, fmt.Errorf("revision %q: %s", rev, wrong)
	}
	if plumbing.IsHash(rev) {
		return r.objects.peel(plumbing.NewHash(rev))
	}
	if h, ok := r.branches[rev]; ok {
		return h, nil
	}
	if _, ok := r.tags[rev]; ok {
		return r.CommitOf(rev)
	}
	if h, ok := r.remotes[rev]; ok {
		return h, nil
	}
	h, err := r.short(rev)
	if err != nil || !h.IsZero() {
		return h, err
	}
	known := slices.Concat(slices.Collect(maps.Keys(r.branches)), slices.Collect(maps.Keys(r.tags)))
	slices.Sort(known)
	if hint := naming.Suggest(rev, known); hint != "" {
		return plumbing.ZeroHash, fmt.Errorf("no branch, tag or commit is called %q (%s)", rev, hint)
	}
	return plumbing.ZeroHash, fmt.Errorf("no branch, tag or commit is called %q", rev)
}

// short finds a commit by the first digits of its hash; zero if there is none.
func (r *Snapshot) short(rev string) (plumbing.Hash, error) {
	const fewest = 4 // git's own minimum
	if len(rev) < fewest || len(rev) > 40 {
		return plumbing.ZeroHash, nil
	}
	prefix, err := hex.DecodeString(rev[:len(rev)/2*2])
	if err != nil {
		return plumbing.ZeroHash, nil //nolint:nilerr // not hex, so not a hash
	}
	found, err := r.objects.prefixed(prefix)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	found = slices.DeleteFunc(found, func(h plumbing.Hash) bool { return h.String()[:len(rev)] != rev })
	slices.SortFunc(found, func(a, b plumbing.Hash) int { return slices.Compare(a[:], b[:]) })
	switch found = slices.Compact(found); len(found) {
	case 0:
		return plumbing.ZeroHash, nil
	case 1:
		return found[0], nil
	default:
		return plumbing.ZeroHash, fmt.Errorf("%q is the start of %d commits", rev, len(found))
	}
}

// Resolve returns the full hash of the commit of a branch, a tag, or a full or short hash, as of
// the last [Repo.Fetch]. "" and "HEAD" are the branch that the repository's own HEAD names. A
// branch is preferred to a tag of the same name, and both to a branch of a remote (origin/main).
// ~N and ^ behind any of them lead to first parents, as in git.
func (r *Repo) Resolve(rev string) (string, error) {
	h, err := r.Snapshot().resolve(rev)
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.location.shown(), err)
	}
	return h.String(), nil
}

// Tags identifies the tags as of the last [Repo.Fetch], and the trusted keys. While it is the same,
// a commit has the same fleet.
func (r *Repo) Tags() string { return r.Snapshot().digest() }

func (r *Snapshot) hashTags() string {
	h := sha256.New()
	fmt.Fprintln(h, r.keys)
	for _, tag := range slices.Sorted(maps.Keys(r.tags)) {
		fmt.Fprintln(h, tag, r.tags[tag])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// moving returns the name under which the accepted commits of a revision are remembered, if the
// revision moves: a branch, here or of a remote. "" is a fixed revision.
func (r *Snapshot) moving(rev string) string {
	suffix := ancestorSuffix.FindString(rev)
	if back, err := ancestorsOf(suffix); err == nil && back == 0 {
		rev = strings.TrimSuffix(rev, suffix)
	}
	if branch := r.branchOf(rev); branch != "" {
		return branch
	}
	if _, ok := r.tags[rev]; ok {
		return ""
	}
	if _, ok := r.remotes[rev]; ok {
		return rev
	}
	return ""
}

// branchOf returns the branch that a revision follows; "" for a fixed revision.
func (r *Snapshot) branchOf(rev string) string {
	if rev == "" || rev == "HEAD" {
		return "HEAD"
	}
	if _, ok := r.branches[rev]; ok && !plumbing.IsHash(rev) {
		return rev
	}
	return ""
}
