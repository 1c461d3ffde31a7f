package catalogue

import (
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const (
	networkingGroup = "networking.k8s.io"
	gatewayGroup    = "gateway.networking.k8s.io"

	trafficPage       = "https://kubernetes.io/docs/reference/networking/virtual-ips/"
	networkPolicyPage = "https://kubernetes.io/docs/concepts/services-networking/network-policies/"
	ingressPage       = "https://kubernetes.io/docs/concepts/services-networking/ingress/"
	ingressNginxPage  = "https://kubernetes.github.io/ingress-nginx/user-guide/nginx-configuration/annotations/"
	gatewayPage       = "https://gateway-api.sigs.k8s.io/reference/api-types/gateway/"
	endpointsIssue    = "https://github.com/kubernetes/kubernetes/issues/103675" // CVE-2021-25740
)

// ofNetwork returns the rules on traffic to pods: Services, network policies, Ingresses, Gateways
// and certificates. Rules that hold precede rules that warn.
func ofNetwork() []catalogued {
	return slices.Concat(
		heldServices(), heldNetworkPolicies(), heldIngresses(), heldGateways(), heldNetworkDeletions(),
		warnedServices(), warnedServicePods(), warnedNetworkPolicies(), warnedIngresses(), warnedRoutes(), warnedCertificates(),
	)
}

// changesAndRemovals returns the events of a rule on a field's former value.
func changesAndRemovals() []v1alpha1.Event {
	return []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove}
}

// objectCreation returns the event of a rule on a new object as a whole.
func objectCreation() []v1alpha1.Event { return []v1alpha1.Event{v1alpha1.OnCreateObject} }

// annotations returns the paths of annotations.
func annotations(names ...string) []string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		out = append(out, `.metadata.annotations["`+name+`"]`)
	}
	return out
}

// warnOfDeletion returns a rule that warns of deletions. Its name contains the first kind.
func warnOfDeletion(group, because string, kinds ...string) catalogued {
	c := deletion(group, kinds[0], because)
	c.effect, c.kinds = v1alpha1.EffectWarn, kinds
	return c
}

func heldServices() []catalogued {
	services := []string{"Service"}
	return []catalogued{
		{
			name: "service-source-ranges", effect: v1alpha1.EffectHold, group: coreGroup, kinds: services, on: changesAndRemovals(),
			because: "the load balancer accepts clients from all addresses, or from half of them",
			fix:     "list the address ranges of the clients in loadBalancerSourceRanges",
			source:  "https://repost.aws/knowledge-center/eks-cidr-ip-address-loadbalancer",
			when: `old != null && old.size() > 0 && !old.exists(r, r.matches(r'/[01]\s*$')) && object.spec.?type.orValue('') == 'LoadBalancer' &&
(new == null || new.size() == 0 || new.exists(r, r.matches(r'/[01]\s*$')))`,
			paths: []string{".spec.loadBalancerSourceRanges"},
		},
		{
			name: "internal-load-balancer", effect: v1alpha1.EffectHold, group: coreGroup, kinds: services, on: changesAndRemovals(),
			because: "the load balancer is no longer internal: it may get a public address",
			fix:     "keep the annotation, or create a second Service for public clients",
			source:  servicesPage + "#internal-load-balancer",
			// Providers renamed their annotations: another annotation can keep the load balancer
			// internal.
			when: `old.lowerAscii() in ['true', 'internal', '0.0.0.0/0'] && object.spec.?type.orValue('') == 'LoadBalancer' &&
!['service.beta.kubernetes.io/aws-load-balancer-internal', 'service.beta.kubernetes.io/aws-load-balancer-scheme',
'networking.gke.io/load-balancer-type', 'cloud.google.com/load-balancer-type',
'service.beta.kubernetes.io/azure-load-balancer-internal'].exists(k,
object.metadata.?annotations[?k].orValue('').lowerAscii() in ['true', 'internal', '0.0.0.0/0'])`,
			paths: annotations(
				"service.beta.kubernetes.io/aws-load-balancer-internal", "service.beta.kubernetes.io/aws-load-balancer-scheme",
				"networking.gke.io/load-balancer-type", "cloud.google.com/load-balancer-type",
				"service.beta.kubernetes.io/azure-load-balancer-internal",
			),
		},
		{
			name: "external-ips", effect: v1alpha1.EffectHold, group: coreGroup, kinds: services, on: fieldsAndCreation(),
			because: "nodes send traffic for the new external IP and a port of the Service to its pods, even if another host owns the address",
			fix:     "use a Service of type LoadBalancer, or a Gateway, instead of externalIPs",
			source:  "https://github.com/kubernetes/kubernetes/issues/97076", // CVE-2020-8554
			when:    `new != null && new.exists(a, old == null || !(a in old))`,
			paths:   []string{".spec.externalIPs"},
		},
		{
			name: "external-name", effect: v1alpha1.EffectHold, group: coreGroup, kinds: services, on: fieldsAndCreation(),
			because: "the cluster's DNS sends clients of the Service to another host, which may be outside of the cluster",
			fix:     "check who owns the host name, or select pods of the namespace instead",
			source:  servicesPage + "#externalname",
			when:    `new != null && new != '' && new != old`,
			paths:   []string{".spec.externalName"},
		},
		{
			name: "endpoints-emptied", effect: v1alpha1.EffectHold, kinds: []string{"Endpoints", "EndpointSlice"}, on: changesAndRemovals(),
			because: "the Service loses all addresses of this object: if it has no others, connections fail at once",
			fix:     "add the new addresses before you remove the old ones",
			source:  "https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/",
			when:    `old != null && old.size() > 0 && (new == null || new.size() == 0)`,
			paths:   []string{".subsets", ".endpoints"},
		},
	}
}

