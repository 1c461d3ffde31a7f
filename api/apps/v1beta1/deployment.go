package v1beta1

// AnnotationRollout on a Deployment of apps/v1 divides its updates: a [DeploymentRollout] in YAML or
// JSON. While it is there, Keelson pauses the Deployment between the steps of an update. Without it,
// the Deployment has its own fields again.
const AnnotationRollout = "workloads.keelson.io/rollout"

// AnnotationRolloutBefore on a Deployment is a [DeploymentRolloutBefore] in JSON: the fields of the
// user that Keelson changes while [AnnotationRollout] is there. Keelson writes it.
const AnnotationRolloutBefore = "workloads.keelson.io/rollout-before"

// AnnotationRolloutStatus on a Deployment is a [DeploymentRolloutStatus] in JSON. Keelson writes it.
const AnnotationRolloutStatus = "workloads.keelson.io/rollout-status"

// DeploymentRollout says how the pods of a Deployment come to a new template.
type DeploymentRollout struct {
	// Partition is how many pods keep their template, or a percentage of all pods, rounded up. Less
	// than 100 % leaves at least one pod to be updated. Default 0.
	Partition *IntOrString `json:"partition,omitempty"`
	// Batches divides an update into steps.
	Batches *UpdateBatches `json:"batches,omitempty"`
	// Paused stops updates. Scaling goes on.
	Paused bool `json:"paused,omitempty"`
}

// DeploymentRolloutFields are the fields of a Deployment's spec that Keelson changes.
type DeploymentRolloutFields struct {
	Paused                  bool         `json:"paused,omitempty"`
	MinReadySeconds         int32        `json:"minReadySeconds,omitempty"`
	ProgressDeadlineSeconds *int32       `json:"progressDeadlineSeconds,omitempty"`
	MaxUnavailable          *IntOrString `json:"maxUnavailable,omitempty"`
	MaxSurge                *IntOrString `json:"maxSurge,omitempty"`
}

// DeploymentRolloutBefore is the user's part of the fields that Keelson changes.
type DeploymentRolloutBefore struct {
	// Before are the values of the user.
	Before DeploymentRolloutFields `json:"before"`
	// Wrote are the values that Keelson wrote last. Any other value in the spec is a later wish of the
	// user.
	Wrote DeploymentRolloutFields `json:"wrote"`
	// Token is another one for each write of these fields. The Deployment controller copies it to the
	// newest ReplicaSet, and so shows which write it has read.
	Token string `json:"token"`
}

// DeploymentRolloutStatus says how far the update of a Deployment is.
type DeploymentRolloutStatus struct {
	// ObservedGeneration is the metadata.generation that the status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Refused is why the value of [AnnotationRollout] is not followed. Until it is corrected, no pod
	// changes its template.
	Refused string `json:"refused,omitempty"`
	// Batches says how far the update is. Without batches in [AnnotationRollout], one batch has all pods.
	// Nothing: the Deployment has not been updated since the annotation is there.
	Batches *BatchStatus `json:"batches,omitempty"`
}
