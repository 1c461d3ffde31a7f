package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/renderer/redact"
)

func hiding(values ...redact.Value) *redact.Redactor {
	r := redact.New()
	r.Set("test", "1", func() []redact.Value { return values })
	return r
}

func TestText(t *testing.T) {
	t.Parallel()
	const key = "-----BEGIN KEY-----\nAbCdEfGhIjKlMnOpQrSt\nx\n-----END KEY-----"
	cases := map[string]struct {
		why   string
		value any
		text  string
		want  string
	}{
		"Plain":       {"The ordinary case.", "hunter22", "password hunter22 refused", "password *** refused"},
		"Inside":      {"A long one is no word by chance.", "hunter22", "https://u:hunter22@db", "https://u:***@db"},
		"ShortWord":   {"A short one counts alone,", "h8nt", "is h8nt!", "is ***!"},
		"ShortInside": {"else on would black out one.", "h8nt", "xh8nt h8nts", "xh8nt h8nts"},
		"TooShort":    {"Nothing is told by three letters.", "abc", "abc", "abc"},
		"Boolean":     {"Nor by one of two values.", true, "it is true", "it is true"},
		"Number":      {"As it was written, and as Go prints it.", float64(4815162342), "4815162342 4.815162342e+09", "*** ***"},
		"Quoted":      {"As Go and JSON quote it.", `a"b\c<d>e`, `"a\"b\\c<d>e" "a\"b\\c\u003cd\u003ee"`, `"***" "***"`},
		"QuotedTwice": {"An object in an annotation.", `pass"word9`, `{\"x\":\"pass\\\"word9\"}`, `{\"x\":\"***\"}`},
		"YAMLQuoted":  {"As YAML quotes it.", "it's secret", "'it''s secret'", "'***'"},
		"URL":         {"In a query, in a path.", "a b/c?d&e", "q=a+b%2Fc%3Fd%26e a%20b%2Fc%3Fd&e", "q=*** ***"},
		"Base64":      {"As a Secret has it, with a line end or without.", "hunter22", "aHVudGVyMjI= aHVudGVyMjIK", "*** ***"},
		"BasicAuth":   {"Behind a name of any length, and before something else.", "hunter22", "dTpodW50ZXIyMg== dXM6aHVudGVyMjI= dXNyOmh1bnRlcjIy aHVudGVyMjI6dQ==", "dTp***g== dXM6*** dXNyOm*** ***6dQ=="},
		"Hexadecimal": {"As digests and binary data are told.", "hunter-2", "68756e7465722d32 68756E7465722D32", "*** ***"},
		"HTML":        {"As a page quotes it.", "a<b&c'd", "<p>a&lt;b&amp;c&#39;d</p>", "<p>***</p>"},
		"Line":        {"A key is quoted a line at a time.", key, "bad line AbCdEfGhIjKlMnOpQrSt", "bad line ***"},
		"Cut":         {"So parsers of YAML quote.", "hunter22hunter22", "`hunter2...`", "`***`"},
		"Folded":      {"YAML breaks at spaces.", "correct horse battery staple", "x: correct horse\n  battery staple\ny: 1", "x: ***\ny: 1"},
		"Wrapped":     {"Base64 is broken anywhere.", "0123456789abcdefghij", "MDEyMzQ1Njc4\n    OWFiY2RlZmdoaWo=", "***"},
		"Longest":     {"Of two that begin alike, the whole one goes.", "hunter22", "hunter22 hunter2", "*** hunter2"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := hiding(redact.Certain(c.value)).Text(c.text); got != c.want {
				t.Errorf("%s\n got %s\nwant %s", c.why, got, c.want)
			}
		})
	}
}

