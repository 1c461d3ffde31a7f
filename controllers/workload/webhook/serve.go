package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/controller-runtime/pkg/webhook/conversion"
)

const (
	// atOnce is how many requests of a path are read and answered at once.
	atOnce = 4
	// bodyLimit is the highest size of a request in bytes: two objects of up to 1.5 MiB, the
	// limit of etcd, and the data that the API server adds.
	bodyLimit = 4 << 20
	// limit is the time to read a request and answer it. It is shorter than the timeouts of the
	// configurations.
	limit = 8 * time.Second
)

// handlers returns the handlers by path. Each path has its own limit of concurrent requests, so
// that one busy path does not block another.
func (h *hooks) handlers(s *runtime.Scheme) map[string]http.Handler {
	all := map[string]http.Handler{
		// It reads nothing from the cluster, and API servers send it no client certificate.
		pathConvert: bounded(conversion.NewWebhookHandler(s, conversion.NewRegistry())),
	}
	for path, answer := range map[string]admission.HandlerFunc{pathComplete: h.complete, pathValidate: h.validate, pathProtect: h.protect} {
		all[path] = h.authenticated(bounded(&admission.Webhook{Handler: answer, RecoverPanic: new(true)}))
	}
	return all
}

// bounded limits the time and the number of concurrent requests of a handler, because any client
// that reaches the port can send requests. Further requests wait unread.
func bounded(next http.Handler) http.Handler {
	turns := make(chan struct{}, atOnce)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeoutCause(r.Context(), limit, fmt.Errorf("no answer within %s", limit))
		defer cancel()
		if ctx.Err() != nil {
			http.Error(w, "there is no time left to answer", http.StatusServiceUnavailable)
			return
		}
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
		case <-ctx.Done():
			http.Error(w, "too many admission requests are in progress", http.StatusServiceUnavailable)
			return
		}
		deadline, _ := ctx.Deadline()
		// A recorder of a test has no connection, and therefore no deadline.
		_ = http.NewResponseController(w).SetReadDeadline(deadline)
		r.Body = http.MaxBytesReader(w, r.Body, bodyLimit)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// secure sets the TLS options, and verifies client certificates if ClientCAs is set. Only
// HTTP/1.1 is served: faults of HTTP/2 servers let any client take memory and time
// (CVE-2023-44487, GO-2026-6603, GO-2026-6611), and API servers do not need HTTP/2.
func (o *Options) secure(t *tls.Config) {
	t.MinVersion, t.NextProtos = tls.VersionTLS12, []string{"http/1.1"}
	if o.ClientCAs != nil {
		// Conversion requests have no client certificate, so the handshake cannot require one.
		t.ClientCAs, t.ClientAuth = o.ClientCAs, tls.VerifyClientCertIfGiven
	}
}

// authenticated refuses clients without a valid certificate for ClientName, if ClientCAs is set.
func (h *hooks) authenticated(next http.Handler) http.Handler {
	if h.options.ClientCAs == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || r.TLS.PeerCertificates[0].Subject.CommonName != h.options.ClientName {
			http.Error(w, "only API servers are answered, by their client certificate: see kubeConfigFile of an AdmissionConfiguration", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
