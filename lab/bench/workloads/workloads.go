// Package workloads measures keelson workloads on a cluster of the lab, with nodes simulated by
// kwok. It creates a large CloneSet, updates the CloneSet in place and scales it to zero. It does the
// same with a StatefulSet. Then it
// adds many nodes, creates a DaemonSet on them and rolls the DaemonSet in place. For comparison, a
// bare loop writes the same pods equally often, which shows the limit of the API server.
//
// It prints figures, and fails only if a step does not finish.
package workloads

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/harness"

	"github.com/keelson-io/keelson/lab/harness/must"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/process"
)

const (
	name     = "workloads" // of the cluster
	perNode  = 100
	patience = 20 * time.Minute
	inFlight = 32 // requests of the bare loop, as in the controller
)

// bench is the state of one run.
type bench struct {
	dir, keelson, crds string
	pods, nodes        int
	lab                *cluster.Lab
	out                io.Writer

	config  *rest.Config
	client  client.Client
	process *process.Child
	last    time.Duration            // duration of the last step
	took    map[string]time.Duration // by the name of a step: of the first workload that had it
}

// Run measures, with the flags of the command line.
func Run(ctx context.Context, args []string, out io.Writer) (err error) {
	b := &bench{out: out, took: map[string]time.Duration{}}
	flags := flag.NewFlagSet("bench workloads", flag.ContinueOnError)
	flags.StringVar(&b.keelson, "keelson", "bin/keelson", "the program to measure")
	flags.StringVar(&b.crds, "crds", "components/workload-controllers/template/crds", "folder of the CRDs")
	flags.IntVar(&b.pods, "pods", 2000, "pods of the CloneSet and of the StatefulSet")
	flags.IntVar(&b.nodes, "nodes", 1000, "nodes of the DaemonSet")
	err = harness.ParseFlags(flags, args, "bench workloads [FLAGS]", func() bool { return flags.NArg() == 0 && b.pods > 0 && b.nodes > 0 })
	if err != nil {
		return err
	}
	programs, err := binaries.Find()
	if err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "keelson-workloads-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	b.lab = &cluster.Lab{Dir: filepath.Join(b.dir, "clusters")}
	defer func() {
		if b.process != nil {
			err = errors.Join(err, b.process.Stop(time.Minute))
		}
		err = errors.Join(err, b.lab.Down(context.WithoutCancel(ctx), name))
		if err != nil {
			fmt.Fprintln(os.Stderr, "the files of this run stay in", b.dir)
			return
		}
		err = os.RemoveAll(b.dir)
	}()
	nodes := (b.pods + perNode - 1) / perNode
	if err := b.lab.Up(ctx, name, cluster.Change{Nodes: &nodes, Audit: new(cluster.AuditMetadata)}, programs); err != nil {
		return err
	}
	return must.Try(func() {
		b.connect(ctx)
		b.cloneSet(ctx)
		b.statefulSet(ctx)
		must.Do(b.lab.Up(ctx, name, cluster.Change{Nodes: &b.nodes}, programs))
		b.daemonSet(ctx)
	})
}

// connect creates the client and installs the CRDs.
func (b *bench) connect(ctx context.Context) {
	b.config = must.Get(harness.Config(b.lab, name, cluster.Keelson))
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1beta1.AddToScheme} {
		must.Do(add(scheme))
	}
	b.client = must.Get(client.New(b.config, client.Options{Scheme: scheme}))
	must.Do(harness.InstallCRDs(ctx, must.Get(harness.Admin(b.lab, name)), b.crds))
}

// start starts a new controller, so that its usage covers one workload only.
func (b *bench) start() {
	path := must.Get(b.lab.Kubeconfig(name, cluster.Keelson))
	if b.process != nil {
		must.Do(b.process.Stop(time.Minute))
	}
	b.process = must.Get(process.StartChild(process.Spec{
		Path: b.keelson, Log: filepath.Join(b.dir, "workloads.log"), Args: []string{"workloads", "--kubeconfig", path, "--lead=false", "--listen", ""},
	}, nil))
}

// step is a change of a workload and the condition that ends the step.
type step struct {
	name   string
	change func(context.Context) (generation int64)
	look   func(context.Context) seen
	pods   int
}

