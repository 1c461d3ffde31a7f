package applier

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/differ"
)

// account writes a component's objects: Keelson itself, or a service account that it impersonates.
// Keelson itself writes its records and makes all reads.
type account struct {
	namespace, name string // empty: Keelson itself
	dynamic         dynamic.Interface
}

func (a *account) String() string {
	if a.name == "" {
		return "the account that Keelson connects with"
	}
	return "service account " + a.namespace + "/" + a.name
}

// ForbiddenError reports that the API server does not let an account write an object of its
// component. No other account writes it instead.
type ForbiddenError struct {
	ID differ.ID
	// Account is NAMESPACE/NAME of the service account; empty: Keelson's own.
	Account string
	// Verbs that the account lacks on the resource. None when Keelson may not impersonate the
	// account, or when roles grant them and another check forbids the write.
	Verbs    []string
	Resource string // plural, with its group: deployments.apps
	message  string
	err      error
}

func (e *ForbiddenError) Error() string { return e.message }

func (e *ForbiddenError) Unwrap() error { return e.err }

// accounts are those that write objects of a cluster.
type accounts struct {
	config *rest.Config
	own    *account // that Keelson connects with

	mu     sync.Mutex
	byName map[string]*account // by NAMESPACE/NAME
}

func newAccounts(config *rest.Config, own dynamic.Interface) *accounts {
	return &accounts{config: config, own: &account{dynamic: own}, byName: map[string]*account{}}
}

// of returns the account that writes the objects of a component.
func (s *accounts) of(w Desired) (*account, error) {
	if w.ServiceAccount == "" {
		return s.own, nil
	}
	if w.Namespace == "" {
		return nil, fmt.Errorf("the service account %s has no namespace", w.ServiceAccount)
	}
	key := w.Namespace + "/" + w.ServiceAccount
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.byName[key]; a != nil {
		return a, nil
	}
	if as := s.config.Impersonate; as.UserName != "" || as.UID != "" || len(as.Groups) > 0 || len(as.Extra) > 0 {
		return nil, fmt.Errorf("service account %s can't be impersonated: the connection impersonates %q already, and Kubernetes knows no more than one", key, as.UserName)
	}
	config := rest.CopyConfig(s.config)
	// Without groups the API server fills in those of service accounts.
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + w.Namespace + ":" + w.ServiceAccount}
	d, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("service account %s: %w", key, err)
	}
	a := &account{namespace: w.Namespace, name: w.ServiceAccount, dynamic: d}
	s.byName[key] = a
	return a, nil
}

// resource returns the client that writes objects of one kind as the component's account, in the
// object's namespace if the kind is namespaced.
func (p *Prepared) resource(m *meta.RESTMapping, id differ.ID) dynamic.ResourceInterface {
	return observe.Resource(p.as.dynamic, m, id)
}

func (p *Prepared) forbidden(ctx context.Context, m *meta.RESTMapping, id differ.ID, err error, verbs ...string) error {
	return p.as.forbidden(ctx, m, id, err, verbs...)
}

// forbidden explains a refusal for missing rights. It returns any other error unchanged. Verbs are
// the verbs that were tried. It asks the API server which rights are missing. A webhook, a quota,
// or a terminating namespace answers with the same code, but is no [ForbiddenError].
func (a *account) forbidden(ctx context.Context, m *meta.RESTMapping, id differ.ID, err error, verbs ...string) error {
	if err == nil || !apierrors.IsForbidden(err) {
		return err
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return fmt.Errorf("%w: %w", &TerminatingError{Namespace: id.Namespace}, err)
	}
	e := &ForbiddenError{ID: id, Resource: m.Resource.GroupResource().String(), err: err}
	if a.name != "" {
		e.Account = a.namespace + "/" + a.name
	}
	for _, verb := range verbs {
		allowed, rerr := a.may(ctx, verb, m, id)
		switch {
		case apierrors.IsForbidden(rerr): // every user may review its own rights, so the impersonation was refused
			e.message = fmt.Sprintf("%s: Keelson may not impersonate %s: grant it the verb impersonate on this one account (keelson rbac prints the role): %v", id, a, err)
			return e
		case rerr != nil:
			return errors.Join(err, fmt.Errorf("ask for the rights of %s: %w", a, rerr))
		case !allowed:
			e.Verbs = append(e.Verbs, verb)
		}
	}
	switch {
	case len(e.Verbs) > 0:
		e.message = fmt.Sprintf("%s: %s may not %s %s%s: %s: %v", id, a, strings.Join(e.Verbs, " or "), e.Resource, in(id), a.grant(e), err)
		return e
	case m.Resource.Group == "rbac.authorization.k8s.io":
		e.message = fmt.Sprintf("%s: %s may write it, and was refused; it can't grant what it does not have itself: %v", id, a, err)
		return e
	}
	return err
}

func in(id differ.ID) string {
	if id.Namespace == "" {
		return " of the cluster"
	}
	return " in namespace " + id.Namespace
}

// grant explains how to give an account the missing rights.
func (a *account) grant(e *ForbiddenError) string {
	if a.name == "" {
		return "keelson rbac prints the roles that it needs"
	}
	what, bind := "role", "rolebinding"
	flags := " -n " + e.ID.Namespace
	if e.ID.Namespace == "" {
		what, bind, flags = "clusterrole", "clusterrolebinding", ""
	}
	name := "keelson-" + a.name
	return fmt.Sprintf("to allow it: kubectl create %s %s --verb=get,patch,create,delete --resource=%s%s && kubectl create %s %s --%s=%s --serviceaccount=%s:%s%s",
		what, name, e.Resource, flags, bind, name, what, name, a.namespace, a.name, flags)
}

// may asks the API server whether the account has a right. Every authenticated user may ask this
// about itself.
func (a *account) may(ctx context.Context, verb string, m *meta.RESTMapping, id differ.ID) (bool, error) {
	name := id.Name
	if verb == "create" {
		name = "" // create is authorized without a name
	}
	review := &authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: m.Resource.Group, Version: m.Resource.Version, Resource: m.Resource.Resource,
			Namespace: id.Namespace, Name: name,
		}},
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(review)
	if err != nil {
		return false, fmt.Errorf("encode: %w", err)
	}
	answer, err := a.dynamic.Resource(authorizationv1.SchemeGroupVersion.WithResource("selfsubjectaccessreviews")).
		Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review: %w", err)
	}
	allowed, _, err := unstructured.NestedBool(answer.Object, "status", "allowed")
	if err != nil {
		return false, fmt.Errorf("review: %w", err)
	}
	return allowed, nil
}

// RoleRules returns the rules of a Role or, with an empty namespace, of a ClusterRole.
func (c *Cluster) RoleRules(ctx context.Context, namespace, name string) ([]rbacv1.PolicyRule, error) {
	resource := c.dynamic.Resource(rbacv1.SchemeGroupVersion.WithResource("clusterroles"))
	objects, what := dynamic.ResourceInterface(resource), "ClusterRole "+name
	if namespace != "" {
		objects, what = c.dynamic.Resource(rbacv1.SchemeGroupVersion.WithResource("roles")).Namespace(namespace), "Role "+namespace+"/"+name
	}
	u, err := objects.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("cluster %s: read %s: %w", c.name, what, err)
	}
	var role rbacv1.ClusterRole // the rules of a Role have the same form
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"rules": u.Object["rules"]}, &role); err != nil {
		return nil, fmt.Errorf("cluster %s: decode %s: %w", c.name, what, err)
	}
	return role.Rules, nil
}
