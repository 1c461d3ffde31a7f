package health

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// What a diagnosis reads and returns is bounded. It is part of a status and of a log line, and the
// author of a container chooses the texts.
const (
	diagnosedObjects = 3
	diagnosedPods    = 200
	diagnosedEvents  = 200
	shownEvents      = 3
	shownText        = 300 // bytes of one text from the cluster
	diagnoseTimeout  = 10 * time.Second
)

// Unhealthy is an object that is not healthy, with its content as it was last read; nil: it does
// not exist.
type Unhealthy struct {
	Result
	Live map[string]any
}

// Diagnoser explains why objects are not healthy. It reads their pods and events from the cluster.
type Diagnoser struct{ client dynamic.Interface }

// NewDiagnoser returns a Diagnoser that reads with a client.
func NewDiagnoser(client dynamic.Interface) Diagnoser { return Diagnoser{client} }

// Diagnose explains why objects are not healthy: which object, which condition, which pod, and their
// last events. Empty: there are no objects. It reads pods and events, so call it at the end of a
// wait. The text names what can't be read.
func (d Diagnoser) Diagnose(ctx context.Context, objects ...Unhealthy) string {
	ctx, cancel := context.WithTimeout(ctx, diagnoseTimeout)
	defer cancel()
	slices.SortStableFunc(objects, func(x, y Unhealthy) int {
		switch {
		case worse(x.Health, y.Health):
			return -1
		case worse(y.Health, x.Health):
			return 1
		}
		return 0
	})
	var out []string
	for i, p := range objects {
		if i == diagnosedObjects {
			out = append(out, fmt.Sprintf("and %d more objects are not healthy", len(objects)-i))
			break
		}
		out = append(out, d.examine(ctx, p))
	}
	return strings.Join(out, "; ")
}

// DiagnoseEnd explains how an object that ends, such as a Job, has ended.
func (d Diagnoser) DiagnoseEnd(ctx context.Context, id differ.ID, live map[string]any, message string) string {
	text := d.Diagnose(ctx, Unhealthy{Result{ID: id, Health: v1alpha1.HealthDegraded, Message: message}, live})
	return strings.TrimPrefix(text, id.String()+": ")
}

// PodTrouble returns which pod of unhealthy objects does not start, and why: for example a
// missing image, which the object's own status shows only after its deadline. Empty: no such pod is
// known. It only lists pods, so it may be called during a wait. It ignores read errors, which
// Diagnose reports.
func (d Diagnoser) PodTrouble(ctx context.Context, objects []Unhealthy) string {
	ctx, cancel := context.WithTimeout(ctx, diagnoseTimeout)
	defer cancel()
	for _, o := range objects[:min(len(objects), diagnosedObjects)] {
		worst, err := d.worstPod(ctx, o)
		if err == nil && worst.rank >= troubled {
			return fmt.Sprintf("%s: %s; pod %s: %s", o.ID, bounded(o.Message), worst.Name, worst.trouble)
		}
	}
	return ""
}

// examine explains the state of one object.
func (d Diagnoser) examine(ctx context.Context, p Unhealthy) string {
	text := fmt.Sprintf("%s: %s", p.ID, bounded(p.Message))
	if p.Live == nil {
		return text
	}
	if worst, ok := worstCondition(p.Live); ok && !strings.Contains(p.Message, cmp.Or(worst.message, worst.reason, worst.kind)) {
		text += "; its " + bounded(worst.String())
	}
	seen := []*unstructured.Unstructured{{Object: p.Live}}
	switch worst, err := d.worstPod(ctx, p); {
	case err != nil:
		text += fmt.Sprintf("; its pods can't be read: %s", bounded(err.Error()))
	case worst.rank > 0:
		text += fmt.Sprintf("; pod %s: %s", worst.Name, worst.trouble)
		if string(worst.UID) != uidOf(p.Live) {
			seen = append(seen, named(worst.Pod))
		}
	}
	events, err := d.lastEvents(ctx, seen)
	switch {
	case err != nil:
		text += fmt.Sprintf("; its events can't be read: %s", bounded(err.Error()))
	case len(events) > 0:
		text += "; last events: " + strings.Join(events, ", ")
	}
	return text
}

func uidOf(live map[string]any) string {
	return string((&unstructured.Unstructured{Object: live}).GetUID())
}

func named(pod *corev1.Pod) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetUID(pod.UID)
	u.SetNamespace(pod.Namespace)
	return u
}

// worstCondition returns the condition that best explains a failure.
func worstCondition(live map[string]any) (condition, bool) {
	bad := []string{"Failed", "FailureTarget", "Stalled", "ReplicaFailure", "Degraded"}
	worst, rank := condition{}, 0
	for _, c := range conditionsOf(live) {
		of := 0
		switch {
		case slices.Contains(bad, c.kind) && c.status == "True":
			of = 4
		case c.kind == "Progressing" && c.status == "False":
			of = 3
		case !slices.Contains(bad, c.kind) && c.status == "False":
			of = 2
		case c.status == "Unknown":
			of = 1
		}
		if of > rank {
			worst, rank = c, of
		}
	}
	return worst, rank > 0
}

// troubledPod is a pod with its problem.
type troubledPod struct {
	*corev1.Pod
	rank    int // how bad it is; 0: there is no such pod
	trouble string
}

// troubled is the lowest rank of a pod that waiting alone may not help. It has failed, ended, or is
// not scheduled, or it waits for something other than its normal start.
const troubled = 4

