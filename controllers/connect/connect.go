// Package connect turns the connection of a cluster in the fleet repository into client settings.
//
// Contexts come from the kubeconfig of the user who started Keelson. All that kubectl allows is
// allowed, except programs: each program needs permission, because kubeconfigs are downloaded and
// passed around. A kubeconfig from a Secret is outside input. It may hold a server, certificates
// and a token, and nothing that would run a program or read a file on this machine. Errors do not
// repeat the content of such a Secret.
package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// SecretReader returns the data of one Secret of the hub.
type SecretReader func(ctx context.Context, namespace, name string) (map[string][]byte, error)

// Source says where credentials come from. The zero Source follows the rules of kubectl:
// KUBECONFIG, else ~/.kube/config.
type Source struct {
	// Kubeconfig is a file; empty: KUBECONFIG, else ~/.kube/config, else, for
	// the hub alone, the service account of the pod that Keelson runs in.
	Kubeconfig string
	// Context of the hub; empty: the kubeconfig's current one.
	Context string
	// AllowExec names the programs that may provide a context's credentials, as the kubeconfig
	// names them or by absolute path.
	AllowExec []string
	// Hide is called with the secrets of each connection; may be nil.
	Hide func(owner string, secrets ...string)
	// Version of Keelson, for the User-Agent header.
	Version string
	// Secrets reads the hub's Secrets; nil: from its API server, each time.
	Secrets SecretReader
	// Watch reports changes of a Secret of the hub; nil: no reports.
	Watch SecretWatcher

	filesEvery time.Duration // 0: [filesEvery]
	parsed     *parsed       // nil: no cache
	beat       *beat         // shared by all callers that follow files
}

// parsed caches a kubeconfig. Parsing one with hundreds of contexts is slow, and each cluster needs
// it.
type parsed struct {
	mu     sync.Mutex
	stamps []string // of its files
	raw    *clientcmdapi.Config
}

// Remembering returns a source that parses a kubeconfig again only after a change. It checks for
// changes at the same moments for all clusters.
func (s Source) Remembering() Source {
	s.parsed, s.beat = &parsed{}, &beat{}
	return s
}

// load reads the kubeconfig. The caller must not change it.
func (s Source) load() (*clientcmdapi.Config, error) {
	rules := s.rules()
	if s.parsed == nil {
		return rules.Load() //nolint:wrapcheck // the caller says what for
	}
	s.parsed.mu.Lock()
	defer s.parsed.mu.Unlock()
	now := stamps(rules.GetLoadingPrecedence())
	if s.parsed.raw != nil && slices.Equal(now, s.parsed.stamps) {
		return s.parsed.raw, nil
	}
	raw, err := rules.Load()
	if err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	s.parsed.raw, s.parsed.stamps = raw, now
	return raw, nil
}

// Namespace returns the namespace of the hub's context, as kubectl does; "default" if the context
// names none.
func (s Source) Namespace() (string, error) {
	namespace, _, err := s.deferred().Namespace()
	if err != nil && !clientcmd.IsEmptyConfig(err) {
		return "", fmt.Errorf("the namespace of the kubeconfig's context: %w", err)
	}
	return cmp.Or(namespace, metav1.NamespaceDefault), nil
}

func (s Source) deferred() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(s.rules(), &clientcmd.ConfigOverrides{CurrentContext: s.Context})
}

// Hub returns the settings for the hub. The hub's answers are not bounded: an attacker who runs the
// hub's API server already controls the controller's state.
func (s Source) Hub() (*rest.Config, error) {
	deferred := s.deferred()
	if raw, err := deferred.RawConfig(); err == nil { // ClientConfig reports the error
		name := cmp.Or(s.Context, raw.CurrentContext)
		if err := s.checkPrograms(&raw, name); err != nil {
			return nil, fmt.Errorf("connect to the hub: %w", err)
		}
	}
	c, err := deferred.ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("there is no kubeconfig to reach the hub with: give --kubeconfig, or set KUBECONFIG")
	case err != nil:
		return nil, fmt.Errorf("connect to the hub: %w", err)
	}
	return s.finish(c), nil
}

