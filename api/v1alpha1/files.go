package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds of files in a fleet repository.
const (
	KindFleet       = "Fleet"       // fleet.yaml
	KindComponent   = "Component"   // components/NAME/component.yaml
	KindImages      = "Images"      // components/NAME/images.yaml
	KindChartSource = "ChartSource" // components/NAME/chart.yaml
	KindLayer       = "Layer"       // layers/NN-name.yaml
	KindCluster     = "Cluster"     // clusters/NAME/cluster.yaml
	KindMetaConfig  = "MetaConfig"  // clusters/NAME/COMPONENT.yaml
	KindApprovals   = "Approvals"   // approvals/NAME.yaml
	KindPipeline    = "Pipeline"    // pipelines/NAME.yaml
	KindFreeze      = "Freeze"      // freezes/NAME.yaml
	KindProject     = "Project"     // projects/NAME.yaml
	KindInventory   = "Inventory"   // inventory/NAME.yaml
	KindProbe       = "Probe"       // probes/NAME.yaml

	KindNotification = "Notification" // notifications/NAME.yaml
)

// VersionHead is the version that follows the branch instead of a tag. It is meant for development
// clusters.
const VersionHead = "HEAD"

// Header is the start of every file of a fleet repository.
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// Fleet is fleet.yaml: settings for all clusters and components.
//
// +kubebuilder:object:generate=false
type Fleet struct {
	Header `json:",inline"`
	// Name of the fleet, shown in status and events.
	Name string `json:"name"`
	// Drift says what happens to a field that a person changed in a cluster.
	// Default: restore.
	Drift Drift `json:"drift,omitempty"`
	// Pipeline of the components that name no pipeline. Default: none, so changes go to all clusters
	// at once.
	Pipeline string `json:"pipeline,omitempty"`
	// Danger rules are read before the built-in ones; the first match decides.
	Danger []DangerRule `json:"danger,omitempty"`
	// DangerProfile says how strict the built-in danger rules are. Default: baseline.
	DangerProfile DangerProfile `json:"dangerProfile,omitempty"`
	// Verify says that the repository is signed. Without trusted keys, Keelson refuses to read such
	// a repository. With trusted keys, Keelson verifies every repository.
	Verify Verify `json:"verify,omitempty"`
	// Projects says whether every component must belong to a [Project]. Default: optional.
	Projects Projects `json:"projects,omitempty"`
	// PromotableTags says which versions Keelson promotes automatically. Default: merged.
	PromotableTags PromotableTags `json:"promotableTags,omitempty"`
}

// Projects says which components belong to a project.
type Projects string

// The values of [Projects].
const (
	ProjectsOptional Projects = "optional" // a component without a project is not restricted
	ProjectsRequired Projects = "required" // a component without a project is delivered nowhere
)

// PromotableTags says which versions are promoted.
type PromotableTags string

// The values of [PromotableTags].
const (
	// PromotableMerged: tags whose commit is on the delivered branch, so that the review of the
	// branch covers the tag.
	PromotableMerged PromotableTags = "merged"
	// PromotableAll: every tag, including tags of a release branch. The right to push a tag then
	// determines what the first stage runs, so the forge must protect tags.
	PromotableAll PromotableTags = "all"
)

// Verify says which parts of a fleet repository are signed.
type Verify string

// The values of [Verify].
const (
	// VerifySigned: the commits of branches, and the tags of versions. A lightweight tag is
	// verified by its commit.
	VerifySigned Verify = "signed"
	// VerifySignedTags: the same, but lightweight tags are refused.
	VerifySignedTags Verify = "signed-tags"
)

// Drift says what to do about a field that a person changed in a cluster.
type Drift string

// The values of [Drift].
const (
	DriftRestore Drift = "restore" // set the field back, and report it
	DriftReport  Drift = "report"  // leave it, and report it
)

// Determinism says what to do about a chart whose render differs each time, because of the clock or
// of random values.
type Determinism string

// The values of [Determinism].
const (
	DeterminismRequire Determinism = "require" // refuse to render it
	DeterminismReport  Determinism = "report"  // deliver what the first render gave, and warn
)

