// Package connection connects commands to the hub and to clusters, with the credentials of the
// kubeconfig, and reads objects of the hub.
package connection

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/controllers/connect"
	"github.com/keelson-io/keelson/controllers/lease"
	"github.com/keelson-io/keelson/registry"
)

// Connector connects to the hub and to clusters.
type Connector struct{ *cli.Invocation }

// New returns a connector that uses the settings of a command.
func New(inv *cli.Invocation) Connector { return Connector{Invocation: inv} }

// Source returns the source of credentials.
func (c Connector) Source() connect.Source {
	return connect.Source{Kubeconfig: c.Kubeconfig, Context: c.KubeContext, AllowExec: c.AllowExec, Hide: c.Env.Redactor.Hide, Version: cmp.Or(c.Env.Version, "dev")}
}

// Connect prepares the connection to a cluster. Progress may be nil.
func (c Connector) Connect(ctx context.Context, cluster *registry.Cluster, progress func(applier.Step)) (*applier.Cluster, error) {
	// All clients of a Line share one connection, and the bounds on answers.
	line, err := connect.Dial(ctx, c.Env.Now, func(ctx context.Context) (*rest.Config, error) {
		return c.Source().Config(ctx, cluster.Spec.Connection)
	}, connect.Callbacks{})
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", cluster.Name, err)
	}
	config := line.Config()
	c.Log.Debug("connecting", "cluster", cluster.Name, "server", config.Host)
	config.WarningHandler = c.Warnings()
	identity, err := lease.Identity()
	if err != nil {
		return nil, err
	}
	return applier.New(applier.Options{
		Name: cluster.Name, Config: config, Redactor: c.Env.Redactor, Shared: c.Env.Schemas, Progress: progress,
		Writer: records.Writer{Identity: identity},
	})
}

// Warnings prints the warnings of API servers.
func (c Connector) Warnings() rest.WarningHandler {
	return rest.NewWarningWriter(c.Env.Err, rest.WarningWriterOptions{Deduplicate: true})
}

// OpenHub checks -o, and connects to the hub.
func (c Connector) OpenHub() (client.Client, error) {
	if err := c.CheckFormat(); err != nil {
		return nil, err
	}
	return c.HubClient()
}

// ListHub reads all objects of a kind in the hub. It returns the error none if the hub does not
// serve the kind.
func (c Connector) ListHub(ctx context.Context, list client.ObjectList, what string, none error) error {
	hub, err := c.OpenHub()
	if err != nil {
		return err
	}
	switch err := hub.List(ctx, list, client.InNamespace(v1alpha1.Namespace)); {
	case ServesNone(err):
		return none
	case err != nil:
		return fmt.Errorf("read the %s in the hub: %w", what, err)
	}
	return nil
}

// HubClient reads and writes Keelson's own objects in the hub.
func (c Connector) HubClient() (client.WithWatch, error) {
	config, err := c.Source().Hub()
	if err != nil {
		return nil, err
	}
	config.WarningHandler = c.Warnings()
	c.Log.Debug("connecting to the hub", "server", config.Host)
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	hub, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to the hub: %w", err)
	}
	return hub, nil
}

// ServesNone reports whether the error means that the API server does not serve the kind at all.
func ServesNone(err error) bool {
	if meta.IsNoMatchError(err) {
		return true
	}
	var status apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &status) && (status.Status().Details == nil || status.Status().Details.Name == "")
}

// Bare prepares an object of the hub for output.
func Bare(o client.Object, kind string) client.Object {
	o.GetObjectKind().SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	o.SetManagedFields(nil)
	return o
}

// BareList prepares a list for output, with the given items.
func BareList[T any, P interface {
	*T
	client.Object
}](list client.ObjectList, items []T, kind string) client.ObjectList {
	list.GetObjectKind().SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
	for i := range items {
		Bare(P(&items[i]), kind)
	}
	return list
}
