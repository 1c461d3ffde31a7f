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

// VersionHead is the version that follows the branch instead of a tag, for
// development clusters.
const VersionHead = "HEAD"

// Header opens every file of a fleet repository.
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// Fleet is fleet.yaml: what holds for every cluster and component.
//
// +kubebuilder:object:generate=false
type Fleet struct {
	Header `json:",inline"`
	// Name of the fleet, shown in status and events.
	Name string `json:"name"`
	// Drift says what happens to a field that a person changed in a cluster.
	// Default: restore.
	Drift Drift `json:"drift,omitempty"`
	// Pipeline of the components that name none. Default: their changes go to all
	// clusters at once.
	Pipeline string `json:"pipeline,omitempty"`
	// Danger rules are read before the built-in ones; the first match decides.
	Danger []DangerRule `json:"danger,omitempty"`
	// DangerProfile says how strict the built-in danger rules are. Default: baseline.
	DangerProfile DangerProfile `json:"dangerProfile,omitempty"`
	// Verify says that the repository is signed: a Keelson that was not given
	// trusted keys refuses to read it. One that was verifies in any case.
	Verify Verify `json:"verify,omitempty"`
	// Projects says whether every component has to be of a [Project]. Default: optional.
	Projects Projects `json:"projects,omitempty"`
	// PromotableTags says which versions Keelson promotes by itself. Default: merged.
	PromotableTags PromotableTags `json:"promotableTags,omitempty"`
}

// Projects says which components are of a project.
type Projects string

// The values of [Projects].
const (
	ProjectsOptional Projects = "optional" // one that no project names may be and do anything
	ProjectsRequired Projects = "required" // one that no project names is delivered nowhere
)

// PromotableTags says which versions are promoted.
type PromotableTags string

// The values of [PromotableTags].
const (
	// PromotableMerged: a tag whose commit is on the branch that is delivered, so that
	// the review of the branch is one of the tag, too.
	PromotableMerged PromotableTags = "merged"
	// PromotableAll: every tag, also of a release branch. The right to push a
	// tag decides then what the first stage runs: the forge has to protect tags.
	PromotableAll PromotableTags = "all"
)

// Verify says what of a fleet repository is signed.
type Verify string

// The values of [Verify].
const (
	// VerifySigned: the commits of branches, and the tags of versions; a
	// lightweight tag is judged by its commit.
	VerifySigned Verify = "signed"
	// VerifySignedTags: the same, and a lightweight tag is refused.
	VerifySignedTags Verify = "signed-tags"
)

// Drift says what to do about a field that a person changed in a cluster.
type Drift string

// The values of [Drift].
const (
	DriftRestore Drift = "restore" // set the field back, and report it
	DriftReport  Drift = "report"  // leave it, and report it
)

// Determinism says what to do about a chart that renders to something else each
// time, by the clock or by chance.
type Determinism string

// The values of [Determinism].
const (
	DeterminismRequire Determinism = "require" // refuse to render it
	DeterminismReport  Determinism = "report"  // deliver what the first render gave, and warn
)

// Component is components/NAME/component.yaml: what is true of one version of
// a component wherever it runs.
//
// +kubebuilder:object:generate=false
type Component struct {
	Header `json:",inline"`
	// Namespace of the component's namespaced objects, and the chart's
	// .Release.Namespace. Created when it does not exist.
	Namespace string `json:"namespace"`
	// Description is one line for people.
	Description string `json:"description,omitempty"`
	// ServiceAccount of the component's namespace that Keelson impersonates to
	// write the component's objects, so that the API server allows this
	// component no more than that account may. Default: Keelson's own rights.
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// DependsOn names components that must be healthy on the same cluster, at
	// their current target, before this one changes.
	DependsOn []string `json:"dependsOn,omitempty"`
	// Pipeline by which changes go from cluster to cluster, instead of the fleet's.
	// It is read as the branch has it, and not at the version: see [Pipeline].
	Pipeline string `json:"pipeline,omitempty"`
	// Adopt lets the component take over objects that exist already and that
	// Keelson never applied. Without it such objects are held.
	Adopt bool `json:"adopt,omitempty"`
	// Drift overrides the fleet's drift policy.
	Drift Drift `json:"drift,omitempty"`
	// Determinism says what happens to a chart that renders to something else
	// each time. Default: require.
	Determinism Determinism `json:"determinism,omitempty"`
	// Timeout bounds the wait for health after a change. Default: 5m.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Danger rules are read before the fleet's.
	Danger []DangerRule `json:"danger,omitempty"`
	// DangerProfile overrides the fleet's. A component of a project can't loosen it.
	DangerProfile DangerProfile `json:"dangerProfile,omitempty"`
	// Health rules say when objects are healthy of which kstatus and Keelson
	// know too little. The first that matches an object decides.
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
	Tag        string `json:"tag,omitempty"`
	// Digest in the form sha256:HEX. It decides what runs; the tag is for people.
	Digest string `json:"digest,omitempty"`
	// Into says where a public chart with a convention of its own wants the parts.
	Into *ImagePaths `json:"into,omitempty"`
}

