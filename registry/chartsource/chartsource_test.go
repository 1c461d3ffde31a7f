package chartsource_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/archive"
	"github.com/keelson-io/keelson/registry/chartsource"
)

func writeFile(t testing.TB, file string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestVersions asks a registry and a repository for the same versions.
func TestVersions(t *testing.T) {
	t.Parallel()
	oci := ociServer(t)
	files := map[string][]byte{}
	var versions []string
	for _, v := range []string{"1.9.0", "1.10.0", "1.10.1", "2.0.0-rc.1", "v3.0.0", "3.1.0+build.7"} {
		tgz := pack(t, "web", v)
		oci.push(t, "charts/web", strings.ReplaceAll(v, "+", "_"), tgz)
		files["/stable/packed/web-"+v+".tgz"] = tgz
		versions = append(versions, v, "packed/web-"+v+".tgz")
	}
	oci.push(t, "charts/web", "latest", pack(t, "web", "9.9.9"))
	files["/stable/index.yaml"] = index("web", versions...)
	repository := chartServer(t, files)

	cases := map[string]struct {
		why, ask, want, fails string
	}{
		"Newest":     {why: "Tags that are no versions don't count.", ask: "", want: "3.1.0+build.7"},
		"Exact":      {why: "One and no other.", ask: "1.10.0", want: "1.10.0"},
		"Range":      {why: "By number, not by letter.", ask: "^1.9", want: "1.10.1"},
		"Below":      {why: "As helm has it.", ask: "< 1.10", want: "1.9.0"},
		"Partial":    {why: "1.10 is a range.", ask: "1.10", want: "1.10.1"},
		"PreRelease": {why: "Only for who asks.", ask: "2.0.0-rc.1", want: "2.0.0-rc.1"},
		"NoPre":      {why: "A range that only a pre-release is in.", ask: "~2.0", fails: "no version in the range"},
		"WithoutV":   {why: "People leave the v out.", ask: "3.0.0", want: "v3.0.0"},
		"Build":      {why: "A tag can't hold a plus.", ask: "3.1.0+build.7", want: "3.1.0+build.7"},
		"Unknown":    {why: "The error names what there is.", ask: "1.8.0", fails: "there are 3.1.0+build.7, v3.0.0, 2.0.0-rc.1, 1.10.1 and 2 older ones"},
		"NoRange":    {why: "Neither the one nor the other.", ask: "newest", fails: `"newest" is neither a version nor a range`},
	}
	for name, tc := range cases {
		for where, want := range map[string]chartsource.Wanted{
			"OCI": {Chart: "oci://" + oci.host + "/charts/web"}, "Repository": {Chart: "web", Repository: repository.URL + "/stable/"},
		} {
			t.Run(name+where, func(t *testing.T) {
				t.Parallel()
				t.Log(tc.why)
				want.Version = tc.ask
				chart, err := client(t, oci).Resolve(t.Context(), want)
				if tc.fails != "" {
					if err == nil || !strings.Contains(err.Error(), tc.fails) {
						t.Errorf("error %v; want %q", err, tc.fails)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				s := chart.Source
				if s.Version != tc.want || s.Name != "web" || s.Digest != archive.Digest(chart.Archive) {
					t.Errorf("got %+v", s)
				}
				again, err := client(t, oci).Fetch(t.Context(), s)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(chart, again); diff != "" {
					t.Errorf("fetched by its pin (-first +second):\n%s", diff)
				}
			})
		}
	}
}

// TestRefused asks for charts that must not be taken.
func TestRefused(t *testing.T) {
	t.Parallel()
	good := pack(t, "web", "1.0.0")
	cases := map[string]struct {
		why string
		// files of a chart repository at /stable; nil: what push puts into a registry.
		files map[string][]byte
		push  func(testing.TB, *server)
		want  chartsource.Wanted
		fails string
	}{
		"OtherName":    {why: "The index promises web.", files: map[string][]byte{"/stable/index.yaml": index("web", "1.0.0", "x.tgz"), "/stable/x.tgz": pack(t, "evil", "1.0.0")}, fails: `another chart: "evil"`},
		"OtherVersion": {why: "And 1.0.0.", files: map[string][]byte{"/stable/index.yaml": index("web", "1.0.0", "x.tgz"), "/stable/x.tgz": pack(t, "web", "0.9.0")}, fails: `version "0.9.0"`},
		"NoTgz":        {why: "A page that says sorry.", files: map[string][]byte{"/stable/index.yaml": index("web", "1.0.0", "x.tgz"), "/stable/x.tgz": []byte("<html>sorry")}, fails: "not a gzipped tar"},
		"WrongDigest":  {why: "The file is not the one of the index.", files: map[string][]byte{"/stable/index.yaml": []byte("entries: {web: [{version: 1.0.0, urls: [x.tgz], digest: '" + strings.Repeat("0", 64) + "'}]}"), "/stable/x.tgz": good}, fails: "the index says sha256:0000"},
		"NoFile":       {why: "The index is older than the files.", files: map[string][]byte{"/stable/index.yaml": index("web", "1.0.0", "x.tgz")}, fails: "404"},
		"NoURL":        {why: "The index has no URL for the chart.", files: map[string][]byte{"/stable/index.yaml": []byte("entries: {web: [{version: 1.0.0}]}")}, fails: "has no URL"},
		"FileURL":      {why: "An index must not read this machine's files.", files: map[string][]byte{"/stable/index.yaml": index("web", "1.0.0", "file:///etc/passwd")}, fails: `starts with "file"`},
		"URLPassword":  {why: "Nor bring credentials along.", files: map[string][]byte{"/stable/index.yaml": index("web", "1.0.0", "https://a:b@127.0.0.1/x")}, fails: "credentials in it"},
		"PlainURL":     {why: "Nor lead away from TLS.", files: map[string][]byte{"/stable/index.yaml": index("web", "1.0.0", "http://127.0.0.1:1/x.tgz")}, fails: "without TLS"},
		"NoChart":      {why: "Another name.", files: map[string][]byte{"/stable/index.yaml": index("other", "1.0.0", "x.tgz")}, fails: `has no chart "web"`},
		"NullEntry":    {why: "An index by hand.", files: map[string][]byte{"/stable/index.yaml": []byte("entries: {web: [null]}")}, fails: `has no chart "web"`},
		"NoIndex":      {why: "No chart repository.", files: map[string][]byte{}, fails: "404"},
		"BrokenIndex":  {why: "No YAML.", files: map[string][]byte{"/stable/index.yaml": []byte("entries: [")}, fails: "read the index"},
		"AliasBomb":    {why: "YAML that unfolds for ever.", files: map[string][]byte{"/stable/index.yaml": aliasBomb()}, fails: "read the index"},
		"NamePath":     {why: "A name that climbs.", want: chartsource.Wanted{Chart: "../web", Repository: "https://127.0.0.1:1"}, fails: "is no name for a chart"},
		"NameHidden":   {why: "A name that hides.", want: chartsource.Wanted{Chart: ".git", Repository: "https://127.0.0.1:1"}, fails: "is no name for a chart"},
		"URLUser":      {why: "It would stand in git.", want: chartsource.Wanted{Chart: "web", Repository: "https://user:hunter2@127.0.0.1:1"}, fails: "must not hold credentials"},
		"Scheme":       {why: "Neither of the two.", want: chartsource.Wanted{Chart: "web", Repository: "ftp://127.0.0.1"}, fails: "starts with neither"},
		"ChartURL":     {why: "helm pull takes this; here it could not be upgraded.", want: chartsource.Wanted{Chart: "https://127.0.0.1:1/web-1.0.0.tgz"}, fails: "a chart repository is given apart"},
		"Tag":          {why: "Two places for a version.", want: chartsource.Wanted{Chart: "oci://127.0.0.1:1/web:1.0.0"}, fails: "--version"},
		"Image": {why: "A registry holds more than charts.", push: func(t testing.TB, s *server) {
			t.Helper()
			s.pushManifest(t, "web", "1.0.0", map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": s.blob(t, "web", "application/vnd.oci.image.config.v1+json", []byte(`{}`)), "layers": []any{s.blob(t, "web", "application/vnd.oci.image.layer.v1.tar+gzip", good)}})
		}, fails: "is not a chart"},
		"TwoCharts": {why: "Which one?", push: func(t testing.TB, s *server) {
			t.Helper()
			l := s.blob(t, "web", "application/vnd.cncf.helm.chart.content.v1.tar+gzip", good)
			s.pushManifest(t, "web", "1.0.0", map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": l, "layers": []any{l, l}})
		}, fails: "it has 2 layers"},
		"WrongBlob": {why: "A registry that gives another blob.", push: func(t testing.TB, s *server) {
			t.Helper()
			s.push(t, "web", "1.0.0", good)
			s.tamper(answerBlobs(pack(t, "web", "1.0.0", "x", "y")))
		}, fails: "what came is sha256:"},
		"HugeBlob": {why: "Or never stops.", push: func(t testing.TB, s *server) {
			t.Helper()
			s.push(t, "web", "1.0.0", good)
			s.tamper(endless("/blobs/", "", 0))
		}, fails: "larger than 50 MiB"},
		"LyingBlob": {why: "Or says that it will.", push: func(t testing.TB, s *server) {
			t.Helper()
			s.push(t, "web", "1.0.0", good)
			s.tamper(endless("/blobs/", "", 1<<40))
		}, fails: "larger than 50 MiB"},
		"HugeManifest": {why: "Or has one of a gigabyte.", push: func(t testing.TB, s *server) {
			t.Helper()
			s.push(t, "web", "1.0.0", good)
			s.tamper(endless("/manifests/", "application/vnd.oci.image.manifest.v1+json", 1<<30))
		}, fails: "larger than 4 MiB"},
		"EndlessTags":   {why: "Or has page after page of nothing.", push: func(t testing.TB, s *server) { t.Helper(); s.tamper(endlessTags) }, want: chartsource.Wanted{Version: "^1"}, fails: "more than 20000 tags"},
		"Unknown":       {why: "Nothing there.", push: func(testing.TB, *server) {}, fails: "not found"},
		"MissingFolder": {why: "A folder that is not there.", want: chartsource.Wanted{Chart: "/no/such/chart"}, fails: "no such file"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s *server
			want := tc.want
			if tc.push != nil {
				s = ociServer(t)
				tc.push(t, s)
				want.Chart = "oci://" + s.host + "/web"
				if want.Version == "" {
					want.Version = "1.0.0"
				}
			} else {
				s = chartServer(t, tc.files)
				if want.Chart == "" {
					want = chartsource.Wanted{Chart: "web", Repository: s.URL + "/stable"}
				}
			}
			chart, err := client(t, s).Resolve(t.Context(), want)
			if err == nil || !strings.Contains(err.Error(), tc.fails) || chart != nil {
				t.Errorf("%s got %v and error %v; want %q", tc.why, chart, err, tc.fails)
			}
		})
	}
}

func aliasBomb() []byte {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 12 {
		a := string(rune('a' + i))
		below := "*" + a + "0"
		b.WriteString(string(rune('b'+i)) + "0: &" + string(rune('b'+i)) + "0 [" + strings.TrimSuffix(strings.Repeat(below+", ", 10), ", ") + "]\n")
	}
	b.WriteString("entries: {web: *m0}\n")
	return []byte(b.String())
}

func answerBlobs(data []byte) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		_, _ = w.Write(data)
		return true
	}
}

// endless answers with zeros until the client goes away; with a length, it
// promises so many.
func endless(path, mediaType string, length int) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, path) {
			return false
		}
		if mediaType != "" {
			w.Header().Set("Content-Type", mediaType)
		}
		w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("0", 64))
		if length > 0 {
			w.Header().Set("Content-Length", strconv.Itoa(length))
		} else {
			// Long enough for every limit, and short enough to end a test that has none.
			length = 1 << 30
		}
		if i := strings.Index(r.URL.Path, "/sha256:"); i >= 0 {
			w.Header().Set("Docker-Content-Digest", r.URL.Path[i+1:])
		}
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", strconv.Itoa(1000))
			return true
		}
		block := make([]byte, 1<<20)
		for sent := 0; sent < length; sent += len(block) {
			if _, err := w.Write(block); err != nil {
				break
			}
		}
		return true
	}
}

