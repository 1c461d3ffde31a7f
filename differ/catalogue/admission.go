package catalogue

import (
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const (
	admissionGroup   = "admissionregistration.k8s.io"
	webhookReference = "https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/"
	webhookPractices = "https://kubernetes.io/docs/concepts/cluster-administration/admission-webhooks-good-practices/"
	policyReference  = "https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/"
)

func kindsOfWebhooks() []string {
	return []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"}
}

// ofAdmission returns the rules on admission: webhooks, policies, and the Services that the API
// server calls.
func ofAdmission() []catalogued {
	return holdsBeforeWarnings(ofWebhooks(), ofValidatingWebhooks(), ofBackends(), ofPolicies(), ofPolicyMatches())
}

// sameWebhook returns a CEL condition on a webhook that stays: n in git, and o in the cluster.
func sameWebhook(condition string) string {
	return `live != null && object.?webhooks.orValue([]).exists(n, live.?webhooks.orValue([]).exists(o, o.name == n.name && ` + condition + `))`
}

// ofWebhooks returns rules on both kinds of webhooks. Further rules on both kinds are in ofTheAPI.
func ofWebhooks() []catalogued {
	created := []v1alpha1.Event{v1alpha1.OnCreateObject}
	const failsClosed = `object.?webhooks.orValue([]).exists(w, w.?failurePolicy.orValue('Fail') == 'Fail' && `
	list := []catalogued{
		{
			name: "webhook-url", effect: v1alpha1.EffectHold, on: fieldsAndCreation(),
			because: "the API server sends every object that the webhook matches to this address, which may be outside of the cluster",
			fix:     "name a Service of the cluster in clientConfig.service",
			source:  webhookReference + "#url",
			// [c]luster avoids the word cluster: a condition with that word counts as reading
			// labels, see [ReadsCluster].
			when:  `new != null && new != old && !new.matches('^https://([a-z0-9-]+[.][a-z0-9-]+[.]svc([.][c]luster[.]local)?|localhost|127[.]0[.]0[.]1)(:[0-9]+)?(/|$)')`,
			paths: []string{".webhooks[*].clientConfig.url"},
		},
		{
			name: "webhook-on-system-pods", effect: v1alpha1.EffectWarn, on: created,
			because: "while the webhook is down, no pod can be created: not in kube-system, and not for the webhook itself",
			fix:     "leave out kube-system and the webhook's own namespace in namespaceSelector, or set failurePolicy to Ignore",
			source:  "https://blog.jetstack.io/blog/gke-webhook-outage/",
			when: failsClosed + `w.?namespaceSelector.orValue({}) == {} && w.?objectSelector.orValue({}) == {} && w.?matchConditions.orValue([]) == [] &&
w.?rules.orValue([]).exists(r, r.?apiGroups.orValue([]).exists(g, g in ['', '*']) && r.?resources.orValue([]).exists(k, k in ['pods', '*', '*/*']) &&
r.?operations.orValue([]).exists(p, p in ['CREATE', '*'])))`,
			paths: []string{""},
		},
		{
			name: "webhook-on-heartbeats", effect: v1alpha1.EffectWarn, on: created,
			because: "while the webhook is down, node heartbeats, leader elections or access checks fail: healthy nodes and leaders may count as dead",
			fix:     "leave out leases, nodes and access reviews, or set failurePolicy to Ignore",
			source:  webhookPractices,
			// A namespaceSelector does not exclude cluster-scoped objects.
			when: failsClosed + `w.?objectSelector.orValue({}) == {} && w.?matchConditions.orValue([]) == [] && w.?rules.orValue([]).exists(r,
r.?operations.orValue([]).exists(p, p in ['CREATE', 'UPDATE', '*']) && r.?resources.orValue([]).exists(k,
k == 'leases' && w.?namespaceSelector.orValue({}) == {} || k in ['nodes', 'nodes/status', 'tokenreviews', 'subjectaccessreviews'] ||
k in ['*', '*/*'] && '*' in r.?apiGroups.orValue([]) && r.?scope.orValue('*') != 'Namespaced')))`,
			paths: []string{""},
		},
		{
			name: "webhook-timeout", effect: v1alpha1.EffectWarn, on: fieldsAndCreation(),
			because: "each request that the webhook matches may wait longer than ten seconds, and requests pile up in the API server",
			fix:     "set timeoutSeconds to 10 or less",
			source:  webhookReference + "#timeouts",
			when:    `new != null && new > 10 && (old == null || new > old)`,
			paths:   []string{".webhooks[*].timeoutSeconds"},
		},
		{
			name: "webhook-conditions-lost", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnRemove},
			because: "the webhook gets requests that the removed match condition leaves out today",
			fix:     "check that the webhook can answer these requests, and that its own pods do not depend on it",
			source:  webhookReference + "#matching-requests-matchconditions",
			when:    sameWebhook(`o.?matchConditions.orValue([]).exists(c, !n.?matchConditions.orValue([]).exists(d, d.name == c.name))`),
			paths:   []string{".webhooks[*].matchConditions"},
		},
		{
			name: "webhook-match-policy", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "the webhook no longer sees objects that are written through another version of their API",
			fix:     "leave matchPolicy at Equivalent",
			source:  webhookReference + "#matching-requests-matchpolicy",
			when:    `new == 'Exact' && ` + sameWebhook(`n.?matchPolicy.orValue('') == 'Exact' && o.?matchPolicy.orValue('Equivalent') != 'Exact'`),
			paths:   []string{".webhooks[*].matchPolicy"},
		},
		{
			name: "webhook-removed", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnRemove},
			because: "the removed webhook no longer checks or changes objects, from the next request on",
			fix:     "check that another webhook or policy does it, or that nothing relies on it",
			source:  webhookReference,
			paths:   []string{".webhooks[*].name"},
		},
		{
			name: "ca-injection-lost", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnRemove},
			because: "cert-manager no longer updates caBundle: the API server's calls fail when the CA certificate changes or expires",
			fix:     "keep the annotation, or write the certificate into caBundle",
			source:  "https://cert-manager.io/docs/concepts/ca-injector/",
			when: `!object.metadata.?annotations.orValue({}).exists(k, k.startsWith('cert-manager.io/inject-')) &&
!object.?webhooks.orValue([]).exists(w, has(w.clientConfig.caBundle))`,
			paths: []string{`.metadata.annotations["cert-manager.io/inject-ca-from"]`, `.metadata.annotations["cert-manager.io/inject-ca-from-secret"]`},
		},
		{
			name: "webhook-deleted", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnDeleteObject},
			because: "the webhooks of this object no longer check or change objects, from the next request on",
			fix:     "check that another webhook or policy does it, or that nothing relies on it",
			source:  webhookReference,
			// The webhooks remain if another configuration has them.
			when: `!(objects.?ValidatingWebhookConfiguration.orValue([]) + objects.?MutatingWebhookConfiguration.orValue([])).exists(c,
c.kind == old.kind && c.?webhooks.orValue([]).exists(n, old.?webhooks.orValue([]).exists(o, o.name == n.name)))`,
			paths: []string{""},
		},
	}
	for i := range list {
		list[i].group, list[i].kinds = admissionGroup, kindsOfWebhooks()
	}
	return list
}

