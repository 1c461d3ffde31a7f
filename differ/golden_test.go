package differ_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

var update = flag.Bool("update", false, "rewrite the results in testdata")

// component is whose objects every case compares.
const component = "web"

// TestGolden runs every case of testdata. A case is a txtar file: a sentence
// that says why, then
//
//	recorded.yaml, target.yaml, live.yaml   objects; a file left out is empty
//	owners       MANAGER OPERATION SUBRESOURCE|- {fieldsV1}, one a line, for
//	             every live object; left out: managedFields were not read
//	policy.yaml  drift, adopt, danger, autoscaled
//	want.txt     the diff as text, then what would be sent; -update rewrites it
func TestGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			runCase(t, file)
		})
	}
}

func runCase(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(strings.TrimSpace(string(archive.Comment))) < 20 {
		t.Errorf("%s does not say why", file)
	}
	section := func(name string) []byte {
		for _, f := range archive.Files {
			if f.Name == name {
				return f.Data
			}
		}
		return nil
	}
	states := join(t, section("recorded.yaml"), section("target.yaml"), section("live.yaml"), section("owners"))
	plan, err := differ.Compare(schemas(t), states, policy(t, section("policy.yaml")))
	got := outcome(t, plan, err)
	if *update {
		rewrite(t, file, archive, got)
		return
	}
	if diff := cmp.Diff(string(section("want.txt")), got); diff != "" {
		t.Errorf("%s\n%s(-want +got):\n%s", file, archive.Comment, diff)
	}
}

func outcome(t *testing.T, plan differ.Plan, err error) string {
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var b bytes.Buffer
	if err := plan.WriteText(&b, false); err != nil {
		t.Fatal(err)
	}
	for _, c := range plan.Changes {
		notes := ""
		if c.RecordStale {
			notes += ", record"
		}
		if c.OwnersUnread {
			notes += ", owners unread"
		}
		fmt.Fprintf(&b, "=> %s: %s, %s%s\n", c.ID, c.Op, c.State, notes)
		if c.HandOver != nil {
			fmt.Fprintf(&b, "hand over:\n%s", indent(t, c.HandOver))
		}
		if c.Op == differ.OpUpdate {
			fmt.Fprintf(&b, "send:\n%s", indent(t, c.Patch))
		}
	}
	return b.String()
}

func indent(t *testing.T, v any) string {
	data, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return "  " + strings.ReplaceAll(strings.TrimSuffix(string(data), "\n"), "\n", "\n  ") + "\n"
}

func rewrite(t *testing.T, file string, archive *txtar.Archive, got string) {
	found := false
	for i := range archive.Files {
		if archive.Files[i].Name == "want.txt" {
			archive.Files[i].Data, found = []byte(got), true
		}
	}
	if !found {
		archive.Files = append(archive.Files, txtar.File{Name: "want.txt", Data: []byte(got)})
	}
	if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
		t.Fatal(err)
	}
}

// join builds the states from the three files.
func join(t *testing.T, recorded, target, live, owners []byte) []differ.State {
	byID := map[differ.ID]*differ.State{}
	at := func(object map[string]any) *differ.State {
		u := unstructured.Unstructured{Object: object}
		id := differ.ID{Group: u.GroupVersionKind().Group, Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName()}
		if byID[id] == nil {
			byID[id] = &differ.State{ID: id}
		}
		return byID[id]
	}
	for _, o := range objects(t, recorded) {
		at(o).Recorded = o
	}
	for _, o := range objects(t, target) {
		at(o).Target = &renderer.Object{Content: o, Source: registry.Position{File: "components/web/template/templates/web.yaml", Line: 1}}
	}
	fields := managedFields(t, owners)
	for _, o := range objects(t, live) {
		if fields != nil {
			o["metadata"].(map[string]any)["managedFields"] = fields
		}
		at(o).Live = o
	}
	var out []differ.State
	for _, s := range byID {
		out = append(out, *s)
	}
	return out
}

func objects(t *testing.T, data []byte) []map[string]any {
	var out []map[string]any
	decoder := utilyaml.NewYAMLToJSONDecoder(bytes.NewReader(data))
	for {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err == io.EOF {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		var u unstructured.Unstructured
		if len(raw) == 0 || string(raw) == "null" {
			continue
		}
		if err := u.UnmarshalJSON(raw); err != nil {
			t.Fatal(err)
		}
		out = append(out, u.Object)
	}
}

func managedFields(t *testing.T, owners []byte) []any {
	var out []any
	for line := range strings.Lines(string(owners)) {
		parts := strings.SplitN(strings.TrimSpace(line), " ", 4)
		if len(parts) != 4 {
			t.Fatalf("owners: %q", line)
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(parts[3]), &fields); err != nil {
			t.Fatalf("owners: %q: %v", line, err)
		}
		entry := map[string]any{"manager": parts[0], "operation": parts[1], "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}
		if parts[2] != "-" {
			entry["subresource"] = parts[2]
		}
		out = append(out, entry)
	}
	return out
}

func policy(t *testing.T, data []byte) differ.Policy {
	var p struct {
		Drift      v1alpha1.Drift
		Adopt      bool
		Danger     []v1alpha1.DangerRule
		Autoscaled []differ.ID
	}
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		t.Fatal(err)
	}
	rules, err := differ.NewRules(p.Danger)
	if err != nil {
		t.Fatal(err)
	}
	out := differ.Policy{
		Component: component, Rules: rules, Adopt: p.Adopt, Drift: p.Drift,
		Autoscaled: map[differ.ID]bool{}, MaskKey: []byte("a key for tests"),
	}
	for _, id := range p.Autoscaled {
		out.Autoscaled[id] = true
	}
	return out
}

// schemas are OpenAPI documents that kube-apiserver v1.36.3 published.
var schemas = func() func(*testing.T) differ.Schemas {
	var once sync.Once
	parsed := differ.Schemas{}
	return func(t *testing.T) differ.Schemas {
		once.Do(func() {
			for file, gv := range map[string]schema.GroupVersion{
				"api_v1":                       {Version: "v1"},
				"apis_apps_v1":                 {Group: "apps", Version: "v1"},
				"apis_apiextensions.k8s.io_v1": {Group: "apiextensions.k8s.io", Version: "v1"},
			} {
				parsed[gv] = parseDocument(t, "testdata/openapi/"+file+".json.gz")
			}
		})
		return parsed
	}
}()

func parseDocument(t *testing.T, file string) *differ.Schema {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	s, err := differ.ParseOpenAPI(data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
