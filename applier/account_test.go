package applier_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
)

// asAccount is a component of the world that names a service account.
func (w *world) asAccount(want applier.Desired) applier.Desired {
	want.ServiceAccount = "deployer"
	return want
}

// allow gives a subject rights in the world's namespace.
func (w *world) allow(name string, subject rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	w.t.Helper()
	c, err := kubernetes.NewForConfig(server)
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = c.CoreV1().Namespaces().Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: name, Namespace: w.ns}
	if err := c.RbacV1().Roles(w.ns).Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
	if _, err := c.RbacV1().Roles(w.ns).Create(w.t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	_, err = c.RbacV1().RoleBindings(w.ns).Create(w.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, Subjects: []rbacv1.Subject{subject},
		RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: name},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
	w.settleRights(subject, rules)
}

// settleRights waits until the API server's authorizer has seen the roles.
func (w *world) settleRights(subject rbacv1.Subject, rules []rbacv1.PolicyRule) {
	w.t.Helper()
	config := rest.CopyConfig(server)
	config.Impersonate = rest.ImpersonationConfig{UserName: subject.Name}
	if subject.Kind == "ServiceAccount" {
		config.Impersonate.UserName = "system:serviceaccount:" + subject.Namespace + ":" + subject.Name
	}
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(w.t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		for _, verb := range []string{"get", "patch", "create", "delete"} {
			for _, resource := range []string{"configmaps", "secrets"} {
				want := slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
					return slices.Contains(r.Verbs, verb) && slices.Contains(r.Resources, resource)
				})
				review, err := c.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
					Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: w.ns, Verb: verb, Resource: resource,
					}},
				}, metav1.CreateOptions{})
				if err != nil || review.Status.Allowed != want {
					return false, err
				}
			}
		}
		return true, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func configMapRule(verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: verbs}
}

func (w *world) deployer() rbacv1.Subject {
	return rbacv1.Subject{Kind: "ServiceAccount", Namespace: w.ns, Name: "deployer"}
}

const accountMap = `{apiVersion: v1, kind: ConfigMap, metadata: {name: app, namespace: NS}, data: {a: "1"}}`

// A component with a service account may do what the account may, and no more:
// Keelson's own rights are no way around it, neither for a write nor for what
// was applied with them before.
func TestAccount(t *testing.T) {
	w := newWorld(t)
	const other = `{apiVersion: v1, kind: ConfigMap, metadata: {name: other, namespace: NS}, data: {a: "1"}}`
	const secret = `{apiVersion: v1, kind: Secret, metadata: {name: app, namespace: NS}, stringData: {a: "1"}}`

	t.Log("without any right nothing is written, and the error says what is lacking and how to grant it")
	w.allow("none", w.deployer())
	w.refused(w.asAccount(w.want("v1", accountMap)), []string{"patch", "create"}, "configmaps",
		"service account "+w.ns+"/deployer may not patch or create configmaps in namespace "+w.ns,
		"kubectl create role keelson-deployer --verb=get,patch,create,delete --resource=configmaps -n "+w.ns)
	w.absent("app")

	t.Log("with them, the writes are the account's: the API server says so, not we")
	w.allow("writes", w.deployer(), configMapRule("patch", "create"))
	w.apply(w.asAccount(w.want("v1", accountMap, other)))

	t.Log("an update is tried before it is sent, with the same rights")
	w.allow("writes", w.deployer(), configMapRule("create"))
	update := w.asAccount(w.want("v2", strings.Replace(accountMap, `"1"`, `"2"`, 1), other))
	if _, err := w.cluster.Plan(t.Context(), update); !errors.As(err, new(*applier.ForbiddenError)) {
		t.Errorf("the dry run: got %v", err)
	}

	t.Log("another kind than those that were granted")
	w.allow("writes", w.deployer(), configMapRule("patch", "create"))
	w.refused(w.asAccount(w.want("v3", accountMap, other, secret)), []string{"patch", "create"}, "secrets", "may not patch or create secrets")

	t.Log("what it may not delete stays, and stays in the record")
	w.apply(w.asAccount(w.want("v4", accountMap))) // marks it
	w.refused(w.asAccount(w.want("v4", accountMap)), []string{"delete"}, "configmaps", "may not delete configmaps")
	w.present("other")

	t.Log("nor does a record of what Keelson itself applied let the account's component delete it")
	w.apply(w.want("v5", accountMap, other, secret))
	w.apply(w.asAccount(w.want("v6", accountMap, other)))
	w.refused(w.asAccount(w.want("v6", accountMap, other)), []string{"delete"}, "secrets", "may not delete secrets")
	w.present("other")

	t.Log("a right of the account, not Keelson's, deletes")
	w.allow("deletes", w.deployer(), configMapRule("patch", "create", "delete"),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"patch", "create", "delete"}})
	w.apply(w.asAccount(w.want("v7", accountMap)))
	p := w.plan(w.asAccount(w.want("v7", accountMap)))
	if _, err := w.cluster.Apply(t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0)}); err != nil {
		t.Fatal(err)
	}
	w.collect()
	w.absent("other")
}

