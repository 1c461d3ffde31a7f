package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/fleet"
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
	started   int
}

func (c *chaos) newWorld(ctx context.Context, s scenario) (*world, error) {
	folder := filepath.Join(c.folder, s.name)
	w := &world{
		chaos: c, name: s.name, folder: folder, rand: c.chance(s.name), ledger: oracle.NewLedger(), clear: map[string]bool{},
		lab: &cluster.Lab{Dir: filepath.Join(folder, "clusters")},
	}
	for _, dir := range []string{"logs", "captured"} {
		if err := os.MkdirAll(filepath.Join(folder, dir), 0o700); err != nil {
			return nil, fmt.Errorf("make a folder: %w", err)
		}
	}
	change := s.cluster
	change.Audit = new(cluster.AuditSecrets) // all Secrets are made up, and the oracle reads their guards
	if err := w.lab.Up(ctx, target, change, c.set); err != nil {
		return nil, fmt.Errorf("start the cluster: %w", err)
	}
	return w, nil
}

// close ends the processes and the cluster of the world. Logs stay until the end of the
// run.
func (w *world) close(ctx context.Context) error {
	w.mu.Lock()
	all := w.processes
	w.mu.Unlock()
	var errs []error
	for _, k := range all {
		errs = append(errs, k.kill())
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

// admin returns the client configuration of the administrator.
func (w *world) admin() (*rest.Config, error) { return w.client(cluster.Admin) }

// client returns the client configuration of a user, without a proxy.
func (w *world) client(user string) (*rest.Config, error) {
	path, err := w.lab.Kubeconfig(target, user)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", user, err)
	}
	c, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", user, err)
	}
	c.QPS = -1
	c.WarningHandlerWithContext = rest.NoWarnings{} // kinds are also listed that no test writes
	return c, nil
}

// dynamic returns a client with the administrator's rights.
func (w *world) dynamic() (dynamic.Interface, error) {
	c, err := w.admin()
	if err != nil {
		return nil, err
	}
	d, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return d, nil
}

// direct returns the path of Keelson's kubeconfig without a proxy.
func (w *world) direct() (string, error) {
	path, err := w.lab.Kubeconfig(target, cluster.Keelson)
	if err != nil {
		return "", fmt.Errorf("kubeconfig of keelson: %w", err)
	}
	return path, nil
}

// kubeconfig writes a kubeconfig, such as a proxy's, and returns its path. The contexts
// are called as [shardNames]; target is the current one.
func (w *world) kubeconfig(name string, content []byte) (string, error) {
	config, err := clientcmd.Load(content)
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	for _, name := range shardNames() { // each cluster needs its own context
		config.Contexts[name] = config.Contexts[config.CurrentContext]
	}
	config.CurrentContext = target
	path := w.path(name + ".kubeconfig.yaml")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("write kubeconfig: %w", err)
	}
	return path, nil
}

const apiVersion = "apiVersion: keelson.io/v1alpha1\n"

// repository makes a fleet repository with the target cluster and the given files. It
// returns the path of the repository.
func (w *world) repository(ctx context.Context, name string, files map[string]string) (string, error) {
	path := w.path("repositories", name+".git")
	all := map[string]string{
		"fleet.yaml":                           apiVersion + "kind: Fleet\nname: chaos\n",
		"clusters/" + target + "/cluster.yaml": apiVersion + "kind: Cluster\nconnection:\n  context: " + target + "\n",
	}
	maps.Copy(all, files)
	return path, fleet.Create(ctx, path, commitOf(all))
}

// push commits files to a repository. An empty content removes the file.
func (w *world) push(ctx context.Context, repository string, files map[string]string) error {
	return fleet.Push(ctx, repository, commitOf(files))
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
func (w *world) judge() ([]string, error) {
	path, err := w.lab.AuditLog(target)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	if err := w.ledger.Save(w.path("ledger.json")); err != nil {
		return nil, err
	}
	events, _, err := audit.Read(path, 0)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	var out []string
	verdict := oracle.Judge(events, w.ledger)
	for _, v := range verdict.Violations {
		out = append(out, v.String())
	}
	say("%s: the oracle read %s", w.name, verdict)
	return out, nil
}

// since returns the requests of the user keelson that were logged after a mark: watches
// when they began, other requests when they were answered.
func (w *world) since(mark int64) ([]audit.Event, error) {
	path, err := w.lab.AuditLog(target)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	events, _, err := audit.Read(path, mark)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	var out []audit.Event
	for _, e := range events {
		if e.User == cluster.Keelson && e.Watch() == (e.Stage == audit.ResponseStarted) {
			out = append(out, e)
		}
	}
	return out, nil
}

// mark returns the current end of the audit log, as an offset in bytes.
func (w *world) mark() (int64, error) {
	path, err := w.lab.AuditLog(target)
	if err != nil {
		return 0, fmt.Errorf("audit log: %w", err)
	}
	n, err := audit.End(path)
	if err != nil {
		return 0, fmt.Errorf("audit log: %w", err)
	}
	return n, nil
}

// capture saves Keelson's readable output in the cluster: Events, Deliveries and records.
// leaks searches the copies for secrets after the cluster has been removed.
func (w *world) capture(ctx context.Context) error {
	d, err := w.dynamic()
	if err != nil {
		return err
	}
	for _, gvr := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "events"},
		{Group: "events.k8s.io", Version: "v1", Resource: "events"},
		{Group: "keelson.io", Version: "v1alpha1", Resource: "deliveries"},
	} {
		list, err := d.Resource(gvr).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue // a world without a controller has no deliveries
		}
		data, err := json.Marshal(list)
		if err != nil {
			return fmt.Errorf("capture %s: %w", gvr.Resource, err)
		}
		if err := w.keepCopy(gvr.Group+"-"+gvr.Resource+".json", data); err != nil {
			return err
		}
	}
	records, err := w.inventories(ctx)
	if err != nil {
		return err
	}
	for name, r := range records {
		if w.clear[name] {
			continue
		}
		if err := w.keepCopy("record-"+name+".json", r.raw); err != nil {
			return err
		}
	}
	return nil
}

// keepCopy saves an output of Keelson, so that leaks searches it for secrets.
func (w *world) keepCopy(name string, content []byte) error {
	if err := os.WriteFile(w.path("captured", name), content, 0o600); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// hungAfter is the limit of waits without a promised duration. Even on the busiest machine
// they end much earlier.
const hungAfter = 15 * time.Minute

// until waits until condition returns nil, at most for patience. On a timeout the error
// wraps the last error of condition.
func until(ctx context.Context, patience time.Duration, condition func(context.Context) error) error {
	last := errors.New("never tried")
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := condition(ctx)
		if err == nil || ctx.Err() == nil { // an error after the end of patience is not the cause
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("not within %s: %w", patience, last)
	}
	return nil
}
