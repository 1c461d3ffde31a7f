package cmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: prod}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "web:v1", ports: [{containerPort: 80}]}]}
`

const settings = `
---
apiVersion: v1
kind: Secret
metadata: {name: settings, namespace: prod}
stringData: {password: hunter2}
`

const scaler = `
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: prod}
spec: {maxReplicas: 9, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
`

// files writes the three sides and returns the arguments that name them; a
// side that is "" is an empty file.
func files(t *testing.T, recorded, target, live string) []string {
	t.Helper()
	args := []string{"diff"}
	for name, content := range map[string]string{"recorded": recorded, "target": target, "live": live} {
		args = append(args, "--"+name, write(t, name, content))
	}
	return args
}

// write makes a file NAME.yaml and returns its path.
func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDiffFiles compares files without git and without a cluster.
func TestDiffFiles(t *testing.T) {
	t.Parallel()
	edit := func(from, to string) string { return strings.Replace(web, from, to, 1) }
	cases := map[string]struct {
		why                    string
		recorded, target, live string
		code                   int
		says                   []string
	}{
		"Same": {
			why: "A default of the API server is no difference.", recorded: web, target: web,
			live: edit("containerPort: 80", "containerPort: 80, protocol: TCP"), code: 0, says: []string{"in sync"},
		},
		"Wanted": {
			why: "Only the field that git changed is shown.", recorded: web, target: edit("web:v1", "web:v2"), live: web,
			code: 1, says: []string{`.spec.template.spec.containers[name="web"].image @@ set`, "1 to update"},
		},
		"Drift": {
			why: "Offline, the owner of the live value is unknown, so the value is set back.", recorded: web, target: web,
			live: edit("replicas: 2", "replicas: 5"), code: 1, says: []string{".spec.replicas @@ restore"},
		},
		"Autoscaled": {
			why: "An autoscaler among the live objects counts as one of the cluster.", recorded: web, target: web,
			live: edit("replicas: 2", "replicas: 5") + scaler, code: 0, says: []string{"rule autoscaled-replicas"},
		},
		"Selector":  {why: "Danger is held offline, too.", recorded: web, target: edit("{app: web}", "{app: api}"), live: web, code: 1, says: []string{"HELD", "workload-selector"}},
		"Create":    {why: "An empty file means absent.", target: web, code: 1, says: []string{"1 to create"}},
		"Delete":    {why: "A recorded live object that is no longer wanted is deleted.", recorded: web, live: web, code: 1, says: []string{"1 to delete"}},
		"NotOurs":   {why: "An object that was never recorded is never deleted.", live: web, code: 0, says: []string{"in sync"}},
		"Takeover":  {why: "An object that was never applied is held.", target: edit("web:v1", "web:v2"), live: web, code: 1, says: []string{"HELD", "adopt: true"}},
		"Forgotten": {why: "The object does not exist any more.", recorded: web, code: 0, says: []string{"in sync"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Log(c.why)
			keelson(t, files(t, c.recorded, c.target, c.live)...).want(t, c.code).says(t, c.says...)
		})
	}
}

// The JSON is a contract: stable names, absent values left out.
func TestDiffFilesJSON(t *testing.T) {
	t.Parallel()
	target := strings.NewReplacer("web:v1", "web:v2").Replace(web)
	live := strings.Replace(web, "replicas: 2", "replicas: 5", 1)
	var got any
	decode(t, keelson(t, append(files(t, web, target, live), "-o", "json")...).want(t, 1).out, &got)
	field := func(path string, recorded, target, live any, action string) any {
		return map[string]any{"path": path, "recorded": recorded, "target": target, "live": live, "action": action}
	}
	want := map[string]any{"objects": []any{map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "prod", "name": "web", "op": "update", "state": "changed",
		"fields": []any{
			field(".spec.replicas", 2.0, 2.0, 5.0, "restore"),
			field(`.spec.template.spec.containers[name="web"].image`, "web:v1", "web:v2", "web:v1", "set"),
		},
	}}}
	for _, o := range got.(map[string]any)["objects"].([]any) {
		delete(o.(map[string]any), "hash") // TestGolden of differ holds what it depends on
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What a pull request shows: what is held on top, then the diffs.
func TestDiffFilesMarkdown(t *testing.T) {
	t.Parallel()
	target := strings.NewReplacer("{app: web}", "{app: api}", "web:v1", "web:v2").Replace(web)
	got := keelson(t, append(files(t, web, target, web), "-o", "markdown")...).want(t, 1)
	got.says(t, "1 held\n\n### Held, denied or kept\n\n- **HELD** `Deployment.apps prod/web`; to approve: hash `",
		"  - hold `.spec.selector`, rule `workload-selector`: `a selector is immutable", "```diff\n--- live\n",
		"@@ .spec.template.spec.containers[name=\"web\"].image @@ set\n-web:v1\n+web:v2\n")
	keelson(t, append(files(t, web, web, web), "-o", "markdown")...).want(t, 0).says(t, "in sync\n")
}

