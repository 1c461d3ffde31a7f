package apply

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"

	"github.com/keelson-io/keelson/lab/harness"

	"github.com/keelson-io/keelson/lab/harness/must"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/lab/bench/addons"
)

// bare applies objects in a loop with some workers, without ordering, checks, records or reads. It
// is as fast as the API server allows.
func (m *measurement) bare(ctx context.Context, config *rest.Config, objects []unstructured.Unstructured) {
	must.Do(m.loop(ctx, config, len(objects), func(ctx context.Context, client dynamic.Interface, i int) error {
		return apply(ctx, client, &objects[i])
	}))
}

// recorded is the bare loop over components, with a write of a Secret before and after each
// component. It is the limit for a program that records start and end of its work in the cluster.
func (m *measurement) recorded(ctx context.Context, config *rest.Config, objects []unstructured.Unstructured) {
	must.Do(m.loop(ctx, config, m.components, func(ctx context.Context, client dynamic.Interface, i int) error {
		records := client.Resource(harness.Resource("v1/secrets")).Namespace(namespace)
		record, err := records.Create(ctx, secret(m.names[i]), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("record of %s: %w", m.names[i], err)
		}
		for j := range addons.ObjectsOfSmall {
			o := objects[i*addons.ObjectsOfSmall+j].DeepCopy()
			o.SetNamespace(namespace)
			if err := apply(ctx, client, o); err != nil {
				return err
			}
		}
		record.Object["data"] = secret("").Object["data"]
		if _, err := records.Update(ctx, record, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("record of %s: %w", m.names[i], err)
		}
		return nil
	}))
}

// secret returns a Secret about as large as Keelson's record of four objects.
func secret(name string) *unstructured.Unstructured {
	data := make([]byte, 600)
	_, _ = rand.Read(data) // never fails
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "record-" + name},
		"data": map[string]any{"record": base64.StdEncoding.EncodeToString(data)},
	}}
}

// loop runs do n times, spread over the workers.
func (m *measurement) loop(ctx context.Context, config *rest.Config, n int, do func(context.Context, dynamic.Interface, int) error) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("bare loop: %w", err)
	}
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(m.workers)
	for i := range n {
		work.Go(func() error { return do(ctx, client, i) })
	}
	return work.Wait() //nolint:wrapcheck // it is do's
}

func apply(ctx context.Context, client dynamic.Interface, o *unstructured.Unstructured) error {
	gvr, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	_, err := client.Resource(gvr).Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "bare", Force: true})
	if err != nil {
		return fmt.Errorf("bare loop: %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// ensureNamespace creates the namespace of all objects. Keelson would create it, but the bare loop
// has no order.
func ensureNamespace(ctx context.Context, config *rest.Config) {
	client := must.Get(dynamic.NewForConfig(config))
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}}
	_, err := client.Resource(harness.Resource("v1/namespaces")).Create(ctx, u, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		must.Do(err)
	}
}

// withLevel returns copies of the Deployments in objects, with the field level changed.
func withLevel(objects []unstructured.Unstructured, level string) []unstructured.Unstructured {
	var out []unstructured.Unstructured
	for i := range objects {
		if objects[i].GetKind() == "Deployment" {
			o := *objects[i].DeepCopy()
			edit(&o, func(env map[string]any) { env["value"] = level })
			out = append(out, o)
		}
	}
	return out
}

// edit calls do with the environment variable LEVEL of a Deployment, to change or read it.
func edit(deployment *unstructured.Unstructured, do func(env map[string]any)) {
	containers, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		must.Failf("%s: %d containers: %w", deployment.GetName(), len(containers), err)
	}
	container, _ := containers[0].(map[string]any)
	variables, _ := container["env"].([]any)
	if len(variables) != 1 {
		must.Failf("%s: %d variables in its container, and not one", deployment.GetName(), len(variables))
	}
	variable, _ := variables[0].(map[string]any)
	if variable["name"] != "LEVEL" {
		must.Failf("%s: its variable is %v, not LEVEL", deployment.GetName(), variable["name"])
	}
	do(variable)
	must.Do(unstructured.SetNestedSlice(deployment.Object, containers, "spec", "template", "spec", "containers"))
}

// levelsAre fails unless every Deployment in the cluster has the level that git has.
func (m *measurement) levelsAre(ctx context.Context, config *rest.Config, want []string) {
	client := must.Get(dynamic.NewForConfig(config))
	list := must.Get(client.Resource(deployments).Namespace(namespace).List(ctx, metav1.ListOptions{}))
	is := map[string]string{}
	for i := range list.Items {
		edit(&list.Items[i], func(env map[string]any) { is[list.Items[i].GetName()] = fmt.Sprint(env["value"]) })
	}
	for i, name := range m.names {
		if is[name] != want[i] {
			must.Failf("%s has level %q, and git says %q", name, is[name], want[i])
		}
	}
}
