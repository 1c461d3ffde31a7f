package applier

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// namespaces creates the namespaces of a cluster that components need.
type namespaces struct {
	cluster string
	own     *account

	mu sync.Mutex
	// existing are the namespaces that existed when they were read.
	existing  map[string]bool
	mayCreate *bool // nil: not asked yet
}

func newNamespaces(cluster string, own *account) *namespaces {
	return &namespaces{cluster: cluster, own: own, existing: map[string]bool{}}
}

// reset forgets what was read.
func (n *namespaces) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.existing)
	n.mayCreate = nil
}

// ensure creates a namespace that does not exist. It belongs to no inventory: Keelson
// never deletes it.
func (n *namespaces) ensure(ctx context.Context, name string) error {
	n.mu.Lock()
	there := n.existing[name]
	n.mu.Unlock()
	if there {
		return nil
	}
	if err := n.make(ctx, name); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.existing[name] = true
	return nil
}

func (n *namespaces) forget(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.existing, name)
}

// make first tries to create the namespace, if Keelson may: the answer shows whether it
// exists. A terminating namespace exists, too; objects in it are refused later.
func (n *namespaces) make(ctx context.Context, name string) error {
	objects := n.own.dynamic.Resource(namespaceMapping().Resource)
	create := func() error {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name},
		}}
		_, err := objects.Create(ctx, u, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("cluster %s: create Namespace %s: %w", n.cluster, name, err)
		}
		return nil
	}
	refused := error(nil)
	if n.creates(ctx) {
		if refused = create(); !Refused(refused) {
			return refused
		}
	}
	found, err := objects.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && found.GetDeletionTimestamp() != nil:
		return fmt.Errorf("cluster %s: %w", n.cluster, &TerminatingError{Namespace: name})
	case err == nil:
		return nil // a quota or a webhook may refuse the creation of an existing namespace
	case refused != nil:
		return refused
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("cluster %s: read Namespace %s: %w", n.cluster, name, err)
	}
	return create() // the refusal says what to do
}

// creates reports whether Keelson may create namespaces. It asks once. With the printed
// roles it may not: an administrator creates the namespaces with the roles.
func (n *namespaces) creates(ctx context.Context) bool {
	n.mu.Lock()
	may := n.mayCreate
	n.mu.Unlock()
	if may != nil {
		return *may
	}
	allowed, err := n.own.may(ctx, "create", namespaceMapping(), differ.ID{Kind: "Namespace"})
	if err != nil {
		return false // reading the namespace suffices
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mayCreate = &allowed
	return allowed
}

func namespaceMapping() *meta.RESTMapping {
	return &meta.RESTMapping{
		Resource: corev1.SchemeGroupVersion.WithResource("namespaces"), GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"),
		Scope: meta.RESTScopeRoot,
	}
}
