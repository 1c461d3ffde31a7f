package applier

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// ensureNamespace creates a namespace that does not exist. It belongs to no inventory: Keelson
// never deletes it.
func (c *Cluster) ensureNamespace(ctx context.Context, name string) error {
	c.mu.Lock()
	there := c.namespaces[name]
	c.mu.Unlock()
	if there {
		return nil
	}
	if err := c.makeNamespace(ctx, name); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.namespaces[name] = true
	return nil
}

func (c *Cluster) forgetNamespace(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.namespaces, name)
}

// distrustCache makes later reads ask the API server for an object that the cache lacks.
func (c *Cluster) distrustCache(id differ.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.distrusted[id] = true
}

// makeNamespace first tries to create the namespace, if Keelson may: the answer shows whether it
// exists. A terminating namespace exists, too; objects in it are refused later.
func (c *Cluster) makeNamespace(ctx context.Context, name string) error {
	namespaces := c.dynamic.Resource(namespaceMapping().Resource)
	create := func() error {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name},
		}}
		_, err := namespaces.Create(ctx, u, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("cluster %s: create Namespace %s: %w", c.name, name, err)
		}
		return nil
	}
	refused := error(nil)
	if c.createsNamespaces(ctx) {
		if refused = create(); !Refused(refused) {
			return refused
		}
	}
	found, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && found.GetDeletionTimestamp() != nil:
		return fmt.Errorf("cluster %s: %w", c.name, &TerminatingError{Namespace: name})
	case err == nil:
		return nil // a quota or a webhook may refuse the creation of an existing namespace
	case refused != nil:
		return refused
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("cluster %s: read Namespace %s: %w", c.name, name, err)
	}
	return create() // the refusal says what to do
}

// createsNamespaces reports whether Keelson may create namespaces. It asks once. With the printed
// roles it may not: an administrator creates the namespaces with the roles.
func (c *Cluster) createsNamespaces(ctx context.Context) bool {
	c.mu.Lock()
	may := c.mayCreate
	c.mu.Unlock()
	if may != nil {
		return *may
	}
	allowed, err := (&account{dynamic: c.dynamic}).may(ctx, "create", namespaceMapping(), differ.ID{Kind: "Namespace"})
	if err != nil {
		return false // reading the namespace suffices
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mayCreate = &allowed
	return allowed
}

func namespaceMapping() *meta.RESTMapping {
	return &meta.RESTMapping{
		Resource: corev1.SchemeGroupVersion.WithResource("namespaces"), GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"),
		Scope: meta.RESTScopeRoot,
	}
}
