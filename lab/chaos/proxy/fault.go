package proxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	ResetMidAnswer       // forwarded; aborted in the middle of the answer
	DropAnswer           // forwarded and carried out; aborted before the answer
	Drip                 // forwarded; the answer is sent slowly
	CutWatch             // a watch ends without an error after a time
	Gone410              // a watch or list gets the error 410: its resourceVersion is too old
)

// Faults returns all faults, without Pass.
func Faults() []Fault {
	return []Fault{Status, Hang, ResetBefore, ResetMidAnswer, DropAnswer, Drip, CutWatch, Gone410}
}

// String returns the name of the fault, for tables.
func (f Fault) String() string {
	names := [...]string{"pass", "status", "hang", "reset before", "reset in mid-answer", "answer lost", "slow drip", "cut watch", "410 Gone"}
	if int(f) < len(names) {
		return names[f]
	}
	return "fault " + strconv.Itoa(int(f))
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
	// After is the number of bytes of an answer before a ResetMidAnswer. 0: half of the
	// first read.
	After int
	// Pace is the time between two bytes of a Drip. After 64 bytes the rest is sent
	// without delay. 0: 10 ms.
	Pace time.Duration
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
			e.write(w, http.StatusGone, status(http.StatusGone, metav1.StatusReasonExpired, "too old resource version: 1 (2)"))
		default:
			e.forward(w, r)
		}
	case Pass, ResetMidAnswer, DropAnswer, Drip, CutWatch:
		e.forward(w, r)
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
func status(code int, reason metav1.StatusReason, message string) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message, //nolint:gosec // a code of HTTP
	}
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
	reason := map[int]metav1.StatusReason{
		http.StatusTooManyRequests:     metav1.StatusReasonTooManyRequests,
		http.StatusInternalServerError: metav1.StatusReasonInternalError,
		http.StatusServiceUnavailable:  metav1.StatusReasonServiceUnavailable,
	}[e.verdict.Code]
	body := status(e.verdict.Code, reason, "the fault proxy refuses it")
	body.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(seconds)} //nolint:gosec // some seconds
	e.write(w, e.verdict.Code, body)
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
	e.write(w, http.StatusOK, map[string]any{
		"type":   "ERROR",
		"object": status(http.StatusGone, metav1.StatusReasonExpired, "too old resource version: 1 (2)"),
	})
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
		answer.Body = &brokenBody{ReadCloser: answer.Body, left: e.verdict.After, broken: func() {
			if e.verdict.Connection {
				reset(ctx)
			}
		}}
	case Drip:
		answer.Body = &drippingBody{ReadCloser: answer.Body, slow: 64, wait: func() {
			e.wait(ctx, cmp.Or(e.verdict.Pace, 10*time.Millisecond))
		}}
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

// brokenBody is a body that ends with an error after some bytes.
type brokenBody struct {
	io.ReadCloser
	left   int // 0: half of the first read
	spent  bool
	broken func()
}

func (b *brokenBody) Read(into []byte) (int, error) {
	if b.spent {
		b.broken()
		return 0, errLost
	}
	if b.left > 0 {
		into = into[:min(len(into), b.left)]
	}
	n, err := b.ReadCloser.Read(into)
	switch {
	case b.left == 0:
		n = (n + 1) / 2
		b.spent = true
	case n >= b.left:
		b.spent = true
	default:
		b.left -= n
	}
	if b.spent {
		err = nil // the error comes with the next read, so that these bytes are sent
	}
	return n, err
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
	if e.verdict.For == 0 {
		return &cutBody{ReadCloser: body, reader: bytes.NewReader(nil), stop: func() bool { return true }}
	}
	c := &cutBody{ReadCloser: body, reader: body, over: make(chan struct{})}
	timer := time.AfterFunc(e.verdict.For, func() {
		close(c.over)
		_ = body.Close() // wakes the reader
	})
	c.stop = timer.Stop
	return c
}

type cutBody struct {
	io.ReadCloser
	reader io.Reader
	over   chan struct{}
	stop   func() bool
}

func (b *cutBody) Read(into []byte) (int, error) {
	n, err := b.reader.Read(into)
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
	b.stop()
	return b.ReadCloser.Close() //nolint:wrapcheck // a body
}