// What stands in a Secret is secret by where it stands, so words that stand
// elsewhere, too, are left in messages.
func TestObject(t *testing.T) {
	t.Parallel()
	secret := map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "app-credentials", "namespace": "monitoring"},
		"data": map[string]any{
			"password": base64.StdEncoding.EncodeToString([]byte("s3cret-pa55")), "binary": base64.StdEncoding.EncodeToString([]byte{0xff, 0xfe, 1, 2, 3, 4, 5, 6}),
			"host": base64.StdEncoding.EncodeToString([]byte("monitoring")), "number": int64(123456789),
		},
		"stringData": map[string]any{
			"user": "admin", "plain": "Default", "port": "5432", "token": "tok-abcdef", "level": "INFO-LEVEL",
			"config": "log: info\nauth:\n  client_secret: deep-in-a-document\n  url: https://u:pw@host.example/path\n",
			"nested": map[string]any{"wrong": "but-still-secret"},
			"key":    "-----BEGIN CERTIFICATE-----\nAbCdEfGhIjKlMnOpQrSt\n-----END CERTIFICATE-----",
			"docker": `{"auths":{"r":{"auth":"dXNlcjpwYXNzd29yZA=="}}}`,
		},
	}
	shown := map[string]any{"kind": "ConfigMap", "data": map[string]any{"level": "INFO-LEVEL"}}
	r := hiding(redact.Object(secret, redact.Public([]map[string]any{secret, shown}))...)
	for text, want := range map[string]string{
		"s3cret-pa55":                    "***",
		"czNjcmV0LXBhNTU=":               "***",
		"//4BAgMEBQY=":                   "***",
		"expected string, got 123456789": "expected string, got ***",
		"in namespace monitoring":        "in namespace monitoring",
		"user admin on port 5432":        "user admin on port 5432",
		"default":                        "default",
		"tok-abcdef":                     "***",
		"INFO-LEVEL":                     "INFO-LEVEL",
		"got deep-in-a-document":         "got ***",
		"-----BEGIN CERTIFICATE----- AbCdEfGhIjKlMnOpQrSt": "-----BEGIN CERTIFICATE----- ***",
		"but-still-secret":     "***",
		"dXNlcjpwYXNzd29yZA==": "***",
	} {
		if got := r.Text(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	if got := redact.Object(shown, nil); got != nil {
		t.Errorf("a ConfigMap hides %d values", len(got))
	}
}

// Values leave when their owner has had two newer generations or is gone, and
// not before; nothing of them is left.
func TestGenerations(t *testing.T) {
	t.Parallel()
	r := redact.New()
	set := func(owner, generation string, texts ...string) {
		r.Set(owner, generation, func() []redact.Value {
			var out []redact.Value
			for _, text := range texts {
				out = append(out, redact.Certain(text))
			}
			return out
		})
	}
	hides := func(text string, want bool) {
		t.Helper()
		if got := r.Text(text) != text; got != want {
			t.Errorf("hides %s: %t, want %t", text, got, want)
		}
	}
	set("a", "1", "first-value", "shared-value")
	set("b", "1", "shared-value")
	set("a", "1", "never-asked-for")
	hides("never-asked-for", false)
	set("a", "2", "second-value")
	hides("first-value", true) // an error may still be on its way
	hides("second-value", true)
	set("a", "3", "third-value")
	hides("first-value", false)
	hides("second-value", true)
	hides("shared-value", true)
	r.Forget("b")
	hides("shared-value", false)
	r.Forget("a")
	r.Forget("a")
	hides("third-value", false)
	if n := r.Forms(); n != 0 {
		t.Errorf("%d forms are left", n)
	}
	set("c", "1")
	set("c", "1", "came-later")
	hides("came-later", true) // nothing was kept of an owner with no values
	var none *redact.Redactor
	none.Set("a", "1", nil)
	if none.Text("x") != "x" || none.Mask("x") != "x" || none.Find("x") != nil {
		t.Error("nil hides something")
	}
}

// TestNeverSeen is the promise: whatever a Secret holds, and however a text came
// to hold it, the value is not in what leaves.
func TestNeverSeen(t *testing.T) {
	t.Parallel()
	ways := map[string]func(string) string{
		"plain":    func(v string) string { return "x: " + v + " y" },
		"goQuoted": strconv.Quote,
		"goSyntax": func(v string) string { return fmt.Sprintf("%#v", map[string]any{"a": v}) },
		"json":     func(v string) string { b, _ := json.Marshal(map[string]any{"a": []any{v}}); return string(b) },
		"jsonTwice": func(v string) string {
			b, _ := json.Marshal(map[string]any{"a": v})
			b, _ = json.Marshal(map[string]any{"b": string(b)})
			return string(b)
		},
		"log": func(v string) string {
			var b bytes.Buffer
			slog.New(slog.NewJSONHandler(&b, nil)).Warn("delivery failed", "error", errors.New(v))
			slog.New(slog.NewTextHandler(&b, nil)).Warn("delivery failed", "error", errors.New(v))
			return b.String()
		},
		"yaml": func(v string) string {
			b, _ := yaml.Marshal(map[string]any{"a": map[string]any{"b": v}})
			return string(b)
		},
		"query":  func(v string) string { return "https://h/?q=" + url.QueryEscape(v) },
		"path":   func(v string) string { return "https://h/" + url.PathEscape(v) + "/x" },
		"base64": func(v string) string { return base64.StdEncoding.EncodeToString([]byte(v)) },
		"basic1": func(v string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+v)) },
		"basic2": func(v string) string { return "Basic " + base64.URLEncoding.EncodeToString([]byte("admin:"+v+"!")) },
		"hex":    func(v string) string { return fmt.Sprintf("%x %X", v, v) },
		"html":   html.EscapeString,
		"error":  func(v string) string { return fmt.Errorf("unable: %w", fmt.Errorf("invalid value %q", v)).Error() },
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-zA-Z0-9_/+=.-]{6,10}([ "'\\<>&%:{}#\n-]?[a-zA-Z0-9]{3,12}){0,6}`).Draw(t, "value")
		encoded := rapid.Bool().Draw(t, "encoded")
		secret := map[string]any{"apiVersion": "v1", "kind": "Secret", "stringData": map[string]any{"x": text}}
		if encoded {
			secret = map[string]any{"apiVersion": "v1", "kind": "Secret", "data": map[string]any{"x": base64.StdEncoding.EncodeToString([]byte(text))}}
		}
		r := hiding(redact.Object(secret, nil)...)
		name := rapid.SampledFrom(slices.Sorted(maps.Keys(ways))).Draw(t, "way")
		var out bytes.Buffer
		if _, err := r.Writer(&out).Write([]byte(ways[name](text))); err != nil {
			t.Fatal(err)
		}
		if len(text) > 6 && strings.Contains(decoded(out.String()), text) { // six bytes make too few characters inside of base64
			t.Fatalf("%s as %s leaves base64 of it: %s", text, name, out.String())
		}
		seen := strings.Join(strings.Fields(html.UnescapeString(out.String())), "")
		for _, form := range []string{text, base64.StdEncoding.EncodeToString([]byte(text)), url.QueryEscape(text)} {
			if strings.Contains(seen, strings.Join(strings.Fields(form), "")) {
				t.Fatalf("%s as %s leaves %s", text, name, out.String())
			}
		}
	})
}

