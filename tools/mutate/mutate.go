package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// settings of one run.
type settings struct {
	pkg       string   // package pattern for go list, relative to from
	also      []string // packages that get faults, too, which the tests of pkg have to catch
	from      string   // the folder that the packages are relative to
	files     string   // regular expression of the file names that get faults
	draw      int      // number of faults
	seed      uint64
	workers   int
	timeout   time.Duration // of the tests with one fault
	threshold int           // percent
}

// verdict is the result of one fault. The zero verdict is not valid.
type verdict uint8

const (
	killed   verdict = iota + 1 // a test failed
	timedOut                    // the tests did not end; counts as caught
	survived                    // all tests passed
	invalid                     // it does not compile
)

var (
	errBelow    = errors.New("too few faults were caught")
	errBaseline = errors.New("the tests fail without any fault")
)

// memoryKiB limits the address space of a test, because a fault may allocate endlessly.
const memoryKiB = 8 << 20

// target is the package that gets the faults.
type target struct {
	importPath, dir string
	sources         map[string][]byte // by path
	faults          []fault
}

// run makes faults in a package, one at a time, and counts the faults that its tests catch. The
// work tree is not changed. The error is [errBelow] if too few were caught, [errBaseline], or says
// what could not run.
func run(ctx context.Context, out io.Writer, s settings) error {
	t, err := load(ctx, s)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return fmt.Errorf("make a folder for the faulty files: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }() // a temporary folder: a leftover does no harm
	j := judge{settings: s, target: t, scratch: scratch}
	if err := j.baseline(ctx); err != nil {
		return err
	}
	rand.New(rand.NewPCG(s.seed, 0)).Shuffle(len(t.faults), func(a, b int) { //nolint:gosec // a sample, no secret
		t.faults[a], t.faults[b] = t.faults[b], t.faults[a]
	})
	fmt.Fprintf(out, "%s: %d faults can be made, %d are drawn\n", t.importPath, len(t.faults), min(s.draw, len(t.faults)))
	verdicts, err := j.all(ctx, func(f fault) { fmt.Fprintln(out, "survived:", f.below(s.from)) })
	if err != nil {
		return err
	}
	return report(out, verdicts, s)
}

// load reads the packages and finds their possible faults. The target is the first package.
func load(ctx context.Context, s settings) (target, error) {
	t, err := loadOne(ctx, s, s.pkg)
	if err != nil {
		return target{}, err
	}
	for _, pkg := range s.also {
		more, err := loadOne(ctx, s, pkg)
		if err != nil {
			return target{}, err
		}
		maps.Copy(t.sources, more.sources)
		t.faults = append(t.faults, more.faults...)
	}
	return t, nil
}

// loadOne reads a package and finds its possible faults.
func loadOne(ctx context.Context, s settings, pkg string) (target, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-json=ImportPath,Dir,GoFiles", pkg)
	cmd.Dir = s.from
	data, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return target{}, fmt.Errorf("go list %s: %w: %s", pkg, err, exit.Stderr)
	}
	if err != nil {
		return target{}, fmt.Errorf("go list %s: %w", pkg, err)
	}
	var listed struct {
		ImportPath, Dir string
		GoFiles         []string
	}
	// Two packages make this fail, because two JSON values are no valid JSON.
	if err := json.Unmarshal(data, &listed); err != nil {
		return target{}, fmt.Errorf("%s is not one package: %w", pkg, err)
	}
	files, err := regexp.Compile(s.files)
	if err != nil {
		return target{}, fmt.Errorf("which files: %w", err)
	}
	t := target{importPath: listed.ImportPath, dir: listed.Dir, sources: map[string][]byte{}}
	for _, name := range listed.GoFiles {
		file := filepath.Join(listed.Dir, name)
		src, err := os.ReadFile(file)
		if err != nil {
			return target{}, fmt.Errorf("read the package: %w", err)
		}
		faults, err := faultsOf(file, src)
		if err != nil {
			return target{}, err
		}
		if files.MatchString(name) {
			t.sources[file], t.faults = src, append(t.faults, faults...)
		}
	}
	return t, nil
}

// judge builds and runs the tests.
type judge struct {
	settings
	target

	scratch string
}

// baseline runs the tests without a fault. If they failed, every fault would count as caught.
func (j judge) baseline(ctx context.Context) error {
	binary := filepath.Join(j.scratch, "baseline.test")
	if out, err := j.build(ctx, binary, ""); err != nil {
		return fmt.Errorf("%w: %w\n%s", errBaseline, err, out)
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("%w: there are none", errBaseline)
	}
	if out, err := j.test(ctx, binary); err != nil {
		return fmt.Errorf("%w: %w\n%s", errBaseline, err, out)
	}
	return nil
}

