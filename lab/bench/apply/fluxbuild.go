package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
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

func (p fluxPrograms) crds(c fluxController) string { return p.path(c) + ".crds" }

// buildFlux builds the controllers from their Go modules into the user's cache, once. It needs the
// go command. The controllers' go.sum fixes the dependencies.
func buildFlux(ctx context.Context, limit time.Duration, progress io.Writer) fluxPrograms {
	p := fluxPrograms(filepath.Join(must.Get(os.UserCacheDir()), "keelson", "bench"))
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s; what is compiled already is kept for the next time", limit))
	defer cancel()
	for _, c := range fluxControllers() {
		if _, err := os.Stat(p.path(c)); err == nil {
			continue
		}
		fmt.Fprintf(progress, "building %s: some minutes, once\n", c)
		if err := must.Try(func() { p.build(ctx, c) }); err != nil {
			must.Do(errors.Join(fmt.Errorf("build %s: %w", c, err), context.Cause(ctx)))
		}
	}
	return p
}

// build builds one program in a copy of its module. The module refers to its API module by a
// relative folder, which the published module lacks.
func (p fluxPrograms) build(ctx context.Context, c fluxController) {
	must.Do(os.MkdirAll(string(p), 0o755))
	source := must.Get(os.MkdirTemp("", "keelson-flux-"))
	defer func() { _ = os.RemoveAll(source) }() // a leftover folder does no harm
	// The main module comes first: the API module is copied into it.
	for _, one := range [][2]string{{c.name, "module"}, {c.name + "/api", "module/api"}} {
		dir := downloaded(ctx, source, fluxModules+one[0]+"@"+c.version)
		must.Do(os.CopyFS(filepath.Join(source, one[1]), os.DirFS(dir)))
	}
	must.Do(os.RemoveAll(p.crds(c)))
	must.Do(os.CopyFS(p.crds(c), os.DirFS(filepath.Join(source, "module", "config", "crd", "bases"))))
	built := p.path(c) + ".new"
	golang(ctx, filepath.Join(source, "module"), "build", "-mod=readonly", "-trimpath", "-buildvcs=false",
		"-p", fmt.Sprint(min(runtime.GOMAXPROCS(0), 4)), "-ldflags=-s -w", "-o", built, ".")
	must.Do(os.Rename(built, p.path(c)))
}

// downloaded returns the folder of a module in Go's module cache. from must be a folder outside of
// any module.
func downloaded(ctx context.Context, from, module string) string {
	var said struct{ Dir string }
	must.Do(json.Unmarshal(golang(ctx, from, "mod", "download", "-json", module), &said))
	return said.Dir
}

// golang runs the go command in a folder, and returns its output.
func golang(ctx context.Context, dir string, args ...string) []byte {
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	out, err := c.Output()
	if err != nil {
		must.Failf("go %s: %w\n%s%s", args[0], err, harness.Stderr(err), out)
	}
	return out
}
