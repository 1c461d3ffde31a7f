// Package proxy implements a proxy in front of an API server. The proxy injects the
// faults of networks and of busy API servers.
//
// Clients connect by TLS, over HTTP/2 or HTTP/1.1. Each user has a kubeconfig for the
// proxy. The proxy forwards requests with the user's own credentials, so that audit
// logs still show the user. A function decides about each request: it gets the
// parsed request and returns a [Verdict]. Without a function, the proxy forwards all
// requests unchanged and streams watches.
//
// The proxy can't delay single packets. It injects faults into requests, answers and
// connections.
package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/lab/pki"
)

// Options are the options of [New].
type Options struct {
	// Upstream is the client configuration of each user. All must name the same API
	// server.
	Upstream map[string]*rest.Config
	// HTTP1 disables HTTP/2, so that each request in progress has its own connection.
	HTTP1 bool
	// Agent, unless empty, is appended to each User-Agent, so that audit logs
	// distinguish the proxies of one user.
	Agent string
	// Bodies passes the bodies of writes to the function of [Proxy.Use]. A write then
	// waits until its complete body has arrived.
	Bodies bool
}

// Proxy is a running proxy. It is safe for concurrent use.
type Proxy struct {
	agent    string // see Options.Agent
	bodies   bool   // see Options.Bodies
	users    *pki.Authority
	upstream map[string]*upstream // by user
	server   *httptest.Server
	closing  chan struct{} // closed by Close
	close    sync.Once

	decide atomic.Pointer[func(Request) Verdict]

	mu     sync.Mutex
	counts map[Fault]int
}

// upstream is the connection of one user to the API server.
type upstream struct {
	target    *url.URL
	transport http.RoundTripper
}

// New starts a proxy on 127.0.0.1; [Proxy.Close] ends it. New makes no request to the API
// server. Clients must have a certificate of the proxy's authority.
func New(o Options) (*Proxy, error) {
	p := &Proxy{agent: o.Agent, bodies: o.Bodies, upstream: map[string]*upstream{}, closing: make(chan struct{}), counts: map[Fault]int{}}
	for user, config := range o.Upstream {
		u, err := newUpstream(config)
		if err != nil {
			return nil, fmt.Errorf("fault proxy: the way to the API server of %s: %w", user, err)
		}
		p.upstream[user] = u
	}
	var err error
	if p.users, err = pki.NewAuthority("fault-proxy", time.Now()); err != nil {
		return nil, err
	}
	known := x509.NewCertPool()
	known.AppendCertsFromPEM(p.users.Cert)
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(p.serve))
	p.server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ClientCAs: known, ClientAuth: tls.RequireAndVerifyClientCert}
	p.server.EnableHTTP2 = !o.HTTP1
	p.server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, c)
	}
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0) // the default would log each connection that was reset
	p.server.StartTLS()
	return p, nil
}

func newUpstream(config *rest.Config) (*upstream, error) {
	target, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("its address: %w", err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("its credentials: %w", err)
	}
	return &upstream{target: target, transport: transport}, nil
}

// Kubeconfig returns a kubeconfig file of a user in Options.Upstream for the API
// server behind the proxy. It returns an error for an unknown user.
func (p *Proxy) Kubeconfig(user string) ([]byte, error) {
	if p.upstream[user] == nil {
		return nil, fmt.Errorf("fault proxy: no user %q; there are %v", user, slices.Sorted(maps.Keys(p.upstream)))
	}
	pair, err := p.users.Issue(pki.Subject{Name: user}, time.Now())
	if err != nil {
		return nil, err
	}
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	return pki.Kubeconfig("fault-proxy", p.server.URL, user, own, pair)
}

// Use makes a function decide about every request from now on; nil lets all requests
// pass. The function is called concurrently, once before each request is forwarded.
// The verdicts of requests in progress stay.
func (p *Proxy) Use(decide func(Request) Verdict) {
	if decide == nil {
		p.decide.Store(nil)
		return
	}
	p.decide.Store(&decide)
}

// Counts returns the number of verdicts by fault. [Pass] counts requests without a fault.
func (p *Proxy) Counts() map[Fault]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// Close ends the proxy, every connection and every Hang.
func (p *Proxy) Close() {
	p.close.Do(func() { close(p.closing) })
	_ = p.server.Config.Close() // it waits for no request, unlike Close of package httptest
}

// serve handles one request. It panics with [http.ErrAbortHandler] to abort the
// answer, as net/http prescribes for handlers.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	user := r.TLS.PeerCertificates[0].Subject.CommonName // verified by the handshake
	to := p.upstream[user]
	if to == nil {
		http.Error(w, "the fault proxy knows no user "+user, http.StatusUnauthorized)
		return
	}
	request := parse(r, user)
	if p.bodies && request.Write() {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler) // the client gave up
		}
		request.Body, r.Body = body, io.NopCloser(bytes.NewReader(body))
	}
	verdict := Verdict{}
	if decide := p.decide.Load(); decide != nil {
		verdict = (*decide)(request)
	}
	p.mu.Lock()
	p.counts[verdict.Fault]++
	p.mu.Unlock()
	e := &exchange{proxy: p, request: request, verdict: verdict, to: to}
	e.carryOut(w, r)
}

// forward forwards the request and streams the answer back.
func (e *exchange) forward(w http.ResponseWriter, r *http.Request) {
	if e.verdict.Fault == DropAnswer {
		// The API server must carry the request out, even if the client gives up.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler) // the client gave up already
		}
		// The context needs a cancel function: for a context that can't end, the
		// reverse proxy would use CloseNotifier to detect the client's disconnect.
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	if e.verdict.Before != nil {
		e.verdict.Before()
	}
	ctx := r.Context()
	(&httputil.ReverseProxy{
		Transport: e.to.transport,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetURL(e.to.target)
			pr.Out.Header.Del("Authorization") // the transport adds the user's own
			// If the client sends none, this prevents Go's default User-Agent.
			pr.Out.Header.Set("User-Agent", strings.TrimSpace(pr.In.UserAgent()+" "+e.proxy.agent))
		},
		ModifyResponse: func(answer *http.Response) error { return e.answered(ctx, answer) },
		FlushInterval:  -1,
		ErrorLog:       log.New(io.Discard, "", 0),
		// The API server is down, or the fault drops its answer.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}).ServeHTTP(w, r)
}

// errLost aborts the answer.
var errLost = errors.New("the fault proxy lost it")

// connectionKey is the key of the client's connection in a request's context.
type connectionKey struct{}

// reset resets the client's whole connection, as a broken network path does. With
// HTTP/2, every request on the connection is lost.
func reset(ctx context.Context) {
	c, _ := ctx.Value(connectionKey{}).(*tls.Conn)
	if c == nil {
		return
	}
	if tcp, ok := c.NetConn().(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // RST and not FIN; if it fails, the cut is a FIN
		_ = tcp.Close()
	}
}
