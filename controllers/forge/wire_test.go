package forge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/keelson-io/keelson/controllers/forge"
)

const (
	token = "s3cret-token-of-the-forge"
	sha   = "6dcb09b5b57875f334f61aebed695e2e4193db5e"
)

// exchange is one request as a forge's published API has it, and its answer.
type exchange struct {
	request string            // METHOD PATH?QUERY
	body    string            // JSON; empty: none
	status  int               // 0: 200
	header  map[string]string // of the answer
	answer  string
}

// script is a forge that expects requests one by one, and nothing else.
type script struct {
	t    *testing.T
	auth [2]string // header and value
	url  string

	mu   sync.Mutex
	left []exchange
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := r.Header.Values(s.auth[0]); len(got) != 1 || got[0] != s.auth[1] {
		s.t.Errorf("%s %s: %s is %q", r.Method, r.URL, s.auth[0], got)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	got := r.Method + " " + r.URL.EscapedPath()
	if q := r.URL.Query().Encode(); q != "" {
		got += "?" + q
	}
	if len(s.left) == 0 {
		s.t.Errorf("unexpected: %s", got)
		http.Error(w, "unexpected", http.StatusTeapot)
		return
	}
	e := s.left[0]
	s.left = s.left[1:]
	if got != e.request {
		s.t.Errorf("got  %s\nwant %s", got, e.request)
	}
	s.compare(e, string(body))
	w.Header().Set("Content-Type", "application/json")
	for name, value := range e.header {
		w.Header().Set(name, strings.ReplaceAll(value, "URL", s.url))
	}
	w.WriteHeader(max(e.status, http.StatusOK))
	_, _ = io.WriteString(w, e.answer)
}

func (s *script) compare(e exchange, body string) {
	if e.body == "" {
		if body != "" {
			s.t.Errorf("%s has a body: %s", e.request, body)
		}
		return
	}
	var got, want any
	if err := errors.Join(json.Unmarshal([]byte(body), &got), json.Unmarshal([]byte(e.body), &want)); err != nil {
		s.t.Errorf("%s: %v: %s", e.request, err, body)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("%s (-want +got):\n%s", e.request, diff)
	}
}

// expect opens a forge whose server expects these, all of them.
func expect(t *testing.T, kind, repository string, exchanges ...exchange) forge.Forge {
	t.Helper()
	auth := map[string][2]string{
		forge.Gitea: {"Authorization", "token " + token}, forge.GitHub: {"Authorization", "Bearer " + token}, forge.GitLab: {"Private-Token", token},
	}[kind]
	s := &script{t: t, auth: auth, left: exchanges}
	server := httptest.NewServer(s)
	s.url = server.URL
	t.Cleanup(func() {
		server.Close()
		for _, e := range s.left {
			t.Errorf("not asked: %s", e.request)
		}
	})
	f, err := forge.Open(options(t, kind, repository, server.URL))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func options(t *testing.T, kind, repository, url string) forge.Options {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return forge.Options{
		Kind: kind, URL: url, Repository: repository, TokenFile: file,
		Hide: func(string, ...string) {}, Now: time.Now, Registry: prometheus.NewRegistry(),
	}
}

// asked is everything that can be asked of a forge.
type asked struct {
	Pulls    []forge.PullRequest
	Comments []forge.Comment
	Status   forge.Status
	Reviews  []forge.Review
}

// What is sent to each forge, and what is read from its answers, is as its published
// API says: https://docs.github.com/rest, https://docs.gitlab.com/api and Gitea's
// swagger. The answers are those documents' examples, cut.
func TestWire(t *testing.T) {
	t.Parallel()
	const other = "7638417db6d59f3c431d3e1f261cc637155684cd"
	status := func(s string) string {
		return `{"state": "` + s + `", "context": "keelson/preview", "description": "1 object"}`
	}
	cases := map[string]struct {
		repository string
		exchanges  []exchange
		want       asked
	}{
		forge.GitHub: {
			repository: "octocat/Hello-World",
			exchanges: []exchange{
				{
					request: "GET /api/v3/repos/octocat/Hello-World/pulls?base=main&direction=desc&page=1&per_page=50&sort=updated&state=open",
					header:  map[string]string{"Link": `<URL/api/v3/repositories/1296269/pulls?page=2>; rel="next"`},
					answer:  `[{"number": 1347, "state": "open", "head": {"ref": "topic", "sha": "` + sha + `"}, "base": {"ref": "main", "sha": "` + other + `"}}]`,
				},
				{
					request: "GET /api/v3/repos/octocat/Hello-World/pulls?base=main&direction=desc&page=2&per_page=50&sort=updated&state=open",
					answer:  `[{"number": 9, "head": {"sha": "` + other + `", "repo": null}, "base": {"ref": "main"}}, {"number": 8, "head": {"sha": "x"}, "base": {"ref": "main-2"}}]`,
				},
				{request: "GET /api/v3/user", answer: `{"login": "keelson", "id": 7}`},
				{
					request: "GET /api/v3/repos/octocat/Hello-World/issues/1347/comments?page=1&per_page=50",
					header:  map[string]string{"Link": `<URL/api/v3/repositories/1296269/issues/1347/comments?page=2>; rel="next"`},
					answer:  `[{"id": 1, "body": "Me too", "user": {"login": "octocat", "id": 1}}]`,
				},
				{request: "GET /api/v3/repos/octocat/Hello-World/issues/1347/comments?page=2&per_page=50", answer: `[{"id": 2, "body": "mine", "user": {"login": "keelson", "id": 7}}]`},
				{
					request: "GET /api/v3/repos/octocat/Hello-World/commits/" + sha + "/status?page=1&per_page=50",
					answer:  `{"state": "success", "total_count": 2, "statuses": [{"state": "failure", "context": "ci"}, ` + status("success") + `]}`,
				},
				{
					request: "GET /api/v3/repos/octocat/Hello-World/pulls/1347/reviews?page=1&per_page=50",
					answer: `[{"id": 80, "user": {"login": "octocat"}, "state": "APPROVED", "commit_id": "` + sha + `"}, {"id": 81, "user": {"login": "octocat"}, "state": "COMMENTED", "commit_id": "` + other + `"},
						{"id": 82, "user": {"login": "hubot"}, "state": "APPROVED", "commit_id": "` + sha + `"}, {"id": 83, "user": {"login": "hubot"}, "state": "CHANGES_REQUESTED", "commit_id": "` + other + `"},
						{"id": 84, "user": {"login": "gone"}, "state": "DISMISSED", "commit_id": "` + sha + `"}]`,
				},
				{request: "POST /api/v3/repos/octocat/Hello-World/statuses/" + sha, status: 201, body: status("pending"), answer: status("pending")},
				{request: "POST /api/v3/repos/octocat/Hello-World/issues/1347/comments", status: 201, body: `{"body": "new"}`, answer: `{"id": 3}`},
				{request: "PATCH /api/v3/repos/octocat/Hello-World/issues/comments/3", body: `{"body": "edited"}`, answer: `{"id": 3}`},
				{request: "DELETE /api/v3/repos/octocat/Hello-World/issues/comments/3", status: 204},
			},
			want: asked{
				Pulls:    []forge.PullRequest{{Number: 1347, Head: sha, Ref: "refs/pull/1347/head"}, {Number: 9, Head: other, Ref: "refs/pull/9/head"}},
				Comments: []forge.Comment{{ID: 2, Body: "mine"}},
				Status:   forge.Status{State: forge.Success, Description: "1 object"},
				Reviews:  []forge.Review{{User: "octocat", Approved: true, Head: sha}, {User: "hubot", Head: other}},
			},
		},
		forge.GitLab: {
			repository: "group/sub/fleet",
			exchanges: []exchange{
				{
					request: "GET /api/v4/projects/group%2Fsub%2Ffleet/merge_requests?order_by=updated_at&page=1&per_page=50&sort=desc&state=opened&target_branch=main",
					header:  map[string]string{"X-Next-Page": "2"},
					answer: `[{"id": 1, "iid": 1347, "state": "opened", "target_branch": "main", "source_branch": "topic", "sha": "` + sha + `"},
						{"id": 2, "iid": 1348, "state": "opened", "target_branch": "main", "sha": null}]`,
				},
				{
					request: "GET /api/v4/projects/group%2Fsub%2Ffleet/merge_requests?order_by=updated_at&page=2&per_page=50&sort=desc&state=opened&target_branch=main",
					answer:  `[{"id": 3, "iid": 9, "target_branch": "main", "sha": "` + other + `"}]`,
				},
				{request: "GET /api/v4/user", answer: `{"id": 7, "username": "keelson"}`},
				{
					request: "GET /api/v4/projects/group%2Fsub%2Ffleet/merge_requests/1347/notes?order_by=created_at&page=1&per_page=50&sort=asc",
					answer: `[{"id": 1, "body": "changed the title", "system": true, "author": {"id": 7}}, {"id": 2, "body": "mine", "system": false, "author": {"id": 7}},
						{"id": 3, "body": "another's", "system": false, "author": {"id": 8}}]`,
				},
				{
					request: "GET /api/v4/projects/group%2Fsub%2Ffleet/repository/commits/" + sha + "/statuses?name=keelson%2Fpreview&page=1&per_page=50",
					answer: `[{"id": 90, "status": "pending", "name": "keelson/preview", "description": "old"}, {"id": 93, "status": "success", "name": "keelson/preview", "description": "1 object"},
						{"id": 94, "status": "failed", "name": "rspec"}]`,
				},
				{request: "GET /api/v4/projects/group%2Fsub%2Ffleet/merge_requests/1347/approvals", answer: `{"iid": 1347, "approved": true, "approved_by": [{"user": {"id": 1, "username": "root"}}]}`},
				{
					request: "POST /api/v4/projects/group%2Fsub%2Ffleet/statuses/" + sha, status: 201,
					body: `{"state": "pending", "name": "keelson/preview", "description": "1 object"}`, answer: `{"id": 95, "status": "pending"}`,
				},
				{request: "POST /api/v4/projects/group%2Fsub%2Ffleet/merge_requests/1347/notes", status: 201, body: `{"body": "new"}`, answer: `{"id": 3}`},
				{request: "PUT /api/v4/projects/group%2Fsub%2Ffleet/merge_requests/1347/notes/3", body: `{"body": "edited"}`, answer: `{"id": 3}`},
				{request: "DELETE /api/v4/projects/group%2Fsub%2Ffleet/merge_requests/1347/notes/3", status: 204},
			},
			want: asked{
				Pulls:    []forge.PullRequest{{Number: 1347, Head: sha, Ref: "refs/merge-requests/1347/head"}, {Number: 9, Head: other, Ref: "refs/merge-requests/9/head"}},
				Comments: []forge.Comment{{ID: 2, Body: "mine"}},
				Status:   forge.Status{State: forge.Success, Description: "1 object"},
				Reviews:  []forge.Review{{User: "root", Approved: true}},
			},
		},
		forge.Gitea: { // make forge has a real one
			repository: "platform/fleet",
			exchanges: []exchange{
				{
					request: "GET /api/v1/repos/platform/fleet/pulls?limit=50&page=1&sort=recentupdate&state=open",
					header:  map[string]string{"Link": `<URL/api/v1/repos/platform/fleet/pulls?limit=50&page=2>; rel="next",<URL/api/v1/repos/platform/fleet/pulls?limit=50&page=2>; rel="last"`},
					answer:  `[{"number": 1347, "head": {"ref": "topic", "sha": "` + sha + `"}, "base": {"ref": "main"}}, {"number": 8, "head": {"sha": "x"}, "base": {"ref": "main-2"}}]`,
				},
				{
					request: "GET /api/v1/repos/platform/fleet/pulls?limit=50&page=2&sort=recentupdate&state=open",
					answer:  `[{"number": 9, "head": {"sha": "` + other + `"}, "base": {"ref": "main"}}]`,
				},
				{request: "GET /api/v1/user", answer: `{"id": 7, "login": "keelson"}`},
				{
					request: "GET /api/v1/repos/platform/fleet/issues/1347/comments?limit=0&page=1",
					answer:  `[{"id": 1, "body": "another's", "user": {"id": 8}}, {"id": 2, "body": "mine", "user": {"id": 7}}]`,
				},
				{
					request: "GET /api/v1/repos/platform/fleet/commits/" + sha + "/statuses?limit=50&page=1",
					answer: `[{"id": 4, "status": "success", "context": "keelson/preview", "description": "1 object"}, {"id": 5, "status": "failure", "context": "ci"},
						{"id": 3, "status": "pending", "context": "keelson/preview"}]`,
				},
				{
					request: "GET /api/v1/repos/platform/fleet/pulls/1347/reviews?limit=50&page=1",
					answer: `[{"id": 1, "user": {"login": "anna"}, "state": "APPROVED", "commit_id": "` + sha + `"}, {"id": 2, "user": {"login": "bert"}, "state": "APPROVED", "dismissed": true},
						{"id": 3, "user": {"login": "anna"}, "state": "COMMENT"}]`,
				},
				{
					request: "POST /api/v1/repos/platform/fleet/statuses/" + sha, status: 201,
					body: `{"state": "pending", "context": "keelson/preview", "description": "1 object", "target_url": ""}`, answer: `{"id": 6, "status": "pending"}`,
				},
				{request: "POST /api/v1/repos/platform/fleet/issues/1347/comments", status: 201, body: `{"body": "new"}`, answer: `{"id": 3}`},
				{request: "PATCH /api/v1/repos/platform/fleet/issues/comments/3", body: `{"body": "edited"}`, answer: `{"id": 3}`},
				{request: "DELETE /api/v1/repos/platform/fleet/issues/comments/3", status: 204},
			},
			want: asked{
				Pulls:    []forge.PullRequest{{Number: 1347, Head: sha, Ref: "refs/pull/1347/head"}, {Number: 9, Head: other, Ref: "refs/pull/9/head"}},
				Comments: []forge.Comment{{ID: 2, Body: "mine"}},
				Status:   forge.Status{State: forge.Success, Description: "1 object"},
				Reviews:  []forge.Review{{User: "anna", Approved: true, Head: sha}},
			},
		},
	}
	for kind, c := range cases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f, ctx := expect(t, kind, c.repository, c.exchanges...), t.Context()
			var (
				got  asked
				errs [4]error
			)
			got.Pulls, errs[0] = f.PullRequests(ctx, "main")
			got.Comments, errs[1] = f.Comments(ctx, 1347)
			got.Status, errs[2] = f.Status(ctx, sha)
			got.Reviews, errs[3] = f.Reviews(ctx, 1347)
			if err := errors.Join(errs[:]...); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if err := errors.Join(
				f.SetStatus(ctx, sha, forge.Status{State: forge.Pending, Description: "1 object"}),
				f.SetComment(ctx, 1347, forge.Comment{Body: "new"}),
				f.SetComment(ctx, 1347, forge.Comment{ID: 3, Body: "edited"}),
				f.DeleteComment(ctx, 1347, 3),
			); err != nil {
				t.Error(err)
			}
		})
	}
}