// ofValidatingWebhooks returns the rules on requests that a validating webhook may no longer
// refuse.
func ofValidatingWebhooks() []catalogued {
	list := []catalogued{
		{
			name:    "webhook-fails-open",
			because: "objects that the webhook would refuse are let in while it is down",
			fix:     "keep failurePolicy at Fail, and run the webhook with several replicas",
			source:  webhookPractices,
			when:    `new == 'Ignore' && old != 'Ignore' && ` + sameWebhook(`n.?failurePolicy.orValue('') == 'Ignore' && o.?failurePolicy.orValue('Fail') == 'Fail'`),
			paths:   []string{".webhooks[*].failurePolicy"},
		},
		{
			name:    "webhook-rules-lost",
			because: "a rule of the webhook is removed or changed: what the webhook refuses by that rule may be let in",
			fix:     "check that the remaining rules, or another webhook or policy, cover the same requests",
			source:  webhookReference + "#matching-requests-rules",
			when:    `old != null && new != null && ` + uncovered("old", "new"), paths: []string{".webhooks[*].rules"},
		},
		{
			name:    "webhook-selector-gained",
			because: "the webhook no longer checks all namespaces or objects: what it refuses in the others is let in",
			fix:     "select by a label that the users of these namespaces can't change",
			source:  webhookReference + "#matching-requests-namespaceselector",
			when: `new != null && new != {} && (old == null || old == {}) && ` + sameWebhook(`(
n.?namespaceSelector.orValue({}) == new && o.?namespaceSelector.orValue({}) == {} || n.?objectSelector.orValue({}) == new && o.?objectSelector.orValue({}) == {})`),
			paths: []string{".webhooks[*].namespaceSelector", ".webhooks[*].objectSelector"},
		},
	}
	for i := range list {
		list[i].group, list[i].kinds, list[i].effect = admissionGroup, []string{"ValidatingWebhookConfiguration"}, v1alpha1.EffectWarn
	}
	return list
}

