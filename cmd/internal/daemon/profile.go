package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/pprof"
)

// ServeProfiles serves /debug/pprof at a separate address until the returned function is called. A
// profile names functions and counts. The command line, which pprof also shows, may contain private
// data, and is not served.
func (p Process) ServeProfiles(ctx context.Context, address string, log *slog.Logger) (func(), error) {
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
	// The client chooses the duration of a profile, so there is no WriteTimeout.
	server := &http.Server{Handler: mux, ReadHeaderTimeout: shutdownTimeout, ReadTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes}
	return listen(ctx, log, endpoint{what: "/debug/pprof", address: address, connections: 8}, server)
}
