// Package render_test measures the cost of rendering public charts. It compares Keelson's worker
// processes, Keelson's engine in one process, Helm's own code in one process, and helm template.
// ../README.md describes what is measured and what isn't.
package render_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/charttest"
)

// workerArg starts this program as a render worker.
const workerArg = "render-worker"

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // Helm logs warnings
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if len(os.Args) > 1 && os.Args[1] == workerArg {
		if err := renderer.Work(os.Stdin, os.NewFile(3, "answers")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// publicChart holds the folder of a chart and its files in memory.
type publicChart struct {
	name, dir string
	files     []registry.File
	// version is the input of Keelson's renderers: the files, and the images of the component.
	version *registry.Version
	// valuesFile passes the images to helm template; empty: the chart has its own images. The
	// schemas of components cover meta-config without images, so Helm must not validate against
	// them.
	valuesFile string
}

// publicCharts returns the charts beside the repository, or the charts of the example fleet if
// there are none.
func publicCharts(b *testing.B) []publicChart {
	b.Helper()
	dirs := charttest.Public(b)
	if len(dirs) == 0 {
		found, err := filepath.Glob("../../../examples/fleet/components/*/template/Chart.yaml")
		if err != nil {
			b.Fatal(err)
		}
		for _, file := range found {
			dirs = append(dirs, filepath.Dir(file))
		}
	}
	var charts []publicChart
	for _, dir := range dirs {
		c := publicChart{dir: dir, name: filepath.Base(strings.TrimSuffix(dir, "/template"))}
		c.read(b)
		charts = append(charts, c)
	}
	if len(charts) > 0 {
		return charts
	}
	b.Fatal("there is no chart")
	return nil
}

func (c *publicChart) read(b *testing.B) {
	b.Helper()
	err := fs.WalkDir(os.DirFS(c.dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(c.dir, name))
		c.files = append(c.files, registry.File{Name: name, Data: data})
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	c.version = &registry.Version{
		Component: c.name, Name: "v1.0.0", Chart: c.files,
		Spec: v1alpha1.Component{Namespace: "test", Determinism: v1alpha1.DeterminismReport},
	}
	c.readImages(b)
}

// readImages reads the images.yaml beside the template of a component. A public chart has none.
func (c *publicChart) readImages(b *testing.B) {
	b.Helper()
	data, err := os.ReadFile(filepath.Join(filepath.Dir(c.dir), "images.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		b.Fatal(err)
	}
	var images v1alpha1.Images
	if err := yaml.UnmarshalStrict(data, &images); err != nil {
		b.Fatal(err)
	}
	c.version.Images = images.Images
	data, err = yaml.Marshal(c.version.ImageValues(nil))
	if err != nil {
		b.Fatal(err)
	}
	c.valuesFile = filepath.Join(b.TempDir(), "values.yaml")
	if err := os.WriteFile(c.valuesFile, data, 0o600); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRender renders each chart in parallel, once per processor at a time.
func BenchmarkRender(b *testing.B) {
	helm := helmCommand(b)
	pool := renderer.NewPool(renderer.PoolOptions{Args: []string{workerArg}})
	b.Cleanup(pool.Close)
	for _, c := range publicCharts(b) {
		for _, engine := range []struct {
			name   string
			render func(context.Context) error
		}{
			{"keelson", c.by(pool)},
			{"keelson-in-process", c.by(renderer.New())},
			{"helm-in-process", c.byHelm},
			{"helm-template", func(ctx context.Context) error { return c.byCommand(ctx, helm) }},
		} {
			b.Run("chart="+c.name+"/engine="+engine.name, func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := engine.render(b.Context()); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}

// by returns a function that renders with one of Keelson's renderers, without a cache.
func (c publicChart) by(r renderer.Renderer) func(context.Context) error {
	request := renderer.Request{Version: c.version, Capabilities: renderer.DefaultCapabilities()}
	return func(ctx context.Context) error {
		t, err := r.Render(ctx, request)
		if err == nil && len(t.Objects) == 0 {
			err = fmt.Errorf("%s gives no object", c.name)
		}
		return err
	}
}

// byHelm calls the same functions as helm template, on files in memory.
func (c publicChart) byHelm(ctx context.Context) error {
	files := make([]*loader.BufferedFile, len(c.files))
	for i, f := range c.files {
		files[i] = &loader.BufferedFile{Name: f.Name, Data: f.Data}
	}
	loaded, err := loader.LoadFiles(files)
	if err != nil {
		return err
	}
	install := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	install.ClientOnly, install.DryRun, install.DryRunOption = true, true, "client"
	install.Replace, install.IncludeCRDs, install.SkipSchemaValidation = true, true, c.valuesFile != ""
	install.ReleaseName, install.Namespace = c.name, "test"
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.36.0", Major: "1", Minor: "36"}
	rel, err := install.RunWithContext(ctx, loaded, c.version.ImageValues(nil))
	if err == nil && rel.Manifest == "" {
		err = fmt.Errorf("%s gives nothing", c.name)
	}
	return err
}

// byCommand starts a helm template process, as a script does.
func (c publicChart) byCommand(ctx context.Context, helm string) error {
	var out, words bytes.Buffer
	args := []string{"template", c.name, c.dir, "--namespace", "test", "--include-crds", "--kube-version", "v1.36.0"}
	if c.valuesFile != "" {
		args = append(args, "--values", c.valuesFile, "--skip-schema-validation")
	}
	cmd := exec.CommandContext(ctx, helm, args...)
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("helm template %s: %w: %s", c.name, err, words.String())
	}
	if out.Len() == 0 {
		return fmt.Errorf("helm template %s prints nothing", c.name)
	}
	return nil
}

// helmCommand returns the path of the helm program in go.mod, which is built if needed.
func helmCommand(b *testing.B) string {
	b.Helper()
	out, err := exec.CommandContext(b.Context(), "go", "tool", "-n", "helm").Output()
	if err != nil {
		b.Fatalf("build helm: %v", err)
	}
	return strings.TrimSpace(string(out))
}
