package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	gitcache "github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/rogpeppe/go-internal/lockedfile"

	"github.com/keelson-io/keelson/registry/objectcache"
)

// objectCacheSize bounds the git objects that are kept decompressed, as bases of deltas. Decoded
// files have a cache of their own.
const objectCacheSize = 32 * gitcache.MiByte

// lockFile is the file in the cache folder that a process locks to change the folder.
const lockFile = "lock"

// Options configure a repository.
type Options struct {
	// URL is the address of the fleet repository: a path, file://, http://, https://, ssh:// or
	// user@host:path. A local repository is read in place.
	URL string
	// CacheDir holds a folder for each repository: the bare clone of a remote repository, and the
	// commits that tags were first seen at. Deleting CacheDir forgets which tags moved. Default:
	// keelson/git in the user's cache folder.
	CacheDir string
	// Username and Password are for http and https, only at the address of URL.
	Username, Password string
	// Credentials is a file of logins by exact address; see docs/decisions/009. It is read at each
	// Fetch.
	Credentials string
	// Hide is called with each password and token before use; may be nil.
	Hide func(secrets ...string)
	// Limits bound what a server can make a Fetch do.
	Limits Limits
	// TrustedKeys are files outside of the repository: lines in the format of ssh-keygen's
	// allowed_signers, and armored OpenPGP public keys. With trusted keys, commits of branches and
	// tags of versions must be signed by them, whatever fleet.yaml says. A branch must descend from
	// its accepted commit.
	TrustedKeys []string
	// AcceptRewind is the full hash of a commit that a branch may move to once, although it does
	// not descend from the accepted commit.
	AcceptRewind string
	// WorkTree reads the files of a local repository from its folder, committed or not. Versions
	// still come from tags.
	WorkTree bool
	// Looks means that nothing read is delivered. A new tag of a local repository is then not
	// remembered, because it may be unpushed, and its author may still move it.
	Looks bool
	// Proposals means that commits are shown and never applied, like commits of pull requests. They
	// need no signature of a trusted key. The tags of versions do.
	Proposals bool
	// Memory stores the accepted heads and the seen tags, in addition to the cache folder; may be
	// nil. Open does not use it; a Load or a later Fetch does.
	Memory Memory
	// Fetched reads what another process fetched, and never contacts the server: it needs no login.
	Fetched bool
}

// Repo is a git repository. It is safe for concurrent use. A read during a Fetch uses the branches
// and tags from either before or after the Fetch.
type Repo struct {
	location location
	workTree bool
	// proposals: commits are only shown.
	proposals    bool
	folder       string   // Keelson's folder in the cache
	trustedFiles []string // Options.TrustedKeys
	limits       Limits
	cache        *objectcache.Cache
	heads        headStore
	tags         tagStore
	memory       *sharedMemory // nil: only the cache folder remembers
	opened       bool          // from then on the memory is used
	fetching     chan struct{} // holds one token while a fetch runs

	mu       sync.RWMutex
	snapshot *Snapshot // of the last Fetch
	// history belongs to the commit of the last call of Merged.
	history history
}

