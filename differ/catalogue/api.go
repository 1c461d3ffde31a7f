package catalogue

import (
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// ofClusterObjects returns the rules on objects that act on the whole cluster, or on a namespace.
func ofClusterObjects() []catalogued {
	return holdsBeforeWarnings(ofAggregatedAPIs(), ofCRDs(), ofNamespaces(), ofPriorities())
}

func ofAggregatedAPIs() []catalogued {
	const reference = "https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/"
	list := []catalogued{
		{
			name: "api-insecure", effect: v1alpha1.EffectHold, on: fieldsAndCreation(),
			because: "the API server does not check who answers for this API: a program in between can read and forge every response",
			fix:     "set caBundle to the CA certificate of the aggregated API server",
			source:  reference,
			when:    `new == true && old != true`, paths: []string{".spec.insecureSkipTLSVerify"},
		},
		{
			name: "delete-APIService", effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnDeleteObject},
			because: "every request for this API fails: clients get errors, and autoscalers that read metrics from it stop",
			fix:     "check that nothing uses the API, and approve the deletion",
			source:  reference,
			paths:   []string{""},
		},
		{
			name: "api-priority", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "clients that name no version, such as kubectl, may use another version or group than before",
			fix:     "keep the priorities of the version that clients use",
			source:  reference,
			paths:   []string{".spec.groupPriorityMinimum", ".spec.versionPriority"},
		},
	}
	for i := range list {
		list[i].group, list[i].kinds = "apiregistration.k8s.io", []string{"APIService"}
	}
	return list
}

// lostIn returns a condition: a schema no longer has a field that it had, and so the API server drops it.
func lostIn(old, new string) string {
	return strings.NewReplacer("O", old, "N", new).Replace(`[dyn(N)].exists(n, n.?properties.hasValue() && !n.?additionalProperties.hasValue() &&
!n[?'x-kubernetes-preserve-unknown-fields'].orValue(false) && O.?properties.orValue({}).exists(k, !(k in n.properties)))`)
}

func ofCRDs() []catalogued {
	const versioning = "https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/"
	const definitions = "https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/"
	changed := []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove}
	list := []catalogued{
		{
			name: "crd-conversion-lost", effect: v1alpha1.EffectHold, on: changed,
			because: "custom resources are no longer converted: in another version, they lose the fields that only the stored version has",
			fix:     "keep the webhook until all custom resources are stored in the version that is left",
			source:  versioning,
			when:    `old == 'Webhook' && new != 'Webhook' && size(object.spec.versions) > 1`, paths: []string{".spec.conversion.strategy"},
		},
		{
			name: "crd-pruning", effect: v1alpha1.EffectHold, on: changed,
			because: "fields that the schema does not have are dropped from custom resources when they are read or written",
			fix:     "add the fields to the schema first",
			source:  definitions + "#field-pruning",
			when:    `old == true && new != true`, paths: []string{".spec.preserveUnknownFields"},
		},
		{
			name: "crd-subresource-lost", effect: v1alpha1.EffectHold, on: changed,
			because: "a version loses its status or scale subresource: requests of controllers and autoscalers for it fail",
			fix:     "keep the subresource for as long as a controller or autoscaler uses it",
			source:  definitions + "#subresources",
			when: `old != null && new != null && old.exists(o, o.?subresources.orValue({}).exists(s, new.exists(n, n.name == o.name &&
!(s in n.?subresources.orValue({})))))`,
			paths: []string{".spec.versions"},
		},
		{
			name: "crd-kind-changed", effect: v1alpha1.EffectHold, on: changed,
			because: "the kind of a CRD is immutable once the CRD is established: the API server refuses the change",
			fix:     "create another CRD, and move the custom resources",
			source:  definitions,
			when:    `new != null`, paths: []string{".spec.names.kind"},
		},
		{
			name: "crd-field-removed", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnChange},
			// The rule is about spec alone: a controller writes a lost field of status again.
			because: "the schema no longer has a field of spec: the API server drops it from custom resources when they are read or written",
			fix:     "keep the field until no custom resource has it", source: versioning,
			when: `old != null && new != null && old.exists(o, new.exists(n, n.name == o.name &&
[[dyn(o.?schema.openAPIV3Schema.properties.?spec.orValue({})), dyn(n.?schema.openAPIV3Schema.properties.?spec.orValue({}))]].exists(s, ` +
				lostIn("s[0]", "s[1]") + ` || s[0].?properties.orValue({}).exists(f, ` + lostIn("s[0].properties[f]", "s[1].?properties[?f].orValue({})") + `))))`,
			paths: []string{".spec.versions"},
		},
		{
			name: "crd-conversion-gained", effect: v1alpha1.EffectWarn,
			because: "custom resources can't be read or written in versions other than the stored one while the conversion webhook is down",
			fix:     "run the webhook with several replicas before this change",
			source:  versioning,
			when:    `new == 'Webhook' && old != 'Webhook'`, paths: []string{".spec.conversion.strategy"},
		},
	}
	for i := range list {
		list[i].group, list[i].kinds = "apiextensions.k8s.io", []string{"CustomResourceDefinition"}
	}
	return list
}

