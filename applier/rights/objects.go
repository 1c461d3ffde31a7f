package rights

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects returns the namespaces, roles and bindings that grant the rights to a subject, in the
// order in which they can be applied. All roles and bindings have the given name.
func (r *Rights) Objects(name string, subject rbacv1.Subject) []any {
	var out []any
	for _, namespace := range slices.Sorted(maps.Keys(r.namespaces)) {
		out = append(out, &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: namespace},
		})
	}
	const version = "rbac.authorization.k8s.io/v1"
	for _, namespace := range slices.Sorted(maps.Keys(r.scopes)) {
		rules := r.rules(namespace)
		if len(rules) == 0 {
			continue
		}
		object := metav1.ObjectMeta{Name: name, Namespace: namespace}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}
		subjects := []rbacv1.Subject{subject}
		if namespace == "" {
			ref.Kind = "ClusterRole"
			out = append(out,
				&rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "ClusterRole"}, ObjectMeta: object, Rules: rules},
				&rbacv1.ClusterRoleBinding{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "ClusterRoleBinding"}, ObjectMeta: object, Subjects: subjects, RoleRef: ref})
			continue
		}
		out = append(out,
			&rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "Role"}, ObjectMeta: object, Rules: rules},
			&rbacv1.RoleBinding{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "RoleBinding"}, ObjectMeta: object, Subjects: subjects, RoleRef: ref})
	}
	return out
}

// target is what verbs are granted on.
type target struct{ group, resource, name, url string }

// rules returns the fewest readable rules that hold a scope's grants. A right that another right
// includes is left out.
func (r *Rights) rules(namespace string) []rbacv1.PolicyRule {
	verbs := map[target][]string{}
	for g := range r.scopes[namespace] {
		if !r.covered(namespace, g) {
			t := target{g.group, g.resource, g.name, g.url}
			verbs[t] = append(verbs[t], g.verb)
		}
	}
	// Names with the same verbs share a rule, and then resources do.
	type shape struct{ group, resources, names, urls, verbs string }
	join := func(list []string) string { slices.Sort(list); return strings.Join(list, " ") }
	split := func(list string) []string {
		if list == "" {
			return nil
		}
		return strings.Split(list, " ")
	}
	byNames, byResources := map[shape][]string{}, map[shape][]string{}
	for t, v := range verbs {
		s := shape{group: t.group, resources: t.resource, urls: t.url, verbs: join(v)}
		byNames[s] = append(byNames[s], t.name)
	}
	for s, names := range byNames {
		what := s.resources
		s.resources, s.names = "", join(slices.DeleteFunc(names, func(n string) bool { return n == "" }))
		byResources[s] = append(byResources[s], what)
	}
	var out []rbacv1.PolicyRule
	for s, resources := range byResources {
		rule := rbacv1.PolicyRule{Verbs: split(s.verbs), ResourceNames: split(s.names)}
		if s.urls != "" {
			rule.NonResourceURLs = []string{s.urls}
		} else {
			slices.Sort(resources)
			rule.APIGroups, rule.Resources = []string{s.group}, resources
		}
		out = append(out, rule)
	}
	key := func(r rbacv1.PolicyRule) string {
		return strings.Join(slices.Concat(r.APIGroups, r.Resources, r.ResourceNames, r.NonResourceURLs, r.Verbs), " ")
	}
	slices.SortFunc(out, func(a, b rbacv1.PolicyRule) int { return cmp.Compare(key(a), key(b)) })
	return out
}

// covered reports whether a wider right includes a grant: a right on all names, or in the whole
// cluster.
func (r *Rights) covered(namespace string, g grant) bool {
	all := g
	all.name = ""
	switch {
	case g.name != "" && r.scopes[namespace][all]:
		return true
	case namespace == "":
		return false
	}
	return r.scopes[""][g] || r.scopes[""][all]
}
