package cmd

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/controllers/delivery"
	"github.com/keelson-io/keelson/controllers/lease"
)

// leaderOptions are called, and preset, as those of Kubernetes' own controllers.
type leaderOptions struct {
	elect                                     bool
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

func (o *leaderOptions) add(f *pflag.FlagSet) {
	f.BoolVar(&o.elect, "leader-elect", false, "work only while holding the Lease in the hub")
	f.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "how long others wait, after the last renewal that\nthey saw, until they take the Lease")
	f.DurationVar(&o.renewDeadline, "renew-deadline", 10*time.Second, "how long the holder writes without a renewal")
	f.DurationVar(&o.retryPeriod, "retry-period", 2*time.Second, "time between two tries to get or renew the Lease")
}

// office is where a controller's right to write comes from. Without leader
// election it is never in doubt.
type office struct {
	writer applier.Writer
	lease  *lease.Lease // nil: without
}

func (a *app) office(o leaderOptions, hub *rest.Config, log *slog.Logger) (*office, error) {
	identity, err := lease.Identity()
	if err != nil {
		return nil, err
	}
	if !o.elect {
		return &office{writer: applier.Writer{Identity: identity}}, nil
	}
	options := lease.Options{
		Hub: hub, Identity: identity, Log: log, Now: a.env.Now,
		Duration: o.leaseDuration, RenewDeadline: o.renewDeadline, RetryPeriod: o.retryPeriod,
	}
	if err := options.Check(); err != nil {
		return nil, usagef("--lease-duration, --renew-deadline, --retry-period: %w", err)
	}
	l, err := lease.New(options)
	if err != nil {
		return nil, err
	}
	return &office{writer: l.Writer(), lease: l}, nil
}

// guard returns settings that let writes through while the Lease is held.
func (o *office) guard(config *rest.Config) *rest.Config {
	if o.lease == nil {
		return config
	}
	config = rest.CopyConfig(config)
	config.Wrap(o.lease.Gate().Wrap)
	return config
}

type connectFunc func(context.Context, v1alpha1.Connection) (*rest.Config, error)

func (o *office) connect(next connectFunc) connectFunc {
	return func(ctx context.Context, spec v1alpha1.Connection) (*rest.Config, error) {
		config, err := next(ctx, spec)
		if err != nil {
			return nil, err
		}
		return o.guard(config), nil
	}
}

// run works, or waits for the Lease, reads git meanwhile, and then works.
func (o *office) run(ctx context.Context, c *delivery.Controller) error {
	if o.lease == nil {
		return c.Run(ctx)
	}
	waiting, chosen := context.WithCancel(ctx)
	var standby sync.WaitGroup
	standby.Go(func() { c.Standby(waiting) })
	stop := func() { chosen(); standby.Wait() }
	defer stop()
	return o.lease.Run(ctx, func(ctx context.Context) error {
		stop()
		return c.Run(ctx)
	})
}

// ready says in one word what this process does. One that waits is ready, too:
// else a new Deployment of two would never be rolled out.
func (o *office) ready(next func() error) func() (string, error) {
	return func() (string, error) {
		switch {
		case o.lease == nil:
			return "ok", next()
		case o.lease.Holds():
			return "ok: leader", next()
		default:
			return "ok: standby", next()
		}
	}
}

func (o *office) metrics() []prometheus.Collector {
	if o.lease == nil {
		return nil
	}
	return []prometheus.Collector{prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "keelson_leader", Help: fmt.Sprintf("1 while this process holds %s.", o.lease),
	}, func() float64 {
		if o.lease.Holds() {
			return 1
		}
		return 0
	})}
}
