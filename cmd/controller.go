package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/net/netutil"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/controllers/delivery"
	"github.com/keelson-io/keelson/controllers/egress"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/controllers/notify"
	"github.com/keelson-io/keelson/controllers/promotion"
	"github.com/keelson-io/keelson/renderer"
)

// shutdownTimeout bounds the shutdown of an HTTP server.
const shutdownTimeout = 5 * time.Second

// Limits for the clients of metrics and probes: any client that reaches the port. A
// connection without a request ends soon, so that silent clients do not fill the memory.
// The number of connections has no limit: with one, silent clients would keep a kubelet's
// probe waiting, and the process would be restarted.
const (
	readTimeout, writeTimeout, idleTimeout = 10 * time.Second, 20 * time.Second, 5 * time.Second
	headerBytes                            = 16 << 10
)

type controllerOptions struct {
	interval    time.Duration
	listen      string
	profiles    string
	logFormat   string
	cacheDir    string
	renderCache int64
	webhooks    webhookOptions
	traces      traceOptions
	share       shareOptions
	forge       forgeOptions
	promote     bool
	push        pushOptions
	cluster     string
	egress      []string
}

func newController(a *app) *cobra.Command {
	o := controllerOptions{}
	c := &cobra.Command{
		Use:     "controller",
		GroupID: cli.GroupLoops,
		Short:   "Run the loops that keep all clusters as git says",
		Long: `Follow the repository and keep every cluster in it as it says: render, compare,
apply, watch, and set back drift. Status goes into the hub as Deliveries
(kubectl get deliveries -A, or keelson status), which is the cluster that
--kubeconfig and --context name; inside a pod it is that pod's own.

A repository that can't be read, or with --trusted-keys a branch that is not
signed or was rewound, leaves every cluster as it is. An interrupt
(SIGINT, SIGTERM) lets what was begun finish; a kill loses nothing either.

A change of a component with a pipeline goes from cluster to cluster, as the
pipeline says; Rollouts in the hub show how far it is (keelson rollout list).

What the files under notifications/ say is told to other servers, by one of the
processes that share a fleet; see keelson notify. These servers, and those that
checks of pipelines ask, stand in git: --egress says which of them may be asked,
from this process's place in the network.

With --share several of these processes, replicas, share the clusters. Each has
a Lease keelson-system/keelson-controller-… in the hub, which lists the clusters
that it works on; those of a replica that ended, or does not renew its Lease,
are taken over by the others. A replica that loses its Lease stops at once and
exits; whatever keeps it running starts it again. One cluster has one replica:
where there is no more, the others wait.

With --cluster it works on that cluster alone, which is then its own hub: the
one that --kubeconfig and --context name, or that its pod runs in, whatever the
connection in cluster.yaml says. Deliveries stand in the cluster itself. It
knows of no other cluster, so it lets no change through that has a pipeline.

The HTTP server answers /metrics, /healthz and /readyz. With --webhook-listen
another one takes webhooks of GitHub, GitLab, Gitea or Forgejo at /hook, signed
with a secret of --webhook-secret-file. A webhook only ever means "fetch now",
and the repository is fetched once a second at most.

With --forge each open pull request into the branch gets what 'keelson preview'
says of it, from where it parts from the branch: as one comment, which is kept
up to date, and as the commit status keelson/preview. It is a failure where the
change has mistakes or something is denied, an error where what changes can't be
found out, and a success else, with something held, too. Nothing that SOPS
encrypted is decrypted for that: anybody may open a pull request. A preview is
made in a process of its own, which may take the memory of --preview-memory, and
--render-memory for the chart that it renders. A forge that does not answer
changes nothing.

With --promote the process that decides about rollouts does what keelson promote
does, whenever something has passed or a tag is new: it pushes the versions that
stages of pipelines are promoted to, with the login of --push-credentials. Where
a stage says by: pullRequest it pushes to a branch keelson/promote/…, with a
pull request on the --forge, which it keeps up to date.

With --trace-endpoint an
OpenTelemetry collector gets a trace of each look at a component; one that does
not answer is not waited for. --profile-listen serves Go's profiles at
/debug/pprof, to whoever can reach it: choose a loopback address.

Exit codes: 0 stopped by a signal, 2 it can't work, or lost its Lease.`,
		Example: `  keelson controller --repo https://git.example/fleet.git --kubeconfig hub.yaml
  keelson controller --trusted-keys /etc/keelson/allowed_signers \
    --git-credentials /etc/keelson/logins.yaml
  keelson controller --share --listen 0.0.0.0:8080
  keelson controller --cluster prod-us-01 --repo https://git.example/fleet.git
  keelson controller --interval 5m --webhook-listen 0.0.0.0:9292 \
    --webhook-secret-file /etc/keelson/webhook-secret
  keelson controller --repo https://git.example/fleet.git --forge gitea \
    --forge-url https://git.example --forge-repository platform/fleet \
    --forge-token-file /etc/keelson/forge-token
  keelson controller --repo https://git.example/fleet.git --promote \
    --push-credentials /etc/keelson/writer.yaml
  keelson controller --egress prometheus.monitoring.svc:9090,*.chat.example
  KEELSON_REPO=/srv/fleet.git KEELSON_INTERVAL=5s keelson controller`,
		Args: cli.Args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("egress") && len(o.egress) == 0 {
				return cli.Usagef("--egress names no server: is a variable empty?") // it would allow all servers
			}
			return a.controller(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.DurationVar(&o.interval, "interval", 15*time.Second, "time between two looks at the repository, give or take a tenth")
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`ADDRESS` of the HTTP server; empty: none")
	f.StringVar(&o.profiles, "profile-listen", "", "`ADDRESS` that serves /debug/pprof; empty: none")
	f.StringVar(&o.logFormat, "log-format", "text", "format of the log on stderr: text or json")
	f.StringVar(&o.cacheDir, "cache-dir", "", "`FOLDER` for the clone of the repository (default: the user's cache)")
	f.Int64Var(&o.renderCache, "render-cache", 256<<20, "`BYTES` of rendered objects to keep in memory")
	f.StringVar(&o.cluster, "cluster", "", "work on this `CLUSTER` alone: the hub is that cluster")
	f.StringSliceVar(&o.egress, "egress", nil, "servers that checks of pipelines and notifications may ask: a\n`HOST`, HOST:PORT, *.DOMAIN, IP address or CIDR (default: all, but\nno address of a cloud's metadata and no other link-local one)")
	o.webhooks.add(f)
	o.forge.add(f, "put previews on the pull requests of, and open those of promotions on,\n")
	o.forge.addMemory(f)
	f.BoolVar(&o.promote, "promote", false, "push the versions that stages of pipelines are promoted to")
	o.push.add(f)
	o.share.add(f)
	o.traces.add(f)
	a.renderFlags(c)
	return c
}

func (a *app) controller(ctx context.Context, o controllerOptions) error {
	if err := cli.OneOf("--log-format", o.logFormat, "text", "json"); err != nil {
		return err
	}
	if o.interval < time.Second {
		return cli.Usagef("--interval takes at least 1s, and not %s", o.interval)
	}
	if _, err := o.traces.url(); err != nil {
		return err
	}
	if err := errors.Join(o.forge.check(), o.forge.checkMemory(), a.checkPromote(o)); err != nil {
		return err
	}
	allowed, err := egress.Parse(o.egress)
	if err != nil {
		return cli.Usagef("--egress: %w", err)
	}
	log := a.controllerLog(o.logFormat)
	a.Env.SetLog(log)
	if err := closeMemory(); err != nil {
		return err
	}
	source, hub, err := a.followedHub(ctx, log)
	if err != nil {
		return err
	}
	a.delivers = true
	repo, err := a.openRemembered(ctx, o.cacheDir, hub)
	if err != nil {
		return err
	}
	workers, err := a.renderer()
	if err != nil {
		return err
	}
	connect, follow := source.Config, source.Follow
	if o.cluster != "" {
		connect = func(context.Context, v1alpha1.Connection) (*rest.Config, error) { return rest.CopyConfig(hub), nil }
		follow = nil // the hub's own connection renews its credentials
	}
	share, err := a.share(o, hub, log)
	if err != nil {
		return err
	}
	asking := share.through(allowed.Transport())
	tracer, endTraces, err := a.traces(ctx, o.traces, share.identity, log)
	if err != nil {
		return err
	}
	defer endTraces()
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	renders := newTimed(workers, a.Env.Now)
	a.ownMetrics(metrics, renders, share)
	var c *delivery.Controller
	requests, err := a.openForge(o.forge, share.wrap(), metrics)
	if err != nil {
		return err
	}
	pulls, err := a.pulls(ctx, o, forge.LoopOptions{Forge: requests, Log: log, Registry: metrics, Told: func(err error) { c.Forge(err) }})
	if err != nil {
		return err
	}
	promotions, err := a.promotions(o, repo, requests, promotion.LoopOptions{
		Log: log, Registry: metrics, Pushed: func() { c.FetchSoon() }, Told: func(err error) { c.Promotion(err) },
	})
	if err != nil {
		return err
	}
	c, err = delivery.New(delivery.Options{
		Repo: repo, Revision: a.Revision, Interval: o.interval, Hub: share.guard(hub), Connect: share.connect(connect), Follow: follow,
		Schemas: a.Env.Schemas, Identity: share.identity, Shard: share.member, Only: o.cluster, Renderer: renderer.NewCache(renders, o.renderCache), Redactor: a.Env.Redactor, Log: log, Now: a.Env.Now, Registry: metrics, Tracer: tracer, Previews: pulls, Promotions: promotions,
		Sender: notify.NewSender(notify.Sender{Secrets: source.Secrets, Hide: a.Env.Redactor.Hide, Now: a.Env.Now}, asking),
		Egress: asking,
	})
	if err != nil {
		return err
	}
	stop, err := a.serve(ctx, log, o.listen, metrics, share.ready(c.Ready))
	if err != nil {
		return err
	}
	defer stop()
	closeProfiles, err := a.serveProfiles(ctx, o.profiles, log)
	if err != nil {
		return err
	}
	defer closeProfiles()
	closeHooks, err := a.takeWebhooks(ctx, o.webhooks, log, metrics, c.FetchSoon)
	if err != nil {
		return err
	}
	defer closeHooks()
	log.Info("keelson controller", "version", a.Env.Version, "repo", shownURL(a.Repo), "hub", hub.Host, "interval", o.interval, "identity", share.identity)
	if err := share.run(ctx, c); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

// ownMetrics registers the metrics that no package registers itself.
func (a *app) ownMetrics(r prometheus.Registerer, renders *timed, share *share) {
	r.MustRegister(renders.took)
	r.MustRegister(a.rendering.metrics()...)
	r.MustRegister(share.metrics()...)
}

// shownURL returns the URL of a repository without its password.
func shownURL(repo string) string {
	if u, err := url.Parse(repo); err == nil && u.User != nil {
		return u.Redacted()
	}
	return repo
}

func (a *app) controllerLog(format string) *slog.Logger {
	level := slog.LevelInfo
	if a.Verbose {
		level = slog.LevelDebug
	}
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(a.Env.Err, o))
	}
	return slog.New(slog.NewTextHandler(a.Env.Err, o))
}

// serve serves metrics and probes until the returned function is called.
func (a *app) serve(ctx context.Context, log *slog.Logger, address string, metrics prometheus.Gatherer, ready func() (string, error)) (func(), error) {
	if address == "" {
		return func() {}, nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		what, err := ready()
		if err != nil {
			http.Error(w, a.Env.Redactor.Text(err.Error()), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, what)
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: shutdownTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes,
	}
	return listen(ctx, log, endpoint{what: "/metrics, /healthz and /readyz", address: address}, server)
}

// endpoint describes a server and its address.
type endpoint struct {
	what, address string
	// connections bounds the open connections; 0: any number.
	connections int
}

// listen runs a server until the returned function is called.
func listen(ctx context.Context, log *slog.Logger, at endpoint, server *http.Server) (func(), error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.address)
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w; choose another address", at.what, err)
	}
	log.Info("serving "+at.what, "address", listener.Addr().String())
	if at.connections > 0 {
		listener = netutil.LimitListener(listener, at.connections)
	}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("an HTTP server ended", "serving", at.what, "error", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			log.Warn("end an HTTP server", "serving", at.what, "error", err)
		}
	}, nil
}
