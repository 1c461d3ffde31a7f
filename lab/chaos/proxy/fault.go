package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Fault is a fault that the proxy injects into one request.
type Fault uint8

// The faults. A fault that doesn't fit a request, such as CutWatch for a get, has no
// effect.
const (
	Pass           Fault = iota
	Status               // answered with Code and not forwarded
	Hang                 // not answered and not forwarded; then the request is aborted
	ResetBefore          // aborted and not forwarded
	ResetMidAnswer       // forwarded; aborted in the middle of the answer, after half of the first read
	DropAnswer           // forwarded and carried out; aborted before the answer
	Drip                 // forwarded; the first 64 bytes of the answer are sent one by one, every 10 ms
	CutWatch             // a watch ends without an error after a time
	Gone410              // a watch or list gets the error 410: its resourceVersion is too old
)

// String returns the name of the fault, for tables.
func (f Fault) String() string {
	return [...]string{"pass", "status", "hang", "reset before", "reset in mid-answer", "answer lost", "slow drip", "cut watch", "410 Gone"}[f]
}

// Verdict is the decision about one request. The zero Verdict lets the request pass.
type Verdict struct {
	Fault Fault

	// Code is the HTTP code of a Status: 429, 500, 503 …
	Code int
	// RetryAfter of a Status is sent in whole seconds, rounded up. 0: not sent.
	RetryAfter time.Duration
	// Plain sends a Status as a line of text, as intermediate proxies do, instead of
	// the API server's Status object.
	Plain bool

	// For is the longest duration of a Hang, and the time after which CutWatch ends a
	// watch. 0: a Hang lasts until the client gives up or the proxy closes, and a watch
	// ends at once.
	For time.Duration
	// Connection makes a fault reset the client's whole connection, with every request
	// on it, instead of only this request's stream.
	Connection bool

	// Before is called before the request is forwarded. Answered is called after the
	// API server has answered, before the client gets any of the answer. Both may be
	// nil and may block. A request that isn't forwarded calls neither.
	Before, Answered func()
}

// exchange is one request in progress.
type exchange struct {
	proxy   *Proxy
	request Request
	verdict Verdict
	to      *upstream
}

func (e *exchange) carryOut(w http.ResponseWriter, r *http.Request) {
	switch e.verdict.Fault {
	case Status:
		e.refuse(w)
	case Hang:
		e.wait(r.Context(), e.verdict.For)
		e.breakOff(r.Context())
	case ResetBefore:
		e.breakOff(r.Context())
	case Gone410:
		switch e.request.Verb {
		case "watch":
			e.goneWatch(w)
		case "list":
			e.write(w, http.StatusGone, expired())
		default:
			e.forward(w, r)
		}
	default:
		e.forward(w, r)
	}
}

// wait waits until bound has passed, unless bound is 0, or until the client gives up or
// the proxy closes.
func (e *exchange) wait(ctx context.Context, bound time.Duration) {
	var over <-chan time.Time
	if bound > 0 {
		timer := time.NewTimer(bound)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
	case <-ctx.Done():
	case <-e.proxy.closing:
	}
}

func (e *exchange) breakOff(ctx context.Context) {
	if e.verdict.Connection {
		reset(ctx)
	}
	panic(http.ErrAbortHandler)
}

// status returns the Status object with which API servers refuse a request.
func status(refusal *apierrors.StatusError) metav1.Status {
	s := refusal.Status()
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return s
}

func expired() metav1.Status {
	return status(apierrors.NewResourceExpired("too old resource version: 1 (2)"))
}

func (e *exchange) refuse(w http.ResponseWriter) {
	seconds := int((e.verdict.RetryAfter + time.Second - 1) / time.Second)
	if seconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
	if e.verdict.Plain {
		http.Error(w, http.StatusText(e.verdict.Code), e.verdict.Code)
		return
	}
	e.write(w, e.verdict.Code, status(apierrors.NewGenericServerResponse(
		e.verdict.Code, e.request.Verb, schema.GroupResource{}, "", "the fault proxy refuses it", seconds, false)))
}

func (e *exchange) write(w http.ResponseWriter, code int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("encode a Status: %v", err)) // plain values
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(data, '\n')) // an error means that the client has disconnected
}

// goneWatch answers a watch with the error 410 as its only event.
func (e *exchange) goneWatch(w http.ResponseWriter) {
	e.write(w, http.StatusOK, map[string]any{"type": "ERROR", "object": expired()})
}

// answered changes the API server's answer before the client gets it.
func (e *exchange) answered(ctx context.Context, answer *http.Response) error {
	switch e.verdict.Fault {
	case DropAnswer:
		if e.request.Watch() {
			break // the answer of a watch has no end
		}
		// The complete answer proves that the request was carried out.
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		e.hook()
		if e.verdict.Connection {
			reset(ctx)
		}
		return errLost
	case ResetMidAnswer:
		answer.Body = &brokenBody{ReadCloser: answer.Body, broken: func() {
			if e.verdict.Connection {
				reset(ctx)
			}
		}}
	case Drip:
		answer.Body = &drippingBody{ReadCloser: answer.Body, slow: 64, wait: func() { e.wait(ctx, 10*time.Millisecond) }}
	case CutWatch:
		if e.request.Watch() {
			answer.Body = e.cut(answer.Body)
		}
	case Pass, Status, Hang, ResetBefore, Gone410:
	}
	e.hook()
	return nil
}

func (e *exchange) hook() {
	if e.verdict.Answered != nil {
		e.verdict.Answered()
	}
}

// brokenBody is a body that ends with an error after half of the first read.
type brokenBody struct {
	io.ReadCloser
	spent  bool
	broken func()
}

func (b *brokenBody) Read(into []byte) (int, error) {
	if b.spent {
		b.broken()
		return 0, errLost
	}
	b.spent = true
	n, _ := b.ReadCloser.Read(into) // the error comes with the next read, so that these bytes are sent
	return (n + 1) / 2, nil
}

// drippingBody is a body that returns its first bytes one at a time.
type drippingBody struct {
	io.ReadCloser
	slow int
	wait func()
}

func (b *drippingBody) Read(into []byte) (int, error) {
	if b.slow > 0 && len(into) > 0 {
		b.wait()
		b.slow--
		into = into[:1]
	}
	return b.ReadCloser.Read(into) //nolint:wrapcheck // a reader passes on what it reads
}

// cut returns a body that ends with io.EOF after the verdict's time.
func (e *exchange) cut(body io.ReadCloser) io.ReadCloser {
	c := &cutBody{ReadCloser: body, over: make(chan struct{})}
	c.timer = time.AfterFunc(e.verdict.For, func() {
		close(c.over)
		_ = body.Close() // wakes the reader
	})
	return c
}

type cutBody struct {
	io.ReadCloser
	timer *time.Timer
	over  chan struct{}
}

func (b *cutBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if err != nil {
		select {
		case <-b.over:
			err = io.EOF
		default:
		}
	}
	return n, err
}

// Close closes the body and stops the timer.
func (b *cutBody) Close() error {
	b.timer.Stop()
	return b.ReadCloser.Close() //nolint:wrapcheck // a body
}
