package webhook

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/applier/apiservertest"
)

// world is a real cluster behind the webhooks, with a count of what they ask it.
type world struct {
	client.WithWatch
	hooks *hooks

	lists, gets, creates, largest atomic.Int64 // largest: objects in the largest list
}

func newWorld(t *testing.T) *world {
	t.Helper()
	apiservertest.Need(t, apiServer)
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), addToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	direct, err := client.NewWithWatch(apiServer, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{WithWatch: direct}
	counted := interceptor.NewClient(direct, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			w.gets.Add(1)
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			w.lists.Add(1)
			err := c.List(ctx, list, opts...)
			w.largest.Store(max(w.largest.Load(), int64(meta.LenList(list))))
			return err
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			w.creates.Add(1)
			return c.Create(ctx, o, opts...)
		},
	})
	o := Options{Namespace: "default", Service: "hooks"}
	w.hooks = &hooks{options: o, reader: counted, templates: templates{client: counted, namespace: o.Namespace}}
	return w
}

// make creates an object from a manifest, or finds the one that an earlier run of the
// test left, and returns it as the API server has it.
func (w *world) make(t *testing.T, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	if err := w.Create(t.Context(), o); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return o
}

// cascading is a protected object.
func cascading(apiVersion, kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	if spec != nil {
		o.Object["spec"] = spec
	}
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetLabels(map[string]string{v1beta1.LabelDeleteProtection: v1beta1.DeleteProtectionCascading})
	return o
}

// pods makes running pods.
func (w *world) pods(t *testing.T, namespace string, number int) {
	t.Helper()
	for i := range number {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("vault-%d", i), Labels: map[string]string{"app": "vault"}}}
		p.Spec.Containers = []corev1.Container{{Name: "vault", Image: "vault:1"}}
		if err := w.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}

// review is the question of an API server about an object that is to be deleted.
func review(resource metav1.GroupVersionResource, o *unstructured.Unstructured) *admissionv1.AdmissionRequest {
	data, err := o.MarshalJSON()
	if err != nil {
		panic(err)
	}
	gvk := o.GroupVersionKind()
	return &admissionv1.AdmissionRequest{
		UID: "1", Operation: admissionv1.Delete, Name: o.GetName(), Namespace: o.GetNamespace(),
		Kind:     metav1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind},
		Resource: resource, OldObject: runtime.RawExtension{Raw: data},
	}
}

// ask sends a question as anyone can who reaches the port.
func (w *world) ask(t *testing.T, path string, r *admissionv1.AdmissionRequest) (answer admissionv1.AdmissionResponse, all string) {
	t.Helper()
	server := httptest.NewServer(w.hooks.handlers(w.Scheme())[path])
	defer server.Close()
	return send(t, server.Client(), server.URL, r)
}

func post(t *testing.T, c *http.Client, url string, body io.Reader) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return c.Do(r)
}

func send(t *testing.T, c *http.Client, url string, r *admissionv1.AdmissionRequest) (answer admissionv1.AdmissionResponse, all string) {
	t.Helper()
	question := admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: r}
	data, err := json.Marshal(question)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := post(t, c, url, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out admissionv1.AdmissionReview
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		return admissionv1.AdmissionResponse{Result: &metav1.Status{Code: int32(resp.StatusCode)}}, body.String() //nolint:gosec // small
	}
	if err := json.Unmarshal(body.Bytes(), &out); err != nil {
		t.Fatalf("%v: %s", err, body.String())
	}
	return *out.Response, body.String()
}

