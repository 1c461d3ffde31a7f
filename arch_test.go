package main_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The architecture of the house (docs/architecture.md has the picture), held by reading
// the imports of every Go file. Files are parsed here rather than listed by the
// go command: the test cache sees files that a test opens, and no commands.

const module = "github.com/keelson-io/keelson"

// apiServerForTests is a package that every test may import: it starts an API server, and
// imports none of ours.
const apiServerForTests = "applier/apiservertest"

// mayImport gives for each folder at the root the other folders that it may
// import. Data flows right, imports point left.
func mayImport() map[string][]string {
	return map[string][]string{
		"api":         {},
		"components":  {}, // embedded files, for those who install them
		"registry":    {"api"},
		"renderer":    {"api", "registry"},
		"differ":      {"api", "registry", "renderer"},
		"applier":     {"api", "registry", "renderer", "differ"},
		"controllers": {"api", "components", "registry", "renderer", "differ", "applier"},
		"cmd":         {"api", "components", "registry", "renderer", "differ", "applier", "controllers"},
		"docs":        {"cmd"},                                    // tests that what pages say can be done
		"examples":    {"api", "registry", "renderer", "applier"}, // tests that the examples are right
		".":           {"api", "components", "registry", "renderer", "differ", "applier", "controllers", "cmd"},
	}
}

// goFile is what the rules need to know of one Go file.
type goFile struct {
	name    string   // slash-separated, relative to the root
	pkg     string   // its package clause
	imports []string // paths
	uses    []string // what it takes from packages, as path.Name: "time.Now"
	selects []string // fields and methods that it takes from values: "Delete"
}

func (f goFile) folder() string {
	folder, _, nested := strings.Cut(f.name, "/")
	if !nested {
		return "."
	}
	return folder
}

func (f goFile) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

// rule says what a file must not do. broken returns each thing that the file
// does against it.
type rule struct {
	name   string
	why    string
	broken func(goFile) []string
}

func rules() []rule {
	return []rule{
		{
			name:   "ImportsPointLeft",
			why:    "A stage that knows the next one can't be tested, reused or replaced without it.",
			broken: importsToTheRight,
		},
		{
			name: "NothingImportsTheLab",
			why:  "The lab is a module of its own that builds Kubernetes: what ships must not need it.",
			broken: func(f goFile) []string {
				return importsUnder(f, module+"/lab")
			},
		},
		{
			name:   "DifferIsPure",
			why:    "The same arguments give the same plan: no cluster, logger, clock, network, file or chance.",
			broken: impurities,
		},
		{
			name:   "OnlyDifferMergesStructures",
			why:    "Two places that compare fields would one day disagree about what changed.",
			broken: onlyIn("differ", "sigs.k8s.io/structured-merge-diff/v4"),
		},
		{
			name:   "OnlyRendererKnowsHelm",
			why:    "Templates are outside code; everything that runs them has to go through one fence.",
			broken: onlyIn("renderer", "helm.sh/helm"),
		},
		{
			name:   "OnlyRegistryKnowsGit",
			why:    "The checks on refs, sizes and links hold only where git is read in one place.",
			broken: onlyIn("registry", "github.com/go-git"),
		},
		{
			name: "GitKnowsNoFleet",
			why:  "Who can push must not be able to change how git is read, signatures are verified and limits hold.",
			broken: func(f goFile) []string {
				if !strings.HasPrefix(f.name, "registry/gitrepo/") {
					return nil
				}
				return slices.DeleteFunc(importsUnder(f, module+"/registry"), func(imp string) bool { return imp != module+"/registry" })
			},
		},
		{
			name:   "OneGateForDeletions",
			why:    "A deletion that no danger rule was asked about takes data away that the plan shows as held.",
			broken: deletionsBesideTheGate,
		},
		{
			name:   "NoPackageForEverything",
			why:    "A package without a subject collects unrelated code.",
			broken: namesWithoutSubject,
		},
	}
}

func importsToTheRight(f goFile) []string {
	allowed, known := mayImport()[f.folder()]
	if !known {
		return []string{"has no place in the house: " + f.folder()}
	}
	var broken []string
	for _, imp := range f.imports {
		rest, ours := strings.CutPrefix(imp, module+"/")
		if !ours {
			continue
		}
		if f.isTest() && rest == apiServerForTests {
			continue
		}
		to, _, _ := strings.Cut(rest, "/")
		if to != f.folder() && !slices.Contains(allowed, to) {
			broken = append(broken, imp)
		}
	}
	return broken
}

