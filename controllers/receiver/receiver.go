// Package receiver takes webhooks of git hosts.
//
// A webhook only ever means "fetch now": nothing of its body is used but to check
// its signature, so that whoever can sign one can do no more than poll. Bodies
// are never held in memory. How often a repository is fetched is for the one who
// fetches to bound.
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
	// bodyLimit is what GitHub sends at most.
	bodyLimit = 25 << 20
	// bodyTime is how long a body may take, with what is before it.
	bodyTime = 10 * time.Second
	// headerTime is how long a header may take, and idleTime how long a connection
	// may rest between two requests.
	headerTime, idleTime = 5 * time.Second, 30 * time.Second
	headerLimit          = 16 << 10
	// chunk is what of a body is held at a time.
	chunk = 4 << 10
	// Connections are open at the same time: more than some slow senders have, and
	// few enough that all of them together cost little.
	Connections = 1024
)

// Options are the settings of a [Receiver]; all are required.
type Options struct {
	// Secrets returns the secrets that a webhook may be signed with: more than one
	// while they are being replaced.
	Secrets func() ([]Secret, error)
	// Fetch has the repository fetched soon. It returns at once.
	Fetch func()
	Log   *slog.Logger
	Now   func() time.Time
}

// Receiver is an [http.Handler] of webhooks.
type Receiver struct {
	Options
	results *prometheus.CounterVec
	// refused keeps a flood of bad requests from being a flood of log lines.
	refused rate.Sometimes
}

// New returns a receiver that has got nothing yet.
func New(o Options) *Receiver {
	return &Receiver{
		Options: o, refused: rate.Sometimes{First: 1, Interval: time.Minute},
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_webhooks_total", Help: "Webhooks by what became of them.",
		}, []string{"result"}),
	}
}

// Describe implements [prometheus.Collector].
func (r *Receiver) Describe(ch chan<- *prometheus.Desc) { r.results.Describe(ch) }

// Collect implements [prometheus.Collector].
func (r *Receiver) Collect(ch chan<- prometheus.Metric) { r.results.Collect(ch) }

// Server returns a server for the receiver alone, at the path /hook, with limits
// for whoever can reach it: it is the one part of Keelson that strangers may.
func (r *Receiver) Server() *http.Server {
	mux := http.NewServeMux()
	mux.Handle("POST /hook", r)
	return &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerLimit,
		ReadTimeout: headerTime + bodyTime, WriteTimeout: headerTime + 2*bodyTime,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // what strangers do is counted, not logged
	}
}

// refusal is why a webhook is not heard.
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

// ServeHTTP answers 202 to a webhook that is signed, and has the repository
// fetched. Whatever else comes changes nothing.
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
	w.Header().Set("Connection", "close") // or the rest of its body would be read
	if no.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, no.why, no.status)
}

// check reads a webhook and says whether it is signed. What can be refused without
// its body is.
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
		known = s.by(sum.Sum(nil)) || known // all of them: the time tells nothing
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
