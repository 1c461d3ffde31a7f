package connect_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/connect"
)

const token = "s3cr3t-t0k3n"

// kubeconfig has one context whose cluster and user hold the given fields.
func kubeconfig(cluster, user string) string {
	return `apiVersion: v1
kind: Config
current-context: prod
contexts:
- name: prod
  context: {cluster: prod, user: keelson}
clusters:
- name: prod
  cluster: ` + cluster + `
users:
- name: keelson
  user: ` + user + `
`
}

func secret(content string) connect.SecretReader {
	return func(context.Context, string, string) (map[string][]byte, error) {
		return map[string][]byte{"kubeconfig": []byte(content)}, nil
	}
}

func bySecret() v1alpha1.Connection {
	return v1alpha1.Connection{Secret: &v1alpha1.SecretKey{Name: "prod"}}
}

func TestConfigFromSecret(t *testing.T) {
	t.Parallel()
	const server = `{server: "https://prod.example:6443"}`
	cases := map[string]struct {
		why           string
		cluster, user string
		wantErr       string // "" : accepted
	}{
		"Token": {
			why:     "The ordinary case.",
			cluster: server, user: `{token: ` + token + `}`,
		},
		"Proxy": {
			why:     "Some clusters are only reached through one, and it sees TLS alone.",
			cluster: `{server: "https://prod.example:6443", proxy-url: "http://proxy.example:3128"}`, user: `{token: ` + token + `}`,
		},
		"Exec": {
			why:     "Who may write a Secret must not run programs on the hub.",
			cluster: server, user: `{exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, interactiveMode: Never}}`,
			wantErr: "uses exec",
		},
		"AuthProvider": {
			why:     "Providers read files and run programs, too.",
			cluster: server, user: `{auth-provider: {name: oidc}}`,
			wantErr: "uses auth-provider",
		},
		"TokenFile": {
			why:     "It would send a file of the hub to a server that the Secret chose.",
			cluster: server, user: `{tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}`,
			wantErr: "uses tokenFile",
		},
		"TokenAndTokenFile": {
			why:     "A token beside it must not hide the file.",
			cluster: server, user: `{token: ` + token + `, tokenFile: /etc/passwd}`,
			wantErr: "uses tokenFile",
		},
		"CertificateFile": {
			why:     "Files of the hub are not for Secrets to name.",
			cluster: server, user: `{client-certificate: /etc/tls.crt, client-key: /etc/tls.key}`,
			wantErr: "uses client-certificate",
		},
		"KeyFile": {
			why:     "Nor beside embedded certificates.",
			cluster: server, user: `{client-certificate-data: YQ==, client-key: /etc/tls.key}`,
			wantErr: "uses client-key",
		},
		"AuthorityFile": {
			why:     "Nor for a cluster.",
			cluster: `{server: "https://prod.example:6443", certificate-authority: /etc/ca.crt}`, user: `{token: ` + token + `}`,
			wantErr: "uses certificate-authority",
		},
		"Password": {
			why:     "No API server takes one since Kubernetes 1.19.",
			cluster: server, user: `{username: a, password: ` + token + `}`,
			wantErr: "uses username and password",
		},
		"Impersonation": {
			why:     "Field managers and audit logs should name who it was.",
			cluster: server, user: `{token: ` + token + `, as: root}`,
			wantErr: "uses as,",
		},
		"Anonymous": {
			why:     "It would fail later, with a message that says less.",
			cluster: server, user: `{}`,
			wantErr: "neither client-certificate-data nor a token",
		},
		"NoServer": {
			why:     "client-go would take localhost.",
			cluster: `{}`, user: `{token: ` + token + `}`,
			wantErr: "no server",
		},
		"NotYAML": {
			why:     "A parser's message may quote what it stumbled over.",
			cluster: server, user: `{token: ` + token + `}]`,
			wantErr: "not a kubeconfig",
		},
		"BrokenCertificate": {
			why:     "As above.",
			cluster: server, user: `{client-certificate-data: ` + token + `}`,
			wantErr: "not a kubeconfig",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := connect.Source{Version: "v1.2.3", Secrets: secret(kubeconfig(c.cluster, c.user))}
			got, err := s.Config(t.Context(), bySecret())
			if c.wantErr == "" {
				if err != nil {
					t.Fatalf("%s\nrefused: %v", c.why, err)
				}
				if got.Host != "https://prod.example:6443" || got.BearerToken != token {
					t.Errorf("got server %s and token %s", got.Host, got.BearerToken)
				}
				if got.UserAgent != "keelson/v1.2.3" || got.QPS != -1 {
					t.Errorf("got user agent %q and QPS %v", got.UserAgent, got.QPS)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Fatalf("%s\ngot error %v, want one that says %q", c.why, err, c.wantErr)
			}
			if strings.Contains(err.Error(), token) {
				t.Errorf("the error repeats what is in the Secret: %v", err)
			}
			if !strings.Contains(err.Error(), "Secret keelson-system/prod") {
				t.Errorf("the error does not name the Secret: %v", err)
			}
		})
	}
}

