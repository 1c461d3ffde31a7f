package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of every type in this package.
//
//nolint:gochecknoglobals // the conventional name that API machinery expects
var GroupVersion = schema.GroupVersion{Group: "keelson.io", Version: "v1alpha1"}

// Marks that Keelson leaves on objects, and the names it uses in clusters.
const (
	// LabelComponent marks every object that Keelson manages. It is the only
	// label that Keelson adds to them.
	LabelComponent = "keelson.io/component"
	// LabelCheck marks the Jobs that checks of pipelines run, with the component. They
	// are none of its objects, so they have no [LabelComponent].
	LabelCheck = "keelson.io/check"
	// AnnotationCheckRun tells, on such a Job, for which question it runs: see
	// [RolloutJob]. It is of the fleet of [AnnotationFleet].
	AnnotationCheckRun = "keelson.io/check-run"
	// LabelCluster marks deliveries in the hub.
	LabelCluster = "keelson.io/cluster"
	// AnnotationWave orders objects inside a component; default "0".
	AnnotationWave = "keelson.io/wave"
	// AnnotationEpoch marks an object that a new writer found in the middle of an
	// old one's apply. It makes what the old one still sends stale.
	AnnotationEpoch = "keelson.io/epoch"
	// AnnotationHookRun tells the runs of a hook apart.
	AnnotationHookRun = "keelson.io/hook-run"
	// AnnotationPrune keeps an object when it leaves the chart or its component
	// the cluster, where its value is [PruneDisabled].
	AnnotationPrune = "keelson.io/prune"
	PruneDisabled   = "disabled"
	// LabelProbe marks what a probe created in a cluster, and its results in the hub.
	LabelProbe = "keelson.io/probe"
	// FieldManager owns every field that Keelson sets.
	FieldManager = "keelson"
	// ProbeManager owns the fields of what probes create.
	ProbeManager = FieldManager + "-probe"
	// WorkloadManager owns what a person set with 'keelson workload': to Keelson it is a
	// person's.
	WorkloadManager = FieldManager + "-workload"
	// EpochManager owns AnnotationEpoch, and nothing else.
	EpochManager = FieldManager + "-epoch"
	// Namespace of Keelson's own objects, in the hub and in target clusters.
	Namespace = "keelson-system"
	// LeasePrefix begins the names of the Leases, in the hub's [Namespace], of
	// controllers that share clusters.
	LeasePrefix = "keelson-controller-"
	// LabelShare marks these Leases; those with the same value share clusters.
	LabelShare = "keelson.io/share"
	// AnnotationClusters lists, in such a Lease, the clusters that its holder may
	// write to, by name and separated by commas.
	AnnotationClusters = "keelson.io/clusters"
	// AnnotationFleet names, on a Delivery and on what a probe made, the fleet that it
	// is of.
	AnnotationFleet = "keelson.io/fleet"
	// AnnotationFetch says, in such a Lease, which repository its holder was told to
	// fetch, and when: a hash of its URL, an @, and the time.
	AnnotationFetch = "keelson.io/fetch"
)

// AddToScheme registers the custom resources.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Delivery{}, &DeliveryList{}, &Rollout{}, &RolloutList{}, &ProbeResult{}, &ProbeResultList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
