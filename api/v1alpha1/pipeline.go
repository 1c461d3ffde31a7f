package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Pipeline is pipelines/NAME.yaml: the stages in which a change of a component goes from cluster to
// cluster. A component uses the pipeline that its component.yaml names, else the one of fleet.yaml.
// Both are read from the branch, not from a version, because the clusters of a pipeline run several
// versions.
//
// +kubebuilder:object:generate=false
type Pipeline struct {
	Header `json:",inline"`
	// Description is one line for people.
	Description string `json:"description,omitempty"`
	// Stages in their order. A cluster is in the first stage that matches it. A cluster without a
	// stage gets no component of this pipeline.
	Stages []Stage `json:"stages"`
}

// Stage is one step of a pipeline.
//
// +kubebuilder:object:generate=false
type Stage struct {
	// Name is unique in its pipeline.
	Name string `json:"name"`
	// ClusterSelector matches the labels of clusters; empty matches all.
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`
	// Order is the label whose value orders the clusters: numbers first, by size, then other
	// values, then clusters without the label. Clusters with equal values are ordered by name.
	// Default: by name.
	Order string `json:"order,omitempty"`
	// MaxConcurrent limits the clusters that change at once. A percentage is of the stage's
	// clusters, rounded down, and at least 1. Default: 1.
	MaxConcurrent *intstr.IntOrString `json:"maxConcurrent,omitempty"`
	// MaxUnavailable limits the clusters of the stage that change or are not healthy for any
	// reason; a percentage as above. Default: MaxConcurrent.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// Silence is the least time between a cluster's arrival or release and the release of the next.
	Silence *metav1.Duration `json:"silence,omitempty"`
	// Bake is how long all clusters of the stage must be healthy before the stage passes.
	Bake *metav1.Duration `json:"bake,omitempty"`
	// Timeout is how long one cluster may take for the change. Default: 1h.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Windows in which clusters are released. Default: always.
	Windows []Window `json:"windows,omitempty"`
	// OnFailure says what happens when a cluster or a check of the stage fails.
	// Default: pause.
	OnFailure OnFailure `json:"onFailure,omitempty"`
	// Before are checks that must pass before the first cluster of the stage is released. After are
	// checks that must pass before the stage passes. They are asked once all its clusters have the
	// change.
	Before []Check `json:"before,omitempty"`
	After  []Check `json:"after,omitempty"`
	// Promotion lets Keelson promote versions to the stage. Default: people do.
	Promotion *Promotion `json:"promotion,omitempty"`
}

// Promotion lets Keelson commit later versions to the file that sets the versions of a stage's
// clusters. The first stage of a pipeline follows the newest tags of the components. Each later
// stage follows what has passed the stage before it.
//
// +kubebuilder:object:generate=false
type Promotion struct {
	// Range of the versions to promote: ~1.12, ">=1.4 <2". Pre-releases match only a range that
	// names a pre-release. Default: every release.
	Range string `json:"range,omitempty"`
	// Components to promote, by name, each with its own range, or "" for Range. Default: all
	// components of this pipeline.
	Components map[string]string `json:"components,omitempty"`
	// By says how the commit reaches the branch. Default: push.
	By PromotionBy `json:"by,omitempty"`
}

// PromotionBy says how a promotion reaches the branch.
type PromotionBy string

// The values of [PromotionBy].
const (
	ByPush        PromotionBy = "push"        // as a commit on the branch
	ByPullRequest PromotionBy = "pullRequest" // as a pull request into the branch, which people merge
)

// OnFailure says what a failure does to a rollout.
type OnFailure string

// The values of [OnFailure].
const (
	OnFailurePause    OnFailure = "pause"    // no cluster is released until a person resumes
	OnFailureRollback OnFailure = "rollback" // the stage's clusters go back to their previous target
)

// Window is a recurring time, by the wall clock of its time zone.
//
// +kubebuilder:object:generate=false
type Window struct {
	// Cron is when it starts, in five fields: 0 9 * * 1-5.
	Cron string `json:"cron"`
	// Duration is how long it is open, at most a week.
	Duration metav1.Duration `json:"duration"`
	// TimeZone by its IANA name: Europe/Berlin. Default: UTC.
	TimeZone string `json:"timeZone,omitempty"`
}

// Check is a condition for opening or passing a stage. Exactly one of CEL, Prometheus, Job, HTTP,
// Approval and Probe is set. It is asked again until it passes; after its Timeout it has failed.
//
// In Prometheus.Query, HTTP.URL and the file of Job.Template, $(component), $(pipeline) and
// $(stage) are replaced by their names, and $(clusters) by the names of the stage's clusters,
// joined by |. A check that contains $(cluster) is asked for each of these clusters, and must pass
// for all.
//
// +kubebuilder:object:generate=false
type Check struct {
	// Name is unique among the checks before, or after, a stage.
	Name string `json:"name"`
	// CEL is a condition that must be true for each cluster of the stage. It reads cluster.name,
	// cluster.labels, and the Delivery of the component on the cluster: delivery.version, .sync,
	// .health and .message, as in its status.
	CEL string `json:"cel,omitempty"`
	// Prometheus compares the result of a query with a threshold.
	Prometheus *PrometheusCheck `json:"prometheus,omitempty"`
	// Job runs to completion on each cluster of the stage.
	Job *JobCheck `json:"job,omitempty"`
	// HTTP requests a URL.
	HTTP *HTTPCheck `json:"http,omitempty"`
	// Approval waits for a person.
	Approval *ApprovalCheck `json:"approval,omitempty"`
	// Probe reads the last runs of a probe.
	Probe *ProbeCheck `json:"probe,omitempty"`
	// For is how long the answer must be yes without a break; CEL, Prometheus and HTTP are then
	// asked repeatedly. Default: once.
	For *metav1.Duration `json:"for,omitempty"`
	// Timeout since the check was first asked, at least For. Default: 30m plus For; none for an
	// approval.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// PrometheusCheck compares the result of a query. It passes if there is at least one sample and all
// samples pass. Missing data does not pass.
//
// +kubebuilder:object:generate=false
type PrometheusCheck struct {
	// Address of the server, as the controller reaches it: http://prometheus:9090.
	Address string `json:"address"`
	// Query in PromQL, with an instant vector or a scalar as its result.
	Query string `json:"query"`
	// Operator compares a sample with Threshold: <, <=, >, >=, == or !=.
	Operator  string  `json:"operator"`
	Threshold float64 `json:"threshold"`
}

// JobCheck runs a Job on each cluster of the stage, in the component's namespace, with the rights
// of its service account if it names one. It passes when all Jobs complete, and fails when one
// fails. The Jobs are deleted afterwards. The Job itself sets the retries and time limit of its
// pods. Clusters that are paused or pinned, or from which the component is removed, run no Job.
//
// +kubebuilder:object:generate=false
type JobCheck struct {
	// Template is the path of a file with a batch/v1 Job, from the root of the fleet repository.
	// Its metadata may contain only labels and annotations.
	Template string `json:"template"`
}

// HTTPCheck requests a URL with GET, follows no redirect, and passes if the answer has the status.
//
// +kubebuilder:object:generate=false
type HTTPCheck struct {
	// URL to request.
	URL string `json:"url"`
	// Status is the expected status code. Default: 200.
	Status int `json:"status,omitempty"`
}

// ApprovalCheck waits for a person's approval: an entry under approvals/ with component, stage and
// the hash of the change, as keelson rollout show prints them.
//
// +kubebuilder:object:generate=false
type ApprovalCheck struct {
	// Because says what to check before the approval.
	Because string `json:"because,omitempty"`
}

// Freeze is freezes/NAME.yaml. No change in git reaches the clusters and components that it names,
// with or without a pipeline. What runs is kept unchanged.
//
// +kubebuilder:object:generate=false
type Freeze struct {
	Header `json:",inline"`
	// ClusterSelector matches the labels of clusters; empty matches all.
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`
	// Components by name. Default: all.
	Components []string `json:"components,omitempty"`
	// From and Until limit the freeze: 2026-11-09T00:00:00+01:00. Default: from now on, and until
	// the file is removed.
	From  *metav1.Time `json:"from,omitempty"`
	Until *metav1.Time `json:"until,omitempty"`
	// Windows in which the freeze applies between From and Until. Default: always.
	Windows []Window `json:"windows,omitempty"`
	// Reason is shown with every change that the freeze stops.
	Reason string `json:"reason"`
}
