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
		Long: `Workloads runs CloneSets, StatefulSets and DaemonSets (apps.kruise.io) in the
cluster of --kubeconfig and --context, or of its own pod. They have the fields and
behaviour of OpenKruise's. It creates pods, deletes the least useful ones
first, and updates them in place, by replacement, and in partitions. The
component workload-controllers has this process and its CRDs. Until the cluster
serves the CRDs, the process waits, and /readyz names what is missing.

With --webhook-service, the NAMESPACE/NAME of a Service that leads to
--webhook-port, every replica also serves webhooks. These complete and validate
workloads, convert them from and to v1alpha1, and refuse deletions that
policy.kruise.io/delete-protection forbids. The replicas make and renew the
certificates in the Secret NAME-certs, and write the authority into the webhook
configurations NAME.

The webhooks answer every client that reaches --webhook-port. A client that
knows the UID of a protected object learns how many objects it still has, and
nothing else. With --webhook-client-ca the webhooks answer only API servers
with the certificate of their AdmissionConfiguration's kubeConfigFile; these
answers name the objects. Conversions need no certificate, because API servers
show none there. A conversion reads nothing.

The Lease keelson-system/keelson-workloads decides which replica works. With
--lead=false the process works without a Lease. A replica that loses the Lease
exits; its supervisor starts it again. A killed process loses nothing, because
all its state is in the objects.

With --deployments it also divides the updates of Deployments of Kubernetes
that have the annotation workloads.keelson.io/update-strategy into batches, and leaves
pods at their revision by a partition. It changes the Deployment alone, and
gives it back when the annotation goes.

An object with an unknown or invalid field is refused: its condition
FailedScale and an event name the field, and its pods stay as they are. Images
aren't pulled ahead yet. Don't use v1alpha1 without webhooks, because only a
webhook converts it.

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
	f.BoolVar(&o.run.CountPreparingUpdate, "count-preparing-update", false, "when a CloneSet is scaled, count pods in PreparingUpdate as updated")
	f.BoolVar(&o.run.RecreateChangedClaims, "recreate-changed-claims", false, "replace the pods of a CloneSet whose volumeClaimTemplates have changed: new pods get new claims, and the data of the old claims is lost")
	f.BoolVar(&o.run.Deployments, "deployments", true, "divide the updates of Deployments that have the annotation workloads.keelson.io/update-strategy; this needs the right to patch Deployments")
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
