package applier_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// A generator of objects that a real API server takes. Every choice depends on
// a seed and on where in the object it is made, so that an object can be drawn
// again with some choices changed: this is how git and people change objects.

type object = map[string]any

type list = []any

// dice make choices. Each layer changes some of the choices of those before it.
type dice struct {
	layers []layer
	sparse bool // most of what may be left out is left out
}

type layer struct {
	seed uint64
	rate float64 // share of the choices that it makes
}

func roll(seed uint64, label string) *rand.Rand {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, seed)
	_, _ = h.Write([]byte(label))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

func (d dice) at(label string) *rand.Rand {
	for _, l := range slices.Backward(d.layers[1:]) {
		if roll(l.seed, "layer "+label).Float64() < l.rate {
			return roll(l.seed, label)
		}
	}
	return roll(d.layers[0].seed, label)
}

// with returns dice that make some choices otherwise.
func (d dice) with(seed uint64, rate float64) dice {
	d.layers = append(slices.Clone(d.layers), layer{seed, rate})
	return d
}

func (d dice) takes(label string) bool {
	n := d.at(label + "?").IntN(6)
	if d.sparse {
		return n == 0
	}
	return n < 4
}

// node is one field: how it is drawn, and its schema where it is a custom
// resource's.
type node struct {
	draw   func(d dice, at string) any
	schema object
}

// val is one of some values.
func val(values ...any) node {
	return node{draw: func(d dice, at string) any {
		v := values[d.at(at).IntN(len(values))]
		if n, ok := v.(int); ok {
			return int64(n)
		}
		return v
	}}
}

// either is one of some nodes.
func either(nodes ...node) node {
	return node{draw: func(d dice, at string) any {
		i := d.at(at).IntN(len(nodes))
		return nodes[i].draw(d, fmt.Sprintf("%s|%d", at, i))
	}}
}

// obj is a struct or map of alternating names and nodes. A name that ends in !
// is always there.
func obj(pairs ...any) node {
	schema := object{}
	for i := 0; i < len(pairs); i += 2 {
		schema[strings.TrimSuffix(pairs[i].(string), "!")] = pairs[i+1].(node).schema
	}
	return node{
		schema: object{"type": "object", "properties": schema},
		draw: func(d dice, at string) any {
			out := object{}
			for i := 0; i < len(pairs); i += 2 {
				name, must := strings.CutSuffix(pairs[i].(string), "!")
				if must || d.takes(at+"."+name) {
					out[name] = pairs[i+1].(node).draw(d, at+"."+name)
				}
			}
			return out
		},
	}
}

// words is a map of strings.
func words(keys ...string) node {
	var pairs []any
	for _, k := range keys {
		pairs = append(pairs, k, val("1", "2", ""))
	}
	n := obj(pairs...)
	n.schema = object{"type": "object", "additionalProperties": object{"type": "string"}}
	return n
}

// item of a keyed list.
type item struct {
	key  object
	must bool
	node node
}

// keyed is a keyed list, in any order.
func keyed(items ...item) node {
	return node{draw: func(d dice, at string) any {
		out := list{}
		for i, it := range items {
			label := fmt.Sprintf("%s[%d]", at, i)
			if !it.must && !d.takes(label) {
				continue
			}
			o := it.node.draw(d, label).(object)
			maps.Copy(o, it.key)
			out = append(out, o)
		}
		r := d.at(at)
		if r.IntN(3) == 0 {
			r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		}
		return out
	}}
}

// sub is some of some values, in any order.
func sub(values ...any) node {
	return node{draw: func(d dice, at string) any {
		out := list{}
		for i, v := range values {
			if d.takes(fmt.Sprintf("%s[%d]", at, i)) {
				out = append(out, v)
			}
		}
		r := d.at(at)
		r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		return out
	}}
}

