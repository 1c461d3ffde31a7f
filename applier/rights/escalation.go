package rights

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/renderer"
)

// granting adds the rights that an RBAC object grants. The API server refuses a role, or a binding
// to one, that grants more than its writer has in the same place. The verbs escalate and bind would
// lift that limit for everything.
func (p *planner) granting(c Component, o *renderer.Object) {
	rules, namespace, err := p.granted(o.Content)
	if err == nil {
		err = unfit(rules)
	}
	if err != nil {
		kind, ns, name := identity(o.Content)
		if ns != "" {
			name = ns + "/" + name
		}
		p.leftOut = append(p.leftOut, LeftOut{Component: c.Name, At: o.Source, Object: kind + " " + name, Why: err.Error()})
		return
	}
	for _, rule := range rules {
		p.union(p.scope(namespace), rule)
	}
}

// granted returns the rules that an object grants, and the namespace; "" is the whole cluster.
func (p *planner) granted(content map[string]any) ([]rbacv1.PolicyRule, string, error) {
	kind, namespace, _ := identity(content)
	if groupKind(content).Group != rbacv1.GroupName {
		return nil, "", nil
	}
	switch kind {
	case "Role":
		rules, err := rulesOf(content)
		return rules, namespace, err
	case "ClusterRole":
		if content["aggregationRule"] != nil {
			return nil, "", fmt.Errorf("it has an aggregationRule, which the API server takes from those alone who may do everything")
		}
		rules, err := rulesOf(content)
		return rules, "", err
	case "RoleBinding", "ClusterRoleBinding":
		ref, _ := content["roleRef"].(map[string]any)
		of, _ := ref["kind"].(string)
		name, _ := ref["name"].(string)
		key := roleKey{name: name}
		if of == "Role" {
			key.namespace = namespace
		}
		if kind == "ClusterRoleBinding" {
			namespace = ""
		}
		if rules, ours := p.roles[key]; ours {
			return rules, namespace, nil
		}
		rules, err := p.served.Role(key.namespace, key.name)
		if err != nil {
			return nil, "", fmt.Errorf("it binds %s %s, whose rules are not known: %w", of, name, err)
		}
		if err := unfit(rules); err != nil {
			return nil, "", fmt.Errorf("it binds %s %s: %w", of, name, err)
		}
		return rules, namespace, nil
	}
	return nil, "", nil
}

func rulesOf(content map[string]any) ([]rbacv1.PolicyRule, error) {
	var role rbacv1.ClusterRole
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"rules": content["rules"]}, &role); err != nil {
		return nil, fmt.Errorf("its rules can't be read: %w", err)
	}
	return role.Rules, nil
}

// unfit returns why rules are not granted; nil: they may be.
func unfit(rules []rbacv1.PolicyRule) error {
	for _, r := range rules {
		switch {
		case wild(r.Verbs, r.APIGroups, r.Resources, r.NonResourceURLs):
			return fmt.Errorf("a rule of it has a wildcard (%s)", ruleText(r))
		case slices.Contains(r.Verbs, "escalate"), slices.Contains(r.Verbs, "bind"):
			return fmt.Errorf("a rule of it grants escalate or bind (%s)", ruleText(r))
		case slices.Contains(r.Verbs, "impersonate") && len(r.ResourceNames) == 0:
			return fmt.Errorf("a rule of it grants impersonate without names (%s)", ruleText(r))
		}
	}
	return nil
}

func ruleText(r rbacv1.PolicyRule) string {
	on := r.NonResourceURLs
	for _, group := range r.APIGroups {
		for _, resource := range r.Resources {
			on = append(on, schema.GroupResource{Group: group, Resource: resource}.String())
		}
	}
	return strings.Join(r.Verbs, ",") + " " + strings.Join(on, ",")
}

func (p *planner) union(namespace string, r rbacv1.PolicyRule) {
	for _, verb := range r.Verbs {
		for _, url := range r.NonResourceURLs {
			p.put(namespace, grant{url: url, verb: verb})
		}
	}
	for _, group := range r.APIGroups {
		for _, resource := range r.Resources {
			p.add(namespace, group, resource, r.ResourceNames, r.Verbs...)
		}
	}
}
