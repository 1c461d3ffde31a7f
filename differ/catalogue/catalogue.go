// Package catalogue holds the danger rules that are built in, as data: what each is about, its
// condition, and what to do instead.
//
// It evaluates nothing: package differ compiles the rules and applies them. Every rule has cases in
// differ/testdata/catalogue, and docs/reference/danger-rules.md lists all.
package catalogue

import (
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Rule is one rule of the catalogue. It stands for one danger rule at each of its paths.
type Rule struct {
	// DangerRule has no path.
	v1alpha1.DangerRule
	Paths []string
	// Autoscaled is what an autoscaler of the cluster must own for the rule to apply.
	Autoscaled Autoscaled
}

// Autoscaled is what autoscalers may own of a workload; the zero value is nothing.
type Autoscaled uint8

// The values of [Autoscaled].
const (
	AutoscaledReplicas Autoscaled = iota + 1
	AutoscaledRequests
	AutoscaledLimits
)

// Names of rules that mean more than their condition.
const (
	// CRDSchema is about the custom resources of a CRD: no field shows whether it fires.
	CRDSchema = "crd-schema"
	// Immutable is about the fields that no update changes.
	Immutable = "immutable"
)

// Rules returns the rules of a profile, in the order in which they are read.
func Rules(profile v1alpha1.DangerProfile) []Rule {
	list := inProfile(inBarePods(all()), profile)
	out := make([]Rule, len(list))
	for i, c := range list {
		out[i] = Rule{
			DangerRule: v1alpha1.DangerRule{
				Name: c.name, On: c.on, Effect: c.effect, Because: c.because, Fix: c.fix, Source: c.source, When: c.when, MessageExpression: c.says,
				Match: v1alpha1.ObjectMatch{Group: c.group, Kinds: c.kinds},
			},
			Paths: c.paths, Autoscaled: c.autoscaled,
		}
	}
	return out
}

// all returns the rules of every profile. Each has a case in the tests of differ.
func all() []catalogued {
	changed := []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove}
	catalogue := []catalogued{
		{
			name: "autoscaled-replicas", effect: v1alpha1.EffectKeep, autoscaled: AutoscaledReplicas,
			because: "an autoscaler owns the number of replicas",
			paths:   []string{".spec.replicas"},
		},
		{
			name: "autoscaled-requests", effect: v1alpha1.EffectKeep, autoscaled: AutoscaledRequests, on: changed,
			because: "a vertical autoscaler owns the requests",
			paths:   inContainers(".resources.requests"),
		},
		{
			name: "autoscaled-limits", effect: v1alpha1.EffectKeep, autoscaled: AutoscaledLimits, on: changed,
			because: "a vertical autoscaler owns the limits",
			paths:   inContainers(".resources.limits"),
		},
		{
			name: "finalizers", effect: v1alpha1.EffectKeep, on: changed,
			because: "without its finalizer, an object may be deleted before its controller has cleaned up",
			paths:   []string{".metadata.finalizers"},
		},
		{
			name: "owner-references", effect: v1alpha1.EffectKeep, on: changed,
			because: "an object without its owner stays when the owner is deleted; with another owner, the object is deleted together with that one",
			paths:   []string{".metadata.ownerReferences"},
		},
		{
			name: "owner-gained", effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnAdd},
			because: "the object is deleted together with its owner, and soon if the owner does not exist",
			paths:   []string{".metadata.ownerReferences"},
		},
	}
	catalogue = append(catalogue, ofClaims()...)
	catalogue = append(catalogue, []catalogued{
		{
			name: "fewer-replicas", effect: v1alpha1.EffectHold, on: changed,
			because: "git takes away more than half of the replicas, or all of them",
			fix:     "scale down in steps, and check the load in between",
			source:  kubernetesDocs + "concepts/workloads/controllers/deployment/#scaling-a-deployment",
			// An absent value is 1. Replicas that a person added without git are drift, and are
			// removed.
			when:  `new != recorded && (new == null ? 1 : new) < old && ((new == null ? 1 : new) == 0 || (new == null ? 1 : new) * 2 < old)`,
			paths: []string{".spec.replicas"},
		},
		{
			name: "workload-selector", effect: v1alpha1.EffectHold,
			kinds:   []string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CloneSet"},
			because: "a selector is immutable: the workload would have to be deleted and created again, with all its pods",
			fix:     "keep the selector, or add a workload with another name and move the traffic to it",
			source:  kubernetesDocs + "concepts/workloads/controllers/deployment/#label-selector-updates",
			paths:   []string{".spec.selector"},
		},
		{
			name: "volume-claim-templates", effect: v1alpha1.EffectHold,
			kinds:   []string{"StatefulSet", "CloneSet"},
			because: "existing claims do not follow a changed template; in a StatefulSet the templates are immutable, and a CloneSet may replace its pods, which deletes their data (recreateChangedClaims)",
			fix:     "resize the claims themselves, or move the data to a workload with another name",
			source:  kubernetesDocs + "concepts/workloads/controllers/statefulset/#volume-claim-templates",
			paths:   []string{".spec.volumeClaimTemplates"},
		},
		{
			name: "service-name", effect: v1alpha1.EffectHold, on: changed,
			kinds: []string{"StatefulSet"}, because: "serviceName is immutable: the StatefulSet would have to be deleted and created again, and its pods get other DNS names",
			fix:    "keep the name, and add a second Service where clients need another one",
			source: kubernetesDocs + "concepts/workloads/controllers/statefulset/#stable-network-id",
			paths:  []string{".spec.serviceName"},
		},
	}...)
	catalogue = append(catalogue, ofServices()...)
	catalogue = append(catalogue, ofStorage()...)
	catalogue = append(catalogue, ofTheAPI()...)
	catalogue = append(catalogue, slices.Concat(ofAccess(), ofAdmission(), ofClusterObjects())...)
	catalogue = append(catalogue, ofPods()...)
	catalogue = append(catalogue, ofWorkloads()...)
	catalogue = append(catalogue, immutable()...)
	catalogue = append(
		catalogue,
		deletion(coreGroup, "Namespace", "deleting a Namespace deletes everything in it").advise(
			"move what must stay to another Namespace first, or annotate the Namespace with helm.sh/resource-policy: keep",
			"https://kubernetes.io/docs/concepts/overview/working-with-objects/namespaces/",
		),
		deletion("apiextensions.k8s.io", "CustomResourceDefinition", "deleting a CRD deletes every custom resource of its kind").advise(
			"back up and delete the custom resources first, or annotate the CRD with helm.sh/resource-policy: keep",
			"https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/",
		),
		deletion(coreGroup, "PersistentVolumeClaim", "deleting a claim also deletes its volume and data, unless the reclaim policy of the volume is Retain").advise(
			"set the reclaim policy of its volume to Retain first", reclaiming,
		),
		deletion(coreGroup, "PersistentVolume", "deleting a volume also deletes its data once its claim is gone, unless its reclaim policy is Retain").advise(
			"set its reclaim policy to Retain, and delete the claim and its pods first", reclaiming,
		),
		deletion("storage.k8s.io", "StorageClass", "claims that name the class no longer get a new volume").advise(
			"keep the class until no claim and no claim template names it",
			"https://kubernetes.io/docs/concepts/storage/storage-classes/",
		),
	)
	catalogue = append(catalogue, slices.Concat(ofNetwork(), ofVolumes(), ofConfiguration())...)
	return catalogue
}

