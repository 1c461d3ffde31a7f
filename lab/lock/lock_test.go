package lock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/keelson-io/keelson/lab/lock"
)

func TestDirExcludes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	unlock, err := lock.Dir(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}

	waiting := make(chan struct{})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough waited")
	go func() { <-waiting; cancel(why) }()
	if _, err := lock.Dir(ctx, dir, func() { close(waiting) }); !errors.Is(err, why) {
		t.Fatalf("a second lock: %v, want the reason why the wait ended", err)
	}

	unlock()
	unlock, err = lock.Dir(t.Context(), dir, func() { t.Error("waited for a lock that was given back") })
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

// If the holder of a lock removes the directory, a waiting process must not get a lock on the
// removed directory, which no other process can find.
func TestDirRemovedWhileWaiting(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a")
	unlock, err := lock.Dir(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	waiting, locked := make(chan struct{}), make(chan error)
	go func() {
		second, err := lock.Dir(t.Context(), dir, func() { close(waiting) })
		if err == nil {
			defer second()
			_, err = os.Stat(dir)
		}
		locked <- err
	}()
	<-waiting
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := <-locked; err != nil {
		t.Fatalf("locked after the directory was removed: %v", err)
	}
}
