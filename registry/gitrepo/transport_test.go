package gitrepo_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// logins writes a credentials file.
func logins(t testing.TB, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "logins.yaml")
	fatal(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

func TestCredentialsByAddress(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	s := gittest.Serve(t, g)
	s.Set(func() { s.Password = "hunter2" })
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.URL, "http://"))
	fatal(t, err)
	secretFile := logins(t, "hunter2\n")
	cases := map[string]struct {
		why, url, file string
		opens          bool
	}{
		"Exact":        {"The address of the repository.", s.RepoURL(), s.URL + ": {username: robot, password: hunter2}", true},
		"File":         {"A secret in a file of its own.", s.RepoURL(), s.URL + ": {username: robot, passwordFile: " + secretFile + "}", true},
		"OtherPort":    {"Another port is another server.", s.RepoURL(), "http://127.0.0.1:1: {username: robot, password: hunter2}", false},
		"OtherScheme":  {"What is for https is not sent in clear.", s.RepoURL(), "https://127.0.0.1:" + port + ": {username: robot, password: hunter2}", false},
		"OtherName":    {"Another name of the same host: names are not resolved.", s.RepoURL(), "http://localhost:" + port + ": {username: robot, password: hunter2}", false},
		"NothingKnown": {"An address that the file does not hold.", s.RepoURL(), "https://git.example.com: {username: robot, password: hunter2}", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := gitrepo.Open(t.Context(), gitrepo.Options{URL: c.url, CacheDir: t.TempDir(), Credentials: logins(t, c.file)})
			if (err == nil) != c.opens || err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", c.why, err)
			}
		})
	}
}

// What would send credentials in clear to another machine does not send them.
func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]gitrepo.Options{
		"URL":  {URL: "http://robot:hunter2@git.invalid/fleet"},
		"Env":  {URL: "http://git.invalid/fleet", Username: "robot", Password: "hunter2"},
		"File": {URL: "http://git.invalid/fleet", Credentials: logins(t, "http://git.invalid: {username: robot, password: hunter2}")},
	} {
		opts.CacheDir = t.TempDir()
		_, err := gitrepo.Open(t.Context(), opts)
		if err == nil || !strings.Contains(err.Error(), "without encryption") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want it refused", name, err)
		}
	}
	_, err := gitrepo.Open(t.Context(), gitrepo.Options{
		URL: "http://git.invalid/fleet", CacheDir: t.TempDir(),
		Credentials: logins(t, "http://git.invalid: {username: robot, password: hunter2, plainHTTP: true}"),
	})
	if err == nil || strings.Contains(err.Error(), "without encryption") {
		t.Errorf("allowed: %v; want that the host is not there", err)
	}
}

