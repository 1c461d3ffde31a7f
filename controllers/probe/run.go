package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/differ"
)

// lastWord is how long an interrupted run may take to delete what it created. The next run removes
// the rest.
const lastWord = 5 * time.Second

// Cluster is the access of a run to one cluster.
type Cluster struct {
	Dynamic dynamic.Interface
	// Mapping returns the resource of a kind, see [applier.Cluster.Mapping].
	Mapping func(context.Context, schema.GroupVersionKind) (*meta.RESTMapping, error)
	// Examine returns why an object is not healthy, see [applier.Cluster.Examine].
	Examine func(context.Context, health.Result, map[string]any) string
}

// errForeign reports an object that is not the probe's.
var errForeign = errors.New("an object of this name is there that is not this probe's: delete it, or rename the probe's subject")

// runner executes the runs of one probe.
type runner struct {
	Cluster
	probe, fleet string
	timeout      time.Duration // of a step
	now          func() time.Time
	// took is called for each step that succeeded.
	took func(kind, step string, took time.Duration)
}

// failure is a step that failed.
type failure struct {
	subject, step, message string
}

// run takes all subjects through their steps, even after a subject has failed. The error is the
// error of ctx: then there is no result.
func (r *runner) run(ctx context.Context, subjects []Subject) (failed []failure, err error) {
	for i := range subjects {
		f := r.subject(ctx, &subjects[i])
		if ctx.Err() != nil {
			return nil, fmt.Errorf("run: %w", ctx.Err())
		}
		if f != nil {
			failed = append(failed, *f)
		}
	}
	return failed, nil
}

// subject takes one subject through its steps. After a failed step it deletes the object.
func (r *runner) subject(ctx context.Context, s *Subject) *failure {
	fail := func(step string, err error) *failure { return &failure{s.Name, step, err.Error()} }
	if s.Err != nil {
		return fail(stepCreate, s.Err)
	}
	m, err := r.Mapping(ctx, s.GVK)
	if err == nil && m.Scope.Name() != meta.RESTScopeNameNamespace {
		err = fmt.Errorf("%s is not namespaced: a probe stays in its namespace", s.GVK.Kind)
	}
	if err == nil {
		err = r.remove(ctx, m, s.ID) // left by an earlier run
	}
	if err != nil {
		return fail(stepCreate, err)
	}
	var live map[string]any
	for _, step := range s.Steps {
		begun := r.now()
		if live, err = r.step(ctx, m, s, step, live); err != nil {
			if left := r.clean(ctx, m, s.ID); left != nil {
				err = fmt.Errorf("%w; and it can't be removed: %w", err, left)
			}
			return fail(step.Name, err)
		}
		r.took(s.Kind, step.Name, r.now().Sub(begun))
	}
	return nil
}

// step performs one step, and waits until the cluster has carried it out. It returns the object as
// it was seen last.
func (r *runner) step(ctx context.Context, m *meta.RESTMapping, s *Subject, step Step, live map[string]any) (map[string]any, error) {
	if step.Create == nil && step.Patch == nil {
		return nil, r.remove(ctx, m, s.ID)
	}
	if step.Create != nil && live != nil {
		if err := r.remove(ctx, m, s.ID); err != nil {
			return live, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	answer, err := r.send(ctx, m, s, step, live)
	if err != nil {
		return live, err
	}
	return r.await(ctx, m, s, answer)
}

func (r *runner) objects(m *meta.RESTMapping, id differ.ID) dynamic.ResourceInterface {
	return r.Dynamic.Resource(m.Resource).Namespace(id.Namespace)
}

func (r *runner) send(ctx context.Context, m *meta.RESTMapping, s *Subject, step Step, live map[string]any) (map[string]any, error) {
	if step.Create != nil {
		u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(step.Create)}
		answer, err := r.objects(m, s.ID).Create(ctx, u, metav1.CreateOptions{FieldManager: v1alpha1.ProbeManager})
		switch {
		case apierrors.IsAlreadyExists(err):
			return nil, fmt.Errorf("%s: %w", s.ID, errForeign)
		case apierrors.IsNotFound(err) && strings.Contains(err.Error(), "namespaces "):
			return nil, fmt.Errorf("create %s: %w; a probe creates no namespace: keelson rbac prints it with the rights in it", s.ID, err)
		case err != nil:
			return nil, fmt.Errorf("create %s: %w", s.ID, err)
		}
		return answer.Object, nil
	}
	uid := (&unstructured.Unstructured{Object: live}).GetUID()
	patch := overlaid(runtime.DeepCopyJSON(step.Patch), map[string]any{"metadata": map[string]any{"uid": string(uid)}}) // only of this object
	text, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.ID, err)
	}
	answer, err := r.objects(m, s.ID).Patch(ctx, s.ID.Name, types.MergePatchType, text, metav1.PatchOptions{FieldManager: v1alpha1.ProbeManager})
	if err != nil {
		return nil, fmt.Errorf("patch %s: %w", s.ID, err)
	}
	return answer.Object, nil
}