// ImagePaths are dotted paths below .Values that receive the parts of an image.
//
// +kubebuilder:object:generate=false
type ImagePaths struct {
	// Ref receives the whole reference.
	Ref string `json:"ref,omitempty"`
	// Registry receives the host alone; Repository then goes without it.
	Registry   string `json:"registry,omitempty"`
	Repository string `json:"repository,omitempty"`
	Tag        string `json:"tag,omitempty"`
	Digest     string `json:"digest,omitempty"`
}

// ChartSource is components/NAME/chart.yaml: where the chart in template/ is from,
// when somebody else publishes it. keelson vendor writes and checks it; what is
// delivered are the files in template/, and nothing is downloaded for that.
//
// +kubebuilder:object:generate=false
type ChartSource struct {
	Header `json:",inline"`
	// URL is that of an OCI repository, with the chart's name at its end
	// (oci://registry.example/charts/coredns), that of a chart repository
	// (https://charts.example/stable), or file:PATH from the root of the fleet
	// repository, for a chart that was on a disk.
	URL string `json:"url"`
	// Name and Version of the chart, as in its Chart.yaml.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Constraint is what an upgrade may choose from: ^1.45. Default: any
	// version that is no pre-release.
	Constraint string `json:"constraint,omitempty"`
	// Digest of the .tgz, sha256:HEX. Left out for a folder on a disk.
	Digest string `json:"digest,omitempty"`
	// Files is the digest of the files in template/, as sha256sum makes it of
	// what sha256sum prints for each of them. Left out where the .tgz is kept.
	Files string `json:"files,omitempty"`
	// Dependencies that the chart names and did not bring along.
	Dependencies []ChartDependency `json:"dependencies,omitempty"`
}

// ChartDependency is a chart in charts/ that was brought from elsewhere.
//
// +kubebuilder:object:generate=false
type ChartDependency struct {
	// URL as in [ChartSource].
	URL     string `json:"url"`
	Name    string `json:"name"`
	Version string `json:"version"`
	// Digest of the .tgz; of a folder on a disk, that of its files.
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

// LayerEntry is what a layer says about one component.
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
	// Labels are what layers select by.
	Labels map[string]string `json:"labels,omitempty"`
	// Connection says how the cluster is reached, unless an [Inventory] does.
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
	// Hub says that the cluster is the hub, reached as that is: by the service
	// account of Keelson's own pod, say.
	Hub bool `json:"hub,omitempty"`
}

// SecretKey names one key of a Secret in the hub.
//
// +kubebuilder:object:generate=false
type SecretKey struct {
	// Namespace of the Secret. Default: keelson-system.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
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
	// Absent removes the component from the cluster: its objects go, by the same
	// rules as one that left the chart, and its record last. The version stays
	// beside it, here or in a layer: its danger rules, dependencies, service account
	// and hooks hold while it goes. The nearest word counts: a layer's absence ends
	// where a later layer or the cluster's own file names a version.
	Absent bool `json:"absent,omitempty"`
	// Values are meta-config, merged by Helm's rules.
	Values map[string]any `json:"values,omitempty"`
	// Paused stops changes to this component on this cluster.
	Paused bool `json:"paused,omitempty"`
}