// inBarePods adds paths to rules on pod templates that name no kind. The rules then also cover bare
// pods, PodTemplates, and custom resources with a pod spec at .spec.
func inBarePods(catalogue []catalogued) []catalogued {
	for i := range catalogue {
		c := &catalogue[i]
		if len(c.kinds) > 0 || c.effect == v1alpha1.EffectKeep {
			continue
		}
		for _, path := range c.paths {
			if rest, ok := strings.CutPrefix(path, ".spec.template.spec."); ok {
				c.paths = append(c.paths, ".spec."+rest, ".template.spec."+rest)
			}
		}
	}
	return catalogue
}

// inProfile makes the catalogue looser or stricter. Rules with effect keep decide who owns a field,
// and are in every profile.
func inProfile(catalogue []catalogued, profile v1alpha1.DangerProfile) []catalogued {
	switch profile {
	case v1alpha1.ProfileOff:
		return slices.DeleteFunc(catalogue, func(c catalogued) bool { return c.effect != v1alpha1.EffectKeep })
	case v1alpha1.ProfileStrict:
		for i := range catalogue {
			if catalogue[i].effect == v1alpha1.EffectWarn {
				catalogue[i].effect = v1alpha1.EffectHold
			}
		}
	case v1alpha1.ProfileBaseline:
	}
	return catalogue
}