var (
	namespacesResource  = metav1.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	deploymentsResource = metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	crdsResource        = metav1.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// A client that reaches the port can send any object, with any selector. Nothing is listed for
// an object that the cluster does not have: no request without the object's UID, which
// the API server knows, learns anything or costs a list.
func TestProtectListsNothingForAMadeUpObject(t *testing.T) {
	w := newWorld(t)
	namespace := w.make(t, cascading("v1", "Namespace", "", "made-up", nil))
	w.pods(t, "made-up", 2)
	template := map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "vault"}}, "spec": map[string]any{"containers": []any{map[string]any{"name": "a", "image": "a"}}}}
	deployment := w.make(t, cascading("apps/v1", "Deployment", "made-up", "vault", map[string]any{
		"selector": map[string]any{"matchLabels": map[string]any{"app": "vault"}}, "template": template,
	}))
	anything := map[string]any{"selector": map[string]any{"matchExpressions": []any{map[string]any{"key": "app", "operator": "Exists"}}}}
	nodes := cascading("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "nodes", map[string]any{
		"group": "", "names": map[string]any{"kind": "Node", "listKind": "NodeList"}, "versions": []any{map[string]any{"name": "v1", "served": true}},
	})
	with := func(o *unstructured.Unstructured, change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		o = o.DeepCopy()
		change(o)
		return o
	}
	for why, r := range map[string]*admissionv1.AdmissionRequest{
		"a namespace by its name alone":        review(namespacesResource, cascading("v1", "Namespace", "", "made-up", nil)),
		"a namespace with another UID":         review(namespacesResource, with(namespace, func(o *unstructured.Unstructured) { o.SetUID("11111111-2222-3333-4444-555555555555") })),
		"a namespace that there isn't":         review(namespacesResource, with(namespace, func(o *unstructured.Unstructured) { o.SetName("absent") })),
		"all namespaces":                       review(namespacesResource, cascading("v1", "Namespace", "", "", nil)),
		"a workload with a selector of anyone": review(deploymentsResource, cascading("apps/v1", "Deployment", "made-up", "other", anything)),
		"a workload of no namespace":           review(deploymentsResource, cascading("apps/v1", "Deployment", "", "vault", anything)),
		"a kind that names another":            review(crdsResource, nodes),
		"another resource than is protected":   review(metav1.GroupVersionResource{Version: "v1", Resource: "nodes"}, nodes),
		"the object of another request": func() *admissionv1.AdmissionRequest {
			r := review(deploymentsResource, deployment)
			r.Name = "web"
			return r
		}(),
		"the object of another namespace": func() *admissionv1.AdmissionRequest {
			r := review(deploymentsResource, deployment)
			r.Namespace = "default"
			return r
		}(),
	} {
		t.Run(why, func(t *testing.T) {
			w.lists.Store(0)
			answer, all := w.ask(t, pathProtect, r)
			if answer.Allowed {
				t.Errorf("allowed: %s", all)
			}
			if n := w.lists.Load(); n > 0 {
				t.Errorf("%d lists", n)
			}
			if strings.Contains(all, "vault-") || strings.Contains(all, "active pod") || strings.Contains(all, "kube-") {
				t.Errorf("it tells what there is: %s", all)
			}
		})
	}
}

// The selector is that of the object that the cluster has, not the one in the question:
// a client that knows a Deployment may not count other pods by it.
func TestProtectGoesByTheObjectThatThereIs(t *testing.T) {
	w := newWorld(t)
	w.make(t, cascading("v1", "Namespace", "", "selected", nil))
	w.pods(t, "selected", 3)
	o := w.make(t, cascading("apps/v1", "Deployment", "selected", "web", map[string]any{
		"replicas": int64(2), "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
		"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}}, "spec": map[string]any{"containers": []any{map[string]any{"name": "a", "image": "a"}}}},
	}))
	forged := o.DeepCopy()
	if err := unstructured.SetNestedStringMap(forged.Object, map[string]string{"app": "vault"}, "spec", "selector", "matchLabels"); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*unstructured.Unstructured{o, forged} {
		answer, all := w.ask(t, pathProtect, review(deploymentsResource, o))
		if answer.Allowed || !strings.Contains(all, "spec.replicas is 2;") {
			t.Errorf("%s", all)
		}
	}
}