// policyTypesOf returns a CEL expression: the policyTypes of a NetworkPolicy. If it names none, the
// API server fills in Ingress, and Egress if the policy has egress rules.
func policyTypesOf(policy string) string {
	return strings.ReplaceAll(`(P.spec.?policyTypes.orValue([]) != [] ? P.spec.policyTypes :
P.spec.?egress.orValue([]) != [] ? ['Ingress', 'Egress'] : ['Ingress'])`, "P", policy)
}

// newPolicyTypes is a CEL expression: the policyTypes after the change. Types that the API server
// filled in stay while git names none.
func newPolicyTypes() string {
	return `(live == null || object.spec.?policyTypes.orValue([]) != [] ? ` + policyTypesOf("object") + ` : ` + policyTypesOf("live") + `)`
}

// inForce returns a CEL condition on the ingress or egress rules of a network policy, called new and
// old: the given condition is true, and the policy has the type of these rules. Rules of another
// direction have no effect.
func inForce(condition string) string {
	return `[` + newPolicyTypes() + `].exists(types,
(new != null ? new == object.spec.?ingress.orValue(null) : old == live.?spec.ingress.orValue(null)) && 'Ingress' in types ||
(new != null ? new == object.spec.?egress.orValue(null) : old == live.?spec.egress.orValue(null)) && 'Egress' in types) && (` + condition + `)`
}

func heldNetworkPolicies() []catalogued {
	directions := []string{".spec.ingress", ".spec.egress"}
	return ofNetworkPolicies(v1alpha1.EffectHold, []catalogued{
		{
			name: "network-policy-type-lost", on: changesAndRemovals(),
			because: "the policy no longer restricts one direction: traffic that no other policy restricts is allowed",
			fix:     "keep the policy type, and add rules for the traffic that must pass",
			source:  networkPolicyPage,
			when:    `old != null && old.exists(o, !(o in ` + policyTypesOf("object") + `))`,
			paths:   []string{".spec.policyTypes"},
		},
		{
			name: "network-policy-selector", on: changesAndRemovals(),
			because: "the policy selects other pods: it no longer protects the old ones, and blocks traffic of the new ones that no policy allows",
			fix:     "create a second policy for the new pods, and delete this one when its pods are gone",
			source:  networkPolicyPage,
			when:    `old != null && old != new`,
			paths:   []string{".spec.podSelector"},
		},
		{
			name: "network-policy-opened", on: fieldsAndCreation(),
			because: "a new rule allows every peer on every port, or clients from at least half of all addresses",
			fix:     "name the peers and ports that the pods need",
			source:  networkPolicyPage,
			when: inForce(`new != null && new.exists(n, (old == null || !(n in old)) && (
n.?from.orValue(n.?to.orValue([])).size() == 0 && n.?ports.orValue([]).size() == 0 ||
n.?from.orValue([]).exists(p, p.?ipBlock.cidr.orValue('').matches(r'/[01]\s*$'))) &&
(old == null || !old.exists(o, o.?from.orValue(o.?to.orValue([])).size() == 0 && o.?ports.orValue([]).size() == 0)))`),
			paths: directions,
		},
		{
			name: "network-policy-denies-all", on: changesAndRemovals(),
			because: "the last rule of a direction goes: the pods lose all traffic in that direction that no other policy allows",
			fix:     "keep a rule for the traffic that must pass, DNS included",
			source:  "https://www.nine.ch/en/platform-news/posts/postmortem-dns-netpol-block",
			when:    inForce(`old != null && old != [] && (new == null || new == [])`),
			paths:   directions,
		},
	})
}

