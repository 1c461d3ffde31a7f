package gitrepo

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
)

// server is a connection to a git server for one fetch.
type server interface {
	// refs requests the list of refs.
	refs(ctx context.Context) (*packp.AdvRefs, error)
	// pack requests objects.
	pack(ctx context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error)
	close() error
}

// connectTimeout bounds dialing, and each handshake after it.
const connectTimeout = 30 * time.Second

// connect connects to the server of a remote repository. Received data resets the watchdog.
// Credentials are read at each call, so that new ones need no restart.
func (l location) connect(ctx context.Context, w *watchdog) (server, error) {
	at, err := l.address()
	if err != nil {
		return nil, err
	}
	if at.url.Scheme == "ssh" {
		return dialSSH(ctx, at, transport.UploadPackServiceName, w)
	}
	client, auth, err := l.openHTTP(at, w)
	if err != nil {
		return nil, err
	}
	session, err := client.git.NewUploadPackSession(at.endpoint, auth)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &httpServer{session, client.pool}, nil
}

// address is the address of a repository, with its login.
type address struct {
	endpoint *transport.Endpoint
	url      *url.URL
	login    login
}

func (l location) address() (address, error) {
	u, err := url.Parse(l.url)
	if err != nil || isSCP(l.url) {
		u = nil
	}
	endpoint, err := transport.NewEndpoint(l.url)
	if err != nil {
		return address{}, errors.New("the repository's URL can't be read")
	}
	if u == nil {
		u = &url.URL{Scheme: "ssh", Host: endpoint.Host}
	}
	all, err := readCredentials(l.credentials)
	if err != nil {
		return address{}, err
	}
	normal, err := addressOf(u)
	if err != nil {
		return address{}, err
	}
	return address{endpoint, u, all[normal]}, nil
}

// httpServer uses go-git's HTTP transport.
type httpServer struct {
	session transport.UploadPackSession
	client  *http.Transport
}

// httpClient is go-git's HTTP transport, with the connection pool that Keelson closes.
type httpClient struct {
	git  transport.Transport
	pool *http.Transport
}

func (l location) openHTTP(at address, w *watchdog) (httpClient, transport.AuthMethod, error) {
	auth, err := l.httpAuth(at.url, at.login)
	if err != nil {
		return httpClient{}, nil, err
	}
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout:    connectTimeout,
		ResponseHeaderTimeout:  w.silence,
		MaxResponseHeaderBytes: 1 << 20,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
	}
	if file := at.login.CAFile; file != "" {
		pem, err := readSmall(file)
		if err != nil {
			return httpClient{}, nil, fmt.Errorf("read the certificates for %s: %w", at.url.Host, err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return httpClient{}, nil, fmt.Errorf("%s holds no certificate", file)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	client := &http.Client{Transport: &watchedTransport{t, w}, CheckRedirect: sameServer}
	return httpClient{githttp.NewClientWithOptions(client, &githttp.ClientOptions{RedirectPolicy: githttp.FollowInitialRedirects}), t}, auth, nil
}

// httpAuth returns the login for HTTP, or nil without credentials.
func (l location) httpAuth(u *url.URL, login login) (transport.AuthMethod, error) {
	auth := transport.AuthMethod(nil)
	switch {
	case l.username != "" || l.password != "":
		l.hide(l.password)
		auth = &githttp.BasicAuth{Username: l.username, Password: l.password}
	case login.Token != "" || login.TokenFile != "":
		token, err := secret(login.Token, login.TokenFile)
		if err != nil {
			return nil, err
		}
		l.hide(token)
		auth = &githttp.TokenAuth{Token: token}
	case login.Username != "" || login.Password != "" || login.PasswordFile != "":
		password, err := secret(login.Password, login.PasswordFile)
		if err != nil {
			return nil, err
		}
		l.hide(password)
		auth = &githttp.BasicAuth{Username: login.Username, Password: password}
	}
	if auth != nil && u.Scheme == "http" && !loopback(u.Hostname()) && !login.PlainHTTP {
		return nil, fmt.Errorf("it would send credentials to %s without encryption: use https, or allow it with plainHTTP in the credentials file", u.Host)
	}
	return auth, nil
}

// sameServer follows a redirect only to the same scheme, host and port.
func sameServer(req *http.Request, via []*http.Request) error {
	const most = 5
	from := via[0].URL
	switch {
	case len(via) > most:
		return fmt.Errorf("the server redirects more than %d times", most)
	case req.URL.User != nil || req.URL.Scheme != from.Scheme || req.URL.Host != from.Host:
		return fmt.Errorf("the server redirects to %s://%s, and a repository is only read from where it is said to be: if that is right, give that URL",
			req.URL.Scheme, req.URL.Host)
	}
	return nil
}

// watchedTransport resets the watchdog at each response, and while its body is read.
type watchedTransport struct {
	next http.RoundTripper
	w    *watchdog
}

func (t *watchedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(req)
	t.w.timer.Reset(t.w.silence)
	if err != nil {
		return nil, err //nolint:wrapcheck // a round tripper's errors are its caller's
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{t.w.reader(res.Body), res.Body}
	return res, nil
}

func (s *httpServer) refs(ctx context.Context) (*packp.AdvRefs, error) {
	return s.session.AdvertisedReferencesContext(ctx) //nolint:wrapcheck // the caller says of what
}

func (s *httpServer) pack(ctx context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error) {
	return s.session.UploadPack(ctx, req) //nolint:wrapcheck // as above
}

func (s *httpServer) close() error {
	s.client.CloseIdleConnections()
	return s.session.Close() //nolint:wrapcheck // as above
}
