package lease

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// clock is one that a test sets.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

const term = 10 * time.Second

// TestGate has a server that notes what arrives.
func TestGate(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why     string
		live    func(*Gate, *clock)
		arrives []string // of a request of each method
	}{
		"NeverAcquired": {
			why:     "A process that waits for the lease may read, but not write.",
			live:    func(*Gate, *clock) {},
			arrives: []string{"GET", "HEAD"},
		},
		"Renewed": {
			why:     "The holder writes.",
			live:    func(g *Gate, c *clock) { g.renewed(c.now()); c.pass(term - 1) },
			arrives: []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"},
		},
		"Expired": {
			why:     "The moment at which the lease may expire is already too late.",
			live:    func(g *Gate, c *clock) { g.renewed(c.now()); c.pass(term) },
			arrives: []string{"GET", "HEAD"},
		},
		"SlowRenewal": {
			why: "The term counts from the sending of a renewal: the API server may have handled it at once.",
			live: func(g *Gate, c *clock) {
				begun := c.now()
				c.pass(term / 2)
				g.renewed(begun)
				c.pass(term / 2)
			},
			arrives: []string{"GET", "HEAD"},
		},
		"RenewedAgain": {
			why: "A renewal counts also after the previous one expired: it would have failed if another process had taken the lease.",
			live: func(g *Gate, c *clock) {
				g.renewed(c.now())
				c.pass(2 * term)
				g.renewed(c.now())
			},
			arrives: []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"},
		},
		"OlderRenewal": {
			why: "Answers may come out of order; the newest renewal counts.",
			live: func(g *Gate, c *clock) {
				old := c.now()
				c.pass(term / 2)
				g.renewed(c.now())
				g.renewed(old)
				c.pass(term / 2)
			},
			arrives: []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"},
		},
		"Lost": {
			why:     "A process that lost its lease never writes again, whatever is renewed after that.",
			live:    func(g *Gate, c *clock) { g.renewed(c.now()); g.close(); g.renewed(c.now()) },
			arrives: []string{"GET", "HEAD"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = append(got, r.Method) }))
			defer server.Close()
			c := &clock{at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
			g := newGate(c.now, term)
			tc.live(g, c)
			client := &http.Client{Transport: g.Wrap(http.DefaultTransport)}
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
				err := send(t.Context(), client, method, server.URL)
				if sent := slices.Contains(tc.arrives, method); (err == nil) != sent || !sent && !errors.Is(err, ErrLost) {
					t.Errorf("%s: got error %v, want sent: %v", method, err, sent)
				}
			}
			if !slices.Equal(got, tc.arrives) {
				t.Errorf("%s got %v, want %v", tc.why, got, tc.arrives)
			}
		})
	}
}

func send(ctx context.Context, c *http.Client, method, url string) error {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	answer, err := c.Do(r)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// The machine was suspended: its monotonic clock stood still, and the wall clock
// was set right afterwards.
func TestGateAfterSuspend(t *testing.T) {
	t.Parallel()
	now := time.Now() // with a monotonic reading
	g := newGate(func() time.Time { return now }, term)
	g.renewed(now)
	if err := g.Check(); err != nil {
		t.Fatal(err)
	}
	now = now.Round(0).Add(term) // the wall clock alone
	if err := g.Check(); !errors.Is(err, ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
}

// hang ends when the client has gone. A server learns of that once it has read
// the request.
func hang(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// What is on its way when the lease is lost is given up.
func TestGateEndsFlights(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		hang(r)
	}))
	defer server.Close()
	g := newGate(time.Now, time.Minute)
	g.renewed(time.Now())
	go func() {
		<-arrived
		g.close()
	}()
	err := send(t.Context(), &http.Client{Transport: g.Wrap(&http.Transport{})}, http.MethodPatch, server.URL)
	if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "was canceled before its answer") {
		t.Errorf("got %v, want ErrLost", err)
	}
}

// A process that is stopped between its look at the clock and the socket, and goes on
// when its term has ended, sends the write no more: the server doesn't get the end of
// it, neither over HTTP/1 nor HTTP/2, and not if it is sent again.
func TestGateLooksAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why   string
		http2 bool
		again bool // the transport asks for the body once more
		late  bool
	}{
		"InTime": {why: "The write of a holder arrives.", http2: true},
		"HTTP1":  {why: "It was stopped.", late: true},
		"HTTP2":  {why: "It was stopped.", http2: true, late: true},
		"Again":  {why: "The first connection broke.", http2: true, again: true, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var whole atomic.Int32
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if body, err := io.ReadAll(r.Body); err == nil && string(body) == "{}" {
					whole.Add(1)
				}
			}))
			server.EnableHTTP2 = c.http2
			server.StartTLS()
			defer server.Close()
			clock := &clock{at: time.Now()}
			g := newGate(clock.now, term)
			g.renewed(clock.now())
			stopped := roundTripper(func(r *http.Request) (*http.Response, error) {
				if c.late {
					clock.pass(term)
				}
				if c.again {
					body, err := r.GetBody()
					if err != nil {
						return nil, err
					}
					r.Body = body
				}
				return server.Client().Transport.RoundTrip(r)
			})
			err := send(t.Context(), &http.Client{Transport: g.Wrap(stopped)}, http.MethodPut, server.URL)
			if c.late != (err != nil) || c.late && !errors.Is(err, ErrLost) {
				t.Errorf("%s %v", c.why, err)
			}
			if got := whole.Load() == 1; got == c.late {
				t.Errorf("%s The server got all of it: %v", c.why, got)
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The same without anybody who says so: the term simply ends.
func TestGateEndsFlightsByItself(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hang(r) }))
	defer server.Close()
	g := newGate(time.Now, 100*time.Millisecond)
	g.renewed(time.Now())
	err := send(t.Context(), &http.Client{Transport: g.Wrap(&http.Transport{})}, http.MethodPatch, server.URL)
	if !errors.Is(err, ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
}
