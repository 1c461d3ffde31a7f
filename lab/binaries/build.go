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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/lock"
)

// tailLines is the number of lines of a failed compiler's output in the error.
const tailLines = 20

// building is the name prefix of the temporary folders that programs are built into.
const building = ".building-"

// BuildOptions are the options of [Set.Build].
type BuildOptions struct {
	Only     []string  // names; empty: all
	Parallel int       // packages compiled at once; 0: [DefaultParallel]
	Progress io.Writer // receives progress; on a terminal, one line that is rewritten each second
}

// DefaultParallel returns how many packages are compiled at once: one per core, and at
// most four. A compiler of Kubernetes' larger packages, or the linker, needs about 1 GB.
// Four at once need less than 4 GB.
func DefaultParallel() int { return min(runtime.NumCPU(), 4) }

// Build builds the missing programs and keeps existing programs. Each program appears
// complete or not at all. Concurrent builds in one folder run one after the other.
// The error of a failed build ends with the compiler's last lines.
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

// sweep removes the temporary folders of killed builds. The caller holds the lock, so
// no build is running.
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

// share links a program from the folder of the lab's own set, if that set contains
// the same program and has built it. With a hard link, either folder may be removed.
func (s Set) share(b Binary) (shared bool, err error) {
	if s.lab == nil || !slices.Contains(s.lab.programs, b) || len(s.lab.Missing(b.Name)) > 0 {
		return false, nil
	}
	if err := os.Link(s.lab.Path(b.Name), s.Path(b.Name)); err != nil {
		return false, fmt.Errorf("share %s: %w", b.Name, err)
	}
	return true, nil
}

// build compiles one program into a temporary folder in the set's folder, then
// renames the program to its final path.
func (s Set) build(ctx context.Context, b Binary, parallel int, out *progress, step string) error {
	temp, err := os.MkdirTemp(s.Dir, building)
	if err != nil {
		return fmt.Errorf("make room for %s: %w", b.Name, err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // if this fails, sweep of the next build removes it

	if parallel <= 0 {
		parallel = DefaultParallel()
	}
	target := filepath.Join(temp, b.Name)
	args := append([]string{"build", "-v", "-p", strconv.Itoa(parallel)}, flags(b, s.Version(b.Name))...)
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", target, b.Package)...)
	cmd.Dir = filepath.Join(s.Modules, b.Module)
	// Only the pins may decide the result, not a workspace or flags of the user.
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

// follow reads the output of go build -v until its end. A line that is a package's
// path counts as a compiled package. Every other line is an error message; follow
// returns the last [tailLines] of them.
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
