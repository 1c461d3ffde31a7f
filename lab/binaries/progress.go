package binaries

import (
	"fmt"
	"io"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/term"
)

// The intervals of progress output, on a terminal and elsewhere.
const (
	tickTerminal = time.Second
	tickPlain    = 20 * time.Second
)

// progress shows a build. On a terminal it rewrites one line; elsewhere it prints a
// plain line at each interval.
type progress struct {
	w        io.Writer
	terminal bool

	mu       sync.Mutex
	packages int
	last     string
}

func newProgress(w io.Writer) *progress {
	if w == nil {
		w = io.Discard
	}
	f, ok := w.(*os.File)
	return &progress{w: w, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

// line prints a line that later progress doesn't overwrite.
func (p *progress) line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	fmt.Fprintf(p.w, format+"\n", args...)
}

// compiled counts one package.
func (p *progress) compiled(pkg string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.packages++
	p.last = pkg
}

// tick shows the progress of a step periodically until stop is called.
func (p *progress) tick(step string) (stop func()) {
	p.mu.Lock()
	p.packages, p.last = 0, ""
	p.mu.Unlock()

	every := tickPlain
	if p.terminal {
		every = tickTerminal
	}
	start := time.Now()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				p.show(step, time.Since(start))
			}
		}
	}()
	return func() { close(quit); <-done }
}

func (p *progress) show(step string, elapsed time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	doing := "resolving modules"
	if p.packages > 0 {
		doing = fmt.Sprintf("%d packages compiled, last %s", p.packages, path.Base(p.last))
	}
	text := fmt.Sprintf("%s  %s, %s", step, elapsed.Round(time.Second), doing)
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%.100s", text)
		return
	}
	fmt.Fprintln(p.w, text)
}
