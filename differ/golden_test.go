package differ_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
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
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

var update = flag.Bool("update", false, "rewrite the results in testdata")

// component is the name of the component whose objects every case compares.
const component = "web"

// TestGolden runs every case of testdata. A case is a txtar file: a sentence that explains the
// case, then
//
//	recorded.yaml, target.yaml, live.yaml   objects; an omitted file is empty
//	             (a recorded metadata.uid is the UID of the applied object)
//	answer.yaml  the API server's answer to the apply of the recorded object
//	owners       MANAGER OPERATION SUBRESOURCE|- {fieldsV1}, one a line, for
//	             every live object; empty: read, and no field has an owner;
//	             omitted: managedFields were not read
//	instances.yaml  custom resources in the cluster, for the CRD of the case;
//	             omitted: they were not read
//	dryrun.yaml  the API server's answer to a dry run of the change:
//	             objects, or {kind, name, refused: [{field, type, message}]}, or
//	             {kind, name, failed: why}; with recreation: true, to the
//	             creation of an object that is to be replaced
//	policy.yaml  drift, adopt, danger and fleetDanger, projectDanger, dangerProfile, fence,
//	             scaled ({object: …, what: replicas|requests|limits}), approved
//	             ({object: …, hash: …}, by default the hash of the first plan),
//	             labels of the cluster, and facts of other components (others:
//	             {OBJECT: {unread, waits, movedFrom, contested: …}}), and of pods and
//	             revisions (used: {OBJECT: which of them refers to it; "" for none})
//	want.txt     the diff as text, then what would be sent; -update rewrites it
//	want.json    the same as JSON, if the case has this file
//	want.md      the same as Markdown, if the case has this file
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
				return append([]byte{}, f.Data...) // an empty file is not an omitted file
			}
		}
		return nil
	}
	p := policy(t, section("policy.yaml"))
	states := join(t, section)
	for i, answer := range answers(t, states, section("answer.yaml")) {
		states[i].Normal = differ.Residue(schemas(t), *answer, answer.Live, p)
	}
	look(t, states, section("instances.yaml"))
	plan, err := differ.Compare(t.Context(), schemas(t), states, p)
	if p, ok := approve(t, section("policy.yaml"), p, plan); ok {
		plan, err = differ.Compare(t.Context(), schemas(t), states, p)
	}
	if dryRuns(t, states, section("dryrun.yaml")) {
		plan, err = differ.Compare(t.Context(), schemas(t), states, p)
		if p, ok := approve(t, section("policy.yaml"), p, plan); ok {
			plan, err = differ.Compare(t.Context(), schemas(t), states, p)
		}
	}
	got := map[string]string{"want.txt": outcome(t, plan, err)}
	shown := asJSON(t, plan)
	if section("want.json") != nil {
		got["want.json"] = shown
	}
	var text, markdown bytes.Buffer
	if err := errors.Join(plan.WriteText(&text, true), plan.WriteMarkdown(&markdown)); err != nil {
		t.Fatal(err)
	}
	if section("want.md") != nil {
		got["want.md"] = markdown.String()
	}
	noSecrets(t, states, text.String(), shown, markdown.String())
	if *update {
		rewrite(t, file, archive, got)
		return
	}
	for name, text := range got {
		if diff := cmp.Diff(string(section(name)), text); diff != "" {
			t.Errorf("%s: %s\n%s(-want +got):\n%s", file, name, archive.Comment, diff)
		}
	}
}

// answers returns changes whose Live is the API server's answer to their Patch.
func answers(t testing.TB, states []differ.State, data []byte) map[int]*differ.Change {
	out := map[int]*differ.Change{}
	for _, o := range objects(t, data) {
		u := unstructured.Unstructured{Object: o}
		for i, s := range states {
			if s.ID.Kind == u.GetKind() && s.ID.Name == u.GetName() {
				out[i] = &differ.Change{ID: s.ID, APIVersion: u.GetAPIVersion(), Requests: differ.Requests{Patch: s.Recorded}, Live: o}
			}
		}
	}
	return out
}

// look judges the CRD of a case by custom resources.
func look(t testing.TB, states []differ.State, data []byte) {
	if data == nil {
		return
	}
	for i := range states {
		s := &states[i]
		if !differ.IsCRD(s.ID) || s.Live == nil || s.Target == nil {
			continue
		}
		judge, err := differ.JudgeOf(s, states)
		if err != nil {
			continue // Compare reports the error
		}
		if err := judge.LookAtAll(t.Context(), objects(t, data)...); err != nil {
			t.Fatal(err)
		}
		s.CustomResources = judge.Instances()
	}
}

