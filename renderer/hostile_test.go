package renderer_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// hostile is a chart that means harm, or a broken one that does it unmeant.
type hostile struct {
	why   string
	files map[string]string // besides a Chart.yaml, unless it is among them
	want  string            // of the error; empty: it renders, and does no harm
}

// hostileCharts: each ends within its limits, with an error that names the file.
func hostileCharts(t testing.TB) map[string]hostile {
	one := func(template string) map[string]string { return map[string]string{"templates/x.yaml": template} }
	const object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x%d}\n---\n"
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, object, i)
		}
		return b.String()
	}
	return map[string]hostile{
		// Time.
		"RangeWithoutEnd":   {"A loop that never ends.", one("{{ range 1000000000000 }}{{ end }}"), endless},
		"LoopOfLoops":       {"Small loops multiply.", one("{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}"), endless},
		"KeyDerivation":     {"Functions that are slow by design.", one(`{{ range until 100000 }}{{ derivePassword 1 "long" "a" "b" "c" }}{{ end }}`), endless},
		"PrivateKeys":       {"So are private keys.", one(`{{ range until 100000 }}{{ genPrivateKey "rsa" }}{{ end }}`), endless},
		"RegularExpression": {"Go's engine has no catastrophic backtracking.", one(`{{ regexMatch "^(a+)+$" (repeat 5000 "a" | printf "%sb") | fail }}`), "templates/x.yaml@demo/v1.0.0:1:"},
		"RegexRepeated":     {"And refuses expressions that grow.", one(`{{ mustRegexMatch "((a{1000}){1000}){1000}" "a" }}`), "templates/x.yaml@demo/v1.0.0:1:"},

		// Memory.
		"Until":          {"A list of 10^8 numbers takes 3 GB.", one("{{ range until 100000000 }}{{ end }}"), "or render itself?"},
		"Sequence":       {"So does a sequence as text.", one("{{ seq 1 1000000000 }}"), "or render itself?"},
		"Indent":         {"One text of 1 GB.", one(`{{ "a" | nindent 1000000000 }}`), "templates/x.yaml@demo/v1.0.0:1"},
		"Repeat":         {"One text of 10 GB.", one(`{{ repeat 10000000000 "x" }}`), "or render itself?"},
		"PrintWidth":     {"fmt has a limit of its own.", one(`{{ printf "%1000000000d" 1 }}`), "templates/x.yaml@demo/v1.0.0"},
		"Doubling":       {"A text that doubles 40 times.", one(`{{ $s := "x" }}{{ range until 40 }}{{ $s = print $s $s }}{{ end }}{{ $s }}`), "or render itself?"},
		"SelfRendering":  {"A tpl that renders itself.", one(`{{ $t := "{{ tpl .t . }}" }}{{ tpl $t (dict "t" $t "Template" .Template) }}`), "templates/x.yaml@demo/v1.0.0:1"},
		"Include":        {"Helm counts includes.", one(`{{ define "a" }}{{ include "a" . }}{{ end }}{{ include "a" . }}`), "templates/x.yaml@demo/v1.0.0:1"},
		"TemplateAction": {"text/template counts calls.", one(`{{ define "a" }}{{ template "a" . }}{{ end }}{{ template "a" . }}`), "exceeded maximum template depth"},
		"CyclePrinted":   {"A map that holds itself, printed.", one(`{{ $d := dict }}{{ $_ := set $d "a" $d }}{{ $d }}`), "ended"},
		"CycleAsJSON":    {"A map that holds itself, as JSON.", one(`{{ $d := dict }}{{ $_ := set $d "a" $d }}{{ mustToJson $d }}`), "templates/x.yaml@demo/v1.0.0:1"},
		"CycleAsYAML":    {"A map that holds itself, as YAML.", one(`{{ $d := dict }}{{ $_ := set $d "a" $d }}x: {{ toYaml $d | quote }}`), "demo v1.0.0: components/demo/template/"},
		"CycleCopied":    {"A map that holds itself, copied.", one(`{{ $d := dict }}{{ $_ := set $d "a" $d }}{{ deepCopy $d }}`), endless},
		"CycleInValues":  {"Values that hold themselves.", one(`{{ $_ := set .Values "a" .Values }}x: {{ .Values }}`), "demo v1.0.0: components/demo/template/"},

		// Output.
		"LongOutput":     {"1 GB of output.", one("a: |\n{{ range until 100000 }}  {{ repeat 10000 \"x\" }}\n{{ end }}"), "components/demo/template/"},
		"Documents":      {"50,000 documents.", one(many(50_000)), "templates/x.yaml@demo/v1.0.0: the chart gives more than 10000 objects"},
		"Items":          {"50,000 items of one list.", one("apiVersion: v1\nkind: List\nitems:\n{{ range $i := until 50000 }}- {apiVersion: v1, kind: ConfigMap, metadata: {name: x{{ $i }}}}\n{{ end }}"), "templates/x.yaml@demo/v1.0.0:2: the chart gives more than 10000 objects"},
		"SmallValues":    {"16 MB of text may be 500 MB of maps.", one("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n{{ range $i := until 1000000 }}  {{ $i }}a: {}\n{{ end }}"), "templates/x.yaml@demo/v1.0.0"},
		"Deep":           {"100,000 levels of YAML.", one("x: {{ repeat 100000 \"[\" }}{{ repeat 100000 \"]\" }}"), "templates/x.yaml@demo/v1.0.0"},
		"DeepBlocks":     {"2,000 levels of objects.", one("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\nx: {{ repeat 2000 \"{a: \" }}1{{ repeat 2000 \"}\" }}"), "templates/x.yaml@demo/v1.0.0"},
		"AliasBomb":      {"A billion laughs in a manifest.", one(aliasBomb), "templates/x.yaml@demo/v1.0.0"},
		"NotUTF8":        {"Bytes that are no text.", one("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: {{ b64dec \"//79\" }}}"), "templates/x.yaml@demo/v1.0.0"},
		"NoNumber":       {"A number that JSON can't hold.", one("apiVersion: v1\nkind: X\nmetadata: {name: x}\na: .inf\n"), "templates/x.yaml@demo/v1.0.0"},
		"LongMessage":    {"fail with a message of 10 MB.", one(`{{ fail (repeat 10000000 "x") }}`), "templates/x.yaml@demo/v1.0.0:1:"},
		"ControlMessage": {"fail with escape sequences.", one(`{{ fail "\x1b[2J" }}`), "templates/x.yaml@demo/v1.0.0:1:"},

		// Reach.
		"Environment": {"Helm takes env away.", one(`{{ env "HOME" }}`), `templates/x.yaml@demo/v1.0.0:1: function "env" not defined`},
		"Hosts": {"No name is resolved.", one(`apiVersion: v1
kind: ConfigMap
metadata: {name: x}
data: {ip: "{{ getHostByName "localhost" }}"}`), ""},
		"FilesOutside": {"Files are the chart's.", one(`apiVersion: v1
kind: ConfigMap
metadata: {name: x}
data: {passwd: {{ .Files.Get "../../../../etc/passwd" | quote }}, also: {{ .Files.Get "/etc/passwd" | quote }}}`), ""},
		"RemoteSchema":    {"Helm would fetch it.", map[string]string{"values.schema.json": "{\n\"$ref\": \"http://127.0.0.1:1/x\"}"}, "values.schema.json@demo/v1.0.0:2: the schema refers to http://127.0.0.1:1/x"},
		"FileSchema":      {"Or read it.", map[string]string{"values.schema.json": `{"$ref": "file:///etc/passwd"}`}, "values.schema.json@demo/v1.0.0:1"},
		"RelativeSchema":  {"Or read it from beside the chart.", map[string]string{"values.schema.json": `{"$ref": "../../other.json"}`}, "values.schema.json@demo/v1.0.0"},
		"RecursiveSchema": {"A schema that refers to itself.", map[string]string{"values.schema.json": `{"$ref": "#"}`}, "values.schema.json@demo/v1.0.0: values: both"},
		"DeepSchema":      {"A schema of 5,000 levels.", map[string]string{"values.schema.json": strings.Repeat(`{"not":`, 5000) + "{}" + strings.Repeat("}", 5000)}, "values.schema.json@demo/v1.0.0"},
		"SchemaPattern":   {"A pattern that grows.", map[string]string{"values.schema.json": `{"properties":{"replicas":{"pattern":"((a{1000}){1000}){1000}"}}}`}, "values.schema.json@demo/v1.0.0"},

		// Chart files.
		"ChartBomb":       {"A billion laughs in Chart.yaml.", map[string]string{"Chart.yaml": aliasBomb}, "Chart.yaml@demo/v1.0.0"},
		"ValuesBomb":      {"A billion laughs in values.yaml.", map[string]string{"values.yaml": aliasBomb}, "values.yaml@demo/v1.0.0"},
		"ChartTwice":      {"A key stands twice in Chart.yaml: Helm takes the last.", map[string]string{"Chart.yaml": "apiVersion: v2\nname: demo\nname: other\nversion: 1.0.0\n"}, ""},
		"ChartOutside":    {"A chart's name is no path.", map[string]string{"Chart.yaml": "apiVersion: v2\nname: ../../x\nversion: 1.0.0\n"}, "Chart.yaml@demo/v1.0.0"},
		"DeepValues":      {"100,000 levels of values.", map[string]string{"values.yaml": "x: " + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)}, "values.yaml@demo/v1.0.0"},
		"Subcharts":       {"Charts in charts, 300 deep.", map[string]string{strings.Repeat("charts/a/", 300) + "Chart.yaml": "apiVersion: v2\nname: a\nversion: 1.0.0\n"}, "demo v1.0.0: components/demo/template/"},
		"AliasOfItself":   {"A dependency under the chart's own name.", map[string]string{"Chart.yaml": "apiVersion: v2\nname: demo\nversion: 1.0.0\ndependencies: [{name: demo, version: 1.0.0, repository: \"\", alias: demo}]\n"}, "Chart.yaml@demo/v1.0.0: the dependency demo is missing"},
		"TemplateNames":   {"10,000 templates.", manyFiles(10_000), ""},
		"LargeTemplate":   {"5 MB without an action.", one("# " + strings.Repeat("x", 5<<20)), ""},
		"PackedBomb":      {"A packed subchart of 300 MB of zeros.", map[string]string{"charts/a.tgz": packed(t, entry{name: "a/zero", zeros: 300 << 20})}, "charts/a.tgz@demo/v1.0.0"},
		"PackedFile":      {"A packed file that is too large.", map[string]string{"charts/a.tgz": packed(t, entry{name: "a/zero", zeros: 6 << 20})}, "charts/a.tgz@demo/v1.0.0"},
		"PackedFiles":     {"A packed subchart of 200,000 files.", map[string]string{"charts/a.tgz": packed(t, repeated("a/x", 200_000)...)}, "demo v1.0.0: components/demo/template/charts/a.tgz"},
		"PackedOutside":   {"A packed file that climbs out.", map[string]string{"charts/a.tgz": packed(t, entry{name: "a/../../../x", text: "x"})}, "charts/a.tgz@demo/v1.0.0"},
		"PackedAbsolute":  {"A packed file at the root.", map[string]string{"charts/a.tgz": packed(t, entry{name: "/etc/passwd", text: "x"})}, "charts/a.tgz@demo/v1.0.0"},
		"PackedLink":      {"A packed link out of the chart.", map[string]string{"charts/a.tgz": packed(t, entry{name: "a/Chart.yaml", link: "/etc/passwd"})}, "charts/a.tgz@demo/v1.0.0"},
		"PackedTruncated": {"Half a packed subchart.", map[string]string{"charts/a.tgz": packed(t, entry{name: "a/Chart.yaml", text: "apiVersion: v2"})[:40]}, "charts/a.tgz@demo/v1.0.0"},
		"PackedGarbage":   {"No packed subchart at all.", map[string]string{"charts/a.tgz": "not gzip"}, "charts/a.tgz@demo/v1.0.0"},
		"PackedNested":    {"Packed in packed, 50 times.", map[string]string{"charts/a.tgz": nested(t, 50)}, ""},
	}
}

