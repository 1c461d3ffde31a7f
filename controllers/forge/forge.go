// Package forge puts previews on pull requests: one comment, which is kept up to date, and a commit
// status. It also gives Keelson access to a forge for its own pull requests ([Proposer]).
//
// Any author may open a pull request. Its content is rendered in the sandbox of all charts, without
// keys. Text from it is only in code spans and blocks. A pull request that can't be previewed does
// not block the rest. A forge that does not answer changes nothing.
package forge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// Context is the name of the commit status.
	Context = "keelson/preview"
	// descriptionSize is the longest description that GitHub accepts, in characters.
	descriptionSize = 140
	// most bounds the pull requests that get a preview: those that changed last.
	most = 100
	// pages bounds the pages of comments or statuses. More pages are an error; an incomplete list
	// proves no absence.
	pages = 20
	// pageSize is the largest page size that all forges have.
	pageSize = 50
)

// PullRequest is an open pull request.
type PullRequest struct {
	Number int64
	// Head is the full hash of the commit to be merged. Ref is where it can be fetched, also if it
	// comes from a fork.
	Head, Ref string
}

// State of a status, as GitHub names it.
type State string

// The states.
const (
	Pending State = "pending"
	Success State = "success"
	// Failure means that the change is wrong.
	Failure State = "failure"
	// Error means that the effect of the change could not be determined.
	Error State = "error"
)

// Status of a commit. The zero Status means that there is none.
type Status struct {
	State       State
	Description string // one line
}

// Comment on a pull request by Keelson's account.
type Comment struct {
	ID   int64 // 0: a new comment
	Body string
}

// Review is the last review of one person on a pull request.
type Review struct {
	User     string
	Approved bool
	// Head is the reviewed commit; empty: the forge does not name it.
	Head string
}

// Reader reads from a forge. An error means that nothing is known.
type Reader interface {
	// PullRequests returns the open pull requests into a branch, the last changed first, at most a
	// hundred.
	PullRequests(ctx context.Context, branch string) ([]PullRequest, error)
	// Comments returns the comments of this account, the oldest first.
	Comments(ctx context.Context, number int64) ([]Comment, error)
	// Status returns the last status under [Context].
	Status(ctx context.Context, revision string) (Status, error)
	// Reviews returns the reviews that count now: the last approval or refusal of each person,
	// without dismissed reviews.
	Reviews(ctx context.Context, number int64) ([]Review, error)
}

// Writer writes to a forge.
type Writer interface {
	SetStatus(ctx context.Context, revision string, s Status) error
	// SetComment creates or changes a comment.
	SetComment(ctx context.Context, number int64, c Comment) error
	DeleteComment(ctx context.Context, number, id int64) error
}

// Request is a pull request from one branch of the repository to another.
type Request struct {
	Number      int64
	URL         string // for people
	State       RequestState
	Head, Base  string // branches
	Title, Body string
	Own         bool // this account opened it
}

// RequestState is the state of a pull request.
type RequestState string

// The states.
const (
	RequestOpen   RequestState = "open"
	RequestMerged RequestState = "merged"
	RequestClosed RequestState = "closed" // and not merged
)

// Proposer manages Keelson's own pull requests. An error means that nothing is known.
type Proposer interface {
	// Requests returns the pull requests from some branches of the repository into another, in any
	// state, the newest first. Gitea has no filter for this. There, only the thousand closed
	// requests that changed last are searched.
	Requests(ctx context.Context, base string, heads ...string) ([]Request, error)
	// OpenRequest opens a request with Head, Base, Title and Body, and returns it.
	OpenRequest(ctx context.Context, r Request) (Request, error)
	// EditRequest writes Title and Body. It closes a request whose State is [RequestClosed].
	EditRequest(ctx context.Context, r Request) error
}

// Forge is the forge of one repository's pull requests.
type Forge interface {
	Reader
	Writer
	Proposer
}

// Options locate a repository's pull requests. All but URL and Wrap are required.
type Options struct {
	// Kind is one of [Kinds].
	Kind string
	// URL of the forge; empty: github.com, gitlab.com.
	URL string
	// Repository is OWNER/NAME, on GitLab GROUP/…/NAME.
	Repository string
	// TokenFile holds an API token. It is read for each request.
	TokenFile string
	// Hide is called with the token before it is used.
	Hide func(owner string, secrets ...string)
	// Wrap wraps the connection; nil: no wrapper.
	Wrap     func(http.RoundTripper) http.RoundTripper
	Now      func() time.Time
	Registry prometheus.Registerer
}

// The supported forges. Forgejo has Gitea's API.
const (
	Gitea  = "gitea"
	GitHub = "github"
	GitLab = "gitlab"
)

// Kinds returns the supported forges.
func Kinds() []string { return []string{Gitea, GitHub, GitLab} }

// Open prepares access to a forge; it makes no call. It fails for wrong options.
func Open(o Options) (Forge, error) {
	if !slices.Contains(Kinds(), o.Kind) {
		return nil, fmt.Errorf("there is no forge %q, but %s", o.Kind, strings.Join(Kinds(), ", "))
	}
	owner, name, err := splitRepository(o.Kind, o.Repository)
	if err != nil {
		return nil, err
	}
	base, err := baseURL(o.Kind, o.URL)
	if err != nil {
		return nil, err
	}
	client, err := newClient(o, base)
	if err != nil {
		return nil, err
	}
	switch o.Kind {
	case GitHub:
		return newGitHub(base, client, owner, name)
	case GitLab:
		return newGitLab(base, client, o.Repository)
	default:
		return &giteaForge{url: base.String(), client: client, owner: owner, name: name}, nil
	}
}

func splitRepository(kind, repository string) (owner, name string, err error) {
	parts := strings.Split(repository, "/")
	plain := regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	for _, p := range parts {
		if !plain.MatchString(p) || p == "." || p == ".." {
			return "", "", fmt.Errorf("%q is no OWNER/NAME", repository)
		}
	}
	if len(parts) < 2 || len(parts) > 2 && kind != GitLab {
		return "", "", fmt.Errorf("%q is no OWNER/NAME", repository)
	}
	return parts[0], parts[len(parts)-1], nil
}

func baseURL(kind, given string) (*url.URL, error) {
	if given == "" {
		given = map[string]string{GitHub: "https://api.github.com", GitLab: "https://gitlab.com"}[kind]
	}
	if given == "" {
		return nil, errors.New("a Gitea or Forgejo is nowhere by default: say its URL")
	}
	u, err := url.Parse(given)
	switch {
	case err != nil, u.Host == "", u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("the URL of the forge must be https://HOST[/PATH]")
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, errors.New("the URL of the forge must hold no login, query or fragment: the token has a file")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return nil, fmt.Errorf("the token would go to %s without encryption: use https", u.Host)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, nil
}

// whole collects pages until page reports that there are no more.
func whole[T any](what string, page func(n int) (items []T, more bool, err error)) ([]T, error) {
	var all []T
	for n := 1; n <= pages; n++ {
		items, more, err := page(n)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", what, err)
		}
		if all = append(all, items...); !more {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read %s: there are more than %d", what, pages*pageSize)
}

// newestFirst sorts requests.
func newestFirst(all []Request) []Request {
	slices.SortStableFunc(all, func(a, b Request) int { return cmp.Compare(b.Number, a.Number) })
	return all
}

// latest keeps the last review of each person. reviews has the oldest first.
func latest(reviews []Review) []Review {
	var out []Review
	for _, r := range reviews {
		out = slices.DeleteFunc(out, func(o Review) bool { return o.User == r.User })
		out = append(out, r)
	}
	return out
}
