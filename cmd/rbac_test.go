package cmd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
)

// right is one that a request took, or a rule grants.
type right struct{ namespace, group, resource, name, verb string }

// audited is an API server that tells what it was asked for.
type audited struct {
	t          *testing.T
	client     client.Client
	kubernetes kubernetes.Interface
	log        string
	admin      string // kubeconfig files, with the context prod
	restricted string
}

func newAudited(t *testing.T) *audited {
	t.Helper()
	if versions[0].Assets == "" {
		apiservertest.Need(t, nil)
	}
	dir := t.TempDir()
	s, log, err := apiservertest.StartAudited(versions[0].Assets, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	a := &audited{t: t, log: log}
	if a.client, err = client.New(s.Config, client.Options{}); err != nil {
		t.Fatal(err)
	}
	if a.kubernetes, err = kubernetes.NewForConfig(s.Config); err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.Load(content)
		if err != nil {
			t.Fatal(err)
		}
		for _, context := range []string{"prod", "testing-eu-01"} {
			config.Contexts[context] = config.Contexts["envtest"]
		}
		file := filepath.Join(dir, name)
		if err := clientcmd.WriteToFile(*config, file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	content, err := s.Kubeconfig()
	a.admin = write("admin", content, err)
	content, err = s.KubeconfigOf("keelson")
	a.restricted = write("restricted", content, err)
	return a
}

// grant applies what keelson rbac printed, as an administrator.
func (a *audited) grant(printed string) {
	a.t.Helper()
	for doc := range strings.SplitSeq(printed, "---\n") {
		var u unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			a.t.Fatal(err)
		}
		if len(u.Object) == 0 {
			continue
		}
		if err := a.client.Apply(a.t.Context(), client.ApplyConfigurationFromUnstructured(&u), client.FieldOwner("admin"), client.ForceOwnership); err != nil {
			a.t.Fatalf("%v\n%s", err, doc)
		}
	}
}

// granted are the rights that a print holds.
func granted(t *testing.T, printed string) map[right]bool {
	t.Helper()
	out := map[right]bool{}
	for doc := range strings.SplitSeq(printed, "---\n") {
		var role rbacv1.Role
		if err := yaml.Unmarshal([]byte(doc), &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			if len(rule.ResourceNames) == 0 {
				rule.ResourceNames = []string{""}
			}
			for _, verb := range rule.Verbs {
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						for _, name := range rule.ResourceNames {
							out[right{role.Namespace, group, resource, name, verb}] = true
						}
					}
				}
				for _, url := range rule.NonResourceURLs {
					out[right{resource: url, verb: verb}] = true
				}
			}
		}
	}
	return out
}

// asked are the rights that requests of the restricted user took. It fails the
// test for each that the API server refused.
func (a *audited) asked() map[right]bool {
	a.t.Helper()
	file, err := os.Open(a.log)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	out := map[right]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb, RequestURI string
			User             struct{ Username string }
			ObjectRef        *struct{ Namespace, APIGroup, Resource, Subresource, Name string }
			ResponseStatus   struct {
				Code    int
				Message string
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			a.t.Fatal(err)
		}
		if event.User.Username != "keelson" || event.ObjectRef == nil || event.ObjectRef.Resource == "" {
			continue // discovery is for everybody
		}
		if event.ResponseStatus.Code == 403 {
			a.t.Errorf("forbidden: %s %s: %s", event.Verb, event.RequestURI, event.ResponseStatus.Message)
		}
		o := event.ObjectRef
		if o.Subresource != "" {
			o.Resource += "/" + o.Subresource
		}
		out[right{o.Namespace, o.APIGroup, o.Resource, o.Name, event.Verb}] = true
		if event.Verb == "patch" && event.ResponseStatus.Code == 201 {
			out[right{o.Namespace, o.APIGroup, o.Resource, o.Name, "create"}] = true
		}
	}
	if err := lines.Err(); err != nil {
		a.t.Fatal(err)
	}
	return out
}

// uses says whether a granted right was needed for one that was asked for.
func (g right) uses(asked map[right]bool) bool {
	for r := range asked {
		if (g.namespace == "" || g.namespace == r.namespace) && g.group == r.group && g.resource == r.resource &&
			(g.name == "" || g.name == r.name) && g.verb == r.verb {
			return true
		}
	}
	return false
}

