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
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
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
	// Listen is the address (HOST:PORT). Empty: a free port on 127.0.0.1.
	Listen string
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
	address   string
	agent     string // see Options.Agent
	bodies    bool   // see Options.Bodies
	authority *pki.Authority
	upstream  map[string]*upstream // by user
	server    *http.Server
	served    chan struct{} // closed when the server has ended
	closing   chan struct{} // closed by Close

	decide atomic.Pointer[func(Request) Verdict]

	mu     sync.Mutex
	seen   map[kindOfRequest]int // number of requests of a kind
	counts map[Fault]int
	closed bool
}

// upstream is the connection of one user to the API server.
type upstream struct {
	target    *url.URL
	transport http.RoundTripper
}

// New starts a proxy; [Proxy.Close] ends it. New makes no request to the API server.
func New(ctx context.Context, o Options) (*Proxy, error) {
	p := &Proxy{
		agent: o.Agent, bodies: o.Bodies, upstream: map[string]*upstream{}, served: make(chan struct{}), closing: make(chan struct{}),
		seen: map[kindOfRequest]int{}, counts: map[Fault]int{},
	}
	for user, config := range o.Upstream {
		u, err := newUpstream(config)
		if err != nil {
			return nil, fmt.Errorf("fault proxy: the way to the API server of %s: %w", user, err)
		}
		p.upstream[user] = u
	}
	serving, err := p.certificates()
	if err != nil {
		return nil, err
	}
	address := o.Listen
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("fault proxy: %w", err)
	}
	p.address = listener.Addr().String()
	p.server = &http.Server{
		Handler:           http.HandlerFunc(p.serve),
		TLSConfig:         serving,
		ReadHeaderTimeout: time.Minute,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, c)
		},
		// The default would log each connection that was reset.
		ErrorLog: log.New(nothing{}, "", 0),
	}
	if o.HTTP1 {
		p.server.Protocols = new(http.Protocols)
		p.server.Protocols.SetHTTP1(true)
	}
	go func() {
		defer close(p.served)
		_ = p.server.ServeTLS(listener, "", "") // ends with Close
	}()
	return p, nil
}

type nothing struct{}

func (nothing) Write(b []byte) (int, error) { return len(b), nil }

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

// certificates makes the proxy's authority and its TLS configuration. Clients must have
// a certificate of the authority.
func (p *Proxy) certificates() (*tls.Config, error) {
	now := time.Now()
	var err error
	if p.authority, err = pki.NewAuthority("fault-proxy", now); err != nil {
		return nil, err
	}
	pair, err := p.authority.Issue(pki.Subject{Name: "fault-proxy", Hosts: []string{"127.0.0.1", "localhost"}}, now)
	if err != nil {
		return nil, err
	}
	own, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, fmt.Errorf("fault proxy: its certificate: %w", err)
	}
	users := x509.NewCertPool()
	users.AppendCertsFromPEM(p.authority.Cert)
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{own},
		ClientCAs: users, ClientAuth: tls.RequireAndVerifyClientCert,
	}, nil
}

// Address returns the address (HOST:PORT) that the proxy listens on.
func (p *Proxy) Address() string { return p.address }

// Kubeconfig returns a kubeconfig file of a user in Options.Upstream for the API
// server behind the proxy. It returns an error for an unknown user.
func (p *Proxy) Kubeconfig(user string) ([]byte, error) {
	if p.upstream[user] == nil {
		return nil, fmt.Errorf("fault proxy: no user %q; there are %v", user, slices.Sorted(maps.Keys(p.upstream)))
	}
	pair, err := p.authority.Issue(pki.Subject{Name: user}, time.Now())
	if err != nil {
		return nil, err
	}
	return pki.Kubeconfig("fault-proxy", "https://"+p.address, user, p.authority.Cert, pair)
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
func (p *Proxy) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	if first {
		close(p.closing)
	}
	err := p.server.Close()
	<-p.served
	if err != nil {
		return fmt.Errorf("fault proxy: %w", err)
	}
	return nil
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
	request := p.number(parse(r, user))
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

// number sets N of a request.
func (p *Proxy) number(r Request) Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[r.kind()]++
	r.N = p.seen[r.kind()]
	return r
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
		ErrorLog:       log.New(nothing{}, "", 0),
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
