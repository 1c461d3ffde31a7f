package delivery_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/connect"
)

// keys are the credentials of a service account, in a Secret that names the way to
// the cluster.
type keys struct {
	f          *fleet
	kubernetes kubernetes.Interface

	mu    sync.Mutex
	asked []asked // by the controller, but watches
}

// asked is a request with the end of its token.
type asked struct {
	token, method, path string
	watch               bool
	status              int
	begun               time.Time
}

// newKeys gives the fleet's cluster a connection by a Secret.
func newKeys(f *fleet) *keys {
	f.t.Helper()
	client, err := kubernetes.NewForConfig(server)
	if err != nil {
		f.t.Fatal(err)
	}
	k := &keys{f: f, kubernetes: client}
	if _, err := client.CoreV1().ServiceAccounts("default").Create(f.t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: f.name}}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(f.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: f.name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: f.name}},
	}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.write("clusters/CLUSTER/cluster.yaml", head+"Cluster\nconnection: {secret: {namespace: default, name: CLUSTER-way}}\n")
	f.commit("a connection by a Secret")
	return k
}

// token returns one that is good until it is revoked.
func (k *keys) token(name string) string {
	k.f.t.Helper()
	bound, err := k.kubernetes.CoreV1().Secrets("default").Create(k.f.t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: k.f.name + "-" + name}}, metav1.CreateOptions{})
	if err != nil {
		k.f.t.Fatal(err)
	}
	t, err := k.kubernetes.CoreV1().ServiceAccounts("default").CreateToken(k.f.t.Context(), k.f.name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Secret", Name: bound.Name, UID: bound.UID,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		k.f.t.Fatal(err)
	}
	return t.Status.Token
}

// revoke makes a token worthless, and waits until the API server says so: it
// remembers good ones for a while.
func (k *keys) revoke(name, token string) {
	k.f.t.Helper()
	if err := k.kubernetes.CoreV1().Secrets("default").Delete(k.f.t.Context(), k.f.name+"-"+name, metav1.DeleteOptions{}); err != nil {
		k.f.t.Fatal(err)
	}
	c := rest.AnonymousClientConfig(server)
	c.BearerToken = token
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		k.f.t.Fatal(err)
	}
	at, _, err := rest.DefaultServerUrlFor(server)
	if err != nil {
		k.f.t.Fatal(err)
	}
	k.f.eventually("the token is refused", func() bool {
		r, err := http.NewRequestWithContext(k.f.t.Context(), http.MethodGet, at.JoinPath("/version").String(), nil)
		if err != nil {
			k.f.t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusUnauthorized
	})
}

// kubeconfig leads to the server, by the given host where there is one.
func (k *keys) kubeconfig(token, host string) []byte {
	k.f.t.Helper()
	at, _, err := rest.DefaultServerUrlFor(server)
	if err != nil {
		k.f.t.Fatal(err)
	}
	if host != "" {
		at.Host = host + ":" + at.Port()
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: at.String(), CertificateAuthorityData: server.CAData}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	text, err := clientcmd.Write(*c)
	if err != nil {
		k.f.t.Fatal(err)
	}
	return text
}

// put writes the Secret that names the way.
func (k *keys) put(kubeconfig []byte) {
	k.f.t.Helper()
	secrets := k.kubernetes.CoreV1().Secrets("default")
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: k.f.name + "-way"}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	_, err := secrets.Update(k.f.t.Context(), s, metav1.UpdateOptions{})
	if err != nil {
		_, err = secrets.Create(k.f.t.Context(), s, metav1.CreateOptions{})
	}
	if err != nil {
		k.f.t.Fatal(err)
	}
}

// start runs a controller that finds the way as it does in production; watched says
// whether anybody tells it of changes.
func (k *keys) start(watched bool) {
	k.f.t.Helper()
	read, err := connect.SecretsOf(server)
	if err != nil {
		k.f.t.Fatal(err)
	}
	source := connect.Source{Secrets: read}
	log := slog.New(slog.NewTextHandler(io.MultiWriter(k.f.t.Output(), &k.f.log), nil))
	if source.Watch, err = connect.WatchSecretsOf(server, log); err != nil {
		k.f.t.Fatal(err)
	}
	if watched {
		k.f.follow = source.Follow
	}
	k.f.start(func(ctx context.Context, c v1alpha1.Connection) (*rest.Config, error) {
		config, err := source.Config(ctx, c)
		if err != nil {
			return nil, err
		}
		config.Wrap(k.hears(config.BearerToken))
		return config, nil
	})
}