// Open opens a repository. A local repository is read in place. A remote repository is cloned bare,
// which needs the network only the first time. Call [Repo.Fetch] to update it.
func Open(ctx context.Context, opts Options) (*Repo, error) {
	l, err := locate(opts)
	if err != nil {
		return nil, err
	}
	if opts.WorkTree && l.path == "" {
		return nil, fmt.Errorf("open %s: only a repository on this machine has a work tree", l.shown())
	}
	if err := outside(l, opts.TrustedKeys); err != nil {
		return nil, err
	}
	if _, err := readCredentials(opts.Credentials); err != nil {
		return nil, err
	}
	if opts.AcceptRewind != "" && !isHash(opts.AcceptRewind) {
		return nil, fmt.Errorf("open %s: a rewind is accepted to a full commit hash, and not to %q", l.shown(), opts.AcceptRewind)
	}
	if opts.CacheDir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find a folder for the cache: %w", err)
		}
		opts.CacheDir = filepath.Join(user, "keelson", "git")
	}
	r := &Repo{
		location: l,
		workTree: opts.WorkTree, proposals: opts.Proposals,
		folder:       filepath.Join(opts.CacheDir, l.folder()),
		trustedFiles: opts.TrustedKeys,
		limits:       opts.Limits.withDefaults(),
		cache:        objectcache.New(),
		fetching:     make(chan struct{}, 1),
	}
	if opts.Memory != nil {
		r.memory = &sharedMemory{in: opts.Memory, kept: map[string]MemoryEntry{}}
	}
	r.heads = headStore{file: filepath.Join(r.folder, "accepted"), memory: r.memory, acceptRewind: opts.AcceptRewind}
	r.tags = tagStore{file: filepath.Join(r.folder, "first-seen"), memory: r.memory, readOnly: opts.Looks && l.path != ""}
	if err := os.MkdirAll(r.folder, 0o700); err != nil {
		return nil, fmt.Errorf("open %s: make its folder in the cache: %w", l.shown(), err)
	}
	if l.path == "" {
		cloned, err := r.openClone(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case cloned:
			r.opened = true
			return r, nil
		case opts.Fetched:
			return nil, fmt.Errorf("open %s: it was not fetched yet", l.shown())
		}
	}
	if err := r.Fetch(ctx); err != nil {
		return nil, err
	}
	r.opened = true
	return r, nil
}

// openClone opens the clone of an earlier run. It returns false if there is none.
func (r *Repo) openClone(ctx context.Context) (cloned bool, err error) {
	unlock, err := r.lock(ctx)
	if err != nil {
		return false, fmt.Errorf("open %s: %w", r.location.shown(), err)
	}
	defer unlock()
	clone := r.clone()
	if _, err := os.Stat(filepath.Join(clone.path, "HEAD")); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	now, err := r.takeSnapshot(ctx)
	if err != nil {
		return false, err
	}
	if len(now.branches) == 0 && len(now.tags) == 0 {
		return false, nil // the first fetch did not finish
	}
	r.snapshot = now
	return true, nil
}

// ShownURL returns the URL or path of a repository without its password. The error says what is
// wrong with the URL.
func ShownURL(url string) (string, error) {
	l, err := locate(Options{URL: url})
	if err != nil {
		return "", err
	}
	return l.shown(), nil
}

// URL returns the address of the repository, without a password.
func (r *Repo) URL() string { return r.location.shown() }

// Files returns the paths that another process needs to read the fetched data: folders to read, and
// a file to lock. All paths are absolute.
func (r *Repo) Files() (folders []string, lock string, err error) {
	folder, err := filepath.Abs(r.folder)
	if err != nil {
		return nil, "", fmt.Errorf("find the cache: %w", err)
	}
	folders = []string{folder}
	if r.location.path != "" {
		own, err := gitFolders(r.location.path)
		if err != nil {
			return nil, "", fmt.Errorf("open %s: %w", r.location.shown(), err)
		}
		folders = append(folders, own...)
	}
	return folders, filepath.Join(folder, lockFile), nil
}

// gitFolders returns the folders of a local repository, and the outside folders of a linked work
// tree.
func gitFolders(path string) ([]string, error) {
	repo, err := git.PlainOpenWithOptions(path, &git.PlainOpenOptions{EnableDotGitCommonDir: true})
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says what
	}
	folders := []string{path}
	if s, ok := repo.Storer.(*filesystem.Storage); ok {
		root := s.Filesystem().Root()
		folders = append(folders, root)
		if trees := filepath.Dir(root); filepath.Base(trees) == "worktrees" {
			folders = append(folders, filepath.Dir(trees))
		}
	}
	return folders, nil
}

// WorkTree reports whether files are read from the folder of a local repository; see
// [Options.WorkTree].
func (r *Repo) WorkTree() bool { return r.workTree }

// Cache returns the cache of what was computed from the repository's objects.
func (r *Repo) Cache() *objectcache.Cache { return r.cache }

// Snapshot returns the branches and tags of the last Fetch.
func (r *Repo) Snapshot() *Snapshot {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.snapshot
}

