package applier

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/csaupgrade"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/order"
	"github.com/keelson-io/keelson/differ"
)

const (
	// bindTimeout bounds the wait until the authorizer knows a role.
	bindTimeout  = 5 * time.Second
	bindInterval = 50 * time.Millisecond
)

// ServerSideApply is one request of a change.
type ServerSideApply struct {
	Patch   map[string]any
	Manager string
	Why     string // empty for the change itself
}

// Applies returns the requests of a create, an update, or the second half of a replacement, in the
// order in which they are sent.
func Applies(c *differ.Change) []ServerSideApply {
	var out []ServerSideApply
	if c.HandOver != nil {
		out = append(out, ServerSideApply{Patch: c.HandOver, Manager: differ.HandOverManager(), Why: ": hand over fields"})
	}
	if c.First != nil {
		out = append(out, ServerSideApply{Patch: c.First, Manager: v1alpha1.FieldManager, Why: ": remove what becomes empty"})
	}
	return append(out, ServerSideApply{Patch: c.Patch, Manager: v1alpha1.FieldManager})
}

// Migration returns the JSON patch that gives Keelson the fields that client-side tools own of an
// object, and removes kubectl's copy of the object; nil: nothing to do. It conflicts when the
// object has changed since the plan.
func Migration(c *differ.Change) ([]any, error) {
	if len(c.Migrate) == 0 {
		return nil, nil
	}
	live := &unstructured.Unstructured{Object: c.Live}
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(live, sets.New(c.Migrate...), v1alpha1.FieldManager)
	if err != nil {
		return nil, fmt.Errorf("managedFields of %s: %w", c.ID, err)
	}
	var operations []any
	if len(patch) > 0 {
		if err := json.Unmarshal(patch, &operations); err != nil {
			return nil, fmt.Errorf("managedFields of %s: %w", c.ID, err)
		}
	}
	if _, ok := live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]; ok && len(operations) > 0 {
		path := "/metadata/annotations/" + strings.ReplaceAll(corev1.LastAppliedConfigAnnotation, "/", "~1")
		operations = append(operations, map[string]any{"op": "remove", "path": path})
	}
	return operations, nil
}

// migrate gives Keelson the fields that client-side tools own, and returns the object afterwards;
// nil: nothing to migrate.
func migrate(ctx context.Context, objects dynamic.ResourceInterface, c *differ.Change) (*unstructured.Unstructured, error) {
	operations, err := Migration(c)
	if err != nil || operations == nil {
		return nil, err
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return nil, fmt.Errorf("managedFields of %s: %w", c.ID, err)
	}
	answer, err := objects.Patch(ctx, c.ID.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: v1alpha1.FieldManager})
	if err != nil {
		return nil, fmt.Errorf("take over the fields of %s in %s: %w", strings.Join(c.Migrate, ", "), c.ID, stale(err))
	}
	return answer, nil
}

// verbs returns the verbs that an account needs to send a change. An apply that creates an object
// needs both: the API server learns only during the patch that the object is missing.
func verbs(c *differ.Change) []string {
	if c.Op == differ.OpUpdate {
		return []string{"patch"}
	}
	return []string{"patch", "create"}
}

// send applies an object server-side. With a base the object is changed only if it still is the
// base, which makes force safe. Without a base the object is created, and must not exist.
func send(ctx context.Context, objects dynamic.ResourceInterface, patch map[string]any, base *unstructured.Unstructured, manager string) (*unstructured.Unstructured, error) {
	body := Body(patch, base)
	if base == nil {
		body.SetResourceVersion(unwritten)
	}
	answer, err := objects.Apply(ctx, body.GetName(), body, metav1.ApplyOptions{FieldManager: manager, Force: base != nil})
	if err != nil {
		return nil, stale(err)
	}
	return answer, nil
}

// bind repeats the request of a binding while the API server does not know its role. The authorizer
// learns of a new role some moments after its creation, and can't check before whether the role may
// be bound. An account that may bind every role skips this check.
func bind(ctx context.Context, id differ.ID, send func() (*unstructured.Unstructured, error)) (answer *unstructured.Unstructured, err error) {
	if !order.IsBinding(id) {
		return send()
	}
	_ = wait.PollUntilContextTimeout(ctx, bindInterval, bindTimeout, true, func(context.Context) (bool, error) {
		answer, err = send()
		return !apierrors.IsNotFound(err), nil
	})
	return answer, err
}

// Body returns the body that is sent to apply a patch. It has no nulls, which server-side apply
// would take for empty values. It has the UID and resourceVersion of base, the object that an
// update requires; nil for a create. The patch is not modified.
func Body(patch map[string]any, base *unstructured.Unstructured) *unstructured.Unstructured {
	body := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(patch)}
	dropNulls(body.Object)
	if base != nil {
		body.SetUID(base.GetUID())
		body.SetResourceVersion(base.GetResourceVersion())
	}
	return body
}

func dropNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			if child == nil {
				delete(v, name)
				continue
			}
			dropNulls(child)
		}
	case []any:
		for _, item := range v {
			dropNulls(item)
		}
	}
}

// DeleteOptions returns the options to delete an object if it is still in the state of the plan: in
// the foreground, dependents first.
func DeleteOptions(live *unstructured.Unstructured) metav1.DeleteOptions {
	uid, version, foreground := live.GetUID(), live.GetResourceVersion(), metav1.DeletePropagationForeground
	return metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		PropagationPolicy: &foreground,
	}
}
