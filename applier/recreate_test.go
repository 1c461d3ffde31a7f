package applier_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// otherSelector is the Deployment of the tests with another selector, which is held.
func otherSelector() string { return strings.ReplaceAll(deployment, "{app: web}", "{app: api}") }

// selects is the app that the Deployment selects.
func (w *world) selects() string {
	w.t.Helper()
	app, _, err := unstructured.NestedString(w.get(deployments, "web").Object, "spec", "selector", "matchLabels", "app")
	if err != nil {
		w.t.Fatal(err)
	}
	return app
}

// refuse is the answer of an API server that refuses a request.
func refuse(r *http.Request, status int) *http.Response {
	reason := map[int]metav1.StatusReason{http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusInternalServerError: metav1.StatusReasonInternalError}[status]
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"refused","code":%d}`, reason, status)
	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status), Request: r, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)),
	}
}

// dropDeployment deletes the Deployment as any client may.
func (w *world) dropDeployment() {
	w.t.Helper()
	now := metav1.DeletePropagationBackground
	if err := w.resource(deployments).Delete(w.t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &now}); err != nil {
		w.t.Fatal(err)
	}
}

// collectDeployment does the garbage collector's part of a foreground deletion.
func (w *world) collectDeployment() {
	w.t.Helper()
	_, err := w.resource(deployments).Patch(w.t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil {
		w.t.Error(err)
	}
}

// A person who may delete an object can't approve its change with that: the object comes
// back as it was, and the change still waits, with the hash that it had.
func TestDeletionApprovesNothing(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", deployment))
	next := w.want("v2", otherSelector())
	before := change(t, w.plan(next), "Deployment")
	w.dropDeployment()

	p := w.apply(next)
	if c := change(t, p, "Deployment"); c.State != differ.StateHeld || c.Op != differ.OpCreate || c.Hash != before.Hash {
		t.Errorf("want it created as it was, and held under hash %s:\n%s", before.Hash, show(p))
	}
	if app := w.selects(); app != "web" {
		t.Errorf("it was created with the selector of git, %q", app)
	}
	w.reconnect()
	c := change(t, w.plan(next), "Deployment")
	if c.State != differ.StateHeld || c.Op != differ.OpNone || c.Hash != before.Hash {
		t.Errorf("the change no longer waits under hash %s:\n%s", before.Hash, show(w.plan(next)))
	}

	w.dropDeployment()
	next.Approved = map[string][]string{c.ID.String(): {c.Hash}}
	w.apply(next)
	if app := w.selects(); app != "api" {
		t.Errorf("an approved change did not come with the creation: selector %q", app)
	}
	w.settled(next)
}

// An approved replacement deletes the old object. If the creation of the new one is refused
// then, nothing is left whose change would have to wait.
func TestReplacementGoesOn(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", deployment))
	w.patchDeployment(hostileImage, "kubectl-edit") // what is approved is another difference than that from the record
	next := w.want("v2", otherSelector())
	c := change(t, w.plan(next), "Deployment")
	next.Approved = map[string][]string{c.ID.String(): {c.Hash}}

	config, refused := rest.CopyConfig(server), &atomic.Int32{}
	config.Wrap(func(through http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if write(http.MethodDelete, "/deployments/web")(r) {
				answer, err := through.RoundTrip(r)
				w.collectDeployment()
				return answer, err
			}
			if !write(http.MethodPatch, "/deployments/web")(r) {
				return through.RoundTrip(r)
			}
			refused.Add(1)
			return refuse(r, http.StatusForbidden), nil
		})
	})
	w.connect(config)
	if err := w.try(t.Context(), next, applier.ApplyOptions{}); err == nil || refused.Load() == 0 {
		t.Fatalf("the creation was refused %d times, and the apply ended with %v", refused.Load(), err)
	}
	if _, err := w.resource(deployments).Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("the old Deployment is still there (%v)", err)
	}

	w.reconnect()
	w.apply(next)
	if app := w.selects(); app != "api" {
		t.Errorf("it was created with the selector %q", app)
	}
	w.settled(next)
}

// failingWebhook is one whose pods are gone: the API server answers 500 to each creation of a
// Deployment in the namespace, until it is mended.
func (w *world) failingWebhook() (mend func()) {
	w.t.Helper()
	hooks := w.dynamic.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"})
	name := "failing-" + w.ns
	object := w.object(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: ` + name + `}
webhooks:
- name: a.b.c
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 1
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
  clientConfig: {url: "https://127.0.0.1:1/"}
  rules: [{apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: [CREATE]}]
`)
	if _, err := hooks.Create(w.t.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	mend = func() {
		if err := hooks.Delete(context.WithoutCancel(w.t.Context()), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			w.t.Error(err)
		}
	}
	w.t.Cleanup(mend)
	w.eventually("the webhook is asked", func() bool {
		trial := w.object(strings.ReplaceAll(deployment, "name: web, namespace", "name: trial, namespace"))
		_, err := w.resource(deployments).Create(w.t.Context(), &unstructured.Unstructured{Object: trial}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil
	})
	return mend
}

// A creation that failed approves nothing: whatever the API server answered, and when git changed,
// the object comes back as it was applied, and its change waits.
func TestFailedRecreationApprovesNothing(t *testing.T) {
	for name, change := range map[string]bool{"ChangedBefore": true, "ChangedAfter": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first, next := w.want("v1", deployment), w.want("v2", otherSelector())
			w.apply(first)
			mend := w.failingWebhook()
			w.dropDeployment()
			failing := first
			if change {
				failing = next
			}
			if err := w.try(t.Context(), failing, applier.ApplyOptions{}); err == nil {
				t.Fatal("the creation did not fail")
			}
			mend()
			w.reconnect()
			w.eventually("the creation succeeds", func() bool { return w.try(t.Context(), next, applier.ApplyOptions{}) == nil })
			if app := w.selects(); app != "web" {
				t.Errorf("a held change was applied without an approval: selector %q", app)
			}
		})
	}
}