// Without the right to impersonate the service account, the plan fails and the error names the
// missing right. Keelson does not fall back to its own rights.
func TestAccountNotToBeImpersonated(t *testing.T) {
	w := newWorld(t)
	w.allow("deployer", w.deployer(), configMapRule("get", "patch", "create", "delete"))
	everything := []string{"get", "list", "create", "update", "patch", "delete"}
	w.connect(w.serviceAccount("keelson", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets", "namespaces"}, Verbs: everything},
		// Other tests bring CRDs of autoscalers.
		rbacv1.PolicyRule{APIGroups: []string{"autoscaling", "autoscaling.k8s.io", "keda.sh"}, Resources: []string{"*"}, Verbs: everything}))
	w.refused(w.asAccount(w.want("v1", accountMap)), nil, "configmaps", "Keelson may not impersonate service account "+w.ns+"/deployer")
	w.absent("app")
	w.apply(w.want("v1", accountMap))

	t.Log("a connection that already impersonates a user cannot impersonate another one")
	config := rest.CopyConfig(server)
	config.Impersonate = rest.ImpersonationConfig{UserName: "other-user", Groups: []string{"system:masters"}}
	w.connect(config)
	if _, err := w.cluster.Plan(t.Context(), w.asAccount(w.want("v1", accountMap))); err == nil ||
		!strings.Contains(err.Error(), `the connection impersonates "other-user" already`) {
		t.Errorf("got %v", err)
	}
}

// serviceAccount is a connection as a service account with cluster-wide rights.
func (w *world) serviceAccount(name string, rules ...rbacv1.PolicyRule) *rest.Config {
	w.t.Helper()
	c, err := kubernetes.NewForConfig(server)
	if err != nil {
		w.t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: w.ns + "-" + name}
	_, err = c.CoreV1().ServiceAccounts(w.ns).Create(w.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := c.RbacV1().ClusterRoles().Create(w.t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	_, err = c.RbacV1().ClusterRoleBindings().Create(w.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: w.ns, Name: name}},
		RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: meta.Name},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	token, err := c.CoreV1().ServiceAccounts(w.ns).CreateToken(w.t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(server)
	config.BearerToken = token.Status.Token
	config.QPS = -1
	w.settleRights(rbacv1.Subject{Kind: "ServiceAccount", Namespace: w.ns, Name: name}, rules)
	return config
}

// refused applies, and wants it refused for want of rights.
func (w *world) refused(want applier.Desired, verbs []string, resource string, says ...string) {
	w.t.Helper()
	p := w.plan(want)
	_, err := w.cluster.Apply(w.t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0)})
	refusal, ok := errors.AsType[*applier.ForbiddenError](err)
	if !ok {
		w.t.Fatalf("got %v, want a ForbiddenError", err)
	}
	if !slices.Equal(refusal.Verbs, verbs) || refusal.Resource != resource || refusal.Account != w.ns+"/deployer" {
		w.t.Errorf("got %+v, want verbs %v of %s", refusal, verbs, resource)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			w.t.Errorf("it does not say %q: %v", text, err)
		}
	}
}

func (w *world) present(name string) { w.t.Helper(); w.exists(name, true) }

func (w *world) absent(name string) { w.t.Helper(); w.exists(name, false) }

func (w *world) exists(name string, want bool) {
	w.t.Helper()
	_, err := w.resource(configMaps).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
	if (err == nil) != want {
		w.t.Errorf("ConfigMap %s exists: %t, want %t", name, err == nil, want)
	}
}
