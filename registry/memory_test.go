package registry_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// table is a memory, as the hub's is, with what can go wrong there.
type table struct {
	mu     sync.Mutex
	kept   map[string]gitrepo.MemoryEntry
	writes int
	broken error // of each request
	lost   bool  // the next write happens, and its answer is lost
}

func newTable() *table { return &table{kept: map[string]gitrepo.MemoryEntry{}} }

func (m *table) Read(_ context.Context, name string) (gitrepo.MemoryEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept[name], m.broken
}

func (m *table) Write(_ context.Context, name, version string, data []byte) (gitrepo.MemoryEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return gitrepo.MemoryEntry{}, m.broken
	}
	if m.kept[name].Version != version {
		return gitrepo.MemoryEntry{}, gitrepo.ErrMemoryChanged
	}
	m.writes++
	m.kept[name] = gitrepo.MemoryEntry{Data: data, Version: strconv.Itoa(m.writes)}
	if m.lost {
		m.lost = false
		return gitrepo.MemoryEntry{}, errors.New("the answer is lost")
	}
	return m.kept[name], nil
}

func (m *table) breaks(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = err
}

// replicas are opened one after the other on a served repository, each with an empty cache
// folder and the same memory.
type replicas struct {
	t      *testing.T
	g      *gittest.Repo
	memory *table
	opts   gitrepo.Options
}

func newReplicas(t *testing.T) *replicas {
	t.Helper()
	g, keys, _ := signedRepo(t)
	m := newTable()
	return &replicas{t: t, g: g, memory: m, opts: gitrepo.Options{URL: gittest.Serve(t, g).RepoURL(), TrustedKeys: []string{keys}, Memory: m}}
}

func (r *replicas) open() *registry.Repo {
	r.t.Helper()
	o := r.opts
	o.CacheDir = r.t.TempDir()
	repo, err := registry.Open(r.t.Context(), o)
	fatal(r.t, err)
	return repo
}

func (r *replicas) refused(repo *registry.Repo, why string) {
	r.t.Helper()
	if f, err := repo.Load(r.t.Context(), ""); err == nil || !strings.Contains(err.Error(), why) {
		r.t.Errorf("loaded %v, error %v; want one that says %q", f, err, why)
	}
}

// A pod that starts anew has no cache: the memory knows where the branch was.
func TestRewindBeforeANewReplica(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	old := r.g.Last
	now := r.g.Commit()
	load(t, r.open(), "")
	r.g.Ref("refs/heads/main", old)
	r.refused(r.open(), "branch HEAD was rewound")
	r.g.Ref("refs/heads/main", now)
	load(t, r.open(), "")
}

// A replica whose fetch is older is behind, and no witness of a rewind.
func TestReplicaBehind(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	first, second := r.open(), r.open()
	load(t, first, "")
	load(t, second, "")
	for range 3 {
		now := r.g.Commit()
		fatal(t, first.Git().Fetch(t.Context()))
		load(t, first, "")
		if f := load(t, r.open(), ""); f.Revision != now.String() {
			t.Errorf("a new replica is at %s", f.Revision)
		}
		// It was asked for nothing meanwhile. What it loads next, it has to write down.
		next := r.g.Commit()
		fatal(t, second.Git().Fetch(t.Context()))
		if f := load(t, second, ""); f.Revision != next.String() {
			t.Errorf("the second replica is at %s", f.Revision)
		}
		if f := load(t, first, ""); f.Revision != now.String() && f.Revision != next.String() {
			t.Errorf("the first replica is at %s", f.Revision)
		}
	}
}

// A replica that starts with the cache folder of an earlier one fetches before it speaks of
// a rewind.
func TestReplicaWithAnOldClone(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	o := r.opts
	o.CacheDir = t.TempDir()
	before, err := registry.Open(t.Context(), o)
	fatal(t, err)
	load(t, before, "")
	now := r.g.Commit()
	load(t, r.open(), "")
	again, err := registry.Open(t.Context(), o)
	fatal(t, err)
	if f := load(t, again, ""); f.Revision != now.String() {
		t.Errorf("it is at %s, want %s", f.Revision, now)
	}
	r.g.Ref("refs/heads/main", mustCommit(t, r.g.Storage, now).ParentHashes[0])
	fatal(t, again.Git().Fetch(t.Context()))
	r.refused(again, "branch HEAD was rewound")
}

// What was first seen of a version counts for every replica that comes later.
func TestTagMovedBeforeANewReplica(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	r.g.Write("clusters/a/coredns.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v2.0.0\n")
	r.g.Commit()
	r.g.Annotate("coredns/v2.0.0", r.g.Last)
	first := r.open()
	if err := load(t, first, "").Problems.Err(); err != nil {
		t.Fatal(err)
	}
	r.g.Commit()
	r.g.Annotate("coredns/v2.0.0", r.g.Last)
	for name, repo := range map[string]*registry.Repo{"the first": first, "a new one": r.open()} {
		fatal(t, repo.Git().Fetch(t.Context()))
		if problems := load(t, repo, "").Problems.Error(); !strings.Contains(problems, "tag coredns/v2.0.0 was moved") {
			t.Errorf("%s: %q", name, problems)
		}
	}
}

