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
	// atOnce is how many questions of a path are read and answered at the same time.
	atOnce = 4
	// bodyLimit is the size of a question: two objects, each of the 1.5 MiB that etcd
	// takes, and what the API server says about them.
	bodyLimit = 4 << 20
	// limit of an answer with the time in which its question is read, below the timeouts
	// of the configurations.
	limit = 8 * time.Second
)

// handlers returns what answers, by path. A path's turns are its own, so that too
// many questions to one path don't keep another one busy.
func (h *hooks) handlers(s *runtime.Scheme) map[string]http.Handler {
	all := map[string]http.Handler{
		// It reads nothing of the cluster, and API servers show no certificate to it.
		pathConvert: bounded(conversion.NewWebhookHandler(s, conversion.NewRegistry())),
	}
	for path, answer := range map[string]admission.HandlerFunc{pathComplete: h.complete, pathValidate: h.validate, pathProtect: h.protect} {
		all[path] = h.authenticated(bounded(&admission.Webhook{Handler: answer, RecoverPanic: new(true)}))
	}
	return all
}

// bounded ends an answer that takes too long, and has questions wait, unread, while
// there are too many: any client that reaches the port can ask.
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
			http.Error(w, "other questions take all the time", http.StatusServiceUnavailable)
			return
		}
		deadline, _ := ctx.Deadline()
		// A recorder of a test has no connection, and so no deadline.
		_ = http.NewResponseController(w).SetReadDeadline(deadline)
		r.Body = http.MaxBytesReader(w, r.Body, bodyLimit)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// secure has clients show certificates where that is asked for. It is HTTP/1.1 alone that is
// spoken: faults of HTTP/2 servers let any client take memory and time (CVE-2023-44487,
// GO-2026-6603, GO-2026-6611), and an API server needs no more.
func (o *Options) secure(t *tls.Config) {
	t.MinVersion, t.NextProtos = tls.VersionTLS12, []string{"http/1.1"}
	if o.ClientCAs != nil {
		// Conversion goes without, so that the handshake can't insist.
		t.ClientCAs, t.ClientAuth = o.ClientCAs, tls.VerifyClientCertIfGiven
	}
}

// authenticated refuses who shows no certificate, where certificates are asked for.
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
