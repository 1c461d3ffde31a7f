package catalogue

import (
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const (
	policyGroup      = "policy"
	autoscalingGroup = "autoscaling"
	monitoringGroup  = "monitoring.coreos.com"

	configMapPage  = "https://kubernetes.io/docs/concepts/configuration/configmap/"
	secretPage     = "https://kubernetes.io/docs/concepts/configuration/secret/"
	corefilePage   = "https://kubernetes.io/docs/tasks/administer-cluster/dns-custom-nameservers/"
	autoscalerPage = "https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/"
	budgetPage     = "https://kubernetes.io/docs/tasks/run-application/configure-pdb/"
	drainPage      = "https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/"
	quotaPage      = "https://kubernetes.io/docs/concepts/policy/resource-quotas/"
	limitRangePage = "https://kubernetes.io/docs/concepts/policy/limit-range/"
	operatorPage   = "https://prometheus-operator.dev/docs/developer/alerting/"
)

// ofConfiguration returns the rules on ConfigMaps, Secrets, autoscalers, disruption budgets, quotas
// and alerts. Rules that hold precede rules that warn.
func ofConfiguration() []catalogued {
	return slices.Concat(
		heldConfiguration(),
		heldAutoscalers(), warnedConfiguration(), warnedAutoscalers(), warnedBudgets(),
		[]catalogued{loosened("budget-minimum-lowered", ".spec.minAvailable", "<"), loosened("budget-maximum-raised", ".spec.maxUnavailable", ">")}, warnedQuotas(), warnedMonitoring(),
	)
}

func heldConfiguration() []catalogued {
	return []catalogued{
		{
			name: "network-policies-off", effect: v1alpha1.EffectHold, group: coreGroup, kinds: []string{"ConfigMap"}, on: addChange(),
			because: "Cilium enforces no NetworkPolicy any more when its agents restart: every pod can reach every other one",
			fix:     "keep default, and look for dropped packets with hubble observe",
			source:  "https://docs.cilium.io/en/stable/security/policy/intro/#policy-enforcement-modes",
			when:    `new == 'never' && old != 'never'`, paths: []string{`.data["enable-policy"]`},
		},
		{
			name: "coredns-plugin-lost", effect: v1alpha1.EffectHold, group: coreGroup, kinds: []string{"ConfigMap"}, on: changesAndRemovals(),
			because: "the Corefile loses the cluster domain, or kubernetes, forward, health or ready in a zone: names don't resolve, or CoreDNS fails its liveness and readiness probes",
			fix:     "keep the cluster domain, and the plugins kubernetes, forward, health and ready",
			source:  corefilePage,
			// The default domain ends in .local. A condition with the word cluster counts as
			// reading labels, see [ReadsCluster].
			when: `old != null && (new == null || old.contains('.local') && !new.contains('.local') ||
['kubernetes', 'forward', 'health', 'ready'].exists(p, ` + fewer("p") + `))`,
			paths: []string{".data.Corefile"},
		},
		{
			name: "cloud-mapping-lost", effect: v1alpha1.EffectHold, group: coreGroup, kinds: []string{"ConfigMap"}, on: changesAndRemovals(),
			because: "an IAM role or user is no longer mapped: nodes or people that use it are refused, unless an access entry allows them",
			fix:     "keep the mapping until no node and no person uses it",
			source:  "https://docs.aws.amazon.com/eks/latest/userguide/auth-configmap.html",
			when: `object.metadata.name == 'aws-auth' && old != null && (new == null || [new.split('\n')].exists(n,
old.split('\n').exists(l, l.contains('arn:') && !(l in n))))`,
			paths: []string{".data.mapRoles", ".data.mapUsers"},
		},
		{
			name: "tls-key-removed", effect: v1alpha1.EffectHold, group: coreGroup, kinds: []string{"Secret"},
			on:      []v1alpha1.Event{v1alpha1.OnRemove},
			because: "the certificate or key leaves the Secret: programs that read it next fail; for type kubernetes.io/tls the API server refuses the change",
			fix:     "keep both keys, and replace their values",
			source:  secretPage + "#tls-secrets",
			paths:   []string{`.data["tls.crt"]`, `.data["tls.key"]`},
		},
	}
}

// fewer returns a CEL condition: fewer lines of a Corefile begin with a plugin's name than before.
// A zone has lost the plugin, or was removed.
func fewer(plugin string) string {
	count := func(side string) string {
		return side + `.split('\n').filter(l, l.trim() == ` + plugin + ` || l.trim().startsWith(` + plugin + ` + ' ')).size()`
	}
	return count("new") + ` < ` + count("old")
}

func warnedConfiguration() []catalogued {
	configMaps := []string{"ConfigMap"}
	return []catalogued{
		{
			name: "coredns-forward-changed", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: configMaps, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "CoreDNS forwards names outside of the cluster in another way: if the servers don't answer, or forward to CoreDNS, names don't resolve",
			fix:     "check that the servers answer from every node, and are not CoreDNS itself",
			source:  "https://coredns.io/plugins/loop/#troubleshooting-loops-in-kubernetes-clusters",
			// The rule coredns-plugin-lost is about a removed line.
			when: `old != null && new != null && !(` + fewer("'forward'") + `) &&
[new.split('\n')].exists(n, old.split('\n').exists(l, l.trim().startsWith('forward ') && !(l in n)))`,
			paths: []string{".data.Corefile"},
		},
		{
			name: "coredns-guard-lost", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: configMaps, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "CoreDNS loses cache, loop or reload: it asks upstream for every name, misses a forwarding loop, or keeps an old Corefile",
			fix:     "keep the plugins cache, loop and reload",
			source:  corefilePage,
			when:    `old != null && new != null && ['cache', 'loop', 'reload'].exists(p, ` + fewer("p") + `)`,
			paths:   []string{".data.Corefile"},
		},
		{
			name: "coredns-rewrite", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: configMaps, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "CoreDNS answers some names in another way: who asks for them is sent to another host, with what they send there",
			fix:     "check each name, and whose host its answer is",
			source:  "https://coredns.io/plugins/rewrite/",
			when: `old != null && new != null && [old.split('\n')].exists(o, new.split('\n').exists(l,
['rewrite ', 'template ', 'hosts ', 'alternate '].exists(p, l.trim().startsWith(p)) && !(l in o)))`,
			paths: []string{".data.Corefile"},
		},
		{
			name: "ingress-snippets-allowed", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: configMaps, on: addChange(),
			because: "a client that may write an Ingress can run directives of nginx in the controller, and read its token and the Secrets that it reads",
			fix:     "keep snippets off, and set what they would in the controller's own configuration",
			source:  "https://nvd.nist.gov/vuln/detail/CVE-2021-25742",
			when:    `new == 'true' && old != 'true'`, paths: []string{`.data["allow-snippet-annotations"]`},
		},
		{
			name: "kube-proxy-mode", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: configMaps, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "kube-proxy programs Services in another way when it restarts, on every node; old rules may stay until a node restarts",
			fix:     "try the mode in another cluster first, then drain and restart the nodes one after another",
			source:  trafficPage + "#proxy-modes",
			when: `old != null && new != null && new.contains('KubeProxyConfiguration') && ['ipvs', 'nftables'].exists(m,
old.matches(r'(?m)^mode:\s*"?' + m) != new.matches(r'(?m)^mode:\s*"?' + m))`,
			paths: []string{`.data["config.conf"]`},
		},
		{
			name: "config-emptied", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: []string{"ConfigMap", "Secret"}, on: changesAndRemovals(),
			because: "all data leaves the object: pods that read it start without their configuration, or fail",
			fix:     "check the values of the chart, or delete the object when no pod reads it",
			source:  configMapPage,
			when: `live != null && live.?data.orValue({}).size() + live.?binaryData.orValue({}).size() > 0 &&
object.?data.orValue({}).size() + object.?binaryData.orValue({}).size() == 0`,
			paths: []string{".data", ".binaryData"},
		},
		{
			name: "config-value-emptied", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: configMaps, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "a value becomes empty: pods that read it start without this configuration",
			fix:     "check the values of the chart, or remove the key",
			source:  configMapPage,
			when:    `old != null && new != null && old.trim() != '' && new.trim() == ''`,
			paths:   []string{".data.*"},
		},
		warnOfDeletion(coreGroup, "the data of the Secret is lost: without a copy, its keys and passwords can't be restored", "Secret").advise(
			"save the Secret where it can be restored from", secretPage,
		),
		{
			name: "prune-guard-lost", effect: v1alpha1.EffectWarn, on: changesAndRemovals(),
			because: "an annotation that protects the object from deletion goes: the object may be deleted when it later leaves git",
			fix:     "keep the annotation, or back up what the object holds",
			source:  "https://helm.sh/docs/howto/charts_tips_and_tricks/#tell-helm-not-to-uninstall-a-resource",
			when: `old != null && (old in ['keep', 'disabled'] && new != old ||
['Prune=false', 'Delete=false'].exists(g, old.contains(g) && (new == null || !new.contains(g))))`,
			paths: annotations("helm.sh/resource-policy", v1alpha1.AnnotationPrune, "argocd.argoproj.io/sync-options"),
		},
		{
			name: "configuration-unversioned", effect: v1alpha1.EffectWarn, on: changesAndRemovals(),
			because: "later changes of the ConfigMap or Secret reach all pods at once, or none until they restart: no batch, partition or stage holds them, and nothing of before is left",
			fix:     "keep the annotation",
			source:  "https://github.com/keelson-io/keelson/blob/main/docs/guides/versioned-configuration.md",
			when: `old != null && old != 'false' && (new == null ||
[new.split(',').map(n, n.trim())].exists(names, old.split(',').exists(n, !(n.trim() in names))))`,
			paths: annotations(v1alpha1.AnnotationVersioned, v1alpha1.AnnotationVersionedConfiguration),
		},
		{
			name: "node-taint", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: []string{"Node"}, on: []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "pods on the node that don't tolerate the taint are deleted at once, and disruption budgets don't protect them",
			fix:     "cordon and drain the node, or use effect NoSchedule",
			source:  "https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions",
			when:    `object.spec.?taints.orValue([]).exists(n, n.effect == 'NoExecute' && !live.spec.?taints.orValue([]).exists(o, o.key == n.key && o.effect == n.effect))`,
			paths:   []string{".spec.taints"},
		},
		{
			name: "immutable-set", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: []string{"ConfigMap", "Secret"},
			on:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "the data can never change again: every later edit needs a deletion and a new object, and new pods",
			fix:     "give each version of the object a name of its own",
			source:  configMapPage + "#configmap-immutable",
			when:    `new == true && old != true`,
			paths:   []string{".immutable"},
		},
	}
}

func heldAutoscalers() []catalogued {
	return []catalogued{{
		name: "autoscaler-below-running", effect: v1alpha1.EffectHold, group: autoscalingGroup, kinds: []string{"HorizontalPodAutoscaler"},
		on:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
		because: "more pods run than the new maximum: those above it are deleted at once, under the load that needs them",
		fix:     "lower maxReplicas when fewer pods run, or in steps",
		source:  autoscalerPage,
		when:    `new != null && status != null && new < status.?currentReplicas.orValue(0)`,
		says:    `string(status.currentReplicas) + ' run now'`,
		paths:   []string{".spec.maxReplicas"},
	}}
}

func warnedAutoscalers() []catalogued {
	autoscalers := []string{"HorizontalPodAutoscaler"}
	return []catalogued{
		{
			name: "autoscaler-bounds", effect: v1alpha1.EffectWarn, group: autoscalingGroup, kinds: autoscalers, on: fieldsAndCreation(),
			because: "maxReplicas is below minReplicas: the API server refuses the autoscaler",
			fix:     "raise maxReplicas, or lower minReplicas",
			source:  autoscalerPage,
			when:    `object.?spec.maxReplicas.orValue(1) < object.?spec.minReplicas.orValue(1)`,
			paths:   []string{".spec.maxReplicas", ".spec.minReplicas"},
		},
		{
			name: "autoscaler-maximum-lowered", effect: v1alpha1.EffectWarn, group: autoscalingGroup, kinds: autoscalers, on: changesAndRemovals(),
			because: "fewer pods may run at the peak: pods that run above the new maximum are deleted at once",
			fix:     "keep maxReplicas at least at the number of replicas that the workload had at its peak",
			source:  autoscalerPage,
			when:    `old != null && new != null && new < old`,
			paths:   []string{".spec.maxReplicas"},
		},
		{
			name: "autoscaler-minimum-lowered", effect: v1alpha1.EffectWarn, group: autoscalingGroup, kinds: autoscalers, on: changesAndRemovals(),
			because: "at low load at most half as many pods remain as before, or only one: too few may run when load rises",
			fix:     "keep at least two replicas, and lower minReplicas in small steps",
			source:  autoscalerPage,
			when:    `old != null && [new == null ? 1 : new].exists(n, n < old && (n <= 1 || double(n) * 2.0 <= double(old)))`,
			paths:   []string{".spec.minReplicas"},
		},
		{
			name: "autoscaler-target", effect: v1alpha1.EffectWarn, group: autoscalingGroup, kinds: autoscalers, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the old workload no longer scales with the load: it keeps its replicas, or gets the number that git sets",
			fix:     "create a second autoscaler for the new workload, and delete this one with the old workload",
			source:  autoscalerPage,
			paths:   []string{".spec.scaleTargetRef.kind", ".spec.scaleTargetRef.name"},
		},
		{
			name: "autoscaler-target-missing", effect: v1alpha1.EffectWarn, group: autoscalingGroup, kinds: autoscalers, on: fieldsAndCreation(),
			because: "the component has workloads of this kind, but none with this name: if none exists, the autoscaler scales nothing",
			fix:     "correct the name, or add the workload to the component",
			source:  autoscalerPage,
			when: `objects[?object.spec.scaleTargetRef.kind].orValue([]).size() > 0 && !objects[?object.spec.scaleTargetRef.kind].orValue([]).exists(w,
w.metadata.?namespace.orValue('') == object.metadata.?namespace.orValue('') && w.metadata.name == object.spec.scaleTargetRef.name)`,
			paths: []string{".spec.scaleTargetRef.kind", ".spec.scaleTargetRef.name"},
		},
		{
			name: "autoscaler-metrics", effect: v1alpha1.EffectWarn, group: autoscalingGroup, kinds: autoscalers, on: changesAndRemovals(),
			because: "the autoscaler no longer follows one of its metrics; without any metric it targets 80% CPU utilization",
			fix:     "check that a remaining metric rises with every kind of load",
			source:  autoscalerPage + "#scaling-on-multiple-metrics",
			when:    `old != null && (new == null ? 0 : new.size()) < old.size()`,
			paths:   []string{".spec.metrics"},
		},
		{
			name: "autoscaler-flaps", effect: v1alpha1.EffectWarn, group: autoscalingGroup, kinds: autoscalers, on: fieldsAndCreation(),
			because: "the autoscaler deletes pods at every short dip of the load, and starts new ones when it rises",
			fix:     "set stabilizationWindowSeconds of scaleDown to a few minutes; the default is 300",
			source:  autoscalerPage + "#stabilization-window",
			when:    `new == 0 && old != 0`,
			paths:   []string{".spec.behavior.scaleDown.stabilizationWindowSeconds"},
		},
		{
			name: "autoscaler-scale-up-disabled", effect: v1alpha1.EffectWarn, group: autoscalingGroup, kinds: autoscalers, on: fieldsAndCreation(),
			because: "the autoscaler adds no pods when the load rises",
			fix:     "limit the rate by policies of scaleUp instead",
			source:  autoscalerPage + "#configurable-scaling-behavior",
			when:    `new == 'Disabled' && old != 'Disabled'`,
			paths:   []string{".spec.behavior.scaleUp.selectPolicy"},
		},
		warnOfDeletion(autoscalingGroup, "the number of replicas no longer follows the load", "HorizontalPodAutoscaler").advise(
			"set the replicas that the peak needs in the workload", autoscalerPage,
		),
	}
}

// loosened returns a rule on an amount of a budget, which is a number or a percentage. A change from one
// to the other is not compared.
func loosened(name, path, sign string) catalogued {
	return catalogued{
		name: name, effect: v1alpha1.EffectWarn, group: policyGroup, kinds: []string{"PodDisruptionBudget"}, on: []v1alpha1.Event{v1alpha1.OnChange},
		because: "drains may evict more pods at once than before: a quorum, or what the load needs, may be lost",
		fix:     "check how many pods have to run at any time",
		source:  budgetPage,
		when: `old != null && new != null && (type(old) != string && type(new) != string ? new ` + sign + ` old :
type(old) == string && type(new) == string && [[new, old]].exists(v, v.all(x, x.matches('^[0-9]{1,3}%$')) &&
[v.map(x, int(x.substring(0, x.size() - 1)))].exists(n, n[0] ` + sign + ` n[1])))`,
		paths: []string{path},
	}
}

func warnedBudgets() []catalogued {
	const (
		blocks  = `.spec.?maxUnavailable.orValue('') in [0, '0', '0%'] || `
		nothing = `.spec.?minAvailable.orValue('') in [0, '0', '0%'] || `
		matched = `object.spec.selector.matchLabels.all(k,
w.?spec.template.metadata.labels[?k].orValue('') == object.spec.selector.matchLabels[k])`
	)
	budgets, amounts := []string{"PodDisruptionBudget"}, []string{".spec.maxUnavailable", ".spec.minAvailable"}
	return []catalogued{
		{
			name: "budget-blocks-drains", effect: v1alpha1.EffectWarn, group: policyGroup, kinds: budgets, on: fieldsAndCreation(),
			because: "the budget allows no eviction: a node with such a pod can't be drained or upgraded",
			fix:     "allow at least one pod to be unavailable",
			source:  drainPage,
			when: `(object` + blocks + `object.spec.?minAvailable.orValue('') == '100%') &&
!(live != null && (live` + blocks + `live.spec.?minAvailable.orValue('') == '100%'))`,
			paths: amounts,
		},
		{
			name: "budget-exceeds-running", effect: v1alpha1.EffectWarn, group: policyGroup, kinds: budgets,
			on:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "minAvailable is at least the number of pods that are expected: a node with such a pod can't be drained or upgraded",
			fix:     "run one replica more than minAvailable, or set maxUnavailable",
			source:  drainPage,
			when: `type(new) != string && new != null && status != null && status.?expectedPods.orValue(0) > 0 && new >= status.expectedPods &&
!(type(old) != string && old != null && old >= status.expectedPods)`,
			says:  `string(status.expectedPods) + ' pods are expected'`,
			paths: []string{".spec.minAvailable"},
		},
		{
			name: "budget-exceeds-replicas", effect: v1alpha1.EffectWarn, group: policyGroup, kinds: budgets, on: fieldsAndCreation(),
			because: "minAvailable is at least the replicas of a workload: a node with such a pod can't be drained or upgraded",
			fix:     "run one replica more than minAvailable, or set maxUnavailable",
			source:  drainPage,
			when: `type(new) != string && new != null && new > 0 && object.spec.?selector.matchLabels.orValue({}) != {} && ` +
				templatesOf(`w.kind != 'DaemonSet' && [w.spec.?replicas.orValue(1)].exists(r, r > 0 && r <= new) && `+matched+
					` && !objects.?HorizontalPodAutoscaler.orValue([]).exists(h, h.spec.scaleTargetRef.name == w.metadata.name)`),
			paths: []string{".spec.minAvailable"},
		},
		{
			name: "budget-protects-nothing", effect: v1alpha1.EffectWarn, group: policyGroup, kinds: budgets, on: fieldsAndCreation(),
			because: "a drain may evict all pods of the budget at once",
			fix:     "keep at least one pod available",
			source:  budgetPage,
			when: `(object` + nothing + `object.spec.?maxUnavailable.orValue('') == '100%') &&
!(live != null && (live` + nothing + `live.spec.?maxUnavailable.orValue('') == '100%'))`,
			paths: amounts,
		},
		{
			name: "budget-selector", effect: v1alpha1.EffectWarn, group: policyGroup, kinds: budgets, on: changesAndRemovals(),
			because: "the budget covers other pods: a drain may evict its old pods at once, and its new pods may block drains",
			fix:     "create a second budget for the new pods, and delete this one when its pods are gone",
			source:  budgetPage + "#arbitrary-controllers-and-selectors",
			when:    `old != null && old != new`,
			paths:   []string{".spec.selector"},
		},
		{
			name: "budget-without-pods", effect: v1alpha1.EffectWarn, group: policyGroup, kinds: budgets, on: objectCreation(),
			because: "the selector matches no pod template of the component: unless other pods match, the budget protects nothing",
			fix:     "select labels that the pod template has",
			source:  budgetPage,
			when: `object.?spec.selector.matchLabels.orValue({}) != {} && ` +
				templatesOf(`true`) + ` && !` + templatesOf(matched),
			paths: []string{""},
		},
		{
			name: "budget-unhealthy-pods", effect: v1alpha1.EffectWarn, group: policyGroup, kinds: budgets, on: changesAndRemovals(),
			because: "pods that run but are not ready can block drains while the budget has too few healthy pods",
			fix:     "keep unhealthyPodEvictionPolicy AlwaysAllow",
			source:  budgetPage + "#unhealthy-pod-eviction-policy",
			when:    `old == 'AlwaysAllow' && new != 'AlwaysAllow'`,
			paths:   []string{".spec.unhealthyPodEvictionPolicy"},
		},
		warnOfDeletion(policyGroup, "a drain may evict all pods of the budget at once", "PodDisruptionBudget").advise(
			"create the budget that replaces it first", budgetPage,
		),
	}
}

func warnedQuotas() []catalogued {
	quotas, ranges := []string{"ResourceQuota"}, []string{"LimitRange"}
	return []catalogued{
		{
			name: "quota-lowered", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: quotas, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "existing objects stay, but new ones are refused when they would exceed the lowered quota",
			fix:     "compare the new quota with status.used, and leave room for a rolling update",
			source:  quotaPage,
			when:    `old != null && new != null && quantity(new) < quantity(old)`,
			paths:   []string{".spec.hard.*"},
		},
		{
			name: "quota-below-used", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: quotas, on: []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "the namespace uses more than the new quota: a pod that is deleted can't be created again, and updates stop half-way",
			fix:     "set the quota above status.used, with room for a rolling update",
			source:  quotaPage,
			when: `status != null && [status.?used.orValue({})].exists(used, object.spec.?hard.orValue({}).exists(k, k in used &&
quantity(used[k]) > quantity(object.spec.hard[k]) && live.?spec.?hard[?k].orValue(null) != object.spec.hard[k]))`,
			paths: []string{".spec.hard"},
		},
		{
			name: "quota-gained", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: quotas,
			on:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnCreateObject},
			because: "new objects above the quota are refused, and so are new pods without the CPU or memory values that the quota limits",
			fix:     "set requests and limits in every pod template, or defaults in a LimitRange, first",
			source:  quotaPage,
			paths:   []string{".spec.hard.*"},
		},
		{
			name: "limit-range-tightened", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: ranges, on: []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "new pods or claims outside of the new bounds are refused, also when they replace existing ones",
			fix:     "change the requests and limits of the workloads first",
			source:  limitRangePage,
			when: `new != null && new.exists(n, [old == null ? [] : old].exists(l, [l.filter(o, o.type == n.type)].exists(same,
n.?max.orValue({}).exists(k, !same.exists(o, k in o.?max.orValue({}) && quantity(o.max[k]) <= quantity(n.max[k]))) ||
n.?min.orValue({}).exists(k, !same.exists(o, k in o.?min.orValue({}) && quantity(o.min[k]) >= quantity(n.min[k]))))))`,
			paths: []string{".spec.limits"},
		},
		{
			name: "limit-range-defaults-lowered", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: ranges, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "new containers that set no resources get less: they may be throttled, evicted, or killed for memory",
			fix:     "set the resources of such containers first",
			source:  "https://kubernetes.io/docs/tasks/administer-cluster/manage-resources/memory-default-namespace/",
			when: `old != null && new != null && old.exists(o, new.exists(n, n.type == o.type && ['default', 'defaultRequest'].exists(f,
f in o && f in n && n[f].exists(k, k in o[f] && quantity(n[f][k]) < quantity(o[f][k])))))`,
			paths: []string{".spec.limits"},
		},
		warnOfDeletion(coreGroup, "the namespace may use all resources of the cluster, unless another quota limits it", "ResourceQuota").advise(
			"raise the quota instead", quotaPage,
		),
		warnOfDeletion(coreGroup, "new containers that set no resources get no defaults from the LimitRange, and its bounds no longer hold", "LimitRange").advise(
			"set the resources of such containers first", limitRangePage,
		),
	}
}

func warnedMonitoring() []catalogued {
	return []catalogued{
		{
			name: "alert-removed", effect: v1alpha1.EffectWarn, group: monitoringGroup, kinds: []string{"PrometheusRule"}, on: changesAndRemovals(),
			because: "Prometheus no longer evaluates an alert: a failure that only this alert reports stays unseen",
			fix:     "add the alert that replaces it in the same commit",
			source:  operatorPage,
			when:    `old != null && new == null`,
			paths:   []string{".spec.groups[*].rules[*].alert"},
		},
		warnOfDeletion(
			monitoringGroup, "Prometheus loses the alerts or metrics of the object: a failure that only they show stays unseen", "PrometheusRule", "ServiceMonitor", "PodMonitor", "Probe",
		).advise("add the object that replaces it first", "https://prometheus-operator.dev/docs/getting-started/design/"),
	}
}
