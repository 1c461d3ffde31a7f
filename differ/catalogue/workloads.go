package catalogue

import (
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// ofWorkloads returns the rules on workloads and their pods.
func ofWorkloads() []catalogued {
	return slices.Concat(
		ofPodPowers(), ofPodRelations(), ofPodData(),
		ofPodHardening(), ofPodIdentity(), ofImages(), ofProbes(), ofResources(), ofPlacement(),
		ofUpdates(), ofTermination(), ofSchedules(), ofSettings(), ofWays(),
	)
}

const kubernetesDocs = "https://kubernetes.io/docs/"

// templated returns the kinds with a pod template whose containers are compared by name.
func templated() []string {
	return append(serving(), "ReplicaSet", "ReplicationController", "Job", "CronJob")
}

// serving returns the kinds whose pods should run all the time.
func serving() []string {
	return []string{"Deployment", "StatefulSet", "DaemonSet", "CloneSet", "Rollout"}
}

// gainedField is a condition: the field becomes true.
const gainedField = `new == true && old != true`

func addChange() []v1alpha1.Event { return []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange} }

func changeRemove() []v1alpha1.Event { return []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove} }

func addChangeCreate() []v1alpha1.Event { return append(addChange(), v1alpha1.OnCreateObject) }

// podSpecOf returns an expression: the spec of an object's pod template, or {}.
func podSpecOf(object string) string {
	return strings.ReplaceAll(`X.?spec.?jobTemplate.?spec.?template.?spec.or(X.?spec.?template.?spec).orValue({})`, "X", object)
}

// listAt returns an expression: the list at an optional field, or []. Charts also render lists as
// null.
func listAt(field string) string {
	return `optional.ofNonZeroValue(` + field + `.orValue(null)).orValue([])`
}

// mapAt returns an expression: the map at an optional field, or {}.
func mapAt(field string) string {
	return `optional.ofNonZeroValue(` + field + `.orValue(null)).orValue({})`
}

func containersOf(pod string) string {
	return `(` + listAt(pod+".?containers") + ` + ` + listAt(pod+".?initContainers") + `)`
}

// newPod returns a condition on the pod spec in git, called is.
func newPod(condition string) string {
	return `[` + podSpecOf("object") + `].exists(is, ` + condition + `)`
}

// bothPods returns a condition on the pod specs before and after a change, called was and is.
func bothPods(condition string) string {
	return `live != null && [` + podSpecOf("live") + `].exists(was, ` + newPod(condition) + `)`
}

// someWorkload returns a condition on the pod spec, called is, of any workload of the component in
// the object's namespace.
func someWorkload(object, condition string) string {
	var lists []string
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet", "CronJob", "CloneSet"} {
		lists = append(lists, listAt("objects.?"+kind))
	}
	return `(` + strings.Join(lists, " + ") + `).exists(w, w.metadata.?namespace == ` + object + `.metadata.?namespace && [` +
		podSpecOf("w") + `].exists(is, ` + condition + `))`
}

