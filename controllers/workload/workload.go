// Package workload runs, inside a cluster, the workloads of apps.kruise.io: pods that
// are updated in place, in partitions, in the order that hurts least.
//
// Each folder has one job, which all workloads share: podorder and slowstart say which
// pods and how many, expectations that the informer isn't behind, revision what pods
// are made from, inplace and lifecycle which steps a pod goes through. A folder for each
// workload puts them together.
package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/workload/cloneset"
	"github.com/keelson-io/keelson/controllers/workload/daemonset"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// leaseName is that of the Lease by which replicas agree who works.
const leaseName = "keelson-workloads"

// Options are the settings of a [Controller].
type Options struct {
	// Namespace is the only one to work in; empty: all.
	Namespace string
	// Lead has replicas agree on one of them by a Lease in keelson-system.
	Lead bool
	// Workers is how many workloads of a kind are looked at at once.
	Workers int
	Log     *slog.Logger
	Now     func() time.Time
}

// Controller runs workloads.
type Controller struct {
	manager ctrl.Manager
	synced  atomic.Bool
}

// New connects to a cluster. It fails where the cluster doesn't know CloneSets.
func New(ctx context.Context, c *rest.Config, o Options) (*Controller, error) {
	client, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	if _, err := client.ServerResourcesForGroupVersionWithContext(ctx, v1beta1.GroupVersion.String()); err != nil {
		return nil, fmt.Errorf("the cluster's %s: %w: apply the CRDs of components/workload-controllers first", v1beta1.GroupVersion, err)
	}
	core, err := client.ServerResourcesForGroupVersionWithContext(ctx, "v1")
	if err != nil {
		return nil, fmt.Errorf("ask what the cluster serves: %w", err)
	}
	resize := slices.ContainsFunc(core.APIResources, func(r metav1.APIResource) bool { return r.Name == "pods/resize" })
	m, err := newManager(c, o)
	if err != nil {
		return nil, err
	}
	if err := cloneset.Add(ctx, m, cloneset.Options{Workers: o.Workers, InPlace: inplace.Options{Resize: resize}, Now: o.Now}); err != nil {
		return nil, err
	}
	if err := daemonset.Add(ctx, m, daemonset.Options{Workers: o.Workers, InPlace: inplace.Options{Resize: resize}, Now: o.Now}); err != nil {
		return nil, err
	}
	return &Controller{manager: m}, nil
}

func newManager(c *rest.Config, o Options) (ctrl.Manager, error) {
	c = rest.CopyConfig(c)
	c.QPS = -1 // the API server says itself when it is too much: priority and fairness
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("the types of workloads: %w", err)
		}
	}
	made, err := labels.NewRequirement(revision.Label, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("the selector of pods: %w", err)
	}
	claimed, err := labels.NewRequirement(v1beta1.LabelInstanceID, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("the selector of claims: %w", err)
	}
	caches := cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{ // others' are nobody's business
			&corev1.Pod{}:                   {Label: labels.NewSelector().Add(*made)},
			&corev1.PersistentVolumeClaim{}: {Label: labels.NewSelector().Add(*claimed)},
		},
	}
	if o.Namespace != "" {
		caches.DefaultNamespaces = map[string]cache.Config{o.Namespace: {}}
	}
	m, err := ctrl.NewManager(c, ctrl.Options{
		Scheme: scheme, Logger: logr.FromSlogHandler(o.Log.Handler()), Cache: caches, Metrics: server.Options{BindAddress: "0"}, // the command serves them
		LeaderElection: o.Lead, LeaderElectionID: leaseName, LeaderElectionNamespace: v1alpha1.Namespace, LeaderElectionReleaseOnCancel: true,
		Controller: config.Controller{SkipNameValidation: new(true)}, // one process may run several of these
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	return m, nil
}

// Metrics are those of all workloads in the process.
func Metrics() prometheus.Gatherer { return ctrlmetrics.Registry }

// Run runs workloads until the context ends. It returns an error where it lost its
// Lease: somebody else works by then.
func (c *Controller) Run(ctx context.Context) error {
	go func() {
		if c.manager.GetCache().WaitForCacheSync(ctx) {
			c.synced.Store(true)
		}
	}()
	if err := c.manager.Start(ctx); err != nil {
		return fmt.Errorf("run workloads: %w", err)
	}
	return nil
}

// Ready says whether all is known that there is.
func (c *Controller) Ready() (string, error) {
	if !c.synced.Load() {
		return "", errors.New("not all that there is has been read")
	}
	return "ok", nil
}
