// Package gitserver serves repositories over HTTP on loopback, as a forge does. It uses
// git's own server, so that clones, fetches and pushes are real. The package needs git.
package gitserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Server serves the repositories of a folder for reading and writing, without
// authentication.
type Server struct {
	// Address is HOST:PORT.
	Address string

	http *http.Server
}

// Start serves the repositories below a folder at an address (HOST:PORT). If address is
// empty, Start chooses a free port on 127.0.0.1.
func Start(ctx context.Context, folder, address string) (*Server, error) {
	path, err := exec.CommandContext(ctx, "git", "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("find git's server: %w", err)
	}
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", folder, err)
	}
	s := &Server{Address: listener.Addr().String(), http: &http.Server{
		Handler: &cgi.Handler{
			Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"),
			Env: []string{
				"GIT_PROJECT_ROOT=" + folder, "GIT_HTTP_EXPORT_ALL=1",
				"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.receivepack", "GIT_CONFIG_VALUE_0=true",
			},
		},
		ReadHeaderTimeout: 10 * time.Second,
	}}
	go func() { _ = s.http.Serve(listener) }() // ends with Stop
	return s, nil
}

// URL returns the URL of a repository, such as fleet.git.
func (s *Server) URL(repository string) string { return "http://" + s.Address + "/" + repository }

// Stop ends the server. Requests in progress fail.
func (s *Server) Stop() error {
	if err := s.http.Close(); err != nil {
		return fmt.Errorf("stop the git server: %w", err)
	}
	return nil
}