func TestConfigNamesTheSecret(t *testing.T) {
	t.Parallel()
	asked := ""
	gone := errors.New("not found")
	s := connect.Source{Secrets: func(_ context.Context, namespace, name string) (map[string][]byte, error) {
		asked = namespace + "/" + name
		return nil, gone
	}}
	_, err := s.Config(t.Context(), v1alpha1.Connection{Secret: &v1alpha1.SecretKey{Namespace: "fleet", Name: "prod"}})
	if !errors.Is(err, gone) || asked != "fleet/prod" {
		t.Errorf("got %v after asking for %s", err, asked)
	}
	s.Secrets = secret("x")
	_, err = s.Config(t.Context(), v1alpha1.Connection{Secret: &v1alpha1.SecretKey{Name: "prod", Key: "admin"}})
	if err == nil || !strings.Contains(err.Error(), `has no key "admin"`) {
		t.Errorf("got %v", err)
	}
}

func TestConfigFromContext(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	content := kubeconfig(`{server: "https://prod.example:6443"}`, `{username: a, password: b}`)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	s := connect.Source{Kubeconfig: file}
	got, err := s.Config(t.Context(), v1alpha1.Connection{Context: "prod"})
	if err != nil || got.Host != "https://prod.example:6443" || got.Username != "a" {
		t.Errorf("one's own kubeconfig may do what kubectl lets it do; got %v, error %v", got, err)
	}
	if _, err = s.Config(t.Context(), v1alpha1.Connection{Context: "test"}); err == nil ||
		!strings.Contains(err.Error(), `no context "test": it has prod`) {
		t.Errorf("got %v", err)
	}
	for _, none := range []v1alpha1.Connection{{}, {Context: "prod", Secret: &v1alpha1.SecretKey{Name: "prod"}}} {
		if _, err := s.Config(t.Context(), none); err == nil {
			t.Errorf("%+v: no error", none)
		}
	}
	if hub, err := s.Hub(); err != nil || hub.Host != "https://prod.example:6443" {
		t.Errorf("hub: got %v, error %v", hub, err)
	}
}

// A watch may last; any other request has an end, also when the answer's body
// never comes.
func TestRequestsHaveAnEnd(t *testing.T) {
	t.Parallel()
	deadlines := make(chan bool, 2)
	s := connect.Source{Secrets: secret(kubeconfig(`{server: "http://prod.example"}`, `{token: `+token+`}`))}
	c, err := s.Config(t.Context(), bySecret())
	if err != nil {
		t.Fatal(err)
	}
	rt := c.WrapTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
		deadline, ok := r.Context().Deadline()
		deadlines <- ok && time.Until(deadline) <= connect.RequestTimeout
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	}))
	for query, want := range map[string]bool{"": true, "?watch=true": false} {
		answer, err := rt.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://prod.example/api/v1/pods"+query, nil))
		if err != nil {
			t.Fatal(err)
		}
		if got := <-deadlines; got != want {
			t.Errorf("%q: got a deadline: %t, want %t", query, got, want)
		}
		if err := answer.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	if c.Timeout != 0 {
		t.Errorf("a timeout of %s would end watches", c.Timeout)
	}
}

