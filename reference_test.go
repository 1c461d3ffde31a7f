package main_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The pages of docs/reference that people write, held against the source: what the program can
// show or read, and no page names, is an error here. go test ./cmd and make generate hold the
// pages that are made from code.

// parsedFile is one Go file that is no test.
type parsedFile struct {
	name string // slash-separated, relative to the root
	*ast.File
	at *token.FileSet
}

// productFiles returns the Go files of the product below some folders, without tests and what
// only tests use.
func productFiles(t *testing.T, folders ...string) []parsedFile {
	t.Helper()
	var out []parsedFile
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (entry.Name() == "testdata" || strings.HasSuffix(entry.Name(), "test")):
				return fs.SkipDir
			case entry.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(entry.Name(), "zz_generated"):
				return nil
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			out = append(out, parsedFile{filepath.ToSlash(name), file, fset})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// literalText returns the value of a string literal; "" if the node is something else.
func literalText(n ast.Node) string {
	literal, ok := n.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return ""
	}
	value, err := strconv.Unquote(literal.Value)
	if err != nil {
		return ""
	}
	return value
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// statusTypes are the types whose constants are values of a status.
func statusTypes() []string {
	return []string{"Sync", "Health", "RolloutPhase", "CheckState", "ProbeOutcome", "CloneSetConditionType", "LifecycleState", "PodConditionType", "BatchReason", "ReloadResult"}
}

// noStatuses are texts in the form of a reason that are something else.
func noStatuses() map[string]string {
	reasons := map[string]string{}
	for reason, texts := range map[string]string{
		"a kind": "CloneSet ClusterRole ClusterRoleBinding ConfigMap CustomResourceDefinition DaemonSet DaemonSets HorizontalPodAutoscaler " +
			"PersistentVolumeClaim PodList PodTemplate ProbeResult ReplicaSet ReplicationController RoleBinding ScaledObject " +
			"SelfSubjectAccessReview StatefulSet VerticalPodAutoscaler",
		"a kind of file: files.md": "ChartSource MetaConfig",
		"a value of a spec":        "InPlaceIfPossible InPlaceOnly OnDelete ReCreate RollingUpdate RuntimeDefault RequestsOnly LoadBalancer",
		"a condition or reason of Kubernetes": "ContainerCreating FailureTarget ImagePullBackOff PodInitializing ReplicaFailure SuccessCriteriaMet " +
			"CrashLoopBackOff ErrImagePull ErrImageNeverPull InvalidImageName ImageInspectError RegistryUnavailable SignatureValidationFailed " +
			"CreateContainerConfigError CreateContainerError RunContainerError PreStartHookError PostStartHookError",
		"a feature of client-go": "ClientWatchDecoding",
	} {
		for text := range strings.FieldsSeq(texts) {
			reasons[text] = reason
		}
	}
	return reasons
}

// statusesIn returns the values, reasons and conditions that a file has, with their position.
func statusesIn(file parsedFile) map[string]token.Pos {
	compound := regexp.MustCompile(`^[A-Z][a-z]+([A-Z][A-Za-z]*)+$`)
	oneWord := regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	found := map[string]token.Pos{}
	ignored := noStatuses()
	ast.Inspect(file.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.ValueSpec:
			of := typeName(n.Type)
			for i, name := range n.Names {
				isStatus := slices.Contains(statusTypes(), of) || strings.HasPrefix(name.Name, "Condition") || strings.HasPrefix(strings.ToLower(name.Name), "reason")
				if isStatus && i < len(n.Values) && literalText(n.Values[i]) != "" {
					found[literalText(n.Values[i])] = n.Pos()
				}
			}
		case *ast.KeyValueExpr:
			if key, is := n.Key.(*ast.Ident); is && key.Name == "Reason" && oneWord.MatchString(literalText(n.Value)) {
				found[literalText(n.Value)] = n.Pos()
			}
		case *ast.BasicLit:
			if value := literalText(n); compound.MatchString(value) && ignored[value] == "" {
				found[value] = n.Pos()
			}
		}
		return true
	})
	return found
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// TestStatuses: docs/reference/statuses.md has each value of a status, condition, reason and
// event of api/ and controllers/, and no row is about a value that there is not. A text in the form
// of a reason that is none stands in noStatuses.
func TestStatuses(t *testing.T) {
	t.Parallel()
	const page = "docs/reference/statuses.md"
	found := foundIn(productFiles(t, "api", "controllers"), statusesIn)
	namesAll(t, page, 80, found, inCode)
	for _, unknown := range unknownRows(readPage(t, page), found) {
		t.Errorf("%s: %s", page, unknown)
	}
}

