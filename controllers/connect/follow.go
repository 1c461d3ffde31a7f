package connect

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const (
	// filesEvery is how often files are checked. A check makes no request. Notifications would miss
	// some changes, because mounted Secrets change by links.
	filesEvery = 10 * time.Second
	// forbiddenFor is the wait after a list or watch was forbidden.
	forbiddenFor = 5 * time.Minute
	// watchFor is the minimum duration of a watch.
	watchFor = 30 * time.Minute
)

// SecretWatcher calls changed whenever a Secret of the hub may have changed, until the context
// ends.
type SecretWatcher func(ctx context.Context, namespace, name string, changed func())

// Follow calls changed whenever [Source.Config] may return another result for a connection: after a
// change of its Secret or of a file of the kubeconfig. It ends with ctx. changed must not block. At
// rest Follow makes no request except one watch.
func (s Source) Follow(ctx context.Context, spec v1alpha1.Connection, changed func()) {
	switch {
	case spec.Secret == nil:
		s.followFiles(ctx, spec, changed)
	case s.Watch != nil:
		ref := located(*spec.Secret)
		s.Watch(ctx, ref.Namespace, ref.Name, changed)
	}
}

// followFiles checks the files periodically.
func (s Source) followFiles(ctx context.Context, spec v1alpha1.Connection, changed func()) {
	paths := s.files(spec)
	before := stamps(paths)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.beat.in(cmp.Or(s.filesEvery, filesEvery)):
		}
		if now := stamps(paths); !slices.Equal(before, now) {
			changed()
			paths = s.files(spec)
			before = stamps(paths)
		}
	}
}

// beat wakes all its waiters at the same moments, so that an idle process wakes once for hundreds
// of clusters. The nil beat wakes each waiter on its own.
type beat struct {
	mu   sync.Mutex
	next chan struct{} // nil: no waiter
}

// in returns a channel that is closed after a time; sooner if there already are waiters.
func (b *beat) in(after time.Duration) <-chan struct{} {
	if b == nil {
		b = &beat{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
		time.AfterFunc(after, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			close(b.next)
			b.next = nil
		})
	}
	return b.next
}

// files returns the paths of the files that the settings depend on.
func (s Source) files(spec v1alpha1.Connection) []string {
	paths := s.rules().GetLoadingPrecedence()
	raw, err := s.load()
	if err != nil {
		return paths // a reader of the settings gets the error
	}
	at := raw.Contexts[cmp.Or(spec.Context, s.Context, raw.CurrentContext)]
	if at == nil {
		return paths
	}
	if user := raw.AuthInfos[at.AuthInfo]; user != nil {
		paths = append(slices.Clone(paths), user.ClientCertificate, user.ClientKey)
	}
	if cluster := raw.Clusters[at.Cluster]; cluster != nil {
		paths = append(paths, cluster.CertificateAuthority)
	}
	return slices.DeleteFunc(paths, func(path string) bool { return path == "" })
}

// stamps returns size and modification time of each file.
func stamps(paths []string) []string {
	out := make([]string, len(paths))
	for i, path := range paths {
		if info, err := os.Stat(path); err == nil {
			out[i] = fmt.Sprintf("%d %s", info.Size(), info.ModTime())
		}
	}
	return out
}

// WatchSecretsOf returns a watcher of single Secrets of a hub, by name, so that no wider right is
// needed. It sees only metadata.
func WatchSecretsOf(hub *rest.Config, log *slog.Logger) (SecretWatcher, error) {
	client, err := metadata.NewForConfig(hub)
	if err != nil {
		return nil, fmt.Errorf("connect to the hub: %w", err)
	}
	return func(ctx context.Context, namespace, name string, changed func()) {
		secrets := client.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(namespace)
		var told atomic.Bool
		// A role of an earlier version may allow reading a Secret, but not watching it. No event
		// reports a right that was added, so the request is repeated.
		allowed := func(err error) {
			if !apierrors.IsForbidden(err) {
				return
			}
			if !told.Swap(true) {
				log.Warn("the Secret of a connection may not be watched: its changes are seen when its credentials are refused; see keelson rbac --hub",
					"secret", namespace+"/"+name, "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(forbiddenFor):
			}
		}
		selector := fields.OneTermEqualSelector("metadata.name", name).String()
		silent := klog.Logger{}
		r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				list, err := secrets.List(ctx, o)
				allowed(err)
				return list, err //nolint:wrapcheck // the reflector looks at it
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = selector
				events, err := secrets.Watch(ctx, o)
				allowed(err)
				return events, err //nolint:wrapcheck // as above
			},
		}, client), nil, &oneSecret{changed: changed}, cache.ReflectorOptions{
			Logger: &silent, Name: "connections", TypeDescription: "connections", MinWatchTimeout: watchFor,
		})
		r.RunWithContext(klog.NewContext(ctx, silent))
	}, nil
}

// oneSecret handles the events of one Secret. It implements [cache.ReflectorStore], whose methods
// are called one after the other.
type oneSecret struct {
	changed func()
	version string // the last known version of the Secret; empty: there is none
}

// Add implements [cache.ReflectorStore].
func (s *oneSecret) Add(o any) error { return s.Update(o) }

// Update implements [cache.ReflectorStore].
func (s *oneSecret) Update(o any) error {
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("watch the Secret of a connection: a %T", o)
	}
	s.is(m.ResourceVersion)
	return nil
}

// Delete implements [cache.ReflectorStore].
func (s *oneSecret) Delete(any) error {
	s.is("")
	return nil
}

// Replace implements [cache.ReflectorStore].
func (s *oneSecret) Replace(list []any, _ string) error {
	if len(list) == 0 {
		s.is("")
	}
	for _, o := range list {
		if err := s.Update(o); err != nil {
			return err
		}
	}
	return nil
}

func (s *oneSecret) is(version string) {
	if s.version != version {
		s.version = version
		s.changed()
	}
}

// Resync implements [cache.ReflectorStore].
func (s *oneSecret) Resync() error { return nil }
