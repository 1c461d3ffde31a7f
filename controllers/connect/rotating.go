package connect

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
)

const (
	// renewFirst and renewLast bound the wait until a failed renewal is repeated, and until a
	// refusal makes the line read the credentials again.
	renewFirst = 500 * time.Millisecond
	renewLast  = 30 * time.Second
	// renewTime bounds one renewal, and how long a refused request waits for a renewal.
	renewTime = 10 * time.Second
)

// errMoved means that the new settings lead to another API server.
var errMoved = errors.New("the connection leads to another server")

// Callbacks are the callbacks of a [RotatingClient]; all may be nil. They must not block, and are called one
// after the other.
type Callbacks struct {
	// Renewed: requests have new credentials from now on.
	Renewed func()
	// Trouble: the credentials can't be renewed, and the previous ones stay in use. It is called
	// again when the reason changes, and with nil when the credentials are usable again.
	Trouble func(error)
	// Moved: the new credentials are for another server. The line stays with its server.
	Moved func(server string)
}

// RotatingClient is a connection to one API server, whose credentials may be replaced while it is in use. All
// clients made from its [Line.Config] go on with the new credentials:
//
//   - a request in flight ends with the old credentials;
//   - a watch ends as if the server had ended it, and resumes where it was. So revoked credentials
//     are out of use at once;
//   - after a request is refused for its credentials (401: nothing of it was carried out), they are
//     read again. If they are new, the request is sent again.
//
// New credentials are first tried with a small request. If they can't be read, are invalid, or are
// refused by the server, they replace nothing.
type RotatingClient struct {
	read  func(context.Context) (*rest.Config, error)
	heard Callbacks
	now   func() time.Time

	config *rest.Config // for clients
	base   string       // the server's URL
	wake   chan struct{}

	mu      sync.Mutex
	way     *transportSet
	running bool
	// renewal is closed when the requested or running renewal has ended.
	renewal chan struct{}
	trouble string // the last reported trouble
	// refusals counts reads that a refusal caused since the last renewal. notBefore is when a
	// refusal may cause the next read.
	refusals  int
	notBefore time.Time
}

// transportSet is a transport with its credentials.
type transportSet struct {
	through http.RoundTripper
	at      *url.URL
	content [sha256.Size]byte
	// itself: client-go reads new credentials itself after a refusal.
	itself bool

	mu      sync.Mutex
	retired bool
	watches map[*watchBody]bool // open watches
}

// Dial reads settings and prepares a line to their server, without a call to that server. The
// credentials are only renewed while [Line.Run] runs.
func Dial(ctx context.Context, now func() time.Time, read func(context.Context) (*rest.Config, error), heard Callbacks) (*RotatingClient, error) {
	c, err := read(ctx)
	if err != nil {
		return nil, err
	}
	w, err := newTransportSet(c)
	if err != nil {
		return nil, err
	}
	l := &RotatingClient{read: read, heard: heard, now: now, base: w.at.String(), wake: make(chan struct{}, 1), way: w}
	outer := rest.CopyConfig(c)
	outer.Host, outer.Transport = l.base, l
	outer.WrapTransport, outer.Dial, outer.Proxy = nil, nil, nil
	outer.TLSClientConfig, outer.Impersonate = rest.TLSClientConfig{}, rest.ImpersonationConfig{}
	outer.Username, outer.Password, outer.BearerToken, outer.BearerTokenFile = "", "", "", ""
	outer.ExecProvider, outer.AuthProvider, outer.AuthConfigPersister = nil, nil, nil
	l.config = outer
	return l, nil
}

// Config returns settings for clients. They hold no credentials, because the line adds them.
func (l *RotatingClient) Config() *rest.Config { return rest.CopyConfig(l.config) }

// Close closes idle connections.
func (l *RotatingClient) Close() { utilnet.CloseIdleConnectionsFor(l.current().through) }