// The pull requests that Keelson has itself, as above. What others have from branches of
// the same name, in forks or into other branches, is none of them.
func TestProposals(t *testing.T) {
	t.Parallel()
	const branch, marked = "keelson/promote/main/web/production", "<!-- x -->"
	cases := map[string]struct {
		repository string
		exchanges  []exchange
		want       []forge.Request // but for Head, Base, Title and Body, which are the same of all
		made       forge.Request
	}{
		forge.GitHub: {
			repository: "octocat/Hello-World",
			exchanges: []exchange{
				{request: "GET /api/v3/user", answer: `{"id": 7, "login": "keelson"}`},
				{
					request: "GET /api/v3/repos/octocat/Hello-World/pulls?base=main&head=octocat%3Akeelson%2Fpromote%2Fmain%2Fweb%2Fproduction&page=1&per_page=50&state=all",
					header:  map[string]string{"Link": `<URL/api/v3/repos/octocat/Hello-World/pulls?page=2>; rel="next"`},
					answer: `[{"number": 9, "state": "open", "user": {"id": 7}, "html_url": "https://x/9", "title": "t", "body": "<!-- x -->", "merged_at": null, "head": {"ref": "` + branch + `", "repo": {"id": 1}}, "base": {"ref": "main", "repo": {"id": 1}}},
						{"number": 8, "state": "open", "head": {"ref": "` + branch + `", "repo": {"id": 2}}, "base": {"ref": "main", "repo": {"id": 1}}},
						{"number": 7, "state": "open", "head": {"ref": "` + branch + `", "repo": null}, "base": {"ref": "main", "repo": {"id": 1}}}]`,
				},
				{
					request: "GET /api/v3/repos/octocat/Hello-World/pulls?base=main&head=octocat%3Akeelson%2Fpromote%2Fmain%2Fweb%2Fproduction&page=2&per_page=50&state=all",
					answer: `[{"number": 5, "state": "closed", "user": {"id": 7}, "html_url": "https://x/5", "title": "t", "body": "<!-- x -->", "merged_at": "2026-01-26T19:01:12Z", "head": {"ref": "` + branch + `", "repo": {"id": 1}}, "base": {"ref": "main", "repo": {"id": 1}}},
						{"number": 6, "state": "closed", "user": {"id": 8}, "html_url": "https://x/6", "title": "t", "body": "<!-- x -->", "merged_at": null, "head": {"ref": "` + branch + `", "repo": {"id": 1}}, "base": {"ref": "main", "repo": {"id": 1}}}]`,
				},
				{
					request: "POST /api/v3/repos/octocat/Hello-World/pulls", status: 201,
					body: `{"title": "t", "body": "<!-- x -->", "head": "` + branch + `", "base": "main"}`, answer: `{"number": 10, "html_url": "https://x/10", "state": "open"}`,
				},
				{request: "PATCH /api/v3/repos/octocat/Hello-World/pulls/10", body: `{"title": "t2", "body": "b2"}`, answer: `{"number": 10}`},
				{request: "PATCH /api/v3/repos/octocat/Hello-World/pulls/10", body: `{"title": "t2", "body": "b3", "state": "closed"}`, answer: `{"number": 10}`},
			},
			want: []forge.Request{{Number: 9, URL: "https://x/9", State: forge.RequestOpen, Own: true}, {Number: 6, URL: "https://x/6", State: forge.RequestClosed}, {Number: 5, URL: "https://x/5", State: forge.RequestMerged, Own: true}},
			made: forge.Request{Number: 10, URL: "https://x/10", State: forge.RequestOpen, Own: true},
		},
		forge.GitLab: {
			repository: "group/sub/fleet",
			exchanges: []exchange{
				{request: "GET /api/v4/user", answer: `{"id": 7, "username": "keelson"}`},
				{
					request: "GET /api/v4/projects/group%2Fsub%2Ffleet/merge_requests?page=1&per_page=50&source_branch=keelson%2Fpromote%2Fmain%2Fweb%2Fproduction&target_branch=main",
					header:  map[string]string{"X-Next-Page": "2"},
					answer: `[{"iid": 5, "state": "merged", "author": {"id": 7}, "web_url": "https://x/5", "title": "t", "description": "<!-- x -->", "source_branch": "` + branch + `", "target_branch": "main", "source_project_id": 1, "target_project_id": 1},
						{"iid": 8, "state": "opened", "source_branch": "` + branch + `", "target_branch": "main", "source_project_id": 2, "target_project_id": 1}]`,
				},
				{
					request: "GET /api/v4/projects/group%2Fsub%2Ffleet/merge_requests?page=2&per_page=50&source_branch=keelson%2Fpromote%2Fmain%2Fweb%2Fproduction&target_branch=main",
					answer: `[{"iid": 9, "state": "locked", "author": {"id": 7}, "web_url": "https://x/9", "title": "t", "description": "<!-- x -->", "source_branch": "` + branch + `", "target_branch": "main", "source_project_id": 1, "target_project_id": 1},
						{"iid": 6, "state": "closed", "author": {"id": 8}, "web_url": "https://x/6", "title": "t", "description": "<!-- x -->", "source_branch": "` + branch + `", "target_branch": "main", "source_project_id": 1, "target_project_id": 1}]`,
				},
				{
					request: "POST /api/v4/projects/group%2Fsub%2Ffleet/merge_requests", status: 201,
					body: `{"title": "t", "description": "<!-- x -->", "source_branch": "` + branch + `", "target_branch": "main"}`, answer: `{"iid": 10, "web_url": "https://x/10", "state": "opened"}`,
				},
				{request: "PUT /api/v4/projects/group%2Fsub%2Ffleet/merge_requests/10", body: `{"title": "t2", "description": "b2"}`, answer: `{"iid": 10}`},
				{request: "PUT /api/v4/projects/group%2Fsub%2Ffleet/merge_requests/10", body: `{"title": "t2", "description": "b3", "state_event": "close"}`, answer: `{"iid": 10}`},
			},
			want: []forge.Request{{Number: 9, URL: "https://x/9", State: forge.RequestOpen, Own: true}, {Number: 6, URL: "https://x/6", State: forge.RequestClosed}, {Number: 5, URL: "https://x/5", State: forge.RequestMerged, Own: true}},
			made: forge.Request{Number: 10, URL: "https://x/10", State: forge.RequestOpen, Own: true},
		},
		forge.Gitea: { // make forge has a real one
			repository: "platform/fleet",
			exchanges: []exchange{
				{request: "GET /api/v1/user", answer: `{"id": 7, "login": "keelson"}`},
				{
					request: "GET /api/v1/repos/platform/fleet/pulls?limit=50&page=1&sort=recentupdate&state=open",
					answer: `[{"number": 9, "state": "open", "user": {"id": 7}, "html_url": "https://x/9", "title": "t", "body": "<!-- x -->", "merged": false, "head": {"label": "` + branch + `", "ref": "` + branch + `", "repo_id": 1}, "base": {"label": "main", "ref": "main", "repo_id": 1}},
						{"number": 8, "state": "open", "head": {"label": "` + branch + `", "ref": "` + branch + `", "repo_id": 2}, "base": {"label": "main", "ref": "main", "repo_id": 1}},
						{"number": 7, "state": "open", "head": {"label": "` + branch + `", "ref": "` + branch + `", "repo_id": 1}, "base": {"label": "next", "ref": "next", "repo_id": 1}},
						{"number": 4, "state": "open", "head": {"label": "topic", "ref": "topic", "repo_id": 1}, "base": {"label": "main", "ref": "main", "repo_id": 1}}]`,
				},
				{
					request: "GET /api/v1/repos/platform/fleet/pulls?limit=50&page=1&sort=recentupdate&state=closed",
					header:  map[string]string{"Link": `<URL/api/v1/repos/platform/fleet/pulls?limit=50&page=2>; rel="next",<URL/api/v1/repos/platform/fleet/pulls?limit=50&page=2>; rel="last"`},
					answer:  `[{"number": 5, "state": "closed", "user": {"id": 7}, "html_url": "https://x/5", "title": "t", "body": "<!-- x -->", "merged": true, "head": {"label": "` + branch + `", "ref": "refs/pull/5/head", "repo_id": 1}, "base": {"label": "main", "ref": "main", "repo_id": 1}}]`,
				},
				{
					request: "GET /api/v1/repos/platform/fleet/pulls?limit=50&page=2&sort=recentupdate&state=closed",
					answer:  `[{"number": 6, "state": "closed", "user": {"id": 8}, "html_url": "https://x/6", "title": "t", "body": "<!-- x -->", "merged": false, "head": {"label": "` + branch + `", "ref": "refs/pull/6/head", "repo_id": 1}, "base": {"label": "main", "ref": "main", "repo_id": 1}}]`,
				},
				{
					request: "POST /api/v1/repos/platform/fleet/pulls", status: 201, answer: `{"number": 10, "html_url": "https://x/10", "state": "open"}`,
					body: `{"title": "t", "body": "<!-- x -->", "head": "` + branch + `", "base": "main", "assignee": "", "assignees": null, "reviewers": null, "team_reviewers": null, "milestone": 0, "labels": null, "due_date": null}`,
				},
				{
					request: "PATCH /api/v1/repos/platform/fleet/pulls/10", status: 201, answer: `{"number": 10}`,
					body: `{"title": "t2", "body": "b2", "base": "", "assignee": "", "assignees": null, "milestone": 0, "labels": null, "state": null, "due_date": null, "unset_due_date": null, "allow_maintainer_edit": null}`,
				},
				{
					request: "PATCH /api/v1/repos/platform/fleet/pulls/10", status: 201, answer: `{"number": 10}`,
					body: `{"title": "t2", "body": "b3", "base": "", "assignee": "", "assignees": null, "milestone": 0, "labels": null, "state": "closed", "due_date": null, "unset_due_date": null, "allow_maintainer_edit": null}`,
				},
			},
			want: []forge.Request{{Number: 9, URL: "https://x/9", State: forge.RequestOpen, Own: true}, {Number: 6, URL: "https://x/6", State: forge.RequestClosed}, {Number: 5, URL: "https://x/5", State: forge.RequestMerged, Own: true}},
			made: forge.Request{Number: 10, URL: "https://x/10", State: forge.RequestOpen, Own: true},
		},
	}
	for kind, c := range cases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f, ctx := expect(t, kind, c.repository, c.exchanges...), t.Context()
			same := func(r forge.Request) forge.Request {
				r.Head, r.Base, r.Title, r.Body = branch, "main", "t", marked
				return r
			}
			for i := range c.want {
				c.want[i] = same(c.want[i])
			}
			got, err := f.Requests(ctx, "main", branch)
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v; -want +got:\n%s", err, diff)
			}
			made, err := f.OpenRequest(ctx, same(forge.Request{}))
			if diff := cmp.Diff(same(c.made), made); err != nil || diff != "" {
				t.Errorf("%v; -want +got:\n%s", err, diff)
			}
			made.Title, made.Body = "t2", "b2"
			if err := f.EditRequest(ctx, made); err != nil {
				t.Error(err)
			}
			made.Body, made.State = "b3", forge.RequestClosed
			if err := f.EditRequest(ctx, made); err != nil {
				t.Error(err)
			}
		})
	}
}

