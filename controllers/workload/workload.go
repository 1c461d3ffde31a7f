// Package workload runs, inside a cluster, the workloads of apps.kruise.io: pods that
// are updated in place, in partitions, in the order that hurts least.
//
// Each folder has one job, which all workloads share: podorder and slowstart say which
// pods and how many, expectations that the informer isn't behind, revision what pods
// are made from, inplace and lifecycle which steps a pod goes through, podclient writes
// pods, and host has informers keep no more than that takes. A folder for each workload
// puts them together.
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/workload/cloneset"
	"github.com/keelson-io/keelson/controllers/workload/daemonset"
	"github.com/keelson-io/keelson/controllers/workload/host"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/webhook"
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
	// Webhooks answers what API servers ask about workloads; nil: nobody does.
	Webhooks *webhook.Options
	Log      *slog.Logger
	Now      func() time.Time
}

// Controller runs workloads.
type Controller struct {
	manager      ctrl.Manager
	synced       atomic.Bool
	certificates *webhook.Certificates
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
	options := ctrl.Options{
		Logger:         logr.FromSlogHandler(o.Log.Handler()),
		LeaderElection: o.Lead, LeaderElectionID: leaseName, LeaderElectionNamespace: v1alpha1.Namespace, LeaderElectionReleaseOnCancel: true,
	}
	made := &Controller{}
	if o.Webhooks != nil {
		if made.certificates, err = webhook.Serve(&options, *o.Webhooks); err != nil {
			return nil, err
		}
	}
	if made.manager, err = host.NewManager(c, o.Namespace, options); err != nil {
		return nil, err
	}
	if o.Webhooks != nil {
		if err := webhook.Add(made.manager, made.certificates, *o.Webhooks); err != nil {
			return nil, err
		}
	}
	settings := host.Options{Workers: o.Workers, InPlace: inplace.Options{Resize: resize}, Now: o.Now}
	for _, add := range []func(context.Context, ctrl.Manager, host.Options) error{cloneset.Add, daemonset.Add} {
		if err := add(ctx, made.manager, settings); err != nil {
			return nil, err
		}
	}
	return made, nil
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
	if c.certificates != nil {
		if err := c.certificates.Ready(); err != nil {
			return "", err
		}
	}
	return "ok", nil
}
