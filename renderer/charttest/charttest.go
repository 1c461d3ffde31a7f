// Package charttest finds the public Helm charts that tests and benchmarks run on, besides
// the charts of the repository.
//
// They are read from the folder that [Env] names, or from ../shared/charts beside the
// repository. A test that needs a public chart is skipped without it, and says so.
package charttest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Env names the variable with the folder of public charts. A chart is any folder below it
// with a Chart.yaml.
const Env = "KEELSON_CHARTS"

// Public returns the public charts, a folder each, in path order. Without [Env] and
// without the default folder there are none.
func Public(t testing.TB) []string {
	t.Helper()
	dir := os.Getenv(Env)
	if dir == "" {
		dir = filepath.Join(root(t), "..", "shared", "charts")
		if _, err := os.Stat(dir); err != nil {
			return nil
		}
	}
	var charts []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if _, err := os.Stat(filepath.Join(path, "Chart.yaml")); err != nil {
			return nil //nolint:nilerr // a folder of charts
		}
		charts = append(charts, path)
		return filepath.SkipDir // its subcharts are part of it
	})
	if err != nil {
		t.Fatalf("%s: %v", Env, err)
	}
	return charts
}

// Need returns the folder of one public chart. Without it the test is skipped.
func Need(t testing.TB, name string) string {
	t.Helper()
	all := Public(t)
	i := slices.IndexFunc(all, func(dir string) bool { return filepath.Base(dir) == name })
	if i < 0 {
		t.Skipf("the public chart %s is not here: set %s to a folder of charts", name, Env)
	}
	return all[i]
}

// root returns the folder of the repository, above the package under test.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "examples", "fleet", "fleet.yaml")); err == nil {
			return dir
		}
		above := filepath.Dir(dir)
		if above == dir {
			t.Fatal("the package under test is not below the repository's folder")
		}
		dir = above
	}
}
