package forge

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/google/go-github/v92/github"
)

// githubForge is github.com or a GitHub Enterprise Server.
type githubForge struct {
	client      *github.Client
	owner, name string
}

func newGitHub(base *url.URL, client *http.Client, owner, name string) (*githubForge, error) {
	// The transport obeys rate limits; the SDK would check them a second time.
	c, err := github.NewClient(github.WithHTTPClient(client), github.WithEnterpriseURLs(base.String()+"/", base.String()+"/"),
		github.WithDisableRateLimitCheck())
	if err != nil {
		return nil, fmt.Errorf("github: %w", err)
	}
	return &githubForge{client: c, owner: owner, name: name}, nil
}

func githubPage(n int) github.ListOptions { return github.ListOptions{Page: n, PerPage: pageSize} }

// PullRequests implements [Reader].
func (f *githubForge) PullRequests(ctx context.Context, branch string) ([]PullRequest, error) {
	var out []PullRequest
	for n := 1; len(out) < most; n++ {
		page, answer, err := f.client.PullRequests.List(ctx, f.owner, f.name, &github.PullRequestListOptions{
			State: "open", Base: branch, Sort: "updated", Direction: "desc", ListOptions: githubPage(n),
		})
		if err != nil {
			return nil, fmt.Errorf("read the pull requests: %w", err)
		}
		for _, p := range page {
			if p.GetBase().GetRef() == branch {
				number := int64(p.GetNumber())
				out = append(out, PullRequest{Number: number, Head: p.GetHead().GetSHA(), Ref: fmt.Sprintf("refs/pull/%d/head", number)})
			}
		}
		if answer.NextPage == 0 {
			break
		}
	}
	return out[:min(len(out), most)], nil
}

// me returns the ID of the token's account.
func (f *githubForge) me(ctx context.Context) (int64, error) {
	me, _, err := f.client.Users.Get(ctx, "")
	if err != nil {
		return 0, fmt.Errorf("ask whose token it is: %w", err)
	}
	return me.GetID(), nil
}

// Comments implements [Reader].
func (f *githubForge) Comments(ctx context.Context, number int64) ([]Comment, error) {
	me, err := f.me(ctx)
	if err != nil {
		return nil, err
	}
	all, err := whole("the comments", func(n int) ([]*github.IssueComment, bool, error) {
		page, answer, err := f.client.Issues.ListComments(ctx, f.owner, f.name, int(number), &github.IssueListCommentsOptions{ListOptions: githubPage(n)})
		return page, err == nil && answer.NextPage != 0, err //nolint:wrapcheck // whole does
	})
	if err != nil {
		return nil, err
	}
	var out []Comment
	for _, one := range all {
		if one.GetUser().GetID() == me {
			out = append(out, Comment{ID: one.GetID(), Body: one.GetBody()})
		}
	}
	return out, nil
}

// Status implements [Reader].
func (f *githubForge) Status(ctx context.Context, revision string) (Status, error) {
	all, err := whole("the commit's statuses", func(n int) ([]*github.RepoStatus, bool, error) {
		opts := githubPage(n)
		combined, answer, err := f.client.Repositories.GetCombinedStatus(ctx, f.owner, f.name, revision, &opts)
		if err != nil {
			return nil, false, err //nolint:wrapcheck // whole does
		}
		return combined.Statuses, answer.NextPage != 0, nil
	})
	if err != nil {
		return Status{}, err
	}
	for _, s := range all { // it has the last status of each context
		if s.GetContext() == Context {
			return Status{State: State(s.GetState()), Description: s.GetDescription()}, nil
		}
	}
	return Status{}, nil
}

// Reviews implements [Reader].
func (f *githubForge) Reviews(ctx context.Context, number int64) ([]Review, error) {
	all, err := whole("the reviews", func(n int) ([]*github.PullRequestReview, bool, error) {
		opts := githubPage(n)
		page, answer, err := f.client.PullRequests.ListReviews(ctx, f.owner, f.name, int(number), &opts)
		return page, err == nil && answer.NextPage != 0, err //nolint:wrapcheck // whole does
	})
	if err != nil {
		return nil, err
	}
	var out []Review
	for _, r := range all {
		// A dismissed review has another state.
		if s := r.GetState(); s == "APPROVED" || s == "CHANGES_REQUESTED" {
			out = append(out, Review{User: r.GetUser().GetLogin(), Approved: s == "APPROVED", Head: r.GetCommitID()})
		}
	}
	return latest(out), nil
}