// backendsOf returns a CEL list: references to the Services that the API server calls for a
// webhook, an aggregated API or a conversion. A reference is empty without a Service.
func backendsOf(object string) string {
	return strings.ReplaceAll(`(X.kind == 'APIService' ? [X.spec.?service.orValue({})] :
X.kind == 'CustomResourceDefinition' ? [X.spec.?conversion.?webhook.?clientConfig.?service.orValue({})] :
X.?webhooks.orValue([]).map(w, w.?clientConfig.?service.orValue({})))`, "X", object)
}

// ofBackends returns the rules on the Services that the API server calls.
func ofBackends() []catalogued {
	const services = `objects.?Service.orValue([])`
	kinds := append(kindsOfWebhooks(), "APIService", "CustomResourceDefinition")
	paths := func(fields ...string) []string {
		var out []string
		for _, service := range []string{".webhooks[*].clientConfig.service", ".spec.service", ".spec.conversion.webhook.clientConfig.service"} {
			for _, field := range fields {
				out = append(out, service+field)
			}
		}
		return out
	}
	return []catalogued{
		{
			name: "api-backend-deleted", effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnDeleteObject},
			group: coreGroup, kinds: []string{"Service"},
			because: "the API server still calls the Service for a webhook, a conversion or an aggregated API: these calls fail",
			fix:     "delete the webhook configuration, APIService or conversion first",
			source:  webhookReference + "#service-reference",
			when: `(objects.?ValidatingWebhookConfiguration.orValue([]) + objects.?MutatingWebhookConfiguration.orValue([]) +
objects.?APIService.orValue([]) + objects.?CustomResourceDefinition.orValue([])).exists(x, ` + backendsOf("x") + `.exists(s,
s.?name.orValue('') == old.metadata.name && s.?namespace.orValue('') == old.metadata.?namespace.orValue('')))`,
			paths: []string{""},
		},
		{
			name: "api-backend-missing", effect: v1alpha1.EffectWarn, kinds: kinds, on: fieldsAndCreation(),
			because: "the component has Services in that namespace, but none with this name: without the Service, the API server's calls fail",
			fix:     "correct the name of the Service, or add the Service",
			source:  webhookReference + "#service-reference",
			when: backendsOf("object") + `.exists(s, has(s.name) && ` + services + `.exists(v, v.metadata.?namespace.orValue('') == s.?namespace.orValue('')) &&
!` + services + `.exists(v, v.metadata.name == s.name && v.metadata.?namespace.orValue('') == s.?namespace.orValue('')))`,
			paths: paths(".name", ".namespace"),
		},
		{
			name: "api-backend-port", effect: v1alpha1.EffectWarn, kinds: kinds, on: fieldsAndCreation(),
			because: "the component's Service does not have that port: the API server's calls fail",
			fix:     "name a port that the Service has; the default is 443",
			source:  webhookReference + "#service-reference",
			when: backendsOf("object") + `.exists(s, has(s.name) && ` + services + `.exists(v, v.metadata.name == s.name &&
v.metadata.?namespace.orValue('') == s.?namespace.orValue('') && !v.spec.?ports.orValue([]).exists(p, p.port == s.?port.orValue(443))))`,
			paths: paths(".name", ".namespace", ".port"),
		},
		{
			name: "api-backend-changed", effect: v1alpha1.EffectWarn, kinds: kinds, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the API server calls another Service at once: calls fail if it is not ready, or caBundle does not trust its certificate",
			fix:     "start the other Service first, with a certificate that caBundle trusts",
			source:  webhookReference + "#service-reference",
			paths:   paths(".name", ".namespace"),
		},
	}
}

