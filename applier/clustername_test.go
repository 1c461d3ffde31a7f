package applier_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	rbacv1client "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apiservertest"
)

// An API server is that of one cluster: a connection of another that leads there, by
// mistake or by intent, reads and changes nothing.
func TestOtherCluster(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	alone, err := apiservertest.Start(os.Getenv(apiservertest.EnvAssets))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := alone.Stop(); err != nil {
			t.Error(err)
		}
	})
	core, err := corev1client.NewForConfig(alone.Config)
	if err != nil {
		t.Fatal(err)
	}
	secrets := core.Secrets("keelson-system")
	read := func(t *testing.T) *corev1.Secret {
		t.Helper()
		s, err := secrets.Get(t.Context(), "mask-key", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return s
	}
	named := func(t *testing.T, want string) {
		t.Helper()
		if is := string(read(t).Data["cluster"]); is != want {
			t.Errorf("the API server is that of %q, want %q", is, want)
		}
	}
	patch := func(t *testing.T, kind types.PatchType, patch string) {
		t.Helper()
		if _, err := secrets.Patch(t.Context(), "mask-key", kind, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	connect := func(t *testing.T, name string, config *rest.Config) *applier.Cluster {
		t.Helper()
		c, err := applier.New(applier.Options{Name: name, Config: config, Shared: shared})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	refused := func(t *testing.T, what string, err error) {
		t.Helper()
		other, ok := errors.AsType[*applier.OtherClusterError](err)
		if !ok || other.Other != "prod" || other.Cluster != "test" {
			t.Errorf("%s: %v, want that the API server is that of prod", what, err)
		}
	}

	// The cases build on each other.
	if c := connect(t, "prod", alone.Config); c.Prepare(t.Context()) != nil {
		t.Fatal("the first cluster could not be prepared")
	}
	system, err := core.Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := read(t)
	if uid := string(first.Data["uid"]); uid != string(system.UID) {
		t.Errorf("the UID is %q, want that of kube-system, %s", uid, system.UID)
	}
	w := &world{t: t, ns: "whose", component: "whose", cluster: connect(t, "prod", alone.Config)}
	if _, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.cluster.Apply(t.Context(), w.plan(w.want("v1", configMap("a", "one"))), applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}

	t.Run("Another", func(t *testing.T) {
		c := connect(t, "test", alone.Config)
		refused(t, "prepare", c.Prepare(t.Context()))
		_, err := c.Plan(t.Context(), w.want("v2", configMap("a", "two")))
		refused(t, "plan", err)
		_, err = c.Recorded(t.Context())
		refused(t, "list the records", err)
		_, err = c.Record(t.Context(), w.component)
		refused(t, "read a record", err)
		if now := read(t); now.ResourceVersion != first.ResourceVersion {
			t.Error("it was written")
		}
		a, err := core.ConfigMaps(w.ns).Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || a.Data["key"] != "one" {
			t.Errorf("the ConfigMap is %v, %v", a, err)
		}
	})
	t.Run("AnotherWithoutRights", func(t *testing.T) { // to read kube-system: what is not known is no permission
		config := rest.CopyConfig(alone.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: "weak"}
		rbac, err := rbacv1client.NewForConfig(alone.Config)
		if err != nil {
			t.Fatal(err)
		}
		name := metav1.ObjectMeta{Name: "weak", Namespace: "keelson-system"}
		_, err = rbac.Roles(name.Namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"*"}},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = rbac.RoleBindings(name.Namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: name.Name},
			Subjects: []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: name.Name}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.eventually("the rights to be there", func() bool {
			_, err := connect(t, "prod", config).Recorded(t.Context())
			return !apierrors.IsForbidden(err)
		})
		refused(t, "prepare", connect(t, "test", config).Prepare(t.Context()))
	})
	t.Run("Renamed", func(t *testing.T) { // as the error says
		err := connect(t, "test", alone.Config).Prepare(t.Context())
		if err == nil || !strings.Contains(err.Error(), `-p='[{"op":"remove","path":"/data/cluster"}]'`) {
			t.Fatalf("%v, want the command", err)
		}
		patch(t, types.JSONPatchType, `[{"op":"remove","path":"/data/cluster"}]`)
		if _, err := connect(t, "prod", alone.Config).Recorded(t.Context()); err != nil {
			t.Errorf("an API server without a name, as older Keelsons left it, is looked at: %v", err)
		}
		if err := connect(t, "test", alone.Config).Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		named(t, "test")
		if now := read(t); string(now.Data["key"]) != string(first.Data["key"]) {
			t.Error("the key is another one")
		}
	})
	t.Run("Copied", func(t *testing.T) { // by a backup of another cluster
		patch(t, types.MergePatchType, `{"stringData": {"cluster": "prod", "uid": "00000000-0000-0000-0000-000000000000"}}`)
		if err := connect(t, "test", alone.Config).Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		named(t, "test")
	})
	t.Run("Restored", func(t *testing.T) { // under its own name: the UID follows, or the next one would take it for a copy
		patch(t, types.MergePatchType, `{"stringData": {"cluster": "prod", "uid": "00000000-0000-0000-0000-000000000000"}}`)
		if err := connect(t, "prod", alone.Config).Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		if uid := string(read(t).Data["uid"]); uid != string(system.UID) {
			t.Errorf("the UID is %q, want that of kube-system, %s", uid, system.UID)
		}
		refused(t, "prepare", connect(t, "test", alone.Config).Prepare(t.Context()))
	})
	t.Run("Shared", func(t *testing.T) { // as an administrator may say
		patch(t, types.MergePatchType, `{"stringData": {"cluster": "*"}}`)
		for _, name := range []string{"prod", "test"} {
			if err := connect(t, name, alone.Config).Prepare(t.Context()); err != nil {
				t.Error(err)
			}
		}
		named(t, "*")
	})
	t.Run("AtOnce", func(t *testing.T) { // one is first, and the others hear of it
		for range 5 {
			if err := secrets.Delete(t.Context(), "mask-key", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			errs := make([]error, 6)
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() { errs[i] = connect(t, fmt.Sprintf("c%d", i), alone.Config).Prepare(t.Context()) })
			}
			wg.Wait()
			var taken []string
			for i, err := range errs {
				_, other := errors.AsType[*applier.OtherClusterError](err)
				switch {
				case err == nil:
					taken = append(taken, fmt.Sprintf("c%d", i))
				case !other:
					t.Errorf("c%d: %v", i, err)
				}
			}
			if len(taken) != 1 {
				t.Fatalf("it is that of %v", taken)
			}
			named(t, taken[0])
		}
	})
}
