// Package gitea runs a Gitea on loopback, with its data in a folder. Gitea is a forge
// with repositories, pull requests and webhooks.
package gitea

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/ports"
	"github.com/keelson-io/keelson/lab/process"
)

// startTime is how long Gitea may take until it answers. It usually takes 2 s.
const startTime = time.Minute

// config is the template of app.ini. Gitea works offline without an installation dialog,
// and may send webhooks to loopback.
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

// Server is a running Gitea.
type Server struct {
	// URL is the URL of the server, without a trailing slash.
	URL string

	binary, folder string
	child          *process.Child
}

// Start starts a Gitea and waits until it answers. The folder for its data must exist.
// The error wraps [binaries.ErrMissing] if Gitea isn't built.
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

// Stop ends the server. If it doesn't end within 10 s, Stop kills it and returns an error.
func (s *Server) Stop() error { return s.child.Stop(10 * time.Second) }

// Until calls check every 50 ms until check returns nil, at most for limit and only while
// Gitea runs. Tests need it because Gitea's API reports a push with a short delay.
func (s *Server) Until(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	return s.child.Until(ctx, limit, 50*time.Millisecond, check)
}

// run runs a command of Gitea and returns the last line of its output.
func (s *Server) run(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, s.binary, append([]string{"--config", s.config(), "--work-path", s.folder}, args...)...)
	out, err := c.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil {
		return "", fmt.Errorf("gitea %s: %w: %s", args[0], err, out)
	}
	return lines[len(lines)-1], nil
}

// User creates an account and returns a token with all rights of the account.
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

// API is a client of Gitea's API with a token.
type API struct {
	url, token string
}

// As returns a client for a token. With an empty token, requests are anonymous.
func (s *Server) As(token string) API { return API{url: s.URL + "/api/v1/", token: token} }

// Call makes a request to a path below /api/v1/. It sends body as JSON, unless body is nil,
// and decodes the JSON response into answer, unless answer is nil. A status other than
// 2xx is an error.
func (a API) Call(ctx context.Context, method, path string, body, answer any) error {
	var data []byte
	var err error
	if body != nil {
		data, err = json.Marshal(body)
	}
	req, bad := http.NewRequestWithContext(ctx, method, a.url+path, bytes.NewReader(data))
	if err = errors.Join(err, bad); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if a.token != "" {
		req.Header.Set("Authorization", "token "+a.token)
	}
	data, err = harness.Do(req)
	if err != nil || answer == nil {
		return err
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// Remote returns the clone URL of a repository, with the token as password.
func (s *Server) Remote(token, repository string) string {
	return strings.Replace(s.URL, "http://", "http://lab:"+token+"@", 1) + "/" + repository + ".git"
}

// module returns the folder of Gitea's Go module. Gitea reads its templates and
// translations from this folder.
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
