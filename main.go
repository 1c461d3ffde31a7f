// Keelson delivers the components of Kubernetes clusters from one git
// repository. This file builds the command tree and ends the process.
package main

import (
	"context"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // time zones for windows, for images that hold only this program

	_ "golang.org/x/crypto/x509roots/fallback" // root certificates, for the same images
	"golang.org/x/term"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/keelson-io/keelson/cmd"
	"github.com/keelson-io/keelson/renderer/redact"
)

// version is set by -ldflags "-X main.version=v1.2.3".
var version = "dev"

func main() {
	cmd.LimitMemory(os.DirFS("/"), os.Getenv)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	hidden := redact.New()
	// Logs of libraries pass the redactor, too.
	klog.LogToStderr(false)
	klog.SetOutput(hidden.Writer(os.Stderr))
	log.SetOutput(hidden.Writer(os.Stderr))
	os.Exit(cmd.Run(ctx, cmd.Env{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Now:     clock.RealClock{}.Now,
		Version: version, Redactor: hidden,
		Columns: columns,
		SetLog: func(l *slog.Logger) {
			klog.SetSlogLogger(l)
			slog.SetDefault(l) // Helm warns through the standard logger
		},
		Asks: func() bool { return term.IsTerminal(int(os.Stdin.Fd())) && columns(os.Stderr) > 0 },
	}, os.Args[1:]))
}

// columns returns the width of the terminal that w writes to, 0 if w is no terminal.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}
