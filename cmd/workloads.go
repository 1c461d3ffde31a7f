package cmd

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/daemon"
	"github.com/keelson-io/keelson/controllers/workload"
	"github.com/keelson-io/keelson/controllers/workload/webhook"
)

type workloadsOptions struct {
	listen    string
	profiles  string
	logFormat string
	service   string
	port      int
	clientCA  string
	clientAs  string
	run       workload.Options
}

// workloadsRun is one run of workloads.
type workloadsRun struct{ daemon.Process }

func newWorkloads(inv *cli.Invocation) *cobra.Command {
	run := &workloadsRun{daemon.Process{Invocation: inv}}
	o := workloadsOptions{}
	c := &cobra.Command{
		Use:     "workloads",
		GroupID: cli.GroupLoops,
		Short:   "Run the workloads of apps.kruise.io inside a cluster",
		Long: `Run CloneSets and DaemonSets (apps.kruise.io) in the cluster that --kubeconfig and
--context name, or that this process has its pod in. They are OpenKruise's, field
by field: pods are created, deleted in the order that hurts least, and updated in
place, by replacement, and in partitions. The CRDs are those of
components/workload-controllers, which is all of this as a component; until the
cluster serves them it waits, and /readyz says what for.

With --webhook-service, NAMESPACE/NAME of a Service that leads to --webhook-port, it
also answers API servers: it completes and validates workloads, converts them from
and to v1alpha1, and refuses to delete what policy.kruise.io/delete-protection
protects. Every replica does, with certificates that they make and renew themselves
in the Secret NAME-certs, and tell API servers of in the webhook configurations NAME.

The webhooks answer every client that reaches --webhook-port. A client that knows the
UID of a protected object learns how much of it is left, and nothing else. With
--webhook-client-ca they answer only API servers that show the certificate of their
AdmissionConfiguration's kubeConfigFile, and then with names, too. Conversion of versions
goes without a certificate, since API servers show none there: it reads nothing.

Replicas agree by the Lease keelson-system/keelson-workloads on one that works
(--lead=false: without asking anybody). One that loses it exits; whatever keeps
it running starts it again. Whatever is killed on the way is seen by the next
look: all that it knows is in the objects.

What can't be read is refused: the condition FailedScale of the CloneSet or DaemonSet
names the field, an event tells it, and its pods stay as they are. Images aren't
pulled ahead yet. Without webhooks v1alpha1 must not be used: no webhook converts it.

The HTTP server answers /metrics, /healthz and /readyz.

Exit codes: 0 stopped by a signal, 2 it can't work, or lost its Lease.`,
		Example: `  keelson workloads --kubeconfig cluster.yaml
  keelson workloads --namespace shop --lead=false
  keelson workloads --listen 0.0.0.0:8080 --log-format json`,
		Args: cli.Args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return run.workloads(cmd.Context(), o) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVarP(&o.run.Namespace, "namespace", "n", "", "work in this `NAMESPACE` alone")
	f.BoolVar(&o.run.Lead, "lead", true, "work only while holding the Lease keelson-system/keelson-workloads")
	f.IntVar(&o.run.Workers, "workers", 4, "`NUMBER` of workloads that are looked at at once")
	f.StringVar(&o.service, "webhook-service", "", "`NAMESPACE/NAME` of the Service by which API servers reach the webhooks; empty: no webhooks")
	f.IntVar(&o.port, "webhook-port", 9443, "`PORT` of the webhooks' server")
	f.StringVar(&o.clientCA, "webhook-client-ca", "", "`FILE` of the CA, as PEM, that signs the client certificates of API servers; empty: none is asked for")
	f.StringVar(&o.clientAs, "webhook-client-name", "kube-apiserver", "common `NAME` that such a certificate must have")
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`ADDRESS` of the HTTP server; empty: none")
	f.StringVar(&o.profiles, "profile-listen", "", "`ADDRESS` that serves /debug/pprof; empty: none")
	f.StringVar(&o.logFormat, "log-format", "text", "format of the log on stderr: text or json")
	return c
}

// readClientCA reads the CA of the API servers' client certificates.
func (o *workloadsOptions) readClientCA() error {
	switch {
	case o.clientCA == "":
		return nil
	case o.run.Webhooks == nil:
		return cli.Usagef("--webhook-client-ca is for webhooks: give --webhook-service, too")
	case o.clientAs == "":
		return cli.Usagef("--webhook-client-name takes a name: any client of the CA could ask otherwise")
	}
	data, err := os.ReadFile(o.clientCA)
	if err != nil {
		return fmt.Errorf("--webhook-client-ca: %w", err)
	}
	o.run.Webhooks.ClientCAs = x509.NewCertPool()
	if !o.run.Webhooks.ClientCAs.AppendCertsFromPEM(data) {
		return cli.Usagef("--webhook-client-ca: %s has no certificate in PEM", o.clientCA)
	}
	return nil
}

// workloadsGarbage is the GOGC value: garbage in percent of the memory in use that starts a
// collection. This process runs in every cluster, beside paid workloads, and has little other work.
const workloadsGarbage = 50

func (run *workloadsRun) workloads(ctx context.Context, o workloadsOptions) error {
	if err := cli.OneOf("--log-format", o.logFormat, "text", "json"); err != nil {
		return err
	}
	if o.run.Workers < 1 {
		return cli.Usagef("--workers takes at least 1, and not %d", o.run.Workers)
	}
	if o.service != "" {
		namespace, name, ok := strings.Cut(o.service, "/")
		if !ok || namespace == "" || name == "" {
			return cli.Usagef("--webhook-service takes NAMESPACE/NAME, and not %s", o.service)
		}
		o.run.Webhooks = &webhook.Options{Port: o.port, Namespace: namespace, Service: name, Now: run.Env.Now, ClientName: o.clientAs}
	}
	if err := o.readClientCA(); err != nil {
		return err
	}
	log := run.OpenLog(o.logFormat)
	if err := daemon.CloseMemory(); err != nil {
		return err
	}
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	_, cluster, err := run.FollowedHub(ctx, log)
	if err != nil {
		return err
	}
	o.run.Log, o.run.Now = log, run.Env.Now
	c, err := workload.New(cluster, o.run)
	if err != nil {
		return err
	}
	stop, err := run.Serve(ctx, log, o.listen, workload.Metrics(), c.Ready)
	if err != nil {
		return err
	}
	defer stop()
	closeProfiles, err := run.ServeProfiles(ctx, o.profiles, log)
	if err != nil {
		return err
	}
	defer closeProfiles()
	if os.Getenv("GOGC") == "" { // GOGC, if set, takes precedence
		defer debug.SetGCPercent(debug.SetGCPercent(workloadsGarbage))
	}
	log.Info("keelson workloads", "version", run.Env.Version, "cluster", cluster.Host, "namespace", o.run.Namespace)
	if err := c.Run(ctx); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}
