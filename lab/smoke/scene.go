package main

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

// hub is the cluster that stores statuses. All other clusters run components.
const hub = "hub"

const componentLabel = "keelson.io/component"

// scene holds the clusters of one run, and reads what Keelson did to them.
type scene struct {
	lab      *cluster.Lab
	set      binaries.Set
	folder   string // for files of the run
	keelson  string // the binary
	clusters []string
	// workloads are the keelson workloads processes, one per cluster.
	workloads []*process.Child
}

// all returns the hub and the clusters.
func (s *scene) all() []string { return append([]string{hub}, s.clusters...) }

// up starts the hub and all clusters in parallel, and the processes beside them. The testing
// cluster gets the nodes for an upgrade in partitions.
func (s *scene) up(ctx context.Context) {
	must.All(len(s.all()), func(i int) {
		change := cluster.Change{}
		switch name := s.all()[i]; name {
		case hub:
			change.ControlPlaneOnly = new(true)
		case testing:
			change.Nodes = new(proxyNodes)
		}
		must.Do(s.lab.Up(ctx, s.all()[i], change, s.set))
	})
	for _, name := range s.clusters {
		s.startWorkloads(name)
	}
	contexts := map[string][]byte{}
	for _, name := range s.all() {
		contexts[name] = must.Get(harness.Kubeconfig(s.lab, name, cluster.Keelson))
	}
	must.Do(harness.WriteKubeconfig(s.kubeconfig(), hub, contexts))
}

// startWorkloads starts a keelson workloads process beside a cluster. The nodes are simulated, so
// the pods of workload-controllers run nothing, and this process does their work. It has the rights
// of their ServiceAccount. It starts before Keelson applies the CRDs that it needs. It serves no
// webhooks, because no API server reaches it, and it is the only replica.
func (s *scene) startWorkloads(name string) {
	config := must.Get(clientcmd.Load(must.Get(harness.Kubeconfig(s.lab, name, cluster.Admin))))
	for _, user := range config.AuthInfos {
		user.Impersonate = "system:serviceaccount:" + workloadsNamespace + ":" + workloads
		user.ImpersonateGroups = []string{"system:serviceaccounts", "system:serviceaccounts:" + workloadsNamespace, "system:authenticated"}
	}
	own := filepath.Join(s.folder, name+"-workloads.yaml")
	must.Do(clientcmd.WriteToFile(*config, own))
	s.workloads = append(s.workloads, must.Get(process.StartChild(process.Spec{
		Path: s.keelson, Log: filepath.Join(s.folder, name+"-workloads.log"),
		Args: []string{"workloads", "--kubeconfig", own, "--lead=false", "--listen", ""},
	}, nil)))
}

// down stops and removes everything. A process that ended earlier is an error.
func (s *scene) down(ctx context.Context) {
	var errs []error
	for _, child := range s.workloads {
		errs = append(errs, child.Stop(30*time.Second))
	}
	s.workloads = nil
	for _, name := range s.all() {
		errs = append(errs, s.lab.Down(ctx, name))
	}
	must.Do(errors.Join(errs...))
}

// kubeconfig is the path of Keelson's kubeconfig, which has a context per cluster.
func (s *scene) kubeconfig() string { return filepath.Join(s.folder, "kubeconfig.yaml") }

// admin returns a client as admin, a different user than Keelson.
func (s *scene) admin(name string) dynamic.Interface { return must.Get(harness.Admin(s.lab, name)) }

// typed is admin with typed methods.
func (s *scene) typed(name string) kubernetes.Interface {
	return must.Get(kubernetes.NewForConfig(must.Get(harness.Config(s.lab, name, cluster.Admin))))
}

// deliveries reads the statuses from the hub, by "CLUSTER.COMPONENT".
func (s *scene) deliveries(ctx context.Context) map[string]harness.Delivery {
	return must.Get(harness.Deliveries(ctx, s.admin(hub), ""))
}

// at waits until a component runs a version on the given clusters.
func (s *scene) at(ctx context.Context, component, version string, clusters ...string) {
	until(ctx, func(ctx context.Context) {
		all := s.deliveries(ctx)
		for _, c := range clusters {
			if d := all[c+"."+component]; d.Applied != version || d.Sync != "Synced" {
				must.Failf("%s, applied %s", d, d.Applied)
			}
		}
	})
}

// managed lists every object of a cluster with Keelson's label.
func (s *scene) managed(ctx context.Context, name string) []unstructured.Unstructured {
	disco := must.Get(discovery.NewDiscoveryClientForConfig(must.Get(harness.Config(s.lab, name, cluster.Admin))))
	_, lists, err := disco.ServerGroupsAndResources()
	if !discovery.IsGroupDiscoveryFailedError(err) {
		must.Do(err)
	}
	var out []unstructured.Unstructured
	seen := map[string]bool{} // some kinds are served by two groups
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, lists)
	for gvr := range must.Get(discovery.GroupVersionResources(lists)) {
		found := must.Get(s.admin(name).Resource(gvr).List(ctx, metav1.ListOptions{LabelSelector: componentLabel}))
		for _, u := range found.Items {
			if !seen[string(u.GetUID())] {
				out = append(out, u)
			}
			seen[string(u.GetUID())] = true
		}
	}
	return out
}

// marks are positions in the clusters' audit logs. Nil is their beginning.
type marks map[string]int64

// marks returns the current ends of the audit logs.
func (s *scene) marks() marks {
	out := marks{}
	for _, name := range s.all() {
		out[name] = must.Get(harness.AuditEnd(s.lab, name))
	}
	return out
}

// since returns Keelson's requests to a cluster since the marks.
func (s *scene) since(name string, from marks) []audit.Event {
	return must.Get(harness.KeelsonRequests(s.lab, name, from[name]))
}

// writes returns Keelson's successful writes of managed objects since the marks, without records,
// events, dry runs and access reviews.
func (s *scene) writes(name string, from marks) []audit.Event {
	return slices.DeleteFunc(s.since(name, from), func(e audit.Event) bool {
		return !e.Accepted() || e.Resource.Resource == "events" || e.Resource.Resource == "selfsubjectaccessreviews" ||
			e.Resource.Resource == "secrets" && e.Resource.Namespace == "keelson-system"
	})
}

// lastWrite returns the time from a moment to Keelson's last write of an object since the marks.
func (s *scene) lastWrite(from time.Time, since marks) time.Duration {
	last := from
	for _, c := range s.clusters {
		for _, e := range s.writes(c, since) {
			if e.Time.After(last) {
				last = e.Time
			}
		}
	}
	return last.Sub(from)
}