func endlessTags(w http.ResponseWriter, r *http.Request) bool {
	if !strings.HasSuffix(r.URL.Path, "/tags/list") {
		return false
	}
	w.Header().Set("Link", `</v2/web/tags/list?last=x>; rel="next"`)
	_, _ = w.Write([]byte(`{"name": "web", "tags": []}`))
	return true
}

// TestHugeIndex holds that an index is not read for longer than its limit.
func TestHugeIndex(t *testing.T) {
	t.Parallel()
	s := chartServer(t, nil)
	s.tamper(endless("/index.yaml", "", 0))
	_, err := client(t, s).Resolve(t.Context(), chartsource.Wanted{Chart: "web", Repository: s.URL})
	if err == nil || !strings.Contains(err.Error(), "index.yaml is larger than 32 MiB") {
		t.Errorf("error %v", err)
	}
}

// TestMoved pins a version, and then publishes another chart under its name.
func TestMoved(t *testing.T) {
	t.Parallel()
	first, second := pack(t, "web", "1.0.0"), pack(t, "web", "1.0.0", "values.yaml", "evil: true\n")

	t.Run("Repository", func(t *testing.T) {
		t.Parallel()
		files := map[string][]byte{"/index.yaml": index("web", "1.0.0", "web.tgz"), "/web.tgz": first}
		s := chartServer(t, files)
		chart, err := client(t, s).Resolve(t.Context(), chartsource.Wanted{Chart: "web", Repository: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		files["/web.tgz"] = second
		if _, err := client(t, s).Fetch(t.Context(), chart.Source); !errors.Is(err, chartsource.ErrMoved) {
			t.Errorf("a repository has no other place for the old file; error %v", err)
		}
	})
	t.Run("Registry", func(t *testing.T) {
		t.Parallel()
		s := ociServer(t)
		s.push(t, "web", "1.0.0", first)
		chart, err := client(t, s).Resolve(t.Context(), chartsource.Wanted{Chart: "oci://" + s.host + "/web"})
		if err != nil {
			t.Fatal(err)
		}
		s.push(t, "web", "1.0.0", second)
		again, err := client(t, s).Fetch(t.Context(), chart.Source)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(chart.Files, again.Files); diff != "" || len(again.Warnings) != 1 || !strings.Contains(again.Warnings[0], "was moved") {
			t.Errorf("a registry still has what is pinned; warnings %q\n%s", again.Warnings, diff)
		}
		s.tamper(func(w http.ResponseWriter, r *http.Request) bool {
			gone := strings.Contains(r.URL.Path, chart.Source.Digest)
			if gone {
				http.NotFound(w, r)
			}
			return gone
		})
		if _, err := client(t, s).Fetch(t.Context(), chart.Source); !errors.Is(err, chartsource.ErrMoved) {
			t.Errorf("until it is swept away; error %v", err)
		}
	})
}

// TestCredentials checks which servers get which passwords.
func TestCredentials(t *testing.T) {
	t.Parallel()
	tgz := pack(t, "web", "1.0.0")
	repository := func(t *testing.T, at string) *server {
		t.Helper()
		s := chartServer(t, map[string][]byte{"/stable/index.yaml": index("web", "1.0.0", at), "/stable/web.tgz": tgz, "/web.tgz": tgz})
		s.tamper(basic)
		return s
	}
	ask := func(s *server) chartsource.Wanted {
		return chartsource.Wanted{Chart: "web", Repository: s.URL + "/stable"}
	}

	t.Run("Repository", func(t *testing.T) {
		t.Parallel()
		s := repository(t, "web.tgz")
		if _, err := client(t, s, helmRepositories(t, s.URL+"/stable/")).Resolve(t.Context(), ask(s)); err != nil {
			t.Errorf("with its password: %v", err)
		}
		other := repository(t, "web.tgz")
		_, err := client(t, other, helmRepositories(t, s.URL+"/stable", other.URL+"/staging")).Resolve(t.Context(), ask(other))
		if err == nil || !strings.Contains(err.Error(), "401") || other.sent() {
			t.Errorf("another port is another server, and another path another repository: %v; sent: %t", err, other.sent())
		}
	})
	t.Run("ChartElsewhere", func(t *testing.T) {
		t.Parallel()
		store := chartServer(t, map[string][]byte{"/web.tgz": tgz})
		s := repository(t, store.URL+"/web.tgz")
		if _, err := client(t, s, helmRepositories(t, s.URL+"/stable")).Resolve(t.Context(), ask(s)); err != nil || store.sent() {
			t.Errorf("charts may be elsewhere, and are asked for without a password: %v; sent: %t", err, store.sent())
		}
	})
	t.Run("Redirect", func(t *testing.T) {
		t.Parallel()
		thief := chartServer(t, map[string][]byte{"/stable/index.yaml": index("web", "1.0.0", "web.tgz")})
		s := repository(t, "web.tgz")
		s.tamper(redirectTo(thief.URL))
		_, err := client(t, s, helmRepositories(t, s.URL+"/stable")).Resolve(t.Context(), ask(s))
		if err == nil || !strings.Contains(err.Error(), "sends to another host") || thief.asked() > 0 {
			t.Errorf("who gets the password must answer: %v; asked: %d", err, thief.asked())
		}
	})
	t.Run("RedirectSameHost", func(t *testing.T) {
		t.Parallel()
		s := repository(t, "web.tgz")
		s.tamper(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/stable/web.tgz" {
				http.Redirect(w, r, "/web.tgz", http.StatusFound)
				return true
			}
			return basic(w, r)
		})
		if _, err := client(t, s, helmRepositories(t, s.URL+"/stable")).Resolve(t.Context(), ask(s)); err != nil {
			t.Errorf("a redirect inside of one host: %v", err)
		}
	})
	t.Run("RedirectToPlain", func(t *testing.T) {
		t.Parallel()
		s := repository(t, "web.tgz")
		s.tamper(redirectTo("http://" + s.host))
		_, err := client(t, s).Resolve(t.Context(), ask(s))
		if err == nil || !strings.Contains(err.Error(), "from https to http") {
			t.Errorf("a redirect must not end TLS: %v", err)
		}
	})
	t.Run("RedirectLoop", func(t *testing.T) {
		t.Parallel()
		s := repository(t, "web.tgz")
		s.tamper(redirectTo(s.URL))
		_, err := client(t, s).Resolve(t.Context(), ask(s))
		if err == nil || !strings.Contains(err.Error(), "there were 5 already") || s.asked() > 5 {
			t.Errorf("%v; asked: %d", err, s.asked())
		}
	})
	t.Run("Registry", func(t *testing.T) {
		t.Parallel()
		s, other := ociServer(t), ociServer(t)
		for _, one := range []*server{s, other} {
			one.push(t, "charts/web", "1.0.0", tgz)
			one.tamper(basic)
		}
		c := client(t, s, dockerConfig(t, s.host))
		if _, err := c.Resolve(t.Context(), chartsource.Wanted{Chart: "oci://" + s.host + "/charts/web"}); err != nil {
			t.Errorf("with its password: %v", err)
		}
		_, err := c.Resolve(t.Context(), chartsource.Wanted{Chart: "oci://" + other.host + "/charts/web"})
		if err == nil || other.sent() || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("another port is another registry: %v; sent: %t", err, other.sent())
		}
	})
	t.Run("BlobsElsewhere", func(t *testing.T) {
		t.Parallel()
		s, store := ociServer(t), chartServer(t, nil)
		s.push(t, "charts/web", "1.0.0", tgz)
		store.tamper(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/x" { // once more, on a host of the same name
				http.Redirect(w, r, "/y", http.StatusTemporaryRedirect)
				return true
			}
			_, _ = w.Write(tgz)
			return true
		})
		s.tamper(func(w http.ResponseWriter, r *http.Request) bool {
			if basic(w, r) {
				return true
			}
			if strings.Contains(r.URL.Path, "/blobs/") {
				http.Redirect(w, r, store.URL+"/x?Signature=hunter2", http.StatusTemporaryRedirect)
				return true
			}
			return false
		})
		want := chartsource.Wanted{Chart: "oci://" + s.host + "/charts/web"}
		if _, err := client(t, s, dockerConfig(t, s.host)).Resolve(t.Context(), want); err != nil || store.sent() {
			t.Errorf("registries keep blobs elsewhere, where no password goes: %v; sent: %t", err, store.sent())
		}
		store.Close()
		if _, err := client(t, s, dockerConfig(t, s.host)).Resolve(t.Context(), want); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the signature of a redirect is as good as a password: %v", err)
		}
	})
	t.Run("PlainHTTP", func(t *testing.T) {
		t.Parallel()
		s := ociServer(t)
		_, err := client(t, s).Resolve(t.Context(), chartsource.Wanted{Chart: "web", Repository: "http://" + s.host})
		if err == nil || !strings.Contains(err.Error(), "--plain-http "+s.host) || s.asked() > 0 {
			t.Errorf("no flag allows plain HTTP: %v; requests: %d", err, s.asked())
		}
	})
	t.Run("BrokenConfig", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "repositories.yaml")
		writeFile(t, file, []byte("password: hunter2: ["))
		_, err := chartsource.New(chartsource.Options{RepositoryConfig: file})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("its error must not quote it: %v", err)
		}
	})
}

