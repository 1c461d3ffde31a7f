package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AnnotationNextBatch releases batches of an update: "REVISION@TIME/N" lets the update to a revision that
// started at a time, in seconds since 1970, go on up to batch N. 'keelson workload next-batch' writes it.
const AnnotationNextBatch = "workloads.keelson.io/next-batch"

// UpdateBatches divides an update into batches. A batch is a partition that moves by itself: the next
// one begins when all pods of the batches before it are updated and available.
//
// +kubebuilder:validation:XValidation:rule="self.sizes.all(s, type(s) != int || s <= 2147483647)",message="a size is at most 2147483647"
// +kubebuilder:validation:XValidation:rule="!has(self.maxFailed) || type(self.maxFailed) != int || self.maxFailed <= 2147483647",message="maxFailed is at most 2147483647"
type UpdateBatches struct {
	// Sizes are the numbers of pods of the batches, or percentages of all pods. The pods that a
	// percentage ends with are rounded up. Pods that are left after the last size are one batch more.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Sizes []IntOrString `json:"sizes"`
	// Auto begins the next batch without being told. Otherwise each batch but the first waits for
	// 'keelson workload next-batch'.
	Auto bool `json:"auto,omitempty"`
	// Interval is the shortest time from when a batch is updated and available to the next one;
	// default 0. It is written as 90s, 5m or 1h30m.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]{1,6}(ms|s|m|h))+$`
	// +kubebuilder:validation:MaxLength=20
	Interval *metav1.Duration `json:"interval,omitempty"`
	// MaxFailed is how many updated pods may have failed at a time; default 0. More stop the update. A
	// percentage is rounded down.
	MaxFailed *IntOrString `json:"maxFailed,omitempty"`
}

// BatchReason is what an update in batches waits for.
type BatchReason string

// The values of [BatchReason].
const (
	BatchUpdating  BatchReason = "Updating"  // pods of the batch are not all updated and available
	BatchPartition BatchReason = "Partition" // the partition of the spec leaves pods of the batch as they are
	BatchPaused    BatchReason = "Paused"    // the spec pauses updates
	BatchFailed    BatchReason = "Failed"    // more pods have failed than maxFailed allows
	BatchInterval  BatchReason = "Interval"  // the interval is not over
	BatchApproval  BatchReason = "Approval"  // 'keelson workload next-batch' has to be called
	BatchDone      BatchReason = "Done"      // nothing: the last batch is updated and available
)

// BatchStatus says how far an update in batches is.
type BatchStatus struct {
	// Batch is the batch and how many there are: "2/3".
	Batch string `json:"batch"`
	// Number is the batch, counted from 1.
	Number int32 `json:"number"`
	// Revision is the revision to which the pods come, and From the one that they had before.
	Revision string `json:"revision"`
	From     string `json:"from,omitempty"`
	// Started is when the update began, and Since when the batch did.
	Started metav1.Time `json:"started"`
	Since   metav1.Time `json:"since"`
	// Sizes are the sizes by which Number counts.
	Sizes string `json:"sizes"`
	// Reached is how many pods have had the revision at a time, at most.
	Reached int32 `json:"reached"`
	// CompleteSince is since when all pods of the batch are updated and available.
	CompleteSince *metav1.Time `json:"completeSince,omitempty"`
	// Reason is what the update waits for, in one word, and Message is the same in a sentence.
	Reason  BatchReason `json:"reason"`
	Message string      `json:"message,omitempty"`
	// Ahead has the ordinals of a StatefulSet's pods that belong to a batch before their turn. They were
	// not available, so that other pods would have had to wait for them.
	Ahead []int32 `json:"ahead,omitempty"`
	// FailedPods names updated pods that have failed, ten at most, and Failed counts them all.
	FailedPods []string `json:"failedPods,omitempty"`
	Failed     int32    `json:"failed,omitempty"`
}