// What is left is counted up to a few, and the pods' names are not told: the question is
// not signed. No answer of the cluster is longer than a page.
func TestProtectCountsAFewAndNamesNone(t *testing.T) {
	w := newWorld(t)
	o := w.make(t, cascading("v1", "Namespace", "", "counted", nil))
	r := review(namespacesResource, o)
	r.Namespace = o.GetName() // as the API server has it for a namespace
	if answer, all := w.ask(t, pathProtect, r); !answer.Allowed {
		t.Errorf("an empty namespace: %s", all)
	}
	w.pods(t, "counted", someChildren)
	if _, all := w.ask(t, pathProtect, r); !strings.Contains(all, fmt.Sprintf("%d active pods;", someChildren)) || strings.Contains(all, "vault-") {
		t.Errorf("%s", all)
	}
	for i := range 2 * page {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "counted", Name: fmt.Sprintf("z-%d", i)}}
		p.Spec.Containers = []corev1.Container{{Name: "a", Image: "a"}}
		if err := w.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	w.lists.Store(0)
	if _, all := w.ask(t, pathProtect, r); !strings.Contains(all, fmt.Sprintf("more than %d active pods;", someChildren)) {
		t.Errorf("%s", all)
	}
	if lists, largest := w.lists.Load(), w.largest.Load(); lists > 2 || largest > page {
		t.Errorf("%d lists, the largest of %d objects", lists, largest)
	}
}

// Pods that have ended, and those that are about to, are not left; there may be more of
// them than a page has, and an active one behind them.
func TestProtectLooksBehindPodsThatEnd(t *testing.T) {
	w := newWorld(t)
	o := w.make(t, cascading("v1", "Namespace", "", "ending", nil))
	r := review(namespacesResource, o)
	r.Namespace = o.GetName()
	for i := range page + 1 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ending", Name: fmt.Sprintf("ended-%03d", i), Finalizers: []string{"lab.example/wait"}}}
		p.Spec.Containers = []corev1.Container{{Name: "a", Image: "a"}}
		if err := errors.Join(w.Create(t.Context(), p), w.Delete(t.Context(), p)); err != nil {
			t.Fatal(err)
		}
	}
	if answer, all := w.ask(t, pathProtect, r); !answer.Allowed {
		t.Errorf("all pods end: %s", all)
	}
	w.pods(t, "ending", 1)
	if answer, all := w.ask(t, pathProtect, r); answer.Allowed || !strings.Contains(all, "1 active pod;") {
		t.Errorf("%s", all)
	}
}

// What `complete` answers depends on the object alone: a stranger does not learn from it
// which namespaces there are, nor what quotas and policies of a namespace say.
func TestCompleteTellsNothingOfANamespace(t *testing.T) {
	w := newWorld(t)
	full := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "full", Name: "secret-budget"}}
	full.Spec.Hard = corev1.ResourceList{"count/podtemplates": resource.MustParse("0")}
	w.make(t, cascading("v1", "Namespace", "", "full", nil))
	if err := w.Create(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	full.Status.Hard, full.Status.Used = full.Spec.Hard, full.Spec.Hard
	if err := w.WithWatch.Status().Update(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	in := func(namespace string) string {
		o := object(t, web)
		o.SetNamespace("")
		r := review(metav1.GroupVersionResource{Group: "apps.kruise.io", Version: "v1beta1", Resource: "clonesets"}, o)
		r.Operation, r.Object, r.OldObject, r.Namespace = admissionv1.Create, r.OldObject, runtime.RawExtension{}, namespace
		answer, all := w.ask(t, pathComplete, r)
		if !answer.Allowed {
			t.Errorf("%s: %s", namespace, all)
		}
		var patch []map[string]any
		if err := json.Unmarshal(answer.Patch, &patch); err != nil {
			t.Errorf("%s: %v: %s", namespace, err, all)
		}
		slices.SortFunc(patch, func(a, b map[string]any) int { return strings.Compare(fmt.Sprint(a["path"]), fmt.Sprint(b["path"])) })
		sorted, err := json.Marshal(patch)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s %v", sorted, answer.Warnings)
	}
	want := in("default")
	for _, namespace := range []string{"full", "there-is-none"} {
		if diff := cmp.Diff(want, strings.ReplaceAll(in(namespace), `"`+namespace+`"`, `"default"`)); diff != "" {
			t.Errorf("%s is told from another namespace: %s", namespace, diff)
		}
	}
}

// Why a template can't be completed is the cluster's: a text that names no object of it.
func TestCompleteTellsNoReason(t *testing.T) {
	w := newWorld(t)
	for why, err := range map[string]error{
		"an error":           apierrors.NewForbidden(schema.GroupResource{Resource: "podtemplates"}, "x", errors.New("secret-budget")),
		"a policy's message": &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonInvalid, Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Message: "secret-budget"}}}}},
		"no details":         &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonInvalid, Message: "secret-budget"}},
	} {
		w.hooks.templates.client = interceptor.NewClient(w.WithWatch, interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return err },
		})
		r := review(metav1.GroupVersionResource{Group: "apps.kruise.io", Version: "v1beta1", Resource: "clonesets"}, object(t, web))
		r.Operation, r.Object, r.OldObject = admissionv1.Create, r.OldObject, runtime.RawExtension{}
		answer, all := w.ask(t, pathComplete, r)
		if !answer.Allowed || len(answer.Warnings) != 1 || strings.Contains(all, "secret-budget") {
			t.Errorf("%s: %s", why, all)
		}
	}
}

