package applier

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/deletion"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

// checkKept is how long an ended Job stays in the cluster, in seconds, if no session deletes it.
const checkKept = 24 * 60 * 60

// CheckJob is the Job of a pipeline's check on a cluster. It is no object of its component: it
// lacks the component's label, and no record names it, so no plan changes or deletes it. Its name
// identifies one run.
type CheckJob struct {
	// Desired gives the account, the namespace and the danger rules. Its target is not used.
	Want Desired
	// Name of the Job, the Run that it belongs to, and the Fleet that needs it.
	Name, Run, Fleet string
	Job              *batchv1.Job
	// Confirm is called before the Job is created. An error stops the creation. Nil: no
	// confirmation is needed.
	Confirm func(context.Context) error
	// Source is the position of the Job's file.
	Source yamlfile.Position
}

// CheckError reports that a check's Job has failed, or can't be as requested. Another try needs
// another run.
type CheckError struct {
	// Message says why: condition, pod, exit code, message and events.
	Message string
}

func (e *CheckError) Error() string { return e.Message }

func checkFailed(format string, args ...any) error {
	return &CheckError{Message: fmt.Sprintf(format, args...)}
}

// jobsMapping returns the mapping of Jobs, which every cluster serves.
func jobsMapping() *meta.RESTMapping {
	return &meta.RESTMapping{
		Resource: batchv1.SchemeGroupVersion.WithResource("jobs"), GroupVersionKind: batchv1.SchemeGroupVersion.WithKind("Job"),
		Scope: meta.RESTScopeNamespace,
	}
}

func checkID(namespace, name string) differ.ID {
	return differ.ID{Group: batchv1.GroupName, Kind: "Job", Namespace: namespace, Name: name}
}

// BeginCheck creates the Job of a check, or finds it, and returns its current state. begun: the Job
// is known to have been created, and is not created again. A [*CheckError] means that the check has
// failed. After any other error the Job was not created, or this is unknown, and the call may be
// repeated.
func (c *Cluster) BeginCheck(ctx context.Context, j CheckJob, begun bool) (live map[string]any, err error) {
	m, id := jobsMapping(), checkID(j.Want.Namespace, j.Name)
	if live, err = observe.Get(ctx, c.dynamic, m, id); err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: live}
	switch {
	case live == nil && begun:
		return nil, checkFailed("it was deleted before it was seen to come to its end")
	case live == nil:
		return c.createCheck(ctx, m, id, j)
	case u.GetAnnotations()[v1alpha1.AnnotationCheckRun] != j.Run:
		return nil, checkFailed("an object of this name exists, and is not of this check: delete or rename it")
	case u.GetDeletionTimestamp() != nil && !begun:
		return nil, fmt.Errorf("%s is being deleted", id)
	}
	return live, nil
}

func (c *Cluster) createCheck(ctx context.Context, m *meta.RESTMapping, id differ.ID, j CheckJob) (map[string]any, error) {
	as, err := c.accounts.of(j.Want)
	if err != nil {
		return nil, err
	}
	o, err := j.object(id)
	if err != nil {
		return nil, err
	}
	policy, err := c.planner.policy(ctx, j.Want)
	if err != nil {
		return nil, err
	}
	change, err := c.judge.creation(ctx, o, policy)
	if err != nil {
		return nil, err
	}
	if why := refusal(change); why != "" {
		return nil, &CheckError{Message: why}
	}
	if j.Confirm != nil {
		if err := j.Confirm(ctx); err != nil {
			return nil, err
		}
	}
	answer, err := send(ctx, observe.Resource(as.dynamic, m, id), change.Patch, nil, v1alpha1.FieldManager)
	switch {
	case err == nil:
		return answer.Object, nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return nil, checkFailed("the API server refuses it: %v", err)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("namespace %s does not exist: %w", id.Namespace, err)
	}
	return nil, fmt.Errorf("create %s: %w", id, as.forbidden(ctx, m, id, err, "patch", "create"))
}

// object returns the Job to create.
func (j CheckJob) object(id differ.ID) (*renderer.Object, error) {
	job := j.Job.DeepCopy()
	job.TypeMeta = metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: id.Kind}
	job.Name, job.Namespace = id.Name, id.Namespace
	metav1.SetMetaDataLabel(&job.ObjectMeta, v1alpha1.LabelCheck, j.Want.Component)
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, v1alpha1.AnnotationCheckRun, j.Run)
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, v1alpha1.AnnotationFleet, j.Fleet)
	kept := int32(checkKept)
	job.Spec.TTLSecondsAfterFinished = &kept
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(job)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", id, err)
	}
	delete(content, "status")
	return &renderer.Object{Content: content, Source: j.Source}, nil
}

// AwaitCheck waits until the Job that [Cluster.BeginCheck] returned has ended. Nil: it is complete.
// A [*CheckError]: it has failed. Any other error is of the context or of a read, and the result is
// unknown.
func (c *Cluster) AwaitCheck(ctx context.Context, j CheckJob, live map[string]any) error {
	id, uid, last := checkID(j.Want.Namespace, j.Name), uidOf(live), live
	var end health.End
	err := observe.Follow(ctx, c.dynamic, jobsMapping(), observe.Object{ID: id, Live: live}, func(live map[string]any) bool {
		switch {
		case live == nil:
			if end = health.EndOf(last); !end.Over {
				end = health.End{Over: true, Message: "it was deleted while it ran"}
			}
		case uidOf(live) != uid:
			end = health.End{Over: true, Message: "another client replaced it while it ran"}
		default:
			last, end = live, health.EndOf(live)
		}
		return end.Over
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", id, err)
	case end.Succeeded:
		return nil
	}
	return &CheckError{Message: c.diagnoser.DiagnoseEnd(ctx, id, last, end.Message)}
}

// FoundCheck is the Job of a check that exists in a cluster, of any fleet.
type FoundCheck struct{ Component, Fleet, Run, Namespace, Name string }

// Checks returns the Jobs of all checks, with one request.
func (c *Cluster) Checks(ctx context.Context) ([]FoundCheck, error) {
	list, err := c.metadata.Resource(jobsMapping().Resource).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelCheck})
	if err != nil {
		return nil, fmt.Errorf("list the Jobs of checks: %w", err)
	}
	var out []FoundCheck
	for i := range list.Items {
		o := &list.Items[i]
		out = append(out, FoundCheck{
			Component: o.Labels[v1alpha1.LabelCheck], Namespace: o.Namespace, Name: o.Name,
			Fleet: o.Annotations[v1alpha1.AnnotationFleet], Run: o.Annotations[v1alpha1.AnnotationCheckRun],
		})
	}
	return out, nil
}

// EndCheck deletes the Job of a check, and its pods, if the Job still belongs to its run. It does
// nothing if there is none.
func (c *Cluster) EndCheck(ctx context.Context, w Desired, is FoundCheck) error {
	m, id := jobsMapping(), checkID(is.Namespace, is.Name)
	live, err := observe.Get(ctx, c.dynamic, m, id)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: live}
	if live == nil || u.GetAnnotations()[v1alpha1.AnnotationCheckRun] != is.Run || u.GetDeletionTimestamp() != nil {
		return nil
	}
	as, err := c.accounts.of(w)
	if err != nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	err = deletion.Send(ctx, deletion.OfCheck(id, u.GetUID()), observe.Resource(as.dynamic, m, id), metav1.DeleteOptions{PropagationPolicy: &background})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // gone, or changed
		return nil
	}
	return fmt.Errorf("delete %s: %w", id, as.forbidden(ctx, m, id, err, "delete"))
}
