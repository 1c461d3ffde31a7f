package forge

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"code.gitea.io/sdk/gitea"
)

// giteaForge is a Gitea or a Forgejo.
type giteaForge struct {
	url, owner, name string
	client           *http.Client
}

// with returns a client for one context: this SDK has no other way.
func (f *giteaForge) with(ctx context.Context) (*gitea.Client, error) {
	// The version is not read from the server: every Forgejo has the API in use.
	c, err := gitea.NewClient(f.url, gitea.SetContext(ctx), gitea.SetHTTPClient(f.client), gitea.SetGiteaVersion(""))
	if err != nil {
		return nil, fmt.Errorf("gitea: %w", err)
	}
	return c, nil
}

func giteaPage(n int) gitea.ListOptions { return gitea.ListOptions{Page: n, PageSize: pageSize} }

// last reports whether a page is the last one. Servers may shorten pages, and then link to the next
// page.
func last(r *gitea.Response) bool { return r == nil || r.NextPage == 0 }

// PullRequests implements [Reader]. Gitea before 1.25 has no filter by branch.
func (f *giteaForge) PullRequests(ctx context.Context, branch string) ([]PullRequest, error) {
	c, err := f.with(ctx)
	if err != nil {
		return nil, err
	}
	var out []PullRequest
	for n := 1; n <= pages && len(out) < most; n++ {
		page, answer, err := c.ListRepoPullRequests(f.owner, f.name, gitea.ListPullRequestsOptions{
			ListOptions: giteaPage(n), State: gitea.StateOpen, Sort: "recentupdate",
		})
		if err != nil {
			return nil, fmt.Errorf("read the pull requests: %w", err)
		}
		for _, p := range page {
			if p.Base != nil && p.Head != nil && p.Base.Ref == branch {
				out = append(out, PullRequest{Number: p.Index, Head: p.Head.Sha, Ref: fmt.Sprintf("refs/pull/%d/head", p.Index)})
			}
		}
		if last(answer) {
			break
		}
	}
	return out[:min(len(out), most)], nil
}

// giteaMe returns the ID of the token's account.
func giteaMe(c *gitea.Client) (int64, error) {
	me, _, err := c.GetMyUserInfo()
	if err != nil {
		return 0, fmt.Errorf("ask whose token it is: %w", err)
	}
	return me.ID, nil
}

// Comments implements [Reader].
func (f *giteaForge) Comments(ctx context.Context, number int64) ([]Comment, error) {
	c, err := f.with(ctx)
	if err != nil {
		return nil, err
	}
	me, err := giteaMe(c)
	if err != nil {
		return nil, err
	}
	// Gitea returns all comments at once, without pages.
	all, _, err := c.ListIssueComments(f.owner, f.name, number, gitea.ListIssueCommentOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the comments: %w", err)
	}
	var out []Comment
	for _, one := range all {
		if one.Poster != nil && one.Poster.ID == me {
			out = append(out, Comment{ID: one.ID, Body: one.Body})
		}
	}
	return out, nil
}

// Status implements [Reader].
func (f *giteaForge) Status(ctx context.Context, revision string) (Status, error) {
	c, err := f.with(ctx)
	if err != nil {
		return Status{}, err
	}
	all, err := whole("the commit's statuses", func(n int) ([]*gitea.Status, bool, error) {
		page, answer, err := c.ListStatuses(f.owner, f.name, revision, gitea.ListStatusesOption{ListOptions: giteaPage(n)})
		return page, !last(answer), err //nolint:wrapcheck // whole does
	})
	if err != nil {
		return Status{}, err
	}
	all = slices.DeleteFunc(all, func(s *gitea.Status) bool { return s.Context != Context })
	if len(all) == 0 {
		return Status{}, nil
	}
	// This SDK can't set the order of a request.
	newest := slices.MaxFunc(all, func(a, b *gitea.Status) int { return int(a.ID - b.ID) })
	return Status{State: State(newest.State), Description: newest.Description}, nil
}

// Reviews implements [Reader].
func (f *giteaForge) Reviews(ctx context.Context, number int64) ([]Review, error) {
	c, err := f.with(ctx)
	if err != nil {
		return nil, err
	}
	all, err := whole("the reviews", func(n int) ([]*gitea.PullReview, bool, error) {
		page, answer, err := c.ListPullReviews(f.owner, f.name, number, gitea.ListPullReviewsOptions{ListOptions: giteaPage(n)})
		return page, !last(answer), err //nolint:wrapcheck // whole does
	})
	if err != nil {
		return nil, err
	}
	var out []Review
	for _, r := range all {
		if r.Reviewer == nil || r.Dismissed || r.State != gitea.ReviewStateApproved && r.State != gitea.ReviewStateRequestChanges {
			continue
		}
		out = append(out, Review{User: r.Reviewer.UserName, Approved: r.State == gitea.ReviewStateApproved, Head: r.CommitID})
	}
	return latest(out), nil
}