// clone returns the clone of a remote repository.
func (r *Repo) clone() clone {
	return clone{path: filepath.Join(r.folder, "clone.git"), location: r.location, limits: r.limits, proposals: r.proposals}
}

// Fetch updates the repository's branches and tags. If it fails, the error names the repository,
// and the refs stay as before.
func (r *Repo) Fetch(ctx context.Context) error {
	_, err := r.fetch(ctx, "")
	return err
}

// fetch is [Repo.Fetch] with one more ref, and returns its hash; "" for none.
func (r *Repo) fetch(ctx context.Context, also plumbing.ReferenceName) (extra plumbing.Hash, err error) {
	if err := ctx.Err(); err != nil {
		return extra, fmt.Errorf("fetch %s: %w", r.location.shown(), err)
	}
	select {
	case r.fetching <- struct{}{}:
		defer func() { <-r.fetching }()
	case <-ctx.Done():
		return extra, fmt.Errorf("fetch %s: %w", r.location.shown(), ctx.Err())
	}
	unlock, err := r.lock(ctx)
	if err != nil {
		return extra, fmt.Errorf("fetch %s: %w", r.location.shown(), err)
	}
	defer unlock()

	if also != "" && r.location.path == "" {
		// Old proposals are cleared first. If they were cleared together with this fetch, the
		// limits of a whole repository would apply to the proposal.
		_, crowded, err := r.clone().crowded("")
		if err == nil && crowded {
			_, err = r.update(ctx, "")
		}
		if err != nil {
			return extra, err
		}
	}
	return r.update(ctx, also)
}

// update is [Repo.fetch] under the locks.
func (r *Repo) update(ctx context.Context, also plumbing.ReferenceName) (extra plumbing.Hash, err error) {
	if r.location.path == "" {
		was := r.Snapshot()
		changed, named, err := r.clone().fetch(ctx, also, was)
		if err != nil {
			return extra, fmt.Errorf("fetch %s: %w", r.location.shown(), err)
		}
		extra = named
		if !changed && was != nil && was.shared == (r.memory != nil) {
			// After a change of the trusted keys, other tags must be remembered.
			if t, err := r.Trust(was); err != nil || t.Digest() == was.keys {
				return extra, err
			}
		}
	} else if also != "" {
		if extra, err = r.localRef(also); err != nil {
			return extra, err
		}
	}
	now, err := r.takeSnapshot(ctx)
	if err != nil {
		return extra, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snapshot = now
	return extra, nil
}

// UseMemory fetches, unless the last Fetch has used the [Memory]. Open does not use it.
func (r *Repo) UseMemory(ctx context.Context) error {
	if r.memory == nil || r.Snapshot().shared {
		return nil
	}
	return r.Fetch(ctx)
}

// CatchUp fetches if err may mean that another replica has accepted a commit that this replica has
// not fetched yet. Being behind is no rewind. It returns true if a new attempt may succeed.
func (r *Repo) CatchUp(ctx context.Context, err error) (again bool, _ error) {
	if r.memory == nil || !errors.As(err, new(*rewoundError)) && !errors.Is(err, errOvertaken) {
		return false, err
	}
	r.memory.forget(memoryHeads)
	if err := r.Fetch(ctx); err != nil {
		return false, err
	}
	return true, nil
}

// lock excludes other processes with the same cache folder.
func (r *Repo) lock(ctx context.Context) (unlock func(), err error) {
	type result struct {
		unlock func()
		err    error
	}
	done := make(chan result, 1)
	go func() {
		unlock, err := lockedfile.MutexAt(filepath.Join(r.folder, lockFile)).Lock()
		done <- result{unlock, err}
	}()
	select {
	case got := <-done:
		if got.err != nil {
			return nil, fmt.Errorf("lock the cache: %w", got.err)
		}
		return got.unlock, nil
	case <-ctx.Done():
		go func() {
			if got := <-done; got.err == nil {
				got.unlock()
			}
		}()
		return nil, fmt.Errorf("another process holds the cache: %w", ctx.Err())
	}
}

func openStorage(path string) *filesystem.Storage {
	return filesystem.NewStorage(osfs.New(path), gitcache.NewObjectLRU(objectCacheSize))
}
