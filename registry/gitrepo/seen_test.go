package gitrepo_test

import (
	"testing"

	"github.com/keelson-io/keelson/registry/gitrepo"
)

// What a line of the memory takes is counted without writing it.
func TestSeenSize(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{"web/v1.0.0", "a/b/v10.20.30-rc.1+x", "ü/v1"} {
		if line, size := gitrepo.SeenLine(tag); len(line) != size {
			t.Errorf("%q has %d bytes, and %d are counted", line, len(line), size)
		}
	}
}
