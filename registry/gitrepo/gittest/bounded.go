//go:build unix

package gittest

import (
	"runtime"
	"syscall"
	"testing"
	"time"
)

// What one hostile repository may cost.
const (
	hostileTime  = 30 * time.Second // of a processor
	hostileHeap  = 50 << 20         // that stays
	hostileAlloc = 700 << 20        // in all, garbage included: nothing is inflated to its gigabytes
)

// Bounded runs what reads a hostile repository, and checks what it cost.
func Bounded(t *testing.T, read func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := processorTime(t)
	read()
	took := processorTime(t) - start
	runtime.GC()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	total := int64(after.TotalAlloc - before.TotalAlloc)
	t.Logf("%s, heap %+.1f MiB, %.1f MiB allocated", took.Round(time.Millisecond), float64(grown)/(1<<20), float64(total)/(1<<20))
	switch {
	case took > hostileTime:
		t.Errorf("it took %s", took)
	case grown > hostileHeap:
		t.Errorf("the heap grew by %d MiB", grown>>20)
	case total > hostileAlloc:
		t.Errorf("it allocated %d MiB", total>>20)
	}
}

// processorTime is what this process has had of the processors: a machine that is busy with
// other work doesn't make it more.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