func redirectTo(host string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, host+r.URL.Path, http.StatusFound)
		return true
	}
}

// TestDependencies brings charts that lack what they depend on.
func TestDependencies(t *testing.T) {
	t.Parallel()
	oci := ociServer(t)
	oci.push(t, "libs/cache", "2.0.0", pack(t, "cache", "2.0.0"))
	oci.push(t, "libs/cache", "2.1.0", pack(t, "cache", "2.1.0"))
	oci.push(t, "libs/hungry", "1.0.0", pack(t, "hungry", "1.0.0", "Chart.yaml", "apiVersion: v2\nname: hungry\nversion: 1.0.0\ndependencies: [{name: more, version: 1.0.0, repository: 'https://127.0.0.1:1'}]\n"))
	lib := chartServer(t, map[string][]byte{"/index.yaml": index("lib", "0.3.0", "lib.tgz"), "/lib.tgz": pack(t, "lib", "0.3.0")})
	replace := strings.NewReplacer("OCI", "oci://"+oci.host+"/libs", "LIB", lib.URL)
	chart := func(dependencies string) string {
		return replace.Replace("apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies:\n" + dependencies)
	}
	cases := map[string]struct {
		why   string
		files map[string]string // of a folder beside others, by path
		want  []string          // NAME VERSION of what is brought
		fails string
	}{
		"None": {why: "Nothing to bring.", files: map[string]string{"web/Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n"}},
		"Range": {
			why:   "Without a lock the newest in the range.",
			files: map[string]string{"web/Chart.yaml": chart("- {name: cache, version: 2.x, repository: OCI}\n- {name: lib, version: '>=0.1', repository: LIB}\n")},
			want:  []string{"cache 2.1.0", "lib 0.3.0"},
		},
		"Locked": {
			why: "The lock decides.",
			files: map[string]string{
				"web/Chart.yaml": chart("- {name: cache, version: 2.x, repository: OCI}\n"),
				"web/Chart.lock": replace.Replace("dependencies:\n- {name: cache, version: 2.0.0, repository: OCI}\n"),
			},
			want: []string{"cache 2.0.0"},
		},
		"OldLock": {
			why: "A lock out of date counts no more than for helm.",
			files: map[string]string{
				"web/Chart.yaml": chart("- {name: cache, version: ^2.1, repository: OCI}\n"),
				"web/Chart.lock": replace.Replace("dependencies:\n- {name: cache, version: 2.0.0, repository: OCI}\n"),
			},
			want: []string{"cache 2.1.0"},
		},
		"Helm2": {
			why: "Charts of apiVersion v1 name them in a file of their own.",
			files: map[string]string{
				"web/Chart.yaml":        "apiVersion: v1\nname: web\nversion: 1.0.0\n",
				"web/requirements.yaml": replace.Replace("dependencies: [{name: lib, version: 0.3.0, repository: LIB}]\n"),
			},
			want: []string{"lib 0.3.0"},
		},
		"Bundled": {
			why: "What is in charts/ already is not asked for.",
			files: map[string]string{
				"web/Chart.yaml":              chart("- {name: cache, version: 9.9.9, repository: 'https://127.0.0.1:1'}\n- {name: sub, version: 1.0.0, repository: ''}\n"),
				"web/charts/cache-9.9.9.tgz":  string(pack(t, "cache", "9.9.9")),
				"web/charts/other/Chart.yaml": "apiVersion: v2\nname: sub\nversion: 1.0.0\n",
			},
		},
		"Beside": {
			why: "A folder beside the chart.",
			files: map[string]string{
				"web/Chart.yaml": chart("- {name: lib, version: 1.0.0, repository: 'file://../lib'}\n"), "lib/Chart.yaml": "apiVersion: v2\nname: lib\nversion: 1.0.0\n",
			},
			want: []string{"lib 1.0.0"},
		},
		"Aliases": {
			why:   "One chart under two names is brought once.",
			files: map[string]string{"web/Chart.yaml": chart("- {name: cache, alias: a, version: 2.1.0, repository: OCI}\n- {name: cache, alias: b, version: 2.1.0, repository: OCI}\n")},
			want:  []string{"cache 2.1.0"},
		},
		"TwoVersions": {
			why:   "In two versions it is two charts with one name.",
			files: map[string]string{"web/Chart.yaml": chart("- {name: cache, alias: a, version: 2.1.0, repository: OCI}\n- {name: cache, alias: b, version: 2.0.0, repository: OCI}\n")},
			fails: "depends on two versions of cache",
		},
		"Missing":  {why: "The dependency has no repository.", files: map[string]string{"web/Chart.yaml": chart("- {name: lib, version: 1.0.0}\n")}, fails: "it names no repository"},
		"Alias":    {why: "The name is known only in the local helm configuration of the author.", files: map[string]string{"web/Chart.yaml": chart("- {name: lib, version: 1.0.0, repository: '@stable'}\n")}, fails: "a name of a local helm configuration"},
		"Name":     {why: "The name of the dependency would be a path.", files: map[string]string{"web/Chart.yaml": chart("- {name: ../../x, version: 1.0.0, repository: OCI}\n")}, fails: "is no name for a chart"},
		"Deeper":   {why: "One level, as helm dependency build.", files: map[string]string{"web/Chart.yaml": chart("- {name: hungry, version: 1.0.0, repository: OCI}\n")}, fails: "its own dependency more is not in it"},
		"OtherOne": {why: "The folder beside is another chart.", files: map[string]string{"web/Chart.yaml": chart("- {name: lib, version: ^2, repository: 'file://../lib'}\n"), "lib/Chart.yaml": "apiVersion: v2\nname: lib\nversion: 1.0.0\n"}, fails: "it contains lib 1.0.0"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Log(tc.why)
			dir := t.TempDir()
			for file, data := range tc.files {
				writeFile(t, filepath.Join(dir, file), []byte(data))
			}
			got, err := client(t, oci, func(o *chartsource.Options) { o.Root = dir }).Resolve(t.Context(), chartsource.Wanted{Chart: filepath.Join(dir, "web")})
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Errorf("error %v; want %q", err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var brought []string
			for _, d := range got.Source.Dependencies {
				brought = append(brought, d.Name+" "+d.Version)
			}
			if diff := cmp.Diff(tc.want, brought); diff != "" {
				t.Errorf("brought (-want +got):\n%s", diff)
			}
			if got.Source.URL != "file:web" {
				t.Errorf("the source is %s", got.Source.URL)
			}
		})
	}
}

