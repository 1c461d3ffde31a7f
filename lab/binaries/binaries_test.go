package binaries_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/modfile"

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
		writeModule(t, filepath.Join(dir, module), require, sum)
	}
	return dir
}

func writeModule(t *testing.T, dir, require, sum string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mod := fmt.Sprintf("module example.org/%s\n\ngo 1.26.0\n\nrequire %s\n", filepath.Base(dir), require)
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), []byte(sum), 0o600); err != nil {
		t.Fatal(err)
	}
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
	if err := set.Build(t.Context(), binaries.BuildOptions{Only: []string{"kubelet"}}); !errors.Is(err, binaries.ErrUnknown) || !strings.Contains(err.Error(), `"kubelet"`) {
		t.Errorf("an unknown program: %v", err)
	}
}

func TestOlderKubernetes(t *testing.T) {
	t.Parallel()
	dir, cache := modules(t, "v1.36.3", "sum"), t.TempDir()
	alone := load(t, dir, cache)
	writeModule(t, filepath.Join(dir, "kubernetes-1.33"), "k8s.io/kubernetes v1.33.13", "sum")
	lab := load(t, dir, cache)
	if lab.Dir != alone.Dir {
		t.Errorf("pinning an older Kubernetes moved the lab's own from %s to %s", alone.Dir, lab.Dir)
	}
	older := func() binaries.Set {
		t.Helper()
		set, err := load(t, dir, cache).Kubernetes("1.33")
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	old := older()
	if !strings.HasPrefix(old.Dir, filepath.Join(cache, "v1.33.13-")) ||
		old.Version(binaries.APIServer) != "v1.33.13" || old.Version(binaries.Kubectl) != "v1.36.3" || old.Version(binaries.Etcd) != "v3.6.0" {
		t.Errorf("folder %s, API server %s, kubectl %s, etcd %s",
			old.Dir, old.Version(binaries.APIServer), old.Version(binaries.Kubectl), old.Version(binaries.Etcd))
	}
	for _, minor := range []string{"", "1.36"} {
		if set, err := lab.Kubernetes(minor); err != nil || set.Dir != lab.Dir {
			t.Errorf("%q is %s (%v), want the lab's own, %s", minor, set.Dir, err, lab.Dir)
		}
	}
	if minors, err := lab.Minors(); err != nil || !slices.Equal(minors, []string{"1.36", "1.33"}) {
		t.Errorf("got %v (%v)", minors, err)
	}
	for _, minor := range []string{"1.34", "1.33.13", "../kubernetes"} {
		if _, err := lab.Kubernetes(minor); !errors.Is(err, binaries.ErrUnknown) || !strings.HasSuffix(err.Error(), "1.36 and 1.33") {
			t.Errorf("%q: %v, want %v with what there is", minor, err, binaries.ErrUnknown)
		}
	}
	if err := old.Require(binaries.Assets()...); !errors.Is(err, binaries.ErrMissing) ||
		!strings.HasSuffix(err.Error(), "lab build --kubernetes 1.33 --only etcd,kube-apiserver,kubectl") {
		t.Errorf("%v, want %v with what to run", err, binaries.ErrMissing)
	}
	if err := old.Build(t.Context(), binaries.BuildOptions{Only: []string{binaries.Scheduler}}); !errors.Is(err, binaries.ErrUnknown) {
		t.Errorf("building the scheduler of 1.33, which the lab does not have: %v, want ErrUnknown", err)
	}

	writeModule(t, filepath.Join(dir, "etcd"), "go.etcd.io/etcd/server/v3 v3.6.1", "sum")
	if older().Dir == old.Dir {
		t.Error("with another etcd it has the same folder")
	}
	writeModule(t, filepath.Join(dir, "kubernetes-1.33"), "k8s.io/kubernetes v1.34.4", "sum")
	if _, err := lab.Kubernetes("1.33"); err == nil || !strings.Contains(err.Error(), "kubernetes-1.33 pins Kubernetes v1.34.4") {
		t.Errorf("a folder that pins what it is not called after: %v", err)
	}
}

// What the lab built already is not built again for an older Kubernetes; and
// each folder stands on its own.
// A Gitea is a set of its own: who needs none builds none, and a change of its pins
// moves no cluster's programs.
func TestForge(t *testing.T) {
	t.Parallel()
	dir, cache := modules(t, "v1.36.3", "sum"), t.TempDir()
	alone := load(t, dir, cache)
	if _, err := alone.Forge(); err == nil {
		t.Error("there is none to pin")
	}
	writeModule(t, filepath.Join(dir, "gitea"), "code.gitea.io/gitea v1.26.0", "sum")
	lab := load(t, dir, cache)
	if lab.Dir != alone.Dir {
		t.Errorf("pinning a Gitea moved the lab's own from %s to %s", alone.Dir, lab.Dir)
	}
	forge, err := lab.Forge()
	if err != nil {
		t.Fatal(err)
	}
	if name := filepath.Base(forge.Dir); !strings.HasPrefix(name, "gitea-v1.26.0-") || filepath.Dir(forge.Dir) != cache {
		t.Errorf("it is in %s", forge.Dir)
	}
	if err := forge.Require(binaries.Gitea); !errors.Is(err, binaries.ErrMissing) || !strings.Contains(err.Error(), "lab build --forge") {
		t.Errorf("%v, want %v with what to run", err, binaries.ErrMissing)
	}
	writeModule(t, filepath.Join(dir, "gitea"), "code.gitea.io/gitea v1.26.1", "sum")
	if next, err := load(t, dir, cache).Forge(); err != nil || next.Dir == forge.Dir {
		t.Errorf("another version is in %s, too: %v", next.Dir, err)
	}
}

func TestOlderKubernetesShares(t *testing.T) {
	t.Parallel()
	dir := modules(t, "v1.36.3", "sum")
	writeModule(t, filepath.Join(dir, "kubernetes-1.33"), "k8s.io/kubernetes v1.33.13", "sum")
	lab := load(t, dir, t.TempDir())
	old, err := lab.Kubernetes("1.33")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(lab.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range binaries.Assets() {
		if err := os.WriteFile(lab.Path(name), []byte("the lab's "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// These modules can't be built: what is not shared fails.
	only := []string{binaries.Etcd, binaries.Kubectl}
	if err := old.Build(t.Context(), binaries.BuildOptions{Only: only}); err != nil {
		t.Error(err)
	}
	if err := old.Build(t.Context(), binaries.BuildOptions{}); err == nil || !strings.Contains(err.Error(), "build kube-apiserver in lab/build/kubernetes-1.33") {
		t.Errorf("its own API server: %v", err)
	}
	if err := os.RemoveAll(lab.Dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range only {
		if data, err := os.ReadFile(old.Path(name)); err != nil || string(data) != "the lab's "+name {
			t.Errorf("%s: %q (%v)", name, data, err)
		}
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
	lab, err := binaries.Load("../build", "/cache")
	if err != nil {
		t.Fatal(err)
	}
	minors, err := lab.Minors()
	if err != nil {
		t.Fatal(err)
	}
	for _, minor := range minors {
		set, err := lab.Kubernetes(minor)
		if err != nil {
			t.Fatal(err)
		}
		module := "kubernetes"
		if minor != minors[0] {
			module += "-" + minor
		}
		data, err := os.ReadFile(filepath.Join("../build", module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		mod, err := modfile.Parse(module, data, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(mod.Godebug, func(g *modfile.Godebug) bool { return g.Key == "default" }) {
			t.Errorf("%s: k8s.io/kubernetes's godebug line is missing", module)
		}
		staging := "v0" + strings.TrimPrefix(set.Version(binaries.APIServer), "v1")
		for _, r := range mod.Replace {
			if r.New.Version != staging {
				t.Errorf("%s: %s is replaced by %s, want %s", module, r.Old.Path, r.New.Version, staging)
			}
		}
		if len(mod.Replace) == 0 {
			t.Errorf("%s: no staging module is replaced", module)
		}
	}
}
