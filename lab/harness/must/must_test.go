package must_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"
)

var errBoom = errors.New("boom")

func fails() (int, error) { return 0, errBoom }

func TestTry(t *testing.T) {
	t.Parallel()
	went := false
	err := must.Try(func() {
		_ = must.Get(fails())
		went = true
	})
	if !errors.Is(err, errBoom) || went || !strings.Contains(err.Error(), "must_test.go:") {
		t.Errorf("%v, went on: %t; want the error, where it was, and the end of the step", err, went)
	}
	if n, err := must.TryGet(func() int { return must.Get(7, nil) }); n != 7 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a panic that is no failure was swallowed")
		}
	}()
	_ = must.Try(func() { panic("a defect") })
}

func TestAll(t *testing.T) {
	t.Parallel()
	err := must.Try(func() {
		must.All(3, func(i int) {
			if i == 1 {
				must.Do(errBoom)
			}
		})
	})
	if !errors.Is(err, errBoom) {
		t.Errorf("%v, want the failure of one of the steps", err)
	}
}

func TestUntil(t *testing.T) {
	t.Parallel()
	tries := 0
	third := func(context.Context) {
		if tries++; tries < 3 {
			must.Do(errBoom)
		}
	}
	if err := must.Try(func() { must.Limits{Patience: time.Minute, Every: time.Millisecond}.Until(t.Context(), third) }); err != nil || tries != 3 {
		t.Errorf("%d tries: %v", tries, err)
	}
	err := must.Try(func() {
		must.Limits{Patience: 10 * time.Millisecond, Every: time.Millisecond}.Until(t.Context(), func(context.Context) { must.Do(errBoom) })
	})
	if !errors.Is(err, errBoom) || !strings.Contains(err.Error(), "not within 10ms") {
		t.Errorf("%v, want the condition's last failure", err)
	}
}