// ofNetworkPolicies sets the effect of rules, and the kind that they are about.
func ofNetworkPolicies(effect v1alpha1.Effect, list []catalogued) []catalogued {
	for i := range list {
		list[i].effect, list[i].group, list[i].kinds = effect, networkingGroup, []string{"NetworkPolicy"}
	}
	return list
}

func heldIngresses() []catalogued {
	ingresses := []string{"Ingress"}
	return []catalogued{
		{
			name: "ingress-tls-lost", effect: v1alpha1.EffectHold, group: networkingGroup, kinds: ingresses, on: changesAndRemovals(),
			because: "a host loses its TLS entry: clients get another certificate, or use plain HTTP",
			fix:     "keep a tls entry for every host that is served",
			source:  ingressPage + "#tls",
			when: `old != null && old.size() > 0 && (new == null || new.size() == 0 || old.exists(o, o.?hosts.orValue([]).exists(h,
object.spec.?rules.orValue([]).exists(r, r.?host.orValue('') == h) && !new.exists(n, n.?hosts.orValue([]).exists(x,
x == h || x.startsWith('*.') && h.endsWith(x.substring(1)))))))`,
			paths: []string{".spec.tls"},
		},
		{
			name: "ingress-snippet", effect: v1alpha1.EffectHold, group: networkingGroup, kinds: ingresses, on: fieldsAndCreation(),
			because: "the snippet becomes configuration of ingress-nginx, which by default can read the Secrets of every namespace",
			fix:     "use the annotation for that setting, and set allow-snippet-annotations to false in the controller",
			source:  "https://github.com/kubernetes/ingress-nginx/issues/7837", // CVE-2021-25742
			when:    `new != null && new != '' && new != old`,
			paths: annotations(
				"nginx.ingress.kubernetes.io/configuration-snippet", "nginx.ingress.kubernetes.io/server-snippet",
				"nginx.ingress.kubernetes.io/auth-snippet", "nginx.ingress.kubernetes.io/stream-snippet",
				"nginx.ingress.kubernetes.io/modsecurity-snippet",
			),
		},
		{
			name: "ingress-source-range-lost", effect: v1alpha1.EffectHold, group: networkingGroup, kinds: ingresses, on: changesAndRemovals(),
			because: "the Ingress accepts clients from all addresses, or from half of them, unless the controller itself restricts them",
			fix:     "keep the address ranges of the clients in the annotation",
			source:  ingressNginxPage + "#whitelist-source-range",
			// The controller has two names for one setting.
			when: `old != null && !old.matches(r'/[01]\b') && (new == null ?
!['nginx.ingress.kubernetes.io/whitelist-source-range', 'nginx.ingress.kubernetes.io/allowlist-source-range'].exists(k,
object.metadata.?annotations[?k].orValue('') != '') : new == '' || new.matches(r'/[01]\b'))`,
			paths: annotations(
				"nginx.ingress.kubernetes.io/whitelist-source-range", "nginx.ingress.kubernetes.io/allowlist-source-range",
				"alb.ingress.kubernetes.io/inbound-cidrs",
			),
		},
		{
			name: "ingress-auth-lost", effect: v1alpha1.EffectHold, group: networkingGroup, kinds: ingresses, on: changesAndRemovals(),
			because: "the Ingress no longer requires its clients to authenticate",
			fix:     "keep the authentication, or let the application authenticate its clients first",
			source:  ingressNginxPage + "#authentication",
			when: `old != null && !(old in ['off', 'none', '']) && (new == null ?
!['nginx.ingress.kubernetes.io/auth-url', 'nginx.ingress.kubernetes.io/auth-type', 'nginx.ingress.kubernetes.io/auth-tls-secret',
'alb.ingress.kubernetes.io/auth-type'].exists(k, !(object.metadata.?annotations[?k].orValue('') in ['', 'none'])) :
new in ['off', 'none', '', 'optional', 'optional_no_ca'])`,
			paths: annotations(
				"nginx.ingress.kubernetes.io/auth-url", "nginx.ingress.kubernetes.io/auth-type",
				"nginx.ingress.kubernetes.io/auth-secret", "nginx.ingress.kubernetes.io/auth-tls-secret",
				"nginx.ingress.kubernetes.io/auth-tls-verify-client", "alb.ingress.kubernetes.io/auth-type",
			),
		},
		{
			name: "ingress-class", effect: v1alpha1.EffectHold, group: networkingGroup, kinds: ingresses, on: changesAndRemovals(),
			because: "the Ingress gets another class: if another controller serves it, its hosts stop answering at the old address",
			fix:     "create a second Ingress of the new class, move the DNS records, and delete this one",
			source:  ingressPage + "#ingress-class",
			// The annotation is the older form of the field.
			when: `old != null && new != old && object.spec.?ingressClassName.orValue('') != old &&
object.metadata.?annotations[?'kubernetes.io/ingress.class'].orValue('') != old`,
			paths: append(annotations("kubernetes.io/ingress.class"), ".spec.ingressClassName"),
		},
		{
			name: "ingress-internet-facing", effect: v1alpha1.EffectHold, group: networkingGroup, kinds: ingresses, on: fieldsAndCreation(),
			because: "the load balancer of the Ingress gets a public address",
			fix:     "create a second Ingress for public clients, with the paths that they need",
			source:  "https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/guide/ingress/annotations/",
			when:    `new == 'internet-facing' && old != 'internet-facing'`,
			paths:   annotations("alb.ingress.kubernetes.io/scheme"),
		},
	}
}

