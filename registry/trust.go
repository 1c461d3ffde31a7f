package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/rogpeppe/go-internal/lockedfile"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/objectcache"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// trust verifies the signatures of one repository at one moment. A nil trust means that no keys
// were given.
type trust struct {
	keys    *trustedKeys
	objects *objects
	cache   *objectcache.Cache
}

// verdict is the result of verifying one object's signature.
type verdict struct {
	signer Signer
	wrong  string // empty: the signature is good
}

// trust reads the trusted keys at each call, so that a removed key stops counting without a
// restart. The result is nil without keys.
func (r *Repo) trust(o *objects) (*trust, error) {
	if len(r.trustedFiles) == 0 {
		return nil, nil //nolint:nilnil // a nil trust is one
	}
	keys, err := readTrusted(r.trustedFiles)
	if err != nil {
		return nil, err
	}
	return &trust{keys: keys, objects: o, cache: r.cache}, nil
}

// outside refuses trusted keys inside the repository, where a push could change them.
func outside(l location, files []string) error {
	for _, file := range files {
		found, err := localPath(file)
		if err != nil {
			return err
		}
		if rest, ok := strings.CutPrefix(found.path, l.path+string(filepath.Separator)); ok && l.path != "" {
			return fmt.Errorf("trusted keys must not come from the repository that they are for: move %s out of %s", rest, l.path)
		}
	}
	return nil
}

// digest identifies the keys; "" without keys.
func (t *trust) digest() string {
	if t == nil {
		return ""
	}
	return t.keys.digest
}

// commit returns the signer of a commit.
func (t *trust) commit(h plumbing.Hash) (Signer, error) {
	v, err := objectcache.Get(t.cache, objectcache.Key{Job: "signer", Hash: h.String(), Name: t.keys.digest}, func() (verdict, error) {
		raw, err := t.objects.readTyped(plumbing.CommitObject, h, maxCommitBytes)
		if err != nil {
			return verdict{}, err
		}
		return t.keys.judgeCommit(raw), nil
	})
	return v.result(err, "commit "+h.String()[:12])
}

func (v verdict) result(err error, what string) (Signer, error) {
	switch {
	case err != nil:
		return Signer{}, fmt.Errorf("%s can't be verified: %w", what, err)
	case v.wrong != "":
		return Signer{}, fmt.Errorf("%s is not to be trusted: %s", what, v.wrong)
	}
	return v.signer, nil
}

// judgeCommit verifies the signature of a commit.
func (k *trustedKeys) judgeCommit(raw []byte) verdict {
	c, err := parseCommit(raw)
	if err != nil {
		return verdict{wrong: "it is malformed: " + err.Error()}
	}
	payload, signature, err := cutCommit(raw)
	if err != nil {
		return verdict{wrong: err.Error()}
	}
	signer, err := k.verify(payload, signature, c.committed)
	if err != nil {
		return verdict{wrong: err.Error()}
	}
	return verdict{signer: signer}
}

// judgeTag verifies the signature of an annotated tag with the given name. A tag that was signed
// under another name is refused, because it publishes something else.
func (k *trustedKeys) judgeTag(raw []byte, name string) verdict {
	t, err := parseTag(raw)
	if err != nil {
		return verdict{wrong: "it is malformed: " + err.Error()}
	}
	if t.name != name {
		return verdict{wrong: fmt.Sprintf("it was made as tag %q", t.name)}
	}
	payload, signature, err := cutTag(raw)
	if err != nil {
		return verdict{wrong: err.Error()}
	}
	signer, err := k.verify(payload, signature, t.tagged)
	if err != nil {
		return verdict{wrong: err.Error()}
	}
	return verdict{signer: signer}
}

// tag verifies the signature of a tag: of the tag object, or of the commit of a lightweight tag.
func (t *trust) tag(name string, raw plumbing.Hash) (lightweight bool, err error) {
	type judged struct {
		verdict
		lightweight bool
	}
	v, err := objectcache.Get(t.cache, objectcache.Key{Job: "signer", Hash: raw.String(), Name: t.keys.digest + " " + name}, func() (judged, error) {
		kind, data, err := t.objects.read(raw, maxCommitBytes)
		switch {
		case err != nil:
			return judged{}, err
		case kind == plumbing.CommitObject:
			return judged{t.keys.judgeCommit(data), true}, nil
		case kind != plumbing.TagObject:
			return judged{}, fmt.Errorf("object %s is a %s, not a commit", raw, kind)
		}
		return judged{t.keys.judgeTag(data, name), false}, nil
	})
	what := "tag " + name
	if v.lightweight {
		what = fmt.Sprintf("commit %s of the lightweight tag %s", raw.String()[:12], name)
	}
	_, err = v.result(err, what)
	return v.lightweight, err
}

