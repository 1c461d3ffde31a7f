// Package daemon holds what commands need that run until a signal ends them: a log, HTTP servers for
// metrics, health, profiles and webhooks, traces, a connection to the hub whose credentials are
// renewed, the share of clusters, and memory that other processes cannot read.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/keelson-io/keelson/cmd/internal/cli"
)

// shutdownTimeout bounds the shutdown of an HTTP server.
const shutdownTimeout = 5 * time.Second

// Limits for the clients of metrics and health endpoints: any client that reaches the port. A
// connection without a request ends soon, so that silent clients do not fill the memory.
// The number of connections has no limit: with one, silent clients would keep a kubelet's
// liveness probe waiting, and the process would be restarted.
const (
	readTimeout, writeTimeout, idleTimeout = 10 * time.Second, 20 * time.Second, 5 * time.Second
	headerBytes                            = 16 << 10
)

// Process is a command that runs until a signal ends it.
type Process struct{ *cli.Invocation }

// OpenLog returns the log of a process, in a format of --log-format, and gives it to the libraries.
func (p Process) OpenLog(format string) *slog.Logger {
	level := slog.LevelInfo
	if p.Verbose {
		level = slog.LevelDebug
	}
	o := &slog.HandlerOptions{Level: level}
	log := slog.New(slog.NewTextHandler(p.Env.Err, o))
	if format == "json" {
		log = slog.New(slog.NewJSONHandler(p.Env.Err, o))
	}
	p.Env.SetLog(log)
	return log
}

// Serve serves metrics and health endpoints until the returned function is called.
func (p Process) Serve(ctx context.Context, log *slog.Logger, address string, metrics prometheus.Gatherer, ready func() (string, error)) (func(), error) {
	if address == "" {
		return func() {}, nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		what, err := ready()
		if err != nil {
			http.Error(w, p.Env.Redactor.Text(err.Error()), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, what)
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: shutdownTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes,
	}
	return listen(ctx, log, endpoint{what: "/metrics, /healthz and /readyz", address: address}, server)
}

// endpoint describes a server and its address.
type endpoint struct {
	what, address string
	// connections bounds the open connections; 0: any number.
	connections int
}

// listen runs a server until the returned function is called.
func listen(ctx context.Context, log *slog.Logger, at endpoint, server *http.Server) (func(), error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.address)
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w; choose another address", at.what, err)
	}
	log.Info("serving "+at.what, "address", listener.Addr().String())
	if at.connections > 0 {
		listener = netutil.LimitListener(listener, at.connections)
	}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("an HTTP server ended", "serving", at.what, "error", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			log.Warn("end an HTTP server", "serving", at.what, "error", err)
		}
	}, nil
}