func heldGateways() []catalogued {
	gateways := []string{"Gateway"}
	return []catalogued{
		{
			name: "gateway-tls-lost", effect: v1alpha1.EffectHold, group: gatewayGroup, kinds: gateways,
			because: "a listener no longer uses TLS: clients use plain text, or fail to connect",
			fix:     "keep the TLS listener, and add a second listener without TLS on another port",
			source:  "https://gateway-api.sigs.k8s.io/guides/user-guides/tls/",
			when: `live != null && live.spec.?listeners.orValue([]).exists(o, object.spec.?listeners.orValue([]).exists(n, n.name == o.name &&
(has(o.tls) && !has(n.tls) || o.protocol in ['HTTPS', 'TLS'] && n.protocol in ['HTTP', 'TCP'])))`,
			paths: []string{".spec.listeners"},
		},
		{
			name: "gateway-listener-removed", effect: v1alpha1.EffectHold, group: gatewayGroup, kinds: gateways, on: changesAndRemovals(),
			because: "a listener goes: its host and port are no longer served, and routes that name it detach",
			fix:     "add the new listener first, and remove the old one when no route names it",
			source:  gatewayPage,
			when:    `old != null && new == null`,
			paths:   []string{".spec.listeners[*].name"},
		},
		{
			name: "gateway-open-to-namespaces", effect: v1alpha1.EffectHold, group: gatewayGroup, kinds: gateways, on: fieldsAndCreation(),
			because: "routes of every namespace may attach to the listener, and may take over its hosts",
			fix:     "use from: Selector, and select namespaces by the label kubernetes.io/metadata.name",
			source:  "https://gateway-api.sigs.k8s.io/docs/concepts/security/",
			when:    `new == 'All' && old != 'All'`,
			paths:   []string{".spec.listeners[*].allowedRoutes.namespaces.from"},
		},
		{
			name: "gateway-class", effect: v1alpha1.EffectHold, group: gatewayGroup, kinds: gateways, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the Gateway gets another class: another controller may serve it, and its addresses may change",
			fix:     "create a second Gateway of the new class, move the DNS records, and delete this one",
			source:  gatewayPage,
			paths:   []string{".spec.gatewayClassName"},
		},
	}
}

func heldNetworkDeletions() []catalogued {
	policies := deletion("", "NetworkPolicy", "traffic that the policy forbade is allowed, or traffic that only it allowed stops").advise(
		"delete the pods that the policy selects first, or create its successor first", networkPolicyPage,
	)
	policies.kinds = []string{"NetworkPolicy", "GlobalNetworkPolicy", "CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy", "AdminNetworkPolicy"}
	gateways := deletion(gatewayGroup, "Gateway", "addresses and listeners of the Gateway, or of the Gateways of the class, may go: attached routes no longer get traffic").advise(
		"move the routes to another Gateway first", gatewayPage,
	)
	gateways.kinds = []string{"Gateway", "GatewayClass"}
	issuers := deletion("cert-manager.io", "Issuer", "certificates of the issuer are no longer renewed, and expire").advise(
		"move its certificates to another issuer first", "https://cert-manager.io/docs/concepts/issuer/",
	)
	issuers.kinds = []string{"Issuer", "ClusterIssuer"}
	loadBalancers := deletion(coreGroup, "Service", "the load balancer is deleted, and a new one may get another address").advise(
		"move the clients and DNS records to another address first", servicesPage+"#loadbalancer",
	)
	loadBalancers.name, loadBalancers.when = "delete-load-balancer", `old.spec.?type.orValue('') == 'LoadBalancer'`
	return []catalogued{
		policies, gateways, issuers, loadBalancers,
		deletion(networkingGroup, "IngressClass", "Ingresses that name the class may no longer be served").advise(
			"move its Ingresses to another class first", ingressPage+"#ingress-class",
		),
	}
}