func ofServices() []catalogued {
	return []catalogued{
		{
			name: "service-allocations", effect: v1alpha1.EffectKeep, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			group: coreGroup, kinds: []string{"Service"}, because: "the cluster allocated this address or port, and clients may use it",
			fix:    "create a second Service with the wanted address, move the clients, and delete the first one",
			source: servicesPage,
			paths: []string{
				".spec.clusterIP", ".spec.clusterIPs", ".spec.ports[*].nodePort",
				".spec.healthCheckNodePort", ".spec.loadBalancerIP",
			},
		},
		{
			name: "service-selector", effect: v1alpha1.EffectHold,
			group: coreGroup, kinds: []string{"Service"}, because: "a Service with another selector sends its traffic to other pods at once",
			fix:    "start ready pods with the new labels first, or create a second Service and move the clients",
			source: servicesPage,
			paths:  []string{".spec.selector"},
		},
		{
			name: "service-type", effect: v1alpha1.EffectHold,
			group: coreGroup, kinds: []string{"Service"}, because: "another type opens or closes the Service to other networks, and may release its node ports or load balancer",
			fix:    "create a second Service of the new type, move the clients, and delete the first one",
			source: servicesPage,
			when:   `(new == null ? 'ClusterIP' : new) != (old == null ? 'ClusterIP' : old)`,
			paths:  []string{".spec.type"},
		},
	}
}

func ofStorage() []catalogued {
	return []catalogued{
		{
			name: "storage-class", effect: v1alpha1.EffectHold,
			group: "storage.k8s.io", kinds: []string{"StorageClass"},
			because: "this field is immutable: the class would have to be deleted and created again, and existing volumes keep the old settings",
			fix:     "create a class with another name, and let new claims name it",
			source:  "https://kubernetes.io/docs/concepts/storage/storage-classes/",
			paths:   []string{".provisioner", ".parameters", ".reclaimPolicy", ".volumeBindingMode"},
		},
		{
			name: "claim-class", effect: v1alpha1.EffectHold,
			group: coreGroup, kinds: []string{"PersistentVolumeClaim"},
			because: "the class of a claim is immutable once set: the claim would have to be deleted and created again, without its data",
			fix:     "create a second claim of the new class, copy the data, and let the pods mount it",
			source:  volumesPage,
			when:    `old != null`,
			paths:   []string{".spec.storageClassName"},
		},
		{
			name: "claim-shrunk", effect: v1alpha1.EffectHold,
			group: coreGroup, kinds: []string{"PersistentVolumeClaim"}, because: "a volume can't shrink: the API server refuses the smaller request, unless the last expansion failed",
			fix:    "create a smaller claim, copy the data, and let the pods mount it",
			source: volumesPage,
			when:   `old != null && (new == null || quantity(new) < quantity(old))`,
			paths:  []string{".spec.resources.requests.storage"},
		},
		{
			name: "claim-binding", effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			group: coreGroup, kinds: []string{"PersistentVolumeClaim"},
			because: "the volume, data source, selector and access modes of a claim are immutable: a new claim would start without the data",
			fix:     "create a second claim, copy the data, and let the pods mount it",
			source:  volumesPage,
			paths:   []string{".spec.volumeName", ".spec.accessModes", ".spec.dataSource", ".spec.dataSourceRef", ".spec.selector"},
		},
	}
}

const (
	coreGroup = v1alpha1.GroupCore

	servicesPage = "https://kubernetes.io/docs/concepts/services-networking/service/"
	volumesPage  = "https://kubernetes.io/docs/concepts/storage/persistent-volumes/"
	reclaiming   = volumesPage + "#reclaiming"
)

