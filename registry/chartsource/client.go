package chartsource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"oras.land/oras-go/v2/registry/remote/credentials"
)

// Limits of downloads: bytes, and the number of tags.
const (
	maxIndex    = 32 << 20
	maxManifest = 4 << 20
	maxArchive  = 50 << 20
	maxTags     = 20_000
)

// answerTimeout bounds the wait for the header of a response.
const answerTimeout = 30 * time.Second

// Options configure a [Client]. The zero Options have no credentials.
type Options struct {
	// RegistryConfigs are files with credentials for OCI registries, in Docker's form. The first
	// file with an entry for a host is used. A missing file counts as empty. The files may name
	// credential helpers, which are executed.
	RegistryConfigs []string
	// RepositoryConfig is the path of Helm's repositories.yaml, with credentials for chart
	// repositories; "" for none.
	RepositoryConfig string
	// PlainHTTP are the hosts (HOST or HOST:PORT) that may be contacted without TLS.
	PlainHTTP []string
	// UserAgent is sent with each request.
	UserAgent string
	// Transport carries the requests. If it is nil, [http.DefaultTransport] is used, with a timeout
	// for the response header.
	Transport http.RoundTripper
	// Root is the folder of the fleet repository. Paths of local charts are made relative to it.
	Root string
	// Progress is called with each step; may be nil.
	Progress func(what string)
}

// Client gets charts. It is safe for concurrent use if Options.Progress is.
type Client struct {
	options    Options
	transport  http.RoundTripper
	registries credentials.Store
	passwords  []repositoryEntry
}

// New returns a [Client]. It reads the credentials of chart repositories now.
func New(options Options) (*Client, error) {
	c := &Client{options: options, transport: options.Transport}
	if c.transport == nil {
		t, ok := http.DefaultTransport.(*http.Transport)
		if !ok {
			return nil, errors.New("the transport for HTTP was replaced by another one")
		}
		t = t.Clone()
		t.ResponseHeaderTimeout = answerTimeout
		c.transport = t
	}
	c.transport = &guard{next: c.transport, plain: options.PlainHTTP}
	var stores []credentials.Store
	for _, file := range options.RegistryConfigs {
		s, err := credentials.NewStore(file, credentials.StoreOptions{})
		if err != nil {
			return nil, fmt.Errorf("read credentials for registries: %w", err)
		}
		stores = append(stores, s)
	}
	if len(stores) > 0 {
		c.registries = credentials.NewStoreWithFallbacks(stores[0], stores[1:]...)
	}
	var err error
	c.passwords, err = readRepositoryConfig(options.RepositoryConfig)
	return c, err
}

func (c *Client) log(format string, args ...any) {
	if c.options.Progress != nil {
		c.options.Progress(fmt.Sprintf(format, args...))
	}
}

// guard refuses requests without TLS, except to the hosts in plain.
type guard struct {
	next  http.RoundTripper
	plain []string
}

// errPlain is a request without TLS to a host that is not in PlainHTTP.
var errPlain = errors.New("it would go without TLS, and no flag allows that")

func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !slices.Contains(g.plain, r.URL.Host) {
		if r.Body != nil {
			_ = r.Body.Close() // RoundTripper requires it
		}
		return nil, fmt.Errorf("%w: --plain-http %s allows it", errPlain, r.URL.Host)
	}
	return g.next.RoundTrip(r) //nolint:wrapcheck // it is a RoundTripper
}

// errRedirect is a redirect that is not followed.
var errRedirect = errors.New("redirect refused")

// checkRedirect bounds the number of redirects, refuses a change from https to http, and removes
// credentials for another origin. With strict, a redirect to another origin is refused if
// credentials were sent. For OCI registries strict is false: oras removes the credentials itself,
// and registries store blobs elsewhere.
func checkRedirect(strict bool) func(*http.Request, []*http.Request) error {
	return func(r *http.Request, via []*http.Request) error {
		from := via[len(via)-1]
		switch {
		case len(via) >= 5:
			return fmt.Errorf("%w: there were 5 already", errRedirect)
		case from.URL.Scheme == "https" && r.URL.Scheme != "https":
			return fmt.Errorf("%w: from https to %s://%s", errRedirect, r.URL.Scheme, r.URL.Host)
		case origin(via[0].URL) == origin(r.URL):
			return nil // the headers are meant for this origin
		case strict && from.Header.Get("Authorization") != "":
			return fmt.Errorf("%w: %s asks for credentials and sends to another host, %s", errRedirect, from.URL.Host, r.URL.Host)
		}
		r.Header.Del("Authorization") // Go sets it at each redirect, even for a subdomain or another port
		r.Header.Del("Cookie")
		return nil
	}
}

// origin returns scheme, host and port of a URL.
func origin(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// get downloads a file of at most limit bytes.
func (c *Client) get(ctx context.Context, u *url.URL, user *url.Userinfo, limit int64) (data []byte, err error) {
	defer func() { err = withoutQuery(err) }()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", shown(u), err)
	}
	r.Header.Set("User-Agent", c.options.UserAgent)
	if user != nil {
		password, _ := user.Password()
		r.SetBasicAuth(user.Username(), password)
	}
	client := &http.Client{Transport: c.transport, CheckRedirect: checkRedirect(true)}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what and where
	}
	defer func() { _ = answer.Body.Close() }() // the body was read, or is not needed
	if answer.StatusCode != http.StatusOK {
		return nil, &statusError{url: shown(u), status: answer.Status, code: answer.StatusCode}
	}
	if answer.ContentLength > limit {
		return nil, tooLarge(shown(u), limit)
	}
	data, err = io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", shown(u), err)
	}
	if int64(len(data)) > limit {
		return nil, tooLarge(shown(u), limit)
	}
	return data, nil
}

// statusError is a response with a status other than 200.
type statusError struct {
	url, status string
	code        int
}

func (e *statusError) Error() string { return fmt.Sprintf("get %s: %s", e.url, e.status) }

func tooLarge(what string, limit int64) error {
	return fmt.Errorf("%s is larger than %d MiB", what, limit>>20)
}

// shown returns a URL without its credentials and query, which may be secret.
func shown(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, Opaque: u.Opaque}).String()
}

// withoutQuery removes query strings and credentials from the text of an error. A redirect to a
// blob store carries a signature in its query.
func withoutQuery(err error) error {
	failed, ok := errors.AsType[*url.Error](err)
	if !ok {
		return err
	}
	u, parseErr := url.Parse(failed.URL)
	if parseErr != nil || u.RawQuery == "" && u.User == nil {
		return err
	}
	return &hidden{text: strings.ReplaceAll(err.Error(), failed.URL, shown(u)), err: err}
}

// hidden is an error with another text.
type hidden struct {
	text string
	err  error
}

func (e *hidden) Error() string { return e.text }

func (e *hidden) Unwrap() error { return e.err }
