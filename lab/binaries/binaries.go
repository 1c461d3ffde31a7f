// Package binaries builds the programs of a cluster from their Go modules, once
// per user, and returns their paths.
//
// Each program comes from a nested module (lab/build/MODULE) that pins all its
// dependencies. The binaries are in one folder of the user's cache. The folder is
// named after the Kubernetes version and a hash of the pins and build flags. A
// changed pin makes a new folder; running clusters keep the old folder.
//
// The lab runs the Kubernetes of lab/build/kubernetes. For each older Kubernetes, in
// lab/build/kubernetes-1.X, only the API server is built, for tests.
package binaries

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// The names of the programs, on disk and on the command line.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	Kubectl           = "kubectl"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kwok              = "kwok"
	// Gitea isn't part of a cluster. It belongs to [Set.Forge].
	Gitea = "gitea"
	// Kubelet and the names after it are the programs of real nodes, see [Set.Node].
	Kubelet    = "kubelet"
	KubeProxy  = "kube-proxy"
	Containerd = "containerd"
	Shim       = "containerd-shim-runc-v2"
	Registry   = "registry"
)

// EnvModules is the environment variable with the path of the nested modules.
const EnvModules = "KEELSON_LAB_MODULES"

var (
	// ErrMissing is returned for programs that are not built yet.
	ErrMissing = errors.New("not built yet")
	// ErrUnknown is returned for a program or a Kubernetes version that isn't pinned.
	ErrUnknown = errors.New("unknown")
)

const (
	k8sRoot    = "k8s.io/kubernetes" // the module of Kubernetes
	kubernetes = "kubernetes"        // the folder that pins the lab's own Kubernetes
	older      = kubernetes + "-"    // prefix of the folders that pin older versions: kubernetes-1.X
)

// Binary is one program and its build inputs.
type Binary struct {
	Name    string // file name
	Module  string // folder under lab/build
	Package string // the argument of go build
	Root    string // the module whose version is the program's version
	Tags    string // build tags, with commas
	Cgo     bool   // whether it needs a C compiler
}

// All returns all programs of a cluster without real nodes, in build order. The
// programs that envtest needs come first.
func All() []Binary {
	k8s := func(name string) Binary {
		return Binary{Name: name, Module: kubernetes, Package: k8sRoot + "/cmd/" + name, Root: k8sRoot}
	}
	return []Binary{
		{Name: Etcd, Module: "etcd", Package: "go.etcd.io/etcd/server/v3", Root: "go.etcd.io/etcd/server/v3"},
		k8s(APIServer), k8s(Kubectl), k8s(ControllerManager), k8s(Scheduler),
		{Name: Kwok, Module: "kwok", Package: "sigs.k8s.io/kwok/cmd/kwok", Root: "sigs.k8s.io/kwok"},
	}
}

// Assets returns the names of the programs that envtest expects in one folder.
func Assets() []string { return []string{Etcd, APIServer, Kubectl} }

// Names returns the names of the programs.
func Names(of []Binary) []string {
	names := make([]string, 0, len(of))
	for _, b := range of {
		names = append(names, b.Name)
	}
	return names
}

// Set holds programs at the versions that one checkout pins.
type Set struct {
	Dir      string            // folder of the programs, built or not; usable as KUBEBUILDER_ASSETS
	Modules  string            // lab/build of the checkout
	programs []Binary          // in build order
	versions map[string]string // by program
	lab      *Set              // the lab's own set; an older Kubernetes shares its etcd and kubectl. Nil in the lab's set
}

