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
	"github.com/keelson-io/keelson/differ"
)

const (
	// bindTimeout bounds the wait for a role to be known to the authorizer.
	bindTimeout  = 5 * time.Second
	bindInterval = 50 * time.Millisecond
)

// ServerSideApply is one request of a change.
type ServerSideApply struct {
	Patch   map[string]any
	Manager string
	Why     string // empty for the change itself
}

// Applies are the requests of a create, an update, or the second half of a
// replacement, in the order in which they are sent.
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

// Migration is the JSON patch that makes Keelson's what client-side tools own of
// an object, and drops kubectl's copy of it; nil when there is nothing to do. It
// conflicts when the object is no longer the one that was planned for.
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

// migrate makes Keelson's what client-side tools own, and returns the object as
// it is then; nil when there is nothing to migrate.
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

// verbs are what an account needs to send a change. An object that apply creates
// takes both: the API server only then finds that it is not there.
func verbs(c *differ.Change) []string {
	if c.Op == differ.OpUpdate {
		return []string{"patch"}
	}
	return []string{"patch", "create"}
}

// send applies an object server-side. With a base the object is changed only if
// it still is the base; that guard is what makes force safe. Without one it is
// created, and must not exist.
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

// bind sends again what binds a role that the API server does not know yet: its
// authorizer learns of a new role some moments after it was created, and until
// then it can't tell whether the role may be bound. Who may bind every role is
// not asked.
func bind(ctx context.Context, id differ.ID, send func() (*unstructured.Unstructured, error)) (answer *unstructured.Unstructured, err error) {
	if !isBinding(id) {
		return send()
	}
	_ = wait.PollUntilContextTimeout(ctx, bindInterval, bindTimeout, true, func(context.Context) (bool, error) {
		answer, err = send()
		return !apierrors.IsNotFound(err), nil
	})
	return answer, err
}

// Body is what is sent to apply a patch: without nulls, which server-side apply
// would take for empty values, and with UID and resourceVersion of the object
// that an update must find; nil for a create. The patch is not modified.
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

// DeleteOptions are what is sent to delete an object, if it is still the one
// that the plan was made from: in the foreground, dependents first.
func DeleteOptions(live *unstructured.Unstructured) metav1.DeleteOptions {
	uid, version, foreground := live.GetUID(), live.GetResourceVersion(), metav1.DeletePropagationForeground
	return metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		PropagationPolicy: &foreground,
	}
}