func impurities(f goFile) []string {
	if f.folder() != "differ" || f.isTest() {
		return nil
	}
	broken := importsUnder(f,
		"k8s.io/client-go", "sigs.k8s.io/controller-runtime", // clusters
		"log", "k8s.io/klog", "github.com/go-logr", "go.uber.org/zap", // loggers
		"net/http", "net/rpc", "net/smtp", "google.golang.org/grpc", // networks; net itself is below
		"os", "syscall", "path/filepath", // the machine
		"math/rand", "crypto/rand", // chance
	)
	for _, imp := range f.imports {
		if imp == "net" { // net/netip and net/url compute
			broken = append(broken, imp)
		}
	}
	for _, use := range f.uses {
		switch use { // the rest of time computes: ParseDuration, Time.Sub
		case "time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc",
			"time.Tick", "time.NewTicker", "time.NewTimer":
			broken = append(broken, use)
		}
	}
	return broken
}

// deletionGate is the only file of the applier that may send a DELETE.
const deletionGate = "applier/deletion/gate.go"

func deletionsBesideTheGate(f goFile) []string {
	if f.folder() != "applier" || f.isTest() || f.name == deletionGate {
		return nil
	}
	var broken []string
	for _, method := range []string{"Delete", "DeleteCollection"} {
		if slices.Contains(f.selects, method) {
			broken = append(broken, method)
		}
	}
	if slices.Contains(f.uses, "net/http.MethodDelete") {
		broken = append(broken, "http.MethodDelete")
	}
	return broken
}

func namesWithoutSubject(f goFile) []string {
	isBad := func(name string) bool {
		return slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "misc"}, name)
	}
	var broken []string
	for dir := range strings.SplitSeq(path.Dir(f.name), "/") {
		if isBad(dir) {
			broken = append(broken, "folder "+dir)
		}
	}
	if isBad(strings.TrimSuffix(f.pkg, "_test")) {
		broken = append(broken, "package "+f.pkg)
	}
	return broken
}

// onlyIn is the rule that one folder alone imports what lies under prefix.
func onlyIn(folder, prefix string) func(goFile) []string {
	return func(f goFile) []string {
		if f.folder() == folder {
			return nil
		}
		return importsUnder(f, prefix)
	}
}

// importsUnder returns the imports of f that are, or lie below, one of prefixes.
func importsUnder(f goFile, prefixes ...string) []string {
	var found []string
	for _, imp := range f.imports {
		for _, prefix := range prefixes {
			if imp == prefix || strings.HasPrefix(imp, prefix+"/") {
				found = append(found, imp)
			}
		}
	}
	return found
}

func TestArchitecture(t *testing.T) {
	t.Parallel()
	files, err := readGoFiles(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}

	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			for _, f := range files {
				for _, what := range r.broken(f) {
					t.Errorf("%s: %s\n\t%s", f.name, what, r.why)
				}
			}
		})
	}
}

