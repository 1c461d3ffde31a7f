package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keelson-io/keelson/api/reload"
)

// The program is told once of each version, and only when the files have it.
func TestServeHTTP(t *testing.T) {
	t.Parallel()
	dir, told := t.TempDir(), 0
	var fails error
	a := &agent{directories: []string{dir}, log: &bytes.Buffer{}, tell: func(context.Context) error {
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

// newAgent returns an agent of new directories, and what writes files as a kubelet does.
func newAgent(t *testing.T, directories int, tell func(context.Context) error) (a *agent, write func(directory int, folder, version string)) {
	t.Helper()
	a = &agent{log: io.Discard, tell: tell}
	for range directories {
		a.directories = append(a.directories, t.TempDir())
	}
	return a, func(directory int, folder, version string) {
		t.Helper()
		at := a.directories[directory]
		_ = os.Remove(filepath.Join(at, "..data"))
		_ = os.Symlink(filepath.Join("..data", reload.VersionFile), filepath.Join(at, reload.VersionFile))
		if err := errors.Join(os.Mkdir(filepath.Join(at, folder), 0o700), os.WriteFile(filepath.Join(at, folder, reload.VersionFile), []byte(version), 0o600), os.Symlink(folder, filepath.Join(at, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
}

// request sends a request with a version to an agent, and returns the status and the version of the answer.
func request(t *testing.T, a *agent, version string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/reload", nil)
	r.Header.Set(reload.HeaderVersion, version)
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Code, w.Header().Get(reload.HeaderVersion)
}

// A kubelet writes one volume after the other. A program that is told between the two keeps old files, and
// the batch goes on.
func TestSeveralDirectories(t *testing.T) {
	t.Parallel()
	told := 0
	a, write := newAgent(t, 2, func(context.Context) error { told++; return nil })
	write(0, "..1", "b")
	write(1, "..1", "a")
	if code, version := request(t, a, "b"); code != http.StatusConflict || version != "a" || told != 0 {
		t.Errorf("%d %s, told %d times with old files", code, version, told)
	}
	write(1, "..2", "b")
	if code, version := request(t, a, "b"); code != http.StatusOK || version != "b" || told != 1 {
		t.Errorf("%d %s, told %d times", code, version, told)
	}
}

// A version can go and come back between two requests. A program that started in that time runs the other
// version, and must be told again.
func TestVersionComesBack(t *testing.T) {
	t.Parallel()
	told := 0
	a, write := newAgent(t, 1, func(context.Context) error { told++; return nil })
	for i, version := range []string{"b", "a", "b"} {
		write(0, fmt.Sprintf("..%d", i), version)
		if version == "b" {
			request(t, a, version)
		}
	}
	if told != 2 {
		t.Errorf("told %d times", told)
	}
}

// A program that was not reached refuses nothing: without a version in the answer, the controller asks again
// until its time is over.
func TestNotReached(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	tell, err := newRequest(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for why, tell := range map[string]func(context.Context) error{"no server": tell, "no process": func(context.Context) error { return sendSignal("no-such-process", syscall.SIGHUP) }} {
		a, write := newAgent(t, 1, tell)
		write(0, "..1", "b")
		if code, version := request(t, a, "b"); code != http.StatusServiceUnavailable || version != "" {
			t.Errorf("%s: %d, version %q", why, code, version)
		}
	}
}

// A program can need longer than one request of the controller. It gets one message, whichever client goes,
// and a later request has the answer.
func TestSlowProgram(t *testing.T) {
	t.Parallel()
	a, write := newAgent(t, 1, nil)
	write(0, "..1", "b")
	synctest.Test(t, func(t *testing.T) {
		told := 0
		a.tell = func(ctx context.Context) error {
			told++
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Second):
				return nil
			}
		}
		for i := range 3 {
			code, version := request(t, a, "b")
			if want := i == 2; (code == http.StatusOK) != want || (version == "b") != want {
				t.Errorf("request %d: %d, version %q", i, code, version)
			}
		}
		if told != 1 {
			t.Errorf("told %d times", told)
		}
	})
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

// Clients that connect and send nothing take no more memory than a bound, and they end soon: the next request
// is answered.
func TestIdleClients(t *testing.T) {
	t.Parallel()
	a, write := newAgent(t, 1, func(context.Context) error { return nil })
	write(0, "..1", "b")
	log := make(logTo, 10)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, "127.0.0.1:0", a, log) }()
	_, address, _ := strings.Cut(strings.TrimSpace(<-log), "takes requests on ")
	before := runtime.NumGoroutine()
	const clients = maxConnections + 150
	for range clients {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	if more := runtime.NumGoroutine() - before; more > maxConnections+100 { // other tests run beside this one
		t.Errorf("%d connections have %d goroutines", clients, more)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/reload", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(reload.HeaderVersion, "b")
	answer, err := (&http.Client{Timeout: time.Minute}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
		t.Error(answer.StatusCode, err)
	}
	stop()
	if err := <-served; err != nil && !errors.Is(err, context.DeadlineExceeded) { // idle clients are still there
		t.Error(err)
	}
}

// logTo is a log that sends its lines.
type logTo chan string

func (l logTo) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}