func (k *keys) hears(token string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			a := asked{begun: time.Now(), token: token, method: r.Method, path: r.URL.Path, watch: r.URL.Query().Get("watch") != ""}
			answer, err := next.RoundTrip(r)
			if err == nil {
				a.status = answer.StatusCode
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			k.asked = append(k.asked, a)
			return answer, err
		})
	}
}

func (k *keys) since() []asked {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := k.asked
	k.asked = nil
	return out
}

func (f *fleet) push(text string) {
	f.t.Helper()
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.0\nvalues: {text: "+text+"}\n")
	f.commit(text)
}

// Credentials are replaced while the fleet changes, and the old ones revoked: nothing
// fails, nothing is asked with the old ones any more, and what is known stays known.
func TestCredentialsRotate(t *testing.T) {
	f := newFleet(t)
	k := newKeys(f)
	tokens := []string{k.token("0")}
	k.put(k.kubeconfig(tokens[0], ""))
	k.start(true)
	f.sync(v1alpha1.SyncSynced, "")
	for i := 1; i <= 3; i++ {
		tokens = append(tokens, k.token(fmt.Sprint(i)))
		f.push(fmt.Sprint("before-", i))
		k.put(k.kubeconfig(tokens[i], ""))
		f.eventually("the credentials are new", func() bool { return strings.Count(f.log.String(), "has new credentials") == i })
		replaced := time.Now()
		k.revoke(fmt.Sprint(i-1), tokens[i-1])
		f.push(fmt.Sprint("after-", i))
		f.eventually("the push arrives", func() bool { return f.text() == fmt.Sprint("after-", i) })
		for _, a := range k.since() {
			if a.begun.Before(replaced) {
				continue // what is on its way ends as it began
			}
			if a.token != tokens[i] || a.status == http.StatusUnauthorized {
				t.Errorf("after rotation %d: %s %s with token %d answered %d", i, a.method, a.path, slices.Index(tokens, a.token), a.status)
			}
		}
	}
	f.ready("2", "")
	f.rests(1)
	k.since()
	tokens = append(tokens, k.token("4"))
	k.put(k.kubeconfig(tokens[4], ""))
	f.eventually("the credentials are new", func() bool { return strings.Count(f.log.String(), "has new credentials") == 4 })
	f.eventually("watches are begun anew", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		n := 0
		for _, a := range k.asked {
			if a.watch && a.token == tokens[4] {
				n++
			}
		}
		return n >= 3 // records, and two kinds
	})
	for _, a := range k.since() {
		// Records of other tests come and go meanwhile, on the same API server.
		others := strings.Contains(a.path, "/secrets/record-") && !strings.Contains(a.path, "/record-"+f.name)
		if !a.watch && a.path != "/version" && !others {
			t.Errorf("new credentials had %s %s asked: what is known was not kept", a.method, a.path)
		}
	}
	if text := f.logged(); strings.Contains(text, "delivery failed") || strings.Contains(text, "level=WARN") {
		t.Errorf("something failed meanwhile:\n%s", text)
	}
}

// An unusable Secret changes nothing. Every status reports it until the Secret is usable.
func TestCredentialsUnusable(t *testing.T) {
	f := newFleet(t)
	k := newKeys(f)
	token := k.token("0")
	good := k.kubeconfig(token, "")
	k.put(good)
	k.start(true)
	f.sync(v1alpha1.SyncSynced, "")
	f.ready("2", "")
	f.rests(1)
	secrets := k.kubernetes.CoreV1().Secrets("default")
	cases := []struct {
		why, says string
		do        func() error
	}{
		{"The Secret holds no valid kubeconfig.", "not a kubeconfig", func() error { k.put([]byte("{")); return nil }},
		{"The Secret is empty.", "has no context with the name in current-context", func() error { k.put(nil); return nil }},
		{"The Secret holds the token of another cluster.", "refuses the new credentials", func() error { k.put(k.kubeconfig("x"+token, "")); return nil }},
		{"The Secret is being replaced, or was deleted by mistake.", "not found", func() error {
			return secrets.Delete(t.Context(), f.name+"-way", metav1.DeleteOptions{})
		}},
	}
	for i, c := range cases {
		t.Log(c.why)
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		f.sync(v1alpha1.SyncSynced, "goes on with the credentials from before: ")
		f.sync(v1alpha1.SyncSynced, c.says)
		f.push(fmt.Sprint("text-", i))
		f.eventually("the push arrives all the same", func() bool { return f.text() == fmt.Sprint("text-", i) })
		k.put(good)
		f.eventually("nothing is said any more", func() bool {
			s := f.status()
			return s.Sync == v1alpha1.SyncSynced && !strings.Contains(s.Message, "credentials")
		})
	}
	f.tellsNot(token, "delivery failed")
}

