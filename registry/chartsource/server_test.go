package chartsource_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/keelson-io/keelson/registry/archive"
	"github.com/keelson-io/keelson/registry/chartsource"
)

// pack makes the .tgz of a chart; more are further files, name and content in turn.
func pack(t testing.TB, name, version string, more ...string) []byte {
	t.Helper()
	files := append([]string{
		"Chart.yaml", fmt.Sprintf("apiVersion: v2\nname: %s\nversion: %s\n", name, version),
		"templates/config.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n",
	}, more...)
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	w := tar.NewWriter(zipped)
	written := map[string]bool{}
	for i := len(files) - 2; i >= 0; i -= 2 { // the last of a name counts
		if written[files[i]] {
			continue
		}
		written[files[i]] = true
		if err := w.WriteHeader(&tar.Header{Name: name + "/" + files[i], Mode: 0o644, Size: int64(len(files[i+1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// server is a real server on loopback, with TLS, and what it was asked.
type server struct {
	*httptest.Server
	host string

	mu       sync.Mutex
	requests []*http.Request
	// before answers a request in the place of the server, if it returns true.
	before func(http.ResponseWriter, *http.Request) bool
}

func serve(t testing.TB, h http.Handler) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Clone(r.Context()))
		before := s.before
		s.mu.Unlock()
		if before != nil && before(w, r) {
			return
		}
		h.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that give up
	t.Cleanup(s.Close)
	s.host = strings.TrimPrefix(s.URL, "https://")
	return s
}

func (s *server) tamper(before func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

// sent tells whether credentials came with a request.
func (s *server) sent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.requests, func(r *http.Request) bool { return r.Header.Get("Authorization") != "" })
}

func (s *server) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// ociServer is an OCI registry.
func ociServer(t testing.TB) *server {
	t.Helper()
	return serve(t, registry.New(registry.Logger(log.New(io.Discard, "", 0))))
}

// push publishes a chart as helm push does.
func (s *server) push(t testing.TB, repository, tag string, tgz []byte) {
	t.Helper()
	s.pushManifest(t, repository, tag, map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": s.blob(t, repository, "application/vnd.cncf.helm.config.v1+json", []byte(`{}`)),
		"layers": []any{s.blob(t, repository, "application/vnd.cncf.helm.chart.content.v1.tar+gzip", tgz)},
	})
}

func (s *server) pushManifest(t testing.TB, repository, tag string, manifest map[string]any) {
	t.Helper()
	data, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	s.send(t, http.MethodPut, "/v2/"+repository+"/manifests/"+tag, "application/vnd.oci.image.manifest.v1+json", data)
}

func (s *server) blob(t testing.TB, repository, mediaType string, data []byte) map[string]any {
	t.Helper()
	digest := archive.Digest(data)
	s.send(t, http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+url.QueryEscape(digest), "application/octet-stream", data)
	return map[string]any{"mediaType": mediaType, "digest": digest, "size": len(data)}
}

func (s *server) send(t testing.TB, method, path, mediaType string, data []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", mediaType)
	answer, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		t.Fatalf("%s %s: %s", method, path, answer.Status)
	}
}

// chartServer is a chart repository: files by path.
func chartServer(t testing.TB, files map[string][]byte) *server {
	t.Helper()
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
}

// index is an index.yaml with one chart; versions are version and URL in turn.
func index(name string, versions ...string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nentries:\n  %q:\n", name)
	for i := 0; i < len(versions); i += 2 {
		fmt.Fprintf(&b, "  - {name: %q, version: %q, urls: [%q]}\n", name, versions[i], versions[i+1])
	}
	return []byte(b.String())
}

// client trusts the servers of a test.
func client(t testing.TB, s *server, change ...func(*chartsource.Options)) *chartsource.Client {
	t.Helper()
	o := chartsource.Options{Transport: s.Client().Transport, Root: t.TempDir(), UserAgent: "keelson/test"}
	for _, c := range change {
		c(&o)
	}
	c, err := chartsource.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// dockerConfig has credentials for some hosts.
func dockerConfig(t testing.TB, hosts ...string) func(*chartsource.Options) {
	t.Helper()
	auths := map[string]any{}
	for _, h := range hosts {
		auths[h] = map[string]string{"auth": "dXNlcjpodW50ZXIy"} // user:hunter2
	}
	data, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.json")
	writeFile(t, file, data)
	return func(o *chartsource.Options) { o.RegistryConfigs = []string{file} }
}

// helmRepositories has credentials for some chart repositories.
func helmRepositories(t testing.TB, urls ...string) func(*chartsource.Options) {
	t.Helper()
	var b strings.Builder
	b.WriteString("repositories:\n")
	for i, u := range urls {
		fmt.Fprintf(&b, "- {name: r%d, url: %q, username: user, password: hunter2, pass_credentials_all: true}\n", i, u)
	}
	file := filepath.Join(t.TempDir(), "repositories.yaml")
	writeFile(t, file, []byte(b.String()))
	return func(o *chartsource.Options) { o.RepositoryConfig = file }
}

// basic asks for credentials.
func basic(w http.ResponseWriter, r *http.Request) bool {
	if user, password, ok := r.BasicAuth(); ok && user == "user" && password == "hunter2" {
		return false
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="charts"`)
	http.Error(w, "who is it?", http.StatusUnauthorized)
	return true
}

// refuse is a network that is down, and to which only TLS is spoken.
type refuse struct{ t *testing.T }

func (r refuse) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.URL.Scheme != "https" {
		r.t.Errorf("a request for %s", q.URL)
	}
	return nil, errors.New("the network is down")
}