// ofPolicies returns the rules on admission policies, which the API server evaluates itself.
func ofPolicies() []catalogued {
	const (
		validating, binding = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
		mutating            = "MutatingAdmissionPolicy"
	)
	list := []catalogued{
		{
			name: "policy-not-denied", effect: v1alpha1.EffectHold, kinds: []string{binding},
			because: "objects that the policy refuses today are let in, with a warning or a line in the audit log at most",
			fix:     "keep Deny, and let exceptions pass by a match condition",
			source:  policyReference,
			when: `live != null && 'Deny' in live.spec.?validationActions.orValue([]) &&
!('Deny' in object.spec.?validationActions.orValue([]))`,
			paths: []string{".spec.validationActions"},
		},
		{
			name: "policy-validations-lost", effect: v1alpha1.EffectHold, kinds: []string{validating}, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			because: "the policy has fewer validations: objects that only a removed one refuses are let in",
			fix:     "check that another policy refuses them",
			source:  policyReference,
			when:    `old != null && (new == null || size(new) < size(old))`, paths: []string{".spec.validations"},
		},
		{
			name: "policy-denies", effect: v1alpha1.EffectWarn, kinds: []string{binding},
			because: "requests that only cause a warning or an audit entry today are refused from now on, also those of controllers",
			fix:     "bind the policy with the action Audit first, and read the audit log",
			source:  policyReference,
			when: `live != null && !('Deny' in live.spec.?validationActions.orValue([])) &&
'Deny' in object.spec.?validationActions.orValue([])`,
			paths: []string{".spec.validationActions"},
		},
		{
			name: "policy-fails-open", effect: v1alpha1.EffectWarn, kinds: []string{validating, mutating},
			because: "if an expression fails, or a required parameter is missing, the policy is skipped and the request passes",
			fix:     "keep failurePolicy at Fail",
			source:  policyReference + "#failure-policy",
			when:    `new == 'Ignore' && live != null && live.spec.?failurePolicy.orValue('Fail') == 'Fail'`, paths: []string{".spec.failurePolicy"},
		},
		{
			name: "policy-fails-closed", effect: v1alpha1.EffectWarn, kinds: []string{validating, mutating},
			because: "if an expression fails, or a required parameter is missing, the request is refused from now on",
			fix:     "check in the API server's metrics that the expressions do not fail today",
			source:  policyReference + "#failure-policy",
			when:    `old == 'Ignore' && object.spec.?failurePolicy.orValue('Fail') == 'Fail'`, paths: []string{".spec.failurePolicy"},
		},
		{
			name: "policy-exception", effect: v1alpha1.EffectWarn, kinds: []string{validating}, on: []v1alpha1.Event{v1alpha1.OnAdd},
			because: "requests for which the new match condition is false skip the policy",
			fix:     "check that the condition is false only for requests that should be exempt",
			source:  policyReference + "#matching-requests-matchconditions",
			when:    `live != null`, paths: []string{".spec.matchConditions"},
		},
		{
			name: "policy-param-optional", effect: v1alpha1.EffectWarn, kinds: []string{binding, "MutatingAdmissionPolicyBinding"},
			on:      []v1alpha1.Event{v1alpha1.OnChange},
			because: "if the parameter is missing, the policy no longer refuses or changes anything by this binding",
			fix:     "keep parameterNotFoundAction at Deny",
			source:  policyReference + "#parameter-resources",
			when: `old != null && new != null && old.?parameterNotFoundAction.orValue('') == 'Deny' &&
new.?parameterNotFoundAction.orValue('') == 'Allow'`,
			paths: []string{".spec.paramRef"},
		},
		{
			name: "policy-missing", effect: v1alpha1.EffectWarn, kinds: []string{binding}, on: fieldsAndCreation(),
			because: "the component has policies, but none with this name: a binding without its policy has no effect",
			fix:     "correct policyName, or add the policy",
			source:  policyReference,
			when: `objects.?ValidatingAdmissionPolicy.orValue([]) != [] &&
!objects.?ValidatingAdmissionPolicy.orValue([]).exists(p, p.metadata.name == object.spec.?policyName.orValue(''))`,
			paths: []string{".spec.policyName"},
		},
		{
			name: "policy-deleted", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnDeleteObject},
			kinds:   []string{validating, binding, mutating, "MutatingAdmissionPolicyBinding"},
			because: "the policy no longer refuses or changes requests, from the next request on; after a binding is deleted, other bindings still apply it",
			fix:     "check that another policy or webhook does it",
			source:  policyReference,
			paths:   []string{""},
		},
	}
	for i := range list {
		list[i].group = admissionGroup
	}
	return list
}

