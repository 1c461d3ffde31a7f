package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every type in this package.
//
//nolint:gochecknoglobals // the conventional name that API machinery expects
var GroupVersion = schema.GroupVersion{Group: "keelson.io", Version: "v1alpha1"}

// Labels and annotations that Keelson sets on objects, and names that it uses in clusters.
const (
	// LabelComponent marks every object that Keelson manages. It is the only
	// label that Keelson adds to them.
	LabelComponent = "keelson.io/component"
	// LabelCheck marks the Jobs of a pipeline's checks, with the component. They do not belong to
	// the component's objects, so they have no [LabelComponent].
	LabelCheck = "keelson.io/check"
	// AnnotationCheckRun on such a Job is the Run of its [RolloutJob]. The Job belongs to the fleet
	// in [AnnotationFleet].
	AnnotationCheckRun = "keelson.io/check-run"
	// LabelCluster marks deliveries in the hub.
	LabelCluster = "keelson.io/cluster"
	// AnnotationWave orders objects within a component; default "0".
	AnnotationWave = "keelson.io/wave"
	// AnnotationEpoch marks an object that a new writer found during an old writer's apply. Later
	// requests of the old writer then fail as stale.
	AnnotationEpoch = "keelson.io/epoch"
	// AnnotationHookRun distinguishes the runs of a hook.
	AnnotationHookRun = "keelson.io/hook-run"
	// AnnotationPrune with the value [PruneDisabled] keeps an object that leaves the chart, or
	// whose component leaves the cluster. The object is not replaced either.
	AnnotationPrune = "keelson.io/prune"
	PruneDisabled   = "disabled"
	// AnnotationVersioned with the value "true" makes a ConfigMap or Secret of a chart versioned: each
	// content becomes an immutable object of its own, and pod templates refer to it.
	AnnotationVersioned = "keelson.io/versioned"
	// AnnotationVersionedConfiguration on a workload names ConfigMaps and Secrets of its component as
	// versioned: ConfigMap/NAME and Secret/NAME, separated by commas.
	AnnotationVersionedConfiguration = "keelson.io/versioned-configuration"
	// AnnotationHotReload on a workload of apps.kruise.io, or on its pod template, names ConfigMaps of its
	// component whose changes reach running containers: ConfigMap/NAME, separated by commas. They are
	// versioned.
	AnnotationHotReload = "keelson.io/hot-reload"
	// AnnotationConfigMapName on a version of a ConfigMap has its name in the chart.
	AnnotationConfigMapName = "keelson.io/configmap-name"
	// AnnotationConfigMapVersion on it has the hash of its data.
	AnnotationConfigMapVersion = "keelson.io/configmap-version"
	// AnnotationSecretName on a version of a Secret has its name in the chart.
	AnnotationSecretName = "keelson.io/secret-name"
	// AnnotationSecretVersion on it has the hash of its data.
	AnnotationSecretVersion = "keelson.io/secret-version"
	// LabelProbe marks the objects that a probe created in a cluster, and its results in the hub.
	LabelProbe = "keelson.io/probe"
	// FieldManager owns every field that Keelson sets.
	FieldManager = "keelson"
	// ProbeManager owns the fields of objects that probes create.
	ProbeManager = FieldManager + "-probe"
	// WorkloadManager owns fields set by a person with 'keelson workload'. Keelson treats them like
	// any person's fields.
	WorkloadManager = FieldManager + "-workload"
	// DeploymentManager owns the fields of Deployments that 'keelson workloads' changes while they have the
	// annotation workloads.keelson.io/update-strategy.
	DeploymentManager = FieldManager + "-rollout"
	// EpochManager owns AnnotationEpoch, and nothing else.
	EpochManager = FieldManager + "-epoch"
	// Namespace of Keelson's own objects, in the hub and in target clusters.
	Namespace = "keelson-system"
	// LeasePrefix is the prefix of the names of the Leases, in the hub's [Namespace], of
	// controllers that share clusters.
	LeasePrefix = "keelson-controller-"
	// LabelShare marks the Leases of controllers that share clusters. Those with the same value share
	// theirs.
	LabelShare = "keelson.io/share"
	// AnnotationClusters on such a Lease lists the clusters that its holder may write to, by name,
	// separated by commas.
	AnnotationClusters = "keelson.io/clusters"
	// AnnotationFleet names the fleet of a Delivery, or of an object that a probe created.
	AnnotationFleet = "keelson.io/fleet"
	// AnnotationFetch on the Lease of a controller names the repository that its holder was asked to fetch, and
	// the time: a hash of its URL, an @, and the time.
	AnnotationFetch = "keelson.io/fetch"
)

// AddToScheme registers the custom resources.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Delivery{}, &DeliveryList{}, &Rollout{}, &RolloutList{}, &ProbeResult{}, &ProbeResultList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