var rowOfValues = regexp.MustCompile("^\\| ((?:`[A-Z][A-Za-z]+`(?:, )?)+) \\|")

// unknownRows returns the values that begin a row of a page's tables, and that were not found.
func unknownRows(content string, found []located) []string {
	known := map[string]bool{}
	for _, one := range found {
		known[one.text] = true
	}
	var out []string
	for i, line := range strings.Split(content, "\n") {
		row := rowOfValues.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		for cell := range strings.SplitSeq(row[1], ", ") {
			if value := strings.Trim(cell, "`"); !known[value] {
				out = append(out, fmt.Sprintf("line %d has a row for %s, which no status, condition, reason or event is", i+1, value))
			}
		}
	}
	return out
}

// located is a text of the source, with its position.
type located struct {
	text string
	at   token.Position
}

// foundIn returns what is found in files, once for each file that has it.
func foundIn(files []parsedFile, in func(parsedFile) map[string]token.Pos) []located {
	var all []located
	for _, file := range files {
		for text, at := range in(file) {
			all = append(all, located{text, file.at.Position(at)})
		}
	}
	return all
}

// namesAll fails if a page lacks one of the texts that were found, in the form in which the page
// has it, or if fewer than least were found.
func namesAll(t *testing.T, page string, least int, found []located, form func(string) string) {
	t.Helper()
	content := readPage(t, page)
	for _, one := range found {
		if !strings.Contains(content, form(one.text)) {
			t.Errorf("%s: %s has no line for %q: say what it means, and what to do", one.at, page, one.text)
		}
	}
	if len(found) < least {
		t.Errorf("only %d were found that %s has to name", len(found), page)
	}
}

// inCode is a text as a page has it in a code span.
func inCode(text string) string { return "`" + text + "`" }

// sentenceFiles have the messages that say why a delivery, a cluster or a check waits or failed.
func sentenceFiles() []string {
	return []string{
		"controllers/delivery/absent.go", "controllers/delivery/attempt.go", "controllers/delivery/clusterstate.go", "controllers/delivery/releasegate.go",
		"controllers/delivery/status.go", "controllers/probe/answer.go", "controllers/rollout/checkrunner.go", "controllers/rollout/checks.go",
		"controllers/rollout/decide.go", "controllers/rollout/input.go", "controllers/rollout/jobs.go",
	}
}

var (
	verb    = regexp.MustCompile(`%[-+.0-9]*[a-zA-Z]`)
	english = regexp.MustCompile(`[A-Za-z']+`)
)

// sentencesIn returns the messages of a file, with … for what is filled in. Errors and lines of a
// log are none, and neither are texts of fewer than three words.
func sentencesIn(file parsedFile) map[string]token.Pos {
	found := map[string]token.Pos{}
	ast.Inspect(file.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.CallExpr:
			called := typeName(n.Fun)
			if slices.Contains([]string{"Errorf", "New", "Warn", "Info", "Debug", "event"}, called) {
				return false
			}
		case *ast.BasicLit:
			sentence := strings.Trim(verb.ReplaceAllString(literalText(n), "…"), " ,;")
			if len(english.FindAllString(sentence, -1)) > 2 {
				found[sentence] = n.Pos()
			}
		}
		return true
	})
	return found
}

// TestMessages: docs/reference/statuses.md has each message of sentenceFiles.
func TestMessages(t *testing.T) {
	t.Parallel()
	files := slices.DeleteFunc(productFiles(t, "controllers"), func(f parsedFile) bool { return !slices.Contains(sentenceFiles(), f.name) })
	namesAll(t, "docs/reference/statuses.md", 40, foundIn(files, sentencesIn), func(sentence string) string { return strings.TrimRight(sentence, " :…") })
}

