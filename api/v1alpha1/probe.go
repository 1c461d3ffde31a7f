package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Probe is probes/NAME.yaml: a black-box test that runs on clusters all the time. One
// run creates each of its subjects, upgrades it, scales it and deletes it, and waits
// after each step until the cluster has carried that out.
//
// +kubebuilder:object:generate=false
type Probe struct {
	Header `json:",inline"`
	// Description is one line for people.
	Description string `json:"description,omitempty"`
	// ClusterSelector matches the labels of clusters; empty matches all.
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`
	// Namespace of all that it creates. It has to exist: keelson rbac prints it.
	Namespace string `json:"namespace"`
	// Interval from the beginning of one run to that of the next, give or take a tenth.
	// Default: 5m.
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Timeout of each step. Default: 2m.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Images by the names that subjects have for them. A cluster's imageMirrors count.
	Images map[string]Image `json:"images,omitempty"`
	// Subjects are looked at in their order.
	Subjects []ProbeSubject `json:"subjects"`
}

// ProbeSubject is what a probe creates: exactly one of these. It is called
// probe-PROBE-SUBJECT.
//
// +kubebuilder:object:generate=false
type ProbeSubject struct {
	// Name is unique in its probe.
	Name        string         `json:"name"`
	Deployment  *ProbeReplicas `json:"deployment,omitempty"`
	StatefulSet *ProbeReplicas `json:"statefulSet,omitempty"`
	DaemonSet   *ProbePod      `json:"daemonSet,omitempty"`
	// Job has to come to its end. Its upgrade is another Job, with the other image.
	Job    *ProbePod    `json:"job,omitempty"`
	Custom *ProbeCustom `json:"custom,omitempty"`
}

// ProbePod is the pod of a subject: of one container that may do nothing, and as small
// as can be.
//
// +kubebuilder:object:generate=false
type ProbePod struct {
	// Image by its name in the probe.
	Image string `json:"image"`
	// UpgradeTo is the image of the upgrade, by its name. Default: the same, with
	// another annotation of the pods; a Job is then not upgraded.
	UpgradeTo string `json:"upgradeTo,omitempty"`
	// Command instead of the image's own.
	Command []string `json:"command,omitempty"`
	// NodeSelector of the pods, so that a DaemonSet stays small.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// ProbeReplicas is a subject of several pods.
//
// +kubebuilder:object:generate=false
type ProbeReplicas struct {
	ProbePod `json:",inline"`
	// Replicas that it is created with; it is scaled to one more, and back. Default: 1.
	Replicas int32 `json:"replicas,omitempty"`
}

// ProbeCustom is an object of any namespaced kind.
//
// +kubebuilder:object:generate=false
type ProbeCustom struct {
	// Template is the path of a file with the object, from the root of the fleet
	// repository. Its name and namespace are left out.
	Template string `json:"template"`
	// Ready is when it is, in CEL over object. Default: as kstatus judges it.
	Ready string `json:"ready,omitempty"`
	// Upgrade is what changes, as a merge patch. Default: it is not upgraded.
	Upgrade map[string]any `json:"upgrade,omitempty"`
}

// ProbeCheck passes when the last runs of a probe have passed on each cluster of the
// stage, and had begun after it was asked first. After a stage, a run that failed since
// then fails it; before one it waits for runs that pass.
//
// +kubebuilder:object:generate=false
type ProbeCheck struct {
	// Name of the probe.
	Name string `json:"name"`
	// Runs in a row, at most 10. Default: 1.
	Runs int `json:"runs,omitempty"`
}

// ProbeOutcome is how a run of a probe ended.
//
// +kubebuilder:validation:Enum=Passed;Failed
type ProbeOutcome string

// The values of [ProbeOutcome].
const (
	ProbePassed ProbeOutcome = "Passed"
	ProbeFailed ProbeOutcome = "Failed"
)

// ProbeResult shows what came of a probe on a cluster. It lives in the hub, is named
// CLUSTER.PROBE, and holds status only. It is written when the outcome changes, for
// each run while a check asks for them, and otherwise once an hour.
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

// ProbeResultStatus is what is remembered of a probe on a cluster.
type ProbeResultStatus struct {
	Cluster string `json:"cluster,omitempty"`
	Probe   string `json:"probe,omitempty"`
	// Hash of the probe as its Runs were made. Another probe's runs are no evidence.
	Hash string `json:"hash,omitempty"`
	// Outcome of the last run; empty before the first.
	Outcome ProbeOutcome `json:"outcome,omitempty"`
	// Since is when the run began from which on the outcome is the same.
	Since *metav1.Time `json:"since,omitempty"`
	// Passed is when the last run ended that passed. What is shown may be an hour old
	// while nothing changes.
	Passed *metav1.Time `json:"passed,omitempty"`
	// Message says what failed: object, condition, pod and last events.
	Message string `json:"message,omitempty"`
	// Runs are the last ones, the newest last.
	// +listType=atomic
	Runs []ProbeRun `json:"runs,omitempty"`
	// Objects are those that a run may have left in the cluster.
	// +listType=atomic
	Objects []ProbeObject `json:"objects,omitempty"`
}

// ProbeRun is one run of a probe.
type ProbeRun struct {
	Begun   metav1.MicroTime `json:"begun"`
	Ended   metav1.MicroTime `json:"ended"`
	Outcome ProbeOutcome     `json:"outcome"`
	// Failed are the subjects that failed, with the step: web/upgrade.
	// +listType=atomic
	Failed []string `json:"failed,omitempty"`
}

// ProbeObject is an object that a probe creates.
type ProbeObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
}