func TestCredentialsFile(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ why, content, want string }{
		"Good": {"Every key.", `https://git.example.com: {username: a, password: hunter2, caFile: /ca}
HTTPS://GIT.example.com:8443/: {tokenFile: /t}
http://git.lab:3000: {username: a, passwordFile: /p, plainHTTP: true}
ssh://git.example.com:2222: {keyFile: /k, passphraseFile: /p, knownHostsFile: /h}
`, ""},
		"Path":        {"Credentials are for a host.", "https://git.example.com/fleet: {token: hunter2}", "scheme://host"},
		"User":        {"The user stands below.", "https://robot:hunter2@git.example.com: {}", "scheme://host"},
		"Pattern":     {"No host is a pattern.", `"https://*.example.com": {token: hunter2}`, "one host"},
		"Unicode":     {"Letters that look like others.", "https://gіt.example.com: {token: hunter2}", "in ASCII"},
		"Scheme":      {"git:// has no logins.", "git://git.example.com: {token: hunter2}", "begins with"},
		"NoScheme":    {"A host alone could be anything.", "git.example.com: {token: hunter2}", "scheme://host"},
		"Twice":       {"Two names of one address.", "https://git.example.com: {token: hunter2}\nhttps://git.example.com:443: {token: x}", "stands there twice"},
		"Duplicate":   {"YAML would take the last.", "https://a: {token: hunter2}\nhttps://a: {token: x}", "duplicate key"},
		"Unknown":     {"A misspelt key must not be overlooked.", "https://a: {pasword: hunter2}", "and nothing else"},
		"Type":        {"A password that is a list.", "https://a: {password: [hunter2]}", "and nothing else"},
		"Scalar":      {"The secret where the map should be.", "https://a: hunter2", "and nothing else"},
		"Both":        {"Which of the two?", "https://a: {password: hunter2, passwordFile: /p}", "not both"},
		"TokenToo":    {"Which of the two?", "https://a: {password: hunter2, token: x}", "not both"},
		"SSHPassword": {"A password is not sent over SSH.", "ssh://a: {password: hunter2}", "ssh takes keyFile"},
		"KeyForHTTPS": {"As above, the other way round.", "https://a: {keyFile: /k}", "are for ssh"},
		"Anchor":      {"An alias bomb starts so.", "https://a: &a {token: hunter2}\nhttps://b: *a", "anchors"},
		"Deep":        {"Nested without end.", "https://a: " + strings.Repeat("[", 50_000), ""},
		"NotYAML":     {"Something else.", "\x00hunter2", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addresses, err := gitrepo.ParseCredentials([]byte(c.content))
			if name == "Good" {
				want := "http://git.lab:3000 https://git.example.com:443 https://git.example.com:8443 ssh://git.example.com:2222"
				if got := strings.Join(addresses, " "); err != nil || got != want {
					t.Errorf("%s: %s, %v; want %s", c.why, got, err, want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v; want %q, without the secret", c.why, err, c.want)
			}
		})
	}
}

// Where a repository is said to be is where it is read, and where its
// credentials go.
func TestRedirects(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	s := gittest.Serve(t, g)
	var leaked atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); ok {
			leaked.Store(true)
		}
		http.Redirect(w, r, s.URL+r.URL.String(), http.StatusFound)
	}))
	t.Cleanup(elsewhere.Close)
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, s.URL+r.URL.String(), http.StatusFound)
	}))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // of those who don't trust its certificate
	secure.StartTLS()
	t.Cleanup(secure.Close)
	ca := logins(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))

	front := httptest.NewServer(nil)
	t.Cleanup(front.Close)
	proxy := func(w http.ResponseWriter, r *http.Request, path string) {
		out := r.Clone(r.Context())
		out.URL, _ = url.Parse(s.URL + path + "?" + r.URL.RawQuery)
		out.RequestURI, out.Host = "", ""
		res, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = res.Body.Close() }()
		maps.Copy(w.Header(), res.Header)
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body)
	}
	front.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/old/"):
			http.Redirect(w, r, "/"+strings.TrimPrefix(r.URL.String(), "/old/"), http.StatusMovedPermanently)
		case strings.HasPrefix(r.URL.Path, "/elsewhere/"):
			http.Redirect(w, r, elsewhere.URL+strings.TrimPrefix(r.URL.String(), "/elsewhere"), http.StatusFound)
		case strings.HasPrefix(r.URL.Path, "/loop/"):
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		case strings.HasPrefix(r.URL.Path, "/user/"):
			http.Redirect(w, r, strings.Replace(front.URL, "http://", "http://x:y@", 1)+strings.TrimPrefix(r.URL.String(), "/user"), http.StatusFound)
		default:
			proxy(w, r, r.URL.Path)
		}
	})
	cases := map[string]struct{ why, url, file, want string }{
		"SameServer": {"A repository that was renamed.", front.URL + "/old/fleet.git", "", ""},
		"Elsewhere":  {"Another host, which would learn the password.", front.URL + "/elsewhere/fleet.git", "", "redirects to " + elsewhere.URL},
		"Downgrade":  {"From https to http.", secure.URL + "/fleet.git", secure.URL + ": {username: robot, password: hunter2, caFile: " + ca + "}", "changes scheme"},
		"Loop":       {"The server redirects in a circle.", front.URL + "/loop/fleet.git", "", "redirect"},
		"User":       {"Credentials of the server's choice.", front.URL + "/user/fleet.git", "", "redirects to"},
		"StrangeCA":  {"No known authority has signed the certificate.", secure.URL + "/fleet.git", "", "certificate"},
		"OtherCA":    {"Another authority has signed the certificate.", secure.URL + "/fleet.git", secure.URL + ": {caFile: " + otherCA(t) + "}", "certificate"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := gitrepo.Options{URL: strings.Replace(c.url, "http://", "http://robot:hunter2@", 1), CacheDir: t.TempDir()}
			if c.file != "" {
				opts.Credentials = logins(t, c.file)
			}
			if c.want == "" {
				s.Set(func() { s.Password = "" })
				opts.URL = c.url
			}
			_, err := gitrepo.Open(t.Context(), opts)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v; want %q", c.why, err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows the password: %v", err)
			}
			if leaked.Load() {
				t.Error("the other host was sent credentials")
			}
		})
	}
}