// ofTheAPI returns the rules on CRDs, webhooks, CA bundles, and roles that gain rights.
func ofTheAPI() []catalogued {
	const (
		extensions = "apiextensions.k8s.io"
		admission  = admissionGroup
		versioning = "https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/"
		crdTasks   = "https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/"
	)
	crd := []string{"CustomResourceDefinition"}
	webhooks := kindsOfWebhooks()
	injected := func(group, path string, kinds ...string) catalogued {
		return catalogued{
			name: "ca-bundle", effect: v1alpha1.EffectKeep, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			group: group, kinds: kinds, because: "another program wrote this certificate, and without it the API server no longer trusts the server that it calls",
			fix:    "leave caBundle out of git, or let git be its only writer",
			source: webhookReference,
			// A bundle that Keelson applied follows git: charts renew their certificates.
			when: `old != recorded`, paths: []string{path},
		}
	}
	return []catalogued{
		{
			name: "crd-scope", effect: v1alpha1.EffectHold, group: extensions, kinds: crd,
			because: "a scope is immutable: the CRD would have to be deleted and created again, which deletes all its custom resources",
			fix:     "create another CRD with the new scope, and move the custom resources",
			source:  crdTasks,
			paths:   []string{".spec.scope"},
		},
		{
			name: "crd-served-version", effect: v1alpha1.EffectHold, group: extensions, kinds: crd,
			because: "a version is no longer served: clients that use it fail at once",
			fix:     "serve the version until no client and no manifest uses it",
			source:  versioning + "#version-removal",
			when:    `old != null && old.exists(o, o.?served.orValue(true) && (new == null || !new.exists(n, n.name == o.name && n.?served.orValue(true))))`,
			paths:   []string{".spec.versions"},
		},
		{
			name: "crd-stored-version", effect: v1alpha1.EffectHold, group: extensions, kinds: crd,
			because: "custom resources are stored in another version from now on: a later CRD without that version is refused",
			fix:     "serve both versions for a release, and change the stored one in a later change",
			source:  versioning + "#upgrade-existing-objects-to-a-new-stored-version",
			when:    `old != null && old.exists(o, o.?storage.orValue(false) && (new == null || !new.exists(n, n.name == o.name && n.?storage.orValue(false))))`,
			paths:   []string{".spec.versions"},
		},
		{
			name: CRDSchema, effect: v1alpha1.EffectHold, group: extensions, kinds: crd,
			because: "existing custom resources do not satisfy the new schema, or lose fields by it",
			fix:     "change the custom resources first, or add a version with the new schema",
			source:  crdTasks + "#field-pruning",
			paths:   []string{".spec.versions"},
		},
		injected(admission, ".webhooks[*].clientConfig.caBundle", webhooks...),
		injected("apiregistration.k8s.io", ".spec.caBundle", "APIService"),
		injected(extensions, ".spec.conversion.webhook.clientConfig.caBundle", crd...),
		{
			name: "webhook-fails-closed", effect: v1alpha1.EffectHold, group: admission, kinds: webhooks,
			because: "with failurePolicy Fail, the API server refuses every request that the webhook matches while the webhook is down",
			fix:     "keep failurePolicy at Ignore, or run the webhook with several replicas and leave out kube-system",
			source:  webhookReference + "#failure-policy",
			// An absent policy is Fail. A removed webhook refuses nothing.
			when: `old != 'Fail' && (new == 'Fail' || new == null && object.webhooks.exists(n, !has(n.failurePolicy) &&
live.webhooks.exists(o, o.name == n.name && o.?failurePolicy.orValue('Fail') != 'Fail')))`,
			paths: []string{".webhooks[*].failurePolicy"},
		},
		{
			name: "webhook-widened", effect: v1alpha1.EffectHold, group: admission, kinds: webhooks,
			because: "the webhook may get more requests than before, and can refuse or change them",
			fix:     "let the webhook only report on these objects first",
			source:  webhookPractices,
			on:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			when:    `old == null ? new != [] : ` + uncovered("new", "old"),
			paths:   []string{".webhooks[*].rules"},
		},
		{
			name: "webhook-selector", effect: v1alpha1.EffectHold, group: admission, kinds: webhooks,
			because: "the webhook may get requests for other objects than before, and can refuse or change them",
			fix:     "let the webhook only report on these objects first",
			source:  webhookPractices,
			// A selector that only narrows is no danger: a first selector, one more label, or one
			// more excluded namespace.
			when: `old != null && old != {} && !(new != null &&
old.?matchLabels.orValue({}).all(k, new.?matchLabels.orValue({})[?k].orValue('') == old.matchLabels[k]) &&
old.?matchExpressions.orValue([]).all(e, new.?matchExpressions.orValue([]).exists(f, f.key == e.key && f.operator == e.operator &&
(e.operator == 'NotIn' ? e.?values.orValue([]).all(v, v in f.?values.orValue([])) :
e.operator != 'In' || f.?values.orValue([]).all(v, v in e.?values.orValue([])))))) && (new != null || object.webhooks.exists(n,
live.webhooks.exists(o, o.name == n.name && (o.?namespaceSelector.orValue({}) == old && !has(n.namespaceSelector) ||
o.?objectSelector.orValue({}) == old && !has(n.objectSelector)))))`,
			paths: []string{".webhooks[*].namespaceSelector", ".webhooks[*].objectSelector"},
		},
		{
			name: "rbac-escalation", effect: v1alpha1.EffectHold, on: fieldsAndCreation(), group: rbacGroup, kinds: []string{"Role", "ClusterRole"},
			because: "the role gains a wildcard, or the verb escalate, bind or impersonate: its subjects may get more rights than the role lists",
			fix:     "list the verbs and resources that the program needs",
			source:  rbacGoodPractices,
			when: `new != null && new.exists(n, (
'*' in n.?verbs.orValue([]) || 'escalate' in n.?verbs.orValue([]) || 'bind' in n.?verbs.orValue([]) ||
n.?verbs.orValue([]).exists(v, v.startsWith('impersonate')) ||
 '*' in n.?resources.orValue([]) ||
'*' in n.?apiGroups.orValue([]) || '*' in n.?nonResourceURLs.orValue([])) &&
(old == null || !old.exists(o, ('*' in o.?verbs.orValue([]) || n.?verbs.orValue([]).all(x, x in o.?verbs.orValue([]))) &&
n.?resources.orValue([]).all(x, ` + namesResource("o", "x") + `) &&
('*' in o.?apiGroups.orValue([]) || n.?apiGroups.orValue([]).all(x, x in o.?apiGroups.orValue([]))) &&
('*' in o.?nonResourceURLs.orValue([]) || n.?nonResourceURLs.orValue([]).all(x, x in o.?nonResourceURLs.orValue([]))) && (o.?resourceNames.orValue([]) == [] ||
n.?resourceNames.orValue([]) != [] && n.resourceNames.all(x, x in o.resourceNames)))))`,
			paths: []string{".rules"},
		},
	}
}

