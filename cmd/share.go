package cmd

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

// shareOptions have the default durations of Kubernetes' own controllers.
type shareOptions struct {
	share                                     bool
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

func (o *shareOptions) add(f *pflag.FlagSet) {
	f.BoolVar(&o.share, "share", false, "share the clusters with the other replicas,\nby Leases in the hub")
	f.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "how long others wait, after the last renewal that\nthey saw, until they take over a replica's clusters")
	f.DurationVar(&o.renewDeadline, "renew-deadline", 10*time.Second, "how long a replica writes without a renewal")
	f.DurationVar(&o.retryPeriod, "retry-period", 2*time.Second, "time between two renewals")
}

// share grants a controller the right to write. A controller that does not share always has it.
type share struct {
	identity string
	member   *shard.Member // nil: no sharing
}

func (a *app) share(o controllerOptions, hub *rest.Config, log *slog.Logger) (*share, error) {
	identity, err := lease.Identity()
	if err != nil {
		return nil, err
	}
	if !o.share.share {
		return &share{identity: identity}, nil
	}
	options := shard.Options{Topic: a.Repo, Options: lease.Options{
		Hub: hub, Identity: identity, Log: log, Now: a.Env.Now,
		Duration: o.share.leaseDuration, RenewDeadline: o.share.renewDeadline, RetryPeriod: o.share.retryPeriod,
	}}
	if o.cluster != "" {
		options.Group = shard.Single
	}
	if err := options.Check(); err != nil {
		return nil, cli.Usagef("--lease-duration, --renew-deadline, --retry-period: %w", err)
	}
	m, err := shard.New(options)
	if err != nil {
		return nil, err
	}
	return &share{identity: identity, member: m}, nil
}

// guard returns settings that allow writes only while the Lease is held.
func (s *share) guard(config *rest.Config) *rest.Config {
	if s.member == nil {
		return config
	}
	config = rest.CopyConfig(config)
	config.Wrap(s.member.Gate().Wrap)
	return config
}

// wrap returns a wrapper that ends requests when the Lease is lost; nil without sharing.
func (s *share) wrap() func(http.RoundTripper) http.RoundTripper {
	if s.member == nil {
		return nil
	}
	return s.member.Gate().Wrap
}

// through returns a transport whose requests end when the Lease is lost.
func (s *share) through(t http.RoundTripper) http.RoundTripper {
	if wrap := s.wrap(); wrap != nil {
		return wrap(t)
	}
	return t
}

type connectFunc func(context.Context, v1alpha1.Connection) (*rest.Config, error)

func (s *share) connect(next connectFunc) connectFunc {
	return func(ctx context.Context, spec v1alpha1.Connection) (*rest.Config, error) {
		config, err := next(ctx, spec)
		if err != nil {
			return nil, err
		}
		return s.guard(config), nil
	}
}

// run runs the controller. With sharing, it reads the clusters to share first.
func (s *share) run(ctx context.Context, c *delivery.Controller) error {
	if s.member == nil {
		return c.Run(ctx)
	}
	c.Learn(ctx)
	return s.member.Run(ctx, c.Run)
}

// ready describes this process in one line. A replica without clusters is ready, too. Otherwise a
// Deployment with more replicas than clusters would never be rolled out.
func (s *share) ready(next func() error) func() (string, error) {
	return func() (string, error) {
		switch {
		case s.member == nil:
			return "ok", next()
		case !s.member.Holds():
			return "ok: no lease", next()
		}
		now := s.member.Stats()
		return fmt.Sprintf("ok: %d of %d clusters, %d replicas", now.Held, now.Clusters, now.Replicas), next()
	}
}

func (s *share) metrics() []prometheus.Collector {
	if s.member == nil {
		return nil
	}
	gauge := func(name, help string, value func(shard.Stats) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value(s.member.Stats())) })
	}
	counter := func(from string, value func(shard.Stats) int) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "keelson_share_takeovers_total", Help: "Clusters that this replica took from another one, which gave them away or is dead.",
			ConstLabels: prometheus.Labels{"from": from},
		}, func() float64 { return float64(value(s.member.Stats())) })
	}
	return []prometheus.Collector{
		gauge("keelson_share_clusters", "Clusters that this replica works on.", func(s shard.Stats) int { return s.Held }),
		gauge("keelson_share_replicas", "Replicas that share the clusters, as this one sees it.", func(s shard.Stats) int { return s.Replicas }),
		counter("alive", func(s shard.Stats) int { return s.Handed }),
		counter("dead", func(s shard.Stats) int { return s.TakenOver }),
	}
}
