package gitrepo

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/go-git/go-git/v5/plumbing"
)

// Merged reports whether the commit of a tag is the given commit, a full hash, or one of its
// ancestors. It returns an error if this can't be known: there is no such tag, or commits are
// missing, as in a shallow clone.
func (r *Repo) Merged(ctx context.Context, commit, tag string) (bool, error) {
	now := r.Snapshot()
	tagged, err := now.CommitOf(tag)
	if err != nil {
		return false, fmt.Errorf("%s: read tag %s: %w", r.location.shown(), tag, err)
	}
	merged, err := r.history.has(ctx, now.objects, plumbing.NewHash(commit), tagged)
	if err != nil {
		return false, fmt.Errorf("%s: look for the commit of %s in the past of %.12s: %w", r.location.shown(), tag, commit, err)
	}
	return merged, nil
}

// history is the set of a commit and its ancestors. When the branch moves on, only the new commits
// are read. A fleet asks at each commit, and for tags that are never merged, each question would
// read the whole past.
type history struct {
	mu   sync.Mutex
	head plumbing.Hash
	all  map[plumbing.Hash]struct{}
}

// has reports whether a commit is the head or an ancestor of the head.
func (h *history) has(ctx context.Context, o *objects, head, commit plumbing.Hash) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.head != head {
		if err := h.move(ctx, o, head); err != nil {
			return false, err
		}
	}
	_, ok := h.all[commit]
	return ok, nil
}

// move changes the head. After an error the head is unchanged. If the new head does not descend
// from it, the set is then empty.
func (h *history) move(ctx context.Context, o *objects, head plumbing.Hash) error {
	added, descends, err := o.past(ctx, head, h.head, h.all)
	if err == nil && !descends { // the branch was rewound, or it is another branch
		h.all = nil
		added, _, err = o.past(ctx, head, plumbing.ZeroHash, nil)
	}
	if err != nil {
		return err
	}
	if h.all == nil {
		h.all = added
	} else {
		maps.Copy(h.all, added)
	}
	h.head = head
	return nil
}

// past returns a commit and its ancestors, without the commits in known. known holds knownHead and
// its ancestors. descends reports whether the commit descends from knownHead.
func (o *objects) past(ctx context.Context, commit, knownHead plumbing.Hash, known map[plumbing.Hash]struct{}) (added map[plumbing.Hash]struct{}, descends bool, err error) {
	added = map[plumbing.Hash]struct{}{}
	for todo := []plumbing.Hash{commit}; len(todo) > 0; {
		next := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if _, is := known[next]; is {
			descends = descends || next == knownHead
			continue
		}
		if _, is := added[next]; is {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		c, err := o.commit(next)
		if err != nil {
			return nil, false, err
		}
		added[next] = struct{}{}
		if len(added) > maxAncestors {
			return nil, false, fmt.Errorf("it has more than %d ancestors", maxAncestors)
		}
		todo = append(todo, c.parents...)
	}
	return added, descends, nil
}
