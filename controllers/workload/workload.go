// Package workload runs, inside a cluster, the workloads of apps.kruise.io. Their pods are
// updated in place, by partition, and in the least disruptive order.
//
// Each folder has one job, which all workloads share. podorder and slowstart choose which pods
// and how many. expectations checks that the informer is not behind. revision stores the
// templates of pods. inplace and lifecycle choose the steps of a pod. podclient writes pods.
// host limits what informers keep. A folder for each workload combines them.
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
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/cloneset"
	"github.com/keelson-io/keelson/controllers/workload/daemonset"
	"github.com/keelson-io/keelson/controllers/workload/deployment"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/statefulset"
	"github.com/keelson-io/keelson/controllers/workload/webhook"
)

// leaseName names the Lease by which replicas elect a leader.
const leaseName = "keelson-workloads"

// Options are the settings of a [Controller].
type Options struct {
	// Namespace limits the controller to one namespace; empty means all.
	Namespace string
	// Lead turns on leader election, by a Lease in keelson-system.
	Lead bool
	// Workers is how many workloads of one kind are reconciled at once.
	Workers int
	// Deployments divides the updates of Deployments that have [v1beta1.AnnotationUpdateStrategy].
	Deployments bool
	// CountPreparingUpdate and RecreateChangedClaims: see [base.Options].
	CountPreparingUpdate, RecreateChangedClaims bool
	// Webhooks are the settings of the webhook server for workloads; nil means no webhooks.
	Webhooks *webhook.Options
	Log      *slog.Logger
	Now      func() time.Time
}

// Controller runs workloads.
type Controller struct {
	config  *rest.Config
	asks    *discovery.DiscoveryClient
	options Options

	// unready is why the controller is not ready; nil means that the caches are synced.
	unready      atomic.Pointer[string]
	certificates *webhook.Certificates // set while unready; do not read before
}

// New returns a controller of the workloads of a cluster. It sends no request before Run. It
// returns an error if the config is invalid.
func New(c *rest.Config, o Options) (*Controller, error) {
	asks, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	made := &Controller{config: c, asks: asks, options: o}
	made.unready.Store(new(unread))
	return made, nil
}

// unread is the reason until the caches are synced.
const unread = "not all that there is has been read"

// manage returns a manager with the reconcilers of all workloads, and with the webhooks if they
// are configured.
func (c *Controller) manage(ctx context.Context) (ctrl.Manager, error) {
	o := c.options
	core, err := c.asks.ServerResourcesForGroupVersionWithContext(ctx, "v1")
	if err != nil {
		return nil, fmt.Errorf("discover the kinds of the cluster: %w", err)
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
	m, err := base.NewManager(ctx, c.config, o.Namespace, options)
	if err != nil {
		return nil, err
	}
	if o.Webhooks != nil {
		if err := webhook.Add(m, c.certificates, *o.Webhooks); err != nil {
			return nil, err
		}
	}
	settings := base.Options{
		Workers: o.Workers, InPlace: inplace.Options{Resize: resize}, Now: o.Now,
		CountPreparingUpdate: o.CountPreparingUpdate, RecreateChangedClaims: o.RecreateChangedClaims,
	}
	adds := []func(context.Context, ctrl.Manager, base.Options) error{cloneset.Add, daemonset.Add, statefulset.Add}
	if o.Deployments {
		adds = append(adds, deployment.Add)
	}
	for _, add := range adds {
		if err := add(ctx, m, settings); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Metrics returns the metrics of all workloads in the process.
func Metrics() prometheus.Gatherer { return ctrlmetrics.Registry }

// Run waits until the cluster serves the resources, then runs workloads until the context ends.
// It returns an error if the cluster cannot be asked at first, the setup fails, or the Lease is
// lost. After a lost Lease another replica leads.
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

// Ready returns "ok" if the caches are synced and webhooks, if configured, have a certificate.
// Otherwise it returns an error with the reason.
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
