package cmd_test

import (
	"testing"

	"github.com/keelson-io/keelson/cmd"
)

// TestUnmirrored: an image of a mirror is that of git; of mirrors that lie below each other
// the longest is meant, whatever the order of their names.
func TestUnmirrored(t *testing.T) {
	t.Parallel()
	mirrors := map[string]string{"registry.example.com": "mirror.example", "registry.k8s.io": "mirror.example/k8s"}
	for image, want := range map[string]string{
		"mirror.example/web:1":     "registry.example.com/web:1",
		"mirror.example/k8s/dns:1": "registry.k8s.io/dns:1",
		"other.example/web:1":      "other.example/web:1",
		"mirror.example.org/web:1": "mirror.example.org/web:1",
	} {
		if got := cmd.Unmirrored(image, mirrors); got != want {
			t.Errorf("Unmirrored(%q) = %q, want %q", image, got, want)
		}
	}
}
