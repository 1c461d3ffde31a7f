package binaries

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/lock"
)

// tailLines is how much of a failed compiler's output its error carries.
const tailLines = 20

// building starts the names of the folders that programs are built into.
const building = ".building-"

// BuildOptions says what to build and how.
type BuildOptions struct {
	Only     []string  // names; empty: all
	Parallel int       // packages compiled at once; 0: [DefaultParallel]
	Progress io.Writer // where progress goes; a terminal gets one ticking line
}

// DefaultParallel is how many packages are compiled at once on a machine with
// that many cores. A compiler of Kubernetes' larger packages, or the linker,
// needs about a gigabyte: four at once stay under four.
func DefaultParallel(cores int) int { return min(max(cores, 1), 4) }

// Build builds the programs that are missing and leaves alone those that are
// there. Programs appear whole or not at all, and two builds at a time wait
// for each other. The error of a failed build ends with the compiler's last
// lines.
func (s Set) Build(ctx context.Context, opts BuildOptions) error {
	wanted, err := s.pick(opts.Only)
	if err != nil {
		return err
	}
	out := newProgress(opts.Progress)
	if len(s.Missing(Names(wanted)...)) == 0 {
		out.line("%d programs are built already: %s", len(wanted), s.Dir)
		return nil
	}
	unlock, err := lock.Dir(ctx, s.Dir, func() { out.line("waiting for another build in %s", s.Dir) })
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.sweep(); err != nil {
		return err
	}

	start := time.Now()
	for i, b := range wanted {
		step := fmt.Sprintf("[%d/%d] %s %s", i+1, len(wanted), b.Name, s.Version(b.Name))
		if len(s.Missing(b.Name)) == 0 {
			out.line("%s  built already", step)
			continue
		}
		shared, err := s.share(b)
		if err != nil {
			return err
		}
		if shared {
			out.line("%s  that of Kubernetes %s", step, s.lab.Version(APIServer))
			continue
		}
		if err := s.build(ctx, b, opts.Parallel, out, step); err != nil {
			return err
		}
	}
	out.line("built in %s: %s", time.Since(start).Round(time.Second), s.Dir)
	return nil
}

// sweep removes what a killed build left; the lock says that none is running.
func (s Set) sweep() error {
	left, err := filepath.Glob(filepath.Join(s.Dir, building+"*"))
	if err != nil {
		return fmt.Errorf("look for unfinished builds: %w", err)
	}
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove an unfinished build: %w", err)
		}
	}
	return nil
}

func (s Set) pick(only []string) ([]Binary, error) {
	for _, name := range only {
		if !slices.Contains(Names(s.programs), name) {
			return nil, fmt.Errorf("%w program %q; of Kubernetes %s there are %s",
				ErrUnknown, name, s.Version(APIServer), strings.Join(Names(s.programs), ", "))
		}
	}
	if len(only) == 0 {
		return s.programs, nil
	}
	return slices.DeleteFunc(slices.Clone(s.programs), func(b Binary) bool { return !slices.Contains(only, b.Name) }), nil
}

// share takes a program that the lab's own set is built with, too, from there
// if it is there. A link, so that either folder may be removed.
func (s Set) share(b Binary) (shared bool, err error) {
	if s.lab == nil || !slices.Contains(s.lab.programs, b) || len(s.lab.Missing(b.Name)) > 0 {
		return false, nil
	}
	if err := os.Link(s.lab.Path(b.Name), s.Path(b.Name)); err != nil {
		return false, fmt.Errorf("share %s: %w", b.Name, err)
	}
	return true, nil
}

// build compiles one program into a temporary folder beside its place and
// renames it there.
func (s Set) build(ctx context.Context, b Binary, parallel int, out *progress, step string) error {
	temp, err := os.MkdirTemp(s.Dir, building)
	if err != nil {
		return fmt.Errorf("make room for %s: %w", b.Name, err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // or the next build sweeps it

	if parallel <= 0 {
		parallel = DefaultParallel(cores())
	}
	target := filepath.Join(temp, b.Name)
	args := append([]string{"build", "-v", "-p", strconv.Itoa(parallel)}, flags(b, s.Version(b.Name))...)
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", target, b.Package)...)
	cmd.Dir = filepath.Join(s.Modules, b.Module)
	// The pins alone decide: a workspace or flags of the user's must not.
	cgo := "CGO_ENABLED=0"
	if b.Cgo {
		cgo = "CGO_ENABLED=1"
	}
	cmd.Env = append(os.Environ(), cgo, "GOFLAGS=", "GOWORK=off", "GOOS=", "GOARCH=", "PWD="+cmd.Dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("build %s: %w", b.Name, err)
	}

	start := time.Now()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run the Go compiler for %s (is go on the PATH?): %w", b.Name, err)
	}
	stop := out.tick(step)
	complaints := follow(stderr, out)
	err = cmd.Wait()
	stop()
	if ctx.Err() != nil {
		return fmt.Errorf("build %s: %w", b.Name, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("build %s in lab/build/%s: %w\n%s", b.Name, b.Module, err, strings.Join(complaints, "\n"))
	}
	info, err := os.Stat(target)
	if err != nil {
		return fmt.Errorf("build %s: %w", b.Name, err)
	}
	if err := os.Rename(target, s.Path(b.Name)); err != nil {
		return fmt.Errorf("put %s in its place: %w", b.Name, err)
	}
	out.line("%s  %s, %d MB", step, time.Since(start).Round(time.Second), info.Size()/1e6)
	return nil
}

// follow reads go build -v: a package's path when its compilation ends, and
// whatever else is a complaint, of which the last lines are returned.
func follow(stderr io.Reader, out *progress) []string {
	var tail []string
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line != "" && !strings.ContainsAny(line, " :#\t") {
			out.compiled(line)
			continue
		}
		if tail = append(tail, line); len(tail) > tailLines {
			tail = tail[1:]
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, os.ErrClosed) {
		tail = append(tail, "reading the compiler's output: "+err.Error())
	}
	return tail
}
