package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
)

// headerVersion and versionFile are Keelson's protocol of a reload: see its package api/reload.
const (
	headerVersion = "Keelson-Configuration-Version"
	versionFile   = ".keelson-version"
)

// configuration is a folder of files, of which the program has read one version.
type configuration struct {
	folder string
	text   atomic.Value // the content of the file version
	broken atomic.Bool  // the last signal met files that can't be used
}

// errBroken is the error for files that can't be used.
var errBroken = errors.New("the configuration is broken")

// read reads the files. It keeps the last text if the new one can't be used. It returns the version of
// the files that it has read.
func (c *configuration) read() (version string, err error) {
	is, err := os.ReadFile(filepath.Join(c.folder, versionFile))
	if err != nil {
		return "", fmt.Errorf("read the version: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(c.folder, "version"))
	if err != nil {
		return "", fmt.Errorf("read the configuration: %w", err)
	}
	version = strings.TrimSpace(string(is))
	if strings.TrimSpace(string(text)) == "broken" {
		return version, errBroken
	}
	c.text.Store(strings.TrimSpace(string(text)))
	return version, nil
}

// reload answers a request to read the files again.
func (c *configuration) reload(w http.ResponseWriter, _ *http.Request) {
	version, err := c.read()
	if version != "" {
		w.Header().Set(headerVersion, version)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	}
}

// serveConfigured answers with the text of the configuration. A signal that meets a broken one makes it
// unhealthy until the next signal, because a signal has no answer.
func serveConfigured(ctx context.Context) (code int, err error) {
	c := &configuration{folder: os.Getenv("CONFIGURATION")}
	if _, err := c.read(); err != nil {
		return 1, err
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	go func() {
		for range again {
			_, err := c.read()
			c.broken.Store(err != nil)
		}
	}()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if c.broken.Load() {
			http.Error(w, errBroken.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("POST /reload", c.reload)
	return listen(ctx, mux, func() string {
		text, _ := c.text.Load().(string)
		return text
	})
}