// What can't be written down is not used, and what was written counts though the answer was
// lost.
func TestMemoryFails(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	repo := r.open()
	before := load(t, repo, "").Revision
	now := r.g.Commit()
	fatal(t, repo.Git().Fetch(t.Context()))
	r.memory.breaks(errors.New("the hub is away"))
	r.refused(repo, "the hub is away")
	r.refused(r.open(), "the hub is away")
	r.memory.breaks(nil)
	r.memory.lost = true
	r.refused(repo, "the answer is lost")
	if f := load(t, repo, ""); f.Revision != now.String() || before == f.Revision {
		t.Errorf("it is at %s, want %s", f.Revision, now)
	}
	writes := r.memory.writes
	for range 3 {
		fatal(t, repo.Git().Fetch(t.Context()))
		load(t, repo, "")
	}
	if r.memory.writes != writes {
		t.Errorf("%d writes where nothing changed", r.memory.writes-writes)
	}
}

// A damaged memory is an error, and never an empty one.
func TestMemoryDamaged(t *testing.T) {
	t.Parallel()
	for _, name := range gitrepo.MemoryNames() {
		r := newReplicas(t)
		r.memory.kept[name] = gitrepo.MemoryEntry{Data: []byte("what is this\n"), Version: "x"}
		o := r.opts
		o.CacheDir = t.TempDir()
		repo, err := registry.Open(t.Context(), o)
		if err == nil {
			_, err = repo.Load(t.Context(), "")
		}
		if err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A rewind that is allowed is allowed once, whatever replica is started with the setting,
// and the others follow.
func TestAcceptRewindOfReplicas(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	first := r.g.Last
	second := r.g.Commit()
	other := r.open()
	load(t, other, "")
	r.g.Ref("refs/heads/main", first)
	r.opts.AcceptRewind = first.String()
	load(t, r.open(), "")
	fatal(t, other.Git().Fetch(t.Context()))
	if f := load(t, other, ""); f.Revision != first.String() {
		t.Errorf("the other replica is at %s", f.Revision)
	}
	r.g.Ref("refs/heads/main", second)
	load(t, r.open(), "")
	r.g.Ref("refs/heads/main", first)
	r.refused(r.open(), "was rewound")
}

// A replica from before there was a memory brings what its cache folder has.
func TestMemoryLearns(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	o := r.opts
	o.CacheDir, o.Memory = t.TempDir(), nil
	old := r.g.Last
	r.g.Commit()
	before, err := registry.Open(t.Context(), o)
	fatal(t, err)
	load(t, before, "")
	o.Memory = r.memory
	after, err := registry.Open(t.Context(), o)
	fatal(t, err)
	load(t, after, "")
	r.g.Ref("refs/heads/main", old)
	r.refused(r.open(), "branch HEAD was rewound")
}

// Who may push tags fills nothing that others need, and makes nothing so large that it can't
// be written.
func TestManyTags(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200)
	cases := map[string]struct {
		why string
		tag func(i int) string
	}{
		"OfOneComponent":   {"A team may push versions of its own.", func(i int) string { return fmt.Sprintf("web/v0.0.%d", i) }},
		"OfManyComponents": {"Tags may name what the fleet does not have.", func(i int) string { return fmt.Sprintf("web-%d/v1.0.0-%s", i, long) }},
		"Long":             {"Few names that are long.", func(i int) string { return fmt.Sprintf("web/v1.0.0-%s.%d", long, i) }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplicas(t)
			r.opts.TrustedKeys = nil
			load(t, r.open(), "")
			const tags = 3_000
			var b strings.Builder
			b.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
			for i := range tags {
				fmt.Fprintf(&b, "%s refs/tags/%s\n", r.g.Last, c.tag(i))
			}
			fatal(t, os.WriteFile(filepath.Join(r.g.Path, "packed-refs"), []byte(b.String()), 0o600))
			r.g.Tag("coredns/v9.0.0")
			for range 2 { // what is kept stays
				load(t, r.open(), "")
			}
			all := ""
			for _, name := range gitrepo.MemoryNames() {
				part := string(r.memory.kept[name].Data)
				if all += part; len(part) > 500_100 {
					t.Errorf("%s: %s has %d bytes", c.why, name, len(part))
				}
			}
			if n := strings.Count(all, " web"); n < 500 || n == tags && name != "OfManyComponents" {
				t.Errorf("%s: %d of %d tags are kept", c.why, n, tags)
			}
			if !strings.Contains(all, " coredns/v1.0.0\n") || !strings.Contains(all, " coredns/v9.0.0\n") {
				t.Errorf("%s: those of another component are not kept", c.why)
			}
		})
	}
}

// Replicas that start at once agree: each is at one of the commits that the branch had, none
// fails for good, and the memory never goes back.
func TestReplicasAtOnce(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	all := make([]*registry.Repo, 4)
	for i := range all {
		all[i] = r.open()
	}
	var heads []plumbing.Hash
	for range 5 {
		heads = append(heads, r.g.Commit())
		var wg sync.WaitGroup
		for _, repo := range all {
			wg.Go(func() {
				if err := repo.Git().Fetch(t.Context()); err != nil {
					t.Error(err)
				}
				f, err := repo.Load(t.Context(), "")
				if err != nil || f.Revision != heads[len(heads)-1].String() {
					t.Errorf("it is at %v (%v), want %s", f, err, heads[len(heads)-1])
				}
			})
		}
		wg.Wait()
	}
	r.g.Ref("refs/heads/main", heads[0])
	r.refused(r.open(), "branch HEAD was rewound")
}