// seen is the part of a status that a step observes.
type seen struct {
	generation int64
	done       bool
	counts     int32 // the number that changes during the step
}

// step makes a change, waits until it is complete, and prints its cost.
func (b *bench) step(ctx context.Context, w io.Writer, s step) {
	since := must.Get(harness.AuditEnd(b.lab, name))
	before := must.Get(b.process.Usage())
	begun := time.Now()
	generation := s.change(ctx)
	numbers := map[int32]bool{}
	must.Limits{Patience: patience, Every: 100 * time.Millisecond}.Until(ctx, func(ctx context.Context) {
		is := s.look(ctx)
		numbers[is.counts] = true
		if is.generation != generation || !is.done {
			must.Failf("not %s: the status shows %d", s.name, is.counts)
		}
	})
	b.last = time.Since(begun)
	if _, has := b.took[s.name]; !has {
		b.took[s.name] = b.last
	}
	after := must.Get(b.process.Usage())
	events := must.Get(harness.Audit(b.lab, name, since))
	fmt.Fprintf(w, "%s\t%s; the status showed %d numbers meanwhile\n", s.name, b.last.Round(100*time.Millisecond), len(numbers))
	fmt.Fprintf(w, "\tthe controller: %s of CPU, %s\n", (after.CPU - before.CPU).Round(10*time.Millisecond), writes(events, "keelson", s.pods))
	fmt.Fprintf(w, "\tthe nodes: %s\n", writes(events, "kwok", s.pods))
}

// writes returns the writes of a program per pod, by verb and resource.
func writes(events []audit.Event, program string, pods int) string {
	by := map[string]int{}
	for _, e := range events {
		if e.Write() && e.Code < 300 && strings.HasPrefix(e.UserAgent, program+"/") && e.Resource.Resource != "leases" {
			by[strings.Trim(e.Verb+" "+e.Resource.Resource+"/"+e.Resource.Subresource, "/")]++
		}
	}
	var out []string
	for _, what := range slices.SortedFunc(maps.Keys(by), func(x, y string) int { return cmp.Or(cmp.Compare(by[y], by[x]), cmp.Compare(x, y)) }) {
		out = append(out, fmt.Sprintf("%s %.2f", what, float64(by[what])/float64(pods)))
	}
	return "writes a pod: " + strings.Join(out, ", ")
}

// why explains the writes of an update in place below the table.
const why = `of the 3 writes of an update in place
  patch pods/status  closes the gate: no Service sends the pod anything more
  patch pods         has the image, the revision, and what ran before: the kubelet starts it
  patch pods/status  opens the gate, when that runs
`

// usage prints the memory of the controller since its start.
func (b *bench) usage(w io.Writer) {
	u := must.Get(b.process.Usage())
	fmt.Fprintf(w, "the controller's memory\tpeak %d MB of 120 MB, now %d MB\n", u.Peak>>20, u.RSS>>20)
}

// bare writes each pod three times, as an update in place does: status, annotation, status. The
// controller and the kubelets have to process these writes.
func (b *bench) bare(ctx context.Context, w io.Writer, of string) {
	pods := must.Get(kubernetes.NewForConfig(b.config))
	list := must.Get(pods.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "app=" + of}))
	begun := time.Now()
	work, loop := errgroup.WithContext(ctx)
	work.SetLimit(inFlight)
	for i := range list.Items {
		work.Go(func() error {
			for _, to := range []string{"False", "", "True"} {
				patch, of := fmt.Sprintf(`{"status":{"conditions":[{"type":"Bench","status":%q}]}}`, to), []string{"status"}
				if to == "" {
					patch, of = `{"metadata":{"annotations":{"bench":"1"}}}`, nil
				}
				if _, err := pods.CoreV1().Pods(metav1.NamespaceDefault).Patch(loop, list.Items[i].Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, of...); err != nil {
					return fmt.Errorf("bare loop: %w", err)
				}
			}
			return nil
		})
	}
	must.Do(work.Wait())
	if len(list.Items) == 0 {
		must.Failf("bare loop: there are no pods of %s", of)
	}
	took := time.Since(begun)
	fmt.Fprintf(w, "a bare loop of 3 writes a pod, %d in flight\t%s: the last update took %.1f times as long\n", inFlight, took.Round(100*time.Millisecond), b.last.Seconds()/took.Seconds())
}