func warnedServices() []catalogued {
	services := []string{"Service"}
	return []catalogued{
		{
			name: "service-client-ip-lost", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: services, on: changesAndRemovals(),
			because: "pods may no longer see the addresses of external clients: allow lists, rate limits and logs see node addresses instead",
			fix:     "keep externalTrafficPolicy Local, or read the client address from the PROXY protocol",
			source:  "https://kubernetes.io/docs/tutorials/services/source-ip/",
			when:    `old == 'Local' && new != 'Local' && object.spec.?type.orValue('') in ['LoadBalancer', 'NodePort']`,
			paths:   []string{".spec.externalTrafficPolicy"},
		},
		{
			name: "service-local-traffic", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: services,
			on:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "traffic that arrives at, or starts on, a node without a ready pod of the Service is dropped",
			fix:     "run a pod on every node that receives traffic, or set trafficDistribution instead",
			source:  trafficPage + "#traffic-policies",
			when:    `new == 'Local' && old != 'Local'`,
			paths:   []string{".spec.externalTrafficPolicy", ".spec.internalTrafficPolicy"},
		},
		{
			name: "session-affinity-lost", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: services, on: changesAndRemovals(),
			because: "new connections of one client are spread over all pods: sessions that only one pod keeps are lost",
			fix:     "store the sessions outside of the pods first",
			source:  trafficPage + "#session-affinity",
			when:    `old == 'ClientIP' && new != 'ClientIP'`,
			paths:   []string{".spec.sessionAffinity"},
		},
		{
			name: "service-port-removed", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: services,
			on:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnRemove},
			because: "clients that use the port fail at once",
			fix:     "keep the old port beside the new one until no client uses it",
			source:  servicesPage + "#multi-port-services",
			when: `live != null && live.?spec.ports.orValue([]).exists(o, !object.?spec.ports.orValue([]).exists(n,
n.port == o.port && n.?protocol.orValue('TCP') == o.?protocol.orValue('TCP')))`,
			paths: []string{".spec.ports[*].port"},
		},
		{
			name: "service-target-port", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: services, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the Service sends traffic to another port at once: connections to pods that don't listen there yet fail",
			fix:     "name the container port, and use that name as targetPort: it fits old and new pods",
			source:  servicesPage + "#field-spec-ports",
			when:    `old != null && new != null && new != old`,
			paths:   []string{".spec.ports[*].targetPort"},
		},
		{
			name: "publish-not-ready", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: services,
			because: "pods that are not ready get traffic from clients, or, without the field, can't find each other while they start",
			fix:     "use one headless Service for peers, and another Service for clients",
			source:  "https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/",
			when:    `(new == true) != (old == true)`,
			paths:   []string{".spec.publishNotReadyAddresses"},
		},
		{
			name: "service-ip-families", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: services, on: changesAndRemovals(),
			because: "if the Service has addresses of two IP families, it gives up one: clients that use that address fail",
			fix:     "keep both families until no client uses the address that goes",
			source:  "https://kubernetes.io/docs/concepts/services-networking/dual-stack/",
			when: `new == 'SingleStack' && old != 'SingleStack' && (live == null || live.spec.?ipFamilies.orValue([]).size() != 1) ||
live != null && live.spec.?ipFamilies.orValue([]).exists(f, !(f in object.spec.?ipFamilies.orValue(live.spec.ipFamilies)))`,
			paths: []string{".spec.ipFamilyPolicy", ".spec.ipFamilies"},
		},
		{
			name: "service-exposed", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: services, on: objectCreation(),
			because: "the Service opens a port to clients outside of the cluster",
			fix:     "use type ClusterIP behind an Ingress or a Gateway, or restrict loadBalancerSourceRanges",
			source:  servicesPage + "#publishing-services-service-types",
			when:    `object.?spec.type.orValue('') in ['LoadBalancer', 'NodePort']`,
			paths:   []string{""},
		},
		{
			name: "endpoints-elsewhere", effect: v1alpha1.EffectWarn, kinds: []string{"Endpoints", "EndpointSlice"}, on: fieldsAndCreation(),
			because: "the Service sends traffic to addresses written by hand: a load balancer or Ingress may expose pods that its clients should not reach",
			fix:     "select pods by labels instead of addresses",
			source:  endpointsIssue,
			when:    `new != null && old == null`,
			paths:   []string{".subsets[*].addresses[*].ip", ".endpoints[*].addresses[*]"},
		},
		warnOfDeletion(coreGroup, "the name and the address of the Service go: clients that use them fail", "Service").advise(
			"keep the Service until no client uses its name", servicesPage,
		),
	}
}

// templatesOf returns a CEL condition: any workload w of the component in the object's namespace
// satisfies the given condition.
func templatesOf(condition string) string {
	return `[objects.?Deployment, objects.?StatefulSet, objects.?DaemonSet, objects.?CloneSet].exists(l, l.orValue([]).exists(w,
w.metadata.?namespace.orValue('') == object.metadata.?namespace.orValue('') && ` + condition + `))`
}