// Secret data appears in no format; with a key of one's own the hashes stay.
func TestDiffFilesMasksSecrets(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json", "patch", "markdown"} {
		args := append(files(t, "", settings, ""), "-o", format)
		keelson(t, args...).want(t, 1).saysNot(t, "hunter2", "aHVudGVyMg")
	}
	args := files(t, "", settings, "")
	a, b := keelson(t, append(args, "--mask-key", "k")...), keelson(t, append(args, "--mask-key", "k")...)
	if a.out != b.out {
		t.Error("one key gives two outputs")
	}
	if c, d := keelson(t, args...), keelson(t, args...); c.out == d.out {
		t.Error("without a key the hashes can be looked up in a table")
	}
}

// A hostile file is an error that names the file, the document or object, and the path. No plan is
// shown.
func TestDiffFilesHostile(t *testing.T) {
	t.Parallel()
	thing := func(spec string) string {
		return "apiVersion: unknown.test/v1\nkind: Thing\nmetadata: {name: t, namespace: prod}\nspec: " + spec + "\n"
	}
	bomb := "x0: &x0 [x, x, x, x, x, x, x, x, x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("x%d: &x%[1]d [%s*x%d]\n", i+1, strings.Repeat(fmt.Sprintf("*x%d, ", i), 8), i)
	}
	var many strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&many, "\n  key-%d: %s", i, strings.Repeat("x", 90))
	}
	cases := map[string]struct {
		why, target string
		says        []string
	}{
		"LargeText":     {"No API server takes it.", thing(strings.Repeat("x", 10<<20)), []string{"Thing.unknown.test prod/t", "target.yaml", ".spec: too large"}},
		"LargeMap":      {"No API server takes it.", thing(many.String()), []string{"Thing.unknown.test prod/t", "target.yaml", ".spec: too large"}},
		"Deep":          {"The stack would overflow.", thing(strings.Repeat("[{a: ", 400) + "1" + strings.Repeat("}]", 400)), []string{"Thing.unknown.test prod/t", ".spec[0].a[0].a[0].a[0]…", "500 levels"}},
		"Deeper":        {"The decoder's stack would overflow.", thing(strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)), []string{"target.yaml: document 2", "max depth"}},
		"Aliases":       {"A few lines stand for billions.", thing("{}") + bomb, []string{"target.yaml: document 2", "excessive aliasing"}},
		"ItsOwnAlias":   {"The value contains itself without end.", thing("&a {v: *a}"), []string{"target.yaml: document 2", "contains itself"}},
		"Twice":         {"One of two values of a key is a mistake.", thing("{a: 1, a: 2}"), []string{"target.yaml: document 2: read YAML: line 4", `"a" already set`}},
		"TwiceInJSON":   {"One of two values of a key is a mistake.", `{"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}, "spec": {"a": 1, "a": 2}}`, []string{"target.yaml: document 2: read JSON", `duplicate field "spec.a"`}},
		"NaN":           {"JSON has no such number.", thing("{v: .nan}"), []string{"target.yaml: document 2", "NaN"}},
		"Infinite":      {"JSON has no such number.", thing("{v: -.inf}"), []string{"target.yaml: document 2", "-Inf"}},
		"LargeNumber":   {"The number is too large for a float.", `{"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}, "spec": 1e400}`, []string{"target.yaml: document 2", "1e400"}},
		"LargeInYAML":   {"YAML reads the value as text, and the schema has a number there.", strings.Replace(web, "replicas: 2", "replicas: 1e400", 1), []string{"Deployment.apps prod/web", "refused", ".spec.replicas: the schema has a number there, and git has text"}},
		"Binary":        {"JSON can't hold these bytes.", thing("!!binary /w=="), []string{"target.yaml: document 2", "UTF-8"}},
		"NoText":        {"The file is not valid YAML.", thing("\xff"), []string{"target.yaml: document 2", "UTF-8"}},
		"NumberForName": {"The API server would refuse it.", thing("{1: a}"), []string{"target.yaml: document 2: read YAML: line 4", "1 is not a string"}},
		"MapForName":    {"A map can't be the key of a map.", thing("{{a: b}: c}"), []string{"target.yaml: document 2", "map key"}},
		"ItemIsNumber":  {"An item of a List must be an object.", "apiVersion: v1\nkind: List\nitems: [1]", []string{"target.yaml: document 2", "no Kubernetes object"}},
		"NoList":        {"The items of a List must be a list.", "apiVersion: v1\nkind: List\nitems: x", []string{"target.yaml: document 2", "no Kubernetes object"}},
		"MetadataList":  {"The object has no name.", "apiVersion: v1\nkind: X\nmetadata: []", []string{"target.yaml: document 2", "metadata.name"}},
		"KindIsList":    {"The object has no kind.", "apiVersion: v1\nkind: [X]\nmetadata: {name: x}", []string{"target.yaml: document 2", "Kind"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code := 2
			if name == "LargeInYAML" {
				code = 1 // held: there is a plan, and it sends nothing
			}
			got := keelson(t, files(t, "", "apiVersion: v1\nkind: Namespace\nmetadata: {name: prod}\n---\n"+c.target, "")...).want(t, code).says(t, c.says...)
			if code == 2 && got.out != "" {
				t.Errorf("%s A part of a plan is shown:\n%s", c.why, got.out)
			}
		})
	}
}

