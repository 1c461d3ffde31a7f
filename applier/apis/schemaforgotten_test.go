//go:build !race

// One goroutine parses 60 MiB: the race detector finds nothing there, and takes minutes.

package apis_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/keelson-io/keelson/applier/apis"
)

// A cluster that publishes one document after another fills no memory: what no cluster
// uses is forgotten, but for the last.
func TestSchemasAreForgotten(t *testing.T) {
	t.Parallel()
	cache := apis.NewSchemaCache()
	document := func(i int) []byte {
		return fmt.Appendf(nil, `{"components":{"schemas":{"a":{"type":"object","description":"%d%s"}}}}`, i, bytes.Repeat([]byte("x"), 3<<20))
	}
	used, err := cache.Parse(document(0))
	if err != nil {
		t.Fatal(err)
	}
	const last = 20 // 60 MiB in all
	for i := 1; i <= last; i++ {
		if _, err := cache.Parse(document(i)); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 { // what is found no longer may take more than one collection
		if runtime.GC(); !cache.Knows(document(1)) && !cache.Knows(document(2)) {
			break
		}
	}
	for i, want := range map[int]bool{0: true, 1: false, 2: false, last: true} {
		if got := cache.Knows(document(i)); got != want {
			t.Errorf("document %d is remembered: %v, want %v", i, got, want)
		}
	}
	runtime.KeepAlive(used)
}
