package ports_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/keelson-io/keelson/lab/ports"
)

// Clusters that are made at the same time, stopped ones among them, never share a port.
func TestReserve(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	owner := t.TempDir()
	var (
		mu   sync.Mutex
		all  []int
		jobs sync.WaitGroup
	)
	for range 20 {
		jobs.Go(func() {
			got, err := ports.Reserve(t.Context(), owner, 3)
			if err != nil || len(got) != 3 {
				t.Errorf("got %v, %v", got, err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, got...)
		})
	}
	jobs.Wait()
	if slices.Sort(all); len(slices.Compact(slices.Clone(all))) != 60 {
		t.Errorf("a port was given twice: %v", all)
	}
}

// A reservation ends with its owner. Until then a port is found by search, not by luck.
func TestReserveLast(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("keelson-ports-%d", os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	gone, there := filepath.Join(t.TempDir(), "gone"), t.TempDir()
	for port := ports.First; port <= ports.Last; port++ {
		owner := there
		if port%1000 == 0 {
			owner = gone
		}
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(port)), []byte(owner), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ports.Reserve(t.Context(), there, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range got {
		if port%1000 != 0 {
			t.Errorf("port %d belongs to another owner", port)
		}
	}
	if got, err := ports.Reserve(t.Context(), there, 14); err == nil {
		t.Errorf("got %v, where fewer are left", got)
	}
}