// Component is components/NAME/component.yaml: the properties of one version of a component on
// every cluster.
//
// +kubebuilder:object:generate=false
type Component struct {
	Header `json:",inline"`
	// Namespace of the component's namespaced objects, and the chart's .Release.Namespace. It is
	// created if it does not exist.
	Namespace string `json:"namespace"`
	// Description is one line for people.
	Description string `json:"description,omitempty"`
	// ServiceAccount in the component's namespace that Keelson impersonates to write the
	// component's objects. The API server then limits the component to the rights of that account.
	// Default: Keelson's own rights.
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// DependsOn names components that must be healthy on the same cluster, at
	// their current target, before this one changes.
	DependsOn []string `json:"dependsOn,omitempty"`
	// Pipeline by which changes go from cluster to cluster, instead of the fleet's. It is read from
	// the branch, not from the version: see [Pipeline].
	Pipeline string `json:"pipeline,omitempty"`
	// Adopt lets the component own existing objects that Keelson never applied. Without it such
	// objects are held.
	Adopt bool `json:"adopt,omitempty"`
	// Drift overrides the fleet's drift policy.
	Drift Drift `json:"drift,omitempty"`
	// Determinism says what happens to a chart whose render differs each time. Default: require.
	Determinism Determinism `json:"determinism,omitempty"`
	// Timeout bounds the wait for health after a change. Default: 5m.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Danger rules are read before the fleet's, except its locked rules. Those of a component with a
	// project are read last.
	Danger []DangerRule `json:"danger,omitempty"`
	// DangerProfile overrides the fleet's. A component of a project can't loosen it.
	DangerProfile DangerProfile `json:"dangerProfile,omitempty"`
	// Health rules say when objects are healthy, for kinds whose health kstatus and Keelson can't
	// determine well. The first rule that matches an object decides.
	Health []HealthRule `json:"health,omitempty"`
}

// Images is components/NAME/images.yaml: the images of one version, the same
// on every cluster.
//
// +kubebuilder:object:generate=false
type Images struct {
	Header `json:",inline"`
	// Images by the name under which templates read .Values.images.NAME.ref.
	Images map[string]Image `json:"images"`
}

// Image is one image reference. At least one of Tag and Digest is set.
//
// +kubebuilder:object:generate=false
type Image struct {
	// Repository with its registry host: registry.k8s.io/coredns/coredns.
	Repository string `json:"repository"`
	// Tag of the image.
	Tag string `json:"tag,omitempty"`
	// Digest in the form sha256:HEX. It decides what runs; the tag is only information.
	Digest string `json:"digest,omitempty"`
	// Into says where a public chart with its own convention expects the parts.
	Into *ImagePaths `json:"into,omitempty"`
}

// ImagePaths are dotted paths below .Values that receive the parts of an image.
//
// +kubebuilder:object:generate=false
type ImagePaths struct {
	// Ref receives the whole reference.
	Ref string `json:"ref,omitempty"`
	// Registry receives only the host; Repository then receives the rest.
	Registry   string `json:"registry,omitempty"`
	Repository string `json:"repository,omitempty"`
	// Tag and Digest receive these parts.
	Tag    string `json:"tag,omitempty"`
	Digest string `json:"digest,omitempty"`
}

// ChartSource is components/NAME/chart.yaml: the source of the chart in template/, if it is
// published elsewhere. keelson vendor writes and checks the chart. The files in template/ are
// delivered, and a delivery downloads nothing.
//
// +kubebuilder:object:generate=false
type ChartSource struct {
	Header `json:",inline"`
	// URL of an OCI repository that ends with the chart's name
	// (oci://registry.example/charts/coredns), of a chart repository
	// (https://charts.example/stable), or file:PATH from the root of the fleet repository, for a
	// chart from a local disk.
	URL string `json:"url"`
	// Name and Version of the chart, as in its Chart.yaml.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Constraint limits the versions for an upgrade: ^1.45. Default: any version except
	// pre-releases.
	Constraint string `json:"constraint,omitempty"`
	// Digest of the .tgz, sha256:HEX. Absent for a folder on a disk.
	Digest string `json:"digest,omitempty"`
	// Files is the digest of the files in template/: the sha256sum of the output of sha256sum for
	// each of them. Absent if the .tgz is kept.
	Files string `json:"files,omitempty"`
	// Dependencies that the chart names and does not contain.
	Dependencies []ChartDependency `json:"dependencies,omitempty"`
}