// Project is projects/NAME.yaml: what the components of a team may be and do. It is read
// as the branch has it, whatever version of a component is delivered, and its components
// can't loosen it. What oversteps it is refused, by keelson validate and by the
// controller.
//
// +kubebuilder:object:generate=false
type Project struct {
	Header `json:",inline"`
	// Description is one line for people.
	Description string `json:"description,omitempty"`
	// Components by name; values may use * globs. A component is of one project at most.
	Components []string `json:"components"`
	// Objects that they may have, those of hooks and of Jobs of checks among them: one
	// that none of these matches is denied. A namespace that is given matches no object
	// without one. The namespace of a component has to match that of one of these.
	Objects []ObjectMatch `json:"objects"`
	// ClusterSelector matches the labels of clusters that they may be delivered to.
	// Default: all.
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// ServiceAccounts of which a component names one, to be written as that. Default:
	// any, and Keelson's own rights.
	ServiceAccounts []string `json:"serviceAccounts,omitempty"`
	// Pipelines of which a component's changes go one. Default: any, or none.
	Pipelines []string `json:"pipelines,omitempty"`
	// Adopt lets components take over objects that Keelson never applied, if they want to.
	Adopt bool `json:"adopt,omitempty"`
	// Danger rules for its components are read before the fleet's, but for those that
	// are locked. The rules of its components are read last: they can only add.
	Danger []DangerRule `json:"danger,omitempty"`
}

// Inventory is inventory/NAME.yaml: what clusters are. A fleet that has such files lists
// every cluster in one of them. What stands there can't be said in cluster.yaml, which
// others may write.
//
// +kubebuilder:object:generate=false
type Inventory struct {
	Header `json:",inline"`
	// Clusters by name.
	Clusters map[string]InventoryEntry `json:"clusters"`
}

// InventoryEntry is what an inventory says of one cluster.
//
// +kubebuilder:object:generate=false
type InventoryEntry struct {
	// Connection of the cluster.
	Connection Connection `json:"connection"`
	// Labels of the cluster. One that any entry of any inventory sets is set by no
	// cluster.yaml.
	Labels map[string]string `json:"labels,omitempty"`
}

// Approvals is approvals/NAME.yaml: changes that wait for a person, and may pass.
//
// +kubebuilder:object:generate=false
type Approvals struct {
	Header    `json:",inline"`
	Approvals []Approval `json:"approvals"`
}

// Approval lets one held change of one object pass, or one change of a component
// through one stage's approval checks. It is bound to a hash, so it expires when
// anything of what was approved changes: of an object, what git wants, or what it
// meets in the cluster; of a rollout, what git wants.
//
// +kubebuilder:object:generate=false
type Approval struct {
	// Cluster by name; or ClusterSelector, by labels. Exactly one is set for an
	// object, and none for a stage.
	Cluster         string                `json:"cluster,omitempty"`
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	Component       string                `json:"component"`
	// Object and Hash as keelson diff shows them:
	// Deployment.apps kube-system/coredns, 32 hexadecimal digits.
	Object string `json:"object,omitempty"`
	// Stage of the component's pipeline, and Hash of the change, as keelson rollout
	// show prints them. Either Object or Stage is set.
	Stage string `json:"stage,omitempty"`
	Hash  string `json:"hash"`
	// Because is for those who review and read it later.
	Because string `json:"because"`
}

// Effect is what a danger rule does to a change that it matches.
type Effect string

// The values of [Effect].
const (
	EffectKeep  Effect = "keep"  // the live value stays
	EffectHold  Effect = "hold"  // the change waits for approval in git; see Scope
	EffectDeny  Effect = "deny"  // never; the delivery fails
	EffectWarn  Effect = "warn"  // the change is applied, and shown with the reason; later rules are still asked
	EffectAllow Effect = "allow" // an exception to a later, broader rule
)

// DangerProfile says how strict the built-in danger rules are.
type DangerProfile string

