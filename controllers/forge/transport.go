package forge

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// requestTime bounds a request with its response. connectTime bounds the connection, and then
	// TLS.
	requestTime, connectTime = 30 * time.Second, 10 * time.Second
	// answerSize bounds a response, in bytes: a hundred pull requests with long texts.
	answerSize = 32 << 20
	// tokenSize bounds the token file, in bytes.
	tokenSize = 16 << 10
	// limitedFor is the pause if a forge names none. longestLimit bounds the pause that a forge
	// names.
	limitedFor, longestLimit = time.Minute, time.Hour
)

// LimitedError reports that the forge takes no requests until a time. The request was not sent.
type LimitedError struct{ Until time.Time }

// Error implements error.
func (e *LimitedError) Error() string {
	return "the forge accepts no requests until " + e.Until.UTC().Format(time.RFC3339)
}

// transport sends the token to one server only, obeys the server's limits, and bounds responses.
type transport struct {
	next  http.RoundTripper
	base  *url.URL
	kind  string
	file  string
	hide  func(owner string, secrets ...string)
	now   func() time.Time
	count *prometheus.CounterVec

	mu    sync.Mutex
	until time.Time // end of a limit
}

func newClient(o Options, base *url.URL) (*http.Client, error) {
	t := &transport{
		base: base, kind: o.Kind, file: o.TokenFile, hide: o.Hide, now: o.Now,
		next: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: connectTime}).DialContext,
			TLSHandshakeTimeout:    connectTime,
			MaxResponseHeaderBytes: 1 << 20,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			IdleConnTimeout:        time.Minute,
			ForceAttemptHTTP2:      true,
		},
		count: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_forge_requests_total", Help: "Requests to the forge that has the pull requests; code is none where no answer came.",
		}, []string{"code"}),
	}
	if o.Wrap != nil {
		t.next = o.Wrap(t.next)
	}
	if err := o.Registry.Register(t.count); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	if _, err := t.token(); err != nil {
		return nil, err
	}
	return &http.Client{Transport: t, Timeout: requestTime, CheckRedirect: t.redirect}, nil
}

// redirect refuses redirects to another server: the token is for one server.
func (t *transport) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > 3 || !t.ours(req.URL) {
		return fmt.Errorf("the forge redirects to %s://%s: give the URL that it is at", req.URL.Scheme, req.URL.Host)
	}
	return nil
}

func (t *transport) ours(u *url.URL) bool { return u.Scheme == t.base.Scheme && u.Host == t.base.Host }

// token reads the token file. The error quotes nothing of it.
func (t *transport) token() (token string, err error) {
	f, err := os.Open(t.file)
	if err != nil {
		return "", fmt.Errorf("read the token of the forge: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err := io.ReadAll(io.LimitReader(f, tokenSize+1))
	if err != nil {
		return "", fmt.Errorf("read the token of the forge: %w", err)
	}
	token = strings.TrimSpace(string(data))
	if token == "" || len(data) > tokenSize || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s must hold a token of the forge, on one line, and nothing else", t.file)
	}
	t.hide("forge", token)
	return token, nil
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	answer, err := t.send(req)
	code := "none"
	if err == nil {
		code = "other"
		if http.StatusText(answer.StatusCode) != "" {
			code = strconv.Itoa(answer.StatusCode)
		}
	}
	if _, limited := errors.AsType[*LimitedError](err); !limited {
		t.count.WithLabelValues(code).Inc()
	}
	return answer, err
}

func (t *transport) send(req *http.Request) (*http.Response, error) {
	refuse := func(err error) (*http.Response, error) {
		if req.Body != nil {
			_ = req.Body.Close() // the RoundTripper contract requires it; closing only ends a read
		}
		return nil, err
	}
	if !t.ours(req.URL) {
		return refuse(fmt.Errorf("the forge is at %s, and nothing is asked of %s", t.base.Host, req.URL.Host))
	}
	t.mu.Lock()
	until := t.until
	t.mu.Unlock()
	if t.now().Before(until) {
		return refuse(&LimitedError{until})
	}
	token, err := t.token()
	if err != nil {
		return refuse(err)
	}
	req = req.Clone(req.Context())
	switch t.kind {
	case GitLab:
		req.Header.Set("Private-Token", token)
	case GitHub:
		req.Header.Set("Authorization", "Bearer "+token)
	default:
		req.Header.Set("Authorization", "token "+token)
	}
	req.Header.Set("User-Agent", "keelson")
	answer, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err //nolint:wrapcheck // a transport passes on what it gets
	}
	if limit := t.limit(answer); limit > 0 {
		t.mu.Lock()
		t.until = t.now().Add(limit)
		t.mu.Unlock()
	}
	answer.Body = &bounded{answer.Body, answerSize}
	return answer, nil
}

// limit returns the pause that a forge demands; 0: none. It reads the headers of GitHub, of Gitea
// behind a proxy, and of GitLab.
func (t *transport) limit(answer *http.Response) time.Duration {
	h := answer.Header
	first := func(names ...string) (int64, bool) {
		for _, name := range names {
			if n, err := strconv.ParseInt(h.Get(name), 10, 64); err == nil {
				return n, true
			}
		}
		return 0, false
	}
	after, says := first("Retry-After")
	left, counts := first("X-RateLimit-Remaining", "RateLimit-Remaining")
	reset, resets := first("X-RateLimit-Reset", "RateLimit-Reset")
	refused := answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusServiceUnavailable
	switch {
	case refused && says:
		return min(max(time.Duration(after), 1)*time.Second, longestLimit)
	case counts && left <= 0 && resets:
		return min(max(time.Unix(reset, 0).Sub(t.now()), time.Second), longestLimit)
	case answer.StatusCode == http.StatusTooManyRequests:
		return limitedFor
	}
	return 0
}

// bounded fails if a response is longer than allowed.
type bounded struct {
	io.ReadCloser
	left int64
}

// Read implements [io.Reader].
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the forge answers with more than %d MiB", answerSize>>20)
	}
	return n, err //nolint:wrapcheck // a reader's errors are its caller's
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