// Find locates lab/build, reads its pins and computes the folder of the
// programs. Find builds nothing. If [EnvModules] is not set, Find searches the
// parent folders of the running program and of the working directory.
func Find() (Set, error) {
	modules, err := findModules()
	if err != nil {
		return Set{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return Set{}, fmt.Errorf("find the user's cache (set HOME or XDG_CACHE_HOME): %w", err)
	}
	return load(modules, filepath.Join(cache, "keelson", "lab"))
}

func load(modules, cache string) (Set, error) {
	return pin(Set{Modules: modules, programs: All()}, cache)
}

// pin reads the modules of a set's programs and computes the folder of the set in
// the cache.
func pin(set Set, cache string) (Set, error) {
	set.versions = map[string]string{}
	sum := sha256.New()
	seen := map[string]*modfile.File{}
	for _, b := range set.programs {
		mod, ok := seen[b.Module]
		if !ok {
			var err error
			if mod, err = readModule(filepath.Join(set.Modules, b.Module), func(name string, data []byte) {
				fmt.Fprintf(sum, "%s/%s %d\n", b.Module, name, len(data))
				sum.Write(data)
			}); err != nil {
				return Set{}, err
			}
			seen[b.Module] = mod
		}
		i := slices.IndexFunc(mod.Require, func(r *modfile.Require) bool { return r.Mod.Path == b.Root })
		if i < 0 {
			return Set{}, fmt.Errorf("%s does not require %s, which %s is built from", mod.Syntax.Name, b.Root, b.Name)
		}
		set.versions[b.Name] = mod.Require[i].Mod.Version
		fmt.Fprintln(sum, b.Package, strings.Join(flags(b, set.versions[b.Name]), " "))
	}
	named := set.versions[APIServer]
	if named == "" { // no API server: the set of Forge or Node
		named = set.programs[0].Name + "-" + set.versions[set.programs[0].Name]
	}
	set.Dir = filepath.Join(cache, named+"-"+hex.EncodeToString(sum.Sum(nil))[:12])
	return set, nil
}

// Kubernetes returns the set whose API server has a minor version, such as 1.33.
// For "" and for the lab's own version, Kubernetes returns the lab's own set. The set of
// an older version is for tests: its API server, with the etcd and the kubectl of the
// lab. The error wraps [ErrUnknown] if lab/build doesn't pin the version.
func (s Set) Kubernetes(minor string) (Set, error) {
	if minor == "" || minor == s.minor() {
		return s, nil
	}
	minors, err := s.Minors()
	if err != nil {
		return Set{}, err
	}
	if !slices.Contains(minors, minor) {
		return Set{}, fmt.Errorf("%w Kubernetes %q; lab/build pins %s", ErrUnknown, minor, strings.Join(minors, " and "))
	}
	old := Set{Modules: s.Modules, lab: &s}
	for _, b := range s.programs {
		if b.Name == APIServer {
			b.Module = older + minor
		}
		if slices.Contains(Assets(), b.Name) {
			old.programs = append(old.programs, b)
		}
	}
	if old, err = pin(old, filepath.Dir(s.Dir)); err != nil {
		return Set{}, err
	}
	if old.minor() != minor {
		return Set{}, fmt.Errorf("lab/build/%s%s pins Kubernetes %s", older, minor, old.Version(APIServer))
	}
	return old, nil
}

// Minors returns the minor versions of Kubernetes that lab/build pins. The lab's own
// version is the first.
func (s Set) Minors() ([]string, error) {
	entries, err := os.ReadDir(s.Modules)
	if err != nil {
		return nil, fmt.Errorf("look for versions of Kubernetes: %w", err)
	}
	minors := []string{s.minor()}
	for _, e := range entries {
		if minor, ok := strings.CutPrefix(e.Name(), older); ok {
			minors = append(minors, minor)
		}
	}
	return minors, nil
}

// Forge returns the set that holds only Gitea. Gitea is separate because few tests need
// it, its build takes four minutes, and it needs a C compiler.
func (s Set) Forge() (Set, error) {
	const root = "code.gitea.io/gitea"
	programs := []Binary{{Name: Gitea, Module: Gitea, Package: root, Root: root, Tags: "sqlite,sqlite_unlock_notify", Cgo: true}}
	return pin(Set{Modules: s.Modules, programs: programs}, filepath.Dir(s.Dir))
}

// Node returns the set of the programs of real nodes, and of the registry that they pull
// images from. The programs need root to run, and some more minutes to build. The
// kubelet and kube-proxy have the version of the lab's own Kubernetes.
func (s Set) Node() (Set, error) {
	const (
		containerd = "github.com/containerd/containerd/v2"
		registry   = "github.com/distribution/distribution/v3"
	)
	programs := []Binary{
		{Name: Kubelet, Module: kubernetes, Package: k8sRoot + "/cmd/" + Kubelet, Root: k8sRoot},
		{Name: KubeProxy, Module: kubernetes, Package: k8sRoot + "/cmd/" + KubeProxy, Root: k8sRoot},
		// The tags exclude snapshotters that need C libraries or a special file system.
		{Name: Containerd, Module: "containerd", Package: containerd + "/cmd/" + Containerd, Root: containerd, Tags: "no_btrfs,no_devmapper,no_zfs"},
		{Name: Shim, Module: "containerd", Package: containerd + "/cmd/" + Shim, Root: containerd},
		{Name: Registry, Module: "registry", Package: registry + "/cmd/" + Registry, Root: registry},
	}
	return pin(Set{Modules: s.Modules, programs: programs}, filepath.Dir(s.Dir))
}

// minor returns the minor version of the API server, such as 1.36.
func (s Set) minor() string {
	return strings.TrimPrefix(semver.MajorMinor(s.Version(APIServer)), "v")
}

func readModule(dir string, each func(name string, data []byte)) (*modfile.File, error) {
	var parsed *modfile.File
	for _, name := range []string{"go.mod", "go.sum"} {
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read what a program is built from: %w", err)
		}
		each(name, data)
		if name == "go.mod" {
			if parsed, err = modfile.Parse(path, data, nil); err != nil {
				return nil, fmt.Errorf("read what a program is built from: %w", err)
			}
		}
	}
	return parsed, nil
}