// all judges the first s.draw faults that compile, and calls left for each survivor. The choice of
// faults does not depend on the timing of the workers.
func (j judge) all(ctx context.Context, left func(fault)) ([]verdict, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		mu       sync.Mutex
		ready    = sync.NewCond(&mu)
		next     int
		working  int
		compiled int
		verdicts = make([]verdict, len(j.faults))
		workers  sync.WaitGroup
	)
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		for working > 0 && compiled+working >= j.draw {
			ready.Wait() // a fault in work may turn out not to compile
		}
		if compiled >= j.draw || next == len(j.faults) || ctx.Err() != nil {
			return 0, false
		}
		next++
		working++
		return next - 1, true
	}
	done := func(i int, v verdict, err error) {
		mu.Lock()
		defer mu.Unlock()
		verdicts[i] = v
		working--
		if v != invalid {
			compiled++
		}
		if v == survived {
			left(j.faults[i])
		}
		if err != nil {
			cancel(err)
		}
		ready.Broadcast()
	}
	for range j.workers {
		workers.Go(func() {
			for i, ok := take(); ok; i, ok = take() {
				v, err := j.one(ctx, i)
				done(i, v, err)
			}
		})
	}
	workers.Wait()
	return verdicts[:next], context.Cause(ctx)
}

// one judges the i-th fault.
func (j judge) one(ctx context.Context, i int) (verdict, error) {
	f := j.faults[i]
	dir := filepath.Join(j.scratch, strconv.Itoa(i))
	defer func() { _ = os.RemoveAll(dir) }() // frees the disk early; run removes the rest
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, fmt.Errorf("make a folder for a fault: %w", err)
	}
	faulty, overlay, binary := filepath.Join(dir, "faulty.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "faulty.test")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{f.file: faulty}})
	if err != nil {
		return 0, fmt.Errorf("write overlay: %w", err)
	}
	for name, data := range map[string][]byte{faulty: f.apply(j.sources[f.file]), overlay: replace} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			return 0, fmt.Errorf("write a fault: %w", err)
		}
	}
	if _, err := j.build(ctx, binary, overlay); err != nil {
		return invalid, ctx.Err()
	}
	out, err := j.test(ctx, binary)
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err == nil:
		return survived, nil
	case bytes.Contains(out, []byte("panic: test timed out after")):
		return timedOut, nil
	}
	return killed, nil
}

// build links the package's tests. Without symbols this takes a third less time.
func (j judge) build(ctx context.Context, binary, overlay string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay="+overlay, "-o", binary, j.importPath)
	cmd.Dir = j.dir
	return cmd.CombinedOutput() //nolint:wrapcheck // the callers say what was built
}

// test runs the tests in the package's folder like go test, with limits for tests that a fault has
// made endless.
func (j judge) test(ctx context.Context, binary string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, j.timeout+10*time.Second) // in case the tests' own limit does not work
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", `ulimit -v "$0" && exec "$@"`, strconv.Itoa(memoryKiB),
		binary, "-test.short", "-test.failfast", "-test.timeout="+j.timeout.String())
	cmd.Dir, cmd.WaitDelay = j.dir, time.Second
	// Settings of pgregory.net/rapid: the same draws each time, no files beside the tests, and no
	// time for shrinking examples.
	cmd.Env = append(os.Environ(), "RAPID_SEED="+strconv.FormatUint(j.seed, 10), "RAPID_NOFAILFILE=1", "RAPID_SHRINKTIME=0s")
	return cmd.CombinedOutput() //nolint:wrapcheck // the callers say what was run
}

// report prints the result, and returns an error below the threshold.
func report(out io.Writer, verdicts []verdict, s settings) error {
	count := map[verdict]int{}
	for _, v := range verdicts {
		count[v]++
	}
	caught := count[killed] + count[timedOut]
	all := caught + count[survived]
	if all == 0 {
		return fmt.Errorf("%w: none was made, %d do not compile", errBelow, count[invalid])
	}
	fmt.Fprintf(out, "%d by the time limit of %s; %d more did not compile\n", count[timedOut], s.timeout, count[invalid])
	fmt.Fprintf(out, "mutants killed: %d of %d (%d %%), seed %d\n", caught, all, caught*100/all, s.seed)
	if caught*100 < s.threshold*all {
		return fmt.Errorf("%w: %d %% are wanted", errBelow, s.threshold)
	}
	return nil
}