// ofPlacement returns the rules on which nodes run the pods.
func ofPlacement() []catalogued {
	const assign = kubernetesDocs + "concepts/scheduling-eviction/assign-pod-node/"
	selector := func(pod string) string { return mapAt(pod + ".?nodeSelector") }
	terms := func(pod string) string {
		return listAt(pod + ".?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms")
	}
	spread := func(pod string) string {
		return `(` + listAt(pod+".?topologySpreadConstraints") + ` != [] || ` + mapAt(pod+".?affinity.?podAntiAffinity") + ` != {})`
	}
	matches := func(object string) string { return `nodes.matching(` + podSpecOf(object) + `)` }
	return []catalogued{
		{
			name: "no-node-left", effect: v1alpha1.EffectHold, kinds: []string{"DaemonSet"},
			because: "no node of the cluster matches the DaemonSet any more: all its pods are deleted, and none replaces them",
			fix:     "label the nodes first, or keep a selector and tolerations that match them", source: assign,
			when: `live != null && nodes != null && ` + matches("object") + ` == 0 && ` + matches("live") + ` > 0`,
			says: `string(` + matches("live") + `) + ' nodes match the pods that run'`,
			paths: []string{
				".spec.template.spec.nodeSelector", ".spec.template.spec.nodeName", ".spec.template.spec.tolerations",
				".spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
			},
		},
		{
			name: "fewer-nodes", effect: v1alpha1.EffectWarn, kinds: templated(),
			because: "fewer nodes may match the pods: a DaemonSet leaves the other nodes, and pods of other workloads may find no node",
			fix:     "check on every cluster that enough nodes have the labels", source: assign,
			// Most nodes run Linux: a selector for Linux excludes few nodes.
			when: bothPods(`nodes != null ? nodes.matching(is) < nodes.matching(was) : (` + selector("is") + `.exists(k, ` + selector("was") + `[?k].orValue(null) != is.nodeSelector[k] &&
!(k in ['kubernetes.io/os', 'beta.kubernetes.io/os'] && is.nodeSelector[k] == 'linux')) || ` + terms("is") + ` != [] && (` + terms("was") + ` == [] ||
!` + terms("was") + `.all(t, t in ` + terms("is") + `)))`),
			says:  `nodes == null ? '' : string(` + matches("live") + `) + ' nodes matched, and ' + string(` + matches("object") + `) + ' do now'`,
			paths: inPods(".nodeSelector", ".affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"),
		},
		{
			name: "tolerations-lost", effect: v1alpha1.EffectWarn, kinds: []string{"DaemonSet"}, on: changeRemove(),
			because: "the DaemonSet no longer runs on nodes with a taint that it tolerated",
			fix:     "keep the toleration, or check that no node has the taint",
			source:  kubernetesDocs + "concepts/scheduling-eviction/taint-and-toleration/",
			// Kubernetes itself no longer sets this taint.
			when: bothPods(listAt("was.?tolerations") + `.exists(o, o.?key.orValue('') != 'node-role.kubernetes.io/master' && !` +
				listAt("is.?tolerations") + `.exists(n, n.?key == o.?key && n.?operator.orValue('Equal') == o.?operator.orValue('Equal') && n.?value.orValue('') == o.?value.orValue('') &&
n.?effect.orValue('') in ['', o.?effect.orValue('')] || n.?operator.orValue('Equal') == 'Exists' &&
n.?key.orValue('') in ['', o.?key.orValue('')] && n.?effect.orValue('') in ['', o.?effect.orValue('')]))`),
			paths: []string{".spec.template.spec.tolerations"},
		},
		{
			name: "spread-lost", effect: v1alpha1.EffectWarn, kinds: []string{"Deployment", "StatefulSet", "CloneSet", "Rollout"}, on: changeRemove(),
			because: "at most the soft defaults of the scheduler spread the pods: all of them may run on one node, and fail with it",
			fix:     "keep topologySpreadConstraints or podAntiAffinity",
			source:  kubernetesDocs + "concepts/scheduling-eviction/topology-spread-constraints/",
			when:    bothPods(spread("was") + ` && !` + spread("is")),
			paths:   []string{".spec.template.spec.topologySpreadConstraints", ".spec.template.spec.affinity.podAntiAffinity"},
		},
		{
			name: "system-priority-lost", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "the pods lose the priority of the system: other pods may preempt them, and a full node evicts them earlier",
			fix:     "keep system-node-critical or system-cluster-critical",
			source:  kubernetesDocs + "tasks/administer-cluster/guaranteed-scheduling-critical-addon-pods/",
			when:    `old != null && old.startsWith('system-') && (new == null || !new.startsWith('system-'))`,
			paths:   inPods(".priorityClassName"),
		},
		{
			name: "system-priority-gained", effect: v1alpha1.EffectWarn, kinds: templated(), on: addChange(),
			because: "the pods gain the priority of the system, and on a full cluster preempt pods of lower priority",
			fix:     "use a PriorityClass of your own, below those of the system",
			source:  kubernetesDocs + "concepts/scheduling-eviction/pod-priority-preemption/",
			when:    `new != null && new.startsWith('system-') && (old == null || !old.startsWith('system-'))`,
			paths:   inPods(".priorityClassName"),
		},
	}
}

