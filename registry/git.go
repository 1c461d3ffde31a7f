package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	gitcache "github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/rogpeppe/go-internal/lockedfile"
)

// objectCacheSize bounds the git objects that are kept decompressed. They are
// bases of deltas: what is decoded from them has a cache of its own.
const objectCacheSize = 32 * gitcache.MiByte

// Options say which repository to open.
type Options struct {
	// URL of the fleet repository: a path, file://, http://, https://, ssh://
	// or user@host:path. A repository on this machine is read in place.
	URL string
	// CacheDir holds a folder for each repository: the bare clone of a remote
	// one, and the memory of the commits that tags were first seen at. Who
	// deletes it forgets which tags moved. Default: keelson/git in the user's
	// cache folder.
	CacheDir string
	// Username and Password for http and https. SSH asks the agent and
	// known_hosts.
	Username, Password string
	// WorkTree reads the files of a local repository as they are in its
	// folder, committed or not. Versions still come from tags.
	WorkTree bool
}

// Repo is a fleet repository. It is safe for concurrent use: a Load that runs
// during a Fetch sees all of it or nothing of it.
type Repo struct {
	location location
	workTree bool
	folder   string // of ours, in the cache
	cache    *cache
	fetching chan struct{} // holds one token while a fetch runs

	mu   sync.RWMutex
	refs *refs // what the last Fetch saw
	// last is what the last Load returned, with the tags of that time.
	last       *Fleet
	lastTags   map[string]plumbing.Hash
	lastChains map[chainKey]*Values
}

// Open opens a repository. One on this machine is read where it is; of a
// remote one a bare clone is made, which needs the network the first time
// only: call [Repo.Fetch] to be up to date.
func Open(ctx context.Context, opts Options) (*Repo, error) {
	l, err := locate(opts)
	if err != nil {
		return nil, err
	}
	if opts.WorkTree && l.path == "" {
		return nil, fmt.Errorf("open %s: only a repository on this machine has a work tree", l.shown())
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
		workTree: opts.WorkTree,
		folder:   filepath.Join(opts.CacheDir, l.folder()),
		cache:    newCache(),
		fetching: make(chan struct{}, 1),
	}
	if err := os.MkdirAll(r.folder, 0o700); err != nil {
		return nil, fmt.Errorf("open %s: make its folder in the cache: %w", l.shown(), err)
	}
	if l.path == "" {
		cloned, err := r.openClone(ctx)
		if err != nil {
			return nil, err
		}
		if cloned {
			return r, nil
		}
	}
	if err := r.Fetch(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// openClone reads the clone of an earlier run. Not cloned: there is none.
func (r *Repo) openClone(ctx context.Context) (cloned bool, err error) {
	unlock, err := r.lock(ctx)
	if err != nil {
		return false, fmt.Errorf("open %s: %w", r.location.shown(), err)
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(r.clonePath(), "HEAD")); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	refs, err := r.snapshot(r.clonePath())
	if err != nil {
		return false, err
	}
	if len(refs.branches) == 0 && len(refs.tags) == 0 {
		return false, nil // a first fetch that never ended
	}
	r.refs = refs
	return true, nil
}

func (r *Repo) clonePath() string { return filepath.Join(r.folder, "clone.git") }

// Fetch learns what the repository's branches and tags are now. When it fails,
// the error names the repository, and everything stays as it was before.
func (r *Repo) Fetch(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("fetch %s: %w", r.location.shown(), err)
	}
	select {
	case r.fetching <- struct{}{}:
		defer func() { <-r.fetching }()
	case <-ctx.Done():
		return fmt.Errorf("fetch %s: %w", r.location.shown(), ctx.Err())
	}
	unlock, err := r.lock(ctx)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", r.location.shown(), err)
	}
	defer unlock()

	path := r.location.path
	if path == "" {
		path = r.clonePath()
		changed, err := r.fetchClone(ctx)
		if err != nil {
			return fmt.Errorf("fetch %s: %w", r.location.shown(), err)
		}
		if !changed && r.current() != nil {
			return nil
		}
	}
	refs, err := r.snapshot(path)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refs = refs
	return nil
}

// lock keeps other processes with the same cache out.
func (r *Repo) lock(ctx context.Context) (unlock func(), err error) {
	type result struct {
		unlock func()
		err    error
	}
	done := make(chan result, 1)
	go func() {
		unlock, err := lockedfile.MutexAt(filepath.Join(r.folder, "lock")).Lock()
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

// fetchClone brings the bare clone up to date. It asks for the list of refs
// first, so that a poll that finds nothing new costs one request.
func (r *Repo) fetchClone(ctx context.Context) (changed bool, err error) {
	storage := openStorage(r.clonePath())
	repo, err := git.Open(storage, nil)
	if errors.Is(err, git.ErrRepositoryNotExists) {
		repo, err = git.Init(storage, nil)
	}
	if err != nil {
		return false, fmt.Errorf("open the clone: %w", err)
	}
	remote := git.NewRemote(storage, &config.RemoteConfig{Name: "origin", URLs: []string{r.location.url}})
	listed, err := remote.ListContext(ctx, &git.ListOptions{Auth: r.location.auth})
	if err != nil && !errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return false, fmt.Errorf("list its branches and tags: %w", err)
	}
	same, err := sameRefs(repo, listed)
	if err != nil || same {
		return false, err
	}
	err = remote.FetchContext(ctx, &git.FetchOptions{
		RefSpecs: []config.RefSpec{"+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"},
		Tags:     git.NoTags,
		Auth:     r.location.auth,
		Force:    true,
		Prune:    true,
	})
	if err != nil && !errors.Is(err, git.NoErrAlreadyUpToDate) && !errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return false, fmt.Errorf("fetch its branches and tags: %w", err)
	}
	return true, setHead(storage, listed)
}

// setHead lets the clone's HEAD follow the remote's.
func setHead(s *filesystem.Storage, listed []*plumbing.Reference) error {
	for _, ref := range listed {
		if ref.Name() == plumbing.HEAD {
			if err := s.SetReference(ref); err != nil {
				return fmt.Errorf("write HEAD: %w", err)
			}
		}
	}
	return nil
}

// sameRefs says whether the clone has what the remote listed, and no more.
func sameRefs(repo *git.Repository, listed []*plumbing.Reference) (bool, error) {
	have := map[plumbing.ReferenceName]string{}
	iter, err := repo.References()
	if err != nil {
		return false, fmt.Errorf("list the clone's refs: %w", err)
	}
	err = iter.ForEach(func(ref *plumbing.Reference) error {
		if mirrored(ref.Name()) {
			have[ref.Name()] = ref.String()
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("list the clone's refs: %w", err)
	}
	n := 0
	for _, ref := range listed {
		if !mirrored(ref.Name()) {
			continue
		}
		n++
		if have[ref.Name()] != ref.String() {
			return false, nil
		}
	}
	return n == len(have) && n > 0, nil
}

// mirrored says whether the clone follows a ref of the remote.
func mirrored(name plumbing.ReferenceName) bool {
	return name == plumbing.HEAD || name.IsBranch() || name.IsTag()
}

func openStorage(path string) *filesystem.Storage {
	return filesystem.NewStorage(osfs.New(path), gitcache.NewObjectLRU(objectCacheSize))
}