// A pod that v1alpha1 names must be the CloneSet's. That it is another's, and that there
// is none, is one answer; and a CloneSet that is new has no pods that had to be read.
func TestValidateTellsNoPods(t *testing.T) {
	w := newWorld(t)
	w.make(t, cascading("v1", "Namespace", "", "named", nil))
	w.pods(t, "named", 1)
	ask := func(operation admissionv1.Operation, uid, pod string) string {
		o := object(t, web)
		o.SetNamespace("named")
		o.SetUID(types.UID(uid))
		if err := unstructured.SetNestedStringSlice(o.Object, []string{pod}, "spec", "scaleStrategy", "podsToDelete"); err != nil {
			t.Fatal(err)
		}
		r := review(metav1.GroupVersionResource{Group: "apps.kruise.io", Version: "v1beta1", Resource: "clonesets"}, o)
		r.Operation, r.Object = operation, r.OldObject
		r.RequestKind = &metav1.GroupVersionKind{Group: "apps.kruise.io", Version: "v1alpha1", Kind: "CloneSet"}
		answer, all := w.ask(t, pathValidate, r)
		if answer.Allowed {
			t.Errorf("%s is allowed: %s", pod, all)
		}
		return strings.ReplaceAll(all, pod, "POD")
	}
	if diff := cmp.Diff(ask(admissionv1.Update, "1", "absent"), ask(admissionv1.Update, "1", "vault-0")); diff != "" {
		t.Errorf("it tells that there is a pod: %s", diff)
	}
	w.gets.Store(0)
	ask(admissionv1.Create, "", "vault-0")
	if n := w.gets.Load(); n > 0 {
		t.Errorf("%d pods are read for a CloneSet that can have none", n)
	}
}

// Only so many questions are read and answered at a time: the rest wait without their
// bodies in memory, and are refused when that takes too long.
func TestQuestionsWaitForTheirTurn(t *testing.T) {
	w := newWorld(t)
	let := make(chan struct{})
	var at atomic.Int64
	entered := make(chan struct{}, 10*atOnce)
	w.hooks.templates.client = interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			at.Add(1)
			entered <- struct{}{}
			<-let
			return c.Create(ctx, o, opts...)
		},
	})
	handler := w.hooks.handlers(w.Scheme())[pathComplete]
	server := httptest.NewServer(handler)
	defer server.Close()
	r := review(metav1.GroupVersionResource{Group: "apps.kruise.io", Version: "v1beta1", Resource: "clonesets"}, object(t, web))
	r.Operation, r.Object, r.OldObject = admissionv1.Create, r.OldObject, runtime.RawExtension{}
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() { send(t, server.Client(), server.URL, r) })
	}
	for range atOnce {
		<-entered
	}
	// One more, that gives up: it has not come in by then.
	ctx, cancel := context.WithCancel(t.Context())
	body := &notRead{}
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", body)
	answer := httptest.NewRecorder()
	cancel()
	handler.ServeHTTP(answer, req)
	if answer.Code != http.StatusServiceUnavailable || body.read.Load() {
		t.Errorf("%d, read %v", answer.Code, body.read.Load())
	}
	close(let)
	all.Wait()
	if n := at.Load(); n != int64(atOnce) {
		t.Errorf("%d questions were answered at once", n)
	}
}

