// Package forge puts previews on pull requests: one comment, which is kept up to
// date, and a commit status. For those who have pull requests of Keelson's own it is the
// way to a forge ([Proposer]).
//
// A pull request comes from anybody. What is in it is rendered in the sandbox of all
// charts and without keys; what is said of it stands in code spans and blocks; and
// one that can't be previewed is in nobody else's way. A forge that does not answer
// changes nothing.
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
	// Context is what the commit status is called.
	Context = "keelson/preview"
	// descriptionSize of a status is what GitHub takes, in characters.
	descriptionSize = 140
	// most pull requests are looked at: those that changed last.
	most = 100
	// pages of comments or statuses are read at most; more is an error, and is not
	// taken for the absence of what was looked for.
	pages = 20
	// pageSize is the largest that all forges have.
	pageSize = 50
)

// PullRequest is an open one.
type PullRequest struct {
	Number int64
	// Head is the full hash of the commit to be merged, and Ref where it can be
	// fetched from, also when it is of a fork.
	Head, Ref string
}

// State of a status, a word of GitHub's.
type State string

// The states.
const (
	Pending State = "pending"
	Success State = "success"
	// Failure is the change's fault.
	Failure State = "failure"
	// Error is somebody else's: what the change does could not be found out.
	Error State = "error"
)

// Status of a commit. The zero Status is none.
type Status struct {
	State       State
	Description string // one line
}

// Comment on a pull request by the account that Keelson has.
type Comment struct {
	ID   int64 // 0: it is to be made
	Body string
}

// Review is what one person last said of a pull request.
type Review struct {
	User     string
	Approved bool
	// Head is the commit that was looked at; empty: the forge does not say.
	Head string
}

// Reader asks a forge. An error means that nothing is known.
type Reader interface {
	// PullRequests are the open ones into a branch, the last changed first, at most
	// a hundred.
	PullRequests(ctx context.Context, branch string) ([]PullRequest, error)
	// Comments are this account's alone, the oldest first.
	Comments(ctx context.Context, number int64) ([]Comment, error)
	// Status is the last that was set under [Context].
	Status(ctx context.Context, revision string) (Status, error)
	// Reviews are those that count now: of each person the last that approves or
	// refuses, and none that was dismissed.
	Reviews(ctx context.Context, number int64) ([]Review, error)
}

// Writer writes to a forge.
type Writer interface {
	SetStatus(ctx context.Context, revision string, s Status) error
	// SetComment makes or changes a comment.
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

// RequestState says what became of a pull request.
type RequestState string

// The states.
const (
	RequestOpen   RequestState = "open"
	RequestMerged RequestState = "merged"
	RequestClosed RequestState = "closed" // and not merged
)

// Proposer has pull requests of Keelson's own. An error means that nothing is known.
type Proposer interface {
	// Requests are those from some branches of the repository into another, in any state,
	// the newest first. Gitea has no filter for that, so of those that are not open any
	// more only the thousand that changed last are looked through.
	Requests(ctx context.Context, base string, heads ...string) ([]Request, error)
	// OpenRequest opens one by Head, Base, Title and Body, and returns it.
	OpenRequest(ctx context.Context, r Request) (Request, error)
	// EditRequest writes Title and Body, and closes one whose State is [RequestClosed].
	EditRequest(ctx context.Context, r Request) error
}

// Forge is where one repository's pull requests are.
type Forge interface {
	Reader
	Writer
	Proposer
}

// Options say where a repository's pull requests are; all are required but URL and
// Wrap.
type Options struct {
	// Kind is one of [Kinds].
	Kind string
	// URL of the forge; empty: github.com, gitlab.com.
	URL string
	// Repository is OWNER/NAME, on GitLab GROUP/…/NAME.
	Repository string
	// TokenFile holds an API token. It is read for each request.
	TokenFile string
	// Hide is told of the token before it is used.
	Hide func(owner string, secrets ...string)
	// Wrap is put around the connection; nil: nothing is.
	Wrap     func(http.RoundTripper) http.RoundTripper
	Now      func() time.Time
	Registry prometheus.Registerer
}

// The forges that there are. Forgejo speaks Gitea's API.
const (
	Gitea  = "gitea"
	GitHub = "github"
	GitLab = "gitlab"
)

// Kinds are the forges that there are.
func Kinds() []string { return []string{Gitea, GitHub, GitLab} }

// Open prepares the way to a forge; it makes no call.
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

// whole collects pages until next says that there are no more.
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

// latest keeps of each person's reviews, the oldest first, the last.
func latest(reviews []Review) []Review {
	var out []Review
	for _, r := range reviews {
		out = slices.DeleteFunc(out, func(o Review) bool { return o.User == r.User })
		out = append(out, r)
	}
	return out
}