// An approved replacement waits until the old object is gone. What git changes meanwhile is not
// approved: what was approved is created, and the rest waits.
func TestReplacementTakesWhatWasApproved(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", deployment))
	next := w.want("v2", otherSelector())
	c := change(t, w.plan(next), "Deployment")
	next.Approved = map[string][]string{c.ID.String(): {c.Hash}}
	if err := w.try(t.Context(), next, applier.ApplyOptions{Timeout: time.Second}); err == nil {
		t.Fatal("the old object went by itself")
	}
	more := w.want("v3", strings.ReplaceAll(deployment, "{app: web}", "{app: other}"))
	more.Approved = next.Approved
	w.collectDeployment()
	w.reconnect()
	if err := w.try(t.Context(), more, applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if app := w.selects(); app != "api" {
		t.Errorf("what was approved selects api, and what runs selects %q", app)
	}
	if c := change(t, w.plan(more), "Deployment"); c.State != differ.StateHeld {
		t.Errorf("the later change does not wait:\n%s", show(w.plan(more)))
	}
}

// While an object is being deleted, its held change still stops the hooks of its version. Once it
// is gone, pending hooks don't keep it away.
func TestDeletionRunsNoHooks(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", deployment))
	next := w.withHooks(w.want("v2", otherSelector()), `{apiVersion: v1, kind: ConfigMap, metadata: {name: migration, namespace: NS, annotations: {helm.sh/hook: pre-upgrade}}, data: {a: b}}`)
	foreground := metav1.DeletePropagationForeground
	if err := w.resource(deployments).Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	if err := w.try(t.Context(), next, applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := w.cluster.Record(t.Context(), w.component)
	if err != nil || r.Version == "v2" {
		t.Errorf("the record has version %s (%v), which is not applied", r.Version, err)
	}
	w.collectDeployment()
	w.reconnect()
	if err := w.try(t.Context(), next, applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if app := w.selects(); app != "web" || w.there("migration") {
		t.Errorf("it came back with selector %q; the hook of the held version ran: %t", app, w.there("migration"))
	}
}
