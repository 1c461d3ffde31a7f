package cmd_test

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that has credentials and works for strangers closes its memory, before it reads
// the first of them.
func TestMemoryIsClosed(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, command := range [][]string{
		{"controller", "--listen", "", "--repo", missing, "--kubeconfig", missing},
		{"workloads", "--listen", "", "--kubeconfig", missing},
	} {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
			t.Fatal(err)
		}
		keelson(t, command...).want(t, 2).says(t, missing)
		open, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		if err != nil || open != 0 {
			t.Errorf("keelson %s: its memory is open: %d, %v", command[0], open, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
}