// otherCA is a certificate authority that vouches for no server of the test.
func otherCA(t *testing.T) string {
	t.Helper()
	public, private := gittest.NewKey(t)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, public, private)
	fatal(t, err)
	return logins(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
}

// sshGit is an SSH server that runs git's services, and nothing else.
type sshGit struct {
	address string
	hostKey ssh.Signer
	user    ssh.Signer // who may log in
	mu      sync.Mutex
	mute    bool // it accepts a session, and says nothing
	endless bool // it answers with refs without end
	asked   []string
}

func serveSSH(t *testing.T, g *gittest.Repo) *sshGit {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs the git binary")
	}
	host, _ := gittest.SSHKey(t)
	s := &sshGit{hostKey: host}
	s.user, _ = gittest.SSHKey(t)
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if string(key.Marshal()) != string(s.user.PublicKey().Marshal()) {
			return nil, errors.New("who are you?")
		}
		return &ssh.Permissions{}, nil
	}}
	config.AddHostKey(host)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	fatal(t, err)
	s.address = l.Addr().String()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			wg.Go(func() { s.serve(conn, config, filepath.Dir(g.Path)) })
		}
	})
	return s
}

func (s *sshGit) serve(conn net.Conn, config *ssh.ServerConfig, root string) {
	defer func() { _ = conn.Close() }()
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for c := range channels {
		channel, requests, err := c.Accept()
		if err != nil {
			return
		}
		for r := range requests {
			if r.Type != "exec" {
				_ = r.Reply(false, nil)
				continue
			}
			var command struct{ Line string }
			if ssh.Unmarshal(r.Payload, &command) != nil {
				return
			}
			_ = r.Reply(true, nil)
			s.mu.Lock()
			s.asked = append(s.asked, command.Line)
			mute, endless := s.mute, s.endless
			s.mu.Unlock()
			if mute {
				continue
			}
			if endless {
				for i := 0; ; i++ {
					line := fmt.Sprintf("1234567890123456789012345678901234567890 refs/heads/b%d\x00 \n", i)
					if i > 0 {
						line = strings.Replace(line, "\x00 ", "", 1)
					}
					if _, err := fmt.Fprintf(channel, "%04x%s", len(line)+4, line); err != nil {
						return
					}
				}
			}
			service, name, _ := strings.Cut(strings.TrimPrefix(command.Line, "git-"), " ")
			name = strings.Trim(name, "'")
			cmd := exec.Command("git", service, filepath.Join(root, filepath.Base(name))) //nolint:noctx // ends with its input
			cmd.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
			cmd.Stdin, cmd.Stdout = channel, channel
			_ = cmd.Run()
			_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{0}))
			_ = channel.Close()
		}
	}
}

func (s *sshGit) url() string { return "ssh://git@" + s.address + "/srv/fleet.git" }

// login writes the credentials for the server; knows is the host key that
// known_hosts holds, nil: none.
func (s *sshGit) login(t *testing.T, key string, knows ssh.Signer) string {
	t.Helper()
	known := logins(t, "")
	if knows != nil {
		fatal(t, os.WriteFile(known, []byte(knownhosts.Line([]string{s.address}, knows.PublicKey())+"\n"), 0o600))
	}
	return logins(t, fmt.Sprintf("ssh://%s: {keyFile: %s, knownHostsFile: %s}", s.address, key, known))
}

