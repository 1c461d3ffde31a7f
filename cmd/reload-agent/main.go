// Command reload-agent runs beside a program that can't take reload requests of Keelson's workload
// controllers. It takes them, waits for the new files, and tells the program by a signal or by a request
// to an address of the pod itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
)

const (
	headerTimeout = 5 * time.Second
	drainTimeout  = 2 * time.Second
	// maxConnections bounds the memory that clients can use: any program that reaches the pod is one.
	maxConnections = 256
)

const usage = `reload-agent takes reload requests, and tells a program of the same pod.

  reload-agent --directory /etc/app --signal HUP --process nginx
  reload-agent --directory /etc/app --url http://127.0.0.1:9090/-/reload

With --signal, the pod needs shareProcessNamespace: true, and the agent the user of the program.
A program that fails by a signal does not answer: use a readiness probe that shows it.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "reload-agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, log io.Writer) error {
	flags := flag.NewFlagSet("reload-agent", flag.ContinueOnError)
	flags.SetOutput(log)
	flags.Usage = func() {
		fmt.Fprint(log, usage)
		flags.PrintDefaults()
	}
	var directories []string
	flags.Func("directory", "where a volume with configuration is mounted; give it for each volume", func(d string) error {
		directories = append(directories, d)
		return nil
	})
	listen := flags.String("listen", ":7070", "address on which requests are taken")
	name := flags.String("signal", "", "signal to send: HUP, INT, QUIT, USR1, USR2, TERM, WINCH")
	process := flags.String("process", "", "name of the process that gets the signal")
	target := flags.String("url", "", "loopback URL to which a POST request is sent instead")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	tell, err := newTeller(*name, *process, *target)
	if err != nil {
		return err
	}
	if len(directories) == 0 || slices.Contains(directories, "") || flags.NArg() > 0 {
		return errors.New("--directory is missing, or there are arguments: see --help")
	}
	return serve(ctx, *listen, &agent{directories: directories, tell: tell, log: log}, log)
}

// newTeller returns what tells the program.
func newTeller(name, process, target string) (func(context.Context) error, error) {
	switch {
	case (name == "") == (target == ""):
		return nil, errors.New("one of --signal and --url is needed")
	case target != "":
		return newRequest(target)
	case process == "":
		return nil, errors.New("--signal needs --process, the name of the process")
	}
	number, known := map[string]syscall.Signal{
		"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1,
		"USR2": syscall.SIGUSR2, "TERM": syscall.SIGTERM, "WINCH": syscall.SIGWINCH,
	}[strings.TrimPrefix(name, "SIG")]
	if !known {
		return nil, fmt.Errorf("--signal %s is not known: see --help", name)
	}
	return func(context.Context) error { return sendSignal(process, number) }, nil
}

func serve(ctx context.Context, address string, a *agent, log io.Writer) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("POST /reload", a)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, MaxHeaderBytes: 16 << 10}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server.SetKeepAlivesEnabled(false) // the controller asks rarely
	fmt.Fprintln(log, "reload-agent: takes requests on", listener.Addr())
	served := make(chan error, 1)
	go func() { served <- server.Serve(netutil.LimitListener(listener, maxConnections)) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}