// becomeHealthy does for all Deployments, DaemonSets of both kinds and ClusterIssuers
// what their controllers would, until the test ends.
func (a *audited) becomeHealthy() {
	ctx, cancel := context.WithCancel(a.t.Context())
	done := make(chan struct{})
	a.t.Cleanup(func() { cancel(); <-done })
	mend := func() {
		deployments, err := a.kubernetes.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
		for i := 0; err == nil && i < len(deployments.Items); i++ {
			d := &deployments.Items[i]
			if d.Status.ObservedGeneration == d.Generation {
				continue
			}
			n := *d.Spec.Replicas
			d.Status = appsv1.DeploymentStatus{
				ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n,
				Conditions: []appsv1.DeploymentCondition{
					{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue},
					{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
				},
			}
			_, _ = a.kubernetes.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
		}
		sets, err := a.kubernetes.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
		for i := 0; err == nil && i < len(sets.Items); i++ {
			if d := &sets.Items[i]; d.Status.ObservedGeneration != d.Generation {
				d.Status = appsv1.DaemonSetStatus{ObservedGeneration: d.Generation}
				_, _ = a.kubernetes.AppsV1().DaemonSets(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
			}
		}
	}
	tell := func(apiVersion, kind string, status func(*unstructured.Unstructured) map[string]any) {
		var list unstructured.UnstructuredList
		list.SetAPIVersion(apiVersion)
		list.SetKind(kind + "List")
		err := a.client.List(ctx, &list) // once it is served
		for i := 0; err == nil && i < len(list.Items); i++ {
			if u := &list.Items[i]; u.Object["status"] == nil {
				u.Object["status"] = status(u)
				_ = a.client.Status().Update(ctx, u)
			}
		}
	}
	issue := func() {
		tell("cert-manager.io/v1", "ClusterIssuer", func(u *unstructured.Unstructured) map[string]any {
			return map[string]any{"conditions": []any{map[string]any{
				"type": "Ready", "status": "True", "reason": "ACMEAccountRegistered", "observedGeneration": u.GetGeneration(),
			}}}
		})
		tell("apps.kruise.io/v1beta1", "DaemonSet", func(u *unstructured.Unstructured) map[string]any { // there are no nodes
			return map[string]any{
				"observedGeneration": u.GetGeneration(), "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberAvailable": 0,
				"numberMisscheduled": 0, "numberReady": 0, "numberUnavailable": 0, "updatedNumberScheduled": 0, "daemonSetHash": "",
			}
		})
		tell("apps.kruise.io/v1beta1", "StatefulSet", func(u *unstructured.Unstructured) map[string]any {
			n, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
			return map[string]any{
				"observedGeneration": u.GetGeneration(), "replicas": n, "readyReplicas": n, "availableReplicas": n, "currentReplicas": n,
				"updatedReplicas": n, "updatedReadyReplicas": n, "updatedAvailableReplicas": n, "currentRevision": "etcd-1", "updateRevision": "etcd-1",
			}
		})
	}
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			mend()
			issue()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
}

// TestRights grants a user what keelson rbac prints for the example fleet, and
// nothing else; as that user, apply and the controller do all their work.
func TestRights(t *testing.T) {
	t.Parallel()
	a := newAudited(t)
	a.becomeHealthy()
	f := newExample(t, "canary-eu-01", "prod-us-01")
	f.kubeconfig = a.admin
	printed := f.keelson("rbac", "testing-eu-01", "--to", "user:keelson").want(t, 0).out
	hub := f.keelson("rbac", "--hub", "--to", "user:keelson").want(t, 0).out
	a.grant(printed)
	a.grant(hub)
	rights := granted(t, printed+"---\n"+hub)
	for r := range rights {
		if strings.Contains(r.group+r.resource+r.verb, "*") || r.verb == "escalate" || r.verb == "bind" || r.verb == "impersonate" && r.name == "" {
			t.Errorf("it grants %+v", r)
		}
	}

	f.kubeconfig = a.restricted
	f.keelson("diff", "testing-eu-01").want(t, 2) // what a dependency brings is not there yet
	f.keelson("apply", "testing-eu-01", "--yes", "--timeout", "3m").want(t, 0).saysNot(t, "forbidden")
	f.keelson("diff", "testing-eu-01").want(t, 0)
	a.controls(f, 10)

	asked, handedOn := a.asked(), grantedByObjects(t, f.keelson("render", "testing-eu-01", "-o", "yaml").want(t, 0).out)
	// metrics-server binds it, and does not bring it.
	bound, err := a.kubernetes.RbacV1().ClusterRoles().Get(t.Context(), "system:auth-delegator", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(bound)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(handedOn, granted(t, string(text)))
	used := 0
	for r := range rights {
		if r.uses(asked) {
			used++
		} else if unusedFor(r, handedOn) == "" {
			t.Errorf("it grants %+v, which nothing took", r)
		}
	}
	t.Logf("%d rights, %d taken by requests", len(rights), used)
}

// unusedFor says why a right is needed that no request of a quiet day takes; ""
// when it is not.
func unusedFor(r right, handedOn map[right]bool) string {
	if r.namespace = ""; handedOn[r] {
		return "a role of a component grants it, which may not grant more than its writer has"
	}
	switch {
	case r.verb == "delete":
		return "Keelson deletes objects that left a component, and parts of records"
	case r.verb == "list":
		return "an API server that does not stream lists (before 1.34) is asked for one before a watch; custom resources are, when their CRD changes"
	case r.resource == "events":
		return "an event that comes again is patched; those of the repository are in default"
	case strings.HasPrefix(r.name, "keelson-git-") && r.verb == "update":
		return "on a quiet day there is no commit and no tag to remember"
	case r.resource == "leases" && r.verb == "update":
		return "the Lease is renewed after some seconds"
	case strings.HasPrefix(r.resource, "rollouts"), r.name == "rollouts.keelson.io":
		return "a fleet without a pipeline has no Rollouts"
	case strings.HasPrefix(r.resource, "proberesults"), r.name == "proberesults.keelson.io":
		return "a fleet without a probe has no ProbeResults"
	case r.resource == "deliveries" && r.verb == "get":
		return "Keelson gets a Delivery only if another client created it first"
	case r.verb == "get" && r.resource != "namespaces":
		return "an object that is not in the watch is asked for, never believed absent"
	}
	return ""
}

// grantedByObjects are the rules of all roles in a list, without their places.
func grantedByObjects(t *testing.T, list string) map[right]bool {
	t.Helper()
	var decoded struct{ Items []rbacv1.ClusterRole }
	if err := yaml.Unmarshal([]byte(list), &decoded); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for i := range decoded.Items {
		decoded.Items[i].Namespace = ""
		text, err := yaml.Marshal(decoded.Items[i])
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("---\n" + string(text))
	}
	return granted(t, b.String())
}

// controls runs the controller until so many deliveries are synced.
func (a *audited) controls(f *fleet, deliveries int) {
	a.t.Helper()
	ctx, stop := context.WithCancel(a.t.Context())
	defer stop()
	ended := make(chan result, 1)
	go func() {
		ended <- world{now: time.Now()}.runContext(ctx, "--repo", f.dir, "--kubeconfig", f.kubeconfig, "--context", "prod",
			"controller", "--share", "--listen", "", "--interval", "1s", "--cache-dir", a.t.TempDir())
	}()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for synced := 0; synced < deliveries; {
		select {
		case r := <-ended:
			a.t.Fatalf("the controller ended: %s", r.err)
		case <-deadline.C:
			stop()
			a.t.Fatalf("%d of %d deliveries are synced\n%s", synced, deliveries, (<-ended).err)
		case <-time.After(200 * time.Millisecond):
		}
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("DeliveryList"))
		if err := a.client.List(a.t.Context(), &list); err != nil {
			continue // not served yet
		}
		synced = 0
		for _, d := range list.Items {
			if sync, _, _ := unstructured.NestedString(d.Object, "status", "sync"); sync == "Synced" {
				synced++
			}
		}
	}
	stop()
	if r := <-ended; strings.Contains(strings.ToLower(r.err), "forbidden") {
		a.t.Errorf("the controller was refused something:\n%s", r.err)
	}
}