// privateKey writes a new key, and returns it with its file.
func (s *sshGit) privateKey(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "id")
	_, private := gittest.NewKey(t)
	block, err := ssh.MarshalPrivateKey(private, "")
	fatal(t, err)
	fatal(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	signer, err := ssh.NewSignerFromKey(private)
	fatal(t, err)
	s.user = signer
	return file
}

func TestSSH(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		file func(t *testing.T, s *sshGit) string
		want string
	}{
		"Known": {"A key file and a host that is known.", func(t *testing.T, s *sshGit) string {
			return s.login(t, s.privateKey(t), s.hostKey)
		}, ""},
		"Unknown": {"There is no trust on first use.", func(t *testing.T, s *sshGit) string {
			return s.login(t, s.privateKey(t), nil)
		}, "ssh-keyscan -t ed25519 -p"},
		"Changed": {"The server has another host key, as an attacker in between would.", func(t *testing.T, s *sshGit) string {
			other, _ := gittest.SSHKey(t)
			return s.login(t, s.privateKey(t), other)
		}, "is another than the one in"},
		"Stranger": {"A key that the server does not know.", func(t *testing.T, s *sshGit) string {
			file := s.privateKey(t)
			s.user, _ = gittest.SSHKey(t)
			return s.login(t, file, s.hostKey)
		}, "unable to authenticate"},
		"NoKeyFile": {"The file is not there.", func(t *testing.T, s *sshGit) string {
			return s.login(t, "/nonexistent", s.hostKey)
		}, "read the SSH key"},
		"NoKnownHosts": {"The file is not there.", func(t *testing.T, s *sshGit) string {
			return logins(t, fmt.Sprintf("ssh://%s: {keyFile: %s, knownHostsFile: /nonexistent}", s.address, s.privateKey(t)))
		}, "read known hosts"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gittest.NewRepo(t)
			writeFleet(g)
			s := serveSSH(t, g)
			r, err := gitrepo.Open(t.Context(), gitrepo.Options{URL: s.url(), CacheDir: t.TempDir(), Credentials: c.file(t, s)})
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), s.url()) {
					t.Errorf("%s: %v; want %q", c.why, err, c.want)
				}
				return
			}
			fatal(t, err)
			g.Write("README.md", "x")
			second := g.Commit().String()
			fatal(t, r.Fetch(t.Context()))
			if now, err := r.Resolve("HEAD"); err != nil || now != second {
				t.Error("a fetch brought nothing")
			}
			if s.asked[0] != "git-upload-pack '/srv/fleet.git'" {
				t.Errorf("it asked the server to run %q", s.asked[0])
			}
		})
	}
}

func TestSSHAgent(t *testing.T) {
	g := gittest.NewRepo(t)
	writeFleet(g)
	s := serveSSH(t, g)
	_, private := gittest.NewKey(t)
	signer, err := ssh.NewSignerFromKey(private)
	fatal(t, err)
	s.user = signer
	ring := agent.NewKeyring()
	fatal(t, ring.Add(agent.AddedKey{PrivateKey: private}))
	dir, err := os.MkdirTemp("", "agent") //nolint:usetesting // a socket needs a short path
	fatal(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	fatal(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _ = agent.ServeAgent(ring, conn) }()
		}
	}()
	t.Setenv("SSH_AUTH_SOCK", l.Addr().String())
	known := logins(t, knownhosts.Line([]string{s.address}, s.hostKey.PublicKey())+"\n")
	opts := gitrepo.Options{URL: s.url(), CacheDir: t.TempDir(), Credentials: logins(t, fmt.Sprintf("ssh://%s: {knownHostsFile: %s}", s.address, known))}
	if _, err := gitrepo.Open(t.Context(), opts); err != nil {
		t.Error(err)
	}
	t.Setenv("SSH_AUTH_SOCK", "")
	opts.CacheDir = t.TempDir()
	if _, err := gitrepo.Open(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "start an SSH agent") {
		t.Errorf("without key and agent: %v", err)
	}
}

