package forge

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	gitlab "gitlab.com/gitlab-org/api/client-go/v2"
)

// gitlabForge is gitlab.com or a self-hosted GitLab. Its pull requests are merge requests, and its
// comments are notes.
type gitlabForge struct {
	client  *gitlab.Client
	project string
}

// unlimited leaves limits to the transport. Without it, this SDK would request the limits.
type unlimited struct{}

// Wait implements the SDK's limiter.
func (unlimited) Wait(context.Context) error { return nil }

func newGitLab(base *url.URL, client *http.Client, project string) (*gitlabForge, error) {
	// The transport adds the token.
	c, err := gitlab.NewClient("", gitlab.WithBaseURL(base.String()), gitlab.WithHTTPClient(client),
		gitlab.WithoutRetries(), gitlab.WithCustomLimiter(unlimited{}))
	if err != nil {
		return nil, fmt.Errorf("gitlab: %w", err)
	}
	return &gitlabForge{client: c, project: project}, nil
}

func gitlabPage(n int) gitlab.ListOptions {
	return gitlab.ListOptions{Page: int64(n), PerPage: pageSize}
}

// PullRequests implements [Reader].
func (f *gitlabForge) PullRequests(ctx context.Context, branch string) ([]PullRequest, error) {
	var out []PullRequest
	for n := 1; len(out) < most; n++ {
		page, answer, err := f.client.MergeRequests.ListProjectMergeRequests(f.project, &gitlab.ListProjectMergeRequestsOptions{
			ListOptions: gitlabPage(n), State: new("opened"), TargetBranch: &branch, OrderBy: new("updated_at"), Sort: new("desc"),
		}, gitlab.WithContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("read the merge requests: %w", err)
		}
		for _, m := range page {
			if m.TargetBranch == branch && m.SHA != "" { // a new merge request has no commit for a moment
				out = append(out, PullRequest{Number: m.IID, Head: m.SHA, Ref: fmt.Sprintf("refs/merge-requests/%d/head", m.IID)})
			}
		}
		if answer.NextPage == 0 {
			break
		}
	}
	return out[:min(len(out), most)], nil
}

// me returns the ID of the token's account.
func (f *gitlabForge) me(ctx context.Context) (int64, error) {
	me, _, err := f.client.Users.CurrentUser(gitlab.WithContext(ctx))
	if err != nil {
		return 0, fmt.Errorf("ask whose token it is: %w", err)
	}
	return me.ID, nil
}

// Comments implements [Reader].
func (f *gitlabForge) Comments(ctx context.Context, number int64) ([]Comment, error) {
	me, err := f.me(ctx)
	if err != nil {
		return nil, err
	}
	all, err := whole("the notes", func(n int) ([]*gitlab.Note, bool, error) {
		opts := &gitlab.ListMergeRequestNotesOptions{ListOptions: gitlabPage(n)}
		opts.OrderBy, opts.Sort = new("created_at"), new("asc")
		page, answer, err := f.client.Notes.ListMergeRequestNotes(f.project, number, opts, gitlab.WithContext(ctx))
		return page, err == nil && answer.NextPage != 0, err //nolint:wrapcheck // whole does
	})
	if err != nil {
		return nil, err
	}
	var out []Comment
	for _, note := range all {
		if note.Author.ID == me && !note.System {
			out = append(out, Comment{ID: note.ID, Body: note.Body})
		}
	}
	return out, nil
}

// Status implements [Reader].
func (f *gitlabForge) Status(ctx context.Context, revision string) (Status, error) {
	all, err := whole("the commit's statuses", func(n int) ([]*gitlab.CommitStatus, bool, error) {
		page, answer, err := f.client.Commits.GetCommitStatuses(f.project, revision, &gitlab.GetCommitStatusesOptions{
			ListOptions: gitlabPage(n), Name: new(Context),
		}, gitlab.WithContext(ctx))
		return page, err == nil && answer.NextPage != 0, err //nolint:wrapcheck // whole does
	})
	if err != nil {
		return Status{}, err
	}
	var newest *gitlab.CommitStatus
	for _, s := range all {
		if s.Name == Context && (newest == nil || s.ID > newest.ID) {
			newest = s
		}
	}
	if newest == nil {
		return Status{}, nil
	}
	// GitLab has no state for Error: it is written as failed, and failed is read as Failure. So an
	// Error is written again, with the same words.
	state, known := map[string]State{"success": Success, "failed": Failure, "pending": Pending, "running": Pending}[newest.Status]
	if !known {
		state = Error
	}
	return Status{State: state, Description: newest.Description}, nil
}

