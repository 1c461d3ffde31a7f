package harness

import (
	"context"
	"fmt"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/lab/cluster"
)

// Config returns the client configuration of a user of a cluster. It has no rate limit, and
// drops warnings: deprecated kinds are listed, too.
func Config(lab *cluster.Lab, name, user string) (*rest.Config, error) {
	path, err := lab.Kubeconfig(name, user)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	c, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	c.QPS, c.WarningHandlerWithContext = -1, rest.NoWarnings{}
	return c, nil
}

// Admin returns a client with the administrator's rights, who is not Keelson in the audit log.
func Admin(lab *cluster.Lab, name string) (dynamic.Interface, error) {
	c, err := Config(lab, name, cluster.Admin)
	if err != nil {
		return nil, err
	}
	d, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", name, err)
	}
	return d, nil
}

// Resource returns the resource named GROUP/VERSION/RESOURCE, or VERSION/RESOURCE in the
// core group.
func Resource(name string) schema.GroupVersionResource {
	parts := strings.Split(name, "/")
	if len(parts) == 2 {
		parts = append([]string{""}, parts...)
	}
	return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}
}

// Object returns the object in a YAML text.
func Object(text string) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		return nil, fmt.Errorf("read an object: %w", err)
	}
	return u, nil
}

// Kubeconfig returns the content of a user's kubeconfig of a cluster.
func Kubeconfig(lab *cluster.Lab, name, user string) ([]byte, error) {
	path, err := lab.Kubeconfig(name, user)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	return content, nil
}

// WriteKubeconfig writes a kubeconfig with contexts of these names, each from the current
// context of a kubeconfig. current is the name of its current context.
func WriteKubeconfig(path, current string, contexts map[string][]byte) error {
	merged := clientcmdapi.NewConfig()
	merged.CurrentContext = current
	for name, content := range contexts {
		one, err := clientcmd.Load(content)
		if err != nil {
			return fmt.Errorf("kubeconfig of %s: %w", name, err)
		}
		from := one.Contexts[one.CurrentContext]
		merged.Clusters[name], merged.AuthInfos[name] = one.Clusters[from.Cluster], one.AuthInfos[from.AuthInfo]
		merged.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	if err := clientcmd.WriteToFile(*merged, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// Delivery is the status of one component on one cluster, as the hub shows it.
type Delivery struct {
	Cluster, Component, Version, Applied, Sync, Health, Revision, Message, Held, TargetHash string
}

// String returns what a person wants to know of a delivery that is not as it should be.
func (d Delivery) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s/%s %s %s %s %s", d.Cluster, d.Component, d.Version, d.Sync, d.Health, d.Message)), " ")
}

// Deliveries reads the statuses from a hub, by CLUSTER.COMPONENT. labels is a selector; empty
// selects all.
func Deliveries(ctx context.Context, hub dynamic.Interface, labels string) (map[string]Delivery, error) {
	list, err := hub.Resource(Resource("keelson.io/v1alpha1/deliveries")).List(ctx, metav1.ListOptions{LabelSelector: labels})
	if err != nil {
		return nil, fmt.Errorf("list deliveries: %w", err)
	}
	out := map[string]Delivery{}
	for i := range list.Items {
		object := list.Items[i].Object
		field := func(name string) string {
			text, _, _ := unstructured.NestedString(object, "status", name)
			return text
		}
		held, _, _ := unstructured.NestedSlice(object, "status", "held")
		out[list.Items[i].GetName()] = Delivery{
			Cluster: field("cluster"), Component: field("component"), Version: field("version"), Applied: field("appliedVersion"),
			Sync: field("sync"), Health: field("health"), Revision: field("revision"), Message: field("message"), Held: fmt.Sprint(held),
			TargetHash: field("targetHash"),
		}
	}
	return out, nil
}