// TestReadGoFiles shows that the files which the rules judge are the right ones:
// a walk that finds nothing would let everything pass.
func TestReadGoFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root, map[string]string{
		"go.mod":                 "module " + module,
		"main.go":                "package main",
		"differ/plan.go":         "package differ\nimport (\n\"net\"\nclock \"time\"\n)\nvar _ = clock.Now\nvar _ net.IP\nvar _ = x.y().Z",
		"differ/plan_test.go":    "package differ_test\nimport _ \"time\"",
		"differ/README.md":       "not Go",
		"differ/testdata/bad.go": "not Go either",
		"lab/go.mod":             "module " + module + "/lab",
		"lab/main.go":            "package main\nimport \"net/http\"",
		".cache/x.go":            "package x",
	})

	got, err := readGoFiles(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	want := []goFile{
		{name: "differ/plan.go", pkg: "differ", imports: []string{"net", "time"}, uses: []string{"net.IP", "time.Now"}, selects: []string{"Z", "y"}},
		{name: "differ/plan_test.go", pkg: "differ_test", imports: []string{"time"}},
		{name: "main.go", pkg: "main"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(goFile{})); diff != "" {
		t.Errorf("readGoFiles (-want +got):\n%s", diff)
	}
}

// TestRulesCatch shows each rule a file that breaks it and one that comes
// close: a rule that can't fail holds nothing.
func TestRulesCatch(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		file goFile
		want map[string][]string // what is found, by rule
	}{
		"Left": {
			why: "The direction of the data is the direction in which to look.",
			file: goFile{
				name: "applier/applier.go", pkg: "applier",
				imports: []string{module + "/differ", module + "/renderer", "k8s.io/client-go/rest", "helm.shop/helmets"},
			},
		},
		"Right": {
			why:  "The next stage is not known.",
			file: goFile{name: "renderer/renderer.go", pkg: "renderer", imports: []string{module + "/differ", module + "/api/v1alpha1"}},
			want: map[string][]string{"ImportsPointLeft": {module + "/differ"}},
		},
		"APIServerForTests": {
			why:  "Tests start API servers in one way.",
			file: goFile{name: "differ/crd_test.go", pkg: "differ_test", imports: []string{module + "/applier/apiservertest"}},
		},
		"APIServerForCode": {
			why:  "The exception is for tests alone.",
			file: goFile{name: "differ/crd.go", pkg: "differ", imports: []string{module + "/applier/apiservertest"}},
			want: map[string][]string{"ImportsPointLeft": {module + "/applier/apiservertest"}},
		},
		"OwnSubpackage": {
			why:  "A folder may be several packages.",
			file: goFile{name: "controllers/delivery/loop.go", pkg: "delivery", imports: []string{module + "/controllers/observe"}},
		},
		"API": {
			why:  "All packages may import the API, so the API imports none of them.",
			file: goFile{name: "api/v1alpha1/files.go", pkg: "v1alpha1", imports: []string{module + "/registry"}},
			want: map[string][]string{"ImportsPointLeft": {module + "/registry"}},
		},
		"Components": {
			why:  "Shipped components are for those who install them.",
			file: goFile{name: "differ/defaults.go", pkg: "differ", imports: []string{module + "/components"}},
			want: map[string][]string{"ImportsPointLeft": {module + "/components"}},
		},
		"ComponentsInstalled": {
			why:  "The same import one folder further right is what they are for.",
			file: goFile{name: "cmd/controller.go", pkg: "cmd", imports: []string{module + "/components"}},
		},
		"NewFolder": {
			why:  "A folder that no rule knows would escape all of them.",
			file: goFile{name: "planner/plan.go", pkg: "planner"},
			want: map[string][]string{"ImportsPointLeft": {"has no place in the house: planner"}},
		},
		"Lab": {
			why:  "Not even the command line may need the lab.",
			file: goFile{name: "cmd/demo.go", pkg: "cmd", imports: []string{module + "/lab/cluster"}},
			want: map[string][]string{
				"ImportsPointLeft":     {module + "/lab/cluster"},
				"NothingImportsTheLab": {module + "/lab/cluster"},
			},
		},
		"Impure": {
			why: "Each of these could make two plans differ.",
			file: goFile{
				name: "differ/plan.go", pkg: "differ",
				imports: []string{"k8s.io/client-go/kubernetes", "log/slog", "net", "time", "math/rand/v2"},
				uses:    []string{"time.Now"},
			},
			want: map[string][]string{"DifferIsPure": {"k8s.io/client-go/kubernetes", "log/slog", "math/rand/v2", "net", "time.Now"}},
		},
		"Pure": {
			why: "Durations and addresses are values.",
			file: goFile{
				name: "differ/plan.go", pkg: "differ",
				imports: []string{"net/netip", "time", "sigs.k8s.io/structured-merge-diff/v4/typed"},
				uses:    []string{"time.ParseDuration", "netip.ParsePrefix"},
			},
		},
		"ImpureTest": {
			why:  "A test of the differ may ask a real API server.",
			file: goFile{name: "differ/plan_test.go", pkg: "differ_test", imports: []string{"k8s.io/client-go/kubernetes", "os"}},
		},
		"Libraries": {
			why: "Each of the three libraries has one home, and this is none of them.",
			file: goFile{
				name: "controllers/delivery/loop.go", pkg: "delivery",
				imports: []string{"sigs.k8s.io/structured-merge-diff/v4/fieldpath", "helm.sh/helm/v3/pkg/chart", "github.com/go-git/go-git/v5"},
			},
			want: map[string][]string{
				"OnlyDifferMergesStructures": {"sigs.k8s.io/structured-merge-diff/v4/fieldpath"},
				"OnlyRendererKnowsHelm":      {"helm.sh/helm/v3/pkg/chart"},
				"OnlyRegistryKnowsGit":       {"github.com/go-git/go-git/v5"},
			},
		},
		"GitOfFleets": {
			why:  "Reading git comes before reading a fleet, and knows names and files alone.",
			file: goFile{name: "registry/gitrepo/tree.go", pkg: "gitrepo", imports: []string{module + "/registry", module + "/registry/naming"}},
			want: map[string][]string{"GitKnowsNoFleet": {module + "/registry"}},
		},
		"Deletion": {
			why:  "Only the gate sends a DELETE, by a client or by hand.",
			file: goFile{name: "applier/hookrun.go", pkg: "applier", uses: []string{"maps.DeleteFunc", "net/http.MethodDelete"}, selects: []string{"Delete"}},
			want: map[string][]string{"OneGateForDeletions": {"Delete", "http.MethodDelete"}},
		},
		"DeletionInTheGate": {
			why:  "The gate itself does.",
			file: goFile{name: "applier/deletion/gate.go", pkg: "deletion", selects: []string{"Delete"}},
		},
		"Utilities": {
			why:  "Neither a folder nor a package of leftovers, and a test package doesn't hide it.",
			file: goFile{name: "applier/util/retry_test.go", pkg: "helpers_test"},
			want: map[string][]string{"NoPackageForEverything": {"folder util", "package helpers_test"}},
		},
	}

	caught := map[string]bool{}
	for name, tc := range cases {
		got := map[string][]string{}
		for _, r := range rules() {
			if broken := r.broken(tc.file); len(broken) > 0 {
				got[r.name] = broken
				caught[r.name] = true
			}
		}
		if diff := cmp.Diff(tc.want, got, cmpEmpty()); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", name, tc.why, diff)
		}
	}
	for _, r := range rules() {
		if !caught[r.name] {
			t.Errorf("no case shows that %s can fail", r.name)
		}
	}
}

