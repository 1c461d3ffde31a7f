// Package base is the common part of the reconcilers of workloads. It has a manager whose
// informers keep only the fields in use, and a client that writes pods. It also has the pods of
// each workload as the informer last showed them.
package base

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/reload"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// Options are the settings of a reconciler.
type Options struct {
	// Workers is how many workloads of its kind are reconciled at once.
	Workers int
	// InPlace has the abilities of the cluster.
	InPlace inplace.Options
	// CountPreparingUpdate counts pods of a CloneSet whose update in place a hook holds back as
	// updated, when pods are created and when there are too many.
	CountPreparingUpdate bool
	// RecreateChangedClaims makes the claim templates of a CloneSet a part of its update: pods whose
	// revision has others are replaced.
	RecreateChangedClaims bool
	// ReloadTransport sends the requests that tell containers to reload; nil is the network.
	ReloadTransport http.RoundTripper
	// Now returns the current time.
	Now func() time.Time
}

// Reconciler is the common part of the reconciler of one kind.
type Reconciler struct {
	Objects   client.Client // reads from the informers
	API       kubernetes.Interface
	Owned     *podclient.OwnedIndex[*corev1.Pod] // as the informer last showed them
	Events    events.EventRecorder
	Expect    *expectations.Expectations
	Revisions revision.Store
	Specs     *Specs
	Reloads   *reload.Caller

	kind    string
	workers int

	mu       sync.Mutex
	statuses map[types.UID]time.Time // when each status was last written
}

// New returns the common part of the reconciler of a kind of apps.kruise.io, whose specs are those of
// specs. It returns an error if the client cannot be built.
func New(m ctrl.Manager, kind, reporter string, specs *Specs, o Options) (*Reconciler, error) {
	c := rest.CopyConfig(m.GetConfig())
	// The answer to each write is the whole pod, which takes three times as long to parse in
	// JSON.
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	api, err := kubernetes.NewForConfigAndClient(c, m.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("%ss: %w", kind, err)
	}
	return &Reconciler{
		Objects: m.GetClient(), API: api, Owned: podclient.NewOwnedIndex[*corev1.Pod](kind), Events: m.GetEventRecorder(reporter), Expect: expectations.New(o.Now),
		Revisions: revision.Store{Cache: m.GetClient(), API: api}, Specs: specs, Reloads: reload.NewCaller(o.Now, o.ReloadTransport), kind: kind, workers: o.Workers,
	}, nil
}

// Watch returns a builder of a controller for workloads of the type of an object. It reconciles
// a workload when its spec or its pods change.
func (r *Reconciler) Watch(m ctrl.Manager, like client.Object) *builder.Builder {
	return ctrl.NewControllerManagedBy(m).Named(strings.ToLower(r.kind)).
		For(like, builder.WithPredicates(r.Specs)).
		Watches(&corev1.Pod{}, podclient.NewEventHandler(r.Owned, r.Expect)).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.workers})
}

// statusesKept is how many entries are kept before old ones are dropped. Without a bound, entries
// of deleted objects would stay.
const statusesKept = 1000

// statusEvery is the shortest time between two writes of a status that keeps changing.
const statusEvery = time.Second

// Paced returns how long to wait before the status of an object may be written. If it returns 0,
// the status counts as written now.
func (r *Reconciler) Paced(of types.UID, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if left := statusEvery - now.Sub(r.statuses[of]); left > 0 {
		return left
	}
	if r.statuses == nil {
		r.statuses = map[types.UID]time.Time{}
	}
	if len(r.statuses) >= statusesKept {
		maps.DeleteFunc(r.statuses, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= statusEvery })
	}
	r.statuses[of] = now
	return 0
}

// NewManager returns a manager for the reconcilers of workloads, limited to one namespace; ""
// means all. It overrides the Metrics, Controller and Cache of the options, except for
// Cache.ByObject. It returns an error if the types cannot be added, or the manager or its index of
// pods cannot be built.
func NewManager(ctx context.Context, c *rest.Config, namespace string, o ctrl.Options) (ctrl.Manager, error) {
	c = rest.CopyConfig(c)
	c.QPS = -1 // the API server limits requests itself, by priority and fairness
	if o.Scheme == nil {
		o.Scheme = runtime.NewScheme()
	}
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(o.Scheme); err != nil {
			return nil, fmt.Errorf("the types of workloads: %w", err)
		}
	}
	caches, err := Caches()
	if err != nil {
		return nil, err
	}
	maps.Copy(caches.ByObject, o.Cache.ByObject)
	o.Cache = caches
	if namespace != "" {
		o.Cache.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	o.Metrics = server.Options{BindAddress: "0"}                    // the command serves them
	o.Controller = config.Controller{SkipNameValidation: new(true)} // one process may run several managers
	m, err := ctrl.NewManager(c, o)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	if err := m.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, podclient.OrphanIndex, podclient.Orphans); err != nil {
		return nil, fmt.Errorf("index pods: %w", err)
	}
	return m, nil
}

// Caches returns the options of the informers: which objects they keep, and which fields (slim).
func Caches() (cache.Options, error) {
	made, err := labels.NewRequirement(revision.Label, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, fmt.Errorf("the selector of pods: %w", err)
	}
	return cache.Options{
		DefaultTransform: slim,
		ByObject: map[client.Object]cache.ByObject{ // other pods are not needed
			&corev1.Pod{}: {Label: labels.NewSelector().Add(*made)},
		},
	}, nil
}
