package health

import (
	"encoding/json"
	"fmt"

	kruise "github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
)

// hasUpdateStrategy reports whether a Deployment has the annotation that divides its updates, or is not handed back
// after that.
func hasUpdateStrategy(live map[string]any) bool {
	annotations := annotationsOf(live)
	return annotations[kruise.AnnotationUpdateStrategy] != nil || annotations[kruise.AnnotationUpdateBefore] != nil
}

func annotationsOf(live map[string]any) map[string]any {
	metadata, _ := live["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	return annotations
}

// updateHealth returns the health of a Deployment by its annotations. The Deployment itself is paused
// between two steps, which says nothing.
func updateHealth(live map[string]any) Result {
	annotations := annotationsOf(live)
	if annotations[kruise.AnnotationUpdateStrategy] == nil {
		return progressing("the annotation %s is gone, and 'keelson workloads' has not handed its fields back yet", kruise.AnnotationUpdateStrategy)
	}
	var is kruise.DeploymentUpdateStatus
	text := textAt(annotations, kruise.AnnotationUpdateStatus)
	if text == "" {
		return progressing("'keelson workloads' has not seen the annotation %s yet", kruise.AnnotationUpdateStrategy)
	}
	if err := json.Unmarshal([]byte(text), &is); err != nil {
		return Result{Health: v1alpha1.HealthUnknown, Message: fmt.Sprintf("the annotation %s: %v", kruise.AnnotationUpdateStatus, err)}
	}
	generation := numberOr(live, "metadata", "generation", 0)
	wanted, there := numberOr(live, "spec", "replicas", 1), numberAt(live, "status", "replicas")
	updated, available := numberAt(live, "status", "updatedReplicas"), numberAt(live, "status", "availableReplicas")
	switch {
	case is.Refused != "":
		return degraded("SpecRefused: %s", is.Refused)
	case is.ObservedGeneration < generation:
		return progressing("'keelson workloads' has not seen generation %d yet, but %d", generation, is.ObservedGeneration)
	}
	if r, goesOn := stepHealth(is.Batches); goesOn {
		r.Waits = r.Waits && available >= wanted // what does not serve is late all the same
		return r
	}
	atPartition := is.Batches != nil && is.Batches.Reason == kruise.BatchPartition
	switch {
	case there != wanted:
		return progressing("%d of %d pods exist", there, wanted)
	case updated < wanted && !atPartition:
		return progressing("%d of %d pods updated", updated, wanted)
	case available < wanted:
		return progressing("%d of %d pods are available", available, wanted)
	case atPartition:
		return Result{Health: v1alpha1.HealthHealthy, Message: said(is.Batches)}
	}
	return Result{Health: v1alpha1.HealthHealthy}
}

// stepHealth returns the health of an update that is not done, and not at its partition.
func stepHealth(is *kruise.BatchStatus) (r Result, goesOn bool) {
	if is == nil {
		return Result{}, false
	}
	switch is.Reason {
	case kruise.BatchDone, kruise.BatchPartition:
		return Result{}, false
	case kruise.BatchFailed:
		return degraded("%s", said(is)), true
	case kruise.BatchUpdating:
		return progressing("%s", said(is)), true
	case kruise.BatchPaused, kruise.BatchInterval, kruise.BatchApproval:
		return Result{Health: v1alpha1.HealthProgressing, Message: said(is), Waits: true}, true
	}
	return Result{Health: v1alpha1.HealthUnknown, Message: fmt.Sprintf("%s (reason %s is not known)", said(is), is.Reason)}, true
}

// said returns what a status says. All pods at once are no batch.
func said(is *kruise.BatchStatus) string {
	if is.Batch == "1/1" {
		return is.Message
	}
	return fmt.Sprintf("batch %s: %s", is.Batch, is.Message)
}