func ofNamespaces() []catalogued {
	const (
		admission = "https://kubernetes.io/docs/concepts/security/pod-security-admission/"
		enforce   = `.metadata.labels["pod-security.kubernetes.io/enforce"]`
		// An absent level is 0. The API server's default is privileged, unless a configuration file
		// sets another level.
		level = `{'restricted': 2, 'baseline': 1}`
	)
	rank := func(value string) string { return level + `[?` + value + `].orValue(0)` }
	list := []catalogued{
		{
			name: "pod-security-lowered", effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			because: "the namespace lets in pods that it refuses today; at level privileged, also pods that control their node",
			fix:     "run the pod that needs it in a namespace of its own",
			source:  admission,
			when:    `old != null && ` + rank(`(new == null ? '' : new)`) + ` < ` + rank(`old`), paths: []string{enforce},
		},
		{
			name: "pod-security-raised", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "running pods that do not meet the new level are refused when they are created again",
			fix:     "set the labels warn and audit to this level first, and read what they report",
			source:  "https://kubernetes.io/docs/tasks/configure-pod-container/enforce-standards-namespace-labels/",
			when:    `live != null && ` + rank(`(new == null ? '' : new)`) + ` > ` + rank(`(old == null ? '' : old)`), paths: []string{enforce},
		},
		{
			name: "pod-security-privileged", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnCreateObject},
			because: "the namespace lets in every pod, also one that controls its node",
			fix:     "set the level to baseline or restricted, unless the pods manage nodes",
			source:  podSecurity,
			when:    `new == 'privileged'`, paths: []string{enforce},
		},
		{
			name: "device-admin-access", effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "pods of the namespace may claim devices with admin access: they can use and observe devices that other pods have",
			fix:     "use a namespace of its own that only administrators can use",
			source:  kubernetesDocs + "concepts/scheduling-eviction/dynamic-resource-allocation/#admin-access",
			when:    `new == 'true' && old != 'true'`, paths: []string{`.metadata.labels["resource.kubernetes.io/admin-access"]`},
		},
		{
			name: "mesh-label", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			because: "pods may leave the mesh or join another one: peers that require mutual TLS then refuse them",
			fix:     "change the label while no peer requires mutual TLS, and restart the pods step by step",
			source:  "https://istio.io/latest/docs/setup/additional-setup/sidecar-injection/",
			paths: []string{
				`.metadata.labels["istio-injection"]`, `.metadata.labels["istio.io/rev"]`, `.metadata.labels["istio.io/dataplane-mode"]`,
				`.metadata.annotations["linkerd.io/inject"]`,
			},
		},
		{
			name: "namespace-label-selected", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			because: "a NetworkPolicy or webhook of the component selects namespaces by this label, and no longer selects this namespace",
			fix:     "change the selector in the same commit, or keep the label",
			source:  "https://kubernetes.io/docs/concepts/services-networking/network-policies/",
			when: `live.metadata.?labels.orValue({}).exists(k, k != 'kubernetes.io/metadata.name' && object.metadata.?labels[?k].orValue('') != live.metadata.labels[k] && (
objects.?NetworkPolicy.orValue([]).exists(p, p.spec.?ingress.orValue([]).exists(i, i.?from.orValue([]).exists(f,
f.?namespaceSelector.?matchLabels.orValue({})[?k].orValue('') == live.metadata.labels[k])) ||
p.spec.?egress.orValue([]).exists(e, e.?to.orValue([]).exists(t, t.?namespaceSelector.?matchLabels.orValue({})[?k].orValue('') == live.metadata.labels[k]))) ||
(objects.?ValidatingWebhookConfiguration.orValue([]) + objects.?MutatingWebhookConfiguration.orValue([])).exists(c,
c.?webhooks.orValue([]).exists(w, w.?namespaceSelector.?matchLabels.orValue({})[?k].orValue('') == live.metadata.labels[k]))))`,
			paths: []string{".metadata.labels"},
		},
	}
	for i := range list {
		list[i].group, list[i].kinds = coreGroup, []string{"Namespace"}
	}
	return list
}

