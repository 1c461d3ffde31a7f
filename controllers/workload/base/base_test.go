package base_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/controllers/workload/base"
)

// A status is written at most once a second. Workloads that are gone leave nothing in memory.
//
// It is not parallel: it measures the memory of the process.
func TestPaced(t *testing.T) {
	var h base.Reconciler
	now := time.Unix(0, 0)
	if wait := h.Paced("a", now); wait != 0 {
		t.Errorf("the first write waits %s", wait)
	}
	if wait := h.Paced("a", now.Add(300*time.Millisecond)); wait != 700*time.Millisecond {
		t.Errorf("the next write waits %s, want 700ms", wait)
	}
	if wait := h.Paced("b", now.Add(300*time.Millisecond)); wait != 0 {
		t.Errorf("the write of another object waits %s", wait)
	}
	if wait := h.Paced("a", now.Add(time.Second)); wait != 0 {
		t.Errorf("after a second the write waits %s", wait)
	}

	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range 300_000 {
		h.Paced(types.UID(fmt.Sprintf("%036d", i)), now.Add(time.Duration(i)*time.Second))
	}
	if grown := int64(heap()) - int64(before); grown > 5<<20 {
		t.Errorf("300,000 workloads that are gone take %d MiB", grown>>20)
	}
	runtime.KeepAlive(&h)
}
