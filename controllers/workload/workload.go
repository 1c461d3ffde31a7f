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
	config  *rest.Config
	asks    *discovery.DiscoveryClient
	options Options

	// unready says why nothing is done yet; nil: all is known that there is.
	unready      atomic.Pointer[string]
	certificates *webhook.Certificates // not to be read while unready
}

// New returns a controller of a cluster's workloads, which asks the cluster nothing
// before it runs.
func New(c *rest.Config, o Options) (*Controller, error) {
	asks, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	made := &Controller{config: c, asks: asks, options: o}
	made.unready.Store(new(unread))
	return made, nil
}

// unread is why a controller isn't ready that has begun to work.
const unread = "not all that there is has been read"

// manage returns a manager that runs workloads.
func (c *Controller) manage(ctx context.Context) (ctrl.Manager, error) {
	o := c.options
	core, err := c.asks.ServerResourcesForGroupVersionWithContext(ctx, "v1")
	if err != nil {
		return nil, fmt.Errorf("ask what the cluster serves: %w", err)
	}
	resize := slices.ContainsFunc(core.APIResources, func(r metav1.APIResource) bool { return r.Name == "pods/resize" })
	options := ctrl.Options{
		Logger:         logr.FromSlogHandler(o.Log.Handler()),
		LeaderElection: o.Lead, LeaderElectionID: leaseName, LeaderElectionNamespace: v1alpha1.Namespace, LeaderElectionReleaseOnCancel: true,
	}
	if o.Webhooks != nil {
		if c.certificates, err = webhook.Serve(&options, *o.Webhooks); err != nil {
			return nil, err
		}
	}
	m, err := host.NewManager(c.config, o.Namespace, options)
	if err != nil {
		return nil, err
	}
	if o.Webhooks != nil {
		if err := webhook.Add(m, c.certificates, *o.Webhooks); err != nil {
			return nil, err
		}
	}
	settings := host.Options{Workers: o.Workers, InPlace: inplace.Options{Resize: resize}, Now: o.Now}
	for _, add := range []func(context.Context, ctrl.Manager, host.Options) error{cloneset.Add, daemonset.Add} {
		if err := add(ctx, m, settings); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Metrics are those of all workloads in the process.
func Metrics() prometheus.Gatherer { return ctrlmetrics.Registry }

// Run runs workloads until the context ends, as soon as the cluster serves their kinds.
// It returns an error where it can't ask the cluster for them, or lost its Lease:
// somebody else works by then.
func (c *Controller) Run(ctx context.Context) error {
	if err := c.await(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to stop while it waited
		}
		return err
	}
	m, err := c.manage(ctx)
	if err != nil {
		return err
	}
	c.unready.Store(new(unread))
	go func() {
		if m.GetCache().WaitForCacheSync(ctx) {
			c.unready.Store(nil)
		}
	}()
	if err := m.Start(ctx); err != nil {
		return fmt.Errorf("run workloads: %w", err)
	}
	return nil
}

// Ready says whether all is known that there is, and if not, why.
func (c *Controller) Ready() (string, error) {
	if why := c.unready.Load(); why != nil {
		return "", errors.New(*why)
	}
	if c.certificates != nil {
		if err := c.certificates.Ready(); err != nil {
			return "", err
		}
	}
	return "ok", nil
}