// A forge that limits requests gets none until the time that it names. Calls until then return an
// error at once.
func TestLimits(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	cases := map[string]struct {
		why    string
		status int
		header map[string]string
		lasts  time.Duration // 0: it is asked again at once
	}{
		"GitHubPrimary":   {"The quota of the hour is used up.", 403, map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000600"}, 10 * time.Minute},
		"GitHubSecondary": {"Too many requests came in a short time.", 403, map[string]string{"Retry-After": "30"}, 30 * time.Second},
		"GitLab":          {"Its headers have other names.", 429, map[string]string{"RateLimit-Remaining": "0", "RateLimit-Reset": "1800000060"}, time.Minute},
		"Plain":           {"A proxy in front names no time.", 429, nil, time.Minute},
		"Absurd":          {"A wait of a day is cut to an hour.", 429, map[string]string{"Retry-After": "86400"}, time.Hour},
		"Spent":           {"The answered request was the last one allowed.", 200, map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000005"}, 5 * time.Second},
		"Forbidden":       {"A missing permission of the token is no rate limit.", 403, map[string]string{"X-RateLimit-Remaining": "4999", "X-RateLimit-Reset": "1800000600"}, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked++
				for k, v := range c.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, "[]")
			}))
			defer server.Close()
			o := options(t, forge.GitHub, "a/b", server.URL)
			at := now
			o.Now = func() time.Time { return at }
			f, err := forge.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			ask := func() *forge.LimitedError {
				_, err := f.PullRequests(t.Context(), "main")
				limited, _ := errors.AsType[*forge.LimitedError](err)
				return limited
			}
			_ = ask()
			if limited := ask(); (limited != nil) != (c.lasts > 0) || limited != nil && !limited.Until.Equal(now.Add(c.lasts)) {
				t.Errorf("limited: %v. %s", limited, c.why)
			}
			before := asked
			at = now.Add(c.lasts)
			_ = ask()
			if asked != before+1 {
				t.Errorf("%d requests, want %d: it is not asked when its time has come", asked, before+1)
			}
		})
	}
}