// seq is an atomic list of 1 to n like items.
func seq(n int, of node) node {
	return node{draw: func(d dice, at string) any {
		out := list{}
		for i := range 1 + d.at(at).IntN(n) {
			out = append(out, of.draw(d, fmt.Sprintf("%s[%d]", at, i)))
		}
		return out
	}}
}

// shape draws the objects of one kind.
type shape struct {
	apiVersion, kind, resource string
	cluster                    bool
	scale                      bool // it has the subresource
	body                       node // of what is beside metadata
}

func (s shape) object(d dice, namespace, name string) object {
	o := s.body.draw(d, "").(object)
	m := obj("labels", words("a", "b"), "annotations", words("x", "example.com/y")).draw(d, "metadata").(object)
	m["name"] = name
	if !s.cluster {
		m["namespace"] = namespace
	}
	o["apiVersion"], o["kind"], o["metadata"] = s.apiVersion, s.kind, m
	return o
}

func builtInShapes() []shape {
	spec := func(n node) node { return obj("spec!", n) }
	return []shape{
		{apiVersion: "apps/v1", kind: "Deployment", resource: "deployments", scale: true, body: spec(obj(
			"replicas", val(1, 2, 5), "selector!", selector(), "template!", template(),
			"minReadySeconds", val(0, 5), "paused", val(true, false), "revisionHistoryLimit", val(3, 10),
			"strategy", either(obj("type!", val("RollingUpdate"), "rollingUpdate", obj("maxSurge", val(1, "25%"), "maxUnavailable", val(1, "50%"))), obj("type!", val("Recreate"))),
		))},
		{apiVersion: "apps/v1", kind: "StatefulSet", resource: "statefulsets", scale: true, body: spec(obj(
			"replicas", val(1, 2, 5), "selector!", selector(), "template!", template(), "serviceName!", val("web"),
			"podManagementPolicy!", val("Parallel"), "volumeClaimTemplates!", val(list{object{
				"metadata": object{"name": "data"},
				"spec":     object{"accessModes": list{"ReadWriteOnce"}, "resources": object{"requests": object{"storage": "1024Mi"}}},
			}}),
			"updateStrategy", obj("type!", val("RollingUpdate"), "rollingUpdate", obj("partition", val(0, 1))),
			"persistentVolumeClaimRetentionPolicy", obj("whenDeleted", val("Retain", "Delete"), "whenScaled", val("Retain", "Delete")),
			"ordinals", obj("start!", val(0, 1)),
		))},
		{apiVersion: "apps/v1", kind: "DaemonSet", resource: "daemonsets", body: spec(obj(
			"selector!", selector(), "template!", template(), "minReadySeconds", val(0, 5),
			"updateStrategy", either(obj("type!", val("OnDelete")), obj("rollingUpdate!", obj("maxUnavailable", val(1, "10%")))),
		))},
		{apiVersion: "apps/v1", kind: "ReplicaSet", resource: "replicasets", scale: true, body: spec(obj(
			"replicas", val(0, 1, 2), "selector!", selector(), "template!", template(), "minReadySeconds", val(0, 5),
		))},
		{apiVersion: "v1", kind: "ReplicationController", resource: "replicationcontrollers", scale: true, body: spec(obj(
			"replicas", val(0, 1, 2), "selector", val(object{"app": "web"}), "template!", template(),
		))},
		{apiVersion: "v1", kind: "PodTemplate", resource: "podtemplates", body: obj("template!", template())},
		{apiVersion: "v1", kind: "Pod", resource: "pods", body: spec(obj(
			"containers!", keyed(item{object{"name": "web"}, true, obj("image!", val("web:v1", "web:v2"))}),
			"activeDeadlineSeconds", val(100, 50),
		))},
		{apiVersion: "batch/v1", kind: "Job", resource: "jobs", body: spec(obj(
			"parallelism", val(1, 2), "suspend", val(true, false), "backoffLimit!", val(3), "ttlSecondsAfterFinished", val(5, 10),
			"activeDeadlineSeconds", val(100, 50),
			"template!", obj("spec!", obj("restartPolicy!", val("Never"),
				"containers!", keyed(item{object{"name": "web"}, true, obj("image!", val("web:v1"))}))),
		))},
		{apiVersion: "batch/v1", kind: "CronJob", resource: "cronjobs", body: spec(obj(
			"schedule!", val("* * * * *", "0 0 * * *"), "suspend", val(true, false), "timeZone", val("UTC", "Europe/Berlin"),
			"concurrencyPolicy", val("Allow", "Forbid"), "successfulJobsHistoryLimit", val(0, 3), "startingDeadlineSeconds", val(30, 60),
			"jobTemplate!", obj("metadata", obj("labels", words("a")), "spec!", obj("backoffLimit", val(1, 6), "template!", podTemplate("Never"))),
		))},
		{apiVersion: "v1", kind: "Service", resource: "services", body: spec(obj(
			"type", val("ClusterIP", "NodePort", "LoadBalancer"), "selector", words("app", "tier"),
			"ports!", keyed(
				item{object{"port": int64(80)}, true, obj("name!", val("http", "web"), "protocol", val("TCP"), "targetPort", val(80, 8080, "http"), "appProtocol", val("http", "h2c"))},
				item{object{"port": int64(80), "protocol": "UDP"}, false, obj("name!", val("udp"), "targetPort", val(80, 8080))},
				item{object{"port": int64(443)}, false, obj("name!", val("https"), "targetPort", val(443, "tls"))},
			),
			"sessionAffinity", val("None", "ClientIP"), "externalIPs", sub("1.1.1.1", "2.2.2.2"), "publishNotReadyAddresses", val(true, false),
			"internalTrafficPolicy", val("Cluster", "Local"), "ipFamilyPolicy", val("SingleStack"),
		))},
		{apiVersion: "v1", kind: "ConfigMap", resource: "configmaps", body: obj(
			"data", words("a", "b.c", "d"), "binaryData", obj("bin", val("AAEC", "AAED")), "immutable", val(false),
		)},
		{apiVersion: "v1", kind: "Secret", resource: "secrets", body: obj(
			"data", obj("a", val("YQ==", "Yg=="), "b", val("YQ==", "")), "stringData", obj("c", val("plain", "text")), "type", val("Opaque"),
		)},
		{apiVersion: "v1", kind: "ServiceAccount", resource: "serviceaccounts", body: obj(
			"automountServiceAccountToken", val(true, false),
			"imagePullSecrets", keyed(item{object{"name": "one"}, false, obj()}, item{object{"name": "two"}, false, obj()}),
			"secrets", keyed(item{object{"name": "s"}, false, obj()}),
		)},
		{apiVersion: "v1", kind: "PersistentVolumeClaim", resource: "persistentvolumeclaims", body: spec(obj(
			"accessModes!", val(list{"ReadWriteOnce"}), "resources!", obj("requests!", obj("storage!", val("1Gi", "1024Mi"))),
			"volumeMode", val("Filesystem"), "storageClassName!", val("slow"),
		))},
		{apiVersion: "v1", kind: "PersistentVolume", resource: "persistentvolumes", cluster: true, body: spec(obj(
			"capacity!", obj("storage!", val("1Gi", "1024Mi", "2Gi")), "accessModes!", sub2("ReadWriteOnce", "ReadOnlyMany"),
			"hostPath!", obj("path!", val("/data")), "persistentVolumeReclaimPolicy", val("Retain", "Delete"),
			"storageClassName", val("slow", ""), "mountOptions", seq(2, val("ro", "hard")),
		))},
		{apiVersion: "v1", kind: "ResourceQuota", resource: "resourcequotas", body: spec(obj(
			"hard", obj("requests.cpu", val("1", "1000m", 2), "limits.memory", val("1Gi", "1024Mi"), "requests.example.com/gpu", val(1, "2")),
		))},
		{apiVersion: "v1", kind: "LimitRange", resource: "limitranges", body: spec(obj(
			"limits!", seq(1, obj("type!", val("Container"), "default", obj("cpu", val("1", "1000m"), "memory", val("1Gi")), "max", obj("cpu", val("2", 2, "3")))),
		))},
		{apiVersion: "v1", kind: "Endpoints", resource: "endpoints", body: obj(
			"subsets", seq(2, obj("addresses!", seq(2, obj("ip!", val("1.2.3.4", "1.2.3.5"))), "ports", seq(1, obj("port!", val(80, 81), "name", val("a"))))),
		)},
		{apiVersion: "discovery.k8s.io/v1", kind: "EndpointSlice", resource: "endpointslices", body: obj(
			"addressType!", val("IPv4"), "endpoints!", seq(2, obj("addresses!", seq(1, val("1.2.3.4", "1.2.3.5")), "conditions", obj("ready", val(true, false)))),
			"ports", seq(1, obj("name!", val("a"), "port", val(80, 81), "protocol", val("TCP", "UDP"))),
		)},
		{apiVersion: "rbac.authorization.k8s.io/v1", kind: "Role", resource: "roles", body: obj("rules", rbacRules())},
		{apiVersion: "rbac.authorization.k8s.io/v1", kind: "ClusterRole", resource: "clusterroles", cluster: true, body: obj(
			"rules", rbacRules(),
		)},
		{apiVersion: "rbac.authorization.k8s.io/v1", kind: "RoleBinding", resource: "rolebindings", body: obj(
			"roleRef!", val(object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}), "subjects", subjects(),
		)},
		{apiVersion: "rbac.authorization.k8s.io/v1", kind: "ClusterRoleBinding", resource: "clusterrolebindings", cluster: true, body: obj(
			"roleRef!", val(object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "none"}), "subjects", subjects(),
		)},
		{apiVersion: "networking.k8s.io/v1", kind: "NetworkPolicy", resource: "networkpolicies", body: spec(obj(
			"podSelector!", obj("matchLabels", words("app", "tier"), "matchExpressions", seq(1, val(object{"key": "k", "operator": "Exists"}))),
			"ingress", seq(2, obj("ports", seq(2, obj("port!", val(80, 81, "http"), "protocol", val("TCP", "UDP"))), "from", seq(1, obj("ipBlock!", obj("cidr!", val("10.0.0.0/8", "11.0.0.0/8")))))),
			"egress", seq(1, obj("ports", seq(1, obj("port!", val(53))))), "policyTypes", val(list{"Ingress"}, list{"Ingress", "Egress"}),
		))},
		{apiVersion: "networking.k8s.io/v1", kind: "Ingress", resource: "ingresses", body: spec(obj(
			"ingressClassName", val("a", "b"), "defaultBackend!", backend(), "tls", seq(2, obj("hosts", seq(2, val("a.example", "b.example")), "secretName", val("x"))),
			"rules", seq(2, obj("host", val("a.example", "b.example"), "http!", obj("paths!", seq(2, obj("path!", val("/", "/x"), "pathType!", val("Prefix", "Exact"), "backend!", backend()))))),
		))},
		{apiVersion: "networking.k8s.io/v1", kind: "IngressClass", resource: "ingressclasses", cluster: true, body: spec(obj(
			"controller!", val("example.com/x"), "parameters", obj("apiGroup!", val("example.com"), "kind!", val("K"), "name!", val("p", "q"), "scope", val("Cluster")),
		))},
		{apiVersion: "policy/v1", kind: "PodDisruptionBudget", resource: "poddisruptionbudgets", body: spec(either(
			obj("minAvailable!", val(1, "50%"), "selector!", obj("matchLabels", words("app", "tier")), "unhealthyPodEvictionPolicy", val("AlwaysAllow", "IfHealthyBudget")),
			obj("maxUnavailable!", val(1, "50%"), "selector!", obj("matchLabels", words("app", "tier"))),
		))},
		{apiVersion: "autoscaling/v2", kind: "HorizontalPodAutoscaler", resource: "horizontalpodautoscalers", body: spec(obj(
			"scaleTargetRef!", obj("apiVersion!", val("apps/v1"), "kind!", val("Deployment"), "name!", val("absent", "nothing")),
			"minReplicas", val(1, 2), "maxReplicas!", val(5, 9),
			"metrics", seq(1, obj("type!", val("Resource"), "resource!", obj("name!", val("cpu", "memory"), "target!", either(
				obj("type!", val("Utilization"), "averageUtilization!", val(50, 80)), obj("type!", val("AverageValue"), "averageValue!", val("500m", "0.5", "1")))))),
			"behavior", obj("scaleDown", obj("stabilizationWindowSeconds", val(0, 300),
				"policies", seq(2, obj("type!", val("Pods", "Percent"), "value!", val(1, 4), "periodSeconds!", val(60, 15))), "selectPolicy", val("Max", "Min")),
				"scaleUp", obj("stabilizationWindowSeconds", val(0, 60))),
		))},
		{apiVersion: "scheduling.k8s.io/v1", kind: "PriorityClass", resource: "priorityclasses", cluster: true, body: obj(
			"value!", val(7), "description", val("x", "y"), "preemptionPolicy!", val("Never"), "globalDefault", val(false),
		)},
		{apiVersion: "storage.k8s.io/v1", kind: "StorageClass", resource: "storageclasses", cluster: true, body: obj(
			"provisioner!", val("example.com/x"), "parameters!", val(object{"a": "b"}), "allowVolumeExpansion", val(true, false),
			"mountOptions!", val(list{"ro"}), "volumeBindingMode", val("Immediate"), "reclaimPolicy", val("Delete"),
		)},
		{apiVersion: "storage.k8s.io/v1", kind: "CSIDriver", resource: "csidrivers", cluster: true, body: spec(obj(
			"attachRequired!", val(false), "podInfoOnMount", val(true, false), "storageCapacity", val(true, false), "requiresRepublish", val(true, false),
			"tokenRequests", seq(1, obj("audience!", val("a", "b"), "expirationSeconds", val(600, 3600))),
		))},
		{apiVersion: "node.k8s.io/v1", kind: "RuntimeClass", resource: "runtimeclasses", cluster: true, body: obj(
			"handler!", val("h"), "overhead", obj("podFixed", obj("cpu", val("1", "1000m"), "memory", val("1Gi", "1024Mi"))),
			"scheduling", obj("nodeSelector", words("zone"), "tolerations", tolerations()),
		)},
		{apiVersion: "coordination.k8s.io/v1", kind: "Lease", resource: "leases", body: spec(obj(
			"holderIdentity!", val("a", "b"), "leaseDurationSeconds", val(10, 20), "renewTime", val("2026-01-01T00:00:00.000000Z", "2026-01-01T01:00:00.000000+01:00", "2026-01-01T00:00:01.500000Z"),
		))},
		{apiVersion: "admissionregistration.k8s.io/v1", kind: "ValidatingWebhookConfiguration", resource: "validatingwebhookconfigurations", cluster: true, body: webhooks()},
		{apiVersion: "admissionregistration.k8s.io/v1", kind: "MutatingWebhookConfiguration", resource: "mutatingwebhookconfigurations", cluster: true, body: webhooks("reinvocationPolicy", val("Never", "IfNeeded"))},
	}
}

