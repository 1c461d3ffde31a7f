package catalogue

import (
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// majorTag returns an expression: a list whose last item is the major version in an image's tag.
func majorTag(image string) string {
	return strings.ReplaceAll(`[I.split('@')[0].split(':')].map(p, p[p.size() - 1].split('.')[0].split('-')[0].split('v'))[0]`, "I", image)
}

// olderTag returns a condition: the tag of an image has a lower version than that of another one. Both
// have to match taggedVersion.
func olderTag(image, than string) string {
	numbers := func(image string) string {
		return strings.ReplaceAll(`[I.split('@')[0].split(':')].map(p, p[p.size() - 1].split('-')[0].split('v')).map(v, v[v.size() - 1].split('.').map(n, int(n)))`, "I", image)
	}
	return numbers(image) + `.exists(n, ` + numbers(than) + `.exists(o, n[0] < o[0] || n[0] == o[0] && (n[1] < o[1] ||
n[1] == o[1] && n.size() == 3 && o.size() == 3 && n[2] < o[2])))`
}

// taggedVersion is a regular expression: an image's tag is a version of two or three numbers.
const taggedVersion = `r':v?[0-9]{1,9}\.[0-9]{1,9}(\.[0-9]{1,9})?(-[^:]*)?(@.*)?$'`

// sameContainer returns a condition on a container before and after a change, called o and n. A
// removed container does not count.
func sameContainer(condition string) string {
	return bothPods(containersOf("was") + `.exists(o, ` + containersOf("is") + `.exists(n, n.?name == o.?name && (` + condition + `)))`)
}

// lostOf returns a condition: a container had the field, and no longer has it.
func lostOf(field string) string {
	return sameContainer(`o` + field + `.orValue(null) != null && n` + field + `.orValue(null) == null`)
}

// ofPodPowers returns further rules on what pods may do to their node; see ofPods.
func ofPodPowers() []catalogued {
	const security = ".securityContext"
	everywhere := func(field string) []string { return append(inPods(security+field), inContainers(security+field)...) }
	list := []catalogued{
		{
			name: "host-process", because: "a HostProcess container runs as a process of its Windows node, and can use its network, files and devices",
			fix:  "run the task in a normal container, or as a service of the node itself",
			when: gainedField, paths: everywhere(".windowsOptions.hostProcess"),
		},
		{
			name: "profile-unconfined", because: "Unconfined lets the containers run without a seccomp profile, or without an AppArmor profile",
			fix:  "use RuntimeDefault, or write a Localhost profile that allows what the program needs",
			when: `new in ['Unconfined', 'unconfined'] && old != new`,
			paths: slices.Concat(
				everywhere(".seccompProfile.type"), everywhere(".appArmorProfile.type"), []string{".spec.template.metadata.annotations[*]"},
			),
		},
		{
			name:    "proc-unmasked",
			because: "the container can use the parts of /proc that are masked otherwise; without hostUsers: false the API server refuses the pod",
			fix:     "leave procMount at Default, or set hostUsers: false, which gives the pod its own user namespace",
			when:    `new == 'Unmasked' && old != 'Unmasked'`, paths: inContainers(security + ".procMount"),
		},
		{
			name:    "selinux-type",
			because: "the SELinux type of the containers is not one that the Pod Security Standards allow: it may not confine them",
			fix:     "use container_t, or another type that the Pod Security Standards allow",
			when: `new != null && new != old &&
!(new in ['', 'container_t', 'container_init_t', 'container_kvm_t', 'container_engine_t'])`,
			paths: everywhere(".seLinuxOptions.type"),
		},
		{
			name: "unsafe-sysctl", because: "a node refuses pods with an unsafe sysctl, unless its kubelet allows the sysctl",
			fix:    "allow the sysctl first, by allowedUnsafeSysctls in the kubelet configuration, or leave it out",
			source: kubernetesDocs + "tasks/administer-cluster/sysctl-cluster/",
			when: `new != null && new.exists(n, !(n.?name.orValue('') in ['kernel.shm_rmid_forced', 'net.ipv4.ip_local_port_range',
'net.ipv4.ip_unprivileged_port_start', 'net.ipv4.tcp_syncookies', 'net.ipv4.ping_group_range', 'net.ipv4.ip_local_reserved_ports',
'net.ipv4.tcp_keepalive_time', 'net.ipv4.tcp_fin_timeout', 'net.ipv4.tcp_keepalive_intvl', 'net.ipv4.tcp_keepalive_probes',
'net.ipv4.tcp_rmem', 'net.ipv4.tcp_wmem']) && (old == null || !old.exists(o, o.?name == n.?name)))`,
			paths: inPods(security + ".sysctls"),
		},
		{
			name: "host-port", because: "the container opens a port on every node it runs on, and no other pod with that port can run there",
			fix: "publish the port by a Service",
			// With hostNetwork, every container port is a port of the node.
			when: `new != null && new != 0 && (live == null || !` + containersOf("["+podSpecOf("live")+"][?0]") +
				`.exists(c, ` + listAt("c.?ports") + `.exists(p, p.?hostPort.orValue(0) == new))) && ` +
				newPod(`is.?hostNetwork.orValue(false) != true`),
			paths: inContainers(".ports[*].hostPort"),
		},
		{
			name: "host-path-writable", because: "the container may write to a part of its node's file system that it could only read",
			fix:    "keep readOnly on the mount, or give the container a volume of its own",
			source: kubernetesDocs + "concepts/storage/volumes/#hostpath",
			when: sameContainer(listAt("o.?volumeMounts") + `.exists(a, a.?readOnly.orValue(false) == true && ` + listAt("n.?volumeMounts") +
				`.exists(b, b.?mountPath == a.?mountPath && b.?readOnly.orValue(false) != true && ` + listAt("is.?volumes") +
				`.exists(v, v.?name == b.?name && v.?hostPath.orValue(null) != null)))`),
			kinds: templated(), paths: inContainers(".volumeMounts[*].readOnly"),
		},
	}
	for i := range list {
		if list[i].source == "" {
			list[i].source = podSecurity
		}
		list[i].effect, list[i].on = v1alpha1.EffectHold, fieldsAndCreation()
	}
	return list
}

// ofPodRelations returns the rules on objects of the component that depend on the pods, or on which
// the pods depend.
func ofPodRelations() []catalogued {
	labelsOf := func(object string) string { return mapAt(object + ".?spec.?template.?metadata.?labels") }
	// Labels leave a selector if they matched it before, and no longer do.
	leaves := func(kind, selector string) string {
		return `live != null && [` + labelsOf("live") + `].exists(was, [` + labelsOf("object") + `].exists(is, ` + listAt("objects.?"+kind) +
			`.exists(s, s.metadata.?namespace == object.metadata.?namespace && [` + mapAt("s"+selector) + `].exists(m, m != {} &&
m.all(k, was[?k].orValue(null) == m[k]) && !m.all(k, is[?k].orValue(null) == m[k])))))`
	}
	// A reference names the deleted ConfigMap or Secret, and is not optional.
	reads := func(configMap, secret, secretName string) string {
		return `(live.kind == 'Secret' ? ` + secret + secretName + ` : ` + configMap + `.?name).orValue('') == live.metadata.name &&
(live.kind == 'Secret' ? ` + secret + ` : ` + configMap + `).?optional.orValue(false) != true`
	}
	const reference = `(object.kind == 'Secret' ? e.valueFrom.?secretKeyRef : e.valueFrom.?configMapKeyRef)`
	gone := func(key string) string {
		return `(live.?data[?` + key + `].hasValue() || live.?binaryData[?` + key + `].hasValue()) &&
!object.?data[?` + key + `].hasValue() && !object.?binaryData[?` + key + `].hasValue()`
	}
	// A volume that lists keys can't be mounted if any of these keys is missing.
	items := func(volume, secretName string) string {
		return `(object.kind == 'Secret' ? ` + volume + `.?secret.?` + secretName + ` : ` + volume + `.?configMap.?name).orValue('') == object.metadata.name &&
[object.kind == 'Secret' ? ` + volume + `.?secret : ` + volume + `.?configMap].exists(r, r.?optional.orValue(false) != true &&
` + listAt("r.?items") + `.exists(i, ` + gone("i.?key.orValue('')") + `))`
	}
	deleted, config := []v1alpha1.Event{v1alpha1.OnDeleteObject}, []string{"ConfigMap", "Secret"}
	list := []catalogued{
		{
			name: "labels-leave-service", kinds: serving(), on: changeRemove(),
			because: "a Service of the component selects the pods by a label that goes or changes, and sends the new pods no traffic",
			fix:     "add the new label first, then change the Service's selector, and remove the old label last",
			source:  kubernetesDocs + "concepts/services-networking/service/",
			when:    leaves("Service", ".?spec.?selector"), paths: []string{".spec.template.metadata.labels"},
		},
		{
			name: "labels-leave-policy", kinds: serving(), on: changeRemove(),
			because: "a NetworkPolicy of the component selects the pods by a label that goes or changes, and does not apply to the new pods",
			fix:     "add the new label first, then change the policy's selector, and remove the old label last",
			source:  kubernetesDocs + "concepts/services-networking/network-policies/",
			when:    leaves("NetworkPolicy", ".?spec.?podSelector.?matchLabels"), paths: []string{".spec.template.metadata.labels"},
		},
		{
			name: "named-port-lost", kinds: serving(), on: changeRemove(),
			because: "a Service of the component sends its traffic to a named port that no container has any more",
			fix:     "keep the port's name, or change the Service's targetPort in the same commit",
			source:  kubernetesDocs + "concepts/services-networking/service/#defining-a-service",
			when: `old != null && ` + newPod(`!`+containersOf("is")+`.exists(c, `+listAt("c.?ports")+`.exists(p, p.?name.orValue('') == old))`) +
				` && ` + listAt("objects.?Service") + `.exists(s, s.metadata.?namespace == object.metadata.?namespace && ` +
				listAt("s.?spec.?ports") + `.exists(p, p.?targetPort.orValue('') == old) && [` + mapAt("s.?spec.?selector") +
				`].exists(m, m != {} && m.all(k, ` + labelsOf("object") + `[?k].orValue(null) == m[k])))`,
			paths: []string{".spec.template.spec.containers[*].ports[*].name"},
		},
		{
			name: "config-in-use", group: coreGroup, kinds: config, on: deleted,
			because: "a workload of the component still needs the object, and its next pods can't start without it",
			fix:     "remove the reference from the pod template first",
			source:  kubernetesDocs + "tasks/configure-pod-container/configure-pod-configmap/#restrictions",
			when: someWorkload("live", listAt("is.?volumes")+`.exists(v, `+reads("v.?configMap", "v.?secret", ".?secretName")+
				` || `+listAt("v.?projected.?sources")+`.exists(s, `+reads("s.?configMap", "s.?secret", ".?name")+`)) || `+containersOf("is")+`.exists(c, `+listAt("c.?envFrom")+`.exists(e, `+reads("e.?configMapRef", "e.?secretRef", ".?name")+
				`) || `+listAt("c.?env")+`.exists(e, e.?valueFrom.hasValue() && `+
				reads("e.valueFrom.?configMapKeyRef", "e.valueFrom.?secretKeyRef", ".?name")+`))`),
			paths: []string{""},
		},
		{
			name: "config-key-mounted", group: coreGroup, kinds: config, on: []v1alpha1.Event{v1alpha1.OnRemove},
			because: "a volume of a workload lists the key, and can't be mounted without it: the workload's next pods don't start",
			fix:     "remove the item from the volume first, or make the volume optional",
			source:  kubernetesDocs + "tasks/configure-pod-container/configure-pod-configmap/#restrictions",
			when: someWorkload("object", listAt("is.?volumes")+`.exists(v, `+items("v", "secretName")+
				` || `+listAt("v.?projected.?sources")+`.exists(s, `+items("s", "name")+`))`),
			paths: []string{".data", ".binaryData"},
		},
		{
			name: "config-key-in-use", group: coreGroup, kinds: config, on: []v1alpha1.Event{v1alpha1.OnRemove},
			because: "a workload of the component still reads the key, and its next pods can't start without it",
			fix:     "remove the reference from the pod template first",
			source:  kubernetesDocs + "tasks/configure-pod-container/configure-pod-configmap/#restrictions",
			// To save cost, names are compared first: most references have another name.
			when: someWorkload("object", containersOf("is")+`.exists(c, `+listAt("c.?env")+`.exists(e, e.?valueFrom.hasValue() &&
`+reference+`.?name.orValue('') == object.metadata.name && [`+reference+`].exists(r, r.?optional.orValue(false) != true && `+gone("r.?key.orValue('')")+`)))`),
			paths: []string{".data", ".binaryData"},
		},
	}
	for i := range list {
		list[i].effect = v1alpha1.EffectHold
	}
	return list
}

// claimed returns a condition on a volume mount, called m, of the pods before a change: its data
// outlives the pods.
func claimed(m string) string {
	return strings.ReplaceAll(`(`+listAt("was.?volumes")+`.exists(v, v.?name == M.?name && v.?persistentVolumeClaim.orValue(null) != null) || `+
		listAt("live.spec.?volumeClaimTemplates")+`.exists(t, t.?metadata.?name == M.?name))`, "M", m)
}

// ofPodData returns the rules on the data of pods.
func ofPodData() []catalogued {
	user := func(container, pod string) string {
		return container + `.?securityContext.?runAsUser.orValue(` + pod + `.?securityContext.?runAsUser.orValue(null))`
	}
	return []catalogued{
		{
			name: "claim-unmounted", effect: v1alpha1.EffectHold, kinds: templated(), on: changeRemove(),
			because: "the pods lose a volume with their data, and start with another one or with none",
			fix:     "keep the claim in the pod template until its data is copied",
			source:  kubernetesDocs + "concepts/storage/persistent-volumes/#claims-as-volumes",
			when: `old != null && ` + newPod(`!`+listAt("is.?volumes")+
				`.exists(v, v.?persistentVolumeClaim.?claimName.orValue('') == old)`),
			paths: inPods(".volumes[*].persistentVolumeClaim.claimName"),
		},
		{
			name: "stateful-no-grace", effect: v1alpha1.EffectHold, kinds: []string{"StatefulSet"}, on: fieldsAndCreation(),
			because: "with a grace period of 0 a pod may be replaced before its containers end: two pods of one name may write the same data",
			fix:     "set terminationGracePeriodSeconds to what a clean stop takes",
			source:  kubernetesDocs + "concepts/workloads/controllers/statefulset/#deployment-and-scaling-guarantees",
			when:    `new == 0 && old != 0`, paths: []string{".spec.template.spec.terminationGracePeriodSeconds"},
		},
		{
			name: "data-mount-moved", effect: v1alpha1.EffectWarn, kinds: templated(),
			because: "the container no longer finds the data of its claim where it was mounted",
			fix:     "check that the new version of the image reads its data at the new place",
			source:  kubernetesDocs + "concepts/storage/volumes/",
			when: sameContainer(listAt("o.?volumeMounts") + `.exists(m, !` + listAt("n.?volumeMounts") + `.exists(x, x.?mountPath == m.?mountPath &&
x.?subPath.orValue('') == m.?subPath.orValue('')) && ` + claimed("m") + `)`),
			paths: inContainers(".volumeMounts[*]"),
		},
		{
			name: "data-owner-changed", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "the containers get another user or group, and may no longer read or write the data of their claims",
			fix:     "check that the new user can read the data, or set fsGroup to the group that owns it",
			source:  kubernetesDocs + "tasks/configure-pod-container/security-context/",
			when: sameContainer(`((was.?securityContext.?fsGroup.orValue(null) != null &&
was.?securityContext.?fsGroup.orValue(null) != is.?securityContext.?fsGroup.orValue(null)) || ` + user("o", "was") + ` != null && ` +
				user("o", "was") + ` != ` + user("n", "is") + `) && ` + listAt("o.?volumeMounts") + `.exists(m, ` + claimed("m") + `)`),
			paths: slices.Concat(inPods(".securityContext.fsGroup", ".securityContext.runAsUser"), inContainers(".securityContext.runAsUser")),
		},
	}
}

// ofPodHardening returns the rules on settings that limit an intruder in a container.
func ofPodHardening() []catalogued {
	effective := func(field, otherwise string) func(container, pod string) string {
		return func(container, pod string) string {
			return container + `.?securityContext` + field + `.orValue(` + pod + `.?securityContext` + field + `.orValue(` + otherwise + `))`
		}
	}
	nonRoot, user, seccomp := effective(".?runAsNonRoot", "false"), effective(".?runAsUser", "-1"), effective(".?seccompProfile.?type", "''")
	safe := func(container, pod string) string {
		return `(` + nonRoot(container, pod) + ` == true || ` + user(container, pod) + ` > 0)`
	}
	drops := func(container string) string {
		return `'ALL' in ` + listAt(container+".?securityContext.?capabilities.?drop")
	}
	list := []catalogued{
		{
			name: "may-run-as-root", because: "the container may run as root: runAsNonRoot and runAsUser no longer prevent that, or runAsUser is 0",
			fix:  "keep runAsNonRoot: true, or a runAsUser other than 0",
			when: sameContainer(safe("o", "was") + ` && !` + safe("n", "is") + ` || ` + user("n", "is") + ` == 0 && ` + user("o", "was") + ` != 0 && ` + nonRoot("n", "is") + ` != true`),
			paths: slices.Concat(
				inPods(".securityContext.runAsNonRoot", ".securityContext.runAsUser"),
				inContainers(".securityContext.runAsNonRoot"), inContainers(".securityContext.runAsUser"),
			),
		},
		{
			name: "privilege-escalation", because: "a process of the container may gain more privileges than its parent has",
			fix: "keep allowPrivilegeEscalation: false",
			when: sameContainer(`o.?securityContext.?allowPrivilegeEscalation.orValue(true) == false &&
n.?securityContext.?allowPrivilegeEscalation.orValue(true) != false`),
			paths: inContainers(".securityContext.allowPrivilegeEscalation"),
		},
		{
			name: "writable-root", because: "the root file system of the container becomes writable: an intruder can change its programs",
			fix:    "keep readOnlyRootFilesystem: true, and mount an emptyDir where the container writes",
			source: kubernetesDocs + "tasks/configure-pod-container/security-context/",
			when: sameContainer(`o.?securityContext.?readOnlyRootFilesystem.orValue(false) == true &&
n.?securityContext.?readOnlyRootFilesystem.orValue(false) != true`),
			paths: inContainers(".securityContext.readOnlyRootFilesystem"),
		},
		{
			name: "drop-all-lost", because: "the container no longer drops all capabilities, and may use those that the container runtime grants by default",
			fix:  "drop ALL, and add the capabilities that the container needs",
			when: sameContainer(drops("o") + ` && !(` + drops("n") + `)`), paths: inContainers(".securityContext.capabilities.drop"),
		},
		{
			name: "seccomp-lost", because: "the container has no seccomp profile, and may make any system call unless the kubelet sets a default profile",
			fix:   "keep a seccompProfile of type RuntimeDefault or Localhost",
			when:  sameContainer(seccomp("o", "was") + ` in ['RuntimeDefault', 'Localhost'] && ` + seccomp("n", "is") + ` == ''`),
			paths: append(inPods(".securityContext.seccompProfile"), inContainers(".securityContext.seccompProfile")...),
		},
		{
			name: "host-users", because: "root in the containers is also root on the node: no user namespace separates the two any more",
			fix:    "keep hostUsers: false",
			source: kubernetesDocs + "concepts/workloads/pods/user-namespaces/",
			when:   `old == false && new != false`, paths: inPods(".hostUsers"),
		},
		{
			name: "shared-process-namespace", because: "the containers of a pod can see each other's processes, environment and files",
			fix:    "leave shareProcessNamespace unset",
			source: kubernetesDocs + "tasks/configure-pod-container/share-process-namespace/",
			when:   gainedField, paths: inPods(".shareProcessNamespace"),
		},
		{
			name: "runtime-class", because: "the RuntimeClass of the pods changes or goes: they may leave the sandbox that isolated them",
			fix:    "keep runtimeClassName, or check that the other runtime isolates the pods as strongly",
			source: kubernetesDocs + "concepts/containers/runtime-class/",
			when:   `old != null && new != old`, paths: inPods(".runtimeClassName"),
		},
	}
	for i := range list {
		if list[i].source == "" {
			list[i].source = podSecurity
		}
		list[i].effect, list[i].kinds = v1alpha1.EffectWarn, templated()
	}
	return list
}

// ofPodIdentity returns the rules on the accounts of pods, their API tokens, and their service
// mesh.
func ofPodIdentity() []catalogued {
	const accounts = kubernetesDocs + "tasks/configure-pod-container/configure-service-account/"
	return []catalogued{
		{
			name: "token-mounted", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "the containers get an API token of their service account, unless the field is unset and the account turns that off",
			fix:     "keep automountServiceAccountToken: false where the pods don't use the API", source: accounts,
			when: `old == false && new != false`, paths: inPods(".automountServiceAccountToken"),
		},
		{
			name: "default-account", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "the pods run as the default account, without the rights of their own; if the field is only removed, the old account may stay",
			fix:     "keep a service account for this workload alone, or write default where that account is meant", source: accounts,
			when:  `!(old in ['', 'default']) && (new == null || new in ['', 'default'])`,
			paths: inPods(".serviceAccountName"),
		},
		{
			name: "account-missing", effect: v1alpha1.EffectWarn, kinds: templated(), on: addChangeCreate(),
			because: "the component has service accounts, but none with this name: if the account does not exist, no new pod is created",
			fix:     "add the account to the component, or correct its name", source: accounts,
			when: `new != null && new != old && !(new in ['', 'default']) && [` + listAt("objects.?ServiceAccount") + `].exists(all,
[all.filter(a, a.metadata.?namespace == object.metadata.?namespace)].exists(here, here != [] && !here.exists(a, a.metadata.name == new)))`,
			paths: inPods(".serviceAccountName"),
		},
		{
			name: "mesh-injection-lost", effect: v1alpha1.EffectWarn, kinds: templated(),
			because: "the pods may leave their service mesh: then its encryption, policies and retries no longer apply to them",
			fix:     "keep the pods in the mesh, or check who calls them and with which policy",
			source:  "https://istio.io/latest/docs/setup/additional-setup/sidecar-injection/",
			when:    `!(old in ['false', 'disabled']) && (new == null || new in ['false', 'disabled'])`,
			paths: []string{
				`.spec.template.metadata.annotations["sidecar.istio.io/inject"]`, `.spec.template.metadata.labels["sidecar.istio.io/inject"]`,
				`.spec.template.metadata.annotations["linkerd.io/inject"]`,
			},
		},
	}
}

// ofImages returns the rules on the images of containers.
func ofImages() []catalogued {
	const images = kubernetesDocs + "concepts/containers/images/"
	of := func(what, condition string) string { return strings.ReplaceAll(condition, "X", what) }
	const (
		unversioned = `(!X.contains('@') && (X.endsWith(':latest') || !X.matches(':[^/]+$')))`
		// Container runtimes read the first segment as a registry if it has a dot or colon, or is
		// localhost.
		registry = `(X.matches('^([^/]*[.:][^/]*|localhost)/') ? X.split('/')[0] : 'docker.io')`
	)
	return []catalogued{
		{
			name: "image-unversioned", effect: v1alpha1.EffectWarn, kinds: templated(), on: addChange(),
			because: "the image names no fixed version: nodes may run different versions, and git no longer says which",
			fix:     "name a version, or better a digest", source: images + "#image-names",
			when:  `new != null && ` + of("new", unversioned) + ` && (old == null || !` + of("old", unversioned) + `)`,
			paths: inContainers(".image"),
		},
		{
			name: "image-unpinned", effect: v1alpha1.EffectWarn, kinds: templated(), on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the image was named by its digest, and a tag can be moved to another image",
			fix:     "name the new image by its digest, too", source: images + "#image-names",
			when:  `old != null && new != null && old.contains('@') && !new.contains('@')`,
			paths: inContainers(".image"),
		},
		{
			name: "image-registry", effect: v1alpha1.EffectWarn, kinds: templated(), on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the image comes from another registry: another party may publish it, and nodes may lack access",
			fix:     "check who publishes the image there, and that every cluster can pull it", source: images,
			// Kubernetes moved its registry to registry.k8s.io.
			when: `old != null && new != null && ` + of("new", registry) + ` != ` + of("old", registry) +
				` && !(old.startsWith('k8s.gcr.io/') && new.startsWith('registry.k8s.io/'))`,
			paths: inContainers(".image"),
		},
		{
			name: "image-major", effect: v1alpha1.EffectWarn, kinds: []string{"StatefulSet"}, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the major version changes: the program may not read the data, or may convert it so that the old version can't read it",
			fix:     "back up the data, and read the program's upgrade notes", source: "https://www.postgresql.org/docs/current/upgrading.html",
			when: `old != null && new != null && old.matches(':v?[0-9]+([.@-]|$)') && new.matches(':v?[0-9]+([.@-]|$)') &&
[` + majorTag("old") + `].exists(o, [` + majorTag("new") + `].exists(n, o[o.size() - 1] != n[n.size() - 1]))`,
			paths: inContainers(".image"),
		},
		{
			name: "image-downgraded", effect: v1alpha1.EffectWarn, kinds: templated(), on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the version of the image goes back: defects that were mended return, and the program may not read what the newer one wrote",
			fix:     "check the security notes since the older version, and whether it reads the data", source: images + "#image-names",
			when: `old != null && new != null && old.matches(` + taggedVersion + `) && new.matches(` + taggedVersion + `) &&
old.split('@')[0].split(':').size() == new.split('@')[0].split(':').size() && old.split('@')[0].substring(0, old.split('@')[0].lastIndexOf(':')) ==
new.split('@')[0].substring(0, new.split('@')[0].lastIndexOf(':')) && ` + olderTag("new", "old"),
			paths: inContainers(".image"),
		},
		{
			name: "image-never-pulled", effect: v1alpha1.EffectWarn, kinds: templated(), on: addChange(),
			because: "a node that does not have the image never pulls it, and no pod starts there",
			fix:     "use IfNotPresent", source: images + "#image-pull-policy",
			when: `new == 'Never' && old != 'Never'`, paths: inContainers(".imagePullPolicy"),
		},
		{
			name: "pull-secrets-lost", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "the pods name no registry credentials any more: unless the service account or the node has some, private images can't be pulled",
			fix:     "keep imagePullSecrets, or check that the service account or the nodes have the credentials",
			source:  kubernetesDocs + "tasks/configure-pod-container/pull-image-private-registry/",
			when:    `old != null && ` + newPod(listAt("is.?imagePullSecrets")+` == []`), paths: inPods(".imagePullSecrets[*].name"),
		},
	}
}

// asks returns an expression: the path that the liveness probe of a container asks, or the empty text.
func asks(container string) string { return container + `.?livenessProbe.?httpGet.?path.orValue('')` }

// asked returns an expression: the same of its readiness probe.
func asked(container string) string {
	return container + `.?readinessProbe.?httpGet.?path.orValue('')`
}

// ofProbes returns the rules on the probes of containers.
func ofProbes() []catalogued {
	const of, probes = ".spec.template.spec.containers[*]", kubernetesDocs + "tasks/configure-pod-container/configure-liveness-readiness-startup-probes/"
	const window = `X.?livenessProbe.?periodSeconds.orValue(10) * X.?livenessProbe.?failureThreshold.orValue(3)`
	const delay = `X.?livenessProbe.?initialDelaySeconds.orValue(0)`
	half := func(time string) string {
		return strings.ReplaceAll(time, "X", "n") + ` * 2 <= ` + strings.ReplaceAll(time, "X", "o")
	}
	list := []catalogued{
		{
			name: "readiness-probe-lost", because: "pods may get traffic before they can serve it, and a rollout may no longer stop at a broken version",
			fix:  "keep a readiness probe that asks the container whether it can serve",
			when: lostOf(".?readinessProbe"), paths: []string{of + ".readinessProbe"},
		},
		{
			name: "liveness-probe-lost", because: "a container that hangs is no longer restarted",
			fix:  "keep the liveness probe, or check that the process ends when it can't go on",
			when: lostOf(".?livenessProbe"), paths: []string{of + ".livenessProbe"},
		},
		{
			name: "startup-probe-lost", because: "the liveness probe no longer waits for the startup probe, and may kill a container that starts slowly",
			fix: "keep the startup probe, or give the liveness probe time enough for the slowest start",
			when: sameContainer(`o.?startupProbe.orValue(null) != null && n.?startupProbe.orValue(null) == null &&
n.?livenessProbe.orValue(null) != null`), paths: []string{of + ".startupProbe"},
		},
		{
			name:    "liveness-asks-readiness",
			because: "the liveness probe asks what the readiness probe asks: a pod that only can't serve now is restarted, and all at once if they share a cause",
			fix:     "let the liveness probe ask whether the process itself works",
			// Probes that asked the same before, and move together, are as they were.
			when: `new != null && new != old && ` + sameContainer(asks("n")+` == new && `+asked("n")+` == new &&
n.?readinessProbe.?httpGet.?port == n.?livenessProbe.?httpGet.?port && `+asks("o")+` != `+asked("o")),
			paths: []string{of + ".livenessProbe.httpGet.path"},
		},
		{
			name: "liveness-probe-tightened", because: "the liveness probe allows half the time or less, and may restart containers that are only slow",
			fix: "keep the time, or measure the slowest start and the longest pause under load first",
			when: sameContainer(`o.?livenessProbe.orValue(null) != null && n.?livenessProbe.orValue(null) != null && (` + half(window) + ` ||
n.?startupProbe.orValue(null) == null && ` + strings.ReplaceAll(delay, "X", "o") + ` >= 10 && ` + half(delay) + `)`),
			paths: []string{of + ".livenessProbe.periodSeconds", of + ".livenessProbe.failureThreshold", of + ".livenessProbe.initialDelaySeconds"},
		},
	}
	for i := range list {
		list[i].effect, list[i].kinds, list[i].on, list[i].source = v1alpha1.EffectWarn, serving(), changeRemove(), probes
	}
	return list
}

// ofResources returns the rules on the resources that containers may use.
func ofResources() []catalogued {
	const resources = kubernetesDocs + "concepts/configuration/manage-resources-containers/"
	// Without a request, Kubernetes uses the limit.
	requests := func(container string) string {
		return container + `.?resources.?requests[?r].orValue(` + container + `.?resources.?limits[?r].orValue(null))`
	}
	return []catalogued{
		{
			name: "memory-limit-cut", effect: v1alpha1.EffectWarn, kinds: templated(), on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the memory limit falls to half or less, and a container that needs more is killed",
			fix:     "compare the new limit with what the container uses at its peak", source: resources,
			when: sameContainer(`quantity(o.?resources.?limits.?memory.orValue(0)) > 0.0 && quantity(n.?resources.?limits.?memory.orValue(0)) > 0.0 &&
quantity(n.resources.limits.memory) * 2.0 <= quantity(o.resources.limits.memory)`),
			paths: inContainers(".resources.limits.memory"),
		},
		{
			name: "memory-limit-lost", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "a container that leaks memory can take all memory of its node, and other pods may be evicted or killed",
			fix:     "keep a memory limit", source: resources,
			when: sameContainer(`o.?resources.?limits.?memory.orValue(null) != null && n.?resources.?limits.?memory.orValue(null) == null &&
is.?resources.?limits.?memory.orValue(null) == null`), paths: inContainers(".resources.limits.memory"),
		},
		{
			name: "requests-lost", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "without requests pods may land on full nodes and be evicted first, and autoscalers can't compute their utilization",
			fix:     "keep the requests for CPU and memory",
			source:  kubernetesDocs + "concepts/workloads/pods/pod-qos/",
			when:    sameContainer(`['cpu', 'memory'].exists(r, ` + requests("o") + ` != null && ` + requests("n") + ` == null)`),
			paths:   append(inContainers(".resources.requests"), inContainers(".resources.limits")...),
		},
	}
}

// ofSettings returns the rules on environment variables, commands and DNS of containers.
func ofSettings() []catalogued {
	resolves := func(pod string) string {
		return strings.ReplaceAll(`(X.?dnsPolicy.orValue('ClusterFirst') == 'ClusterFirstWithHostNet' ||
X.?hostNetwork.orValue(false) != true && X.?dnsPolicy.orValue('ClusterFirst') == 'ClusterFirst')`, "X", pod)
	}
	missing := func(kind, ref string) string {
		const key = `e.valueFrom.REF.?key.orValue('')`
		return strings.ReplaceAll(`e.?valueFrom.?REF.hasValue() && new in [`+key+`, e.valueFrom.REF.?name.orValue('')] &&
e.valueFrom.REF.?optional.orValue(false) != true && `+listAt("objects.?"+kind)+`.exists(m,
m.metadata.name == e.valueFrom.REF.?name.orValue('') && m.metadata.?namespace == object.metadata.?namespace &&
!m.?data[?`+key+`].hasValue() && !m.?binaryData[?`+key+`].hasValue())`, "REF", ref)
	}
	const from = ".env[*].valueFrom"
	return []catalogued{
		{
			name: "secret-in-env", effect: v1alpha1.EffectWarn, kinds: templated(), on: addChangeCreate(),
			because: "a variable that is named like a secret has a plain value, and everyone who may read the object sees it",
			fix:     "put the value into an encrypted Secret, and refer to it by secretKeyRef",
			source:  kubernetesDocs + "concepts/configuration/secret/",
			when: `new != null && !(new in ['', 'true', 'false']) && !new.startsWith('/') && !new.contains('$(') && ` +
				newPod(containersOf("is")+`.exists(c, `+listAt("c.?env")+`.exists(e, e.?value.orValue('') == new &&
e.?name.orValue('').matches('(?i)(password|passwd|token|secret|api_?key|private_?key|secret_access_key)$')))`),
			paths: inContainers(".env[*].value"),
		},
		{
			name: "config-key-missing", effect: v1alpha1.EffectWarn, kinds: templated(), on: addChangeCreate(),
			because: "a container reads a key that its ConfigMap or Secret in the component does not have, and so does not start",
			fix:     "add the key, correct its name, or set optional",
			source:  kubernetesDocs + "tasks/configure-pod-container/configure-pod-configmap/",
			when: newPod(containersOf("is") + `.exists(c, ` + listAt("c.?env") + `.exists(e, ` +
				missing("ConfigMap", "configMapKeyRef") + ` || ` + missing("Secret", "secretKeyRef") + `))`),
			paths: slices.Concat(
				inContainers(from+".configMapKeyRef.key"), inContainers(from+".configMapKeyRef.name"),
				inContainers(from+".secretKeyRef.key"), inContainers(from+".secretKeyRef.name"),
			),
		},
		{
			name: "cluster-dns-lost", effect: v1alpha1.EffectWarn, kinds: templated(),
			because: "the pods no longer ask the DNS of the cluster, unless dnsConfig names it, and find no Service by its name",
			fix:     "keep dnsPolicy ClusterFirst, or ClusterFirstWithHostNet for pods in the node's network",
			source:  kubernetesDocs + "concepts/services-networking/dns-pod-service/#pod-s-dns-policy",
			when:    bothPods(resolves("was") + ` && !` + resolves("is")), paths: inPods(".dnsPolicy", ".hostNetwork"),
		},
		{
			name: "command-lost", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "the container starts the entrypoint of its image, instead of the command that git named",
			fix:     "check that the image starts the same program",
			source:  kubernetesDocs + "tasks/inject-data-application/define-command-argument-container/",
			when:    sameContainer(listAt("o.?command") + ` != [] && ` + listAt("n.?command") + ` == []`), paths: inContainers(".command"),
		},
	}
}