// ofUpdates returns the rules on how workloads roll out a new version.
func ofUpdates() []catalogued {
	const (
		controllers = kubernetesDocs + "concepts/workloads/controllers/"
		deployment  = controllers + "deployment/"
		stateful    = controllers + "statefulset/"
	)
	none := func(partition string) string {
		return strings.ReplaceAll(`(X == null || string(X) in ['0', '0%'])`, "X", partition)
	}
	return []catalogued{
		{
			name: "update-recreates", effect: v1alpha1.EffectWarn, kinds: []string{"Deployment"}, on: addChange(),
			because: "each update stops all pods before it starts new ones", fix: "use RollingUpdate, unless two versions must never run at a time",
			source: deployment + "#recreate-deployment",
			when:   `new == 'Recreate' && old != 'Recreate'`, paths: []string{".spec.strategy.type"},
		},
		{
			name: "update-claim-shared", effect: v1alpha1.EffectWarn, kinds: []string{"Deployment"}, on: changeRemove(),
			because: "new pods start while old pods use the claim: a volume for one node keeps them waiting, or both write the same data",
			fix:     "use Recreate, or a StatefulSet", source: deployment + "#recreate-deployment",
			when:  `old == 'Recreate' && new != 'Recreate' && ` + newPod(listAt("is.?volumes")+`.exists(v, has(v.persistentVolumeClaim))`),
			paths: []string{".spec.strategy.type"},
		},
		{
			name: "update-all-at-once", effect: v1alpha1.EffectWarn, kinds: []string{"Deployment", "StatefulSet", "DaemonSet", "CloneSet"}, on: addChange(),
			because: "an update may stop all pods at the same time", fix: "lower maxUnavailable, so that enough pods serve during an update",
			source: deployment + "#max-unavailable",
			when: `new != null && new != old && (string(new) == '100%' || !string(new).endsWith('%') &&
object.spec.?replicas.orValue(1) > 1 && int(new) >= object.spec.?replicas.orValue(1))`,
			paths: []string{
				".spec.strategy.rollingUpdate.maxUnavailable", ".spec.updateStrategy.rollingUpdate.maxUnavailable",
				".spec.updateStrategy.maxUnavailable",
			},
		},
		{
			name: "update-on-delete", effect: v1alpha1.EffectWarn, kinds: []string{"StatefulSet", "DaemonSet", "CloneSet"}, on: addChange(),
			because: "a new version reaches a pod only when something deletes the pod: a person, a drain or an eviction", fix: "use RollingUpdate",
			source: stateful + "#update-strategies",
			when:   `new == 'OnDelete' && old != 'OnDelete'`, paths: []string{".spec.updateStrategy.type"},
		},
		{
			name: "update-partition", effect: v1alpha1.EffectWarn, kinds: []string{"StatefulSet", "CloneSet", "DaemonSet"}, on: addChange(),
			because: "pods keep the old version: in a StatefulSet those with an ordinal below the partition, in other workloads as many as it says",
			fix:     "set the partition back to 0 when the update is to be completed",
			source:  stateful + "#partitions",
			when:    `!` + none("new") + ` && ` + none("old"),
			paths:   []string{".spec.updateStrategy.rollingUpdate.partition", ".spec.updateStrategy.partition"},
		},
		{
			name: "update-paused", effect: v1alpha1.EffectWarn, kinds: []string{"Deployment", "CloneSet", "Rollout", "DaemonSet", "StatefulSet"}, on: addChangeCreate(),
			because: "changes of the pod template, security fixes included, do not reach the pods; a new paused Deployment starts no pods",
			fix:     "remove paused",
			source:  deployment + "#pausing-and-resuming-a-deployment",
			when:    gainedField, paths: []string{".spec.paused", ".spec.updateStrategy.paused", ".spec.updateStrategy.rollingUpdate.paused"},
		},
		{
			name: "update-batches-lost", effect: v1alpha1.EffectWarn, kinds: []string{"CloneSet", "StatefulSet", "DaemonSet"}, on: changeRemove(),
			because: "an update that stops after its first batch today goes through all pods, as fast as maxUnavailable lets it",
			fix:     "keep a first batch that is small enough to lose",
			source:  "https://github.com/keelson-io/keelson/blob/main/docs/guides/workloads-in-place.md",
			// All at once is what no batches mean, too.
			when: `[live, object].map(o, o == null ? [] : o.spec.?updateStrategy.?rollingUpdate.?batches.?sizes.orValue([])).map(s, s == ['100%'] ? [] : s)
.exists(s, s != []) && object.spec.?updateStrategy.?rollingUpdate.?batches.?sizes.orValue([]) in [[], ['100%']]`,
			paths: []string{".spec.updateStrategy.rollingUpdate.batches", ".spec.updateStrategy.rollingUpdate.batches.sizes"},
		},
		{
			name: "deployment-batches-lost", effect: v1alpha1.EffectWarn, kinds: []string{"Deployment"}, on: changeRemove(),
			because: "an update that stops after its first batch today goes through all pods, and so does the rest of one that is under way",
			fix:     "keep a first batch that is small enough to lose",
			source:  "https://github.com/keelson-io/keelson/blob/main/docs/guides/workloads-in-place.md",
			// All at once is what no batches mean, too. The annotation is YAML or JSON.
			when:  `[old, new].map(v, type(v) == string && v.matches('sizes') && !v.matches('sizes"?:\\s*(\\[\\s*|-\\s*)["\']?100%')) == [true, false]`,
			paths: []string{`.metadata.annotations["workloads.keelson.io/update-strategy"]`},
		},
		{
			name: "no-min-ready-time", effect: v1alpha1.EffectWarn, kinds: serving(), on: changeRemove(),
			because: "an update goes on as soon as a new pod is ready, even if the pod fails a moment later",
			fix:     "keep minReadySeconds above the time in which a broken version fails",
			source:  deployment + "#min-ready-seconds",
			when:    `old != null && old > 0 && (new == null || new == 0)`, paths: []string{".spec.minReadySeconds"},
		},
	}
}

