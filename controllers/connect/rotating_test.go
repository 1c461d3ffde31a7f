package connect_test

import (
	"bytes"
	"context"
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

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/connect"
)

// guarded is a server that lets one token in at a time, and tells how it was asked.
type guarded struct {
	*httptest.Server
	mu      sync.Mutex
	valid   string
	carried []string // what was let in: token, method, path and body
	refused int
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{valid: "one"}
	g.Server = httptest.NewTLSServer(g)
	t.Cleanup(g.Close)
	return g
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // a test server: what can't be read is missed below
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	g.mu.Lock()
	valid := token == g.valid
	if !valid {
		g.refused++
	} else if r.URL.Path != "/version" {
		g.carried = append(g.carried, fmt.Sprintf("%s %s %s %s", token, r.Method, r.URL.Path, body))
	}
	g.mu.Unlock()
	if !valid {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		return
	}
	fmt.Fprintln(w, "begun")
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// rotate has the second token accepted, and the first refused.
func (g *guarded) rotate() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.valid = "two"
}

func (g *guarded) saw() (carried []string, refused int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	carried, refused = g.carried, g.refused
	g.carried, g.refused = nil, 0
	return carried, refused
}

// dialled is a line to a guarded server, with credentials that a test sets.
type dialled struct {
	*connect.RotatingClient
	t      *testing.T
	server *guarded

	mu     sync.Mutex
	config *rest.Config
	err    error
	reads  int
	heard  chan string
}