// distrusted returns why a version's tag may not be used, or nil.
func (l *loader) distrusted(tag string, raw plumbing.Hash, at yamlfile.Position) *yamlfile.Problem {
	if l.trust == nil {
		return nil
	}
	lightweight, err := l.trust.tag(tag, raw)
	if err == nil && lightweight && l.fleet.Spec.Verify == v1alpha1.VerifySignedTags {
		err = fmt.Errorf("tag %s is lightweight, and fleet.yaml wants tags that are signed themselves", tag)
	}
	if err == nil {
		return nil
	}
	return &yamlfile.Problem{
		At: at, Message: err.Error(),
		Hint: fmt.Sprintf("let the owner of a trusted key review it and sign it with: git tag -s -f %s %s^{} && git push -f origin %s",
			tag, tag, tag),
	}
}

// admission records why a commit may be loaded.
type admission struct {
	signer Signer
	branch string        // "" for a commit or tag that the caller chose
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

// admit checks that a commit is signed, and descends from the accepted commit of its branch.
func (r *Repo) admit(ctx context.Context, t *trust, branch string, commit plumbing.Hash) (*admission, error) {
	signer, err := t.commit(commit)
	if err != nil {
		return nil, fmt.Errorf("%w; nothing is changed until the branch is at a commit that a trusted key signed "+
			"(git commit -S), or the key is added to the trusted keys", err)
	}
	a := &admission{signer: signer, branch: branch}
	if branch == "" {
		return a, nil
	}
	seen, kept, err := r.acceptedBefore(ctx)
	if err != nil {
		return nil, err
	}
	a.before = seen.heads[branch]
	a.unkept = r.memory != nil && kept.heads[branch] != commit
	to := plumbing.NewHash(r.acceptRewind)
	a.spent = r.acceptRewind == "" || seen.rewound[to]
	if a.before.IsZero() || a.before == commit {
		return a, nil
	}
	ok, err := t.objects.descends(ctx, commit, a.before)
	if err != nil {
		return nil, fmt.Errorf("can't tell whether commit %s descends from %s, which was accepted before: %w",
			commit.String()[:12], a.before.String()[:12], err)
	}
	if ok {
		return a, nil
	}
	// A rewind that has happened gives no further permission: a replay is another rewind.
	if !a.spent {
		if a.rewind, err = t.objects.descends(ctx, commit, to); a.rewind || err != nil {
			return a, err
		}
	}
	return nil, &rewoundError{branch: branch, commit: commit, before: a.before, signer: signer}
}

// acceptedBefore returns what was accepted, by the cache folder and the memory, and the memory's
// part alone. The memory overrides the cache folder.
func (r *Repo) acceptedBefore(ctx context.Context) (all, kept accepted, err error) {
	if all, err = readAccepted(r.acceptedFile()); err != nil || r.memory == nil {
		return all, kept, err
	}
	k, err := r.memory.read(ctx, memoryHeads)
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

// accept stores the head of a loaded branch. If several processes load different commits at once,
// the first one wins, and the others get errOvertaken.
func (r *Repo) accept(ctx context.Context, a *admission, commit plumbing.Hash) error {
	to := plumbing.NewHash(r.acceptRewind)
	spend := !a.spent && (a.rewind || commit == to)
	if a.branch == "" || a.before == commit && !spend && !a.unkept {
		return nil
	}
	unlock, err := lockedfile.MutexAt(r.acceptedFile() + ".lock").Lock()
	if err != nil {
		return fmt.Errorf("lock the accepted heads: %w", err)
	}
	defer unlock()
	for range memoryPasses {
		seen, _, err := r.acceptedBefore(ctx)
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
		if r.memory == nil {
			return replaceFile(r.acceptedFile(), seen.encode())
		}
		err = r.memory.write(ctx, memoryHeads, seen.encode())
		switch {
		case err == nil:
			return replaceFile(r.acceptedFile(), seen.encode())
		case !errors.Is(err, ErrMemoryChanged):
			return err
		}
	}
	return fmt.Errorf("branch %s: %w, again and again: load it again", a.branch, ErrMemoryChanged)
}

func (r *Repo) acceptedFile() string { return filepath.Join(r.folder, "accepted") }

// branchOf returns the branch that a revision follows; "" for a fixed revision.
func (r *refs) branchOf(rev string) string {
	if rev == "" || rev == "HEAD" {
		return "HEAD"
	}
	if _, ok := r.branches[rev]; ok && !plumbing.IsHash(rev) {
		return rev
	}
	return ""
}

// maxAncestors bounds the number of commits that a walk through the history reads.
const maxAncestors = 1_000_000

// descends reports whether a commit is ancestor or descends from it.
func (o *objects) descends(ctx context.Context, commit, ancestor plumbing.Hash) (bool, error) {
	if commit == ancestor {
		return true, nil
	}
	seen := map[plumbing.Hash]bool{commit: true}
	for todo := []plumbing.Hash{commit}; len(todo) > 0; {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		c, err := o.commit(todo[0])
		if err != nil {
			return false, err
		}
		todo = todo[1:]
		for _, parent := range c.parents {
			if parent == ancestor {
				return true, nil
			}
			if !seen[parent] {
				seen[parent] = true
				todo = append(todo, parent)
			}
		}
		if len(seen) > maxAncestors {
			return false, fmt.Errorf("it has more than %d ancestors", maxAncestors)
		}
	}
	return false, nil
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
