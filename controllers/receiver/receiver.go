// Package receiver takes webhooks of git hosts.
//
// A webhook only means "fetch now". Its body is only used to check its signature, so a sender with
// a secret can do no more than trigger a fetch. Bodies are never held in memory. Options.Fetch has
// to bound how often a repository is fetched.
package receiver

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

const (
	// bodyLimit is the largest body that GitHub sends, in bytes.
	bodyLimit = 25 << 20
	// bodyTime is how long a body may take, in addition to headerTime.
	bodyTime = 10 * time.Second
	// headerTime is how long a header may take. idleTime is how long a connection may be idle
	// between two requests.
	headerTime, idleTime = 5 * time.Second, 30 * time.Second
	headerLimit          = 16 << 10
	// chunk is the size of the part of a body that is held at a time, in bytes.
	chunk = 4 << 10
	// Connections is how many connections may be open at the same time. Some slow senders can't
	// use all of them, and all of them together cost little.
	Connections = 1024
)

// Options are the settings of a [Receiver]; all are required.
type Options struct {
	// Secrets returns the secrets with which a webhook may be signed. There is more than one while
	// they are being replaced.
	Secrets func() ([]Secret, error)
	// Fetch schedules a fetch of the repository. It returns at once.
	Fetch func()
	Log   *slog.Logger
	Now   func() time.Time
}

// Receiver is an [http.Handler] of webhooks.
type Receiver struct {
	Options
	results *prometheus.CounterVec
	// refused limits the log lines about refused requests.
	refused rate.Sometimes
}

// New returns a new receiver.
func New(o Options) *Receiver {
	return &Receiver{
		Options: o, refused: rate.Sometimes{First: 1, Interval: time.Minute},
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_webhooks_total", Help: "Webhooks by result.",
		}, []string{"result"}),
	}
}

// Describe implements [prometheus.Collector].
func (r *Receiver) Describe(ch chan<- *prometheus.Desc) { r.results.Describe(ch) }

// Collect implements [prometheus.Collector].
func (r *Receiver) Collect(ch chan<- prometheus.Metric) { r.results.Collect(ch) }

// Server returns a server for the receiver alone, at the path /hook. It has strict limits, because
// it is the only part of Keelson that is open to unknown clients.
func (r *Receiver) Server() *http.Server {
	mux := http.NewServeMux()
	mux.Handle("POST /hook", r)
	return &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerLimit,
		ReadTimeout: headerTime + bodyTime, WriteTimeout: headerTime + 2*bodyTime,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // requests of unknown clients are counted, not logged
	}
}

// refusal is why a webhook is refused.
type refusal struct {
	result string // of the metric
	status int
	why    string
}

func (r refusal) Error() string { return r.why }

var (
	errUnsigned = refusal{"unsigned", http.StatusUnauthorized, "it carries no signature that is known: X-Hub-Signature-256 (GitHub, Gitea, Forgejo), X-Gitea-Signature, X-Forgejo-Signature, webhook-signature or X-Gitlab-Token (GitLab)"}
	errForged   = refusal{"forged", http.StatusUnauthorized, "its signature is not by a secret that is known here"}
	errOld      = refusal{"old", http.StatusUnauthorized, "its webhook-timestamp is more than five minutes off"}
	errTooLarge = refusal{"too-large", http.StatusRequestEntityTooLarge, fmt.Sprintf("its body is larger than %d MiB", bodyLimit>>20)}
	errSlow     = refusal{"slow", http.StatusRequestTimeout, fmt.Sprintf("its body takes longer than %s", bodyTime)}
	errBroken   = refusal{"broken", http.StatusBadRequest, "its body ends too soon"}
	errNoSecret = refusal{"no-secret", http.StatusServiceUnavailable, "the secrets can't be read now"}
)

// ServeHTTP answers 202 to a signed webhook, and schedules a fetch. Any other request changes
// nothing.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	err := r.check(w, req)
	if err == nil {
		r.results.WithLabelValues("accepted").Inc()
		r.Fetch()
		w.WriteHeader(http.StatusAccepted)
		return
	}
	var no refusal
	if !errors.As(err, &no) {
		no = refusal{"broken", http.StatusBadRequest, err.Error()}
	}
	r.results.WithLabelValues(no.result).Inc()
	r.refused.Do(func() {
		r.Log.Warn("a webhook is refused; more of the next minute are only counted", "from", req.RemoteAddr, "because", no.why)
	})
	w.Header().Set("Connection", "close") // else the server would read the rest of the body
	if no.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, no.why, no.status)
}

// check reads a webhook, and returns an error if it is not signed. It refuses without reading the
// body if possible.
func (r *Receiver) check(w http.ResponseWriter, req *http.Request) error {
	s, err := signatureOf(req.Header, r.Now())
	if err != nil {
		return err
	}
	if req.ContentLength > bodyLimit {
		return errTooLarge
	}
	secrets, err := r.Secrets()
	if err != nil || len(secrets) == 0 {
		return errNoSecret
	}
	if s.sums == nil && !s.tokenOf(secrets) {
		return errForged
	}
	sums := make([]hash.Hash, len(secrets))
	all := make([]io.Writer, len(secrets))
	for i, secret := range secrets {
		sums[i] = hmac.New(sha256.New, s.key(secret))
		sums[i].Write([]byte(s.before))
		all[i] = sums[i]
	}
	body := struct{ io.Reader }{http.MaxBytesReader(w, req.Body, bodyLimit)}
	if _, err := io.CopyBuffer(io.MultiWriter(all...), body, make([]byte, chunk)); err != nil {
		return bodyError(err)
	}
	if s.sums == nil {
		return nil
	}
	known := false
	for _, sum := range sums {
		known = s.by(sum.Sum(nil)) || known // check all: the timing reveals nothing
	}
	if !known {
		return errForged
	}
	return nil
}

func bodyError(err error) error {
	var timeout net.Error
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return errTooLarge
	case errors.As(err, &timeout) && timeout.Timeout():
		return errSlow
	default:
		return errBroken
	}
}