// What can't be read is trouble, and never an absence.
func TestDiffFilesTrouble(t *testing.T) {
	t.Parallel()
	keelson(t, "diff", "--target", "nowhere.yaml").want(t, 2).says(t, "nowhere.yaml")
	keelson(t, files(t, "", "{", "")...).want(t, 2).says(t, "target.yaml: document 1")
	keelson(t, files(t, "", "kind: X\nmetadata: {name: a}", "")...).want(t, 2).says(t, "apiVersion")
	keelson(t, files(t, "", web+"---"+web, "")...).want(t, 2).says(t, "prod/web stands twice")
	keelson(t, append(files(t, "", web, ""), "prod")...).want(t, 2).says(t, "takes no arguments")
	keelson(t, append(files(t, "", web, ""), "--drift", "ignore")...).want(t, 2).says(t, "restore or report")
	keelson(t, append(files(t, "", web, ""), "--schema", os.DevNull)...).want(t, 2).says(t, "--schema takes CRDs")
}

// A held change is approved by its hash; then -o patch shows all that would be
// sent: here it is deleted first, since its selector can't change.
func TestDiffFilesApprove(t *testing.T) {
	t.Parallel()
	args := files(t, web, strings.Replace(web, "{app: web}", "{app: api}", 1), web)
	var plan struct {
		Objects []struct{ State, Hash string }
	}
	decode(t, keelson(t, append(args, "-o", "json")...).want(t, 1).out, &plan)
	if len(plan.Objects) != 1 || plan.Objects[0].State != "held" || len(plan.Objects[0].Hash) != 32 {
		t.Fatalf("want one held object with a hash: %+v", plan)
	}
	hash := plan.Objects[0].Hash
	keelson(t, append(args, "--approve", strings.Repeat("0", 32))...).want(t, 1).says(t, "HELD", "to approve: hash "+hash)
	keelson(t, append(args, "--approve", hash)...).want(t, 1).says(t, "replace Deployment.apps prod/web", "approved in git", "1 to replace")
	keelson(t, append(args, "--approve", hash, "-o", "patch")...).want(t, 1).
		says(t, "# delete Deployment.apps prod/web", "propagationPolicy: Foreground", "# replace Deployment.apps prod/web: apply --server-side --field-manager=keelson\n", "app: api").
		saysNot(t, "force-conflicts")
	keelson(t, "diff", "prod", "--approve", hash).want(t, 2).says(t, "approvals/")
}