// warnedServicePods returns rules that compare a Service with the pod templates of its component.
func warnedServicePods() []catalogued {
	const selected = `object.spec.selector.all(k, w.?spec.template.metadata.labels[?k].orValue('') == object.spec.selector[k])`
	return []catalogued{
		{
			name: "service-without-pods", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: []string{"Service"}, on: objectCreation(),
			because: "the selector matches no pod template of the component: unless other pods match, the Service has no addresses",
			fix:     "select labels that the pod template has",
			source:  "https://kubernetes.io/docs/tasks/debug/debug-application/debug-service/",
			when:    `object.?spec.selector.orValue({}) != {} && ` + templatesOf(`true`) + ` && !` + templatesOf(selected),
			paths:   []string{""},
		},
		{
			name: "service-target-port-missing", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: []string{"Service"}, on: fieldsAndCreation(),
			because: "no container in the pod templates that the Service selects has a port with this name: these pods get no traffic",
			fix:     "set targetPort to the name or the number of a container port",
			source:  "https://kubernetes.io/docs/tasks/debug/debug-application/debug-service/",
			when: `type(new) == string && object.spec.?selector.orValue({}) != {} && ` + templatesOf(selected) + ` && !` + templatesOf(selected+
				` && (w.spec.template.spec.?containers.orValue([]) + w.spec.template.spec.?initContainers.orValue([])).exists(c,
c.?ports.orValue([]).exists(p, p.?name.orValue('') == new))`),
			paths: []string{".spec.ports[*].targetPort"},
		},
	}
}

func warnedNetworkPolicies() []catalogued {
	directions := []string{".spec.ingress", ".spec.egress"}
	return ofNetworkPolicies(v1alpha1.EffectWarn, []catalogued{
		{
			name: "network-policy-peer-split", on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "one peer with two selectors becomes two peers: traffic that matches only one of the selectors is allowed",
			fix:     "write namespaceSelector and podSelector in one item",
			source:  networkPolicyPage + "#behavior-of-to-and-from-selectors",
			when: inForce(`old != null && new != null && old.exists(o, o.?from.orValue(o.?to.orValue([])).exists(p, has(p.namespaceSelector) && has(p.podSelector) &&
new.exists(n, [n.?from.orValue(n.?to.orValue([]))].exists(peers, !(p in peers) && peers.exists(q, !has(q.namespaceSelector) && q.?podSelector == p.?podSelector) &&
peers.exists(q, !has(q.podSelector) && q.?namespaceSelector == p.?namespaceSelector)))))`),
			paths: directions,
		},
		{
			name: "network-policy-no-dns", on: fieldsAndCreation(),
			because: "the policy restricts outgoing traffic without allowing port 53: unless another policy allows it, the pods can't resolve names",
			fix:     "allow UDP and TCP port 53 to the pods of the cluster's DNS",
			source:  networkPolicyPage + "#default-deny-all-egress-traffic",
			// The items of the types are texts. Egress rules give a new policy that names no types the type
			// Egress.
			when: `'Egress' in ` + policyTypesOf("object") + ` &&
([new, old].exists(l, l != null && l.exists(r, type(r) != string)) ? live == null && !has(object.spec.policyTypes) : old == null || !('Egress' in old)) &&
!object.spec.?egress.orValue([]).exists(e,
e.?ports.orValue([]).size() == 0 || e.ports.exists(p, !has(p.port) || string(p.port) in ['53', 'dns', 'dns-tcp'] ||
type(p.port) == int && p.port < 53 && p.?endPort.orValue(0) >= 53))`,
			paths: []string{".spec.policyTypes", ".spec.egress"},
		},
		{
			name: "network-policy-widened", on: fieldsAndCreation(),
			because: "a new rule allows every peer, the pods of every namespace, or at least half of all addresses",
			fix:     "name the peers by namespace and pod labels",
			source:  networkPolicyPage,
			when: inForce(`new != null && new.exists(n, (old == null || !(n in old)) && [n.?from.orValue(n.?to.orValue([]))].exists(peers, peers.size() == 0 ||
peers.exists(p, p.?ipBlock.cidr.orValue('').matches(r'/[01]\s*$') ||
has(p.namespaceSelector) && p.namespaceSelector == {} && !has(p.podSelector))) &&
(old == null || !old.exists(o, o.?from.orValue(o.?to.orValue([])).size() == 0 &&
(o.?ports.orValue([]).size() == 0 || o.?ports.orValue([]) == n.?ports.orValue([])))))`),
			paths: directions,
		},
		{
			name: "network-policy-port-closed", on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the policy no longer allows a port: connections that no other policy allows may time out",
			fix:     "keep the old port beside the new one until no client uses it",
			source:  networkPolicyPage,
			// The API server adds the protocol: TCP.
			when: inForce(`old != null && new != null && old.exists(o, o.?ports.orValue([]).exists(p,
!new.exists(n, n.?ports.orValue([]).size() == 0 || n.ports.exists(q, q.?port == p.?port && q.?endPort == p.?endPort &&
q.?protocol.orValue('TCP') == p.?protocol.orValue('TCP')))))`),
			paths: directions,
		},
		{
			name: "network-policy-isolates-namespace", on: objectCreation(),
			because: "the policy selects every pod of its namespace, and blocks all their traffic that no policy allows",
			fix:     "apply the policies that allow traffic first, DNS included",
			source:  "https://www.nine.ch/en/platform-news/posts/postmortem-dns-netpol-block",
			when: `object.?spec.podSelector.orValue({}) in [{}, {'matchLabels': {}}] && ` + policyTypesOf("object") + `.exists(t,
!(t == 'Egress' ? object.spec.?egress.orValue([]) : object.spec.?ingress.orValue([])).exists(r, r == {}))`,
			paths: []string{""},
		},
	})
}

