package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// TestModulesShareVersions holds that the nested modules which a clone compiles in minutes
// require no older version of a module than the root does. Go's cache and the linters' then
// have one build of it: a second set of versions made a cold run a quarter longer.
func TestModulesShareVersions(t *testing.T) {
	t.Parallel()
	root := requirements(t, "go.mod")
	for _, dir := range []string{"lab", "lab/bench", "tools"} {
		for module, version := range requirements(t, filepath.Join(dir, "go.mod")) {
			if want, shared := root[module]; shared && semver.Compare(version, want) < 0 {
				t.Errorf("%s/go.mod requires %s %s, and the root %s: go get -C %s %s@%s, and make tidy", dir, module, version, want, dir, module, want)
			}
		}
	}
}

// TestModulesAreKnown holds that a new nested module is either compared above, or stands
// here with the reason why it has versions of its own.
func TestModulesAreKnown(t *testing.T) {
	t.Parallel()
	known := map[string]string{
		"go.mod":                   "the root",
		"lab/go.mod":               "compared",
		"lab/bench/go.mod":         "compared",
		"tools/go.mod":             "compared",
		"lab/bench/engines/go.mod": "Argo CD and Flux decide its Kubernetes",
		"tools/sops/go.mod":        "the program as it was released",
		"tools/vuln/go.mod":        "the program as it was released",
	}
	out, err := exec.CommandContext(t.Context(), "git", "ls-files", "-co", "--exclude-standard", "--", "go.mod", "*/go.mod").Output()
	if err != nil {
		t.Skipf("not a git clone: %v", err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		built := strings.HasPrefix(name, "lab/build/") // programs of the lab, each as it was released
		if known[name] == "" && !built && !strings.Contains(name, "/testdata/") {
			t.Errorf("%s is a module that this test does not know: add it to TestModulesShareVersions or to the list here", name)
		}
	}
}

// requirements returns the versions of a go.mod by module.
func requirements(t *testing.T, file string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse(file, data, nil)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Mod.Path] = r.Mod.Version
	}
	return versions
}
