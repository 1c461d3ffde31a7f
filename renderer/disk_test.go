package renderer_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/renderer"
)

func openDisk(t *testing.T, next renderer.Renderer, folder, program string, maxBytes int64) *renderer.Disk {
	t.Helper()
	d, err := renderer.OpenDisk(next, folder, program, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// TestDisk: another process finds the very target that this one rendered, and
// no other.
func TestDisk(t *testing.T) {
	t.Parallel()
	numbers := configMapVersion("apiVersion: v1\nkind: X\nmetadata: {name: x}\na: 1\nb: 1.5\nc: [null, true, {}, []]\n")
	other := configMapVersion(configMap)
	other.Tree = "other"
	cases := map[string]struct {
		why    string
		change func(t *testing.T, folder string, r *renderer.Request)
		again  bool
	}{
		"Same":    {"Nothing changed.", func(*testing.T, string, *renderer.Request) {}, false},
		"Version": {"Another version of the component.", func(_ *testing.T, _ string, r *renderer.Request) { r.Version = other }, true},
		"Scopes": {"The cluster knows the kind otherwise.", func(_ *testing.T, _ string, r *renderer.Request) {
			r.Capabilities.ClusterScoped[schema.GroupKind{Kind: "X"}] = true
		}, true},
		"Damaged":   {"A bit was flipped.", func(t *testing.T, folder string, _ *renderer.Request) { damage(t, folder, false) }, true},
		"Truncated": {"The machine lost power.", func(t *testing.T, folder string, _ *renderer.Request) { damage(t, folder, true) }, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := filepath.Join(t.TempDir(), "targets")
			r := request(numbers, 1)
			want, err := openDisk(t, renderer.New(), folder, "v1", 1<<20).Render(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			tc.change(t, folder, &r)
			engine := &counting{next: renderer.New()}
			got, err := openDisk(t, engine, folder, "v1", 1<<20).Render(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if again := engine.renders.Load() == 1; again != tc.again {
				t.Errorf("%s rendered again: %v, want %v", tc.why, again, tc.again)
			}
			if d := cmp.Diff(want, got); !tc.again && d != "" {
				t.Errorf("target (-rendered +read):\n%s", d)
			}
		})
	}
}

// damage changes each file of a folder.
func damage(t *testing.T, folder string, cut bool) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if cut {
		data = data[:len(data)/2]
	} else {
		data[len(data)-2] ^= 1
	}
	if err := os.WriteFile(files[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDiskPrograms: another version of Keelson may render otherwise.
func TestDiskPrograms(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	engine := &counting{next: renderer.New()}
	for _, program := range []string{"v1", "v2", "v1"} {
		if _, err := openDisk(t, engine, folder, program, 1<<20).Render(t.Context(), request(configMapVersion(configMap), 1)); err != nil {
			t.Fatal(err)
		}
	}
	if got := engine.renders.Load(); got != 2 {
		t.Errorf("%d renders by two programs", got)
	}
}

// TestDiskBounded: the folder stays below its size, and files that are not the
// cache's stay.
func TestDiskBounded(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "mine"), make([]byte, 10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	d := openDisk(t, renderer.New(), folder, "v1", 4_000)
	for i := range 40 {
		if _, err := d.Render(t.Context(), request(configMapVersion(configMap), i)); err != nil {
			t.Fatal(err)
		}
	}
	var size int64
	files, err := filepath.Glob(filepath.Join(folder, "*.target"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if len(files) == 0 || size > 4_000 {
		t.Errorf("%d files of %d bytes, want some of at most 4,000", len(files), size)
	}
	if _, err := os.Stat(filepath.Join(folder, "mine")); err != nil {
		t.Error(err)
	}
}