// dryRuns sets the answers to dry runs in the states.
func dryRuns(t testing.TB, states []differ.State, data []byte) bool {
	for _, o := range objects(t, data) {
		u := unstructured.Unstructured{Object: o}
		name := u.GetName()
		d := &differ.DryRun{Answer: o}
		if list, ok, _ := unstructured.NestedSlice(o, "refused"); ok {
			d.Answer, name = nil, fmt.Sprint(o["name"])
			for _, item := range list {
				text := func(key string) string { s, _ := item.(map[string]any)[key].(string); return s }
				d.Refused = append(d.Refused, differ.Cause{Field: text("field"), Type: text("type"), Message: text("message")})
			}
		}
		if failed, ok := o["failed"].(string); ok {
			d, name = &differ.DryRun{Failed: failed}, fmt.Sprint(o["name"])
		}
		found := false
		for i := range states {
			if states[i].ID.Kind == u.GetKind() && states[i].ID.Name == name {
				found = true
				if o["recreation"] == true {
					states[i].ReplacementDryRun = d
				} else {
					states[i].DryRun = d
				}
			}
		}
		if !found {
			t.Fatalf("dryrun.yaml: no object %s %s", u.GetKind(), name)
		}
	}
	return len(data) > 0
}

// approve approves the changes in the policy of a case, and reports whether there are any.
func approve(t testing.TB, data []byte, p differ.Policy, plan differ.Plan) (differ.Policy, bool) {
	var approvals struct {
		Approved []struct{ Object, Hash string }
	}
	if err := yaml.Unmarshal(data, &approvals); err != nil {
		t.Fatal(err)
	}
	p.Approved = map[string][]string{}
	for _, a := range approvals.Approved {
		for _, c := range plan.Changes {
			if c.ID.String() != a.Object {
				continue
			}
			if a.Hash == "" {
				a.Hash = c.Hash
			}
			p.Approved[a.Object] = append(p.Approved[a.Object], a.Hash)
		}
	}
	return p, len(approvals.Approved) > 0
}

func asJSON(t testing.TB, plan differ.Plan) string {
	data, err := json.MarshalIndent(plan, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data) + "\n"
}

// noSecrets fails if an output has a Secret's value, plain or in base64.
func noSecrets(t testing.TB, states []differ.State, outputs ...string) {
	t.Helper()
	for _, s := range states {
		for _, object := range []map[string]any{content(s.Target), s.Live} {
			if s.ID.Kind != "Secret" || s.ID.Group != "" {
				continue
			}
			for _, v := range secretValues(object) {
				for _, o := range outputs {
					if strings.Contains(o, v) {
						t.Errorf("the value %q of %s is shown:\n%s", v, s.ID, o)
					}
				}
			}
		}
	}
}

func content(o *renderer.Object) map[string]any {
	if o == nil {
		return nil
	}
	return o.Content
}

// secretValues returns the values that must not be shown, in every form.
func secretValues(secret map[string]any) []string {
	var out []string
	for _, field := range []string{"data", "stringData"} {
		values, ok := secret[field].(map[string]any)
		if !ok {
			values = map[string]any{"": secret[field]}
		}
		for _, v := range values {
			s := fmt.Sprint(v)
			if v == nil || len(s) < 4 {
				continue
			}
			out = append(out, s, base64.StdEncoding.EncodeToString([]byte(s)))
			if plain, err := base64.StdEncoding.DecodeString(s); err == nil && len(plain) > 3 {
				out = append(out, string(plain))
			}
		}
	}
	return out
}

func outcome(t testing.TB, plan differ.Plan, err error) string {
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
		if c.Unread.Owners {
			notes += ", owners unread"
		}
		if c.Unread.CustomResources {
			notes += ", instances unread"
		}
		if c.Unread.Uses {
			notes += ", uses unread"
		}
		if c.Retained != "" {
			notes += ", retained: " + c.Retained
		}
		if c.Op == differ.OpNone && c.RecordStale && len(c.Normal) > 0 {
			notes += fmt.Sprintf(", %d normal", len(c.Normal))
		}
		fmt.Fprintf(&b, "=> %s: %s, %s%s\n", c.ID, c.Op, c.State, notes)
		if c.Op != differ.OpNone && len(c.Migrate) > 0 {
			fmt.Fprintf(&b, "migrate: %s\n", strings.Join(c.Migrate, ", "))
		}
		if c.HandOver != nil {
			fmt.Fprintf(&b, "hand over:\n%s", indent(t, c.HandOver))
		}
		if c.First != nil {
			fmt.Fprintf(&b, "first:\n%s", indent(t, c.First))
		}
		switch {
		case c.Op != differ.OpUpdate || cmp.Equal(c.DryRunBody, c.Patch):
		case c.DryRunBody == nil:
			fmt.Fprintln(&b, "no dry run")
		default:
			fmt.Fprintf(&b, "dry run:\n%s", indent(t, c.DryRunBody))
		}
		if c.Op == differ.OpUpdate || c.Op == differ.OpReplace {
			fmt.Fprintf(&b, "send:\n%s", indent(t, c.Patch))
		}
	}
	return b.String()
}

func indent(t testing.TB, v any) string {
	data, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return "  " + strings.ReplaceAll(strings.TrimSuffix(string(data), "\n"), "\n", "\n  ") + "\n"
}