// endless is what is said of charts that only the clock ends.
const endless = "took longer than 2s and was ended"

const aliasBomb = `a: &a [x,x,x,x,x,x,x,x,x,x]
b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]
c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]
d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]
e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]
f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]
g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f,*f]
h: &h [*g,*g,*g,*g,*g,*g,*g,*g,*g,*g]
`

func manyFiles(n int) map[string]string {
	files := map[string]string{}
	for i := range n {
		files[fmt.Sprintf("templates/%d.yaml", i)] = "# nothing\n"
	}
	return files
}

// entry is a file of an archive.
type entry struct {
	name, text, link string
	zeros            int64
}

func repeated(name string, n int) []entry {
	out := make([]entry, n)
	for i := range out {
		out[i].name = fmt.Sprint(name, i)
	}
	return out
}

func packed(t testing.TB, entries ...entry) string {
	t.Helper()
	var b bytes.Buffer
	gz, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	tw := tar.NewWriter(gz)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.text)) + e.zeros}
		if e.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(tw, io.MultiReader(strings.NewReader(e.text), io.LimitReader(zeros{}, e.zeros))); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// nested is a packed chart with a packed chart in it, and so on.
func nested(t testing.TB, depth int) string {
	t.Helper()
	text := ""
	for range depth {
		entries := []entry{{name: "a/Chart.yaml", text: "apiVersion: v2\nname: a\nversion: 1.0.0\n"}}
		if text != "" {
			entries = append(entries, entry{name: "a/charts/a.tgz", text: text})
		}
		text = packed(t, entries...)
	}
	return text
}

