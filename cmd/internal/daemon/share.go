package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/controllers/delivery"
	"github.com/keelson-io/keelson/controllers/lease"
	"github.com/keelson-io/keelson/controllers/shard"
)

// ShareOptions have the default durations of Kubernetes' own controllers.
type ShareOptions struct {
	Shared                                    bool
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

// AddFlags adds the flags of the options.
func (o *ShareOptions) AddFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.Shared, "share", false, "share the clusters with the other replicas,\nby Leases in the hub")
	f.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "how long others wait, after the last renewal that\nthey saw, until they take over a replica's clusters")
	f.DurationVar(&o.renewDeadline, "renew-deadline", 10*time.Second, "how long a replica writes without a renewal")
	f.DurationVar(&o.retryPeriod, "retry-period", 2*time.Second, "time between two renewals")
}

// Share grants a controller the right to write. A controller that does not share always has it.
type Share struct {
	Identity string
	Member   *shard.Member // nil: no sharing
}

// Start returns the share of a process. The argument group keeps processes with other clusters apart.
func (o *ShareOptions) Start(p Process, hub *rest.Config, group string, log *slog.Logger) (*Share, error) {
	identity, err := lease.Identity()
	if err != nil {
		return nil, err
	}
	if !o.Shared {
		return &Share{Identity: identity}, nil
	}
	options := shard.Options{Topic: p.Repo, Group: group, Options: lease.Options{
		Hub: hub, Identity: identity, Log: log, Now: p.Env.Now,
		Duration: o.leaseDuration, RenewDeadline: o.renewDeadline, RetryPeriod: o.retryPeriod,
	}}
	if err := options.Check(); err != nil {
		return nil, cli.Usagef("--lease-duration, --renew-deadline, --retry-period: %w", err)
	}
	m, err := shard.New(options)
	if err != nil {
		return nil, err
	}
	return &Share{Identity: identity, Member: m}, nil
}

// Guard returns settings that allow writes only while the Lease is held.
func (s *Share) Guard(config *rest.Config) *rest.Config {
	if s.Member == nil {
		return config
	}
	config = rest.CopyConfig(config)
	config.Wrap(s.Member.Gate().Wrap)
	return config
}

// Wrap returns a wrapper that ends requests when the Lease is lost; nil without sharing.
func (s *Share) Wrap() func(http.RoundTripper) http.RoundTripper {
	if s.Member == nil {
		return nil
	}
	return s.Member.Gate().Wrap
}

// Through returns a transport whose requests end when the Lease is lost.
func (s *Share) Through(t http.RoundTripper) http.RoundTripper {
	if wrap := s.Wrap(); wrap != nil {
		return wrap(t)
	}
	return t
}

type connectFunc func(context.Context, v1alpha1.Connection) (*rest.Config, error)

// Connect returns next with the replica's guard: writes fail while the replica's Lease isn't held.
func (s *Share) Connect(next connectFunc) connectFunc {
	return func(ctx context.Context, spec v1alpha1.Connection) (*rest.Config, error) {
		config, err := next(ctx, spec)
		if err != nil {
			return nil, err
		}
		return s.Guard(config), nil
	}
}

// Run runs the controller. With sharing, it reads the clusters to share first.
func (s *Share) Run(ctx context.Context, c *delivery.Controller) error {
	if s.Member == nil {
		return c.Run(ctx)
	}
	c.Learn(ctx)
	return s.Member.Run(ctx, c.Run)
}

// Ready describes this process in one line. A replica without clusters is ready, too. Otherwise a
// Deployment with more replicas than clusters would never be rolled out.
func (s *Share) Ready(next func() error) func() (string, error) {
	return func() (string, error) {
		switch {
		case s.Member == nil:
			return "ok", next()
		case !s.Member.Holds():
			return "ok: no lease", next()
		}
		now := s.Member.Stats()
		return fmt.Sprintf("ok: %d of %d clusters, %d replicas", now.Held, now.Clusters, now.Replicas), next()
	}
}

// Metrics returns the collectors of a shared controller; none if the controller does not share.
func (s *Share) Metrics() []prometheus.Collector {
	if s.Member == nil {
		return nil
	}
	gauge := func(name, help string, value func(shard.Stats) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value(s.Member.Stats())) })
	}
	counter := func(from string, value func(shard.Stats) int) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "keelson_share_takeovers_total", Help: "Clusters that this replica took from another one, which gave them away or is dead.",
			ConstLabels: prometheus.Labels{"from": from},
		}, func() float64 { return float64(value(s.Member.Stats())) })
	}
	return []prometheus.Collector{
		gauge("keelson_share_clusters", "Clusters that this replica works on.", func(s shard.Stats) int { return s.Held }),
		gauge("keelson_share_replicas", "Replicas that share the clusters, as this one sees it.", func(s shard.Stats) int { return s.Replicas }),
		counter("alive", func(s shard.Stats) int { return s.Handed }),
		counter("dead", func(s shard.Stats) int { return s.TakenOver }),
	}
}