func dial(t *testing.T, g *guarded) *dialled {
	t.Helper()
	d := &dialled{t: t, server: g, heard: make(chan string, 16)}
	d.is("one", nil)
	var err error
	d.RotatingClient, err = connect.Dial(t.Context(), time.Now, d.read, connect.Callbacks{
		Renewed: func() { d.heard <- "renewed" },
		Trouble: func(err error) { d.heard <- fmt.Sprint("trouble: ", err) },
		Moved:   func(server string) { d.heard <- "moved: " + server },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return d
}

func (d *dialled) read(context.Context) (*rest.Config, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads++
	return d.config, d.err
}

// is sets what there is to be read.
func (d *dialled) is(token string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.config = &rest.Config{Host: d.server.URL, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	d.err = err
}

// hears waits for what is heard next.
func (d *dialled) hears(want string) {
	d.t.Helper()
	select {
	case got := <-d.heard:
		if !strings.Contains(got, want) {
			d.t.Errorf("heard %q, want %q", got, want)
		}
	case <-time.After(patience):
		d.t.Fatalf("nothing was heard, want %q", want)
	}
}

const patience = 3 * time.Minute

func (d *dialled) ask(method, path, body string) int {
	d.t.Helper()
	client, err := rest.HTTPClientFor(d.Config())
	if err != nil {
		d.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(d.t.Context(), method, d.server.URL+path, bytes.NewReader([]byte(body)))
	if err != nil {
		d.t.Fatal(err)
	}
	answer, err := client.Do(r)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil {
		d.t.Fatal(err)
	}
	return answer.StatusCode
}

// Clients that were made before go on with new credentials, and a watch ends in an
// ordinary way.
func TestLineRenews(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	d := dial(t, g)
	client, err := rest.HTTPClientFor(d.Config())
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.URL+"/things?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	g.rotate()
	d.is("two", nil)
	d.Again()
	d.hears("renewed")
	if rest, err := io.ReadAll(watch.Body); err != nil || string(rest) != "begun\n" {
		t.Errorf("the watch brought %q and ended with %v, want an ordinary end", rest, err)
	}
	if err := watch.Body.Close(); err != nil {
		t.Error(err)
	}
	if status := d.ask(http.MethodGet, "/after", ""); status != http.StatusOK {
		t.Errorf("afterwards: %d", status)
	}
	if carried, refused := g.saw(); refused != 0 || carried[len(carried)-1] != "two GET /after " {
		t.Errorf("it was asked %v, and refused %d", carried, refused)
	}
}

// A refusal has the credentials read at once, and the request sent again with its
// body; where nothing is new the refusal stands, and the next ones cost no read.
func TestLineRefused(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	d := dial(t, g)
	g.rotate()
	for range 20 {
		if status := d.ask(http.MethodPost, "/in-vain", "body"); status != http.StatusUnauthorized {
			t.Fatalf("with revoked credentials: %d", status)
		}
	}
	d.mu.Lock()
	if d.reads > 1+5 { // one to dial, and at 0, 0.5, 1.5 … seconds
		t.Errorf("20 refusals had the credentials read %d times", d.reads)
	}
	d.mu.Unlock()
	d.is("two", nil)
	g.saw()
	var wg sync.WaitGroup
	deadline := time.Now().Add(patience)
	for d.ask(http.MethodPost, "/first", "a body") != http.StatusOK {
		if time.Now().After(deadline) {
			t.Fatal("new credentials were not found")
		}
		<-time.After(20 * time.Millisecond)
	}
	for range 10 {
		wg.Go(func() {
			if status := d.ask(http.MethodPost, "/then", "a body"); status != http.StatusOK {
				t.Errorf("with new ones: %d", status)
			}
		})
	}
	wg.Wait()
	carried, _ := g.saw()
	if len(carried) != 11 || carried[0] != "two POST /first a body" {
		t.Errorf("it was asked %v", carried)
	}
}

// The first refusal after the credentials were replaced is not seen by the client.
func TestLineRefusedOnce(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	d := dial(t, g)
	if status := d.ask(http.MethodPost, "/before", "x"); status != http.StatusOK {
		t.Fatalf("before: %d", status)
	}
	g.rotate()
	d.is("two", nil)
	if status := d.ask(http.MethodPost, "/after", "y"); status != http.StatusOK {
		t.Errorf("after: %d", status)
	}
	if carried, refused := g.saw(); refused != 1 || len(carried) != 2 || carried[1] != "two POST /after y" {
		t.Errorf("it was asked %v, and refused %d", carried, refused)
	}
}

// What can't be read, or is refused, replaces nothing, and is told once.
func TestLineKeeps(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why   string
		token string
		err   error
		says  string
	}{
		"Unreadable": {"A Secret may be gone, empty or malformed.", "", errors.New("no such Secret"), "no such Secret"},
		"Refused":    {"A token may be mistyped.", "mistyped", nil, "refuses the new credentials"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t)
			d := dial(t, g)
			d.is(c.token, c.err)
			d.Again()
			d.hears(c.says)
			if status := d.ask(http.MethodGet, "/", ""); status != http.StatusOK {
				t.Errorf("%s: the credentials from before are not in use: %d", c.why, status)
			}
			d.is("one", nil)
			d.hears("trouble: <nil>") // it is tried again by itself
			select {
			case also := <-d.heard:
				t.Errorf("it was told %q, too", also)
			default:
			}
		})
	}
}

// Credentials of another server are not used on this one, nor the line moved.
func TestLineMoved(t *testing.T) {
	t.Parallel()
	g, other := newGuarded(t), newGuarded(t)
	d := dial(t, g)
	d.mu.Lock()
	d.config = &rest.Config{Host: other.URL, BearerToken: "one", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	d.mu.Unlock()
	d.Again()
	d.hears("moved: " + other.URL)
	if status := d.ask(http.MethodGet, "/", ""); status != http.StatusOK {
		t.Errorf("the line leads nowhere: %d", status)
	}
	if carried, _ := other.saw(); len(carried) > 0 {
		t.Errorf("the other server was asked %v", carried)
	}
}

// A token in a file is client-go's to read again, and the request that finds it
// replaced is sent again, too.
func TestLineTokenFile(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	path := kubeconfigFile(t, `{server: "`+g.URL+`", insecure-skip-tls-verify: true}`, `{tokenFile: `+file+`}`)
	s := connect.Source{Kubeconfig: path}
	l, err := connect.Dial(t.Context(), time.Now, func(ctx context.Context) (*rest.Config, error) {
		return s.Config(ctx, v1alpha1.Connection{Context: "prod"})
	}, connect.Callbacks{})
	if err != nil {
		t.Fatal(err)
	}
	go l.Run(t.Context())
	d := &dialled{RotatingClient: l, t: t, server: g}
	if status := d.ask(http.MethodGet, "/before", ""); status != http.StatusOK {
		t.Fatalf("before: %d", status)
	}
	write("two")
	g.rotate()
	deadline := time.Now().Add(patience)
	for d.ask(http.MethodGet, "/after", "") != http.StatusOK { // Run may not have begun
		if time.Now().After(deadline) {
			t.Fatal("the token was not read again")
		}
		<-time.After(20 * time.Millisecond)
	}
	if _, refused := g.saw(); refused > 2 {
		t.Errorf("%d requests were refused", refused)
	}
}

// A kubeconfig that is written anew is followed, and so are certificates in files.
func TestFollowFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certificate := filepath.Join(dir, "tls.crt")
	write := func(path, content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(certificate, "a")
	path := kubeconfigFile(t, `{server: "https://prod.example"}`, `{client-certificate: `+certificate+`, client-key: `+certificate+`}`)
	s := connect.Source{Kubeconfig: path}
	changed := make(chan struct{}, 16)
	connect.SetFilesEvery(&s, 10*time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	began := make(chan struct{})
	go func() {
		defer close(done)
		close(began)
		s.Follow(ctx, v1alpha1.Connection{Context: "prod"}, func() { changed <- struct{}{} })
	}()
	defer func() {
		stop()
		<-done
	}()
	<-began
	for i, file := range []string{certificate, path, certificate} {
		deadline := time.After(patience)
		for heard := false; !heard; { // the first look may come after the first write
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			write(file, string(content)+"\n")
			select {
			case <-changed:
				heard = true
			case <-time.After(100 * time.Millisecond):
			case <-deadline:
				t.Fatalf("change %d of %s was not seen", i, file)
			}
		}
	}
}

func kubeconfigFile(t *testing.T, cluster, user string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(kubeconfig(cluster, user)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
