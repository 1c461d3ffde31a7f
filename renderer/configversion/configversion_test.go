package configversion_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/renderer/configversion"
)

func object(t testing.TB, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// The name of a version depends on the data alone. So a chart that adds a label restarts no pod, and
// the same data have the same name on every cluster.
func TestMakeNamesTheData(t *testing.T) {
	t.Parallel()
	base := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: n}\ndata: {k: v, l: w}\n"
	name := func(text string) string {
		t.Helper()
		got, err := configversion.Make(object(t, text))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := name(base)
	for why, c := range map[string]struct {
		text string
		same bool
	}{
		"a label":               {strings.Replace(base, "namespace: n", "namespace: n, labels: {a: b}", 1), true},
		"another namespace":     {strings.Replace(base, "namespace: n", "namespace: m", 1), true},
		"the order of keys":     {strings.Replace(base, "{k: v, l: w}", "{l: w, k: v}", 1), true},
		"a value":               {strings.Replace(base, "k: v", "k: x", 1), false},
		"a key":                 {strings.Replace(base, "k: v", "m: v", 1), false},
		"binary data":           {base + "binaryData: {b: YQ==}\n", false},
		"empty binary data":     {base + "binaryData: {}\n", true},
		"a Secret of that data": {strings.Replace(base, "ConfigMap", "Secret", 1), false},
	} {
		if got := name(c.text); (got == first) != c.same {
			t.Errorf("%s: %s, and %s without; want the same: %t", why, got, first, c.same)
		}
	}
}

// A Secret that is written in another way is the same one.
func TestMakeNamesTheDataOfSecrets(t *testing.T) {
	t.Parallel()
	base := "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n"
	names := map[string]bool{}
	for _, text := range []string{"stringData: {k: v}", "data: {k: dg==}", "data: {k: dg==}\ntype: Opaque", "data: {k: eA==}\nstringData: {k: v}", "data: {k: dg==}\nstringData: {}"} {
		name, err := configversion.Make(object(t, base+text))
		if err != nil {
			t.Fatal(err)
		}
		names[name] = true
	}
	if len(names) != 1 {
		t.Errorf("one content has the names %v", names)
	}
	if name, err := configversion.Make(object(t, base+"data: {k: dg==}\ntype: example.com/t")); err != nil || names[name] {
		t.Errorf("another type has the same name (%v)", err)
	}
}

// Plain undoes Make, and Of finds what Make made. References finds exactly the references that a
// pod spec has, and Rename changes nothing else.
func TestMakeAndPlain(t *testing.T) {
	t.Parallel()
	text := rapid.StringMatching(`[a-z]{1,5}`)
	rapid.Check(t, func(t *rapid.T) {
		chart := map[string]any{
			"apiVersion": "v1", "kind": rapid.SampledFrom([]string{"ConfigMap", "Secret"}).Draw(t, "kind"),
			"metadata": map[string]any{"name": text.Draw(t, "name"), "namespace": text.Draw(t, "namespace"), "annotations": map[string]any{"keelson.io/versioned": "true"}},
			"data":     map[string]any{text.Draw(t, "key"): text.Draw(t, "value")},
		}
		before := copied(t, chart)
		name, err := configversion.Make(chart)
		if err != nil {
			t.Fatal(err)
		}
		v, is := configversion.Of(chart)
		if !is || chart["metadata"].(map[string]any)["name"] != name || v.Name+"-"+v.Hash != name {
			t.Fatalf("%s is made, and %+v (%t) is found", name, v, is)
		}
		made := copied(t, chart)
		if d := cmp.Diff(before, configversion.Plain(chart)); d != "" {
			t.Fatalf("Plain does not undo Make (-want +got):\n%s", d)
		}
		if d := cmp.Diff(made, chart); d != "" {
			t.Fatalf("Plain modified its argument:\n%s", d)
		}
	})
}

func copied(t interface{ Fatal(args ...any) }, object map[string]any) map[string]any {
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// Objects that only look like versions are none: another client can copy annotations.
func TestOf(t *testing.T) {
	t.Parallel()
	version := `{apiVersion: v1, kind: ConfigMap, metadata: {name: a-h, annotations: {keelson.io/configmap-name: a, keelson.io/configmap-version: h}}}`
	if _, is := configversion.Of(object(t, version)); !is {
		t.Fatal("a version is not found")
	}
	for why, text := range map[string]string{
		"another name":                 strings.Replace(version, "name: a-h", "name: a-i", 1),
		"another kind":                 strings.Replace(version, "kind: ConfigMap", "kind: Secret", 1),
		"another API group":            strings.Replace(version, "v1", "example.com/v1", 1),
		"no hash":                      strings.Replace(version, "configmap-version: h", "configmap-version: ''", 1),
		"annotations that are text":    `{apiVersion: v1, kind: ConfigMap, metadata: {name: a-h, annotations: text}}`,
		"no metadata":                  `{apiVersion: v1, kind: ConfigMap}`,
		"annotations that are no text": strings.Replace(version, "configmap-name: a", "configmap-name: [a]", 1),
	} {
		if v, is := configversion.Of(object(t, text)); is {
			t.Errorf("%s: it counts as the version %+v", why, v)
		}
	}
}

// A malformed object from a cluster has no references where it is malformed, and the others are found.
func TestReferencesOfMalformed(t *testing.T) {
	t.Parallel()
	got := configversion.References(object(t, `
spec:
  containers: [text, {envFrom: text, env: [text, {valueFrom: text}]}, {envFrom: [{configMapRef: {name: found}}, {configMapRef: {name: [a]}}, {secretRef: text}, {secretRef: {name: ""}}]}]
  volumes: [text, {projected: {sources: text}}, {projected: {sources: [text]}}, {configMap: text}]
  imagePullSecrets: {name: a}
`))
	if len(got) != 1 || got[0].Name != "found" || got[0].Kind != "ConfigMap" {
		t.Errorf("found %+v, want one", got)
	}
}

// An object that is nested without end is searched to a bound.
func TestReferencesAreBounded(t *testing.T) {
	t.Parallel()
	deep := map[string]any{"containers": []any{}}
	for range 10_000 {
		deep = map[string]any{"a": deep}
	}
	if got := configversion.References(deep); len(got) != 0 {
		t.Errorf("found %d", len(got))
	}
	if got := configversion.Mentions(deep, func(string, string) bool { return true }); len(got) != 0 {
		t.Errorf("found %v", got)
	}
}

// A version of a name that leaves no room for the hash is refused.
func TestMakeLongName(t *testing.T) {
	t.Parallel()
	long := object(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+strings.Repeat("a", 243)+"}\n")
	if _, err := configversion.Make(long); err == nil || !strings.Contains(err.Error(), "254 characters, and 253 are allowed") {
		t.Errorf("error is %v", err)
	}
}

// A pod that holds a copy of a ConfigMap refers to its version by an annotation, and so does a revision.
func TestReferencesOfCopies(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{kind: Pod, metadata: {name: a, annotations: {source.configuration.keelson.io/app: app-1}}, spec: {containers: []}}`,
		`{kind: ControllerRevision, data: {spec: {template: {metadata: {annotations: {source.configuration.keelson.io/app: app-1, other: x}}, spec: {containers: []}}}}}`,
	} {
		got := configversion.References(object(t, text))
		if len(got) != 1 || got[0].Kind != "ConfigMap" || got[0].Name != "app-1" || !configversion.HasCopies(object(t, text)) {
			t.Errorf("%s: found %+v, want app-1", text, got)
		}
	}
}
