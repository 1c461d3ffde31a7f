package gitrepo

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"

	"github.com/keelson-io/keelson/registry/naming"
)

// ErrNoRef is wrapped by the error of a fetch of a missing ref.
var ErrNoRef = errors.New("the repository has no such ref")

// FetchProposal is [Repo.Fetch], and also fetches the commit of another ref, such as
// refs/pull/7/head. It returns the full hash of this commit. The ref is not followed and has no
// name afterwards; a later fetch may remove the commit. The error wraps [ErrNoRef], or [ErrTooMuch]
// if the proposal exceeds [Limits].
func (r *Repo) FetchProposal(ctx context.Context, ref string) (string, error) {
	if wrong := naming.CheckRef(ref); wrong != "" {
		return "", fmt.Errorf("fetch %q: %s", ref, wrong)
	}
	h, err := r.fetch(ctx, plumbing.ReferenceName(ref))
	if err != nil {
		return "", err
	}
	return h.String(), nil
}

// localRef returns the hash of a ref of a repository that is read in place.
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

// Branch returns the name of the branch that a revision follows, as of the last [Repo.Fetch]. It
// returns "" for a fixed revision.
func (r *Repo) Branch(rev string) string {
	now := r.Snapshot()
	if branch := now.branchOf(rev); branch != "HEAD" {
		return branch
	}
	return now.headName
}
