package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Pipeline is pipelines/NAME.yaml: the stages in which a change of a component goes
// from cluster to cluster. A component goes the way that its component.yaml names,
// else the one that fleet.yaml does, each as the branch has it: a way is between
// clusters that run several versions, so it is of none of them.
//
// +kubebuilder:object:generate=false
type Pipeline struct {
	Header `json:",inline"`
	// Description is one line for people.
	Description string `json:"description,omitempty"`
	// Stages in their order. A cluster is in the first that matches it; one that is
	// in none gets no component that goes this way.
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
	// Order is the label by whose value clusters get the change: numbers first, by
	// size, then other words, then clusters without the label; the same by name.
	// Default: by name.
	Order string `json:"order,omitempty"`
	// MaxConcurrent clusters are on their way at once. A percentage is of the stage's
	// clusters, rounded down, and at least 1. Default: 1.
	MaxConcurrent *intstr.IntOrString `json:"maxConcurrent,omitempty"`
	// MaxUnavailable clusters of the stage are on their way or not healthy, whoever
	// made them so; a percentage as above. Default: MaxConcurrent.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// Silence is the least time from when a cluster got there, or was let go, to when
	// the next one is let go.
	Silence *metav1.Duration `json:"silence,omitempty"`
	// Bake is how long all clusters of the stage are healthy before it has passed.
	Bake *metav1.Duration `json:"bake,omitempty"`
	// Timeout is how long one cluster may take to get there. Default: 1h.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Windows in which clusters are let go. Default: always.
	Windows []Window `json:"windows,omitempty"`
	// OnFailure says what happens when a cluster or a check of the stage fails.
	// Default: pause.
	OnFailure OnFailure `json:"onFailure,omitempty"`
	// Before are checks that pass before the first cluster of the stage is let go,
	// After those that pass before the stage has: they are asked from when all its
	// clusters got there.
	Before []Check `json:"before,omitempty"`
	After  []Check `json:"after,omitempty"`
	// Promotion has Keelson move the versions of the stage on. Default: people do.
	Promotion *Promotion `json:"promotion,omitempty"`
}

// Promotion has Keelson write later versions into the file that the clusters of a stage
// have theirs from, by commits. The first stage of a pipeline follows the newest tags of
// the components, each later one what has passed the stage before it.
//
// +kubebuilder:object:generate=false
type Promotion struct {
	// Range of the versions that are taken: ~1.12, ">=1.4 <2". A pre-release is in one
	// that names a pre-release. Default: every release.
	Range string `json:"range,omitempty"`
	// Components that are promoted by name, with a range of their own, or "" for Range.
	// Default: all that go this way.
	Components map[string]string `json:"components,omitempty"`
	// By says how the commit gets to the branch. Default: push.
	By PromotionBy `json:"by,omitempty"`
}

// PromotionBy says how a promotion gets to the branch.
type PromotionBy string

// The values of [PromotionBy].
const (
	ByPush        PromotionBy = "push"        // as a commit on it
	ByPullRequest PromotionBy = "pullRequest" // as a pull request into it, which people merge
)

// OnFailure says what a failure does to a rollout.
type OnFailure string

// The values of [OnFailure].
const (
	OnFailurePause    OnFailure = "pause"    // nothing more is let go, until a person says so
	OnFailureRollback OnFailure = "rollback" // the stage's clusters go back to what they had
)

// Window is a time that comes again and again, by the clock on the wall.
//
// +kubebuilder:object:generate=false
type Window struct {
	// Cron is when it begins, in five fields: 0 9 * * 1-5.
	Cron string `json:"cron"`
	// Duration is how long it is open, at most a week.
	Duration metav1.Duration `json:"duration"`
	// TimeZone by its IANA name: Europe/Berlin. Default: UTC.
	TimeZone string `json:"timeZone,omitempty"`
}

