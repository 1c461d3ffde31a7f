package binaries_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/lab/binaries"
)

// modules writes a lab/build with the given pins.
func modules(t *testing.T, kubernetes, sum string) string {
	t.Helper()
	dir := t.TempDir()
	for module, require := range map[string]string{
		"kubernetes": "k8s.io/kubernetes " + kubernetes,
		"etcd":       "go.etcd.io/etcd/server/v3 v3.6.0",
		"kwok":       "sigs.k8s.io/kwok v0.8.0",
	} {
		if err := os.Mkdir(filepath.Join(dir, module), 0o700); err != nil {
			t.Fatal(err)
		}
		mod := fmt.Sprintf("module example.org/%s\n\ngo 1.26.0\n\nrequire %s\n", module, require)
		if err := os.WriteFile(filepath.Join(dir, module, "go.mod"), []byte(mod), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, module, "go.sum"), []byte(sum), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func load(t *testing.T, modules, cache string) binaries.Set {
	t.Helper()
	set, err := binaries.Load(modules, cache)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestSetIsNamedAfterItsPins(t *testing.T) {
	t.Parallel()
	set := load(t, modules(t, "v1.36.3", "sum"), "/cache")
	again := load(t, modules(t, "v1.36.3", "sum"), "/cache")
	if set.Dir != again.Dir {
		t.Errorf("the same pins in two checkouts: %s and %s", set.Dir, again.Dir)
	}
	if !strings.HasPrefix(set.Dir, "/cache/v1.36.3-") || set.Version(binaries.Etcd) != "v3.6.0" || set.Version(binaries.Scheduler) != "v1.36.3" {
		t.Errorf("folder %s, versions %s and %s", set.Dir, set.Version(binaries.Etcd), set.Version(binaries.Scheduler))
	}
	for why, other := range map[string]binaries.Set{
		"another version":  load(t, modules(t, "v1.36.4", "sum"), "/cache"),
		"another checksum": load(t, modules(t, "v1.36.3", "other"), "/cache"),
	} {
		if other.Dir == set.Dir {
			t.Errorf("%s has the folder of the first", why)
		}
	}
}

func TestLoadNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	dir := modules(t, "v1.36.3", "sum")
	mod := filepath.Join(dir, "kwok", "go.mod")
	if err := os.WriteFile(mod, []byte("module example.org/kwok\n\ngo 1.26.0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := binaries.Load(dir, "/cache"); err == nil || !strings.Contains(err.Error(), mod) || !strings.Contains(err.Error(), "sigs.k8s.io/kwok") {
		t.Errorf("a module without what it is for: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "etcd", "go.sum")); err != nil {
		t.Fatal(err)
	}
	if _, err := binaries.Load(dir, "/cache"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a module without checksums: %v, want %v", err, os.ErrNotExist)
	}
}

func TestRequire(t *testing.T) {
	t.Parallel()
	set := load(t, modules(t, "v1.36.3", "sum"), t.TempDir())
	if err := os.MkdirAll(set.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(set.Path(binaries.Etcd), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := set.Require(binaries.Etcd); err != nil {
		t.Error(err)
	}
	err := set.Require(binaries.Etcd, binaries.Kwok, binaries.Kubectl)
	if !errors.Is(err, binaries.ErrMissing) || !strings.HasSuffix(err.Error(), "lab build --only kwok,kubectl") {
		t.Errorf("%v, want %v with what to run", err, binaries.ErrMissing)
	}
	// Nothing is left to do: no compiler is run.
	if err := set.Build(t.Context(), binaries.BuildOptions{Only: []string{binaries.Etcd}}); err != nil {
		t.Error(err)
	}
	if err := set.Build(t.Context(), binaries.BuildOptions{Only: []string{"kubelet"}}); err == nil || !strings.Contains(err.Error(), `"kubelet"`) {
		t.Errorf("an unknown program: %v", err)
	}
}

func TestFlagsStampKubernetes(t *testing.T) {
	t.Parallel()
	joined := strings.Join(binaries.Flags(binaries.APIServer, "v1.36.3"), " ")
	for _, want := range []string{
		"-X k8s.io/component-base/version.gitVersion=v1.36.3",
		"-X k8s.io/client-go/pkg/version.gitVersion=v1.36.3",
		"-X k8s.io/component-base/version.gitMajor=1",
		"-X k8s.io/component-base/version.gitMinor=36",
	} {
		if !strings.Contains(joined, want) {
			t.Errorf("%q is not in %q", want, joined)
		}
	}
	if joined := strings.Join(binaries.Flags(binaries.Etcd, "v3.6.0"), " "); strings.Contains(joined, "-X") {
		t.Errorf("etcd knows its version itself: %q", joined)
	}
}

func TestFollowTellsPackagesFromComplaints(t *testing.T) {
	t.Parallel()
	output := "k8s.io/api/core/v1\ninternal/abi\n# k8s.io/kubernetes/pkg/x\n../x/y.go:3:2: undefined: z\n\tneeded by w\ngo: cannot find module\n"
	packages, complaints := binaries.Follow(strings.NewReader(output))
	want := []string{"# k8s.io/kubernetes/pkg/x", "../x/y.go:3:2: undefined: z", "\tneeded by w", "go: cannot find module"}
	if diff := cmp.Diff(want, complaints); diff != "" || packages != 2 {
		t.Errorf("%d packages, complaints (-want +got):\n%s", packages, diff)
	}
	_, complaints = binaries.Follow(strings.NewReader(strings.Repeat("a: b\n", 1000) + "last: one\n"))
	if len(complaints) != 20 || complaints[19] != "last: one" {
		t.Errorf("%d lines, the last %q: want the last 20", len(complaints), complaints[len(complaints)-1])
	}
}

// The modules of this checkout must name what they are for, and keep what
// Kubernetes needs outside of its own tree.
func TestCheckout(t *testing.T) {
	t.Parallel()
	if _, err := binaries.Load("../build", "/cache"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("../build/kubernetes/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "\ngodebug default=") {
		t.Error("k8s.io/kubernetes's godebug line is missing")
	}
}