func newTransportSet(c *rest.Config) (*transportSet, error) {
	c = rest.CopyConfig(c)
	// Certificates are loaded here, so that the line detects a change itself. client-go would check
	// the files minutes later. Token files are left to client-go, which reads them again every
	// minute, and after a refusal.
	if err := rest.LoadTLSFiles(c); err != nil {
		return nil, fmt.Errorf("read a certificate: %w", err)
	}
	c.CertFile, c.KeyFile, c.CAFile = "", "", ""
	at, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return nil, fmt.Errorf("the server's address: %w", err)
	}
	w := &transportSet{at: at, itself: c.BearerTokenFile != "" || c.ExecProvider != nil, watches: map[*watchBody]bool{}}
	if w.content, err = contentOf(c, at); err != nil {
		return nil, err
	}
	if w.through, err = rest.TransportFor(c); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return w, nil
}

// contentOf returns a digest of all settings for one server that may change.
func contentOf(c *rest.Config, at *url.URL) (sum [sha256.Size]byte, err error) {
	var proxy string
	if c.Proxy != nil {
		through, err := c.Proxy(&http.Request{URL: at})
		if err != nil {
			return sum, fmt.Errorf("the proxy's address: %w", err)
		}
		if through != nil {
			proxy = through.String()
		}
	}
	text, err := json.Marshal([]any{
		at.String(), proxy, c.Username, c.Password, c.BearerToken, c.BearerTokenFile, c.Impersonate,
		c.TLSClientConfig, c.ExecProvider, c.DisableCompression,
	})
	if err != nil {
		return sum, errors.New("the settings of the connection can't be compared") // the error may quote a secret
	}
	return sha256.Sum256(text), nil
}

// RoundTrip implements [http.RoundTripper].
func (l *RotatingClient) RoundTrip(r *http.Request) (*http.Response, error) {
	w := l.current()
	answer, err := w.send(r)
	if err != nil || answer.StatusCode != http.StatusUnauthorized {
		return answer, err
	}
	next := l.after(r.Context(), w)
	if next == nil {
		return answer, nil
	}
	again, err := rewound(r)
	if err != nil {
		return answer, nil //nolint:nilerr // the refusal is the answer
	}
	if err := answer.Body.Close(); err != nil {
		return nil, err //nolint:wrapcheck // a transport passes on what it gets
	}
	return next.send(again)
}

func (l *RotatingClient) current() *transportSet {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.way
}

// rewound returns a request with its body as before it was sent.
func rewound(r *http.Request) (*http.Request, error) {
	again := r.Clone(r.Context())
	if r.Body == nil {
		return again, nil
	}
	if r.GetBody == nil {
		return nil, errors.New("the body was only to be read once")
	}
	var err error
	again.Body, err = r.GetBody()
	return again, err //nolint:wrapcheck // it only matters that there is one
}

// after returns the transport with which to repeat a refused request; nil: there are no better
// credentials.
func (l *RotatingClient) after(ctx context.Context, refused *transportSet) *transportSet {
	renewal := l.refused(refused)
	if renewal == nil {
		if now := l.current(); now != refused {
			return now
		}
		return nil
	}
	late := time.NewTimer(renewTime)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-late.C:
		return nil
	case <-renewal:
	}
	if now := l.current(); now != refused || now.itself {
		return now
	}
	return nil
}

// refused requests a read of the credentials after a refusal, and returns a channel that is closed
// when it has ended. nil: they were already replaced or recently read, or [Line.Run] does not run.
func (l *RotatingClient) refused(w *transportSet) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.way != w || !l.running {
		return nil
	}
	now := l.now()
	if l.renewal == nil && now.Before(l.notBefore) {
		return nil
	}
	if l.renewal == nil {
		l.notBefore = now.Add(min(renewLast, renewFirst<<min(l.refusals, 10)))
		l.refusals++
	}
	return l.askLocked()
}

func (l *RotatingClient) askLocked() <-chan struct{} {
	if l.renewal == nil {
		l.renewal = make(chan struct{})
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return l.renewal
}

// Again requests a read of the credentials, because they may have changed.
func (l *RotatingClient) Again() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.askLocked()
}