// ofTermination returns the rules on how pods stop.
func ofTermination() []catalogued {
	const lifecycle = kubernetesDocs + "concepts/workloads/pods/pod-lifecycle/#pod-termination"
	const grace = `.?terminationGracePeriodSeconds.orValue(30)`
	return []catalogued{
		{
			name: "grace-shortened", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "the pods have half the time or less to stop: open requests and unsaved data may be lost",
			fix:     "keep the time that a clean stop takes", source: lifecycle,
			when: bothPods(`is` + grace + ` * 2 <= was` + grace), paths: inPods(".terminationGracePeriodSeconds"),
		},
		{
			name: "pre-stop-lost", effect: v1alpha1.EffectWarn, kinds: serving(), on: changeRemove(),
			because: "the container may stop while Services still send it requests, and its cleanup no longer runs",
			fix:     "keep the preStop hook, or check that the process drains by itself",
			source:  kubernetesDocs + "concepts/containers/container-lifecycle-hooks/",
			when:    lostOf(".?lifecycle.?preStop"), paths: []string{".spec.template.spec.containers[*].lifecycle.preStop"},
		},
	}
}

// ofSchedules returns the rules on Jobs and CronJobs.
func ofSchedules() []catalogued {
	const cron = kubernetesDocs + "concepts/workloads/controllers/cron-jobs/"
	const often = `.matches(r'^(\s*(TZ|CRON_TZ)=\S+)?\s*([*?](/1)?|0-59(/1)?|0/1|@every (1m|[1-5]?[0-9]s))(\s|$)')`
	return []catalogued{
		{
			name: "schedule-suspended", effect: v1alpha1.EffectWarn, kinds: []string{"CronJob", "Job"}, on: addChangeCreate(),
			because: "a suspended CronJob starts no Jobs, and a suspended Job ends its pods: their work stops without an error",
			fix:     "remove suspend, or delete the object where it is no longer needed", source: cron + "#schedule-suspension",
			when: gainedField, paths: []string{".spec.suspend"},
		},
		{
			name: "cron-overlaps", effect: v1alpha1.EffectWarn, kinds: []string{"CronJob"}, on: changeRemove(),
			because: "a run starts even if the one before it still works, and both may change the same data",
			fix:     "keep concurrencyPolicy Forbid or Replace", source: cron + "#concurrency-policy",
			when: `old in ['Forbid', 'Replace'] && (new == null || !(new in ['Forbid', 'Replace']))`, paths: []string{".spec.concurrencyPolicy"},
		},
		{
			name: "cron-every-minute", effect: v1alpha1.EffectWarn, kinds: []string{"CronJob"}, on: addChangeCreate(),
			because: "the schedule starts a run every minute of the hours that it names",
			fix:     "name the minute: 0 3 * * * runs once a day, * 3 * * * sixty times", source: cron + "#schedule-syntax",
			when: `new != null && new` + often + ` && (old == null || !old` + often + `)`, paths: []string{".spec.schedule"},
		},
		{
			name: "deadline-cut", effect: v1alpha1.EffectWarn, kinds: []string{"Job", "CronJob"}, on: []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "a Job that runs longer than the new deadline, less than half of the old one, is stopped and fails",
			fix:     "measure how long the Job runs, and leave room", source: kubernetesDocs + "concepts/workloads/controllers/job/#job-termination-and-cleanup",
			when:  `new != null && old != null && double(new) * 2.0 < double(old)`,
			paths: []string{".spec.activeDeadlineSeconds", ".spec.jobTemplate.spec.activeDeadlineSeconds"},
		},
		{
			name: "job-runs-again", effect: v1alpha1.EffectWarn, kinds: []string{"Job"}, on: addChangeCreate(),
			because: "the cluster deletes the Job some time after it finished; git still has it, so it is created and runs again",
			fix:     "remove ttlSecondsAfterFinished from Jobs that git holds", source: kubernetesDocs + "concepts/workloads/controllers/ttlafterfinished/",
			when: `new != null && old == null`, paths: []string{".spec.ttlSecondsAfterFinished"},
		},
	}
}
