package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/chaos/proxy"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/fleet"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// target is the name of a world's cluster, in the lab and in the fleet. The cluster is
// also its own hub.
const target = "target"

// world is the environment of one scenario: a cluster, fleet repositories, Keelson
// processes, and the ledger of their permitted writes.
type world struct {
	*chaos
	name   string
	folder string
	lab    *cluster.Lab
	rand   *rand.Rand
	// ledger holds the permitted writes and deletions. The oracle checks the audit log
	// against it.
	ledger *oracle.Ledger
	// clear are the components whose chart puts secrets into objects that aren't Secrets.
	// Their record, which is a Secret, contains these secrets, too.
	clear map[string]bool

	mu        sync.Mutex
	processes []*keelson
	proxies   []*proxy.Proxy
	started   int
}

func (c *chaos) newWorld(ctx context.Context, s scenario) *world {
	folder := filepath.Join(c.folder, s.name)
	w := &world{
		chaos: c, name: s.name, folder: folder, rand: c.chance(s.name), ledger: &oracle.Ledger{}, clear: map[string]bool{},
		lab: &cluster.Lab{Dir: filepath.Join(folder, "clusters")},
	}
	for _, dir := range []string{"logs", "captured"} {
		must.Do(os.MkdirAll(filepath.Join(folder, dir), 0o700))
	}
	change := s.cluster
	change.Audit = new(cluster.AuditSecrets) // all Secrets are made up, and the oracle reads their guards
	must.Do(w.lab.Up(ctx, target, change, c.set))
	return w
}

// close ends the processes, the proxies and the cluster of the world. Logs stay until the
// end of the run.
func (w *world) close(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, k := range w.processes {
		errs = append(errs, k.Kill())
	}
	for _, p := range w.proxies {
		p.Close()
	}
	log, err := w.lab.AuditLog(target)
	if err == nil && w.keep {
		err = os.Rename(log, w.path("audit.log"))
	}
	return errors.Join(append(errs, err, w.lab.Down(ctx, target))...)
}

func (w *world) path(elem ...string) string {
	return filepath.Join(append([]string{w.folder}, elem...)...)
}

// client returns the client configuration of a user, without a proxy.
func (w *world) client(user string) *rest.Config {
	return must.Get(harness.Config(w.lab, target, user))
}

// dynamic returns a client with the administrator's rights.
func (w *world) dynamic() dynamic.Interface { return must.Get(harness.Admin(w.lab, target)) }

// direct returns the path of Keelson's kubeconfig without a proxy.
func (w *world) direct() string { return must.Get(w.lab.Kubeconfig(target, cluster.Keelson)) }

// directNamed writes a copy of that kubeconfig, with contexts as [world.kubeconfig].
func (w *world) directNamed() string {
	return w.kubeconfig("direct", must.Get(harness.Kubeconfig(w.lab, target, cluster.Keelson)))
}

// kubeconfig writes a kubeconfig, such as a proxy's, and returns its path. The contexts
// are called as [shardNames], since each cluster needs its own; target is the current one.
func (w *world) kubeconfig(name string, content []byte) string {
	contexts := map[string][]byte{}
	for _, name := range shardNames() {
		contexts[name] = content
	}
	path := w.path(name + ".kubeconfig.yaml")
	must.Do(harness.WriteKubeconfig(path, target, contexts))
	return path
}

const apiVersion = "apiVersion: keelson.io/v1alpha1\n"

// repository makes a fleet repository with the target cluster and the given files. It
// returns the path of the repository.
func (w *world) repository(ctx context.Context, name string, files map[string]string) string {
	path := w.path("repositories", name+".git")
	all := map[string]string{
		"fleet.yaml":                           apiVersion + "kind: Fleet\nname: chaos\n",
		"clusters/" + target + "/cluster.yaml": apiVersion + "kind: Cluster\nconnection:\n  context: " + target + "\n",
	}
	maps.Copy(all, files)
	must.Do(fleet.Create(ctx, path, commitOf(all)))
	return path
}

// push commits files to a repository. An empty content removes the file.
func (w *world) push(ctx context.Context, repository string, files map[string]string) {
	must.Do(fleet.Push(ctx, repository, commitOf(files)))
}

func commitOf(files map[string]string) fleet.Commit {
	c := fleet.Commit{Files: map[string][]byte{}}
	for name, content := range files {
		c.Files[name] = nil
		if content != "" {
			c.Files[name] = []byte(content)
		}
	}
	return c
}

// judge saves the ledger, and returns the violations that the oracle finds in the audit log.
func (w *world) judge() (out []string) {
	must.Do(w.ledger.Save(w.path("ledger.json")))
	verdict := oracle.Judge(must.Get(harness.Audit(w.lab, target, 0)), w.ledger)
	for _, v := range verdict.Violations {
		out = append(out, v.String())
	}
	harness.Say("%s: the oracle read %s", w.name, verdict)
	return out
}

// since returns Keelson's requests that were logged after a mark.
func (w *world) since(mark int64) []audit.Event {
	return must.Get(harness.KeelsonRequests(w.lab, target, mark))
}

// mark returns the current end of the audit log, as an offset in bytes.
func (w *world) mark() int64 { return must.Get(harness.AuditEnd(w.lab, target)) }

// capture saves Keelson's readable output in the cluster: Events, Deliveries and records.
// leaks searches the copies for secrets after the cluster has been removed.
func (w *world) capture(ctx context.Context) {
	d := w.dynamic()
	for _, name := range []string{"v1/events", "events.k8s.io/v1/events", "keelson.io/v1alpha1/deliveries"} {
		gvr := harness.Resource(name)
		list, err := d.Resource(gvr).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue // a world without a controller has no deliveries
		}
		w.keepCopy(gvr.Group+"-"+gvr.Resource+".json", must.Get(json.Marshal(list)))
	}
	for name, r := range w.records(ctx) {
		if !w.clear[name] {
			w.keepCopy("record-"+name+".json", r.raw)
		}
	}
}

// keepCopy saves an output of Keelson, so that leaks searches it for secrets.
func (w *world) keepCopy(name string, content []byte) {
	must.Do(os.WriteFile(w.path("captured", name), content, 0o600))
}

// hungAfter is the limit of waits without a promised duration. Even on the busiest machine
// they end much earlier.
const hungAfter = 15 * time.Minute

// until waits until condition does not fail, at most for patience.
func until(ctx context.Context, patience time.Duration, condition func(context.Context)) {
	must.Limits{Patience: patience, Every: 20 * time.Millisecond}.Until(ctx, condition)
}

// object returns the object in a YAML text.
func object(text string) *unstructured.Unstructured { return must.Get(harness.Object(text)) }

// newRand returns a random source that is drawn from the world's.
func (w *world) newRand() *rand.Rand {
	return rand.New(rand.NewPCG(w.rand.Uint64(), 0)) //nolint:gosec // chance to be repeated
}