// worstPod returns the pod of an object with the worst problem.
func (d Diagnoser) worstPod(ctx context.Context, p Unhealthy) (troubledPod, error) {
	pods, err := d.podsOf(ctx, p)
	if err != nil {
		return troubledPod{}, err
	}
	var worst troubledPod
	for i := range pods {
		pod := &pods[i]
		rank, text := podTrouble(pod)
		newer := worst.Pod != nil && rank == worst.rank && worst.CreationTimestamp.Before(&pod.CreationTimestamp)
		if rank > worst.rank || rank > 0 && newer {
			worst = troubledPod{pod, rank, text}
		}
	}
	return worst, nil
}

// podsOf returns the pods that an object's selector matches, without pods whose controller is an
// earlier object of the same name.
func (d Diagnoser) podsOf(ctx context.Context, p Unhealthy) ([]corev1.Pod, error) {
	if p.ID.Group == "" && p.ID.Kind == "Pod" {
		pod, err := asPod(p.Live)
		return []corev1.Pod{pod}, err
	}
	spec, _ := p.Live["spec"].(map[string]any)
	raw, ok := spec["selector"].(map[string]any)
	if !ok || p.ID.Group != "apps" && p.ID.Group != "batch" {
		return nil, nil
	}
	var selector metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &selector); err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	list, err := d.client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(p.ID.Namespace).
		List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&selector), Limit: diagnosedPods})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var out []corev1.Pod
	for i := range list.Items {
		owner := metav1.GetControllerOf(&list.Items[i])
		if owner != nil && owner.Kind == p.ID.Kind && string(owner.UID) != uidOf(p.Live) {
			continue // of an earlier object of this name
		}
		pod, err := asPod(list.Items[i].Object)
		if err != nil {
			return nil, err
		}
		out = append(out, pod)
	}
	return out, nil
}

func asPod(object map[string]any) (corev1.Pod, error) {
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &pod); err != nil {
		return pod, fmt.Errorf("decode a pod: %w", err)
	}
	return pod, nil
}

// podTrouble returns the problem of a pod, and its rank; 0: none.
func podTrouble(pod *corev1.Pod) (rank int, trouble string) {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if of, text := containerTrouble(s); of > rank {
			rank, trouble = of, fmt.Sprintf("container %s %s", s.Name, text)
		}
	}
	if pod.Status.Phase == corev1.PodFailed && rank < 4 {
		rank, trouble = 4, "failed"
		if why := strings.Join(nonEmpty(pod.Status.Reason, pod.Status.Message), ": "); why != "" {
			trouble += ": " + bounded(why)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && rank < 4 {
			rank, trouble = 4, fmt.Sprintf("is not scheduled: %s: %s", c.Reason, bounded(c.Message))
		}
	}
	if rank < 2 && pod.DeletionTimestamp != nil {
		rank, trouble = 2, "is being deleted"
	}
	return rank, trouble
}

func containerTrouble(s corev1.ContainerStatus) (rank int, trouble string) {
	switch {
	case s.State.Waiting != nil:
		rank = 5
		if reason := s.State.Waiting.Reason; reason == "ContainerCreating" || reason == "PodInitializing" {
			rank = 1
		}
		trouble = "waits: " + bounded(strings.Join(nonEmpty(s.State.Waiting.Reason, s.State.Waiting.Message), ": "))
	case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
		rank, trouble = 4, ended(s.State.Terminated)
	case s.State.Running != nil && !s.Ready:
		rank, trouble = 3, "runs and is not ready"
	}
	if last := s.LastTerminationState.Terminated; last != nil && rank > 1 {
		trouble += ", last time it " + ended(last)
	}
	if s.RestartCount > 0 && rank > 1 {
		trouble += fmt.Sprintf(", restarted %d times", s.RestartCount)
	}
	return rank, trouble
}

func ended(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("ended with exit code %d", t.ExitCode)
	if why := strings.Join(nonEmpty(t.Reason, t.Message), ": "); why != "" {
		text += " (" + bounded(why) + ")"
	}
	return text
}

// lastEvents returns the newest events about objects, one line each.
func (d Diagnoser) lastEvents(ctx context.Context, objects []*unstructured.Unstructured) ([]string, error) {
	var events []corev1.Event
	for _, u := range objects {
		if u.GetUID() == "" || u.GetNamespace() == "" {
			continue // events of cluster-scoped objects may be in any namespace
		}
		list, err := d.client.Resource(corev1.SchemeGroupVersion.WithResource("events")).Namespace(u.GetNamespace()).
			List(ctx, metav1.ListOptions{
				FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(u.GetUID())).String(), Limit: diagnosedEvents,
			})
		if err != nil {
			return nil, fmt.Errorf("list events: %w", err)
		}
		for i := range list.Items {
			var e corev1.Event
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &e); err != nil {
				return nil, fmt.Errorf("decode an event: %w", err)
			}
			events = append(events, e)
		}
	}
	slices.SortStableFunc(events, func(x, y corev1.Event) int { return happened(y).Compare(happened(x)) })
	var out []string
	for _, e := range events[:min(len(events), shownEvents)] {
		text := e.Reason
		if n := max(e.Count, countOf(e.Series)); n > 1 {
			text += fmt.Sprintf(" ×%d", n)
		}
		out = append(out, text+": "+bounded(e.Message))
	}
	return out, nil
}

func countOf(s *corev1.EventSeries) int32 {
	if s == nil {
		return 0
	}
	return s.Count
}

// happened returns when an event last happened, from whichever field has it.
func happened(e corev1.Event) time.Time {
	last := e.LastTimestamp.Time
	if e.Series != nil && e.Series.LastObservedTime.After(last) {
		last = e.Series.LastObservedTime.Time
	}
	if e.EventTime.After(last) {
		last = e.EventTime.Time
	}
	if last.IsZero() {
		last = e.CreationTimestamp.Time
	}
	return last
}

// bounded returns a text from the cluster as one line of bounded length.
func bounded(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > shownText {
		text = strings.ToValidUTF8(text[:shownText], "") + "…"
	}
	return text
}
