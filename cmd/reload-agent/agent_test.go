package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keelson-io/keelson/api/reload"
)

// The program is told once of each version, and only when the files have it.
func TestServeHTTP(t *testing.T) {
	t.Parallel()
	dir, told := t.TempDir(), 0
	var fails error
	a := &agent{directory: dir, log: &bytes.Buffer{}, tell: func(context.Context) error {
		told++
		return fails
	}}
	ask := func(version string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/reload", nil)
		r.Header.Set(reload.HeaderVersion, version)
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		return w.Code, w.Header().Get(reload.HeaderVersion)
	}
	write := func(version string) {
		if err := os.WriteFile(filepath.Join(dir, reload.VersionFile), []byte(version), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		why     string
		do      func()
		ask     string
		code    int
		version string
		told    int
	}{
		{"There are no files yet.", func() {}, "a", http.StatusServiceUnavailable, "", 0},
		{"The files are older than the request.", func() { write("a\n") }, "b", http.StatusConflict, "a", 0},
		{"A request without a version asks for nothing.", func() {}, "", http.StatusConflict, "a", 0},
		{"The files have come.", func() { write("b") }, "b", http.StatusOK, "b", 1},
		{"The same version again.", func() {}, "b", http.StatusOK, "b", 1},
		{"The program refuses.", func() { write("c"); fails = errors.New("refused") }, "c", http.StatusBadGateway, "c", 2},
		{"It is told again until it accepts.", func() { fails = nil }, "c", http.StatusOK, "c", 3},
		{"A way back is a version like any other.", func() { write("b") }, "b", http.StatusOK, "b", 4},
		{"A version that would break the header.", func() { write("b\r\nx: y") }, "b", http.StatusServiceUnavailable, "", 4},
	} {
		c.do()
		if code, version := ask(c.ask); code != c.code || version != c.version || told != c.told {
			t.Errorf("%s got %d, version %q, told %d times", c.why, code, version, told)
		}
	}
}

// A request to the program goes to the pod itself, and its status is the answer.
func TestRequest(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"https://127.0.0.1/", "http://example.com/", "http://10.0.0.1/", "127.0.0.1:80", "http://169.254.169.254/"} {
		if _, err := newRequest(bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	code := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/-/reload" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		w.WriteHeader(code)
	}))
	defer server.Close()
	tell, err := newRequest(server.URL + "/-/reload")
	if err != nil {
		t.Fatal(err)
	}
	if err := tell(t.Context()); err != nil {
		t.Error(err)
	}
	code = http.StatusInternalServerError
	if err := tell(t.Context()); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("a refusal is %v", err)
	}
}

// A signal reaches the process with the name, and an absent process is an error.
func TestSignal(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "reload-me")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	if err := sendSignal("reload-me", syscall.SIGHUP); err == nil || !strings.Contains(err.Error(), "shareProcessNamespace") {
		t.Errorf("an absent process is %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, program, "-test.run=^TestChild$")
	child.Env = append(os.Environ(), "RELOAD_AGENT_CHILD=1")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, 1)
	if _, err := out.Read(ready); err != nil {
		t.Fatal(err)
	}
	if err := sendSignal("reload-me", syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err != nil {
		t.Errorf("the process got no signal: %v", err)
	}
}

// What can't be followed is refused at the start.
func TestFlags(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"one of --signal and --url": {"--directory=/etc/app"},
		"one of":                    {"--directory=/etc/app", "--signal=HUP", "--url=http://127.0.0.1/"},
		"needs --process":           {"--directory=/etc/app", "--signal=HUP"},
		"is not known":              {"--directory=/etc/app", "--signal=KILL", "--process=x"},
		"--directory is missing":    {"--signal=SIGHUP", "--process=x"},
		"flags":                     {"--directories=/etc/app"},
	} {
		if err := run(t.Context(), args, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