// await waits until an object is healthy. The error describes a timeout, or an object that can't
// become healthy.
func (r *runner) await(ctx context.Context, m *meta.RESTMapping, s *Subject, live map[string]any) (map[string]any, error) {
	uid := (&unstructured.Unstructured{Object: live}).GetUID()
	var health health.Result
	gone := false
	err := observe.Follow(ctx, r.Dynamic, m, observe.Object{ID: s.ID, Live: live}, func(now map[string]any) bool {
		if gone = now == nil || (&unstructured.Unstructured{Object: now}).GetUID() != uid; gone {
			return true
		}
		live, health = now, s.Health.Of(s.ID, now)
		return health.Health == v1alpha1.HealthHealthy || health.Health == v1alpha1.HealthDegraded
	})
	switch {
	case gone:
		return nil, fmt.Errorf("%s: another client deleted it", s.ID)
	case err != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return live, fmt.Errorf("%s: %w", s.ID, err)
	case err != nil || health.Health != v1alpha1.HealthHealthy:
		prefix := ""
		if err != nil {
			prefix = fmt.Sprintf("not in %s: ", r.timeout)
		}
		return live, errors.New(prefix + r.Examine(context.WithoutCancel(ctx), health, live)) // Examine has its own limit
	}
	return live, nil
}

// ours reports whether an object was created by this probe of this fleet.
func (r *runner) ours(live map[string]any) bool {
	u := unstructured.Unstructured{Object: live}
	return u.GetLabels()[v1alpha1.LabelProbe] == r.probe && u.GetAnnotations()[v1alpha1.AnnotationFleet] == r.fleet
}

// remove deletes an object of the probe and its dependents, and waits until it is gone. It deletes
// no object that is not the probe's: the error is then errForeign.
func (r *runner) remove(ctx context.Context, m *meta.RESTMapping, id differ.ID) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	u, err := r.delete(ctx, m, id)
	if err != nil || u == nil {
		return err
	}
	finalizers := u.GetFinalizers()
	err = observe.Follow(ctx, r.Dynamic, m, observe.Object{ID: id}, func(now map[string]any) bool {
		live := unstructured.Unstructured{Object: now}
		finalizers = live.GetFinalizers()
		return now == nil || live.GetUID() != u.GetUID()
	})
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: it is not gone after %s; its finalizers: %v", id, r.timeout, finalizers)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	return nil
}

// delete deletes an object, and returns it; nil: there was none.
func (r *runner) delete(ctx context.Context, m *meta.RESTMapping, id differ.ID) (*unstructured.Unstructured, error) {
	live, err := observe.Get(ctx, r.Dynamic, m, id)
	switch {
	case err != nil:
		return nil, err
	case live == nil:
		return nil, nil //nolint:nilnil // as said
	case !r.ours(live):
		return nil, fmt.Errorf("%s: %w", id, errForeign)
	}
	u := &unstructured.Unstructured{Object: live}
	if u.GetDeletionTimestamp() != nil {
		return u, nil
	}
	uid, foreground := u.GetUID(), metav1.DeletePropagationForeground
	err = r.objects(m, id).Delete(ctx, id.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &foreground})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("delete %s: %w", id, err)
	}
	return u, nil
}

// clean removes what a failed step has left. In an interrupted run it does not wait for the
// removal.
func (r *runner) clean(ctx context.Context, m *meta.RESTMapping, id differ.ID) error {
	if ctx.Err() == nil {
		err := r.remove(ctx, m, id)
		if errors.Is(err, errForeign) {
			return nil // the step has not left this object
		}
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWord)
	defer cancel()
	_, err := r.delete(ctx, m, id)
	return err
}

// sweep removes objects that a probe may have left behind. It skips objects that are not the
// probe's, and kinds that are no longer served.
func (r *runner) sweep(ctx context.Context, objects []v1alpha1.ProbeObject) error {
	for _, o := range objects {
		gvk := schema.FromAPIVersionAndKind(o.APIVersion, o.Kind)
		m, err := r.Mapping(ctx, gvk)
		if apis.IsNotServed(err) {
			continue
		}
		if err == nil {
			err = r.remove(ctx, m, differ.ID{Group: gvk.Group, Kind: gvk.Kind, Namespace: o.Namespace, Name: o.Name})
		}
		if err != nil && !errors.Is(err, errForeign) {
			return err
		}
	}
	return nil
}
