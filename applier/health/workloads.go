package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	kruisev1alpha1 "github.com/keelson-io/keelson/api/apps/v1alpha1"
	kruise "github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
)

// workloadsGroup is the group of OpenKruise's workloads, which Keelson can run, too.
const workloadsGroup = "apps.kruise.io"

// workloadKind names the fields with the numbers of a workload kind, in v1alpha1 and v1beta1.
type workloadKind struct {
	// replicas: spec.replicas is the wanted number, 1 if missing. Otherwise the wanted number is in
	// the status field desired.
	replicas bool
	desired  string
	// The remaining fields are names of status fields; "": the kind has none.
	there, updated, available, updatedAvailable, expected string
	// stays: a partition that is raised returns no pod to the earlier revision.
	stays bool
	// moves: a partition of less than 100 % leaves at least one pod to be updated.
	moves bool
}

// workloadKinds returns the kinds whose health is computed in the same way.
func workloadKinds() map[string]workloadKind {
	return map[string]workloadKind{
		"CloneSet": {
			replicas: true, there: "replicas", updated: "updatedReplicas", available: "availableReplicas",
			updatedAvailable: "updatedAvailableReplicas", expected: "expectedUpdatedReplicas", moves: true,
		},
		"StatefulSet": {
			replicas: true, there: "replicas", updated: "updatedReplicas", available: "availableReplicas", stays: true,
		},
		"DaemonSet": {
			desired: "desiredNumberScheduled", there: "currentNumberScheduled", updated: "updatedNumberScheduled", available: "numberAvailable",
		},
	}
}

// workloadNumbers are the pod counts of a workload.
type workloadNumbers struct {
	wanted, there, updated, available int64
	// serving is the number of pods that must be available: all wanted pods, except those of nodes
	// that a partition leaves without a pod.
	serving int64
	// updatedAvailable counts the updated pods that are available; expected is the number of pods
	// to update.
	updatedAvailable, expected int64
	// partition is the text of the spec; "": none.
	partition string
}

// workloadHealth returns the health of a workload whose controller has seen its generation. A
// workload that has reached its partition is healthy, with a message. A workload paused earlier is
// not done, as with a Deployment.
func workloadHealth(kind workloadKind, live map[string]any) Result {
	for _, c := range conditionsOf(live) {
		failed := slices.Contains(failures(), c.kind) && c.status == "True"
		late := c.kind == "Progressing" && c.status == "False" && c.reason == "ProgressDeadlineExceeded"
		if failed || late {
			return degraded("%s", strings.Join(nonEmpty(c.reason, c.message), ": "))
		}
	}
	n, err := kind.numbers(live)
	if err != nil {
		return Result{Health: v1alpha1.HealthUnknown, Message: err.Error()}
	}
	if r, goesOn := batchHealth(live); goesOn {
		r.Waits = r.Waits && n.available >= n.serving // what does not serve is late all the same
		return r
	}
	paused, _ := strategyOf(live, "paused").(bool)
	chosen := progressOf(live)
	switch {
	case n.there < n.serving:
		return progressing("%d of %d pods exist", n.there, n.serving)
	case onDelete(live):
		// Pods of the old revision wait until they are deleted.
	case n.updated < n.expected && paused:
		return progressing("paused: %d of %d pods updated", n.updated, n.wanted)
	case n.updated < n.expected && selective(live) && chosen.reason == chosenAll:
		// The selector does not choose the other pods.
	case n.updated < n.expected && selective(live) && chosen.reason != "":
		return progressing("%s", chosen.message)
	case n.updated < n.expected && selective(live):
		return Result{Health: v1alpha1.HealthUnknown, Message: n.progress() +
			"; how many nodes its updateStrategy.rollingUpdate.selector chooses does not show: a rule under health: in component.yaml can define when it is done"}
	case n.updated < n.expected:
		return progressing("%s", n.progress())
	case n.updated > n.expected && !paused && !kind.stays && returns(live):
		return progressing("%s: the others go back to revision %s", n.progress(), statusText(live, "currentRevision"))
	}
	switch {
	case kind.replicas && n.there > n.wanted:
		return progressing("%d pods, and %d are wanted", n.there, n.wanted)
	case n.updatedAvailable < n.updated:
		return progressing("%d of %d updated pods are available", n.updatedAvailable, n.updated)
	case n.available < n.serving:
		return progressing("%d of %d pods are available", n.available, n.serving)
	case n.updated < n.wanted && selective(live) && chosen.reason == chosenAll:
		return Result{Health: v1alpha1.HealthHealthy, Message: chosen.message}
	case n.updated < n.wanted && n.partition != "" && !onDelete(live):
		return Result{Health: v1alpha1.HealthHealthy, Message: n.standing()}
	}
	return Result{Health: v1alpha1.HealthHealthy}
}