// sub2 is the first value and perhaps the second.
func sub2(must, may any) node { return val(list{must}, list{must, may}) }

func selector() node { return val(object{"matchLabels": object{"app": "web"}}) }

func backend() node {
	return obj("service!", obj("name!", val("web", "api"), "port!", either(obj("number!", val(80, 81)), obj("name!", val("http")))))
}

func rbacRules() node {
	return seq(2, obj("apiGroups!", seq(1, val("", "apps")), "resources!", seq(2, val("pods", "nodes")), "verbs!", seq(2, val("get", "list")), "resourceNames", seq(1, val("x", "y"))))
}

func subjects() node {
	return seq(2, either(
		obj("kind!", val("ServiceAccount"), "name!", val("a", "b"), "namespace!", val("x", "y")),
		obj("kind!", val("User"), "name!", val("u"), "apiGroup", val("rbac.authorization.k8s.io"))))
}

func webhooks(more ...any) node {
	hook := append([]any{
		"clientConfig!", obj("url!", val("https://x.example/hook", "https://y.example/hook"), "caBundle", val("YQ==", "Yg==")),
		"rules!", seq(2, obj("apiGroups!", val(list{"unused.example.com"}), "apiVersions!", val(list{"v1"}), "resources!", seq(2, val("a", "b")),
			"operations!", seq(1, val("CREATE", "UPDATE")), "scope", val("*", "Namespaced"))),
		"sideEffects!", val("None", "NoneOnDryRun"), "admissionReviewVersions!", seq(1, val("v1")), "failurePolicy", val("Ignore", "Fail"),
		"timeoutSeconds", val(5, 10), "matchPolicy", val("Exact", "Equivalent"),
		"namespaceSelector", obj("matchLabels", words("a", "b")), "objectSelector", obj("matchLabels", words("a")),
		"matchConditions", keyed(item{object{"name": "one"}, false, obj("expression!", val("true", "false"))}, item{object{"name": "two"}, false, obj("expression!", val("true", "false"))}),
	}, more...)
	return obj("webhooks", keyed(item{object{"name": "a.example.com"}, false, obj(hook...)}, item{object{"name": "b.example.com"}, false, obj(hook...)}))
}

