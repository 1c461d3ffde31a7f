// Package webhook implements an admission webhook that causes faults. It can hang, deny
// requests, or change objects. The webhook listens on loopback.
package webhook

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	server  *httptest.Server
	closing chan struct{}
}

// New starts a webhook that allows every request. [Server.Close] ends it.
func New() *Server {
	s := &Server{closing: make(chan struct{})}
	s.Use(Mode{})
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.server.StartTLS()
	s.URL, s.CA = s.server.URL+"/", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
	return s
}

// Use sets the mode of all later requests.
func (s *Server) Use(m Mode) { s.mode.Store(&m) }

// Asked returns the number of requests so far.
func (s *Server) Asked() int64 { return s.asked.Load() }

// Close ends the webhook and every hanging request.
func (s *Server) Close() {
	close(s.closing)
	s.server.Close()
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