func rewrite(t testing.TB, file string, archive *txtar.Archive, got map[string]string) {
	for name, text := range got {
		found := false
		for i := range archive.Files {
			if archive.Files[i].Name == name {
				archive.Files[i].Data, found = []byte(text), true
			}
		}
		if !found {
			archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(text)})
		}
	}
	if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil { //nolint:gosec // test data
		t.Fatal(err)
	}
}

// join builds the states from the three files of objects, from owners and from policy.yaml.
func join(t testing.TB, section func(string) []byte) []differ.State {
	byID := map[differ.ID]*differ.State{}
	at := func(object map[string]any) *differ.State {
		u := unstructured.Unstructured{Object: object}
		id := differ.ID{Group: u.GroupVersionKind().Group, Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName()}
		if byID[id] == nil {
			byID[id] = &differ.State{ID: id}
		}
		return byID[id]
	}
	for _, o := range objects(t, section("recorded.yaml")) {
		s := at(o)
		s.Recorded, s.RecordedUID = o, string((&unstructured.Unstructured{Object: o}).GetUID())
	}
	for _, o := range objects(t, section("target.yaml")) {
		at(o).Target = &renderer.Object{Content: o, Source: yamlfile.Position{File: "components/web/template/templates/web.yaml", Line: 1}}
	}
	fields := managedFields(t, section("owners"))
	for _, o := range objects(t, section("live.yaml")) {
		if len(fields) > 0 {
			o["metadata"].(map[string]any)["managedFields"] = fields
		}
		at(o).Live, at(o).OwnersRead = o, section("owners") != nil
	}
	var others struct {
		Others map[string]struct{ Unread, Waits, MovedFrom, Contested string }
		Used   map[string]string
	}
	if err := yaml.Unmarshal(section("policy.yaml"), &others); err != nil {
		t.Fatal(err)
	}
	var out []differ.State
	for id, s := range byID {
		o := others.Others[id.String()]
		s.Unread, s.Waits, s.TransferredFrom, s.Contested = o.Unread, o.Waits, o.MovedFrom, o.Contested
		s.Used, s.UseRead = others.Used[id.String()], others.Used != nil
		out = append(out, *s)
	}
	return out
}

func objects(t testing.TB, data []byte) []map[string]any {
	var out []map[string]any
	decoder := utilyaml.NewYAMLToJSONDecoder(bytes.NewReader(data))
	for {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
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

func managedFields(t testing.TB, owners []byte) []any {
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

func policy(t testing.TB, data []byte) differ.Policy {
	var p struct {
		Drift       v1alpha1.Drift
		Adopt       bool
		Danger      []v1alpha1.DangerRule
		FleetDanger []v1alpha1.DangerRule
		// ProjectDanger are rules of the component's project. Fence means that there is a project.
		ProjectDanger []v1alpha1.DangerRule
		DangerProfile v1alpha1.DangerProfile
		Fence         *differ.ProjectLimits
		Scaled        []struct {
			Object differ.ID
			What   string
		}
		Approved []struct{ Object, Hash string }
		Labels   map[string]string
		Others   map[string]any // see join
		Used     map[string]any // see join
	}
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		t.Fatal(err)
	}
	rules, err := differ.NewRules(differ.Scopes{Component: p.Danger, Project: p.ProjectDanger, Fleet: p.FleetDanger, FleetProfile: p.DangerProfile, InProject: p.Fence != nil})
	if err != nil {
		t.Fatal(err)
	}
	out := differ.Policy{
		Component: component, Rules: rules, Adopt: p.Adopt, Limits: p.Fence, Drift: p.Drift, Cluster: p.Labels,
		Scaled: map[differ.ID]differ.Scaling{}, MaskKey: []byte("a key for tests"),
	}
	for _, s := range p.Scaled {
		out.Scaled[s.Object] |= map[string]differ.Scaling{
			"replicas": differ.ScalesReplicas, "requests": differ.ScalesRequests, "limits": differ.ScalesLimits,
		}[s.What]
	}
	return out
}

// fataler is the common part of tests, benchmarks and properties.
type fataler interface{ Fatal(args ...any) }

// schemas returns the built-in schemas and example.com/v1. This test group has the shapes that
// built-in kinds lack.
var schemas = func() func(fataler) differ.Schemas {
	var once sync.Once
	parsed := differ.Schemas{}
	return func(t fataler) differ.Schemas {
		once.Do(func() {
			var err error
			parsed, err = differ.BuiltInSchemas(schema.GroupVersion{Version: "v1"},
				schema.GroupVersion{Group: "apps", Version: "v1"}, schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"},
				schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}, schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"},
				schema.GroupVersion{Group: "batch", Version: "v1"}, schema.GroupVersion{Group: "storage.k8s.io", Version: "v1"})
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile("testdata/openapi/apis_example.com_v1.json")
			if err != nil {
				t.Fatal(err)
			}
			if parsed[schema.GroupVersion{Group: "example.com", Version: "v1"}], err = differ.ParseOpenAPI(data); err != nil {
				t.Fatal(err)
			}
		})
		return parsed
	}
}()