// The values of [DangerProfile], from the loosest on.
const (
	ProfileOff      DangerProfile = "off"      // no built-in rule holds or warns
	ProfileBaseline DangerProfile = "baseline" // as the catalogue says
	ProfileStrict   DangerProfile = "strict"   // what the catalogue warns of is held
)

// Scope is how much waits for a change that is held.
type Scope string

// The values of [Scope].
const (
	ScopeObject Scope = "object" // the whole object; the default
	ScopeField  Scope = "field"  // the field alone, and the rest of the object moves
)

// Event is what happens to the field or object that a danger rule names.
type Event string

// The values of [Event].
const (
	OnAdd          Event = "add"
	OnChange       Event = "change"
	OnRemove       Event = "remove"
	OnDeleteObject Event = "delete-object"
	// OnCreateObject is the creation of the object. A rule without a path is asked once,
	// and one with a path about each field. A creation is never held: hold warns.
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
	// Path in structured-merge-diff syntax, where * stands for any one
	// element: .spec.template.spec.containers[*].image. It matches the field
	// and all below it. Left out with on: [delete-object], and where on: [create-object]
	// means the object as a whole.
	Path string `json:"path,omitempty"`
	// On lists the events; empty means add, change and remove.
	On []Event `json:"on,omitempty"`
	// When is a CEL condition; empty is true. It reads the field's values old
	// (in the cluster), new (in git) and recorded (last applied), each null
	// where absent, object (as in git; as in the cluster when git has none),
	// live (null on a create), status (of the live object), cluster.labels, and objects: what
	// git wants of the component, by kind (objects.?Service.orValue([])). nodes.matching(POD
	// SPEC) counts the nodes of the cluster that the pod may run on. status and nodes are
	// null where they are not known, as in a preview. The data of Secrets is masked.
	// quantity("1Gi") is a number. A condition that fails counts as true, and then nothing
	// passes: keep and allow hold.
	When string `json:"when,omitempty"`
	// MessageExpression is a CEL expression of a string over the same variables. Its value
	// stands behind Because. A message that fails, or takes more than 200 bytes, is left out.
	MessageExpression string `json:"messageExpression,omitempty"`
	// Effect of the first rule that matches is what happens. Rules that warn decide
	// nothing: each that matches before that rule is shown.
	Effect Effect `json:"effect"`
	// Scope of a hold. Default: object. A field that can't wait alone, in a
	// list item that comes or goes as a whole, makes its object wait.
	Scope Scope `json:"scope,omitempty"`
	// Because is shown with everything that the rule stops, or warns of.
	Because string `json:"because"`
	// Fix says what to do instead, in one sentence. It is shown beside Because.
	Fix string `json:"fix,omitempty"`
	// Source is where the danger is described: a URL.
	Source string `json:"source,omitempty"`
	// Locked rules are read before those of components, which can't replace them, and
	// so is what stands above them. A rule that denies is locked without saying so. Only
	// the rules of fleet.yaml can be.
	Locked bool `json:"locked,omitempty"`
}

// HealthRule says in CEL how objects of a kind are. Its conditions read object
// (as in the cluster, a Secret without its data) and cluster.labels, and are asked
// in the order InProgress, Failed, Current, as Flux asks its healthCheckExprs. At
// least one is set. An object that is being deleted, or whose controller has not
// seen its last change (status.observedGeneration), is in progress without asking.
//
// +kubebuilder:object:generate=false
type HealthRule struct {
	// Match selects objects; kinds are needed.
	Match ObjectMatch `json:"match"`
	// InProgress is true while the object is on its way.
	InProgress string `json:"inProgress,omitempty"`
	// Failed is true when waiting does not help.
	Failed string `json:"failed,omitempty"`
	// Current is true when the object is healthy; while it is false, the object
	// is in progress. Left out, the rules of Keelson and kstatus decide.
	Current string `json:"current,omitempty"`
	// Because is shown while the object is not healthy.
	Because string `json:"because"`
}

// ObjectMatch selects objects. Empty fields match all; values may use * globs.
//
// +kubebuilder:object:generate=false
type ObjectMatch struct {
	// Group of the API; core is the one without a name.
	Group     string   `json:"group,omitempty"`
	Kinds     []string `json:"kinds,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
}