// TestReferenceCatches: the tests above find what they are about.
func TestReferenceCatches(t *testing.T) {
	t.Parallel()
	const source = `package p

import "errors"

const (
	SyncLost Sync = "Lost"
	ConditionDone = "Done"
	reasonOld     = "Old"
	kind          = "Deployment"
)

func f(w *Writer) (string, error) {
	w.Eventf(nil, "WriterLost", "x")
	_ = Condition{Reason: "Gone"}
	_ = []string{"CloneSet", "text"}
	w.Warn("this is only a log", "%d of %s", 1)
	return fmt.Sprintf("%d of %s are gone", 1, "x"), errors.New("this is an error text")
}
`
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	file := parsedFile{"p.go", parsed, fset}
	if got, want := slices.Sorted(maps.Keys(statusesIn(file))), []string{"Done", "Gone", "Lost", "Old", "WriterLost"}; !reflect.DeepEqual(got, want) {
		t.Errorf("statuses %q, want %q", got, want)
	}
	page := "| `Lost`, `Found` | x |\n| `WriterLost` | x |\n| `Lost and found` | x |\n"
	if got, want := unknownRows(page, foundIn([]parsedFile{file}, statusesIn)), []string{"line 1 has a row for Found, which no status, condition, reason or event is"}; !reflect.DeepEqual(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
	if got, want := slices.Sorted(maps.Keys(sentencesIn(file))), []string{"… of … are gone"}; !reflect.DeepEqual(got, want) {
		t.Errorf("messages %q, want %q", got, want)
	}
}

// productFolders hold the program.
func productFolders() []string {
	return []string{"api", "applier", "cmd", "controllers", "differ", "main.go", "registry", "renderer"}
}

// TestVariables: docs/reference/settings.md has each variable of the environment that the program
// reads by name.
func TestVariables(t *testing.T) {
	t.Parallel()
	page := readPage(t, "docs/reference/settings.md")
	found := map[string]token.Position{}
	for _, file := range productFiles(t, productFolders()...) {
		ast.Inspect(file.File, func(n ast.Node) bool {
			if call, is := n.(*ast.CallExpr); is && len(call.Args) > 0 && slices.Contains([]string{"Getenv", "LookupEnv", "getenv"}, typeName(call.Fun)) && literalText(call.Args[0]) != "" {
				found[literalText(call.Args[0])] = file.at.Position(n.Pos())
			}
			if spec, is := n.(*ast.ValueSpec); is && strings.HasPrefix(strings.ToLower(spec.Names[0].Name), "env") && len(spec.Values) == 1 && regexp.MustCompile(`^[A-Z][A-Z_]+$`).MatchString(literalText(spec.Values[0])) {
				found[literalText(spec.Values[0])] = file.at.Position(n.Pos())
			}
			return true
		})
	}
	delete(found, "KRUISE_CONTAINER_PRIORITY") // of containers: workload-kinds.md
	for name, at := range found {
		if !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, "`"+name+"=") {
			t.Errorf("%s: docs/reference/settings.md does not name %s", at, name)
		}
	}
	if len(found) < 10 {
		t.Errorf("only %d variables were found: %v", len(found), found)
	}
}

// observedIn returns what observability.md has to name: spans, their attributes, names of steps,
// and paths of the HTTP servers.
func observedIn(file parsedFile) map[string]token.Pos {
	found := map[string]token.Pos{}
	add := func(n ast.Expr) {
		if text := literalText(n); text != "" {
			if _, path, is := strings.Cut(text, " /"); is { // of a route
				text = "/" + path
			}
			if strings.HasPrefix(text, "/debug/pprof") {
				text = "/debug/pprof" // of Go's own paths below it
			}
			found[text] = n.Pos()
		}
	}
	ast.Inspect(file.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			called, is := n.Fun.(*ast.SelectorExpr)
			switch {
			case !is:
			case typeName(called.X) == "span" && slices.Contains([]string{"Start", "Root"}, called.Sel.Name):
				add(n.Args[len(n.Args)-1])
			case slices.Contains([]string{"Handle", "HandleFunc"}, called.Sel.Name):
				add(n.Args[0])
			}
		case *ast.CompositeLit:
			if typeName(n.Type) != "step" {
				return true
			}
			for _, e := range n.Elts {
				if field, is := e.(*ast.KeyValueExpr); is && typeName(field.Key) == "name" {
					add(field.Value)
				}
			}
		case *ast.ValueSpec:
			if file.Name.Name == "span" && len(n.Values) == 1 && strings.HasPrefix(literalText(n.Values[0]), "keelson.") {
				add(n.Values[0])
			}
		}
		return true
	})
	return found
}

// TestObservability: docs/reference/observability.md has each span with its attributes, each step
// with a fixed name, and each path that the HTTP servers answer.
func TestObservability(t *testing.T) {
	t.Parallel()
	namesAll(t, "docs/reference/observability.md", 15, foundIn(productFiles(t, "applier", "controllers/delivery", "cmd"), observedIn), inCode)
}

// TestCredentialFields: docs/reference/settings.md has each field of a login in the file of
// --git-credentials.
func TestCredentialFields(t *testing.T) {
	t.Parallel()
	page := readPage(t, "docs/reference/settings.md")
	fields := 0
	for _, file := range productFiles(t, "registry/gitrepo") {
		ast.Inspect(file.File, func(n ast.Node) bool {
			spec, is := n.(*ast.TypeSpec)
			if !is || spec.Name.Name != "login" {
				return true
			}
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				if field.Tag == nil {
					continue
				}
				tag, _ := strconv.Unquote(field.Tag.Value) // the parser has read it
				key, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
				fields++
				if !strings.Contains(page, "`"+key+"`") {
					t.Errorf("docs/reference/settings.md does not name %s of a login", key)
				}
			}
			return false
		})
	}
	if fields < 10 {
		t.Errorf("only %d fields were found", fields)
	}
}

