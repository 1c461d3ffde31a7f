package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/keelson-io/keelson/api/reload"
)

const (
	// answerTimeout bounds the answer to a request. It is shorter than the workload controller waits.
	answerTimeout = 4 * time.Second
	// tellTimeout bounds a request to the program, which may need longer than one answer.
	tellTimeout = time.Minute
	// maxVersion bounds the file with the version.
	maxVersion = 128
)

// errNotReached is the error if the program got nothing: it may be starting, and is told again.
var errNotReached = errors.New("the program was not reached")

// agent answers reload requests.
type agent struct {
	directories []string
	tell        func(context.Context) error
	log         io.Writer

	mu      sync.Mutex
	told    string // the files of which the program has been told
	running *telling
}

// telling is one message to the program.
type telling struct {
	files string
	done  chan struct{} // closed after err is set
	err   error
}

// ServeHTTP tells the program if the files have the version of the request, and answers with the version
// of the files. Files are told once, however often they are asked for. An answer without a version says that
// the program has not reloaded yet.
func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	want := r.Header.Get(reload.HeaderVersion)
	is, files, err := a.read(want)
	switch {
	case err != nil:
		fmt.Fprintln(a.log, "reload-agent:", err)
		http.Error(w, "the version of the files can't be read", http.StatusServiceUnavailable)
		return
	case want != is:
		w.Header().Set(reload.HeaderVersion, is)
		http.Error(w, "the files have another version", http.StatusConflict)
		return
	}
	t := a.begin(r.Context(), is, files)
	select {
	case <-t.done:
	case <-r.Context().Done():
	case <-time.After(answerTimeout):
	}
	select {
	case <-t.done:
		err = t.err
	default:
		err = errNotReached
	}
	switch {
	case t.files != files || errors.Is(err, errNotReached):
		http.Error(w, "the program has not reloaded yet", http.StatusServiceUnavailable)
	case err != nil:
		w.Header().Set(reload.HeaderVersion, is)
		http.Error(w, "the program has not reloaded", http.StatusBadGateway)
	default:
		w.Header().Set(reload.HeaderVersion, is)
	}
}

// begin tells the program of files, unless it was told of them or is being told. The program gets one message
// at a time, and a client that goes does not end it.
func (a *agent) begin(ctx context.Context, version, files string) *telling {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := &telling{files: files, done: make(chan struct{})}
	switch {
	case a.running != nil:
		return a.running
	case a.told == files:
		close(t.done)
		return t
	}
	a.running = t
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTimeout)
		defer cancel()
		err := a.tell(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		defer close(t.done)
		a.running, t.err = nil, err
		if err != nil {
			fmt.Fprintf(a.log, "reload-agent: version %s: %v\n", version, err)
			return
		}
		a.told = files
		fmt.Fprintf(a.log, "reload-agent: version %s: the program was told\n", version)
	}()
	return t
}

// read returns the version of the files, and what identifies them: the version can come back, and the
// program may have read the files between. If a directory has another version than the wanted one, that is
// the version of all.
func (a *agent) read(want string) (version, files string, err error) {
	version = want
	for _, directory := range a.directories {
		// The kubelet writes files into a new folder, and moves this link to it.
		link, _ := os.Readlink(filepath.Join(directory, "..data"))
		is, err := versionIn(directory)
		if err != nil {
			return "", "", err
		}
		if is != want {
			version = is
		}
		files += fmt.Sprintf("%s %q\n", is, link)
	}
	return version, files, nil
}

func versionIn(directory string) (string, error) {
	file, err := os.Open(filepath.Join(directory, reload.VersionFile))
	if err != nil {
		return "", fmt.Errorf("the version of the files: %w", err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxVersion))
	if err != nil {
		return "", fmt.Errorf("the version of the files: %w", err)
	}
	is := strings.TrimSpace(string(text))
	if is == "" || strings.ContainsFunc(is, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", errors.New("the version of the files is no text of one line")
	}
	return is, nil
}

// newRequest returns what sends a POST request to an address of the pod itself. An answer of 2xx says that
// the program has reloaded.
func newRequest(target string) (func(context.Context) error, error) {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "http" {
		return nil, fmt.Errorf("--url %s is no http URL", target)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("--url %s is not of this pod: use 127.0.0.1", target)
	}
	client := &http.Client{
		Timeout:       tellTimeout,
		Transport:     &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil)
		if err != nil {
			return fmt.Errorf("POST %s: %w", target, err)
		}
		response, err := client.Do(request) //nolint:gosec // the URL is a flag, of a loopback address
		if err != nil {
			return fmt.Errorf("POST %s: %w: %w", target, errNotReached, err)
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusMultipleChoices {
			return fmt.Errorf("POST %s: status %d", target, response.StatusCode)
		}
		return nil
	}, nil
}

// sandbox is the process that holds the namespaces of a pod with shareProcessNamespace. A signal would end
// the pod.
const sandbox = 1

// sendSignal sends a signal to the processes with a name, but not to their children of the same name: those
// are workers of theirs.
func sendSignal(name string, number syscall.Signal) error {
	all, err := procfs.AllProcs()
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	parents := map[int]int{}
	for _, p := range all {
		stat, err := p.Stat()
		if err == nil && p.PID != os.Getpid() && p.PID != sandbox && isNamed(p, stat, name) { // an error means that it has ended
			parents[p.PID] = stat.PPID
		}
	}
	sent := 0
	for pid, parent := range parents {
		if _, worker := parents[parent]; worker {
			continue
		}
		if err := syscall.Kill(pid, number); err != nil {
			return fmt.Errorf("send %s to process %d (%s): %w: the agent needs the user of the program", number, pid, name, err)
		}
		sent++
	}
	if sent == 0 {
		return fmt.Errorf("no process is named %s: the pod needs shareProcessNamespace: true: %w", name, errNotReached)
	}
	return nil
}

// isNamed reports whether a process has a name: that of its program, or the one that it gives itself.
func isNamed(p procfs.Proc, stat procfs.ProcStat, name string) bool {
	if stat.State == "Z" {
		return false
	}
	line, err := p.CmdLine()
	return stat.Comm == name || err == nil && len(line) > 0 && filepath.Base(line[0]) == name
}