// decoded is whatever a text is in base64, from each of its places on.
func decoded(text string) string {
	var b strings.Builder
	url := strings.NewReplacer("+", "-", "/", "_")
	for _, word := range strings.FieldsFunc(url.Replace(text), func(r rune) bool {
		return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", r)
	}) {
		for i := range min(4, len(word)) {
			part, _ := base64.RawURLEncoding.DecodeString(word[i:]) // what could be decoded, with an error too
			b.Write(part)
			b.WriteByte(' ')
		}
	}
	return b.String()
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	r := redact.New()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			owner, value := strconv.Itoa(i), fmt.Sprintf("secret-value-%d", i)
			for n := range 200 {
				r.Set(owner, strconv.Itoa(n), func() []redact.Value { return []redact.Value{redact.Certain(value)} })
				if got := r.Text("it is " + value); got != "it is ***" {
					t.Errorf("got %s", got)
					return
				}
			}
			r.Forget(owner)
		})
	}
	wg.Wait()
	if n := r.Forms(); n != 0 {
		t.Errorf("%d forms are left", n)
	}
}

// FuzzText looks for a text that breaks it, and for one that still has the value.
func FuzzText(f *testing.F) {
	f.Add("hunter22", "a hunter22\nb")
	f.Add("correct horse battery", "correct horse\n battery")
	f.Add("\xff\x00secret", "\xff\x00secret")
	f.Fuzz(func(t *testing.T, value, text string) {
		r := hiding(redact.Certain(value))
		got := r.Text(text + value + text)
		if v := strings.TrimSpace(value); len(v) >= 8 && !strings.Contains(redact.Redacted, v) && strings.Contains(got, v) &&
			!strings.Contains(strings.Repeat(redact.Redacted, 8), v) {
			t.Errorf("%q is in %q", v, got)
		}
	})
}

func BenchmarkText(b *testing.B) {
	line := strings.Repeat(`level=INFO msg=delivery cluster=prod-us-01 component=coredns version=v1.12.0 sync=Synced health=Healthy `, 2)
	for _, n := range []int{0, 100, 10_000} {
		r := redact.New()
		var values []redact.Value
		for i := range n {
			values = append(values, redact.Certain(fmt.Sprintf("%x-secret-%d", i*7919, i)))
		}
		r.Set("bench", "1", func() []redact.Value { return values })
		b.Run(fmt.Sprintf("%d values of %d forms", n, r.Forms()), func(b *testing.B) {
			b.SetBytes(int64(len(line)))
			for b.Loop() {
				if r.Text(line) != line {
					b.Fatal("an ordinary text was changed")
				}
			}
		})
	}
}

func BenchmarkSet(b *testing.B) {
	var values []redact.Value
	for i := range 10_000 {
		values = append(values, redact.Certain(fmt.Sprintf("%x-secret-%d", i*7919, i)))
	}
	for b.Loop() {
		r := redact.New()
		r.Set("bench", "1", func() []redact.Value { return values })
	}
}