// A cluster does not choose what the hub asks: an API server that redirects to another
// server is not followed, for a watch neither. It may redirect to itself.
func TestRedirectsOfAPIServers(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(other.Close)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch to := r.URL.Query().Get("to"); to {
		case "":
			_, _ = io.WriteString(w, "here")
		default:
			code, _ := strconv.Atoi(r.URL.Query().Get("code"))
			w.Header().Set("Location", to)
			w.WriteHeader(code)
		}
	}))
	t.Cleanup(api.Close)
	s := connect.Source{Secrets: secret(kubeconfig(`{server: "`+api.URL+`"}`, `{token: `+token+`}`))}
	c, err := s.Config(t.Context(), bySecret())
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []int{301, 302, 303, 307, 308} {
		for to, follows := range map[string]bool{
			other.URL + "/version": false, strings.TrimPrefix(other.URL, "http:") + "/version": false, strings.Replace(api.URL, "http:", "https:", 1) + "/": false, "http://user@" + other.Listener.Addr().String() + "/": false,
			"/openapi": true, api.URL + "/openapi": true,
		} {
			for _, watch := range []string{"", "&watch=true"} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s/version?code=%d&to=%s%s", api.URL, code, url.QueryEscape(to), watch), nil)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := client.Do(r)
				if err == nil {
					_ = answer.Body.Close()
				}
				if follows != (err == nil) || !follows && !strings.Contains(err.Error(), "redirect to another server") {
					t.Errorf("%d to %s%s: the error is %v", code, to, watch, err)
				}
			}
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the other server was asked %d times", n)
	}
}

// A watch that a hung API server does not begin ends, too.
func TestWatchesBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := connect.Source{Secrets: secret(kubeconfig(`{server: "http://prod.example"}`, `{token: `+token+`}`))}
		c, err := s.Config(t.Context(), bySecret())
		if err != nil {
			t.Fatal(err)
		}
		rt := c.WrapTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}))
		began := time.Now()
		_, err = rt.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://prod.example/api/v1/pods?watch=true", nil)) //nolint:bodyclose // there is none
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != connect.RequestTimeout {
			t.Errorf("after %s: %v", took, err)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A kubeconfig that is remembered is read again when it changes; one that can't be read
// then is an error, and not what it was.
func TestRemembering(t *testing.T) {
	t.Parallel()
	path := kubeconfigFile(t, `{server: "https://prod.example"}`, `{token: one}`)
	s := connect.Source{Kubeconfig: path}.Remembering()
	is := func(want string) {
		t.Helper()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				c, err := s.Config(t.Context(), v1alpha1.Connection{Context: "prod"})
				if err != nil || c.BearerToken != want {
					t.Errorf("got %v, want token %s; error %v", c, want, err)
				}
			})
		}
		wg.Wait()
	}
	is("one")
	is("one")
	for _, content := range []string{kubeconfig(`{server: "https://prod.example"}`, `{token: another}`), "{"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if content != "{" {
			is("another")
		}
	}
	if _, err := s.Config(t.Context(), v1alpha1.Connection{Context: "prod"}); err == nil {
		t.Error("a broken kubeconfig was not noticed")
	}
}

// The namespace is the one of the context, as for kubectl.
func TestNamespace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	content := strings.Replace(kubeconfig("{server: https://a.example}", "{}"), "cluster: prod, user: keelson}", "cluster: prod, user: keelson, namespace: shop}\n- name: other\n  context: {cluster: prod, user: keelson}", 1)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for context, want := range map[string]string{"": "shop", "prod": "shop", "other": "default"} {
		got, err := connect.Source{Kubeconfig: path, Context: context}.Namespace()
		if err != nil || got != want {
			t.Errorf("context %q has namespace %q (%v), want %q", context, got, err, want)
		}
	}
	if got, err := (connect.Source{Kubeconfig: path, Context: "none"}).Namespace(); err == nil {
		t.Errorf("a context that is not there has namespace %q", got)
	}
}
