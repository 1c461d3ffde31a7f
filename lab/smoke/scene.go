package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/process"
)

// hub is the cluster that stores statuses. All other clusters run components.
const hub = "hub"

// keelsonUser is the user of Keelson's requests. It distinguishes them in the audit logs.
const keelsonUser = "keelson"

const componentLabel = "keelson.io/component"

// scene holds the clusters of one run.
type scene struct {
	lab      *cluster.Lab
	set      binaries.Set
	folder   string // for files of the run
	keelson  string // the binary
	clusters []string
	// workloads are the keelson workloads processes, one per cluster.
	workloads []*process.Child
}

// up starts the hub and all clusters in parallel, and the processes beside them. The testing
// cluster gets the nodes for an upgrade in partitions.
func (s *scene) up(ctx context.Context) error {
	yes, nodes := true, proxyNodes
	var wg sync.WaitGroup
	errs := make([]error, len(s.clusters)+1)
	for i, name := range append([]string{hub}, s.clusters...) {
		wg.Go(func() {
			change := cluster.Change{}
			switch name {
			case hub:
				change.ControlPlaneOnly = &yes
			case testing:
				change.Nodes = &nodes
			}
			errs[i] = s.lab.Up(ctx, name, change, s.set)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("start clusters: %w", err)
	}
	for _, name := range s.clusters {
		if err := s.startWorkloads(name); err != nil {
			return err
		}
	}
	return s.writeKubeconfig()
}

// down stops and removes everything.
func (s *scene) down(ctx context.Context) error {
	errs := []error{s.stopWorkloads()}
	for _, name := range append([]string{hub}, s.clusters...) {
		errs = append(errs, s.lab.Down(ctx, name))
	}
	return errors.Join(errs...)
}

func (s *scene) kubeconfig() string { return filepath.Join(s.folder, "kubeconfig.yaml") }

// writeKubeconfig merges the clusters' kubeconfigs into one file with a context per cluster.
func (s *scene) writeKubeconfig() error {
	merged := clientcmdapi.NewConfig()
	for _, name := range append([]string{hub}, s.clusters...) {
		path, err := s.lab.Kubeconfig(name, keelsonUser)
		if err != nil {
			return fmt.Errorf("kubeconfig of %s: %w", name, err)
		}
		one, err := clientcmd.LoadFromFile(path)
		if err != nil {
			return fmt.Errorf("kubeconfig of %s: %w", name, err)
		}
		c := one.Contexts[one.CurrentContext]
		merged.Clusters[name] = one.Clusters[c.Cluster]
		merged.AuthInfos[name] = one.AuthInfos[c.AuthInfo]
		merged.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	merged.CurrentContext = hub
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	if err := clientcmd.WriteToFile(*merged, s.kubeconfig()); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// admin returns a client configuration as admin, a different user than Keelson.
func (s *scene) admin(name string) (*rest.Config, error) {
	path, err := s.lab.Kubeconfig(name, cluster.Admin)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	c, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	c.QPS = -1
	c.WarningHandlerWithContext = rest.NoWarnings{} // about deprecated kinds that are only listed
	return c, nil
}

func (s *scene) dynamic(name string) (dynamic.Interface, error) {
	c, err := s.admin(name)
	if err != nil {
		return nil, err
	}
	d, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", name, err)
	}
	return d, nil
}

// deliveries reads the statuses from the hub, by "CLUSTER.COMPONENT".
func (s *scene) deliveries(ctx context.Context) (map[string]deliveryStatus, error) {
	d, err := s.dynamic(hub)
	if err != nil {
		return nil, err
	}
	gvr := schema.GroupVersionResource{Group: "keelson.io", Version: "v1alpha1", Resource: "deliveries"}
	list, err := d.Resource(gvr).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list deliveries: %w", err)
	}
	out := map[string]deliveryStatus{}
	for i := range list.Items {
		u := &list.Items[i]
		field := func(name string) string {
			v, _, _ := unstructured.NestedString(u.Object, "status", name)
			return v
		}
		held, _, _ := unstructured.NestedSlice(u.Object, "status", "held")
		out[u.GetName()] = deliveryStatus{
			cluster: field("cluster"), component: field("component"), version: field("version"), applied: field("appliedVersion"),
			sync: field("sync"), health: field("health"), message: field("message"), held: fmt.Sprint(held),
		}
	}
	return out, nil
}

type deliveryStatus struct {
	cluster, component, version, applied, sync, health, message, held string
}

func (d deliveryStatus) String() string {
	return fmt.Sprintf("%s/%s %s %s %s %s", d.cluster, d.component, d.version, d.sync, d.health, d.message)
}

// managed lists every object of a cluster with Keelson's label.
func (s *scene) managed(ctx context.Context, name string) ([]unstructured.Unstructured, error) {
	config, err := s.admin(name)
	if err != nil {
		return nil, err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", name, err)
	}
	d, err := s.dynamic(name)
	if err != nil {
		return nil, err
	}
	_, lists, err := disco.ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, fmt.Errorf("discover %s: %w", name, err)
	}
	var out []unstructured.Unstructured
	seen := map[string]bool{} // some kinds are served by two groups
	for _, gvr := range listable(lists) {
		found, err := d.Resource(gvr).List(ctx, metav1.ListOptions{LabelSelector: componentLabel})
		if err != nil {
			return nil, fmt.Errorf("list %s of %s: %w", gvr.Resource, name, err)
		}
		for _, u := range found.Items {
			if !seen[string(u.GetUID())] {
				out = append(out, u)
			}
			seen[string(u.GetUID())] = true
		}
	}
	return out, nil
}

func listable(lists []*metav1.APIResourceList) []schema.GroupVersionResource {
	var out []schema.GroupVersionResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue // impossible in the answer of an API server
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && !strings.Contains(r.Name, "/") {
				out = append(out, gv.WithResource(r.Name))
			}
		}
	}
	return out
}

// marks returns the current ends of the audit logs.
func (s *scene) marks() (map[string]int64, error) {
	out := map[string]int64{}
	for _, name := range append([]string{hub}, s.clusters...) {
		path, err := s.lab.AuditLog(name)
		if err != nil {
			return nil, fmt.Errorf("audit log of %s: %w", name, err)
		}
		if out[name], err = audit.End(path); err != nil {
			return nil, fmt.Errorf("audit log of %s: %w", name, err)
		}
	}
	return out, nil
}

// since returns Keelson's requests to a cluster since the marks. Each watch appears once, when it
// starts, and each other request once, when it is answered.
func (s *scene) since(name string, marks map[string]int64) ([]audit.Event, error) {
	path, err := s.lab.AuditLog(name)
	if err != nil {
		return nil, fmt.Errorf("audit log of %s: %w", name, err)
	}
	events, _, err := audit.Read(path, marks[name])
	if err != nil {
		return nil, fmt.Errorf("audit log of %s: %w", name, err)
	}
	return slices.DeleteFunc(events, func(e audit.Event) bool {
		return e.User != keelsonUser || e.Watch() != (e.Stage == audit.ResponseStarted)
	}), nil
}

// objectWrites returns the successful writes of managed objects, without records, events, dry runs
// and access reviews.
func objectWrites(events []audit.Event) []audit.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e audit.Event) bool {
		return !e.Write() || e.DryRun || e.Code >= 300 || e.Resource.Resource == "events" || e.Resource.Resource == "selfsubjectaccessreviews" ||
			e.Resource.Resource == "secrets" && e.Resource.Namespace == "keelson-system"
	})
}
