// Package prometheus runs a Prometheus on loopback that scrapes one target.
package prometheus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/ports"
	"github.com/keelson-io/keelson/lab/process"
)

// startTime is how long Prometheus may take until it is ready. It usually takes 1 s.
const startTime = time.Minute

// Server is a running Prometheus.
type Server struct {
	// URL is the URL of the server, without a trailing slash.
	URL string

	child *process.Child
}

// Start starts the program binary and waits until it is ready. The folder for its data
// must not exist. Prometheus scrapes target (HOST:PORT) every second.
func Start(ctx context.Context, binary, folder, target string) (*Server, error) {
	config := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: lab\n  static_configs: [{targets: [%q]}]\n", target)
	path := filepath.Join(folder, "config.yaml")
	err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(path, []byte(config), 0o600))
	if err != nil {
		return nil, fmt.Errorf("start prometheus: %w", err)
	}
	port, err := ports.Reserve(ctx, folder, 1)
	if err != nil {
		return nil, fmt.Errorf("start prometheus: %w", err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port[0])
	s := &Server{URL: "http://" + address}
	if s.child, err = process.StartChild(process.Spec{
		Path: binary, Log: filepath.Join(folder, "prometheus.log"),
		Args: []string{"--config.file", path, "--storage.tsdb.path", filepath.Join(folder, "data"), "--web.listen-address", address},
	}, nil); err != nil {
		return nil, err
	}
	if err := s.child.Until(ctx, startTime, 50*time.Millisecond, s.ready); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Server) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/-/ready", nil)
	if err != nil {
		return fmt.Errorf("ask prometheus: %w", err)
	}
	_, err = harness.Do(req)
	return err
}

// Stop ends the server. If it doesn't end within 30 s, Stop kills it and returns an error.
func (s *Server) Stop() error { return s.child.Stop(30 * time.Second) }
