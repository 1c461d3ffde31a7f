// Command testimage is the only program in the lab's container images, which real nodes
// run. Each image calls it with one of these arguments:
//
//	testimage pause                     holds a pod's namespaces
//	testimage web                       answers with its version, its host and a count
//	testimage slow                      the same, some seconds after its start
//	testimage configured                answers with the text of the file version in $CONFIGURATION,
//	                                    which it reads again on POST /reload and on SIGHUP
//	testimage crash                     ends with exit code 7 after a moment
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/keelson-io/keelson/lab/process"
)

const (
	address   = ":8080"
	slowness  = 5 * time.Second
	crashTime = 500 * time.Millisecond
	crashCode = 7
	drainTime = 2 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, strings.Join(os.Args[1:], " "))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testimage:", err)
	}
	os.Exit(code)
}

func run(ctx context.Context, job string) (code int, err error) {
	switch job {
	case "pause":
		<-ctx.Done()
		return 0, nil
	case "crash":
		_ = process.Wait(ctx, crashTime) // an error means that it is stopped
		return crashCode, errors.New("crashing, as I was made to")
	case "slow":
		_ = process.Wait(ctx, slowness) // as above
		return serve(ctx, os.Getenv("VERSION"))
	case "web":
		return serve(ctx, os.Getenv("VERSION"))
	case "configured":
		return serveConfigured(ctx)
	default:
		return 2, fmt.Errorf("usage: testimage pause|web|slow|configured|crash, not %q", job)
	}
}

// Answer is the JSON response of the web server to each request.
type Answer struct {
	Version string `json:"version"` // of the image, or of the configuration
	Host    string `json:"host"`
	Count   int64  `json:"count"` // number of requests to this process, including this request
}

// serve serves requests, which it answers with a version.
func serve(ctx context.Context, version string) (code int, err error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	return listen(ctx, mux, func() string { return version })
}

// listen serves requests until ctx ends. version returns the version of an answer.
func listen(ctx context.Context, mux *http.ServeMux, version func() string) (code int, err error) {
	host, err := os.Hostname()
	if err != nil {
		return 1, fmt.Errorf("host name: %w", err)
	}
	var count atomic.Int64
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Answer{Version: version(), Host: host, Count: count.Add(1)}) // an error means that the client has disconnected
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return 1, fmt.Errorf("listen: %w", err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Println("version", version(), "serves on", address)
	select {
	case err := <-served:
		return 1, fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return 1, fmt.Errorf("answer what was asked: %w", err)
	}
	return 0, nil
}