// The token goes to the forge alone, is read again, and what is wrong with it is said
// without it.
func TestToken(t *testing.T) {
	t.Parallel()
	var got string
	stranger := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a stranger was asked, with %q", r.Header.Get("Authorization"))
	}))
	defer stranger.Close()
	redirect := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		if redirect {
			http.Redirect(w, r, stranger.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		_, _ = io.WriteString(w, "[]")
	}))
	defer server.Close()
	for _, kind := range []string{forge.Gitea, forge.GitHub} {
		redirect = false
		o := options(t, kind, "a/b", server.URL)
		f, err := forge.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(o.TokenFile, []byte("another-token"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := f.PullRequests(t.Context(), "main"); err != nil || !strings.HasSuffix(got, " another-token") {
			t.Errorf("%s: %q, %v", kind, got, err)
		}
		redirect = true
		if _, err := f.PullRequests(t.Context(), "main"); err == nil {
			t.Errorf("%s: a redirect to a stranger is followed, or taken for an answer", kind)
		}
		for _, wrong := range []string{"", "two\nlines-of-secret", strings.Repeat("x", 20<<10)} {
			if err := os.WriteFile(o.TokenFile, []byte(wrong), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := f.PullRequests(t.Context(), "main")
			if err == nil || !strings.Contains(err.Error(), "must hold a token") || strings.Contains(err.Error(), "lines-of-secret") {
				t.Errorf("%s: %v", kind, err)
			}
		}
	}
}

// What can't be right is refused before anything is asked.
func TestOpen(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		kind, url, repository, says string
	}{
		"Kind":      {"svn", "https://x.example", "a/b", "gitea, github, gitlab"},
		"NoURL":     {forge.Gitea, "", "a/b", "say its URL"},
		"PlainHTTP": {forge.Gitea, "http://git.example", "a/b", "without encryption"},
		"Login":     {forge.GitHub, "https://me:hunter22@git.example", "a/b", "no login"},
		"Words":     {forge.GitHub, "git.example", "a/b", "https://HOST"},
		"NoOwner":   {forge.GitHub, "", "fleet", "OWNER/NAME"},
		"Groups":    {forge.GitHub, "", "a/b/c", "OWNER/NAME"},
		"Climbs":    {forge.GitLab, "", "a/../b", "OWNER/NAME"},
		"Query":     {forge.GitLab, "", "a/b?x", "OWNER/NAME"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := forge.Open(options(t, c.kind, c.repository, c.url))
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter22") {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
	o := options(t, forge.GitHub, "a/b", "")
	o.TokenFile += "-not-there"
	if _, err := forge.Open(o); err == nil {
		t.Error("there is no token")
	}
}

// An answer without end, and comments without end, are errors: not known is not absent.
func TestEndless(t *testing.T) {
	t.Parallel()
	var serve http.HandlerFunc
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serve(w, r) }))
	defer server.Close()
	f, err := forge.Open(options(t, forge.GitHub, "a/b", server.URL))
	if err != nil {
		t.Fatal(err)
	}
	serve = func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/user") {
			_, _ = io.WriteString(w, `{"id": 7}`)
			return
		}
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?page=99>; rel="next"`, server.URL, r.URL.Path))
		_, _ = io.WriteString(w, `[{"id": 1, "user": {"id": 8}}]`)
	}
	if _, err := f.Comments(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "more than 1000") {
		t.Errorf("endless pages: %v", err)
	}
	serve = func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[{"body": "`)
		for range 40 {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<20)); err != nil {
				return
			}
		}
	}
	if _, err := f.PullRequests(t.Context(), "main"); err == nil || !strings.Contains(err.Error(), "more than 32 MiB") {
		t.Errorf("an endless answer: %v", err)
	}
	serve = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.PullRequests(ctx, "main"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
}