// TestPinnedDependencies holds that a chart is fetched with the dependencies that
// were reviewed, whatever is newer, and with no others.
func TestPinnedDependencies(t *testing.T) {
	t.Parallel()
	s := ociServer(t)
	s.push(t, "cache", "2.0.0", pack(t, "cache", "2.0.0"))
	s.push(t, "web", "1.0.0", pack(t, "web", "1.0.0", "Chart.yaml",
		"apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies: [{name: cache, version: 2.x, repository: 'oci://"+s.host+"'}]\n"))
	first, err := client(t, s).Resolve(t.Context(), chartsource.Wanted{Chart: "oci://" + s.host + "/web"})
	if err != nil {
		t.Fatal(err)
	}
	s.push(t, "cache", "2.9.0", pack(t, "cache", "2.9.0"))
	second, err := client(t, s).Fetch(t.Context(), first.Source)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
	unpinned := first.Source
	unpinned.Dependencies = []v1alpha1.ChartDependency{{URL: "oci://" + s.host + "/other", Name: "other", Version: "1.0.0", Digest: first.Source.Digest}}
	if _, err := client(t, s).Fetch(t.Context(), unpinned); err == nil || !strings.Contains(err.Error(), "chart.yaml does not pin it") {
		t.Errorf("error %v", err)
	}
}