// Credentials are revoked, and no event says that there are others. Keelson reads them again at once,
// and restarts nothing. Their successors may not exist for a while.
func TestCredentialsRevoked(t *testing.T) {
	f := newFleet(t)
	k := newKeys(f)
	first, second := k.token("0"), k.token("1")
	k.put(k.kubeconfig(first, ""))
	k.start(false)
	f.sync(v1alpha1.SyncSynced, "")
	// The new credentials are there first: other components have records in the cluster, and may be
	// looked at in between. Their refusal would begin a pause, in which nothing is read again.
	k.put(k.kubeconfig(second, ""))
	k.revoke("0", first)
	f.push("later")
	f.eventually("the push arrives", func() bool { return f.text() == "later" })
	if text := f.log.String(); regexp.MustCompile(`delivery failed" cluster=\S+ component=` + f.name + "-web ").MatchString(text) {
		t.Errorf("a request that was refused once was not sent again:\n%s", text)
	}

	t.Log("and where there are none for a while, it goes on when there are")
	k.revoke("1", second)
	f.push("much-later")
	f.sync(v1alpha1.SyncFailed, "Unauthorized")
	k.put(k.kubeconfig(k.token("2"), ""))
	begun := time.Now()
	f.eventually("the push arrives", func() bool { return f.text() == "much-later" })
	t.Logf("it went on after %s", time.Since(begun))
	f.sync(v1alpha1.SyncSynced, "")
}

// A Secret that leads to another server is followed by another agent: what the one
// knows is not true there. Here it is the same server by another name, so nothing is
// written.
func TestConnectionMoves(t *testing.T) {
	f := newFleet(t)
	k := newKeys(f)
	token := k.token("0")
	k.put(k.kubeconfig(token, ""))
	k.start(true)
	f.sync(v1alpha1.SyncSynced, "")
	f.ready("2", "")
	f.rests(1)
	k.since()
	k.put(k.kubeconfig(token, "localhost"))
	f.eventually("it moves", func() bool { return strings.Contains(f.log.String(), "leads to another server by now") })
	f.eventually("everything is learnt anew", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return slices.ContainsFunc(k.asked, func(a asked) bool { return a.watch && strings.HasSuffix(a.path, "/configmaps") })
	})
	f.rests(1)
	for _, a := range k.since() {
		// What other tests of the cluster left behind is cleared away meanwhile.
		if a.method != http.MethodGet && strings.Contains(a.path, "connectionmoves") {
			t.Errorf("nothing had changed, and it wrote: %s %s", a.method, a.path)
		}
	}
	f.push("there")
	f.eventually("the push arrives", func() bool { return f.text() == "there" })
}

// A client certificate is replaced as a token is: by its own audit log, the cluster is
// asked with the old one no more, by requests or watches.
func TestCertificateRotates(t *testing.T) {
	f := newFleet(t)
	apart, audit, err := apiservertest.StartAudited(apiservertest.Versions()[0].Assets, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := apart.Stop(); err != nil {
			t.Error(err)
		}
	})
	if f.dynamic, err = dynamic.NewForConfig(apart.Config); err != nil {
		t.Fatal(err)
	}
	k := newKeys(f)
	put := func(user string) {
		kubeconfig, err := apart.KubeconfigOf(user, "system:masters")
		if err != nil {
			t.Fatal(err)
		}
		k.put(kubeconfig)
	}
	put("first")
	k.start(true)
	f.sync(v1alpha1.SyncSynced, "")
	put("second")
	f.eventually("the credentials are new", func() bool { return strings.Contains(f.log.String(), "has new credentials") })
	renewed := time.Now()
	f.push("after")
	f.eventually("the push arrives", func() bool { return f.text() == "after" })
	type line struct {
		User                     struct{ Username string }
		Verb                     string
		RequestReceivedTimestamp time.Time
	}
	ended, others := 0, 0 // watches of the first, and requests of the second
	f.eventually("its watches end", func() bool {
		content, err := os.ReadFile(audit)
		if err != nil {
			t.Fatal(err)
		}
		ended, others = 0, 0
		for text := range strings.Lines(string(content)) {
			var l line
			if json.Unmarshal([]byte(text), &l) != nil {
				continue // it is being written
			}
			switch {
			case l.User.Username == "first" && l.RequestReceivedTimestamp.After(renewed):
				t.Fatalf("the old certificate was used: %s", text)
			case l.User.Username == "first" && l.Verb == "watch":
				ended++ // it is logged when it has
			case l.User.Username == "second":
				others++
			}
		}
		return ended >= 3 && others > 0 // records, and two kinds
	})
	t.Logf("%d watches of the old certificate ended, %d requests of the new one", ended, others)
}
