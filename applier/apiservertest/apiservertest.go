// Package apiservertest starts real API servers for tests.
//
// The programs come from the lab (make test builds them and sets the variables). Without them a
// test fails, unless it runs with -short: a suite that skips its own purpose proves nothing.
package apiservertest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// The variables that name the folders of etcd and kube-apiserver.
const (
	EnvAssets      = "KUBEBUILDER_ASSETS"   // the newest Kubernetes that Keelson is tested with
	EnvOlderAssets = "KEELSON_OLDER_ASSETS" // the oldest; "none" skips its tests
)

// Server is a running API server.
type Server struct {
	// Config has an administrator's rights, without a limit on requests.
	Config *rest.Config
	env    *envtest.Environment
	ports  *ports
}

// Start starts the API server in a folder, with the CRDs of some folders.
func Start(assets string, crds ...string) (*Server, error) { return start(assets, "", crds) }

// StartAudited does the same as [Start]. The API server also writes a line of JSON about each
// answered request into the file log, in the folder.
func StartAudited(assets, folder string, crds ...string) (s *Server, log string, err error) {
	const policy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"], "rules": [{"level": "Metadata"}]}`
	if err := os.WriteFile(filepath.Join(folder, "audit-policy.json"), []byte(policy), 0o600); err != nil {
		return nil, "", fmt.Errorf("audit policy: %w", err)
	}
	s, err = start(assets, folder, crds)
	return s, filepath.Join(folder, "audit.log"), err
}

const (
	// startTimeout and stopTimeout end a start or a stop that hangs. A start takes
	// seconds on a machine without other work, and a minute beside other tests.
	startTimeout, stopTimeout = 3 * time.Minute, time.Minute
	// starts is how often a start is tried, each time with other ports. A program that doesn't
	// know of [reservePorts] can take a port before the server's start, and envtest repeats a
	// failed start with the same ports.
	starts = 3
)

func start(assets, audit string, crds []string) (*Server, error) {
	var failed error
	for range starts {
		s, err := startOnce(assets, audit, crds)
		if err == nil {
			return s, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, fmt.Errorf("start the API server in %s, %d times: %w", assets, starts, failed)
}

func startOnce(assets, audit string, crds []string) (*Server, error) {
	env := &envtest.Environment{CRDDirectoryPaths: crds, ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: startTimeout, ControlPlaneStopTimeout: stopTimeout}
	if audit != "" {
		env.ControlPlane.GetAPIServer().Configure().
			Append("audit-policy-file", filepath.Join(audit, "audit-policy.json")).
			Append("audit-log-path", filepath.Join(audit, "audit.log"))
	}
	// BinaryAssetsDirectory would lose to KUBEBUILDER_ASSETS.
	env.ControlPlane.GetAPIServer().Path = filepath.Join(assets, "kube-apiserver")
	reserved, err := reservePorts(3)
	if err != nil {
		return nil, err
	}
	serving := &env.ControlPlane.GetAPIServer().SecureServing
	serving.Address, serving.Port = "127.0.0.1", strconv.Itoa(reserved.numbers[0])
	env.ControlPlane.Etcd = &envtest.Etcd{
		Path: filepath.Join(assets, "etcd"),
		URL:  &url.URL{Scheme: "http", Host: address(reserved.numbers[1])},
	}
	env.ControlPlane.Etcd.Configure().Set("listen-peer-urls", "http://"+address(reserved.numbers[2]))
	config, err := env.Start()
	if err != nil {
		return nil, errors.Join(err, env.Stop(), reserved.release())
	}
	config.QPS = -1
	return &Server{Config: config, env: env, ports: reserved}, nil
}

// Stop ends the API server.
func (s *Server) Stop() error {
	if err := errors.Join(s.env.Stop(), s.ports.release()); err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	return nil
}

// Share lets clusters of several names use the API server, as an administrator may allow: see
// docs/decisions/056. Each test has its own name.
func (s *Server) Share() error {
	c, err := corev1client.NewForConfig(s.Config)
	if err != nil {
		return fmt.Errorf("share the API server: %w", err)
	}
	ctx := context.Background() //nolint:forbidigo // a package's tests have none yet
	_, err = c.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "keelson-system"}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("share the API server: %w", err)
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	_, err = c.Secrets("keelson-system").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "mask-key"}, Data: map[string][]byte{"key": key, "cluster": []byte("*")},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("share the API server: %w", err)
	}
	return nil
}

// Kubeconfig returns an administrator's kubeconfig. All entries in it are named envtest.
func (s *Server) Kubeconfig() ([]byte, error) { return s.KubeconfigOf("admin", "system:masters") }

// KubeconfigOf returns the kubeconfig of a user, who has the rights that roles grant.
func (s *Server) KubeconfigOf(name string, groups ...string) ([]byte, error) {
	user, err := s.env.AddUser(envtest.User{Name: name, Groups: groups}, nil)
	if err != nil {
		return nil, fmt.Errorf("add a user: %w", err)
	}
	content, err := user.KubeConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return content, nil
}

// Main runs the tests of a package with one API server for all of them. Without a server, started
// is not called.
func Main(m *testing.M, started func(*rest.Config), crds ...string) int {
	assets := os.Getenv(EnvAssets)
	if assets == "" {
		return m.Run()
	}
	s, err := Start(assets, crds...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := s.Share(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	started(s.Config)
	code := m.Run()
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = cmp.Or(code, 1)
	}
	return code
}

// Need skips a test that needs an API server in -short runs without one, and
// fails it otherwise.
func Need(t testing.TB, server *rest.Config) {
	t.Helper()
	if server == nil {
		missing(t, EnvAssets)
	}
}

func missing(t testing.TB, env string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs an API server: run make test")
	}
	t.Fatalf("%s is not set: run make test, or go test -short", env)
}

// Kubernetes is a version on which tests run.
type Kubernetes struct{ Minor, Assets string }

// Versions returns the newest and the oldest Kubernetes that Keelson is tested with.
func Versions() []Kubernetes {
	return []Kubernetes{{"1.36", os.Getenv(EnvAssets)}, {"1.33", os.Getenv(EnvOlderAssets)}}
}

// Each runs a test on each of some versions, in parallel. The test may start several servers. Each
// server must report the expected version, and is stopped at the end of the subtest.
func Each(t *testing.T, versions []Kubernetes, test func(t *testing.T, start func(*testing.T) *Server)) {
	t.Helper()
	for i, k := range versions {
		t.Run("v"+k.Minor, func(t *testing.T) {
			t.Parallel()
			if i > 0 && k.Assets == "none" {
				t.Skipf("left out: %s=none", EnvOlderAssets)
			}
			if k.Assets == "" {
				missing(t, []string{EnvAssets, EnvOlderAssets}[min(i, 1)])
			}
			test(t, func(t *testing.T) *Server {
				t.Helper()
				return k.start(t)
			})
		})
	}
}

func (k Kubernetes) start(t *testing.T) *Server {
	t.Helper()
	s, err := Start(k.Assets)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	client, err := discovery.NewDiscoveryClientForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	version, err := client.ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if got := version.Major + "." + version.Minor; got != k.Minor {
		t.Fatalf("%s is Kubernetes %s, want %s: see lab build --help", k.Assets, version, k.Minor)
	}
	t.Logf("Kubernetes %s", version)
	return s
}
