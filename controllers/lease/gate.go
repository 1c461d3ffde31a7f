package lease

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// Gate lets writes pass only while its process certainly holds the lease, and reads always. The
// zero Gate is not usable: a [Lease] makes its gate.
//
// It makes no request. Each renewal opens it for the renew deadline, counted from the start of the
// renewal. No other process takes the lease before its duration, which is longer, has passed since
// the API server received that renewal.
type Gate struct {
	now  func() time.Time
	span time.Duration

	mu sync.Mutex
	// begun is the start of the last successful renewal; zero: there was none.
	begun time.Time
	// shut: the gate never opens again.
	shut    bool
	expiry  *time.Timer
	flights map[*flight]bool
}

// flight is a write in flight.
type flight struct{ cancel context.CancelCauseFunc }

func newGate(now func() time.Time, span time.Duration) *Gate {
	return &Gate{now: now, span: span, flights: map[*flight]bool{}}
}

// Check returns [ErrLost] unless the lease is certainly held now.
func (g *Gate) Check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.check()
}

func (g *Gate) check() error {
	switch {
	case g.shut:
		return ErrLost
	case g.begun.IsZero():
		return fmt.Errorf("%w: it was not acquired yet", ErrLost)
	}
	now := g.now()
	// The monotonic clock runs while the process is stopped (SIGSTOP), but not while the machine is
	// suspended. The wall clock is corrected right after a suspension. The longer of both times
	// counts.
	passed := max(now.Sub(g.begun), now.Round(0).Sub(g.begun.Round(0)))
	if passed >= g.span {
		return fmt.Errorf("%w: it was last renewed %s ago", ErrLost, passed.Round(time.Millisecond))
	}
	return nil
}

// renewed opens the gate. A slow renewal opens it for a shorter time, and a renewal that began
// before the last one changes nothing.
func (g *Gate) renewed(begun time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut || begun.Before(g.begun) {
		return
	}
	g.begun = begun
	if g.expiry != nil {
		g.expiry.Stop()
	}
	g.expiry = time.AfterFunc(g.span-g.now().Sub(begun), g.expire)
}

// expire cancels the writes in flight, unless a renewal came meanwhile.
func (g *Gate) expire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.check(); err != nil {
		g.land(err)
	}
}

// close shuts the gate for good, and cancels the writes in flight.
func (g *Gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	if g.expiry != nil {
		g.expiry.Stop()
	}
	g.land(ErrLost)
}

func (g *Gate) land(why error) {
	for f := range g.flights {
		f.cancel(why)
	}
	clear(g.flights)
}

// register registers a write, or refuses it.
func (g *Gate) register(f *flight) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.check(); err != nil {
		return err
	}
	g.flights[f] = true
	return nil
}

func (g *Gate) landed(f *flight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.flights, f)
}

// Wrap returns a transport that refuses writes with [ErrLost] while the gate is closed. A write in
// flight is cancelled when the gate closes. Whether it arrived is then unknown, as after any broken
// connection.
func (g *Gate) Wrap(next http.RoundTripper) http.RoundTripper {
	return &gated{gate: g, next: next}
}

type gated struct {
	gate *Gate
	next http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (t *gated) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions {
		return t.next.RoundTrip(r) //nolint:wrapcheck // a transport passes on what it gets
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	f := &flight{cancel: cancel}
	if err := t.gate.register(f); err != nil {
		cancel(nil)
		if r.Body != nil {
			_ = r.Body.Close() // the contract of RoundTripper requires it, and errors of a read do not matter
		}
		return nil, fmt.Errorf("%s %s was not sent: %w", r.Method, r.URL.Path, err)
	}
	sent := r.WithContext(ctx)
	if r.Body != nil {
		sent.Body = &lastLook{ReadCloser: r.Body, gate: t.gate}
	}
	if again := r.GetBody; again != nil { // for a transport that repeats a request
		sent.GetBody = func() (io.ReadCloser, error) {
			body, err := again()
			return &lastLook{ReadCloser: body, gate: t.gate}, err
		}
	}
	answer, err := t.next.RoundTrip(sent)
	t.gate.landed(f)
	if err != nil {
		cause := context.Cause(ctx)
		cancel(nil)
		if r.Context().Err() == nil && cause != nil {
			return nil, fmt.Errorf("%s %s was canceled before its answer: %w", r.Method, r.URL.Path, cause)
		}
		return nil, err //nolint:wrapcheck // as above
	}
	answer.Body = &answered{ReadCloser: answer.Body, cancel: cancel}
	return answer, nil
}

// lastLook checks the gate again whenever the body of a write is read for sending. A process may be
// stopped after the first check, and continue after the deadline. Then the request stays
// incomplete, and no server acts on it.
type lastLook struct {
	io.ReadCloser
	gate *Gate
}

// Read implements [io.Reader].
func (l *lastLook) Read(into []byte) (int, error) {
	if err := l.gate.Check(); err != nil {
		return 0, err
	}
	n, err := l.ReadCloser.Read(into)
	return n, err //nolint:wrapcheck // a reader passes on what it gets
}

// WrappedRoundTripper gives client-go the wrapped transport.
func (t *gated) WrappedRoundTripper() http.RoundTripper { return t.next }

// answered frees the request's context when the answer is closed.
type answered struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

// Close implements [io.Closer].
func (a *answered) Close() error {
	defer a.cancel(nil)
	return a.ReadCloser.Close() //nolint:wrapcheck // as above
}
