package edit_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/registry/edit"
)

const (
	layerHead = "apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {}\n"
	metaHead  = "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\n"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why          string
		before, want string
		line         int
		wantErr      string
	}{
		"Meta":    {why: "A MetaConfig has one version line.", before: metaHead + "version: v1.0.0 # first\nvalues: {}\n", want: metaHead + "version: v1.2.0 # first\nvalues: {}\n", line: 3},
		"Layer":   {why: "A layer has the version below the component.", before: layerHead + "components:\n  dns:\n    version: v1.0.0\n  web:\n    # ours\n    version: v1.0.0\n", want: layerHead + "components:\n  dns:\n    version: v1.0.0\n  web:\n    # ours\n    version: v1.2.0\n", line: 9},
		"Flow":    {why: "The version is on a line with other keys, after letters of several bytes.", before: layerHead + "components:\n  dns: {values: {ä: ö}, version: v1.0.0}\n  web: {values: {ä: ö}, version: 'v1.0.0', absent: false}\n", want: layerHead + "components:\n  dns: {values: {ä: ö}, version: v1.0.0}\n  web: {values: {ä: ö}, version: 'v1.2.0', absent: false}\n", line: 6},
		"Quoted":  {why: "Quotes and CRLF line ends stay as they are.", before: strings.ReplaceAll(metaHead, "\n", "\r\n") + "version: \"v1.0.0\"\r\n", want: strings.ReplaceAll(metaHead, "\n", "\r\n") + "version: \"v1.2.0\"\r\n", line: 3},
		"NoEnd":   {why: "A file without a last line end stays one.", before: metaHead + "version: v1.0.0", want: metaHead + "version: v1.2.0", line: 3},
		"Values":  {why: "A version among the values is the chart's.", before: metaHead + "values: {version: v1.0.0}\nversion: v1.0.0\n", want: metaHead + "values: {version: v1.0.0}\nversion: v1.2.0\n", line: 4},
		"Moved":   {why: "Another commit changed the version first.", before: metaHead + "version: v1.1.0\n", wantErr: "line 3: the version of web is v1.1.0, and not v1.0.0"},
		"None":    {why: "The file has no version to change.", before: metaHead, wantErr: "it sets no version of web"},
		"Other":   {why: "It is about another component.", before: layerHead + "components: {dns: {version: v1.0.0}}\n", wantErr: "it sets no version of web"},
		"Escaped": {why: "The text of the file is not the value of the version.", before: metaHead + "version: \"\\x76\\u0031.0.0\"\n", wantErr: "not written in one piece"},
		"Folded":  {why: "As above.", before: metaHead + "version: >-\n  v1.0.0\n", wantErr: "not written in one piece"},
		"CROnly":  {why: "YAML counts more lines than those that end as Keelson writes them.", before: strings.ReplaceAll(metaHead, "\n", "\r") + "version: v1.0.0", wantErr: "line 1: it has a line end that is neither LF nor CRLF"},
		"Kind":    {why: "A cluster has no version.", before: head + "version: v1.0.0\n", wantErr: `its kind is "Cluster"`},
		"Sealed":  {why: "SOPS vouches for every value of the file.", before: metaHead + "version: v1.0.0\nsops: {mac: x}\n", wantErr: "encrypted by SOPS"},
		"Broken":  {why: "A broken file must not be edited.", before: metaHead + "version: [", wantErr: "it is not YAML"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, line, err := edit.Version([]byte(tc.before), "web", "v1.0.0", "v1.2.0")
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("%s got error %v, want %q", tc.why, err, tc.wantErr)
			}
			if err == nil && line != tc.line {
				t.Errorf("%s got line %d, want %d", tc.why, line, tc.line)
			}
			if diff := cmp.Diff(tc.want, string(got)); err == nil && diff != "" {
				t.Errorf("%s (-want +got)\n%s", tc.why, diff)
			}
		})
	}
}

// Whatever else is in a layer, one line is another one, and it says what it should.
func TestVersionIsOneLine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`c[a-z]{1,7}`), 1, 6, rapid.ID).Draw(t, "names")
		file := layerHead + "components:\n"
		for _, name := range names {
			version := rapid.SampledFrom([]string{"v1.0.0", `"v1.0.0"`, "'v1.0.0'", "v1.0.0 # v1.0.0"}).Draw(t, "version")
			file += rapid.SampledFrom([]string{"", "  # version: v1.0.0\n", "\n"}).Draw(t, "above") + "  " + name + ":\n    values: {version: v1.0.0}\n    version: " + version + "\n"
		}
		name := rapid.SampledFrom(names).Draw(t, "name")
		got, line, err := edit.Version([]byte(file), name, "v1.0.0", "v2.0.0-rc.1")
		if err != nil {
			t.Fatal(err)
		}
		before, after := strings.Split(file, "\n"), strings.Split(string(got), "\n")
		for i := range before {
			if (before[i] != after[i]) != (i+1 == line) {
				t.Fatalf("line %d: %q is %q; the one to change is %d", i+1, before[i], after[i], line)
			}
		}
		var read struct {
			Components map[string]struct{ Version string }
		}
		if err := yaml.Unmarshal(got, &read); err != nil {
			t.Fatal(err)
		}
		for other, is := range read.Components {
			if want := map[bool]string{true: "v2.0.0-rc.1", false: "v1.0.0"}[other == name]; is.Version != want {
				t.Fatalf("%s is at %s, want %s", other, is.Version, want)
			}
		}
	})
}

// FuzzVersion: one line changes, or the file is refused.
func FuzzVersion(f *testing.F) {
	for _, seed := range []string{
		metaHead + "version: v1.0.0 # first\n", layerHead + "components: {web: {version: 'v1.0.0'}}\n",
		"kind: MetaConfig\r\nversion: \"v1.0.0\"", "? kind\n: MetaConfig\n? version\n: v1.0.0\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, line, err := edit.Version(data, "web", "v1.0.0", "v1.2.0")
		if err != nil {
			return
		}
		before, after := strings.Split(string(data), "\n"), strings.Split(string(got), "\n")
		if len(before) != len(after) {
			t.Fatalf("%q became %q", data, got)
		}
		for i := range before {
			if (before[i] != after[i]) != (i+1 == line) {
				t.Fatalf("%q became %q; the line to change is %d", data, got, line)
			}
		}
	})
}