// packageConstants are the values of a package's constants and variables, by name. A constant of a
// function, and a field that it sets in a literal, is FUNCTION.NAME.
type packageConstants map[string]ast.Expr

func constantsOf(t *testing.T, folder string) packageConstants {
	t.Helper()
	c := packageConstants{}
	for _, file := range productFiles(t, folder) {
		if path.Dir(file.name) != folder {
			continue
		}
		for _, declaration := range file.Decls {
			prefix := ""
			if function, is := declaration.(*ast.FuncDecl); is {
				prefix = function.Name.Name + "."
			}
			ast.Inspect(declaration, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ValueSpec:
					for i, name := range n.Names {
						if i < len(n.Values) {
							c[prefix+name.Name] = n.Values[i]
						}
					}
				case *ast.KeyValueExpr:
					if prefix != "" && typeName(n.Key) != "" {
						c[prefix+typeName(n.Key)] = n.Value
					}
				}
				return true
			})
		}
	}
	return c
}

var errNoConstant = errors.New("no constant that this test understands")

// value evaluates numbers, durations, sums and products of them, and names of the same package.
func (c packageConstants) value(e ast.Expr) (constant.Value, error) {
	durations := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0), nil
	case *ast.ParenExpr:
		return c.value(e.X)
	case *ast.SelectorExpr:
		if d, known := durations[e.Sel.Name]; known {
			return constant.MakeInt64(int64(d)), nil
		}
	case *ast.Ident:
		if next := c[e.Name]; next != nil {
			return c.value(next)
		}
	case *ast.CallExpr: // cmp.Or(of the user, default)
		if typeName(e.Fun) == "Or" && len(e.Args) == 2 {
			return c.value(e.Args[1])
		}
	case *ast.BinaryExpr:
		x, err := c.value(e.X)
		if err != nil {
			return nil, err
		}
		y, err := c.value(e.Y)
		if err != nil {
			return nil, err
		}
		if e.Op == token.SHL {
			n, _ := constant.Uint64Val(y)
			return constant.Shift(x, e.Op, uint(n)), nil
		}
		if e.Op == token.QUO {
			return constant.BinaryOp(x, token.QUO_ASSIGN, y), nil
		}
		return constant.BinaryOp(x, e.Op, y), nil
	}
	return nil, errNoConstant
}

// shown returns the ways in which a page may write a number: 1,000; 32 MiB; 5m.
func shown(n int64) []string {
	out := []string{grouped(n)}
	for unit, size := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if n%size == 0 && n > 0 {
			out = append(out, grouped(n/size)+" "+unit)
		}
	}
	if d := time.Duration(n); d%time.Millisecond == 0 && d > 0 {
		short := regexp.MustCompile(`([hm])0[ms](0s)?$`).ReplaceAllString(d.String(), "$1")
		out = append(out, short)
	}
	return out
}

// grouped writes a number with a comma between thousands.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// TestLimits: each row of docs/reference/limits.md has the value of the constant that it names.
func TestLimits(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^\\| (.+) \\| ([^|]+) \\| `([\\w/]+) ([\\w.]+)` \\|$")
	packages := map[string]packageConstants{}
	rows := row.FindAllStringSubmatch(readPage(t, "docs/reference/limits.md"), -1)
	for _, m := range rows {
		folder, name := m[3], m[4]
		if _, read := packages[folder]; !read {
			packages[folder] = constantsOf(t, folder)
		}
		if err := checkLimit(packages[folder], name, m[2]); err != nil {
			t.Errorf("docs/reference/limits.md: %s: %s %s: %v", m[1], folder, name, err)
		}
	}
	if len(rows) < 40 {
		t.Errorf("only %d limits were read", len(rows))
	}
}

func checkLimit(c packageConstants, name, says string) error {
	e := c[name]
	if e == nil {
		return errNoConstant
	}
	value, err := c.value(e)
	if err != nil {
		return err
	}
	n, exact := constant.Int64Val(constant.ToInt(value))
	if !exact {
		return fmt.Errorf("%s is no whole number", value)
	}
	if !slices.Contains(shown(n), says) {
		return fmt.Errorf("the page says %s, and the code %s", says, strings.Join(shown(n), ", "))
	}
	return nil
}