// ChartDependency is a chart in charts/ that comes from another source.
//
// +kubebuilder:object:generate=false
type ChartDependency struct {
	// URL as in [ChartSource].
	URL string `json:"url"`
	// Name and Version of the chart.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Digest of the .tgz; for a folder on a disk, the digest of its files.
	Digest string `json:"digest"`
}

// Layer is layers/NN-name.yaml: versions and meta-config for the clusters that
// its selector matches. Layers apply in file-name order.
//
// +kubebuilder:object:generate=false
type Layer struct {
	Header `json:",inline"`
	// ClusterSelector matches the labels of clusters; empty matches all.
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`
	// Components by name.
	Components map[string]LayerEntry `json:"components"`
}

// LayerEntry holds a layer's settings of one component.
//
// +kubebuilder:object:generate=false
type LayerEntry struct {
	// Version is a tag name without the component (v1.12.0), or HEAD.
	Version string `json:"version,omitempty"`
	// Absent removes the component from the clusters; see [MetaConfig.Absent].
	Absent bool `json:"absent,omitempty"`
	// Values are meta-config, merged by Helm's rules.
	Values map[string]any `json:"values,omitempty"`
}

// Cluster is clusters/NAME/cluster.yaml.
//
// +kubebuilder:object:generate=false
type Cluster struct {
	Header `json:",inline"`
	// Labels are matched by the selectors of layers.
	Labels map[string]string `json:"labels,omitempty"`
	// Connection says how to reach the cluster, unless an [Inventory] does.
	Connection Connection `json:"connection,omitempty"`
	// ImageMirrors rewrites registry hosts: registry.k8s.io → mirror.example.
	ImageMirrors map[string]string `json:"imageMirrors,omitempty"`
	// Paused clusters are observed and never written to.
	Paused bool `json:"paused,omitempty"`
}

// Connection names the credentials of a cluster; exactly one field is set.
//
// +kubebuilder:object:generate=false
type Connection struct {
	// Context of the kubeconfig that Keelson was started with.
	Context string `json:"context,omitempty"`
	// Secret in the hub that holds a kubeconfig.
	Secret *SecretKey `json:"secret,omitempty"`
	// Hub says that the cluster is the hub, reached with the same credentials, for example with the
	// service account of Keelson's own pod.
	Hub bool `json:"hub,omitempty"`
}

// SecretKey names one key of a Secret in the hub.
//
// +kubebuilder:object:generate=false
type SecretKey struct {
	// Namespace of the Secret. Default: keelson-system.
	Namespace string `json:"namespace,omitempty"`
	// Name of the Secret.
	Name string `json:"name"`
	// Key in the Secret's data. Default: kubeconfig.
	Key string `json:"key,omitempty"`
}

// MetaConfig is clusters/NAME/COMPONENT.yaml: the version and values of one
// component on one cluster. It wins over every layer.
//
// +kubebuilder:object:generate=false
type MetaConfig struct {
	Header `json:",inline"`
	// Version is a tag name without the component (v1.12.0), or HEAD. It may
	// be left out when a layer sets it.
	Version string `json:"version,omitempty"`
	// Absent removes the component from the cluster. Its objects are deleted by the same rules as
	// objects that left the chart, and its record is deleted last. The version stays beside it,
	// here or in a layer: its danger rules, dependencies, service account and hooks apply during
	// the removal. The most specific setting counts: a later layer or the cluster's own file that
	// names a version ends a layer's absence.
	Absent bool `json:"absent,omitempty"`
	// Values are meta-config, merged by Helm's rules.
	Values map[string]any `json:"values,omitempty"`
	// Paused stops changes to this component on this cluster.
	Paused bool `json:"paused,omitempty"`
}

// Project is projects/NAME.yaml: the limits of a team's components. It is read from the branch, for
// every delivered version of a component, and its components can't loosen it. keelson validate and
// the controller refuse a component that exceeds the limits.
//
// +kubebuilder:object:generate=false
type Project struct {
	Header `json:",inline"`
	// Description is one line for people.
	Description string `json:"description,omitempty"`
	// Components by name; values may use * globs. A component belongs to at most one project.
	Components []string `json:"components"`
	// Objects that the components may have, including objects of hooks and Jobs of checks. An
	// object that matches no entry is denied. An entry with a namespace matches no object without
	// one. The namespace of a component must match the namespace of an entry.
	Objects []ObjectMatch `json:"objects"`
	// ClusterSelector matches the labels of clusters to which they may be delivered. Default: all.
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// ServiceAccounts: a component must name one of them, which writes its objects. Default: any,
	// or Keelson's own rights.
	ServiceAccounts []string `json:"serviceAccounts,omitempty"`
	// Pipelines: a component must use one of them. Default: any, or none.
	Pipelines []string `json:"pipelines,omitempty"`
	// Adopt permits components to own existing objects that Keelson never applied.
	Adopt bool `json:"adopt,omitempty"`
	// Danger rules for the project's components are read before the fleet's unlocked rules. The
	// rules of its components are read last, so they can only add rules.
	Danger []DangerRule `json:"danger,omitempty"`
}

// Inventory is inventory/NAME.yaml: connections and labels of clusters. A fleet with inventories
// lists every cluster in one of them. cluster.yaml, which may have other authors, can't set what an
// inventory sets.
//
// +kubebuilder:object:generate=false
type Inventory struct {
	Header `json:",inline"`
	// Clusters by name.
	Clusters map[string]InventoryEntry `json:"clusters"`
}

// InventoryEntry holds an inventory's settings of one cluster.
//
// +kubebuilder:object:generate=false
type InventoryEntry struct {
	// Connection of the cluster.
	Connection Connection `json:"connection"`
	// Labels of the cluster. No cluster.yaml may set a label that any entry of any inventory sets.
	Labels map[string]string `json:"labels,omitempty"`
}

// Approvals is approvals/NAME.yaml: approvals of changes that wait for a person.
//
// +kubebuilder:object:generate=false
type Approvals struct {
	Header `json:",inline"`
	// Approvals in any order.
	Approvals []Approval `json:"approvals"`
}

// Approval approves one held change of one object, or one change of a component for one stage's
// approval checks. It is bound to a hash, so it expires when the approved change changes. For an
// object, the hash covers what git wants and the state in the cluster; for a rollout, what git
// wants.
//
// +kubebuilder:object:generate=false
type Approval struct {
	// Cluster by name; or ClusterSelector, by labels. For an object exactly one of them is set, for
	// a stage none.
	Cluster         string                `json:"cluster,omitempty"`
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Component by name.
	Component string `json:"component"`
	// Object and Hash as keelson diff shows them:
	// Deployment.apps kube-system/coredns, 32 hexadecimal digits.
	Object string `json:"object,omitempty"`
	// Stage of the component's pipeline, and Hash of the change, as keelson rollout
	// show prints them. Either Object or Stage is set.
	Stage string `json:"stage,omitempty"`
	Hash  string `json:"hash"`
	// Because is the reason, for reviewers and later readers.
	Because string `json:"because"`
}

// Effect is what a danger rule does to a change that it matches.
type Effect string

// The values of [Effect].
const (
	EffectKeep  Effect = "keep"  // the live value stays
	EffectHold  Effect = "hold"  // the change waits for approval in git; see [Scope]
	EffectDeny  Effect = "deny"  // the change is never applied; the delivery fails
	EffectWarn  Effect = "warn"  // the change is applied, and shown with the reason; later rules are still evaluated
	EffectAllow Effect = "allow" // an exception to a later, broader rule
)

// DangerProfile says how strict the built-in danger rules are.
type DangerProfile string

// The values of [DangerProfile], from the loosest to the strictest.
const (
	ProfileOff      DangerProfile = "off"      // no built-in rule holds or warns
	ProfileBaseline DangerProfile = "baseline" // effects as in the catalogue
	ProfileStrict   DangerProfile = "strict"   // warnings of the catalogue are holds
)

// Scope says how much of an object a held change stops.
type Scope string

// The values of [Scope].
const (
	ScopeObject Scope = "object" // the whole object; the default
	ScopeField  Scope = "field"  // only the field; the rest of the object is applied
)

// Event is the kind of change of the field or object that a danger rule names.
type Event string

// The values of [Event].
const (
	OnAdd          Event = "add"           // the field is absent in the cluster, and git has it
	OnChange       Event = "change"        // the field has another value
	OnRemove       Event = "remove"        // the field leaves the object
	OnDeleteObject Event = "delete-object" // the object is deleted
	// OnCreateObject is the creation of the object. A rule without a path is evaluated once, and a
	// rule with a path for each field. A creation is never held: hold warns instead.
	OnCreateObject Event = "create-object"
)

// DangerRule says which changes are dangerous and what happens to them.
//
// +kubebuilder:object:generate=false
type DangerRule struct {
	// Name is unique; a rule with a built-in rule's name replaces it.
	Name string `json:"name"`
	// Match selects objects; empty fields match all.
	Match ObjectMatch `json:"match,omitempty"`
	// Path in structured-merge-diff syntax, where * stands for any one element:
	// .spec.template.spec.containers[*].image. It matches the field and everything below it. It is
	// left out with on: [delete-object], and with on: [create-object] for the object as a whole.
	Path string `json:"path,omitempty"`
	// On lists the events; empty means add, change and remove.
	On []Event `json:"on,omitempty"`
	// When is a CEL condition; empty is true. It reads the field's values old (in the cluster), new
	// (in git) and recorded (last applied), each null if absent. It also reads object (as in git;
	// as in the cluster if git has none), live (null on a create), status (of the live object),
	// cluster.labels, and objects: what git wants of the component, by kind
	// (objects.?Service.orValue([])). nodes.matching(POD SPEC) counts the nodes of the cluster that
	// the pod may run on. status and nodes are null if unknown, as in a preview. The data of
	// Secrets is masked. quantity("1Gi") is a number. A condition that fails counts as true, and
	// then nothing passes: keep and allow hold.
	When string `json:"when,omitempty"`
	// MessageExpression is a CEL expression over the same variables that returns a string. The
	// string follows Because. It is left out if the expression fails or the string exceeds 200
	// bytes.
	MessageExpression string `json:"messageExpression,omitempty"`
	// Effect of the first matching rule applies. Rules that warn decide nothing: every matching one
	// before that rule is shown.
	Effect Effect `json:"effect"`
	// Scope of a hold. Default: object. A field in a list item that is added or removed as a whole
	// can't wait alone, so its whole object waits.
	Scope Scope `json:"scope,omitempty"`
	// Because is shown with every change that the rule stops or warns of.
	Because string `json:"because"`
	// Fix says what to do instead, in one sentence. It is shown beside Because.
	Fix string `json:"fix,omitempty"`
	// Source is the URL of a description of the danger.
	Source string `json:"source,omitempty"`
	// Locked rules of fleet.yaml are read before the rules of components, which can't replace them.
	// All rules above a locked rule are read before, too. A rule that denies is always locked. Only
	// the rules of fleet.yaml can be locked.
	Locked bool `json:"locked,omitempty"`
}

// HealthRule determines the health of objects of a kind in CEL. Its conditions read object (as in
// the cluster, a Secret without its data) and cluster.labels. They are evaluated in the order
// InProgress, Failed, Current, like Flux's healthCheckExprs. At least one is set. An object that is
// being deleted, or whose controller has not seen its last change (status.observedGeneration), is
// in progress without evaluation.
//
// +kubebuilder:object:generate=false
type HealthRule struct {
	// Match selects objects; kinds are required.
	Match ObjectMatch `json:"match"`
	// InProgress is true while a change of the object is in progress.
	InProgress string `json:"inProgress,omitempty"`
	// Failed is true if waiting does not help.
	Failed string `json:"failed,omitempty"`
	// Current is true if the object is healthy; while it is false, the object is in progress.
	// Without it, the rules of Keelson and kstatus decide.
	Current string `json:"current,omitempty"`
	// Because is shown while the object is not healthy.
	Because string `json:"because"`
}

// ObjectMatch selects objects. Empty fields match all; values may use * globs.
//
// +kubebuilder:object:generate=false
type ObjectMatch struct {
	// Group of the API; core is the group with an empty name.
	Group string `json:"group,omitempty"`
	// Kinds, Namespace and Name of the object.
	Kinds     []string `json:"kinds,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
}
