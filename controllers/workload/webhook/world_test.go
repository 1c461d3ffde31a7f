package webhook

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/applier/apiservertest"
)

// apiServer is a real one, with the CRDs that ship; nil in -short runs.
var apiServer *rest.Config

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { apiServer = config }, "../../../components/workload-controllers/template/crds"))
}

func connect(t *testing.T) client.Client {
	t.Helper()
	apiservertest.Need(t, apiServer)
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), addToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(apiServer, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func object(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(manifest))
	if err == nil {
		err = o.UnmarshalJSON(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	o.SetNamespace("default")
	return o
}

const web = `
apiVersion: apps.kruise.io/v1beta1
kind: CloneSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: web:v1
        ports: [{containerPort: 80}]
        volumeMounts: [{name: data, mountPath: /data}]
`

// The API server completes a template as it does one of a pod, and what is there stays.
func TestComplete(t *testing.T) {
	s := templates{client: connect(t), namespace: "default"}
	is := object(t, web)
	if err := s.completeTemplate(t.Context(), is, nil); err != nil {
		t.Fatal(err)
	}
	get := func(fields ...string) any {
		value, _, err := unstructured.NestedFieldNoCopy(is.Object, append([]string{"spec", "template", "spec"}, fields...)...)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	if get("restartPolicy") != "Always" || get("dnsPolicy") != "ClusterFirst" || get("volumes") != nil {
		t.Errorf("%v", get())
	}
	container := get("containers").([]any)[0].(map[string]any) //nolint:forcetypeassert // it was one
	want := map[string]any{
		"name": "web", "image": "web:v1", "imagePullPolicy": "IfNotPresent", "resources": map[string]any{},
		"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
		"ports":        []any{map[string]any{"containerPort": int64(80), "protocol": "TCP"}},
		"volumeMounts": []any{map[string]any{"name": "data", "mountPath": "/data"}},
	}
	if diff := cmp.Diff(want, container); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A claim takes the place of a volume of the template with its name, as in a StatefulSet of Kubernetes.
// That volume stays in the template as it is.
func TestShadowedVolume(t *testing.T) {
	s := templates{client: connect(t), namespace: "default"}
	is := object(t, strings.Replace(web, "      containers:", "      volumes: [{name: tmp, emptyDir: {}}, {name: data, emptyDir: {}}]\n      containers:", 1))
	if err := s.completeTemplate(t.Context(), is, nil); err != nil {
		t.Fatal(err)
	}
	volumes, _, _ := unstructured.NestedSlice(is.Object, "spec", "template", "spec", "volumes")
	want := []any{map[string]any{"name": "tmp", "emptyDir": map[string]any{}}, map[string]any{"name": "data", "emptyDir": map[string]any{}}}
	if diff := cmp.Diff(want, volumes); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// What the API server refuses in a pod is refused, by the field.
func TestInvalidTemplate(t *testing.T) {
	s := templates{client: connect(t), namespace: "default"}
	var invalid *invalidError
	err := s.completeTemplate(t.Context(), object(t, strings.Replace(web, "mountPath: /data", "mountPath: ''", 1)), nil)
	if !errors.As(err, &invalid) || !strings.Contains(err.Error(), "spec.template.spec.containers[0].volumeMounts[0].mountPath: Required value") {
		t.Errorf("%v", err)
	}
	err = s.completeTemplate(t.Context(), object(t, strings.Replace(web, "name: data, mountPath", "name: other, mountPath", 1)), nil)
	if !errors.As(err, &invalid) || !strings.Contains(err.Error(), "volumeMounts[0].name: Not found") {
		t.Errorf("%v", err)
	}
}

// A template may be stored without defaults, because no webhook answered. It gets none when another
// field changes: defaults would make another revision, whose pods could not be updated in place.
func TestLateDefaults(t *testing.T) {
	s := templates{client: connect(t), namespace: "default"}
	bare := object(t, web)
	for name, is := range map[string]*unstructured.Unstructured{
		"the same template": object(t, web),
		"another image":     object(t, strings.Replace(web, "web:v1", "web:v2", 1)),
	} {
		want := is.DeepCopy()
		if err := s.completeTemplate(t.Context(), is, bare); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Object, is.Object); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	whole := object(t, web)
	if err := s.completeTemplate(t.Context(), whole, nil); err != nil {
		t.Fatal(err)
	}
	is := object(t, strings.Replace(web, "web:v1", "web:v2", 1))
	if err := s.completeTemplate(t.Context(), is, whole); err != nil {
		t.Fatal(err)
	}
	if policy, _, _ := unstructured.NestedString(is.Object, "spec", "template", "spec", "restartPolicy"); policy != "Always" {
		t.Errorf("the restart policy is %q after one that was complete", policy)
	}
}

// Certificates are renewed before they end: the next one is trusted everywhere before it
// serves, and the one before is trusted for as long as a replica may serve it.
func TestRenewal(t *testing.T) {
	c := connect(t)
	now := time.Now()
	replica := func() *hooks {
		o := Options{Namespace: "default", Service: "renewed"}
		return &hooks{options: o, certificates: &certificates{
			client: c, secret: client.ObjectKey{Namespace: "default", Name: "renewed-certs"}, names: []string{"renewed.default.svc"},
			life: 9 * time.Hour, now: func() time.Time { return now },
		}}
	}
	one, two := replica(), replica()
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "renewed"}}
	for name, service := range map[string]string{"a.lab.example": "renewed", "b.lab.example": "another"} {
		configuration.Webhooks = append(configuration.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name: name, AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: service}},
		})
	}
	if err := c.Create(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
	look := func(all ...*hooks) {
		t.Helper()
		for _, h := range all {
			for range 2 { // what it wrote it reads again, as its watch has it do
				if _, err := h.certificates.refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	trusted := func() []byte {
		t.Helper()
		if err := one.trust(t.Context()); err != nil {
			t.Fatal(err)
		}
		var is admissionregistrationv1.ValidatingWebhookConfiguration
		if err := c.Get(t.Context(), client.ObjectKey{Name: "renewed"}, &is); err != nil {
			t.Fatal(err)
		}
		var bundle []byte
		for _, w := range is.Webhooks {
			if w.ClientConfig.Service.Name == "renewed" {
				bundle = w.ClientConfig.CABundle
			} else if len(w.ClientConfig.CABundle) > 0 {
				t.Errorf("the bundle of %s was changed", w.Name)
			}
		}
		return bundle
	}
	verify := func(h *hooks, bundle []byte) {
		t.Helper()
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(bundle)
		is, err := h.certificates.get(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := is.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "renewed.default.svc", CurrentTime: now}); err != nil {
			t.Error(err)
		}
	}
	serial := func(h *hooks) string { return h.certificates.serving.Load().Leaf.SerialNumber.String() }

	look(one, two)
	first := serial(one)
	if serial(two) != first {
		t.Error("two replicas serve different certificates")
	}
	before := trusted()
	verify(one, before)

	now = now.Add(5 * time.Hour) // more than a third is left
	look(one, two)
	if !bytes.Equal(before, trusted()) {
		t.Error("renewed too early")
	}
	now = now.Add(90 * time.Minute)
	look(one, two)
	if serial(one) != first || serial(two) != first {
		t.Error("the next one serves before it is trusted")
	}
	both := trusted()
	verify(one, both)
	look(one) // the other hasn't heard yet
	if serial(one) == first {
		t.Error("the next one does not serve")
	}
	verify(one, both)
	verify(two, both)
	look(two)
	if serial(two) != serial(one) {
		t.Error("the other replica did not follow")
	}
	var secret corev1.Secret
	if err := c.Get(t.Context(), one.certificates.secret, &secret); err != nil {
		t.Fatal(err)
	}
	if len(secret.Data[keyNextCert])+len(secret.Data[keyNextKey]) > 0 || secret.Type != corev1.SecretTypeTLS {
		t.Errorf("the Secret has %d keys, type %s", len(secret.Data), secret.Type)
	}

	// A certificate that is expired or unreadable is replaced.
	now = now.Add(24 * time.Hour)
	second := serial(one)
	look(one)
	if serial(one) == second {
		t.Error("an expired certificate still serves")
	}
	verify(one, trusted())
	secret.Data = map[string][]byte{keyCert: []byte("no"), keyKey: []byte("no")}
	secret.ResourceVersion = ""
	if err := c.Update(t.Context(), &secret); err != nil {
		t.Fatal(err)
	}
	look(two)
	verify(two, trusted())

	var crd apiextensionsv1.CustomResourceDefinition
	if err := c.Get(t.Context(), client.ObjectKey{Name: kinds()[0]}, &crd); err != nil {
		t.Fatal(err)
	}
	if w := crd.Spec.Conversion.Webhook; w == nil || !bytes.Equal(w.ClientConfig.CABundle, trusted()) || w.ClientConfig.Service.Name != "renewed" {
		t.Errorf("conversion: %+v", crd.Spec.Conversion)
	}
}
