package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/daemon"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/cmd/internal/rendering"
	"github.com/keelson-io/keelson/controllers/delivery"
	"github.com/keelson-io/keelson/controllers/egress"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/controllers/notify"
	"github.com/keelson-io/keelson/controllers/promotion"
	"github.com/keelson-io/keelson/controllers/shard"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

type controllerOptions struct {
	interval    time.Duration
	listen      string
	profiles    string
	logFormat   string
	cacheDir    string
	renderCache int64
	webhooks    daemon.WebhookOptions
	traces      daemon.TraceOptions
	share       daemon.ShareOptions
	forge       forgeOptions
	promote     bool
	push        pushOptions
	cluster     string
	egress      []string
}

// controllerRun is one run of controller.
type controllerRun struct {
	daemon.Process
	controllerOptions
	fleets  *fleetrepo.Opener
	renders *rendering.Local
}

func newController(inv *cli.Invocation) *cobra.Command {
	run := &controllerRun{Process: daemon.Process{Invocation: inv}, fleets: fleetrepo.New(inv), renders: rendering.New(inv)}
	o := &run.controllerOptions
	c := &cobra.Command{
		Use:     "controller",
		GroupID: cli.GroupLoops,
		Short:   "Run the loops that keep all clusters as git says",
		Long: `Controller follows the repository and keeps every cluster as git says. It
renders, compares, applies and watches, and it reverts drift. It writes its
status as Deliveries into the hub (kubectl get deliveries -A, or keelson
status). The hub is the cluster of --kubeconfig and --context; inside a pod it
is the pod's own cluster.

If the repository can't be read, every cluster stays as it is. The same holds
with --trusted-keys for a branch that is not signed or was rewound. An
interrupt (SIGINT, SIGTERM) lets begun work finish. A kill loses nothing.

A change of a component with a pipeline goes from cluster to cluster, as the
pipeline says. Rollouts in the hub show the progress (keelson rollout list).

The files under notifications/ define messages to other servers; one process of
a fleet sends them (keelson notify). The addresses of these servers, and of
servers that checks ask, are in git. --egress limits which of them get requests
from this process.

With --share several of these processes, the replicas, share the clusters. Each
replica has a Lease keelson-system/keelson-controller-… in the hub, with a list
of its clusters. When a replica ends, or does not renew its Lease, other
replicas take over its clusters. A replica that loses its Lease stops at once
and exits; its supervisor starts it again. One cluster has one replica;
replicas without a cluster wait.

With --cluster the process works on that cluster alone, which is then its own
hub. --kubeconfig and --context name it, or the pod runs in it; the connection
in cluster.yaml is not used. The Deliveries are in the cluster itself. This
process knows no other cluster, so it applies no change that has a pipeline.

The HTTP server answers /metrics, /healthz and /readyz. With --webhook-listen a
second server takes webhooks of GitHub, GitLab, Gitea or Forgejo at /hook,
signed with a secret of --webhook-secret-file. A webhook only causes a fetch,
at most one a second.

With --forge each open pull request into the branch gets a preview, as 'keelson
preview' prints it: one comment, kept up to date, and the commit status
keelson/preview. The status is failure if the change has mistakes or something
is denied, and error if the preview is not possible. Otherwise it is success,
also if something is held. A preview decrypts nothing that SOPS encrypted,
because anyone may open a pull request. It runs in a process of its own, with
at most --preview-memory, and --render-memory for its charts. A forge that does
not answer changes nothing.

With --promote the process that decides about rollouts does what 'keelson
promote' does, when a version has passed a stage or a tag is new. It pushes
with the login of --push-credentials. For a stage with by: pullRequest it
pushes to a branch keelson/promote/…, and keeps a pull request on the --forge
up to date.

With --trace-endpoint an OpenTelemetry collector gets a trace of each
reconcile. The controller does not wait for a collector that does not answer.
--profile-listen serves Go's profiles at /debug/pprof to every client that can
reach it: choose a loopback address.

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
			return run.controller(cmd.Context())
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
	o.webhooks.AddFlags(f)
	o.forge.add(f, "put previews on the pull requests of, and open those of promotions on,\n")
	o.forge.addMemory(f)
	f.BoolVar(&o.promote, "promote", false, "push the versions that stages of pipelines are promoted to")
	o.push.add(f)
	o.share.AddFlags(f)
	o.traces.AddFlags(f)
	run.renders.AddFlags(c)
	return c
}

// check reports flags with which the controller can't work.
func (run *controllerRun) check() error {
	if err := cli.OneOf("--log-format", run.logFormat, "text", "json"); err != nil {
		return err
	}
	if run.interval < time.Second {
		return cli.Usagef("--interval takes at least 1s, and not %s", run.interval)
	}
	if _, err := run.traces.URL(); err != nil {
		return err
	}
	return errors.Join(run.forge.check(), run.forge.checkMemory(), run.checkPromote())
}

func (run *controllerRun) controller(ctx context.Context) error {
	if err := run.check(); err != nil {
		return err
	}
	allowed, err := egress.Parse(run.egress)
	if err != nil {
		return cli.Usagef("--egress: %w", err)
	}
	log := run.OpenLog(run.logFormat)
	if err := daemon.CloseMemory(); err != nil {
		return err
	}
	source, hub, err := run.FollowedHub(ctx, log)
	if err != nil {
		return err
	}
	run.fleets.Delivers = true
	repo, err := run.fleets.OpenRemembered(ctx, run.cacheDir, hub)
	if err != nil {
		return err
	}
	workers, err := run.renders.Renderer()
	if err != nil {
		return err
	}
	connect, follow, group := source.Config, source.Follow, ""
	if run.cluster != "" {
		connect = func(context.Context, v1alpha1.Connection) (*rest.Config, error) { return rest.CopyConfig(hub), nil }
		follow = nil // the hub's own connection renews its credentials
		group = shard.Single
	}
	share, err := run.share.Start(run.Process, hub, group, log)
	if err != nil {
		return err
	}
	asking := share.Through(allowed.Transport())
	tracer, endTraces, err := run.StartTraces(ctx, run.traces, share.Identity, log)
	if err != nil {
		return err
	}
	defer endTraces()
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	renders := rendering.NewTimed(workers, run.Env.Now)
	run.ownMetrics(metrics, renders, share)
	loops, err := run.openLoops(ctx, repo, share, metrics, log)
	if err != nil {
		return err
	}
	c, err := delivery.New(delivery.Options{
		Repo: repo, Revision: run.Revision, Interval: run.interval, Hub: share.Guard(hub), Connect: share.Connect(connect), Follow: follow,
		Schemas: run.Env.Schemas, Identity: share.Identity, Shard: share.Member, Only: run.cluster, Renderer: renderer.NewCache(renders, run.renderCache), Redactor: run.Env.Redactor, Log: log, Now: run.Env.Now, Registry: metrics, Tracer: tracer,
		Previews: loops.previews, Promotions: loops.promotions,
		Sender: notify.NewSender(notify.Sender{Secrets: source.Secrets, Hide: run.Env.Redactor.Hide, Now: run.Env.Now}, asking),
		Egress: asking,
	})
	if err != nil {
		return err
	}
	loops.reports.setObserver(c)
	stop, err := run.serveAll(ctx, log, metrics, share.Ready(c.Ready), c.FetchSoon)
	if err != nil {
		return err
	}
	defer stop()
	log.Info("keelson controller", "version", run.Env.Version, "repo", fleetrepo.ShownURL(run.Repo), "hub", hub.Host, "interval", run.interval, "identity", share.Identity)
	if err := share.Run(ctx, c); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

// serveAll starts the HTTP servers: metrics and health, profiles, and webhooks. The returned
// function ends them.
func (run *controllerRun) serveAll(ctx context.Context, log *slog.Logger, metrics *prometheus.Registry, ready func() (string, error), fetch func()) (func(), error) {
	var stops []func()
	stop := func() {
		for _, f := range slices.Backward(stops) {
			f()
		}
	}
	for _, start := range []func() (func(), error){
		func() (func(), error) { return run.Serve(ctx, log, run.listen, metrics, ready) },
		func() (func(), error) { return run.ServeProfiles(ctx, run.profiles, log) },
		func() (func(), error) { return run.TakeWebhooks(ctx, run.webhooks, log, metrics, fetch) },
	} {
		one, err := start()
		if err != nil {
			stop()
			return nil, err
		}
		stops = append(stops, one)
	}
	return stop, nil
}

// loopObserver gets what the loops of pull requests and of promotions report.
type loopObserver interface {
	// Forge reports whether the forge answers; Promotion, whether promotions work. Nil: yes.
	Forge(err error)
	Promotion(err error)
	// FetchSoon has the repository fetched.
	FetchSoon()
}

// loopReports passes reports of the loops on to an observer.
type loopReports struct{ observer loopObserver }

// setObserver names the observer, which is the controller. The controller runs the loops, so it can
// only be constructed after them. The loops report nothing before the controller runs.
func (r *loopReports) setObserver(o loopObserver) { r.observer = o }

// controllerLoops are the loops that the controller runs besides its own. A loop that no flag asks
// for is nil.
type controllerLoops struct {
	previews   delivery.Previews
	promotions delivery.Promotions
	reports    *loopReports
}

func (run *controllerRun) openLoops(ctx context.Context, repo *registry.Repo, share *daemon.Share, metrics *prometheus.Registry, log *slog.Logger) (controllerLoops, error) {
	reports := &loopReports{}
	requests, err := run.forge.open(run.Invocation, share.Wrap(), metrics)
	if err != nil {
		return controllerLoops{}, err
	}
	pulls, err := run.pulls(ctx, forge.LoopOptions{
		Forge: requests, Log: log, Registry: metrics, Told: func(err error) { reports.observer.Forge(err) },
	})
	if err != nil {
		return controllerLoops{}, err
	}
	promotions, err := run.promotions(repo, requests, promotion.LoopOptions{
		Log: log, Registry: metrics,
		Pushed: func() { reports.observer.FetchSoon() }, Told: func(err error) { reports.observer.Promotion(err) },
	})
	return controllerLoops{previews: pulls, promotions: promotions, reports: reports}, err
}

// ownMetrics registers the metrics that no package registers itself.
func (run *controllerRun) ownMetrics(r prometheus.Registerer, renders *rendering.Timed, share *daemon.Share) {
	r.MustRegister(renders.Took)
	r.MustRegister(run.renders.Metrics()...)
	r.MustRegister(share.Metrics()...)
}

// checkPromote rejects options with which promotion is impossible.
func (run *controllerRun) checkPromote() error {
	switch {
	case !run.promote && (run.push.credentials != "" || run.push.signingKey != ""):
		return cli.Usagef("--push-credentials and --push-signing-key are for promotions: give --promote, too")
	case !run.promote:
		return nil
	case run.cluster != "":
		return cli.Usagef("--promote and --cluster contradict each other: what passes a stage is seen by who knows all clusters")
	case !run.fleets.Remote():
		return cli.Usagef("--promote pushes commits to a server, and %s is a folder: give --repo URL", run.Repo)
	case run.push.credentials == "":
		return cli.Usagef("--promote needs --push-credentials FILE, with a login that may push")
	}
	return nil
}

// promotions prepares the promotion loop with the given options; nil without --promote.
func (run *controllerRun) promotions(repo *registry.Repo, requests forge.Proposer, l promotion.LoopOptions) (delivery.Promotions, error) {
	if !run.promote {
		return nil, nil //nolint:nilnil // nothing was asked for
	}
	var err error
	if l.Promoter, err = run.push.promoter(run.Invocation, repo, requests); err != nil {
		return nil, err
	}
	return promotion.NewLoop(l)
}

// pulls prepares the loop that puts previews on pull requests; nil without a forge.
func (run *controllerRun) pulls(ctx context.Context, l forge.LoopOptions) (delivery.Previews, error) {
	if l.Forge == nil {
		return nil, nil //nolint:nilnil // nothing was asked for
	}
	// A separate clone, so that pull requests, however large, can't disturb deliveries.
	dir := run.cacheDir
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find a folder for the cache: %w", err)
		}
		dir = filepath.Join(user, "keelson")
	}
	options := run.fleets.RepoOptions(filepath.Join(dir, "proposals"))
	options.Proposals = true
	var err error
	if l.Repo, err = registry.Open(ctx, options); err != nil {
		return nil, err
	}
	if l.Preview, err = previewApart(l.Repo, options.CacheDir, run.TrustedKeys, previewLimits{render: run.renders.Limits(), memory: run.forge.memory.Value()}); err != nil {
		return nil, err
	}
	l.Revision, l.Interval, l.Version, l.Now, l.Time = run.Revision, run.interval, run.Env.Version, run.Env.Now, previewTime
	return forge.NewLoop(l)
}
