package gitrepo

import (
	"container/heap"
	"context"
	"errors"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing"
)

// ErrUnrelated is wrapped by the error for two commits without a common ancestor.
var ErrUnrelated = errors.New("they have no commit in common")

// MergeBase returns a best common ancestor of two commits, given as full hashes: no other common
// ancestor descends from it. If there are several, it returns one of them. The error wraps
// [ErrUnrelated] if there is none.
func (r *Repo) MergeBase(ctx context.Context, a, b string) (string, error) {
	h, err := r.Snapshot().objects.mergeBase(ctx, plumbing.NewHash(a), plumbing.NewHash(b))
	if err != nil {
		return "", fmt.Errorf("%s: find where %.12s and %.12s part: %w", r.location.shown(), a, b, err)
	}
	return h.String(), nil
}

// Marks of a commit during [objects.mergeBase].
const (
	ofA    = 1 << iota // reached from a
	ofB                // reached from b
	behind             // a common commit descends from it
	common = ofA | ofB
)

// mergeBase walks from both commits, the youngest first, like git. Commits that both walks reach
// are common. Commits that are only behind common commits are skipped.
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

// walk walks from commits to their parents.
type walk struct {
	objects *objects
	marks   map[plumbing.Hash]int
	queue   youngest
	queued  map[plumbing.Hash]bool
	ahead   int // the number of queued commits that are not behind
}

// undecided reports whether a commit may still be found or ruled out. Dates may be wrong. One of
// several found commits may be behind another, along a path that was left because nothing on it was
// ahead.
func (w *walk) undecided(found int) bool {
	return w.ahead > 0 || found > 1 && w.queue.Len() > 0
}

// mark adds marks to a commit, and queues the commit if a mark is new.
func (w *walk) mark(h plumbing.Hash, with int) error {
	had := w.marks[h]
	if had|with == had {
		return nil
	}
	w.marks[h] = had | with
	if w.queued[h] { // it is still queued
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

// next removes the youngest commit from the queue.
func (w *walk) next() (c datedCommit, marks int) {
	c, _ = heap.Pop(&w.queue).(datedCommit) // the heap holds no other type
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

// youngest is a heap of commits, the youngest first.
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