// Version returns the version of a program, such as v1.36.3.
func (s Set) Version(name string) string { return s.versions[name] }

// Path returns the path of a program, built or not.
func (s Set) Path(name string) string { return filepath.Join(s.Dir, name) }

// Missing returns the named programs that are not built yet.
func (s Set) Missing(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		info, err := os.Stat(s.Path(name))
		return err == nil && info.Mode().IsRegular()
	})
}

// Require returns an error that wraps [ErrMissing] if a named program isn't built.
// The message contains the command that builds the missing programs.
func (s Set) Require(names ...string) error {
	missing := s.Missing(names...)
	if len(missing) == 0 {
		return nil
	}
	build := "lab build"
	switch {
	case s.lab != nil:
		build += " --kubernetes " + s.minor()
	case s.versions[Gitea] != "":
		build += " --forge"
	case s.versions[Kubelet] != "":
		build += " --node real"
	}
	return fmt.Errorf("%s: %w; run: %s --only %s", strings.Join(missing, ", "), ErrMissing, build, strings.Join(missing, ","))
}

// flags returns the flags of go build for one program at one version. No flag
// depends on the machine, because the flags are part of the hash.
func flags(b Binary, version string) []string {
	ld := []string{"-s", "-w"}
	if b.Root == k8sRoot {
		// Clients parse the version and refuse v0.0.0-master+$Format:%H$.
		major, minor, _ := strings.Cut(strings.TrimPrefix(semver.MajorMinor(version), "v"), ".")
		for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
			ld = append(
				ld,
				"-X", pkg+".gitVersion="+version,
				"-X", pkg+".gitMajor="+major,
				"-X", pkg+".gitMinor="+minor,
				"-X", pkg+".gitTreeState=clean",
				"-X", pkg+".gitCommit=",
			)
		}
	}
	// The linker strips the programs, so the compiler need not write debug information.
	out := []string{"-mod=readonly", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", "-ldflags=" + strings.Join(ld, " ")}
	if b.Tags != "" {
		out = append(out, "-tags="+b.Tags)
	}
	return out
}

func findModules() (string, error) {
	if dir := os.Getenv(EnvModules); dir != "" {
		if !isModules(dir) {
			return "", fmt.Errorf("%s=%s is not the folder lab/build of a checkout", EnvModules, dir)
		}
		return dir, nil
	}
	var starts []string
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	for _, start := range starts {
		for dir := start; ; dir = filepath.Dir(dir) {
			for _, candidate := range []string{filepath.Join(dir, "lab", "build"), filepath.Join(dir, "build")} {
				if isModules(candidate) {
					return candidate, nil
				}
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("lab/build is not above %s; run lab from a checkout, or set %s", strings.Join(starts, " or "), EnvModules)
}

func isModules(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, kubernetes, "go.mod"))
	return err == nil
}