func warnedIngresses() []catalogued {
	ingresses := []string{"Ingress"}
	return []catalogued{
		{
			name: "ingress-route-removed", effect: v1alpha1.EffectWarn, group: networkingGroup, kinds: ingresses, on: changesAndRemovals(),
			because: "the Ingress no longer serves a host or path: unless another rule matches, requests for it fail, mostly with 404",
			fix:     "keep the old host and path until no client uses them",
			source:  ingressPage + "#ingress-rules",
			when: `old != null && old.exists(o, o.?http.paths.orValue([]).exists(p, new == null || !new.exists(n,
n.?host.orValue('') == o.?host.orValue('') && n.?http.paths.orValue([]).exists(q, q.?path.orValue('/') == p.?path.orValue('/')))))`,
			paths: []string{".spec.rules"},
		},
		{
			name: "ingress-path-type", effect: v1alpha1.EffectWarn, group: networkingGroup, kinds: ingresses, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "a path no longer stands for the paths below it: requests for those fail, mostly with 404",
			fix:     "keep Prefix, or list every path",
			source:  ingressPage + "#path-types",
			when: `old != null && new != null && old.exists(o, new.exists(n, n.?host.orValue('') == o.?host.orValue('') &&
o.?http.paths.orValue([]).exists(p, p.?pathType.orValue('') != 'Exact' && n.?http.paths.orValue([]).exists(q,
q.?path.orValue('/') == p.?path.orValue('/') && q.?pathType.orValue('') == 'Exact' && !n.http.paths.exists(r,
r.?path.orValue('/') == p.?path.orValue('/') && r.?pathType.orValue('') != 'Exact')))))`,
			paths: []string{".spec.rules"},
		},
		{
			name: "ingress-catch-all", effect: v1alpha1.EffectWarn, group: networkingGroup, kinds: ingresses, on: fieldsAndCreation(),
			because: "the Ingress serves hosts that it does not name, and gets their requests unless another Ingress names them",
			fix:     "name every host",
			source:  ingressPage + "#hostname-wildcards",
			when: `new != null && new.exists(n, [n.?host.orValue('')].exists(h, (h == '' || h.startsWith('*')) &&
(old == null || !old.exists(o, o.?host.orValue('') == h))))`,
			paths: []string{".spec.rules"},
		},
		{
			name: "ingress-backend", effect: v1alpha1.EffectWarn, group: networkingGroup, kinds: ingresses, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "requests for a host and path go to another Service at once",
			fix:     "check that the pods of the new Service are ready",
			source:  ingressPage + "#ingress-rules",
			when: `old != null && new != null && old.exists(o, new.exists(n, n.?host.orValue('') == o.?host.orValue('') &&
o.?http.paths.orValue([]).exists(p, n.?http.paths.orValue([]).exists(q, q.?path.orValue('/') == p.?path.orValue('/') &&
q.?backend.service.name.orValue('') != p.?backend.service.name.orValue('')))))`,
			paths: []string{".spec.rules"},
		},
		{
			name: "ingress-without-tls", effect: v1alpha1.EffectWarn, group: networkingGroup, kinds: ingresses, on: objectCreation(),
			because: "the Ingress has no TLS entry: clients may send their requests in plain text, unless the controller adds TLS",
			fix:     "add a tls entry with a certificate for every host",
			source:  ingressPage + "#tls",
			when:    `object.?spec.tls.orValue([]).size() == 0`,
			paths:   []string{""},
		},
		{
			name: "ingress-plain-http", effect: v1alpha1.EffectWarn, group: networkingGroup, kinds: ingresses, on: fieldsAndCreation(),
			because: "requests without TLS may be served in plain text, because the annotation turns off a redirect to HTTPS",
			fix:     "keep the redirect, and let health checks use HTTPS",
			source:  ingressNginxPage + "#server-side-https-enforcement-through-redirect",
			when:    `new == 'false' && old != 'false'`,
			paths:   annotations("nginx.ingress.kubernetes.io/ssl-redirect"),
		},
		{
			name: "ingress-forced-https-lost", effect: v1alpha1.EffectWarn, group: networkingGroup, kinds: ingresses, on: changesAndRemovals(),
			because: "without the forced redirect, an Ingress without a TLS section serves requests in plain text",
			fix:     "keep the redirect where a proxy before the Ingress ends TLS",
			source:  ingressNginxPage + "#server-side-https-enforcement-through-redirect",
			// The texts that ingress-nginx reads as true: strconv.ParseBool.
			when:  `old in ['true', 'True', 'TRUE', 't', 'T', '1'] && !(new in ['true', 'True', 'TRUE', 't', 'T', '1'])`,
			paths: annotations("nginx.ingress.kubernetes.io/force-ssl-redirect"),
		},
		{
			name: "default-ingress-class", effect: v1alpha1.EffectWarn, group: networkingGroup, kinds: []string{"IngressClass"}, on: fieldsAndCreation(),
			because: "new Ingresses without a class get another default class, or none: another controller serves them, or none",
			fix:     "let exactly one class of the cluster be the default, and name a class in every Ingress",
			source:  ingressPage + "#default-ingress-class",
			when:    `(new == 'true') != (old == 'true')`,
			paths:   annotations("ingressclass.kubernetes.io/is-default-class"),
		},
		warnOfDeletion(networkingGroup, "the hosts and paths of the Ingress are no longer served, unless another Ingress serves them", "Ingress").advise(
			"move the hosts to another Ingress or a Gateway first", ingressPage,
		),
	}
}