func (h hostile) version() *registry.Version {
	v := configMapVersion("")
	v.Images = nil
	v.Chart = nil
	if _, ok := h.files["Chart.yaml"]; !ok {
		v.Chart = append(v.Chart, registry.File{Name: "Chart.yaml", Data: []byte("apiVersion: v2\nname: demo\nversion: 1.0.0\n")})
	}
	for name, text := range h.files {
		v.Chart = append(v.Chart, registry.File{Name: name, Data: []byte(text)})
	}
	return v
}

// TestHostileCharts renders the charts one after the other, each followed by
// one that means well.
func TestHostileCharts(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of charts that are ended")
	}
	// What ends by a limit of its own has the time to do so on a busy machine.
	pool := newPool(t, renderer.PoolOptions{Workers: 2, Timeout: 30 * time.Second, Memory: 256 << 20})
	impatient := newPool(t, renderer.PoolOptions{Workers: 2, Timeout: 2 * time.Second, Memory: 256 << 20})
	charts := hostileCharts(t)
	good := request(configMapVersion(configMap), 1)
	for name, tc := range charts {
		t.Run(name, func(t *testing.T) {
			r := renderer.Request{Version: tc.version(), Values: registry.ValuesFrom(map[string]any{"replicas": "a"}), Capabilities: renderer.DefaultCapabilities()}
			before := heap()
			by := pool
			if tc.want == endless {
				by = impatient
			}
			target, err := by.Render(t.Context(), r)
			grown := heap() - before
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("%s It does not render: %.300v", tc.why, err)
			case tc.want != "" && err == nil:
				t.Errorf("%s It renders: %d objects", tc.why, len(target.Objects))
			case tc.want != "" && (!strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "components/demo/template/")):
				t.Errorf("%s The error is %.300v, want one with %q", tc.why, err, tc.want)
			case err != nil && len(err.Error()) > 4096:
				t.Errorf("%s The error is %d bytes long", tc.why, len(err.Error()))
			}
			if grown > 50<<20 {
				t.Errorf("%s The heap grew by %d MiB", tc.why, grown>>20)
			}
			runtime.KeepAlive(r)
			if _, err := pool.Render(t.Context(), good); err != nil {
				t.Errorf("a good chart after it: %v", err)
			}
		})
	}
}

// heap is how many bytes are in use, when all garbage is collected.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