// Check is a question that opens a stage, or the way out of it. Exactly one of CEL,
// Prometheus, Job, HTTP, Approval and Probe is set. It is asked again until it has passed;
// one that has not after its Timeout has failed.
//
// In Prometheus.Query, HTTP.URL and the file of Job.Template, $(component),
// $(pipeline) and $(stage) stand for their names, $(clusters) for those of the
// stage's clusters, with | between them. What says $(cluster) is asked for each of
// these clusters, and has to pass for all.
//
// +kubebuilder:object:generate=false
type Check struct {
	// Name is unique among those before, or after, a stage.
	Name string `json:"name"`
	// CEL is a condition that is asked for each cluster of the stage, and has to be
	// true for all. It reads cluster.name, cluster.labels, and the Delivery of the
	// component there: delivery.version, .sync, .health and .message, as in its status.
	CEL        string           `json:"cel,omitempty"`
	Prometheus *PrometheusCheck `json:"prometheus,omitempty"`
	Job        *JobCheck        `json:"job,omitempty"`
	HTTP       *HTTPCheck       `json:"http,omitempty"`
	Approval   *ApprovalCheck   `json:"approval,omitempty"`
	Probe      *ProbeCheck      `json:"probe,omitempty"`
	// For is how long the answer is yes without a break; CEL, Prometheus and HTTP
	// are then asked again and again. Default: once.
	For *metav1.Duration `json:"for,omitempty"`
	// Timeout from when it is first asked, at least For. Default: 30m and For; none
	// for an approval.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// PrometheusCheck compares the result of a query. It passes when every sample does,
// and there is at least one: no data is no answer.
//
// +kubebuilder:object:generate=false
type PrometheusCheck struct {
	// Address of the server, as the controller reaches it: http://prometheus:9090.
	Address string `json:"address"`
	// Query in PromQL, with an instant vector or a scalar as its result.
	Query string `json:"query"`
	// Operator stands between a sample and Threshold: <, <=, >, >=, == or !=.
	Operator  string  `json:"operator"`
	Threshold float64 `json:"threshold"`
}

// JobCheck runs a Job on each cluster of the stage, in the component's namespace, and
// with its service account's rights if it names one. It passes when all of them
// complete, and fails when one does. The Jobs are deleted after that. How often their
// pods are tried, and for how long, stands in the Job itself. Clusters that take no part
// (paused, pinned), and those from which the component is removed, run none.
//
// +kubebuilder:object:generate=false
type JobCheck struct {
	// Template is the path of a file with a batch/v1 Job, from the root of the fleet
	// repository. Its metadata may hold labels and annotations alone.
	Template string `json:"template"`
}

// HTTPCheck asks a URL with GET, follows no redirect, and passes when the answer has
// the status.
//
// +kubebuilder:object:generate=false
type HTTPCheck struct {
	URL string `json:"url"`
	// Status that is expected. Default: 200.
	Status int `json:"status,omitempty"`
}

// ApprovalCheck waits for a person: a line under approvals/ that names component,
// pipeline stage and the hash of the change, as keelson rollout show prints them.
//
// +kubebuilder:object:generate=false
type ApprovalCheck struct {
	// Because says what to look at before it is given.
	Because string `json:"because,omitempty"`
}

// Freeze is freezes/NAME.yaml: nothing that git changes reaches the clusters and
// components that it names, whether they go through a pipeline or not. What runs is
// kept as it is.
//
// +kubebuilder:object:generate=false
type Freeze struct {
	Header `json:",inline"`
	// ClusterSelector matches the labels of clusters; empty matches all.
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`
	// Components by name. Default: all.
	Components []string `json:"components,omitempty"`
	// From and Until bound it: 2026-11-09T00:00:00+01:00. Default: from now on, and
	// until the file is removed.
	From  *metav1.Time `json:"from,omitempty"`
	Until *metav1.Time `json:"until,omitempty"`
	// Windows in which it holds between From and Until. Default: all the time.
	Windows []Window `json:"windows,omitempty"`
	// Reason is shown with everything that it stops.
	Reason string `json:"reason"`
}