// batchHealth returns the health of an update in batches that is not done. An update that has reached
// the partition of its spec is judged like any other.
func batchHealth(live map[string]any) (r Result, goesOn bool) {
	if strategyOf(live, "batches") == nil {
		return Result{}, false
	}
	status, _ := live["status"].(map[string]any)
	is, _ := status["batches"].(map[string]any)
	said := fmt.Sprintf("batch %s: %s", textAt(is, "batch"), textAt(is, "message"))
	switch reason := kruise.BatchReason(textAt(is, "reason")); reason {
	case kruise.BatchFailed:
		return degraded("%s", said), true
	case "", kruise.BatchDone, kruise.BatchPartition:
		return Result{}, false
	case kruise.BatchUpdating:
		return progressing("%s", said), true
	case kruise.BatchPaused, kruise.BatchInterval, kruise.BatchApproval:
		return Result{Health: v1alpha1.HealthProgressing, Message: said, Waits: true}, true
	default:
		return Result{Health: v1alpha1.HealthUnknown, Message: fmt.Sprintf("%s (reason %s is not known)", said, reason)}, true
	}
}

// failures returns the conditions that say that a controller cannot go on.
func failures() []string {
	return []string{"FailedScale", "FailedUpdate", "FailedCreatePod", "FailedUpdatePod"}
}

// numbers reads the pod counts.
func (k workloadKind) numbers(live map[string]any) (workloadNumbers, error) {
	n := workloadNumbers{
		wanted: numberAt(live, "status", k.desired), there: numberAt(live, "status", k.there),
		updated: numberAt(live, "status", k.updated), available: numberAt(live, "status", k.available),
	}
	if k.replicas {
		n.wanted = numberOr(live, "spec", "replicas", 1)
	}
	n.updatedAvailable = n.updated
	if k.updatedAvailable != "" {
		n.updatedAvailable = numberAt(live, "status", k.updatedAvailable)
	}
	stay, text, err := k.partition(live, n.wanted)
	n.partition, n.expected, n.serving = text, n.wanted-stay, n.wanted
	if progressive(live) {
		n.serving -= stay
	}
	if k.expected != "" {
		n.expected = numberOr(live, "status", k.expected, n.expected)
	}
	return n, err
}

// partition returns how many of the given pods stay at the old revision, and the text of the spec.
// A percentage is rounded up.
func (k workloadKind) partition(live map[string]any, of int64) (int64, string, error) {
	switch v := strategyOf(live, "partition").(type) {
	case int64:
		return min(max(v, 0), of), strconv.FormatInt(v, 10), nil
	case string:
		p := intstr.FromString(v)
		n, err := intstr.GetScaledValueFromIntOrPercent(&p, int(of), true)
		if err != nil {
			return 0, v, fmt.Errorf("the partition %q: %w", v, err)
		}
		stay := min(max(int64(n), 0), of)
		if k.moves && v != "100%" && stay == of && of > 0 {
			stay--
		}
		return stay, v, nil
	}
	return 0, "", nil
}

// progress describes the progress of an update.
func (n workloadNumbers) progress() string {
	if n.expected == n.wanted {
		return fmt.Sprintf("%d of %d pods updated", n.updated, n.wanted)
	}
	return fmt.Sprintf("%d of %d pods updated, %d are to be: partition %s", n.updated, n.wanted, n.expected, n.partition)
}

// standing describes an update that has reached its partition.
func (n workloadNumbers) standing() string {
	return fmt.Sprintf("%d of %d pods updated: partition %s", n.updated, n.wanted, n.partition)
}

// strategyOf returns a field of the update strategy. In v1alpha1 of a CloneSet the fields are one
// level higher.
func strategyOf(live map[string]any, field string) any {
	spec, _ := live["spec"].(map[string]any)
	strategy, _ := spec["updateStrategy"].(map[string]any)
	if rolling, ok := strategy["rollingUpdate"].(map[string]any); ok {
		return rolling[field]
	}
	return strategy[field]
}

// chosenAll is the reason of the condition Progressing when all nodes that a selector and a
// partition choose have the newest revision. OpenKruise's DaemonSets do not set it.
const chosenAll = "ProgressPartitionAvailable"

// progressOf returns the condition Progressing; the zero condition: there is none.
func progressOf(live map[string]any) condition {
	for _, c := range conditionsOf(live) {
		if c.kind == "Progressing" {
			return c
		}
	}
	return condition{}
}

// selective reports whether a workload updates only the pods of some nodes.
func selective(live map[string]any) bool {
	selector, _ := strategyOf(live, "selector").(map[string]any)
	return len(selector) > 0
}

// returns reports whether pods can go back to an earlier revision, as they do when the partition is
// raised.
func returns(live map[string]any) bool {
	current := statusText(live, "currentRevision")
	return current != "" && current != statusText(live, "updateRevision")
}

// progressive reports whether a workload leaves as many nodes without a pod as the partition says.
func progressive(live map[string]any) bool {
	metadata, _ := live["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	if textAt(annotations, kruisev1alpha1.AnnotationProgressiveCreate) == "true" {
		return true
	}
	spec, _ := live["spec"].(map[string]any)
	scale, _ := spec["scaleStrategy"].(map[string]any)
	return scale["partitionedScaling"] == true
}

// numberOr returns a number, or otherwise if the field is missing.
func numberOr(live map[string]any, section, field string, otherwise int64) int64 {
	m, _ := live[section].(map[string]any)
	if n, ok := m[field].(int64); ok {
		return n
	}
	return otherwise
}
