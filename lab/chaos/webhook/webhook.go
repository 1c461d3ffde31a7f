// Package webhook implements an admission webhook that causes faults. It can hang, deny
// requests, or change objects. The webhook listens on loopback.
package webhook

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/lab/pki"
)

// Mode is the behaviour of the webhook. The zero Mode allows every request.
type Mode struct {
	// Hang leaves a request unanswered, so that it times out.
	Hang bool
	// Deny, unless empty, denies a request with this message.
	Deny string
	// Patch is a JSON patch of the object. Empty: the object stays unchanged.
	Patch string
}

// Server is a running webhook.
type Server struct {
	// URL and CA are the URL and the PEM certificate for the webhook configuration.
	URL string
	CA  []byte

	mode    atomic.Pointer[Mode]
	asked   atomic.Int64
	server  *http.Server
	served  chan struct{}
	closing chan struct{}
}

// New starts a webhook that allows every request. [Server.Close] ends it.
func New(ctx context.Context) (*Server, error) {
	now := time.Now()
	authority, err := pki.NewAuthority("webhook", now)
	if err != nil {
		return nil, err
	}
	pair, err := authority.Issue(pki.Subject{Name: "webhook", Hosts: []string{"127.0.0.1"}}, now)
	if err != nil {
		return nil, err
	}
	own, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, fmt.Errorf("webhook: its certificate: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	s := &Server{
		URL: "https://" + listener.Addr().String() + "/", CA: authority.Cert,
		served: make(chan struct{}), closing: make(chan struct{}),
	}
	s.Use(Mode{})
	s.server = &http.Server{
		Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute, ErrorLog: log.New(nothing{}, "", 0),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{own}},
	}
	go func() {
		defer close(s.served)
		_ = s.server.ServeTLS(listener, "", "") // ends with Close
	}()
	return s, nil
}

type nothing struct{}

func (nothing) Write(b []byte) (int, error) { return len(b), nil }

// Use sets the mode of all later requests.
func (s *Server) Use(m Mode) { s.mode.Store(&m) }

// Asked returns the number of requests so far.
func (s *Server) Asked() int64 { return s.asked.Load() }

// Close ends the webhook and every hanging request.
func (s *Server) Close() error {
	close(s.closing)
	err := s.server.Close()
	<-s.served
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	return nil
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.asked.Add(1)
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no AdmissionReview", http.StatusBadRequest)
		return
	}
	mode := s.mode.Load()
	if mode.Hang {
		select {
		case <-r.Context().Done():
		case <-s.closing:
		}
		return
	}
	answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: mode.Deny == ""}
	switch {
	case mode.Deny != "":
		answer.Result = &metav1.Status{Code: http.StatusForbidden, Message: mode.Deny}
	case mode.Patch != "":
		kind := admissionv1.PatchTypeJSONPatch
		answer.PatchType, answer.Patch = &kind, []byte(mode.Patch)
	}
	review.Request, review.Response = nil, answer
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // an error means that the client has disconnected
}