// covers returns a CEL condition: one rule of a webhook or policy matches every request that
// another rule matches. The wildcard * of resources excludes subresources, and RESOURCE/* includes
// the resource itself; see RuleWithOperations in k8s.io/api/admissionregistration/v1.
func covers(wide, narrow string) string {
	return `(['apiGroups', 'apiVersions', 'operations'].all(k, '*' in ` + wide + `[?k].orValue([]) || ` + narrow + `[?k].orValue([]).all(x, x in ` + wide + `[?k].orValue([]))) &&
('*/*' in ` + wide + `.?resources.orValue([]) || ` + narrow + `.?resources.orValue([]).all(x, [x.split('/')].exists(s, x in ` + wide + `.?resources.orValue([]) ||
(s[0] + '/*') in ` + wide + `.?resources.orValue([]) || (s.size() > 1 ? '*/' + s[1] : '*') in ` + wide + `.?resources.orValue([])))) &&
` + wide + `.?scope.orValue('*') in ['*', ` + narrow + `.?scope.orValue('*')] &&
(` + wide + `.?resourceNames.orValue([]) == [] || ` + narrow + `.?resourceNames.orValue([]) != [] &&
` + narrow + `.resourceNames.all(x, x in ` + wide + `.resourceNames)))`
}

// uncovered returns a CEL condition: one of some rules matches a request that no rule of another
// list matches. Most rules are the same in both lists, which costs little to find out.
func uncovered(rules, by string) string {
	return rules + `.exists(a, !(a in ` + by + `) && !` + by + `.exists(b, ` + covers("b", "a") + `))`
}

// ofPolicyMatches returns the rules on the requests that a policy matches: a map that changes as a
// whole.
func ofPolicyMatches() []catalogued {
	const selectors = `['namespaceSelector', 'objectSelector']`
	rulesOf := func(match string) string { return match + ".?resourceRules.orValue([])" } // none: all resources
	excludedOf := func(match string) string { return match + ".?excludeResourceRules.orValue([])" }
	changed := []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange, v1alpha1.OnRemove}
	list := []catalogued{
		{
			name:    "policy-narrowed",
			because: "the policy may match fewer requests than before: what it refuses today may be let in",
			fix:     "check that another policy matches what this one leaves out",
			source:  policyReference,
			when: `live != null && new != null && (old == null ? new != {} :
` + rulesOf("new") + ` != [] && (` + rulesOf("old") + ` == [] || ` + uncovered(rulesOf("old"), rulesOf("new")) + `) ||
` + uncovered(excludedOf("new"), excludedOf("old")) + ` ||
` + selectors + `.exists(s, new[?s].orValue({}) != {} && new[?s].orValue({}) != old[?s].orValue({})))`,
		},
		{
			name:    "policy-widened",
			because: "the policy may match more requests than before, and can refuse them",
			fix:     "bind the policy with the action Warn or Audit first",
			source:  policyReference,
			when: `live != null && old != null && (new == null ||
` + rulesOf("old") + ` != [] && (` + rulesOf("new") + ` == [] || ` + uncovered(rulesOf("new"), rulesOf("old")) + `) ||
` + uncovered(excludedOf("old"), excludedOf("new")) + ` ||
` + selectors + `.exists(s, old[?s].orValue({}) != {} && new[?s].orValue({}) != old[?s].orValue({})))`,
		},
	}
	for i := range list {
		list[i].effect, list[i].on, list[i].group = v1alpha1.EffectWarn, changed, admissionGroup
		list[i].kinds = []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
		list[i].paths = []string{".spec.matchConstraints", ".spec.matchResources"}
	}
	return list
}
