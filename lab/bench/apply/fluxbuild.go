package apply

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	fluxModules         = "github.com/fluxcd/"
	sourceController    = "source-controller"
	kustomizeController = "kustomize-controller"
)

// fluxControllers returns the controllers to build. v1.9 is the last minor release that builds with
// the Go version of this repository. The Go module proxy served all modules of these versions when
// this was written.
func fluxControllers() []fluxController {
	return []fluxController{{sourceController, "v1.9.0"}, {kustomizeController, "v1.9.3"}}
}

type fluxController struct{ name, version string }

func (c fluxController) String() string { return c.name + " " + c.version }

// fluxPrograms is the folder with Flux's controllers. Their CRDs are in NAME-VERSION.crds.
type fluxPrograms string

func (p fluxPrograms) path(c fluxController) string {
	return filepath.Join(string(p), c.name+"-"+c.version)
}

// crds returns the CRDs of both controllers.
func (p fluxPrograms) crds() ([]*unstructured.Unstructured, error) {
	var files []string
	for _, c := range fluxControllers() {
		some, err := filepath.Glob(filepath.Join(p.path(c)+".crds", "*.yaml"))
		if err != nil || len(some) == 0 {
			return nil, fmt.Errorf("find the CRDs of %s in %s: %d files: %w", c, p, len(some), err)
		}
		files = append(files, some...)
	}
	var out []*unstructured.Unstructured
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the CRDs of flux: %w", err)
		}
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &u.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		out = append(out, u)
	}
	return out, nil
}

// buildFlux builds the controllers from their Go modules into the user's cache, once. It needs the
// go command. The controllers' go.sum fixes the dependencies.
func buildFlux(ctx context.Context, limit time.Duration, progress io.Writer) (fluxPrograms, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache (set HOME or XDG_CACHE_HOME): %w", err)
	}
	p := fluxPrograms(filepath.Join(cache, "keelson", "bench"))
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s; what is compiled already is kept for the next time", limit))
	defer cancel()
	for _, c := range fluxControllers() {
		if _, err := os.Stat(p.path(c)); err == nil {
			continue
		}
		fmt.Fprintf(progress, "building %s: some minutes, once\n", c)
		if err := p.build(ctx, c); err != nil {
			return "", errors.Join(fmt.Errorf("build %s: %w", c, err), context.Cause(ctx))
		}
	}
	return p, nil
}

// build builds one program in a copy of its module. The module refers to its API module by a
// relative folder, which the published module lacks.
func (p fluxPrograms) build(ctx context.Context, c fluxController) error {
	if err := os.MkdirAll(string(p), 0o755); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	source, err := os.MkdirTemp("", "keelson-flux-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(source) }() // a leftover folder does no harm
	// The main module comes first: the API module is copied into it.
	for _, one := range [][2]string{{c.name, "module"}, {c.name + "/api", "module/api"}} {
		module, into := one[0], one[1]
		dir, err := downloaded(ctx, source, fluxModules+module+"@"+c.version)
		if err != nil {
			return err
		}
		if err := os.CopyFS(filepath.Join(source, into), os.DirFS(dir)); err != nil {
			return fmt.Errorf("copy a module: %w", err)
		}
	}
	crds := p.path(c) + ".crds"
	if err := os.RemoveAll(crds); err != nil {
		return fmt.Errorf("remove old CRDs: %w", err)
	}
	if err := os.CopyFS(crds, os.DirFS(filepath.Join(source, "module", "config", "crd", "bases"))); err != nil {
		return fmt.Errorf("copy CRDs: %w", err)
	}
	built := p.path(c) + ".new"
	args := []string{"build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-p", fmt.Sprint(min(runtime.GOMAXPROCS(0), 4)), "-ldflags=-s -w", "-o", built, "."}
	if _, err := golang(ctx, filepath.Join(source, "module"), args...); err != nil {
		return err
	}
	if err := os.Rename(built, p.path(c)); err != nil {
		return fmt.Errorf("put %s in its place: %w", c, err)
	}
	return nil
}

// downloaded returns the folder of a module in Go's module cache. from must be a folder outside of
// any module.
func downloaded(ctx context.Context, from, module string) (string, error) {
	out, err := golang(ctx, from, "mod", "download", "-json", module)
	if err != nil {
		return "", err
	}
	var said struct{ Dir string }
	if err := json.Unmarshal(out, &said); err != nil {
		return "", fmt.Errorf("go mod download %s: %w", module, err)
	}
	return said.Dir, nil
}

// golang runs the go command in a folder, and returns its output.
func golang(ctx context.Context, dir string, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = dir
	c.Env = append(slices.Clone(os.Environ()), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	var complaints bytes.Buffer
	c.Stderr = &complaints
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s%s", args[0], err, complaints.Bytes(), out)
	}
	return out, nil
}