// SetStatus implements [Writer].
func (f *githubForge) SetStatus(ctx context.Context, revision string, s Status) error {
	_, _, err := f.client.Repositories.CreateStatus(ctx, f.owner, f.name, revision, github.RepoStatus{
		State: new(string(s.State)), Description: &s.Description, Context: new(Context),
	})
	if err != nil {
		return fmt.Errorf("set the commit's status: %w", err)
	}
	return nil
}

// SetComment implements [Writer].
func (f *githubForge) SetComment(ctx context.Context, number int64, c Comment) error {
	var err error
	body := github.IssueCommentRequest{Body: c.Body}
	if c.ID == 0 {
		_, _, err = f.client.Issues.CreateComment(ctx, f.owner, f.name, int(number), body)
	} else {
		_, _, err = f.client.Issues.UpdateComment(ctx, f.owner, f.name, c.ID, body)
	}
	if err != nil {
		return fmt.Errorf("write the comment: %w", err)
	}
	return nil
}

// DeleteComment implements [Writer].
func (f *githubForge) DeleteComment(ctx context.Context, _, id int64) error {
	if _, err := f.client.Issues.DeleteComment(ctx, f.owner, f.name, id); err != nil {
		return fmt.Errorf("delete a comment: %w", err)
	}
	return nil
}

// Requests implements [Proposer].
func (f *githubForge) Requests(ctx context.Context, base string, heads ...string) ([]Request, error) {
	me, err := f.me(ctx)
	if err != nil {
		return nil, err
	}
	var out []Request
	for _, head := range heads {
		all, err := whole("the pull requests from "+head, func(n int) ([]*github.PullRequest, bool, error) {
			page, answer, err := f.client.PullRequests.List(ctx, f.owner, f.name, &github.PullRequestListOptions{
				State: "all", Head: f.owner + ":" + head, Base: base, ListOptions: githubPage(n),
			})
			return page, err == nil && answer.NextPage != 0, err //nolint:wrapcheck // whole does
		})
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			// A fork of the same owner has another repository; a deleted fork has none.
			if p.GetHead().GetRef() != head || p.GetBase().GetRef() != base || p.GetHead().GetRepo().GetID() != p.GetBase().GetRepo().GetID() {
				continue
			}
			r := githubRequest(p)
			r.Own = p.GetUser().GetID() == me
			out = append(out, r)
		}
	}
	return newestFirst(out), nil
}

func githubRequest(p *github.PullRequest) Request {
	r := Request{
		Number: int64(p.GetNumber()), URL: p.GetHTMLURL(), State: RequestOpen, Head: p.GetHead().GetRef(), Base: p.GetBase().GetRef(), Title: p.GetTitle(), Body: p.GetBody(),
	}
	switch {
	case p.MergedAt != nil:
		r.State = RequestMerged
	case p.GetState() != "open":
		r.State = RequestClosed
	}
	return r
}

// OpenRequest implements [Proposer].
func (f *githubForge) OpenRequest(ctx context.Context, r Request) (Request, error) {
	made, _, err := f.client.PullRequests.Create(ctx, f.owner, f.name, github.CreatePullRequest{Head: r.Head, Base: r.Base, Title: &r.Title, Body: &r.Body})
	if err != nil {
		return r, fmt.Errorf("open a pull request: %w", err)
	}
	r.Number, r.URL, r.State, r.Own = int64(made.GetNumber()), made.GetHTMLURL(), RequestOpen, true
	return r, nil
}

// EditRequest implements [Proposer].
func (f *githubForge) EditRequest(ctx context.Context, r Request) error {
	edit := &github.PullRequest{Title: &r.Title, Body: &r.Body}
	if r.State == RequestClosed {
		edit.State = new("closed")
	}
	if _, _, err := f.client.PullRequests.Edit(ctx, f.owner, f.name, int(r.Number), edit); err != nil {
		return fmt.Errorf("change pull request %d: %w", r.Number, err)
	}
	return nil
}
