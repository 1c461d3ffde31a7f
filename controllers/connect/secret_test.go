package connect_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/applier/rights"
	"github.com/keelson-io/keelson/controllers/connect"
)

// text is a log.
type text struct {
	mu sync.Mutex
	is strings.Builder
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.is.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.is.String()
}

// grant gives the user keelson what a connection needs, and the user before what an
// earlier version printed for it.
func grant(t *testing.T, admin kubernetes.Interface, to v1alpha1.SecretKey) {
	t.Helper()
	of := []v1alpha1.Connection{{Secret: &to}}
	for _, o := range rights.ForHub(of, nil).Objects("keelson", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "keelson"}) {
		role, ok := o.(*rbacv1.Role)
		if !ok || role.Namespace != to.Namespace {
			continue
		}
		before := role.DeepCopy()
		before.Name = "before"
		for i := range before.Rules {
			before.Rules[i].Verbs = []string{"get"}
		}
		for _, r := range []*rbacv1.Role{role, before} {
			if _, err := admin.RbacV1().Roles(to.Namespace).Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := admin.RbacV1().RoleBindings(to.Namespace).Create(t.Context(), &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: r.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: r.Name},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: r.Name}},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What `keelson rbac --hub` prints for a connection allows to read and watch its
// Secret and no other, by the newest and the oldest API server; who may read it alone
// is told so once.
func TestOneSecretIsWatched(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, apiservertest.Versions(), func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		s := start(t)
		admin, err := kubernetes.NewForConfig(s.Config)
		if err != nil {
			t.Fatal(err)
		}
		const namespace, name = "default", "way"
		secrets := admin.CoreV1().Secrets(namespace)
		for _, n := range []string{name, "another"} {
			if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		grant(t, admin, v1alpha1.SecretKey{Namespace: namespace, Name: name})
		as := func(user string) *rest.Config {
			c := rest.CopyConfig(s.Config)
			c.Impersonate.UserName = user
			return c
		}
		watch := func(user string) (changed chan struct{}, log *text) {
			changed, log = make(chan struct{}, 16), &text{}
			watches, err := connect.WatchSecretsOf(as(user), slog.New(slog.NewTextHandler(log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				watches(ctx, namespace, name, func() { changed <- struct{}{} })
			}()
			t.Cleanup(func() {
				stop()
				<-done
			})
			return changed, log
		}

		read, err := connect.SecretsOf(as("keelson"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := read(t.Context(), namespace, name); err != nil {
			t.Errorf("its own: %v", err)
		}
		// Whether another one is there, a cluster's file can't find out either.
		for _, other := range [][2]string{{namespace, "another"}, {namespace, "nowhere"}, {"kube-system", "another"}, {"nowhere", "another"}} {
			if _, err := read(t.Context(), other[0], other[1]); !apierrors.IsForbidden(err) {
				t.Errorf("%s: %v, want that it is forbidden", other, err)
			}
		}
		changed, _ := watch("keelson")
		hear := func(what string) {
			t.Helper()
			select {
			case <-changed:
			case <-time.After(patience):
				t.Fatalf("%s was not heard", what)
			}
		}
		hear("that it is there")
		for _, n := range []string{"another", name} {
			if _, err := secrets.Update(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: n}, Data: map[string][]byte{"a": {1}}}, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		hear("a change")
		if err := secrets.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		hear("that it is gone")
		select {
		case <-changed:
			t.Error("another's change was heard")
		default:
		}

		_, log := watch("before")
		deadline := time.After(patience)
		for !strings.Contains(log.String(), "may not be watched") {
			select {
			case <-deadline:
				t.Fatalf("it is not told that the Secret may not be watched: %s", log)
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}