// ofPriorities returns the rules on priorities of pods and requests, on RuntimeClasses, and on
// leases.
func ofPriorities() []catalogued {
	const (
		priority    = "https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/"
		flowControl = "https://kubernetes.io/docs/concepts/cluster-administration/flow-control/"
		flowGroup   = "flowcontrol.apiserver.k8s.io"
	)
	deleted := []v1alpha1.Event{v1alpha1.OnDeleteObject}
	return []catalogued{
		{
			name: "default-priority", effect: v1alpha1.EffectHold, on: fieldsAndCreation(), group: "scheduling.k8s.io", kinds: []string{"PriorityClass"},
			because: "each new pod of the cluster that names no class gets another priority, and may evict others or be evicted",
			fix:     "leave globalDefault as it is, and name the class in the pods that need it",
			source:  priority + "#priorityclass",
			when:    `new == true && old != true || old == true && new != true`, paths: []string{".globalDefault"},
		},
		{
			name: "delete-PriorityClass", effect: v1alpha1.EffectHold, on: deleted, group: "scheduling.k8s.io", kinds: []string{"PriorityClass"},
			because: "new pods that name the class are refused, in all namespaces",
			fix:     "take the class out of all pods first",
			source:  priority + "#pod-priority",
			paths:   []string{""},
		},
		{
			name: "delete-RuntimeClass", effect: v1alpha1.EffectHold, on: deleted, group: "node.k8s.io", kinds: []string{"RuntimeClass"},
			because: "new pods that name the class are refused or fail, in all namespaces",
			fix:     "take the class out of all pods first",
			source:  "https://kubernetes.io/docs/concepts/containers/runtime-class/",
			paths:   []string{""},
		},
		{
			name: "flow-exempt", effect: v1alpha1.EffectHold, on: fieldsAndCreation(), group: flowGroup, kinds: []string{"FlowSchema"},
			because: "requests of the FlowSchema are never queued or refused: they can overload the API server for all clients",
			fix:     "name a priority level that has a limit",
			source:  flowControl + "#exempt-requests",
			when:    `new == 'exempt' && old != 'exempt'`, paths: []string{".spec.priorityLevelConfiguration.name"},
		},
		{
			name: "flow-shares-lowered", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnChange},
			group: flowGroup, kinds: []string{"PriorityLevelConfiguration"},
			because: "the priority level gets half of its share or less: under load, its requests wait or are refused",
			fix:     "lower the share in steps, and watch the rejected requests in the API server's metrics",
			source:  flowControl,
			when:    `new != null && old != null && double(new) * 2.0 <= double(old)`, paths: []string{".spec.limited.nominalConcurrencyShares"},
		},
		{
			name: "lease-duration", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnChange}, group: "coordination.k8s.io", kinds: []string{"Lease"},
			because: "if the holder of the Lease dies, no other program takes over before the longer time is over",
			fix:     "leave the Lease out of git, or keep its duration at what the program sets",
			source:  "https://kubernetes.io/docs/concepts/architecture/leases/",
			when:    `old != null && new != null && new > old * 2`, paths: []string{".spec.leaseDurationSeconds"},
		},
		{
			name: "lease-holder", effect: v1alpha1.EffectWarn, on: fieldsAndCreation(), group: "coordination.k8s.io", kinds: []string{"Lease"},
			because: "git sets the holder of the Lease: the program that leads today loses the Lease, and two may act at once",
			fix:     "leave the Lease out of git, or at least its holder and times",
			source:  "https://kubernetes.io/docs/concepts/architecture/leases/",
			when:    `new != null && new != ''`, paths: []string{".spec.holderIdentity"},
		},
	}
}