// Run renews the credentials on request until ctx ends. After a failure it retries until a renewal
// succeeds, or until the settings are again those in use.
func (l *RotatingClient) Run(ctx context.Context) {
	l.mu.Lock()
	l.running = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running = false
		l.endLocked()
	}()
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[string](renewFirst, renewLast)
	again := time.NewTimer(renewLast)
	defer again.Stop()
	for again.Stop(); ; {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-again.C:
		}
		err := l.renew(ctx)
		if ctx.Err() != nil {
			return
		}
		l.report(err)
		if err == nil || errors.Is(err, errMoved) {
			backoff.Forget("")
			again.Stop()
			continue
		}
		again.Reset(backoff.When(""))
	}
}

// endLocked wakes the callers that wait for a renewal.
func (l *RotatingClient) endLocked() {
	if l.renewal != nil {
		close(l.renewal)
		l.renewal = nil
	}
}

// renew reads the settings, and switches to them if they are new and work.
func (l *RotatingClient) renew(ctx context.Context) error {
	before := l.current()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.endLocked()
	}()
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	c, err := l.read(ctx)
	if err != nil {
		return err
	}
	next, err := newTransportSet(c)
	switch {
	case err != nil:
		return err
	case next.content == before.content:
		return nil
	case next.at.String() != l.base:
		if l.heard.Moved != nil {
			l.heard.Moved(next.at.String())
		}
		return errMoved
	}
	if err := next.try(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	l.way, l.refusals, l.notBefore = next, 0, time.Time{}
	l.mu.Unlock()
	before.retire()
	if l.heard.Renewed != nil {
		l.heard.Renewed()
	}
	return nil
}

// report reports trouble, or its end, if the text changed.
func (l *RotatingClient) report(err error) {
	text := ""
	if err != nil && !errors.Is(err, errMoved) {
		text = err.Error()
	}
	l.mu.Lock()
	same := l.trouble == text
	l.trouble = text
	l.mu.Unlock()
	switch {
	case same || l.heard.Trouble == nil:
	case text == "":
		l.heard.Trouble(nil)
	default:
		l.heard.Trouble(err)
	}
}

// try sends a small request, and returns why the credentials can't be used.
func (w *transportSet) try(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.at.JoinPath("/version").String(), nil)
	if err != nil {
		return fmt.Errorf("the server's address: %w", err)
	}
	answer, err := w.through.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("the server does not answer with the new credentials: %w", err)
	}
	if err := answer.Body.Close(); err != nil {
		return fmt.Errorf("the server does not answer with the new credentials: %w", err)
	}
	if answer.StatusCode == http.StatusUnauthorized {
		return errors.New("the server refuses the new credentials (401)")
	}
	return nil
}

func (w *transportSet) send(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") == "" {
		return w.through.RoundTrip(r) //nolint:wrapcheck // a transport passes on what it gets
	}
	ctx, cancel := context.WithCancel(r.Context())
	answer, err := w.through.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err //nolint:wrapcheck // as above
	}
	b := &watchBody{ReadCloser: answer.Body, way: w, cancel: cancel}
	answer.Body = b
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.retired {
		cancel()
	}
	w.watches[b] = true
	return answer, nil
}

// retire ends the watches, and closes idle connections after [RequestTimeout].
func (w *transportSet) retire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retired = true
	for b := range w.watches {
		b.cancel()
	}
	time.AfterFunc(RequestTimeout, func() { utilnet.CloseIdleConnectionsFor(w.through) })
}

// watchBody is the body of a watch. It ends when the credentials of the watch are replaced.
type watchBody struct {
	io.ReadCloser
	way    *transportSet
	cancel context.CancelFunc
}

// Read implements [io.Reader]. It returns an ordinary end, after which client-go resumes the watch.
// After an error client-go might list everything.
func (b *watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.way.mu.Lock()
		defer b.way.mu.Unlock()
		if b.way.retired {
			err = io.EOF
		}
	}
	return n, err
}

// Close implements [io.Closer].
func (b *watchBody) Close() error {
	b.way.mu.Lock()
	delete(b.way.watches, b)
	b.way.mu.Unlock()
	defer b.cancel()
	return b.ReadCloser.Close() //nolint:wrapcheck // as above
}
