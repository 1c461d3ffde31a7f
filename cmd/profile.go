package cmd

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/pprof"
)

// serveProfiles answers /debug/pprof at an address of its own until the returned
// function is called. A profile names functions and counts; the command line,
// which pprof shows as well, may name what is nobody's business.
func (a *app) serveProfiles(ctx context.Context, address string, log *slog.Logger) (func(), error) {
	if address == "" {
		return func() {}, nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // heap, goroutine, allocs, mutex, block …
	mux.Handle("GET /debug/pprof/cmdline", http.NotFoundHandler())
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	// A profile takes as long as its client asks for, so there is no WriteTimeout.
	server := &http.Server{Handler: mux, ReadHeaderTimeout: shutdownTimeout, ReadTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes}
	return listen(ctx, log, endpoint{what: "/debug/pprof", address: address, connections: 8}, server)
}