// cmpEmpty compares a nil map equal to an empty one.
func cmpEmpty() cmp.Option {
	return cmp.FilterValues(
		func(a, b map[string][]string) bool { return len(a) == 0 && len(b) == 0 },
		cmp.Ignore(),
	)
}

// readGoFiles returns the Go files of the module at the root of fsys, in name
// order. As for the go command, nested modules, testdata and folders that begin
// with "." or "_" are not part of it.
func readGoFiles(fsys fs.FS) ([]goFile, error) {
	var files []goFile
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != ".":
			return skipForeign(fsys, name)
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		f, err := readGoFile(fsys, name)
		if err != nil {
			return err
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the module's Go files: %w", err)
	}
	return files, nil
}

// skipForeign returns [fs.SkipDir] for a folder that is not part of the module.
func skipForeign(fsys fs.FS, dir string) error {
	base := path.Base(dir)
	if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return fs.SkipDir
	}
	switch _, err := fs.Stat(fsys, path.Join(dir, "go.mod")); {
	case err == nil:
		return fs.SkipDir
	case errors.Is(err, fs.ErrNotExist):
		return nil
	default:
		return err
	}
}

func readGoFile(fsys fs.FS, name string) (goFile, error) {
	src, err := fs.ReadFile(fsys, name)
	if err != nil {
		return goFile{}, err
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
	if err != nil {
		return goFile{}, err
	}

	f := goFile{name: name, pkg: parsed.Name.Name}
	pathOf := map[string]string{} // by the name that the file uses
	for _, spec := range parsed.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return goFile{}, fmt.Errorf("%s: import %s: %w", name, spec.Path.Value, err)
		}
		f.imports = append(f.imports, imp)
		local := path.Base(imp)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		pathOf[local] = imp
	}

	uses, selects := map[string]bool{}, map[string]bool{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && pathOf[x.Name] != "" {
			uses[pathOf[x.Name]+"."+sel.Sel.Name] = true
		} else {
			selects[sel.Sel.Name] = true
		}
		return true
	})
	f.uses, f.selects = slices.Sorted(maps.Keys(uses)), slices.Sorted(maps.Keys(selects))
	return f, nil
}

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, data := range files {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
