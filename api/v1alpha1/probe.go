package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Probe is probes/NAME.yaml: a black-box test that runs on clusters continuously. One run creates,
// upgrades, scales and deletes each of its subjects. After each step it waits until the cluster has
// carried out the step.
//
// +kubebuilder:object:generate=false
type Probe struct {
	Header `json:",inline"`
	// Description is one line for people.
	Description string `json:"description,omitempty"`
	// ClusterSelector matches the labels of clusters; empty matches all.
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`
	// Namespace of all objects that it creates. It must exist: keelson rbac prints it.
	Namespace string `json:"namespace"`
	// Interval from the start of one run to the start of the next, varied by up to a tenth.
	// Default: 5m.
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Timeout of each step. Default: 2m.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Images by the names that subjects use. A cluster's imageMirrors apply.
	Images map[string]Image `json:"images,omitempty"`
	// Subjects are tested in their order.
	Subjects []ProbeSubject `json:"subjects"`
}

// ProbeSubject is an object that a probe creates: exactly one of these. Its name is
// probe-PROBE-SUBJECT.
//
// +kubebuilder:object:generate=false
type ProbeSubject struct {
	// Name is unique in its probe.
	Name string `json:"name"`
	// Deployment, StatefulSet and DaemonSet are created, upgraded and deleted; the first two are
	// also scaled.
	Deployment  *ProbeReplicas `json:"deployment,omitempty"`
	StatefulSet *ProbeReplicas `json:"statefulSet,omitempty"`
	DaemonSet   *ProbePod      `json:"daemonSet,omitempty"`
	// Job must complete. Its upgrade is another Job, with the other image.
	Job *ProbePod `json:"job,omitempty"`
	// Custom is an object from a file.
	Custom *ProbeCustom `json:"custom,omitempty"`
}

// ProbePod is the pod of a subject. It has one small container, which may do nothing.
//
// +kubebuilder:object:generate=false
type ProbePod struct {
	// Image by its name in the probe.
	Image string `json:"image"`
	// UpgradeTo is the image of the upgrade, by its name. Default: the same image, with another
	// annotation of the pods; a Job is then not upgraded.
	UpgradeTo string `json:"upgradeTo,omitempty"`
	// Command replaces the image's own.
	Command []string `json:"command,omitempty"`
	// NodeSelector of the pods, so that a DaemonSet stays small.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// ProbeReplicas is a subject of several pods.
//
// +kubebuilder:object:generate=false
type ProbeReplicas struct {
	ProbePod `json:",inline"`
	// Replicas at its creation. Later it is scaled to one more, and back. Default: 1.
	Replicas int32 `json:"replicas,omitempty"`
}

// ProbeCustom is an object of any namespaced kind.
//
// +kubebuilder:object:generate=false
type ProbeCustom struct {
	// Template is the path of a file with the object, from the root of the fleet repository. The
	// file contains no name and namespace.
	Template string `json:"template"`
	// Ready is a CEL condition over object that is true when the object is ready. Default: the
	// judgement of kstatus.
	Ready string `json:"ready,omitempty"`
	// Upgrade is the change, as a merge patch. Default: no upgrade.
	Upgrade map[string]any `json:"upgrade,omitempty"`
}

// ProbeCheck passes when the last runs of a probe have passed on each cluster of the stage. Only
// runs count that began after the check was first asked. After a stage, a failed run fails the
// check. Before a stage, the check waits for runs that pass.
//
// +kubebuilder:object:generate=false
type ProbeCheck struct {
	// Name of the probe.
	Name string `json:"name"`
	// Runs that must pass in a row, at most 10. Default: 1.
	Runs int `json:"runs,omitempty"`
}

// ProbeOutcome is how a run of a probe ended.
//
// +kubebuilder:validation:Enum=Passed;Failed
type ProbeOutcome string

// The values of [ProbeOutcome].
const (
	ProbePassed ProbeOutcome = "Passed" // the cluster carried out each step in time
	ProbeFailed ProbeOutcome = "Failed" // a step failed, or took too long
)

// ProbeResult shows the results of a probe on a cluster. It is stored in the hub, is named
// CLUSTER.PROBE, and holds status only. It is written when the outcome changes, for each run while
// a check needs them, and otherwise once an hour.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=keelson
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.status.cluster`
// +kubebuilder:printcolumn:name="Probe",type=string,JSONPath=`.status.probe`
// +kubebuilder:printcolumn:name="Outcome",type=string,JSONPath=`.status.outcome`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.since`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type ProbeResult struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Status is the result of the last runs.
	Status ProbeResultStatus `json:"status,omitempty"`
}

// ProbeResultList is a list of [ProbeResult].
//
// +kubebuilder:object:root=true
type ProbeResultList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProbeResult `json:"items"`
}

// ProbeResultStatus is the status of a probe on a cluster.
type ProbeResultStatus struct {
	// Cluster and Probe are names in the fleet repository.
	Cluster string `json:"cluster,omitempty"`
	Probe   string `json:"probe,omitempty"`
	// Hash of the probe that made the Runs. Runs of another hash do not count.
	Hash string `json:"hash,omitempty"`
	// Outcome of the last run; empty before the first.
	Outcome ProbeOutcome `json:"outcome,omitempty"`
	// Since is the start of the first run with the current outcome.
	Since *metav1.Time `json:"since,omitempty"`
	// Passed is the end of the last run that passed. It may be up to an hour old while nothing
	// changes.
	Passed *metav1.Time `json:"passed,omitempty"`
	// Message says what failed: object, condition, pod and last events.
	Message string `json:"message,omitempty"`
	// Runs are the last runs, the newest last.
	// +listType=atomic
	Runs []ProbeRun `json:"runs,omitempty"`
	// Objects are the objects that a run may have left in the cluster.
	// +listType=atomic
	Objects []ProbeObject `json:"objects,omitempty"`
}

// ProbeRun is one run of a probe.
type ProbeRun struct {
	// Begun and Ended are the times of the run, Outcome its result.
	Begun   metav1.MicroTime `json:"begun"`
	Ended   metav1.MicroTime `json:"ended"`
	Outcome ProbeOutcome     `json:"outcome"`
	// Failed are the subjects that failed, with the step: web/upgrade.
	// +listType=atomic
	Failed []string `json:"failed,omitempty"`
}

// ProbeObject is an object that a probe creates.
type ProbeObject struct {
	// APIVersion, Kind, Namespace and Name identify the object.
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
}