// Reviews implements [Reader]. GitLab reports approvals only, and not their commits.
func (f *gitlabForge) Reviews(ctx context.Context, number int64) ([]Review, error) {
	approvals, _, err := f.client.MergeRequestApprovals.GetConfiguration(f.project, number, gitlab.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("read the approvals: %w", err)
	}
	var out []Review
	for _, by := range approvals.ApprovedBy {
		if by.User != nil {
			out = append(out, Review{User: by.User.Username, Approved: true})
		}
	}
	return latest(out), nil
}

// SetStatus implements [Writer].
func (f *gitlabForge) SetStatus(ctx context.Context, revision string, s Status) error {
	state, known := map[State]gitlab.BuildStateValue{Pending: gitlab.Pending, Success: gitlab.Success}[s.State]
	if !known {
		state = gitlab.Failed
	}
	_, _, err := f.client.Commits.SetCommitStatus(f.project, revision, &gitlab.SetCommitStatusOptions{
		State: state, Name: new(Context), Description: &s.Description,
	}, gitlab.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("set the commit's status: %w", err)
	}
	return nil
}

// SetComment implements [Writer].
func (f *gitlabForge) SetComment(ctx context.Context, number int64, c Comment) error {
	var err error
	if c.ID == 0 {
		_, _, err = f.client.Notes.CreateMergeRequestNote(f.project, number, &gitlab.CreateMergeRequestNoteOptions{Body: &c.Body}, gitlab.WithContext(ctx))
	} else {
		_, _, err = f.client.Notes.UpdateMergeRequestNote(f.project, number, c.ID, &gitlab.UpdateMergeRequestNoteOptions{Body: &c.Body}, gitlab.WithContext(ctx))
	}
	if err != nil {
		return fmt.Errorf("write the note: %w", err)
	}
	return nil
}

// DeleteComment implements [Writer].
func (f *gitlabForge) DeleteComment(ctx context.Context, number, id int64) error {
	if _, err := f.client.Notes.DeleteMergeRequestNote(f.project, number, id, gitlab.WithContext(ctx)); err != nil {
		return fmt.Errorf("delete a note: %w", err)
	}
	return nil
}

// Requests implements [Proposer].
func (f *gitlabForge) Requests(ctx context.Context, base string, heads ...string) ([]Request, error) {
	me, err := f.me(ctx)
	if err != nil {
		return nil, err
	}
	var out []Request
	for _, head := range heads {
		all, err := whole("the merge requests from "+head, func(n int) ([]*gitlab.BasicMergeRequest, bool, error) {
			page, answer, err := f.client.MergeRequests.ListProjectMergeRequests(f.project, &gitlab.ListProjectMergeRequestsOptions{
				ListOptions: gitlabPage(n), SourceBranch: &head, TargetBranch: &base,
			}, gitlab.WithContext(ctx))
			return page, err == nil && answer.NextPage != 0, err //nolint:wrapcheck // whole does
		})
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			if m.SourceBranch != head || m.TargetBranch != base || m.SourceProjectID != m.TargetProjectID {
				continue
			}
			r := gitlabRequest(m)
			r.Own = m.Author != nil && m.Author.ID == me
			out = append(out, r)
		}
	}
	return newestFirst(out), nil
}

func gitlabRequest(m *gitlab.BasicMergeRequest) Request {
	r := Request{Number: m.IID, URL: m.WebURL, State: RequestOpen, Head: m.SourceBranch, Base: m.TargetBranch, Title: m.Title, Body: m.Description}
	switch m.State { // a locked one is being merged, and counts as open
	case "merged":
		r.State = RequestMerged
	case "closed":
		r.State = RequestClosed
	}
	return r
}

// OpenRequest implements [Proposer].
func (f *gitlabForge) OpenRequest(ctx context.Context, r Request) (Request, error) {
	made, _, err := f.client.MergeRequests.CreateMergeRequest(f.project, &gitlab.CreateMergeRequestOptions{
		SourceBranch: &r.Head, TargetBranch: &r.Base, Title: &r.Title, Description: &r.Body,
	}, gitlab.WithContext(ctx))
	if err != nil {
		return r, fmt.Errorf("open a merge request: %w", err)
	}
	r.Number, r.URL, r.State, r.Own = made.IID, made.WebURL, RequestOpen, true
	return r, nil
}

// EditRequest implements [Proposer].
func (f *gitlabForge) EditRequest(ctx context.Context, r Request) error {
	edit := &gitlab.UpdateMergeRequestOptions{Title: &r.Title, Description: &r.Body}
	if r.State == RequestClosed {
		edit.StateEvent = new("close")
	}
	if _, _, err := f.client.MergeRequests.UpdateMergeRequest(f.project, r.Number, edit, gitlab.WithContext(ctx)); err != nil {
		return fmt.Errorf("change merge request %d: %w", r.Number, err)
	}
	return nil
}
