package catalogue

import (
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Pages of the Kubernetes documentation that several rules name as their source.
const (
	rbacGroup         = "rbac.authorization.k8s.io"
	rbacReference     = "https://kubernetes.io/docs/reference/access-authn-authz/rbac/"
	rbacGoodPractices = "https://kubernetes.io/docs/concepts/security/rbac-good-practices/"
	accountTasks      = "https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/"
)

// CEL expressions for the component's objects of some kinds.
const (
	accountsOfComponent = `objects.?ServiceAccount.orValue([])`
	bindingsOfComponent = `(objects.?RoleBinding.orValue([]) + objects.?ClusterRoleBinding.orValue([]))`
	podSpecsOfComponent = `((objects.?Deployment.orValue([]) + objects.?StatefulSet.orValue([]) + objects.?DaemonSet.orValue([]) +
objects.?Job.orValue([]) + objects.?CloneSet.orValue([])).filter(w, w.metadata.?namespace.orValue('') == X).map(w, w.spec.?template.?spec.orValue({})) +
objects.?CronJob.orValue([]).filter(w, w.metadata.?namespace.orValue('') == X).map(w, w.spec.?jobTemplate.?spec.?template.?spec.orValue({})))`
)

// ofAccess returns the rules on the right to use the API: RBAC and service accounts.
func ofAccess() []catalogued {
	return holdsBeforeWarnings(ofBindings(), ofBoundRoles(), ofRolesThatEscalate(), ofRoles(), ofAccounts())
}

// holdsBeforeWarnings returns one list of rules, with warnings last. Warnings after a hold that
// fires are not evaluated, so a change that waits has one reason.
func holdsBeforeWarnings(lists ...[]catalogued) []catalogued {
	all := slices.Concat(lists...)
	slices.SortStableFunc(all, func(a, b catalogued) int {
		rank := func(c catalogued) int {
			if c.effect == v1alpha1.EffectWarn {
				return 1
			}
			return 0
		}
		return rank(a) - rank(b)
	})
	return all
}

// podSpecsIn returns a CEL expression: the pod specs of the component's workloads in a namespace.
func podSpecsIn(namespace string) string {
	return strings.ReplaceAll(podSpecsOfComponent, "X", namespace)
}

// sameSubject returns a CEL condition: two subjects of bindings are the same. Groups are not
// compared, because the API server fills in an omitted group.
func sameSubject(a, b string) string {
	return strings.NewReplacer("A", a, "B", b).Replace(`A.kind == B.kind && A.name == B.name && A.?namespace.orValue('') == B.?namespace.orValue('')`)
}

// gainedSubject returns a CEL condition: a list gains a subject n for which the given condition is
// true.
func gainedSubject(condition string) string {
	return `new != null && new.exists(n, ` + condition + ` && (old == null || !old.exists(o, ` + sameSubject("o", "n") + `)))`
}

// ofBindings returns the rules on the subjects of bindings.
func ofBindings() []catalogued {
	const subjects = ".subjects"
	list := []catalogued{
		{
			name: "rbac-anonymous-subject", effect: v1alpha1.EffectHold, on: fieldsAndCreation(),
			because: "requests without credentials gain the role: unless anonymous access is off, everyone who reaches the API server has it",
			fix:     "bind the role to the ServiceAccount, user or group that needs it",
			source:  "https://kubernetes.io/docs/reference/access-authn-authz/authentication/#anonymous-requests",
			when:    gainedSubject(`n.name in ['system:anonymous', 'system:unauthenticated']`), paths: []string{subjects},
		},
		{
			name: "rbac-everyone-subject", effect: v1alpha1.EffectHold, on: fieldsAndCreation(),
			because: "every ServiceAccount gains the role; with system:authenticated also every user, and on GKE every Google account",
			fix:     "bind the role to the ServiceAccount, user or group that needs it",
			source:  "https://cloud.google.com/kubernetes-engine/docs/best-practices/rbac",
			when:    gainedSubject(`n.kind == 'Group' && n.name in ['system:authenticated', 'system:serviceaccounts']`), paths: []string{subjects},
		},
		{
			name: "rbac-namespace-accounts", effect: v1alpha1.EffectHold, on: fieldsAndCreation(),
			because: "every ServiceAccount of a namespace gains the role: also the default one, and those that are created later",
			fix:     "bind the role to the ServiceAccounts that need it",
			source:  rbacGoodPractices,
			when:    gainedSubject(`n.kind == 'Group' && n.name.startsWith('system:serviceaccounts:')`), paths: []string{subjects},
		},
		{
			name: "rbac-admin-binding", effect: v1alpha1.EffectHold, on: fieldsAndCreation(),
			because: "a subject gains an administrator's role: it may read all Secrets and change almost all objects that the binding covers",
			fix:     "write a role with the rights that the subject needs, and bind that",
			source:  rbacGoodPractices + "#least-privilege",
			when: `object.roleRef.kind == 'ClusterRole' && object.roleRef.name in ['cluster-admin', 'admin'] &&
object.?subjects.orValue([]).exists(n, live == null || live.roleRef.name != object.roleRef.name ||
!live.?subjects.orValue([]).exists(o, ` + sameSubject("o", "n") + `))`,
			paths: []string{subjects, ".roleRef"},
		},
		{
			name: "rbac-role-ref", effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			because: "roleRef is immutable: the binding is deleted and created again, and its subjects lack the role in between",
			fix:     "create a binding of another name for the new role, and delete this one in a later change",
			source:  rbacReference + "#clusterrolebinding-example",
			when:    `new != null && (new.name != old.name || new.kind != old.kind)`, paths: []string{".roleRef"},
		},
		{
			name: "rbac-subjects-emptied", effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			because: "the binding loses all its subjects: unless another binding gives them the role, their next request is refused",
			fix:     "keep the subject until nothing uses its rights, then delete the binding",
			source:  rbacReference,
			when:    `old != null && old != [] && (new == null || new == [])`, paths: []string{subjects},
		},
		{
			name: "rbac-subject-lost", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "a ServiceAccount that the component keeps loses the role: its pods are refused, unless another binding gives the role",
			fix:     "keep the subject, or check that its pods no longer need the role",
			source:  rbacReference,
			when: `old != null && old.exists(o, o.kind == 'ServiceAccount' && !(new != null && new.exists(n, ` + sameSubject("o", "n") + `)) &&
` + accountsOfComponent + `.exists(a, a.metadata.name == o.name && a.metadata.?namespace.orValue('') == o.?namespace.orValue('')))`,
			paths: []string{subjects},
		},
		{
			name: "rbac-system-group", effect: v1alpha1.EffectWarn, on: fieldsAndCreation(),
			because: "a group that Kubernetes reserves gains the role, such as all nodes, all bootstrap tokens, or all administrators",
			fix:     "bind the role to the ServiceAccount that needs it, and leave the system groups to Kubernetes",
			source:  rbacReference + "#default-roles-and-role-bindings",
			when: gainedSubject(`n.kind == 'Group' && n.name.startsWith('system:') && !n.name.startsWith('system:serviceaccounts') &&
!(n.name in ['system:authenticated', 'system:unauthenticated'])`),
			paths: []string{subjects},
		},
		{
			name: "rbac-system-role", effect: v1alpha1.EffectWarn, on: fieldsAndCreation(),
			because: "a subject gains a role of the control plane, whose rights may change with each Kubernetes version",
			fix:     "write a role with the rights that the subject needs, and bind that",
			source:  rbacReference + "#default-roles-and-role-bindings",
			// Add-ons are meant to bind these roles, or all users have them.
			when: `object.roleRef.name.startsWith('system:') && object.roleRef.kind == 'ClusterRole' && !(object.roleRef.name in ['system:auth-delegator',
'system:discovery', 'system:basic-user', 'system:public-info-viewer', 'system:service-account-issuer-discovery']) &&
object.?subjects.orValue([]).exists(n, live == null || live.roleRef.name != object.roleRef.name ||
!live.?subjects.orValue([]).exists(o, ` + sameSubject("o", "n") + `))`,
			paths: []string{subjects, ".roleRef"},
		},
		{
			name: "rbac-foreign-subject", effect: v1alpha1.EffectWarn, on: fieldsAndCreation(),
			because: "a ServiceAccount of another namespace gains rights in this one, and the component does not manage that account",
			fix:     "check that pods of the other namespace should have these rights",
			source:  rbacGoodPractices,
			// Every aggregated API server binds that role, in kube-system.
			when: `object.kind == 'RoleBinding' && object.roleRef.name != 'extension-apiserver-authentication-reader' && ` +
				gainedSubject(`n.kind == 'ServiceAccount' && n.?namespace.orValue('') != object.metadata.?namespace.orValue('') &&
!`+accountsOfComponent+`.exists(a, a.metadata.name == n.name && (n.name != 'default' ||
a.metadata.?namespace.orValue('') == n.?namespace.orValue('')))`),
			paths: []string{subjects},
		},
		{
			name: "rbac-subject-namespace", effect: v1alpha1.EffectWarn, on: fieldsAndCreation(),
			because: "the component has the ServiceAccount in another namespace: its pods do not get these rights",
			fix:     "write the namespace of the component's ServiceAccount into the subject",
			source:  rbacReference + "#referring-to-subjects",
			when: gainedSubject(`n.kind == 'ServiceAccount' && n.name != 'default' && ` + accountsOfComponent + `.exists(a, a.metadata.name == n.name) &&
!` + accountsOfComponent + `.exists(a, a.metadata.name == n.name && a.metadata.?namespace.orValue('') == n.?namespace.orValue(''))`),
			paths: []string{subjects},
		},
	}
	for i := range list {
		list[i].group, list[i].kinds = rbacGroup, []string{"RoleBinding", "ClusterRoleBinding"}
	}
	return list
}

// ofBoundRoles returns the rules on roles and bindings that need each other.
func ofBoundRoles() []catalogued {
	deleted := []v1alpha1.Event{v1alpha1.OnDeleteObject}
	return []catalogued{
		{
			name: "rbac-bound-role-deleted", effect: v1alpha1.EffectHold, on: deleted,
			group: rbacGroup, kinds: []string{"Role", "ClusterRole"},
			because: "a binding of the component still names the role: the subjects of that binding lose these rights",
			fix:     "delete the bindings first, or keep the role",
			source:  rbacReference,
			when: bindingsOfComponent + `.exists(b, b.roleRef.kind == old.kind && b.roleRef.name == old.metadata.name &&
(old.kind == 'ClusterRole' || b.metadata.?namespace.orValue('') == old.metadata.?namespace.orValue('')))`,
			paths: []string{""},
		},
		{
			name: "rbac-role-missing", effect: v1alpha1.EffectWarn, on: fieldsAndCreation(),
			group: rbacGroup, kinds: []string{"RoleBinding"},
			because: "the binding names a Role that the component does not have in this namespace: without it the binding gives no rights",
			fix:     "add the Role, or correct the name in roleRef",
			source:  rbacReference + "#rolebinding-and-clusterrolebinding",
			// Kubernetes itself has Roles in kube- namespaces.
			when: `object.roleRef.kind == 'Role' && !object.metadata.?namespace.orValue('').startsWith('kube-') &&
!objects.?Role.orValue([]).exists(r, r.metadata.name == object.roleRef.name &&
r.metadata.?namespace.orValue('') == object.metadata.?namespace.orValue(''))`,
			paths: []string{".roleRef"},
		},
		{
			name: "rbac-binding-deleted", effect: v1alpha1.EffectWarn, on: deleted,
			group: rbacGroup, kinds: []string{"RoleBinding", "ClusterRoleBinding"},
			because: "subjects lose the role: those of a system: binding, or a ServiceAccount that no other binding of the component covers",
			fix:     "keep the binding, or check that its subjects no longer need the role",
			source:  rbacReference,
			// A system: binding has subjects that the component does not own.
			when: `old.metadata.name.startsWith('system:') || old.?subjects.orValue([]).exists(s, s.kind == 'ServiceAccount' && ` + accountsOfComponent + `.exists(a, a.metadata.name == s.name &&
a.metadata.?namespace.orValue('') == s.?namespace.orValue('')) && !` + bindingsOfComponent + `.exists(b, b.roleRef.kind == old.roleRef.kind &&
b.roleRef.name == old.roleRef.name && b.?subjects.orValue([]).exists(t, ` + sameSubject("t", "s") + `)))`,
			paths: []string{""},
		},
	}
}

// grant is a right that a role gives: the same verbs on some resources.
type grant struct {
	groups, resources, verbs []string
	// anyName ignores rules that name their objects.
	anyName bool
}

// alike returns a CEL condition: a role gains the verbs on any of the resources, and had them on
// none. The resources give the same power: a subject that can create Deployments can create pods.
func (g grant) alike() string {
	var resources []string
	for _, resource := range append(g.resources, "*") {
		resources = append(resources, "'"+resource+"'")
	}
	of := func(rule string) string {
		return "([" + strings.Join(resources, ", ") + "].exists(r, r in " + rule + ".?resources.orValue([])) && " + g.conditionOnRest(rule) + ")"
	}
	return `new != null && new.exists(n, ` + of("n") + `) && (old == null || !old.exists(o, ` + of("o") + `))`
}

// namesResource returns a CEL condition: a rule of a role gives its rights on a resource or
// subresource. Kubernetes knows the patterns * and */SUBRESOURCE: a rule on RESOURCE/* gives nothing.
func namesResource(rule, resource string) string {
	return strings.NewReplacer("RULE", rule+".?resources.orValue([])", "X", resource).Replace(
		`(X in RULE || '*' in RULE || X.contains('/') && ('*/' + X.split('/')[1]) in RULE)`)
}

// condition returns a CEL condition: the rule of a role gives the right on the resource r. r lists the
// name of the resource, and the pattern for its subresource of every resource.
func (g grant) condition(rule string) string {
	return "(" + anyIn(rule, "resources", []string{"r[0]", "r[1]", "'*'"}) + " && " + g.conditionOnRest(rule) + ")"
}

// conditionOnRest returns a CEL condition on the fields of a rule other than the resources.
func (g grant) conditionOnRest(rule string) string {
	quoted := func(words []string) []string {
		var out []string
		for _, word := range append(words, "*") {
			out = append(out, "'"+word+"'")
		}
		return out
	}
	out := anyIn(rule, "verbs", quoted(g.verbs)) + " && " + anyIn(rule, "apiGroups", quoted(g.groups))
	switch {
	case g.anyName && slices.Equal(g.resources, []string{"namespaces"}):
		// A Role covers one namespace: to name that one limits nothing.
		out += ` && (` + rule + `.?resourceNames.orValue([]) == [] ||
object.kind == 'Role' && object.metadata.?namespace.orValue('') in ` + rule + `.resourceNames)`
	case g.anyName:
		out += ` && ` + rule + `.?resourceNames.orValue([]) == []`
	}
	return out
}

// anyIn returns a CEL condition: a list of a rule has any of the words. One "in" for each word
// costs less than a loop, and the cost of a condition is bounded.
func anyIn(rule, field string, words []string) string {
	var out []string
	for _, word := range words {
		out = append(out, word+" in "+rule+".?"+field+".orValue([])")
	}
	return "(" + strings.Join(out, " || ") + ")"
}

// granted returns a CEL condition: the rules of a role gain any of the rights on any of the
// resources. A right on one resource is no right on another.
func granted(grants ...grant) string {
	var out []string
	for _, g := range grants {
		var resources []string
		for _, resource := range g.resources {
			pattern := resource
			if _, subresource, ok := strings.Cut(resource, "/"); ok {
				pattern = "*/" + subresource
			}
			resources = append(resources, "['"+resource+"', '"+pattern+"']")
		}
		out = append(out, "["+strings.Join(resources, ", ")+"].exists(r, new.exists(n, "+g.condition("n")+") && (old == null || !old.exists(o, "+g.condition("o")+")))")
	}
	return `new != null && (` + strings.Join(out, " || ") + `)`
}

func writes() []string { return []string{"create", "update", "patch"} }

func core() []string { return []string{""} }

// ofRolesThatEscalate returns the rules on rights with which a subject can gain other rights.
func ofRolesThatEscalate() []catalogued {
	list := []catalogued{
		{
			name: "rbac-secrets-read", kinds: []string{"ClusterRole"},
			because: "the role gains the right to read all Secrets that its bindings cover: every password, key and token",
			fix:     "name the Secrets in resourceNames with verb get, or use a Role in one namespace",
			source:  rbacGoodPractices + "#listing-secrets",
			when:    granted(grant{core(), []string{"secrets"}, []string{"get", "list", "watch"}, true}),
		},
		{
			name:    "rbac-exec",
			because: "the role gains the right to run commands in running pods; from Kubernetes 1.35 on, exec and attach need the verb create",
			fix:     "give the right to people for a limited time, and not to a program",
			source:  "https://attack.mitre.org/techniques/T1609/",
			when: granted(
				grant{core(), []string{"pods/exec", "pods/attach"}, []string{"create", "get"}, false},
				grant{core(), []string{"pods/ephemeralcontainers"}, []string{"update", "patch"}, false},
			),
		},
		{
			name: "rbac-nodes-proxy", kinds: []string{"ClusterRole"},
			because: "the role gains the API of the kubelets: it can run commands in every pod, which admission and the audit log do not see",
			fix:     "use nodes/metrics or nodes/stats, which only give numbers",
			source:  rbacGoodPractices + "#access-to-proxy-subresource-of-nodes",
			when:    granted(grant{core(), []string{"nodes/proxy"}, []string{"get", "create"}, false}),
		},
		{
			name:    "rbac-token-request",
			because: "the role gains the right to create tokens for every ServiceAccount that its bindings cover, and so all their rights",
			fix:     "name the ServiceAccounts in resourceNames",
			source:  rbacGoodPractices + "#token-request",
			when:    granted(grant{core(), []string{"serviceaccounts/token"}, []string{"create"}, true}),
		},
		{
			name: "rbac-csr-approval", kinds: []string{"ClusterRole"},
			because: "the role gains a right to approve or sign certificates: a client certificate can name almost any user, and nothing revokes it",
			fix:     "name the signers in resourceNames, and leave out those of client certificates for the API server",
			source:  rbacGoodPractices + "#csrs-and-certificate-issuing",
			when: granted(
				grant{[]string{"certificates.k8s.io"}, []string{"certificatesigningrequests/approval", "certificatesigningrequests/status"}, []string{"update", "patch"}, false},
				grant{[]string{"certificates.k8s.io"}, []string{"signers"}, []string{"approve", "sign"}, true},
			),
		},
		{
			name: "rbac-admission-write", kinds: []string{"ClusterRole"},
			because: "the role gains the right to change admission or APIServices: it may read, change or refuse objects that others write",
			fix:     "name the configurations in resourceNames, with verbs update and patch",
			source:  rbacGoodPractices + "#control-admission-webhooks",
			when: granted(grant{
				[]string{admissionGroup, "apiregistration.k8s.io"},
				[]string{
					"validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicies",
					"validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "apiservices",
				},
				writes(), true,
			}),
		},
		{
			name: "rbac-aggregation-rule", kinds: []string{"ClusterRole"},
			because: "the role gains the rules of every ClusterRole with these labels, also of those that are created later",
			fix:     "write the rules into the role, or select a label that only your own roles have",
			source:  rbacReference + "#aggregated-clusterroles",
			when:    `new != null && new.exists(n, old == null || !(n in old))`,
			paths:   []string{".aggregationRule.clusterRoleSelectors"},
		},
		{
			name:    "rbac-rules-emptied",
			because: "the role loses all its rules: unless another role gives these rights, the next request of its subjects is refused",
			fix:     "keep the rules until nothing uses them, then delete the role and its bindings",
			source:  rbacReference,
			on:      []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			// Kubernetes no longer has PodSecurityPolicies.
			when: `old != null && old.exists(o, !('podsecuritypolicies' in o.?resources.orValue([]))) && (new == null || new == []) && !has(object.aggregationRule)`,
		},
	}
	for i := range list {
		list[i].effect = v1alpha1.EffectHold
	}
	return ofRoleRules(list)
}

// ofRoles returns the rules on gained or lost rights that a reviewer should see.
func ofRoles() []catalogued {
	const aggregate = `.metadata.labels["rbac.authorization.k8s.io/aggregate-to-`
	list := []catalogued{
		{
			name: "rbac-secrets-read-namespace", kinds: []string{"Role"},
			because: "the role gains the right to read all Secrets of its namespace",
			fix:     "name the Secrets in resourceNames, with verb get",
			source:  rbacGoodPractices + "#listing-secrets",
			when:    granted(grant{core(), []string{"secrets"}, []string{"get", "list", "watch"}, true}),
		},
		{
			name:    "rbac-role-write",
			because: "the role gains the right to write roles or bindings: its subjects can give their own rights to other accounts",
			fix:     "name the roles and bindings in resourceNames, or keep them in git",
			source:  rbacReference + "#privilege-escalation-prevention-and-bootstrapping",
			when:    granted(grant{[]string{rbacGroup}, []string{"roles", "clusterroles", "rolebindings", "clusterrolebindings"}, writes(), true}),
		},
		{
			name:    "rbac-workload-create",
			because: "the role gains the right to create pods or workloads: their pods can use every Secret and ServiceAccount of the namespace",
			fix:     "give the right only in a namespace that has no other Secrets and ServiceAccounts",
			source:  rbacGoodPractices + "#workload-creation",
			when: grant{
				[]string{"", "apps", "batch"},
				[]string{"pods", "deployments", "statefulsets", "daemonsets", "replicasets", "replicationcontrollers", "jobs", "cronjobs"},
				[]string{"create"},
				false,
			}.alike(),
		},
		{
			name: "rbac-volume-create", kinds: []string{"ClusterRole"},
			because: "the role gains the right to create PersistentVolumes: one of type hostPath opens the files of a node",
			fix:     "leave volumes to a provisioner, and give the right to create claims",
			source:  rbacGoodPractices + "#persistent-volume-creation",
			when:    granted(grant{core(), []string{"persistentvolumes"}, []string{"create"}, false}),
		},
		{
			name:    "rbac-namespace-write", // a Role grants it on its own namespace
			because: "the role gains the right to change or delete namespaces: their labels decide which security policies and webhooks apply",
			fix:     "name the namespaces in the resourceNames of a ClusterRole, or keep them in git",
			source:  rbacGoodPractices + "#namespace-modification",
			when:    granted(grant{core(), []string{"namespaces"}, []string{"update", "patch", "delete", "deletecollection"}, true}),
		},
		{
			name: "rbac-node-write", kinds: []string{"ClusterRole"},
			because: "the role gains the right to change or delete nodes: their labels and taints decide where pods run",
			fix:     "name the subresource or the nodes that the program needs",
			source:  kubernetesDocs + "concepts/scheduling-eviction/assign-pod-node/#node-isolation-restriction",
			when:    granted(grant{core(), []string{"nodes"}, []string{"update", "patch", "delete", "deletecollection"}, true}),
		},
		{
			name:    "rbac-port-forward",
			because: "the role gains the right to open connections into pods through the API server: network policies do not see the real client",
			fix:     "reach the pods through a Service, and admit the client in a NetworkPolicy",
			source:  "https://kubernetes.io/docs/tasks/access-application-cluster/port-forward-access-application-cluster/",
			when: granted(
				grant{core(), []string{"pods/portforward"}, []string{"create", "get"}, false},
				grant{core(), []string{"pods/proxy", "services/proxy"}, []string{"create", "get", "update"}, false},
			),
		},
		{
			name: "rbac-non-resource-urls", kinds: []string{"ClusterRole"},
			because: "the role gains API server paths that are not objects, such as /debug/pprof and /logs",
			fix:     "list only the paths that the program reads, such as /metrics",
			source:  rbacReference + "#role-examples",
			when: `new != null && new.exists(n, n.?nonResourceURLs.orValue([]).exists(u, !(u in ['/metrics', '/metrics/*', '/metrics/slis', '/healthz', '/healthz/*',
'/livez', '/livez/*', '/readyz', '/readyz/*', '/version', '/version/']) && (old == null || !old.exists(o, o.?nonResourceURLs.orValue([]).exists(w, w == u || w.endsWith('*') && u.startsWith(w.substring(0, w.size() - 1)))))))`,
		},
		{
			name: "rbac-rights-lost", on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the role loses a verb or a resource: a program that still needs it is refused, unless another role gives it",
			fix:     "check that the programs that use the role no longer need the verb or resource",
			source:  rbacReference,
			// To save cost, rules that stay or only gain are excluded first. API groups are not
			// compared, because resources move between groups. Kubernetes no longer has
			// PodSecurityPolicies.
			when: `old != null && new != null && old.exists(o, !(o in new) && !new.exists(n, o.?resources.orValue([]).all(r, r in n.?resources.orValue([])) &&
o.?verbs.orValue([]).all(v, v in n.?verbs.orValue([]))) && o.?resources.orValue([]).exists(r, r != 'podsecuritypolicies' && !r.endsWith('/*') &&
o.?verbs.orValue([]).exists(v, !new.exists(n, ` + namesResource("n", "r") + ` &&
(v in n.?verbs.orValue([]) || '*' in n.?verbs.orValue([]))))))`,
		},
		{
			name: "rbac-aggregated", kinds: []string{"ClusterRole"},
			because: "the rules on built-in kinds are added to a default role, such as view: every subject of that role gains them",
			fix:     "bind the role to the subjects that need it, without the label",
			source:  rbacReference + "#aggregated-clusterroles",
			// The label is meant for rules on custom resources.
			when: `new == 'true' && old != 'true' && object.?rules.orValue([]).exists(n, n.?apiGroups.orValue([]).exists(g, !g.contains('.') || g.endsWith('.k8s.io')))`,
			paths: []string{
				aggregate + `admin"]`, aggregate + `edit"]`, aggregate + `view"]`, aggregate + `cluster-reader"]`,
			},
		},
		{
			name: "rbac-view-writes", kinds: []string{"ClusterRole"},
			because: "the default role view gains more than reading: every subject of view may now write, or read Secrets",
			fix:     "use the label aggregate-to-edit for these rules",
			source:  rbacReference + "#user-facing-roles",
			when: `object.metadata.?labels[?'rbac.authorization.k8s.io/aggregate-to-view'].orValue('') == 'true' && object.?rules.orValue([]).exists(n,
(n.?verbs.orValue([]).exists(v, !(v in ['get', 'list', 'watch'])) || ('secrets' in n.?resources.orValue([]) || '*' in n.?resources.orValue([])) &&
('' in n.?apiGroups.orValue([]) || '*' in n.?apiGroups.orValue([]))) &&
!(live != null && live.metadata.?labels[?'rbac.authorization.k8s.io/aggregate-to-view'].orValue('') == 'true' && n in live.?rules.orValue([])))`,
			paths: []string{".rules", aggregate + `view"]`},
		},
	}
	for i := range list {
		list[i].effect = v1alpha1.EffectWarn
	}
	return ofRoleRules(list)
}

// ofRoleRules fills in the fields that most rules on roles share.
func ofRoleRules(list []catalogued) []catalogued {
	for i := range list {
		c := &list[i]
		c.group = rbacGroup
		if c.kinds == nil {
			c.kinds = []string{"Role", "ClusterRole"}
		}
		if c.on == nil {
			c.on = fieldsAndCreation()
		}
		if c.paths == nil {
			c.paths = []string{".rules"}
		}
	}
	return list
}

// ofAccounts returns the rules on ServiceAccounts and on long-lived credentials.
func ofAccounts() []catalogued {
	account := []string{"ServiceAccount"}
	return []catalogued{
		{
			name: "account-deleted-in-use", effect: v1alpha1.EffectHold, on: []v1alpha1.Event{v1alpha1.OnDeleteObject},
			group: coreGroup, kinds: account,
			because: "workloads of the component still use the ServiceAccount: their tokens end, and without the account no new pod is created",
			fix:     "move the workloads to another ServiceAccount first",
			source:  accountTasks,
			when: podSpecsIn(`old.metadata.?namespace.orValue('')`) +
				`.exists(s, s.?serviceAccountName.orValue(s.?serviceAccount.orValue('default')) == old.metadata.name)`,
			paths: []string{""},
		},
		{
			name: "account-token-mounted", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			group: coreGroup, kinds: account,
			because: "new pods of the ServiceAccount get a token for the API, unless their own spec refuses one",
			fix:     "set automountServiceAccountToken in the pods that call the API, and leave it false here",
			source:  accountTasks + "#opt-out-of-api-credential-automounting",
			when:    `old == false && new != false`, paths: []string{".automountServiceAccountToken"},
		},
		{
			name: "account-token-unmounted", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			group: coreGroup, kinds: account,
			because: "new pods of the ServiceAccount get no API token, and a binding of the component suggests that they need one",
			fix:     "set automountServiceAccountToken to true in the pods that call the API",
			source:  accountTasks + "#opt-out-of-api-credential-automounting",
			when: `new == false && old != false && ` + bindingsOfComponent + `.exists(b, b.?subjects.orValue([]).exists(s, s.kind == 'ServiceAccount' &&
s.name == object.metadata.name && s.?namespace.orValue('') == object.metadata.?namespace.orValue(''))) &&
` + podSpecsIn(`object.metadata.?namespace.orValue('')`) + `.exists(s, s.?serviceAccountName.orValue('default') == object.metadata.name &&
s.?automountServiceAccountToken.orValue(null) == null && !s.?volumes.orValue([]).exists(v, has(v.projected)))`,
			paths: []string{".automountServiceAccountToken"},
		},
		{
			name: "account-cloud-identity", effect: v1alpha1.EffectWarn,
			group: coreGroup, kinds: account,
			because: "pods of the ServiceAccount act with another cloud identity or none, at the latest after their restart",
			fix:     "check that the new identity has what the pods use, and no more",
			source:  "https://docs.aws.amazon.com/eks/latest/userguide/iam-roles-for-service-accounts.html",
			paths: []string{
				`.metadata.annotations["eks.amazonaws.com/role-arn"]`, `.metadata.annotations["iam.gke.io/gcp-service-account"]`,
				`.metadata.annotations["azure.workload.identity/client-id"]`, `.metadata.annotations["azure.workload.identity/tenant-id"]`,
			},
		},
		{
			name: "account-pull-secret-lost", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnChange, v1alpha1.OnRemove},
			group: coreGroup, kinds: account,
			because: "new pods of the ServiceAccount lack the credentials of a registry: their images may not be pulled",
			fix:     "keep the entry until no image comes from that registry",
			source:  accountTasks + "#add-imagepullsecrets-to-a-service-account",
			when:    `old != null && old.exists(o, new == null || !new.exists(n, n.?name.orValue('') == o.?name.orValue('')))`,
			paths:   []string{".imagePullSecrets"},
		},
		{
			name: "account-token-secret", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnCreateObject},
			group: coreGroup, kinds: []string{"Secret"},
			because: "the Secret gets a token that never expires: a copy of it works until the Secret is deleted",
			fix:     "use the TokenRequest API or a projected volume, whose tokens expire",
			source:  "https://kubernetes.io/docs/concepts/configuration/secret/#serviceaccount-token-secrets",
			when:    `new == 'kubernetes.io/service-account-token'`, paths: []string{".type"},
		},
		{
			name: "client-certificate-request", effect: v1alpha1.EffectWarn, on: []v1alpha1.Event{v1alpha1.OnCreateObject},
			group: "certificates.k8s.io", kinds: []string{"CertificateSigningRequest"},
			because: "the request asks for a client certificate for the API server, and nothing can revoke it before it expires",
			fix:     "use a ServiceAccount's token, or a short spec.expirationSeconds",
			source:  "https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/",
			when:    `new in ['kubernetes.io/kube-apiserver-client', 'kubernetes.io/kube-apiserver-client-kubelet']`, paths: []string{".spec.signerName"},
		},
	}
}
