package gittest

import (
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Server serves a repository over HTTP with git's own server, so that the
// protocol is tested and not our idea of it. It can be stopped and started.
type Server struct {
	*httptest.Server
	mu sync.Mutex
	// Down makes every request fail. A request waits while Stall is set and open. Password is what
	// requests must have; see Set.
	Down     bool
	Stall    chan struct{}
	Password string
	requests int
}

// Serve serves a repository until the test ends.
func Serve(t *testing.T, g *Repo) *Server {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs the git binary for its HTTP server")
	}
	backend := &cgi.Handler{
		Path: git, Args: []string{"http-backend"},
		Env: []string{
			"GIT_PROJECT_ROOT=" + filepath.Dir(g.Path), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		},
	}
	s := &Server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		down, stall, password := s.Down, s.Stall, s.Password
		s.requests++
		s.mu.Unlock()
		if stall != nil {
			select {
			case <-stall:
			case <-r.Context().Done():
			}
			return
		}
		if _, got, _ := r.BasicAuth(); got != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		if down {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// RepoURL returns the URL of the repository.
func (s *Server) RepoURL() string { return s.URL + "/fleet.git" }

// Set changes the fields of the server.
func (s *Server) Set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// Requests returns the number of requests so far.
func (s *Server) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}