// notRead is a body that says whether it was read.
type notRead struct{ read atomic.Bool }

func (b *notRead) Read([]byte) (int, error) { b.read.Store(true); return 0, io.EOF }

// With a CA for clients, only an API server that shows a certificate of its is answered,
// and is told names. Conversion stays open, since API servers show none there: it reads
// nothing.
func TestClientCertificate(t *testing.T) {
	w := newWorld(t)
	o := w.make(t, cascading("v1", "Namespace", "", "signed", nil))
	w.pods(t, "signed", 1)
	r := review(namespacesResource, o)
	r.Namespace = o.GetName()

	pool, issue := authority(t)
	_, other := authority(t)
	w.hooks.options.ClientCAs, w.hooks.options.ClientName = pool, "kube-apiserver"
	for who, c := range map[string]struct {
		certificates []tls.Certificate
		protect      int // 0: the connection isn't made
		convert      int
	}{
		"a stranger":                         {nil, http.StatusUnauthorized, http.StatusBadRequest},
		"the API server":                     {issue("kube-apiserver"), http.StatusOK, http.StatusBadRequest},
		"another client of the same CA":      {issue("system:node:a"), http.StatusUnauthorized, http.StatusBadRequest},
		"a name that another CA vouches for": {other("kube-apiserver"), 0, 0},
	} {
		t.Run(who, func(t *testing.T) {
			for path, want := range map[string]int{pathProtect: c.protect, pathComplete: c.protect, pathValidate: c.protect, pathConvert: c.convert} {
				server := httptest.NewUnstartedServer(w.hooks.handlers(w.Scheme())[path])
				server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
				w.hooks.options.secure(server.TLS)
				server.Config.ErrorLog = log.New(io.Discard, "", 0)
				server.StartTLS()
				client := server.Client()
				client.Transport.(*http.Transport).TLSClientConfig.Certificates = c.certificates //nolint:forcetypeassert // of httptest
				var body io.Reader = strings.NewReader("{}")
				if path == pathProtect {
					question, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: r})
					if err != nil {
						t.Fatal(err)
					}
					body = bytes.NewReader(question)
				}
				resp, err := post(t, client, server.URL, body)
				switch {
				case err != nil && want != 0:
					t.Errorf("%s: %v", path, err)
				case err != nil:
				default:
					text, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					if want == http.StatusOK && path == pathProtect && !strings.Contains(string(text), "1 active pod (vault-0)") {
						t.Errorf("%s", text)
					}
					if (resp.StatusCode == http.StatusUnauthorized) != (want == http.StatusUnauthorized) || want == 0 {
						t.Errorf("%s: %d, want %d: %s", path, resp.StatusCode, want, text)
					}
				}
				server.Close()
			}
		})
	}
}

// A client that offers HTTP/2, as every API server does, is answered in HTTP/1.1.
func TestNoHTTP2(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}} // as controller-runtime sets it
	(&Options{}).secure(server.TLS)
	server.StartTLS()
	defer server.Close()
	resp, err := post(t, server.Client(), server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.Proto != "HTTP/1.1" {
		t.Errorf("it was answered in %s", resp.Proto)
	}
}

// authority makes a CA, and what issues certificates of clients.
func authority(t *testing.T) (*x509.CertPool, func(name string) []tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	return pool, func(name string) []tls.Certificate {
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	}
}