// Config returns the settings for the cluster that a cluster.yaml describes. It makes a request
// only for a connection by Secret, to the hub.
//
// Every request with the settings ends after [RequestTimeout], except watches. The rate is not
// limited, because API servers have priority and fairness. Answers of a cluster are bounded, but
// not those of the hub: see [Source.Hub].
func (s Source) Config(ctx context.Context, spec v1alpha1.Connection) (*rest.Config, error) {
	switch {
	case spec.Context != "" && spec.Secret != nil, spec.Hub && (spec.Context != "" || spec.Secret != nil):
		return nil, errors.New("the connection names more than one of a context, a secret and the hub: only one can be meant")
	case spec.Hub:
		return s.Hub()
	case spec.Context != "":
		return s.fromContext(spec.Context)
	case spec.Secret != nil:
		return s.fromSecret(ctx, *spec.Secret)
	default:
		return nil, errors.New("the connection names no context, no secret, and not the hub")
	}
}

func (s Source) rules() *clientcmd.ClientConfigLoadingRules {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = s.Kubeconfig
	return rules
}

func (s Source) fromContext(name string) (*rest.Config, error) {
	raw, err := s.load()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	if raw.Contexts[name] == nil {
		return nil, fmt.Errorf("the kubeconfig has no context %q: %s", name, known(raw))
	}
	if err := s.checkPrograms(raw, name); err != nil {
		return nil, err
	}
	c, err := clientcmd.NewNonInteractiveClientConfig(*only(raw, name), name, &clientcmd.ConfigOverrides{}, s.rules()).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("context %s of the kubeconfig: %w", name, err)
	}
	return s.target(c), nil
}

// only returns a copy of a kubeconfig with a single context, because client-go writes into it.
func only(raw *clientcmdapi.Config, name string) *clientcmdapi.Config {
	out := clientcmdapi.NewConfig()
	at := raw.Contexts[name]
	out.Contexts[name] = at.DeepCopy()
	if c := raw.Clusters[at.Cluster]; c != nil {
		out.Clusters[at.Cluster] = c.DeepCopy()
	}
	if u := raw.AuthInfos[at.AuthInfo]; u != nil {
		out.AuthInfos[at.AuthInfo] = u.DeepCopy()
	}
	return out
}

// known lists a few contexts for an error.
func known(raw *clientcmdapi.Config) string {
	const few = 8
	names := slices.Sorted(maps.Keys(raw.Contexts))
	switch {
	case len(names) == 0:
		return "it has none; give --kubeconfig, or set KUBECONFIG"
	case len(names) > few:
		return fmt.Sprintf("it has %s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	default:
		return "it has " + strings.Join(names, ", ")
	}
}

func (s Source) fromSecret(ctx context.Context, ref v1alpha1.SecretKey) (*rest.Config, error) {
	ref = located(ref)
	shown := fmt.Sprintf("Secret %s/%s in the hub", ref.Namespace, ref.Name)
	read := s.Secrets
	if read == nil {
		hub, err := s.Hub()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", shown, err)
		}
		if read, err = SecretsOf(hub); err != nil {
			return nil, err
		}
	}
	data, err := read(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", shown, err)
	}
	kubeconfig, ok := data[ref.Key]
	if !ok {
		return nil, fmt.Errorf("%s has no key %q", shown, ref.Key)
	}
	c, err := fromUntrusted(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("key %q of %s: %w", ref.Key, shown, err)
	}
	return s.target(c), nil
}

// located returns a reference with the default namespace and key.
func located(ref v1alpha1.SecretKey) v1alpha1.SecretKey {
	ref.Namespace = cmp.Or(ref.Namespace, v1alpha1.Namespace)
	ref.Key = cmp.Or(ref.Key, "kubeconfig")
	return ref
}

// SecretsOf returns a reader of Secrets from the API server of a hub.
func SecretsOf(hub *rest.Config) (SecretReader, error) {
	c, err := corev1client.NewForConfig(hub)
	if err != nil {
		return nil, fmt.Errorf("connect to the hub: %w", err)
	}
	return func(ctx context.Context, namespace, name string) (map[string][]byte, error) {
		s, err := c.Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask the hub's API server: %w", err)
		}
		return s.Data, nil
	}, nil
}

// target sets the settings that all target clusters have in common.
func (s Source) target(c *rest.Config) *rest.Config {
	boundAnswers(c)
	return s.finish(c)
}

// finish sets the settings that all connections have in common.
func (s Source) finish(c *rest.Config) *rest.Config {
	version := s.Version
	if version == "" {
		version = "dev"
	}
	c.UserAgent = "keelson/" + version
	if s.Hide != nil {
		s.Hide("connection to "+c.Host, c.BearerToken, c.Password, string(c.KeyData))
	}
	if c.ExecProvider != nil {
		c.ExecProvider.PluginPolicy = s.policy()
	}
	c.QPS = -1 // no limit: API servers have priority and fairness
	c.Wrap(limitRequests)
	return c
}
