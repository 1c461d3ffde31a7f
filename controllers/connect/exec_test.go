package connect_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/connect"
)

// program writes a credential plugin that leaves a trace when it is run.
func program(t *testing.T, dir, name string) (path, trace string) {
	t.Helper()
	path, trace = filepath.Join(dir, name), filepath.Join(dir, name+".was-run")
	script := "#!/bin/sh\n: > " + trace + "\n" +
		`echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"` + token + `"}}'` + "\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil { //nolint:gosec // it has to be run
		t.Fatal(err)
	}
	return path, trace
}

// TestExec shows that a program of a kubeconfig runs when it was named, and
// then alone: by request, not by what a configuration looks like.
func TestExec(t *testing.T) { //nolint:paralleltest // it sets PATH
	dir, elsewhere := t.TempDir(), t.TempDir()
	path, trace := program(t, dir, "login")
	other, otherTrace := program(t, elsewhere, "login")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var authorized int
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer "+token {
			authorized++
		}
		fmt.Fprint(w, `{"gitVersion":"v1.36.0"}`)
	}))
	defer api.Close()
	cases := map[string]struct {
		why, command string
		allow        []string
		wantErr      string // "": it runs
	}{
		"Nothing":       {why: "A kubeconfig is passed around.", command: path, wantErr: "give --allow-exec " + path},
		"ByName":        {why: "The ordinary case.", command: "login", allow: []string{"login"}},
		"ByPath":        {why: "The exact command.", command: path, allow: []string{path}},
		"NameOfPath":    {why: "What PATH finds under the name is the program.", command: path, allow: []string{"login"}},
		"PathOfName":    {why: "The other way around.", command: "login", allow: []string{path}},
		"OtherOfName":   {why: "The same name at another place is another program.", command: other, allow: []string{"login"}, wantErr: "would run the program"},
		"OtherProgram":  {why: "One that is allowed is no reason for another.", command: path, allow: []string{"aws", "kubelogin"}, wantErr: "context prod of the kubeconfig: user keelson would run the program"},
		"PrefixOfName":  {why: "Names are compared as a whole.", command: "login", allow: []string{"log", dir}, wantErr: "not allowed"},
		"NotNormalized": {why: "Another way to write the same path.", command: dir + "/../" + filepath.Base(dir) + "/login", allow: []string{path}},
	}
	for name, c := range cases { //nolint:paralleltest // one trace
		t.Run(name, func(t *testing.T) {
			authorized = 0
			for _, file := range []string{trace, otherTrace} {
				if err := os.RemoveAll(file); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(t.TempDir(), "kubeconfig")
			content := kubeconfig(fmt.Sprintf(`{server: %q, insecure-skip-tls-verify: true}`, api.URL),
				fmt.Sprintf(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: Never}}`, c.command))
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			s := connect.Source{Kubeconfig: file, AllowExec: c.allow}
			_, hubErr := s.Hub()
			config, err := s.Config(t.Context(), v1alpha1.Connection{Context: "prod"})
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) || hubErr == nil || !strings.Contains(hubErr.Error(), c.wantErr) {
					t.Fatalf("%s\ngot %v and for the hub %v, want an error that says %q", c.why, err, hubErr, c.wantErr)
				}
			} else {
				if err != nil || hubErr != nil {
					t.Fatalf("%s\nrefused: %v; hub: %v", c.why, err, hubErr)
				}
				client, err := discovery.NewDiscoveryClientForConfig(config)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := client.ServerVersionWithContext(t.Context()); err != nil || authorized != 1 {
					t.Fatalf("%s\n%d authorized requests, error %v", c.why, authorized, err)
				}
			}
			if _, err := os.Stat(trace); (err == nil) != (c.wantErr == "") {
				t.Errorf("%s\nthe program was run: %t", c.why, err == nil)
			}
			if _, err := os.Stat(otherTrace); err == nil {
				t.Errorf("%s\nthe other program was run", c.why)
			}
		})
	}
}

// The settings themselves carry the policy, so that client-go holds to it, too,
// whatever becomes of them.
func TestExecPolicyIsClientGos(t *testing.T) {
	t.Parallel()
	path, trace := program(t, t.TempDir(), "login")
	file := filepath.Join(t.TempDir(), "kubeconfig")
	content := kubeconfig(`{server: "https://127.0.0.1:1"}`, fmt.Sprintf(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: Never}}`, path))
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := connect.Source{Kubeconfig: file, AllowExec: []string{path}}.Config(t.Context(), v1alpha1.Connection{Context: "prod"})
	if err != nil {
		t.Fatal(err)
	}
	other, otherTrace := program(t, t.TempDir(), "other")
	config.ExecProvider.Command = other
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.ServerVersionWithContext(t.Context()); err == nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("got %v", err)
	}
	for _, file := range []string{trace, otherTrace} {
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s was run", file)
		}
	}
}

func TestAuthProvider(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig(`{server: "https://prod.example"}`, `{auth-provider: {name: oidc, config: {id-token: `+token+`}}}`)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := connect.Source{Kubeconfig: file, AllowExec: []string{"oidc"}}.Config(t.Context(), v1alpha1.Connection{Context: "prod"})
	if err == nil || !strings.Contains(err.Error(), `context prod of the kubeconfig: user keelson uses the auth-provider "oidc"`) || strings.Contains(err.Error(), token) {
		t.Errorf("got %v", err)
	}
}
