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
	"github.com/go-git/go-git/v5/plumbing"
	gitcache "github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/rogpeppe/go-internal/lockedfile"
)

// objectCacheSize bounds the git objects that are kept decompressed. They are
// bases of deltas: what is decoded from them has a cache of its own.
const objectCacheSize = 32 * gitcache.MiByte

// lockFile in the cache is held by who changes it.
const lockFile = "lock"

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
	// Username and Password for http and https, at the address of URL and
	// nowhere else.
	Username, Password string
	// Credentials is a file of logins by exact address; see docs/decisions/009.
	// It is read at each Fetch.
	Credentials string
	// Hide is told of each password and token before it is used; may be nil.
	Hide func(secrets ...string)
	// Limits of what a server can make a Fetch do.
	Limits Limits
	// TrustedKeys are files outside of the repository: lines as ssh-keygen reads
	// them in allowed_signers, and armored OpenPGP public keys. With any, the
	// commits of branches and the tags of versions have to be signed by them,
	// whatever fleet.yaml says, and a branch has to descend from what it was.
	TrustedKeys []string
	// AcceptRewind is the full hash of a commit that a branch may go to though
	// it does not descend from what was accepted before. Once.
	AcceptRewind string
	// WorkTree reads the files of a local repository as they are in its
	// folder, committed or not. Versions still come from tags.
	WorkTree bool
	// Looks says that nothing is delivered from what is read. A tag of a repository on
	// this machine that is seen for the first time then is not remembered: it may not be
	// pushed yet, and its author may still move it.
	Looks bool
	// Proposals says that commits are looked at and never applied, as those of pull
	// requests: they need no signature of a trusted key. The tags of versions do.
	Proposals bool
	// Memory keeps the heads that were accepted and the tags that were seen, besides the
	// cache folder; may be nil. It is first asked when a fleet is loaded.
	Memory Memory
	// Fetched reads what another process has fetched, and never asks the server: it needs no
	// login.
	Fetched bool
}

// Repo is a fleet repository. It is safe for concurrent use: a Load that runs
// during a Fetch sees all of it or nothing of it.
type Repo struct {
	location location
	workTree bool
	looks    bool
	// proposals: commits are only looked at.
	proposals bool
	folder    string // of ours, in the cache
	// Of the Options.
	trustedFiles []string
	acceptRewind string
	limits       Limits
	cache        *cache
	fetching     chan struct{} // holds one token while a fetch runs
	memory       *sharedMemory // nil: the cache folder alone remembers
	opened       bool          // from then on the memory is asked

	mu   sync.RWMutex
	refs *refs // what the last Fetch saw
	// last is what the last Load returned, with the tags of that time.
	last     *Fleet
	lastTags map[string]plumbing.Hash
	lastKeys string // the digest of the trusted keys
	lastMade *making
	// history is of the commit that Merged was last asked about.
	history history
	sharing sharing
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
		workTree: opts.WorkTree, proposals: opts.Proposals, looks: opts.Looks,
		folder: filepath.Join(opts.CacheDir, l.folder()),
		cache:  newCache(),

		trustedFiles: opts.TrustedKeys,
		acceptRewind: opts.AcceptRewind,
		limits:       opts.Limits.withDefaults(),

		fetching: make(chan struct{}, 1),
	}
	if opts.Memory != nil {
		r.memory = &sharedMemory{in: opts.Memory, kept: map[string]Kept{}}
	}
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
	refs, err := r.snapshot(ctx, r.clonePath())
	if err != nil {
		return false, err
	}
	if len(refs.branches) == 0 && len(refs.tags) == 0 {
		return false, nil // a first fetch that never ended
	}
	r.refs = refs
	return true, nil
}

// ShownURL is the URL or path of a repository as it may be shown: without a password. The
// error says what is wrong with it.
func ShownURL(url string) (string, error) {
	l, err := locate(Options{URL: url})
	if err != nil {
		return "", err
	}
	return l.shown(), nil
}

// URL is where the repository is, without a password.
func (r *Repo) URL() string { return r.location.shown() }

// Files are what another process needs to read what was fetched: folders that it reads, and
// a file that it locks. All are absolute.
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

// gitFolders are a repository on this machine, and what a linked work tree has elsewhere.
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

func (r *Repo) clonePath() string { return filepath.Join(r.folder, "clone.git") }

// Fetch learns what the repository's branches and tags are now. When it fails,
// the error names the repository, and everything stays as it was before.
func (r *Repo) Fetch(ctx context.Context) error {
	_, err := r.fetch(ctx, "")
	return err
}

// fetch is [Repo.Fetch], with one more ref, whose hash it returns; "": with none.
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
		// What proposals have left is cleared first: with the rest of the repository, a
		// proposal would have no bound of its own.
		_, crowded, err := r.crowded("")
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
	path := r.location.path
	if path == "" {
		path = r.clonePath()
		changed, named, err := r.fetchClone(ctx, also)
		if err != nil {
			return extra, fmt.Errorf("fetch %s: %w", r.location.shown(), err)
		}
		extra = named
		if now := r.current(); !changed && now != nil && now.shared == (r.memory != nil) {
			// With other keys, other tags are to be remembered.
			if t, err := r.trust(now.objects); err != nil || t.digest() == now.keys {
				return extra, err
			}
		}
	} else if also != "" {
		if extra, err = r.localRef(also); err != nil {
			return extra, err
		}
	}
	refs, err := r.snapshot(ctx, path)
	if err != nil {
		return extra, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refs = refs
	return extra, nil
}

// lock keeps other processes with the same cache out.
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