// TestLocal brings charts from the disk.
func TestLocal(t *testing.T) {
	t.Parallel()
	s := ociServer(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "web/Chart.yaml"), []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n"))
	writeFile(t, filepath.Join(dir, "web/.git/config"), []byte("x"))
	writeFile(t, filepath.Join(dir, "web-1.0.0.tgz"), pack(t, "web", "1.0.0"))
	writeFile(t, filepath.Join(dir, "linked/Chart.yaml"), []byte("apiVersion: v2\nname: linked\nversion: 1.0.0\n"))
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "linked/values.yaml")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "climbing/Chart.yaml"), []byte("apiVersion: v2\nname: ../climbing\nversion: 1.0.0\n"))

	folder, err := client(t, s).Resolve(t.Context(), chartsource.Wanted{Chart: filepath.Join(dir, "web")})
	if err != nil {
		t.Fatal(err)
	}
	if len(folder.Files) != 1 || folder.Archive != nil || folder.Source.URL != "file:web" || folder.CanPack() == nil {
		t.Errorf("a folder is its files, and can't be kept packed: %+v", folder.Source)
	}
	packed, err := client(t, s).Resolve(t.Context(), chartsource.Wanted{Chart: filepath.Join(dir, "web-1.0.0.tgz")})
	if err != nil {
		t.Fatal(err)
	}
	if packed.Source.Digest != archive.Digest(packed.Archive) || packed.Source.URL != "file:web-1.0.0.tgz" || packed.CanPack() != nil {
		t.Errorf("a .tgz is pinned by its digest: %+v", packed.Source)
	}
	for name, fails := range map[string]string{"linked": "values.yaml is no plain file", "climbing": "is no name for a chart"} {
		if _, err := client(t, s).Resolve(t.Context(), chartsource.Wanted{Chart: filepath.Join(dir, name)}); err == nil || !strings.Contains(err.Error(), fails) {
			t.Errorf("%s: error %v; want %q", name, err, fails)
		}
	}
	if _, err := client(t, s).Resolve(t.Context(), chartsource.Wanted{Chart: dir, Version: "1"}); err == nil || !strings.Contains(err.Error(), "leave --version out") {
		t.Errorf("error %v", err)
	}
	if _, err := client(t, s).Fetch(t.Context(), folder.Source); err == nil || !strings.Contains(err.Error(), "bring it again") {
		t.Errorf("error %v", err)
	}
}
