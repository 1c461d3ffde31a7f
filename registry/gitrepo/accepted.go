package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/rogpeppe/go-internal/lockedfile"
)

// Admission is a commit that may be used, with what was known when this was decided.
type Admission struct {
	Commit   plumbing.Hash
	Snapshot *Snapshot
	Trust    *Trust
	// Signer signed the commit. It is nil without trusted keys, for a work tree, and with
	// [Options.Proposals].
	Signer *Signer

	branch string        // "": nothing is accepted
	before plumbing.Hash // the accepted commit of the branch; zero: none
	rewind bool          // the commit does not descend from before, and the caller allowed this
	spent  bool          // the allowed rewind has happened, or none is allowed
	unkept bool          // the memory does not have the commit
}

// errOvertaken means that another process accepted another commit of the branch during the load.
var errOvertaken = errors.New("was accepted by another process")

// rewoundError means that a branch does not descend from its accepted commit.
type rewoundError struct {
	branch         string
	commit, before plumbing.Hash
	signer         Signer
}

func (e *rewoundError) Error() string {
	return fmt.Sprintf("branch %s was rewound: commit %s, signed by %s, does not descend from %s, which was accepted before; "+
		"nothing is changed; if the branch was meant to go there, start once with --accept-rewind %s",
		e.branch, e.commit.String()[:12], e.signer, e.before.String()[:12], e.commit)
}

// Admit returns the commit of a revision, see [Repo.Resolve], as of the last [Repo.Fetch]. With
// trusted keys, it must be signed, and must descend from the accepted commit of its branch. Call
// [Repo.Accept] once the commit is used.
func (r *Repo) Admit(ctx context.Context, rev string) (*Admission, error) {
	a, err := r.resolve(ctx, rev)
	// A work tree belongs to the caller and is not signed. It is shown, never applied.
	if err != nil || a.Trust == nil || r.workTree || r.proposals {
		return a, err
	}
	a.branch = a.Snapshot.moving(rev)
	if err := r.heads.admit(ctx, a); err != nil {
		return nil, err
	}
	return a, nil
}

// AdmitCommit is Admit for an older commit, given as full hash. It must be signed, but the accepted
// commits of branches neither count nor change.
func (r *Repo) AdmitCommit(ctx context.Context, commit string) (*Admission, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !plumbing.IsHash(commit) {
		return nil, fmt.Errorf("%q is no commit", commit)
	}
	a, err := r.resolve(ctx, commit)
	if err != nil || a.Trust == nil || r.proposals {
		return a, err
	}
	if err := r.heads.admit(ctx, a); err != nil {
		return nil, err
	}
	return a, nil
}

// resolve returns the commit of a revision, with the keys that are trusted now.
func (r *Repo) resolve(ctx context.Context, rev string) (*Admission, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	now := r.Snapshot()
	commit, err := now.resolve(rev)
	if err != nil {
		return nil, err
	}
	trust, err := r.Trust(now)
	if err != nil {
		return nil, err
	}
	return &Admission{Commit: commit, Snapshot: now, Trust: trust}, nil
}

// Accept stores the head of a branch that was used. If several processes use different commits at
// once, the first one wins, and the others get an error; see [Repo.CatchUp].
func (r *Repo) Accept(ctx context.Context, a *Admission) error { return r.heads.accept(ctx, a) }

// Tree returns the files of the admitted commit.
func (a *Admission) Tree() (Tree, error) {
	root, err := a.Snapshot.objects.commitTree(a.Commit)
	if err != nil {
		return nil, err
	}
	return a.Snapshot.tree(root), nil
}

// OpenTree returns the files of the admitted commit, or those of the work tree, which has the one
// revision "" or HEAD. Call done after the last read.
func (r *Repo) OpenTree(a *Admission, rev string) (files Tree, done func(), err error) {
	if !r.workTree {
		files, err = a.Tree()
		return files, func() {}, err
	}
	if rev != "" && rev != "HEAD" {
		return nil, nil, fmt.Errorf("a work tree has one revision, and not %q", rev)
	}
	tree, err := openWorkTree(r.location.path)
	if err != nil {
		return nil, nil, err
	}
	return tree, func() { _ = tree.root.Close() }, nil // nothing was written
}

// headStore stores the accepted heads of branches.
type headStore struct {
	file   string        // in the cache folder
	memory *sharedMemory // may be nil
	// acceptRewind is [Options.AcceptRewind].
	acceptRewind string
}