// SetStatus implements [Writer].
func (f *giteaForge) SetStatus(ctx context.Context, revision string, s Status) error {
	c, err := f.with(ctx)
	if err != nil {
		return err
	}
	_, _, err = c.CreateStatus(f.owner, f.name, revision, gitea.CreateStatusOption{
		State: gitea.StatusState(s.State), Description: s.Description, Context: Context,
	})
	if err != nil {
		return fmt.Errorf("set the commit's status: %w", err)
	}
	return nil
}

// SetComment implements [Writer].
func (f *giteaForge) SetComment(ctx context.Context, number int64, comment Comment) error {
	c, err := f.with(ctx)
	if err != nil {
		return err
	}
	if comment.ID == 0 {
		_, _, err = c.CreateIssueComment(f.owner, f.name, number, gitea.CreateIssueCommentOption{Body: comment.Body})
	} else {
		_, _, err = c.EditIssueComment(f.owner, f.name, comment.ID, gitea.EditIssueCommentOption{Body: comment.Body})
	}
	if err != nil {
		return fmt.Errorf("write the comment: %w", err)
	}
	return nil
}

// DeleteComment implements [Writer].
func (f *giteaForge) DeleteComment(ctx context.Context, _, id int64) error {
	c, err := f.with(ctx)
	if err != nil {
		return err
	}
	if _, err := c.DeleteIssueComment(f.owner, f.name, id); err != nil {
		return fmt.Errorf("delete a comment: %w", err)
	}
	return nil
}

// Requests implements [Proposer].
func (f *giteaForge) Requests(ctx context.Context, base string, heads ...string) ([]Request, error) {
	c, err := f.with(ctx)
	if err != nil {
		return nil, err
	}
	me, err := giteaMe(c)
	if err != nil {
		return nil, err
	}
	list := func(state gitea.StateType) func(int) ([]*gitea.PullRequest, bool, error) {
		return func(n int) ([]*gitea.PullRequest, bool, error) {
			page, answer, err := c.ListRepoPullRequests(f.owner, f.name, gitea.ListPullRequestsOptions{ListOptions: giteaPage(n), State: state, Sort: "recentupdate"})
			return page, !last(answer) && (state == gitea.StateOpen || n < pages), err //nolint:wrapcheck // whole does
		}
	}
	open, err := whole("the open pull requests", list(gitea.StateOpen))
	if err != nil {
		return nil, err
	}
	closed, err := whole("the closed pull requests", list(gitea.StateClosed))
	if err != nil {
		return nil, err
	}
	var out []Request
	for _, p := range slices.Concat(open, closed) {
		// Ref is not the name of the branch after the branch was deleted.
		if p.Base == nil || p.Head == nil || p.Base.RepoID != p.Head.RepoID || p.Base.Name != base || !slices.Contains(heads, p.Head.Name) {
			continue
		}
		r := giteaRequest(p)
		r.Own = p.Poster != nil && p.Poster.ID == me
		out = append(out, r)
	}
	return newestFirst(out), nil
}

func giteaRequest(p *gitea.PullRequest) Request {
	r := Request{Number: p.Index, URL: p.HTMLURL, State: RequestOpen, Head: p.Head.Name, Base: p.Base.Name, Title: p.Title, Body: p.Body}
	switch {
	case p.HasMerged:
		r.State = RequestMerged
	case p.State != gitea.StateOpen:
		r.State = RequestClosed
	}
	return r
}

// OpenRequest implements [Proposer].
func (f *giteaForge) OpenRequest(ctx context.Context, r Request) (Request, error) {
	c, err := f.with(ctx)
	if err != nil {
		return r, err
	}
	made, _, err := c.CreatePullRequest(f.owner, f.name, gitea.CreatePullRequestOption{Head: r.Head, Base: r.Base, Title: r.Title, Body: r.Body})
	if err != nil {
		return r, fmt.Errorf("open a pull request: %w", err)
	}
	r.Number, r.URL, r.State, r.Own = made.Index, made.HTMLURL, RequestOpen, true
	return r, nil
}

// EditRequest implements [Proposer].
func (f *giteaForge) EditRequest(ctx context.Context, r Request) error {
	c, err := f.with(ctx)
	if err != nil {
		return err
	}
	edit := gitea.EditPullRequestOption{Title: r.Title, Body: &r.Body}
	if r.State == RequestClosed {
		edit.State = new(gitea.StateClosed)
	}
	if _, _, err := c.EditPullRequest(f.owner, f.name, r.Number, edit); err != nil {
		return fmt.Errorf("change pull request %d: %w", r.Number, err)
	}
	return nil
}
