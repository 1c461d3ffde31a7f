// Package must ends a step of a program at its first failure, as FailNow ends a test.
//
// A step is the function that [Try] calls. [Do], [Get] and [Failf] end it, so that the step
// reads as the list of what it does. Try returns the failure as an error, with the lines of
// code that led to it. Without a Try around them, Do, Get and Failf end the program, so each
// goroutine of a step needs a Try: see [All]. Only programs that drive or measure the real
// one use this package: they have nothing to go on with after a failure.
package must

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/lab/process"
)

// failure is the value of the panic that ends a step.
type failure struct{ err error }

// Do ends the step if err is not nil.
func Do(err error) {
	if err != nil {
		end(err)
	}
}

// Get returns v. It ends the step if err is not nil.
func Get[T any](v T, err error) T {
	if err != nil {
		end(err)
	}
	return v
}

// Failf ends the step with a formatted error.
func Failf(format string, args ...any) { panic(failure{locate(fmt.Errorf(format, args...))}) }

// end panics with the error. The error of an inner step has its lines already.
func end(err error) {
	if inner := (*located)(nil); !errors.As(err, &inner) {
		err = locate(err)
	}
	panic(failure{err})
}

// locate adds the lines that led to an error, up to the step's first line.
func locate(err error) error {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	var lines []string
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "/must.Try") || !more {
			break
		}
		if !strings.Contains(f.Function, "/must.") {
			lines = append(lines, fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line))
		}
	}
	return &located{lines: lines, err: err}
}

// located is an error with the lines of code that led to it, the innermost first.
type located struct {
	lines []string
	err   error
}

func (l *located) Error() string {
	return fmt.Sprintf("%v (%s)", l.err, strings.Join(l.lines[:min(len(l.lines), 3)], " < "))
}
func (l *located) Unwrap() error { return l.err }

// Try calls step and returns the failure that ended it, or nil. Other panics pass.
func Try(step func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.err
		default:
			panic(r)
		}
	}()
	step()
	return nil
}

// Test fails a test with the failure that ended the step.
func Test(t interface {
	Helper()
	Fatal(args ...any)
}, step func(),
) {
	t.Helper()
	if err := Try(step); err != nil {
		t.Fatal(err)
	}
}

// TryGet is [Try] for a step with a result. The result is the zero value after a failure.
func TryGet[T any](step func() T) (v T, err error) {
	err = Try(func() { v = step() })
	return v, err
}

// Wrap calls step, and ends the caller's step with its failure after a formatted text.
func Wrap(step func(), format string, args ...any) {
	if err := Try(step); err != nil {
		Failf(format+": %w", append(args, err)...)
	}
}

// Each calls all steps, and ends the caller's step with the failures of all of them.
func Each(steps ...func()) {
	var errs []error
	for _, step := range steps {
		errs = append(errs, Try(step))
	}
	Do(errors.Join(errs...))
}

// Finally calls step and then each of ends, also after a failure. It ends the caller's step
// with the failures of all of them.
func Finally(step func(), ends ...func() error) {
	errs := []error{Try(step)}
	for _, end := range ends {
		errs = append(errs, end())
	}
	Do(errors.Join(errs...))
}

// All calls n steps at the same time, and ends the caller's step if one of them failed.
func All(n int, step func(i int)) {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = Try(func() { step(i) }) })
	}
	wg.Wait()
	Do(errors.Join(errs...))
}

// Limits bound a wait.
type Limits struct {
	Patience time.Duration // how long a condition may take; no bound of performance
	Every    time.Duration // between two tries
}

// Until calls condition until it does not fail, and ends the step with the condition's last
// failure after the time limit.
func (l Limits) Until(ctx context.Context, condition func(context.Context)) {
	last := errors.New("never tried")
	err := wait.PollUntilContextTimeout(ctx, l.Every, l.Patience, true, func(ctx context.Context) (bool, error) {
		if err := Try(func() { condition(ctx) }); err == nil || ctx.Err() == nil { // an error after the time limit is not the cause
			last = err
		}
		return last == nil, nil
	})
	if err != nil {
		Failf("not within %s: %w", l.Patience, last)
	}
}

// Sleep waits for d, and ends the step if the context ends earlier.
func Sleep(ctx context.Context, d time.Duration) {
	Do(process.Wait(ctx, d))
}