// admit checks that a commit is signed, and descends from the accepted commit of its branch.
func (s headStore) admit(ctx context.Context, a *Admission) error {
	signer, err := a.Trust.commit(a.Commit)
	if err != nil {
		return fmt.Errorf("%w; nothing is changed until the branch is at a commit that a trusted key signed "+
			"(git commit -S), or the key is added to the trusted keys", err)
	}
	a.Signer = &signer
	if a.branch == "" {
		return nil
	}
	seen, kept, err := s.read(ctx)
	if err != nil {
		return err
	}
	a.before = seen.heads[a.branch]
	a.unkept = s.memory != nil && kept.heads[a.branch] != a.Commit
	to := plumbing.NewHash(s.acceptRewind)
	a.spent = s.acceptRewind == "" || seen.rewound[to]
	if a.before.IsZero() || a.before == a.Commit {
		return nil
	}
	objects := a.Snapshot.objects
	ok, err := objects.descends(ctx, a.Commit, a.before)
	if err != nil {
		return fmt.Errorf("can't tell whether commit %s descends from %s, which was accepted before: %w",
			a.Commit.String()[:12], a.before.String()[:12], err)
	}
	if ok {
		return nil
	}
	// A rewind that has happened gives no further permission: a replay is another rewind.
	if !a.spent {
		if a.rewind, err = objects.descends(ctx, a.Commit, to); a.rewind || err != nil {
			return err
		}
	}
	return &rewoundError{branch: a.branch, commit: a.Commit, before: a.before, signer: signer}
}

// read returns what was accepted, by the cache folder and the memory, and the memory's
// part alone. The memory overrides the cache folder.
func (s headStore) read(ctx context.Context) (all, kept accepted, err error) {
	if all, err = readAccepted(s.file); err != nil || s.memory == nil {
		return all, kept, err
	}
	k, err := s.memory.read(ctx, memoryHeads)
	if err != nil {
		return all, kept, err
	}
	if kept, err = parseAccepted("the memory of this repository", k.Data); err != nil {
		return all, kept, err
	}
	maps.Copy(all.heads, kept.heads)
	maps.Copy(all.rewound, kept.rewound)
	return all, kept, nil
}

// accept stores the head of a branch. The error is errOvertaken if another process was first.
func (s headStore) accept(ctx context.Context, a *Admission) error {
	commit := a.Commit
	to := plumbing.NewHash(s.acceptRewind)
	spend := !a.spent && (a.rewind || commit == to)
	if a.branch == "" || a.before == commit && !spend && !a.unkept {
		return nil
	}
	unlock, err := lockedfile.MutexAt(s.file + ".lock").Lock()
	if err != nil {
		return fmt.Errorf("lock the accepted heads: %w", err)
	}
	defer unlock()
	for range memoryPasses {
		seen, _, err := s.read(ctx)
		if err != nil {
			return err
		}
		if now := seen.heads[a.branch]; now != a.before && now != commit {
			return fmt.Errorf("branch %s %w at %s, while commit %s was loaded: load it again",
				a.branch, errOvertaken, now.String()[:12], commit.String()[:12])
		}
		if spend {
			seen.rewound[to] = true
		}
		seen.heads[a.branch] = commit
		if s.memory == nil {
			return replaceFile(s.file, seen.encode())
		}
		err = s.memory.write(ctx, memoryHeads, seen.encode())
		switch {
		case err == nil:
			return replaceFile(s.file, seen.encode())
		case !errors.Is(err, ErrMemoryChanged):
			return err
		}
	}
	return fmt.Errorf("branch %s: %w, again and again: load it again", a.branch, ErrMemoryChanged)
}

// accepted holds a repository's branch heads that were last loaded with a good signature.
type accepted struct {
	heads   map[string]plumbing.Hash
	rewound map[plumbing.Hash]bool // allowed rewinds that have happened
}

func (a accepted) encode() []byte {
	var b bytes.Buffer
	b.WriteString("# The signed heads that Keelson last accepted, and the rewinds that were allowed.\n")
	for _, branch := range slices.Sorted(maps.Keys(a.heads)) {
		fmt.Fprintf(&b, "head %s %s\n", a.heads[branch], branch)
	}
	for _, commit := range slices.SortedFunc(maps.Keys(a.rewound), func(a, b plumbing.Hash) int { return bytes.Compare(a[:], b[:]) }) {
		fmt.Fprintf(&b, "rewound %s\n", commit)
	}
	return b.Bytes()
}

func readAccepted(file string) (accepted, error) {
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return accepted{}, fmt.Errorf("read the heads that were accepted before: %w", err)
	}
	return parseAccepted(file, data)
}

// parseAccepted parses the output of encode; empty data has no heads.
func parseAccepted(file string, data []byte) (accepted, error) {
	a := accepted{map[string]plumbing.Hash{}, map[plumbing.Hash]bool{}}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		fields := strings.Split(line, " ")
		switch {
		case strings.HasPrefix(line, "#"):
		case len(fields) == 3 && fields[0] == "head" && isHash(fields[1]):
			a.heads[fields[2]] = plumbing.NewHash(fields[1])
		case len(fields) == 2 && fields[0] == "rewound" && isHash(fields[1]):
			a.rewound[plumbing.NewHash(fields[1])] = true
		default:
			return a, fmt.Errorf("%s is damaged: %q is not a line of it", file, line)
		}
	}
	return a, nil
}
