package applier_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
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

func (w *world) drop(objects dynamic.ResourceInterface, name string) {
	w.t.Helper()
	now := metav1.DeletePropagationBackground
	if err := objects.Delete(w.t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &now}); err != nil {
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
	w.drop(w.resource(deployments), "web")

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

	w.drop(w.resource(deployments), "web")
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