// ofPods returns the rules on what pods may do to their node. They name no kind, because custom
// workloads have pod templates, too.
func ofPods() []catalogued {
	return []catalogued{
		{
			name: "privileged", effect: v1alpha1.EffectHold, on: fieldsAndCreation(), because: "a privileged container has full control over its node",
			fix:    "grant the capabilities that the container needs instead",
			source: podSecurity,
			when:   gainedField, paths: inContainers(".securityContext.privileged"),
		},
		{
			name: "host-path", effect: v1alpha1.EffectHold, on: addChangeCreate(), because: "the pods gain a part of their node's file system",
			fix:    "use a claim, an emptyDir or a projected volume",
			source: kubernetesDocs + "concepts/storage/volumes/#hostpath",
			paths:  inPods(".volumes[*].hostPath.path"),
		},
		{
			name: "host-namespaces", effect: v1alpha1.EffectHold, on: fieldsAndCreation(), because: "the pods share the network, processes or inter-process communication of their node",
			fix:    "publish ports with a Service, and read facts about the node from the API server",
			source: podSecurity,
			when:   gainedField, paths: inPods(".hostNetwork", ".hostPID", ".hostIPC"),
		},
		{
			name: "new-capability", effect: v1alpha1.EffectHold, on: fieldsAndCreation(), because: "the containers gain a Linux capability: a compromised container can do more on its node",
			fix:    "change the program so that it needs no capability, or give the capability to a container of its own",
			source: podSecurity,
			// The restricted profile of the Pod Security Standards allows NET_BIND_SERVICE.
			when:  `new != null && new.exists(c, c != 'NET_BIND_SERVICE' && (old == null || !(c in old)))`,
			paths: inContainers(".securityContext.capabilities.add"),
		},
	}
}

// podSecurity is the page of the Pod Security Standards of Kubernetes.
const podSecurity = "https://kubernetes.io/docs/concepts/security/pod-security-standards/"

// fieldsAndCreation returns the events of a rule that is also shown on creations.
func fieldsAndCreation() []v1alpha1.Event {
	return []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange, v1alpha1.OnRemove, v1alpha1.OnCreateObject}
}

// inPods returns paths in the pod templates of workloads.
func inPods(paths ...string) []string {
	var out []string
	for _, spec := range []string{".spec.template.spec", ".spec.jobTemplate.spec.template.spec"} {
		for _, path := range paths {
			out = append(out, spec+path)
		}
	}
	return out
}

func inContainers(path string) []string {
	return inPods(".containers[*]"+path, ".initContainers[*]"+path)
}

// catalogued is a rule as the catalogue writes it; see [Rule].
type catalogued struct {
	name       string
	group      string
	kinds      []string
	paths      []string
	on         []v1alpha1.Event
	effect     v1alpha1.Effect
	because    string
	fix        string // what to do instead, in one sentence
	source     string // a URL that describes the danger
	when       string
	says       string // a CEL expression of text that follows because
	autoscaled Autoscaled
}

func deletion(group, kind, because string) catalogued {
	return catalogued{
		name: "delete-" + kind, effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnDeleteObject},
		group: group, kinds: []string{kind}, because: because, paths: []string{""},
	}
}

// advise adds what to do instead, and a URL that describes the danger.
func (c catalogued) advise(fix, source string) catalogued {
	c.fix, c.source = fix, source
	return c
}
