package registry

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/objectcache"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Repo is a fleet repository: a git repository whose commits are Fleets. It is safe for concurrent
// use. A Load during a fetch uses the refs from either before or after the fetch.
type Repo struct {
	git     *gitrepo.Repo
	cache   *objectcache.Cache // of what was read and decoded
	sharing sharing

	mu sync.RWMutex
	// last is the Fleet of the last Load, with the tags and the digest of the trusted keys of that
	// time.
	last     *Fleet
	lastTags gitrepo.Tags
	lastKeys string
	lastMemo *loadMemo
}

// Open opens the git repository of a fleet; see [gitrepo.Open].
func Open(ctx context.Context, opts gitrepo.Options) (*Repo, error) {
	git, err := gitrepo.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &Repo{git: git, cache: git.Cache()}, nil
}

// Git returns the git repository, to fetch, push and read history.
func (r *Repo) Git() *gitrepo.Repo { return r.git }

// Load returns the Fleet at a revision (see [gitrepo.Repo.Resolve]), as of the last
// [gitrepo.Repo.Fetch].
//
// An error means that nothing is known: the revision is missing, the repository can't be read, or
// fleet.yaml is missing or can't be parsed. Every other mistake is in the Problems of the Fleet,
// and of the cluster or delivery that it blocks. If a cluster has Problems, its Deliveries may be
// incomplete: a missing delivery does not mean that the component was removed.
//
// With [gitrepo.Options.WorkTree] the revision must be "" or "HEAD". The Fleet's revision is then the
// commit that is checked out, even if files were changed since.
func (r *Repo) Load(ctx context.Context, rev string) (*Fleet, error) {
	if err := r.git.UseMemory(ctx); err != nil {
		return nil, err
	}
	f, err := r.load(ctx, rev)
	if err != nil {
		var again bool
		if again, err = r.git.CatchUp(ctx, err); again {
			f, err = r.load(ctx, rev)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", r.git.URL(), err)
	}
	return f, nil
}

func (r *Repo) load(ctx context.Context, rev string) (*Fleet, error) {
	at, err := r.git.Admit(ctx, rev)
	if err != nil {
		return nil, err
	}
	fleet := r.unchanged(at)
	if fleet == nil {
		if fleet, err = r.loadAnew(ctx, at, rev); err != nil {
			return nil, err
		}
	}
	return fleet, r.git.Accept(ctx, at)
}

// loadAnew loads the Fleet, and keeps the results for the next Load.
func (r *Repo) loadAnew(ctx context.Context, at *gitrepo.Admission, rev string) (*Fleet, error) {
	tree, done, err := r.git.OpenTree(at, rev)
	if err != nil {
		return nil, err
	}
	defer done()
	r.cache.NextLoad()
	l := r.newLoader(at, tree)
	if err := l.load(ctx); err != nil {
		return nil, fmt.Errorf("commit %.12s: %w", at.Commit, err)
	}
	if r.git.WorkTree() {
		return l.fleet, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastMemo = l.made
	if !l.files.unreadable {
		r.last, r.lastTags, r.lastKeys = l.fleet, at.Snapshot.Tags(), at.Trust.Digest()
	}
	return l.fleet, nil
}

// unchanged returns the Fleet of the last Load if a new Load would return the same.
func (r *Repo) unchanged(at *gitrepo.Admission) *Fleet {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.last != nil && r.last.Revision == at.Commit.String() && r.lastKeys == at.Trust.Digest() && at.Snapshot.Tags().Equal(r.lastTags) {
		return r.last
	}
	return nil
}

func (r *Repo) previousMemo() *loadMemo {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return cmp.Or(r.lastMemo, &loadMemo{})
}

// LoadCommit reads the fleet at an older commit. It does not change the results that the next Load
// reuses. Signatures are verified as in Load.
func (r *Repo) LoadCommit(ctx context.Context, commit string) (*Fleet, error) {
	f, err := r.loadCommit(ctx, commit)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", r.git.URL(), err)
	}
	return f, nil
}

func (r *Repo) loadCommit(ctx context.Context, commit string) (*Fleet, error) {
	at, err := r.git.AdmitCommit(ctx, commit)
	if err != nil {
		return nil, err
	}
	tree, err := at.Tree()
	if err != nil {
		return nil, err
	}
	l := r.newLoader(at, tree)
	if err := l.load(ctx); err != nil {
		return nil, fmt.Errorf("commit %.12s: %w", at.Commit, err)
	}
	return l.fleet, nil
}

// Refuses returns why a version can't be used in a fleet, or nil. A version with a tag can be
// refused, for example because the tag was moved or lacks a signature that the fleet requires. It
// refuses the versions that a Load of the fleet refuses.
func (r *Repo) Refuses(f *Fleet, component, version string) (*yamlfile.Problem, error) {
	now := r.git.Snapshot()
	trust, err := r.git.Trust(now)
	if err != nil {
		return nil, err
	}
	x := &versionIndex{snapshot: now, trust: trust, verify: f.Spec.Verify, published: map[string][]string{}}
	return x.unpublished(component, version, yamlfile.Position{}), nil
}

// FindVersionCommit returns a commit at which a file, of a layer or of a cluster, named a version of a
// component. The commit is the given commit, a full hash, or one of its ancestors; "" if there is
// none. No file could name a version before it was tagged, so ancestors of the tag's commit are
// skipped.
func (r *Repo) FindVersionCommit(ctx context.Context, commit, file, component, version string) (string, error) {
	found, err := r.git.FindCommit(ctx, commit, component+"/"+version, file, func(data []byte) bool {
		return versionIn(data, file, component) == version
	})
	if err != nil {
		return "", fmt.Errorf("look for %s %s in the past of %s: %w", component, version, file, err)
	}
	return found, nil
}

// versionIn returns the version of a component in a file; "" if the file names none or can't be
// read.
func versionIn(data []byte, file, component string) string {
	if strings.HasPrefix(file, "layers/") {
		return decodeLayer(data).spec.Components[component].Version
	}
	return decodeMeta(data).spec.Version
}
