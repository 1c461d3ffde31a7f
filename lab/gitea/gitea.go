// Package gitea runs a Gitea on loopback, with its data in a folder: a real forge,
// with repositories to push to, pull requests and webhooks.
package gitea

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/ports"
	"github.com/keelson-io/keelson/lab/process"
)

// startTime is what Gitea may take to answer; it takes two seconds.
const startTime = time.Minute

// config is that of a Gitea that asks nobody anything, and that may send webhooks to
// this machine.
const config = `RUN_MODE = prod
RUN_USER = %[1]s
WORK_PATH = %[2]s
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
[server]
PROTOCOL = http
HTTP_ADDR = 127.0.0.1
HTTP_PORT = %[3]s
ROOT_URL = http://127.0.0.1:%[3]s/
DISABLE_SSH = true
OFFLINE_MODE = true
STATIC_ROOT_PATH = %[4]s
[database]
DB_TYPE = sqlite3
PATH = %[2]s/gitea.db
[security]
INSTALL_LOCK = true
SECRET_KEY = lab
INTERNAL_TOKEN = lab
[service]
DISABLE_REGISTRATION = true
[webhook]
ALLOWED_HOST_LIST = loopback
[log]
MODE = console
LEVEL = warn
[indexer]
ISSUE_INDEXER_TYPE = db
[actions]
ENABLED = false
[packages]
ENABLED = false
`

// Server is a Gitea.
type Server struct {
	// URL of the server, without a slash at its end.
	URL string

	binary, folder string
	child          *process.Child
}

// Start starts a Gitea with its data in a folder, which must be there.
func Start(ctx context.Context, set binaries.Set, folder string) (*Server, error) {
	set, err := set.Forge()
	if err != nil {
		return nil, err
	}
	if err := set.Require(binaries.Gitea); err != nil {
		return nil, err
	}
	static, err := module(ctx, set)
	if err != nil {
		return nil, err
	}
	reserved, err := ports.Reserve(ctx, folder, 1)
	if err != nil {
		return nil, fmt.Errorf("start gitea: %w", err)
	}
	port := strconv.Itoa(reserved[0])
	me, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("who am I: %w", err)
	}
	s := &Server{URL: "http://127.0.0.1:" + port, binary: set.Path(binaries.Gitea), folder: folder}
	if err := os.WriteFile(s.config(), fmt.Appendf(nil, config, me.Username, folder, port, static), 0o600); err != nil {
		return nil, fmt.Errorf("start gitea: %w", err)
	}
	if _, err := s.run(ctx, "migrate"); err != nil {
		return nil, err
	}
	if s.child, err = process.StartChild(process.Spec{
		Path: s.binary, Args: []string{"--config", s.config(), "--work-path", folder, "web"}, Log: filepath.Join(folder, "gitea.log"),
	}, nil); err != nil {
		return nil, err
	}
	err = s.Until(ctx, startTime, func(ctx context.Context) error {
		return s.As("").Call(ctx, http.MethodGet, "version", nil, nil)
	})
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Server) config() string { return filepath.Join(s.folder, "app.ini") }

// Stop ends the server.
func (s *Server) Stop() error { return s.child.Stop(10 * time.Second) }

// Until asks again and again whether something is so, for as long as Gitea runs: what is
// pushed is known to its API some moments later.
func (s *Server) Until(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	return s.child.Until(ctx, limit, 50*time.Millisecond, check)
}

// run runs a command of Gitea, and returns the last line that it printed.
func (s *Server) run(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, s.binary, append([]string{"--config", s.config(), "--work-path", s.folder}, args...)...)
	out, err := c.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil {
		return "", fmt.Errorf("gitea %s: %w: %s", args[0], err, out)
	}
	return lines[len(lines)-1], nil
}

// User makes an account, and returns a token that may do all that it may.
func (s *Server) User(ctx context.Context, name string, admin bool) (token string, err error) {
	args := []string{
		"admin", "user", "create", "--username", name, "--email", name + "@lab.example", "--random-password",
		"--must-change-password=false",
	}
	if admin {
		args = append(args, "--admin")
	}
	if _, err := s.run(ctx, args...); err != nil {
		return "", err
	}
	return s.run(ctx, "admin", "user", "generate-access-token", "--username", name, "--token-name", "lab", "--scopes", "all", "--raw")
}

// API is Gitea's, for whoever has a token.
type API struct {
	url, token string
}

// As returns the API for a token; empty: for nobody in particular.
func (s *Server) As(token string) API { return API{url: s.URL + "/api/v1/", token: token} }

// Call asks at a path below /api/v1/. Body and answer are JSON; nil: there is none, or
// it does not matter.
func (a API) Call(ctx context.Context, method, path string, body, answer any) error {
	var send io.Reader = http.NoBody
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		send = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, send)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if a.token != "" {
		req.Header.Set("Authorization", "token "+a.token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, data)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// Remote is the URL of a repository with the login of whoever has the token.
func (s *Server) Remote(token, repository string) string {
	return strings.Replace(s.URL, "http://", "http://lab:"+token+"@", 1) + "/" + repository + ".git"
}

// module is the folder that Gitea was built from: its templates and translations are
// read there.
func module(ctx context.Context, set binaries.Set) (string, error) {
	c := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "code.gitea.io/gitea")
	c.Dir = filepath.Join(set.Modules, "gitea")
	c.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	out, err := c.Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		return "", fmt.Errorf("find the files of Gitea's module: %w", errors.Join(err, errors.New("it is not in the module cache: lab build --forge")))
	}
	return dir, nil
}