func tolerations() node {
	return seq(2, either(obj("key!", val("a", "b"), "operator!", val("Exists")),
		obj("key!", val("a", "b"), "value", val("1", "2"), "effect!", val("NoExecute"), "tolerationSeconds", val(30, 60))))
}

func template() node { return podTemplate("Always") }

func podTemplate(restart string) node {
	env := either(obj("value", val("1", "2", "")), obj("value", val("1", "2")),
		obj("valueFrom!", either(obj("fieldRef!", obj("fieldPath!", val("metadata.name", "spec.nodeName"))), obj("secretKeyRef!", obj("name!", val("s", "t"), "key!", val("k"), "optional", val(true, false))))))
	probe := obj("httpGet!", obj("path", val("/", "/healthz"), "port!", val(80, "http"), "scheme", val("HTTP", "HTTPS"), "httpHeaders", seq(1, obj("name!", val("a"), "value!", val("b", "c")))),
		"periodSeconds", val(5, 10), "initialDelaySeconds", val(0, 3), "timeoutSeconds", val(1, 2))
	container := obj(
		"image!", val("web:v1", "web:v2", "web@sha256:0123456789012345678901234567890123456789012345678901234567890123"), "imagePullPolicy", val("Always", "IfNotPresent"),
		"command", seq(2, val("a", "b")), "args", seq(3, val("-x", "-y")),
		"env", keyed(item{object{"name": "A"}, false, env}, item{object{"name": "B"}, false, env}, item{object{"name": "C"}, false, env}),
		"envFrom", seq(1, obj("configMapRef!", obj("name!", val("c", "d")))),
		"ports", keyed(
			item{object{"containerPort": int64(80)}, false, obj("name", val("http"), "protocol", val("TCP"))},
			item{object{"containerPort": int64(80), "protocol": "UDP"}, false, obj("name", val("udp"))},
			item{object{"containerPort": int64(81)}, false, obj("name", val("alt"))}),
		"resources", obj("limits", obj("cpu", val("1", "1000m", 1, 0.5, "500m"), "memory", val("1Gi", "1024Mi", "1G", 1073741824)), "requests", obj("cpu", val("100m", "0.1", 0.1), "memory", val("64Mi", "65536Ki"))),
		"readinessProbe", probe, "livenessProbe", probe,
		"lifecycle", obj("preStop", obj("exec!", obj("command!", seq(2, val("sleep", "5"))))),
		"volumeMounts", keyed(item{object{"mountPath": "/v"}, false, obj("name!", val("v"), "readOnly", val(true, false))}, item{object{"mountPath": "/w"}, false, obj("name!", val("v"), "subPath", val("x", "y"))}),
		"securityContext", obj("readOnlyRootFilesystem", val(true, false), "runAsUser", val(0, 1000), "capabilities", obj("drop", seq(1, val("ALL", "KILL")), "add", seq(1, val("CHOWN")))),
		"terminationMessagePath", val("/dev/termination-log", "/x"),
	)
	volume := either(
		obj("emptyDir!", obj()), obj("emptyDir!", obj("medium", val("Memory"), "sizeLimit", val("1Gi", "1024Mi"))),
		obj("configMap!", obj("name!", val("c", "d"), "defaultMode", val(420, 256), "items", seq(2, obj("key!", val("k", "l"), "path!", val("p", "q"))))),
		obj("secret!", obj("secretName!", val("s", "t"), "optional", val(true, false))),
		obj("projected!", obj("sources!", seq(2, obj("configMap!", obj("name!", val("c", "d")))))))
	pod := []any{
		"containers!", keyed(item{object{"name": "web"}, true, container}, item{object{"name": "side"}, false, container}),
		"initContainers", keyed(item{object{"name": "init"}, false, obj("image!", val("init:v1", "init:v2"), "env", keyed(item{object{"name": "A"}, false, env}))}),
		"volumes!", keyed(item{object{"name": "v"}, true, volume}, item{object{"name": "w"}, false, volume}),
		"tolerations", tolerations(), "nodeSelector", words("zone", "disk"), "serviceAccountName", val("a", "b"), "automountServiceAccountToken", val(true, false),
		"imagePullSecrets", keyed(item{object{"name": "one"}, false, obj()}, item{object{"name": "two"}, false, obj()}),
		"hostAliases", keyed(item{object{"ip": "1.1.1.1"}, false, obj("hostnames!", seq(2, val("a", "b")))}, item{object{"ip": "2.2.2.2"}, false, obj("hostnames!", seq(2, val("a", "b")))}),
		"topologySpreadConstraints", keyed(
			item{object{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}, false, obj("maxSkew!", val(1, 2), "labelSelector", obj("matchLabels", words("app")))},
			item{object{"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}, false, obj("maxSkew!", val(1, 2))}),
		"affinity", obj("podAntiAffinity", obj("preferredDuringSchedulingIgnoredDuringExecution", seq(2, obj("weight!", val(1, 100),
			"podAffinityTerm!", obj("topologyKey!", val("zone", "host"), "labelSelector", obj("matchLabels", words("app"))))))),
		"securityContext", obj("runAsUser", val(0, 1000), "fsGroup", val(0, 2000), "seccompProfile", obj("type!", val("RuntimeDefault", "Unconfined"))),
		"terminationGracePeriodSeconds", val(30, 60, 0), "dnsPolicy", val("ClusterFirst", "Default"), "priorityClassName", val("x", "y"),
		"dnsConfig", obj("searches", seq(2, val("a", "b")), "options", seq(1, obj("name!", val("ndots"), "value", val("2", "5")))),
	}
	if restart != "Always" {
		pod = append(pod, "restartPolicy!", val(restart))
	}
	return obj("metadata!", obj("labels!", obj("app!", val("web"), "tier", val("a", "b", "")), "annotations", words("x", "y")), "spec!", obj(pod...))
}