// A server that says nothing, or does not stop, does not hold a fetch.
func TestServersThatDoNotEnd(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	// One limit is short at a time: on a busy machine every server is slow, and silent for a while.
	const silence, patience = 4 * time.Second, 2 * time.Minute
	silent := gitrepo.Limits{Silence: silence, Time: patience, RefBytes: 1 << 20}
	slow := gitrepo.Limits{Silence: patience, Time: 10 * time.Second, RefBytes: 1 << 20}
	large := gitrepo.Limits{Silence: patience, Time: patience, RefBytes: 1 << 20}

	ssh := serveSSH(t, g)
	mute := serveSSH(t, g)
	mute.mute, ssh.endless = true, true
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts, in the kernel, and never answers
	fatal(t, err)
	t.Cleanup(func() { _ = listener.Close() })

	done := make(chan struct{})
	flow := func(header string, write func(w io.Writer, i int) error) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = io.WriteString(w, header)
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				case <-r.Context().Done():
					return
				default:
				}
				if write == nil {
					w.(http.Flusher).Flush()
					select {
					case <-done:
					case <-r.Context().Done():
					}
					return
				}
				if write(w, i) != nil {
					return
				}
			}
		}))
		t.Cleanup(s.Close)
		return s.URL + "/fleet.git"
	}
	t.Cleanup(func() { close(done) })
	const service = "001e# service=git-upload-pack\n0000"
	refs := func(w io.Writer, i int) error {
		line := fmt.Sprintf("1234567890123456789012345678901234567890 refs/heads/b%d", i)
		if i == 0 {
			line += "\x00 "
		}
		_, err := fmt.Fprintf(w, "%04x%s\n", len(line)+5, line)
		return err
	}
	drip := func(w io.Writer, i int) error {
		timer := time.NewTimer(silence / 200)
		defer timer.Stop()
		<-timer.C
		err := refs(w, i)
		w.(http.Flusher).Flush()
		return err
	}
	garbage := func(w io.Writer, _ int) error { _, err := w.Write(make([]byte, 4096)); return err }
	cases := map[string]struct {
		why, url, credentials string
		limits                gitrepo.Limits
		want                  string
	}{
		"Dead":       {"It accepts and says nothing.", "http://" + listener.Addr().String() + "/fleet.git", "", silent, ""},
		"DeadSSH":    {"As above.", "ssh://git@" + listener.Addr().String() + "/fleet.git", mute.loginFor(t, listener.Addr().String()), silent, "silent for 4s"},
		"MuteSSH":    {"It lets us in and says nothing.", mute.url(), mute.login(t, mute.privateKey(t), mute.hostKey), silent, "silent for 4s"},
		"EndlessSSH": {"Refs without end.", ssh.url(), ssh.login(t, ssh.privateKey(t), ssh.hostKey), large, "sends more than is allowed"},
		"Stalled":    {"It begins, and stops.", flow(service, nil), "", silent, "silent for 4s"},
		"Endless":    {"Refs without end.", flow(service, refs), "", large, "sends more than is allowed"},
		"Drip":       {"Never silent, never done.", flow(service, drip), "", slow, "longer than 10s"},
		"Garbage":    {"No git at all.", flow("", garbage), "", large, "list its branches and tags"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			opts := gitrepo.Options{URL: c.url, CacheDir: t.TempDir(), Limits: c.limits, Credentials: c.credentials}
			_, err := gitrepo.Open(ctx, opts)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.url) {
				t.Errorf("%s: %v; want %q", c.why, err, c.want)
			}
			if ctx.Err() != nil {
				t.Errorf("%s: it did not end by itself", c.why)
			}
		})
	}
}

// loginFor is a login at another address.
func (s *sshGit) loginFor(t *testing.T, address string) string {
	t.Helper()
	return logins(t, fmt.Sprintf("ssh://%s: {keyFile: %s, knownHostsFile: %s}", address, s.privateKey(t), logins(t, "")))
}
