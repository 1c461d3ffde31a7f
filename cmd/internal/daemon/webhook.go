package daemon

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/controllers/receiver"
)

// WebhookOptions set where webhooks are received.
type WebhookOptions struct {
	listen, secretFile string
}

// AddFlags adds the flags of the options.
func (o *WebhookOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "webhook-listen", "", "`ADDRESS` of the HTTP server that takes webhooks at /hook; empty: none")
	f.StringVar(&o.secretFile, "webhook-secret-file", "", "`FILE` of the secrets that webhooks are signed with, one a line;\nit is read again when it changes")
}

// TakeWebhooks serves webhooks until the returned function is called.
func (p Process) TakeWebhooks(ctx context.Context, o WebhookOptions, log *slog.Logger, metrics *prometheus.Registry, fetch func()) (func(), error) {
	switch {
	case o.listen == "" && o.secretFile == "":
		return func() {}, nil
	case o.listen == "":
		return nil, cli.Usagef("--webhook-secret-file is for webhooks: give --webhook-listen, too")
	case o.secretFile == "":
		return nil, cli.Usagef("--webhook-listen needs --webhook-secret-file: webhooks without a secret are not taken")
	}
	secrets, err := receiver.OpenFile(o.secretFile, p.Env.Now, p.Env.Redactor.Hide)
	if err != nil {
		return nil, fmt.Errorf("--webhook-secret-file: %w", err)
	}
	r := receiver.New(receiver.Options{Secrets: secrets.Secrets, Fetch: fetch, Log: log, Now: p.Env.Now})
	if err := metrics.Register(r); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	at := endpoint{what: "webhooks at /hook", address: o.listen, connections: receiver.Connections}
	return listen(ctx, log, at, r.Server())
}