func warnedRoutes() []catalogued {
	routes := []string{"HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"}
	return []catalogued{
		{
			name: "route-detached", effect: v1alpha1.EffectWarn, group: gatewayGroup, kinds: routes, on: changesAndRemovals(),
			because: "the route loses a host name or a parent: requests that came that way fail; without host names it serves every host",
			fix:     "keep the old host name and parent until no client uses them",
			source:  "https://gateway-api.sigs.k8s.io/reference/api-types/httproute/",
			when:    `old != null && new == null`,
			paths:   []string{".spec.hostnames[*]", ".spec.parentRefs[*].name"},
		},
		{
			name: "reference-grant", effect: v1alpha1.EffectWarn, group: gatewayGroup, kinds: []string{"ReferenceGrant"}, on: fieldsAndCreation(),
			because: "objects of another namespace may refer to more Services, Secrets or other objects of this namespace",
			fix:     "name single objects in the to list of the grant",
			source:  "https://gateway-api.sigs.k8s.io/reference/api-types/referencegrant/",
			when:    `new != null && new.exists(n, old == null || !(n in old))`,
			paths:   []string{".spec.from", ".spec.to"},
		},
		warnOfDeletion(gatewayGroup, "requests that the route serves get 404 or fail, unless another route serves them", routes...).advise(
			"add the route that replaces it first", "https://gateway-api.sigs.k8s.io/reference/api-types/httproute/",
		),
	}
}

func warnedCertificates() []catalogued {
	const certificatePage = "https://cert-manager.io/docs/usage/certificate/"
	certificates := []string{"Certificate"}
	return []catalogued{
		{
			name: "certificate-host-removed", effect: v1alpha1.EffectWarn, group: "cert-manager.io", kinds: certificates, on: changesAndRemovals(),
			because: "the next certificate does not contain a name: TLS clients of that name fail, unless another entry covers it",
			fix:     "keep the name until no client uses it",
			source:  certificatePage,
			when:    `old != null && new == null`,
			paths:   []string{".spec.dnsNames[*]", ".spec.commonName"},
		},
		{
			name: "certificate-secret", effect: v1alpha1.EffectWarn, group: "cert-manager.io", kinds: certificates, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the old Secret is no longer renewed: pods and Ingresses that still use it will serve an expired certificate",
			fix:     "add a second Certificate for the new Secret, move its users, and delete this Certificate",
			source:  certificatePage,
			paths:   []string{".spec.secretName"},
		},
		{
			name: "certificate-issuer", effect: v1alpha1.EffectWarn, group: "cert-manager.io", kinds: certificates, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "another issuer signs the certificate: clients that trust only the old authority may fail",
			fix:     "let the clients trust both authorities first",
			source:  certificatePage,
			paths:   []string{".spec.issuerRef.name", ".spec.issuerRef.kind"},
		},
	}
}
