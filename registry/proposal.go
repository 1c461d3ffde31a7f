package registry

import (
	"container/heap"
	"context"
	"errors"
	"fmt"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
)

var (
	// ErrNoRef is wrapped by the error of a fetch of a ref that is not there.
	ErrNoRef = errors.New("the repository has no such ref")
	// ErrUnrelated is wrapped by the error of two commits without a common one.
	ErrUnrelated = errors.New("they have no commit in common")
)

// FetchProposal is [Repo.Fetch], and fetches the commit that another ref names, such
// as refs/pull/7/head, whose hash it returns. The ref is not followed, and found by
// no name afterwards; the commit may be gone after a later fetch. The error wraps
// [ErrNoRef], or [ErrTooMuch] when it is larger than [Limits] allow.
func (r *Repo) FetchProposal(ctx context.Context, ref string) (string, error) {
	if wrong := checkRef(ref); wrong != "" {
		return "", fmt.Errorf("fetch %q: %s", ref, wrong)
	}
	h, err := r.fetch(ctx, plumbing.ReferenceName(ref))
	if err != nil {
		return "", err
	}
	return h.String(), nil
}

// localRef is what a ref names of a repository that is read in place.
func (r *Repo) localRef(ref plumbing.ReferenceName) (plumbing.Hash, error) {
	repo, err := git.PlainOpenWithOptions(r.location.path, &git.PlainOpenOptions{EnableDotGitCommonDir: true})
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("open %s: %w", r.location.shown(), err)
	}
	found, err := repo.Storer.Reference(ref)
	switch {
	case errors.Is(err, plumbing.ErrReferenceNotFound):
		return plumbing.ZeroHash, fmt.Errorf("fetch %s: %w: %s", r.location.shown(), ErrNoRef, ref)
	case err != nil:
		return plumbing.ZeroHash, fmt.Errorf("fetch %s: read %s: %w", r.location.shown(), ref, err)
	}
	return found.Hash(), nil
}

// Branch returns the name of the branch that a revision follows, as of the last
// [Repo.Fetch]; "" for one that does not move by itself.
func (r *Repo) Branch(rev string) string {
	now := r.current()
	if branch := now.branchOf(rev); branch != "HEAD" {
		return branch
	}
	return now.headName
}

// MergeBase returns the commit that two others, full hashes, have in common and
// that no other such commit descends from; of several, one. The error wraps
// [ErrUnrelated] when there is none.
func (r *Repo) MergeBase(ctx context.Context, a, b string) (string, error) {
	h, err := r.current().objects.mergeBase(ctx, plumbing.NewHash(a), plumbing.NewHash(b))
	if err != nil {
		return "", fmt.Errorf("%s: find where %.12s and %.12s part: %w", r.location.shown(), a, b, err)
	}
	return h.String(), nil
}

// Of a commit during [objects.mergeBase].
const (
	ofA    = 1 << iota // it is reached from a
	ofB                // from b
	behind             // a common commit descends from it
	common = ofA | ofB
)

// mergeBase walks from both commits, the youngest first, as git does: what both
// walks reach is common, and what only lies behind common commits is not looked at.
func (o *objects) mergeBase(ctx context.Context, a, b plumbing.Hash) (plumbing.Hash, error) {
	w := &walk{objects: o, marks: map[plumbing.Hash]int{}, queued: map[plumbing.Hash]bool{}}
	if err := errors.Join(w.mark(a, ofA), w.mark(b, ofB)); err != nil {
		return plumbing.ZeroHash, err
	}
	var found []plumbing.Hash
	for w.undecided(len(found)) {
		if err := ctx.Err(); err != nil {
			return plumbing.ZeroHash, err
		}
		if len(w.marks) > maxAncestors {
			return plumbing.ZeroHash, fmt.Errorf("they have more than %d ancestors", maxAncestors)
		}
		next, with := w.next()
		if with&common == common {
			if with&behind == 0 {
				found = append(found, next.hash)
			}
			with |= behind
		}
		for _, parent := range next.parents {
			if err := w.mark(parent, with); err != nil {
				return plumbing.ZeroHash, err
			}
		}
	}
	for _, h := range found {
		if w.marks[h]&behind == 0 {
			return h, nil
		}
	}
	return plumbing.ZeroHash, ErrUnrelated
}

// walk goes from commits to their parents.
type walk struct {
	objects *objects
	marks   map[plumbing.Hash]int
	queue   youngest
	queued  map[plumbing.Hash]bool
	ahead   int // in the queue, and not behind
}

// undecided says whether a commit may be yet to be found, or to be ruled out:
// dates may lie, and of several that were found one be behind another by a way that
// was left because nothing on it was ahead.
func (w *walk) undecided(found int) bool {
	return w.ahead > 0 || found > 1 && w.queue.Len() > 0
}

// mark adds to what is known of a commit, and queues it if that is new.
func (w *walk) mark(h plumbing.Hash, with int) error {
	had := w.marks[h]
	if had|with == had {
		return nil
	}
	w.marks[h] = had | with
	if w.queued[h] { // its turn is still to come
		if had&behind == 0 && with&behind != 0 {
			w.ahead--
		}
		return nil
	}
	c, err := w.objects.commit(h)
	if err != nil {
		return err
	}
	heap.Push(&w.queue, datedCommit{h, c})
	w.queued[h] = true
	if w.marks[h]&behind == 0 {
		w.ahead++
	}
	return nil
}

// next takes the youngest commit out of the queue.
func (w *walk) next() (c datedCommit, marks int) {
	c, _ = heap.Pop(&w.queue).(datedCommit) // it holds nothing else
	delete(w.queued, c.hash)
	if marks = w.marks[c.hash]; marks&behind == 0 {
		w.ahead--
	}
	return c, marks
}

type datedCommit struct {
	hash plumbing.Hash
	commitObject
}

// youngest is a heap of commits.
type youngest []datedCommit

func (y youngest) Len() int           { return len(y) }
func (y youngest) Less(i, j int) bool { return y[i].committed.After(y[j].committed) }
func (y youngest) Swap(i, j int)      { y[i], y[j] = y[j], y[i] }

// Push implements [heap.Interface].
func (y *youngest) Push(x any) {
	if c, ok := x.(datedCommit); ok {
		*y = append(*y, c)
	}
}

// Pop implements [heap.Interface].
func (y *youngest) Pop() any {
	last := (*y)[len(*y)-1]
	*y = (*y)[:len(*y)-1]
	return last
}
