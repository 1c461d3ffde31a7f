package v1beta1

// AnnotationUpdateStrategy on a Deployment of apps/v1 divides its updates: a [DeploymentUpdateStrategy] in YAML or
// JSON. While it is there, Keelson pauses the Deployment between the steps of an update. Without it,
// the Deployment has its own fields again.
const AnnotationUpdateStrategy = "workloads.keelson.io/update-strategy"

// AnnotationUpdateBefore on a Deployment is a [DeploymentUpdateBefore] in JSON: the fields of the
// user that Keelson changes while [AnnotationUpdateStrategy] is there. Keelson writes it.
const AnnotationUpdateBefore = "workloads.keelson.io/update-before"

// AnnotationUpdateStatus on a Deployment is a [DeploymentUpdateStatus] in JSON. Keelson writes it.
const AnnotationUpdateStatus = "workloads.keelson.io/update-status"

// DeploymentUpdateStrategy says how the pods of a Deployment come to a new template.
type DeploymentUpdateStrategy struct {
	// Partition is how many pods keep their template, or a percentage of all pods, rounded up. Less
	// than 100 % leaves at least one pod to be updated. Default 0.
	Partition *IntOrString `json:"partition,omitempty"`
	// Batches divides an update into steps.
	Batches *UpdateBatches `json:"batches,omitempty"`
	// Paused stops updates. Scaling goes on.
	Paused bool `json:"paused,omitempty"`
}

// DeploymentUpdateFields are the fields of a Deployment's spec that Keelson changes.
type DeploymentUpdateFields struct {
	Paused                  bool         `json:"paused,omitempty"`
	MinReadySeconds         int32        `json:"minReadySeconds,omitempty"`
	ProgressDeadlineSeconds *int32       `json:"progressDeadlineSeconds,omitempty"`
	MaxUnavailable          *IntOrString `json:"maxUnavailable,omitempty"`
	MaxSurge                *IntOrString `json:"maxSurge,omitempty"`
}

// DeploymentUpdateBefore is the user's part of the fields that Keelson changes.
type DeploymentUpdateBefore struct {
	// Before are the values of the user.
	Before DeploymentUpdateFields `json:"before"`
	// Wrote are the values that Keelson wrote last. Any other value in the spec is a later wish of the
	// user.
	Wrote DeploymentUpdateFields `json:"wrote"`
	// Token is another one for each write of these fields. The Deployment controller copies it to the
	// newest ReplicaSet, and so shows which write it has read.
	Token string `json:"token"`
}

// DeploymentUpdateStatus says how far the update of a Deployment is.
type DeploymentUpdateStatus struct {
	// ObservedGeneration is the metadata.generation that the status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Refused is why the value of [AnnotationUpdateStrategy] is not followed. Until it is corrected, no pod
	// changes its template.
	Refused string `json:"refused,omitempty"`
	// Batches says how far the update is. Without batches in [AnnotationUpdateStrategy], one batch has all pods.
	// Nothing: the Deployment has not been updated since the annotation is there.
	Batches *BatchStatus `json:"batches,omitempty"`
}
