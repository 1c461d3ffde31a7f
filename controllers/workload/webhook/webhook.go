// Package webhook serves the webhooks of workloads: defaults, validation, conversion between
// versions, and the protection of objects from deletion.
//
// The replicas make and renew the certificates themselves, and publish the CA to API servers.
// Without a replica, conversion and deletions of protected objects fail. With the default
// failurePolicy Ignore, all else is admitted. Pods do not need the webhooks: the controllers add
// the gates of pods, and refuse specs that they cannot follow.
package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	alpha "github.com/keelson-io/keelson/api/apps/v1alpha1"
)

// The paths of the webhooks; the configurations of the chart name them.
const (
	pathComplete = "/complete"
	pathValidate = "/validate"
	pathProtect  = "/protect"
	pathConvert  = "/convert"

	servicePort = 443
	fieldOwner  = "keelson-workloads"
)

// kinds returns the names of the CRDs with several versions.
func kinds() []string {
	return []string{"clonesets.apps.kruise.io", "daemonsets.apps.kruise.io", "statefulsets.apps.kruise.io"}
}

// Options are the settings of the webhooks.
type Options struct {
	// Port is the port of the server, on all addresses.
	Port int
	// Namespace and Service are the address of the server for API servers. The webhook
	// configurations have the name of the Service, and the Secret has that name with the suffix
	// -certs.
	Namespace, Service string
	Now                func() time.Time
	// Lifetime of a certificate; 0 means 365 days.
	Lifetime time.Duration
	// ClientCAs sign the client certificate of API servers, whose common name is ClientName. If
	// ClientCAs is nil, every client that reaches the port gets answers, but without names of
	// objects.
	ClientCAs  *x509.CertPool
	ClientName string
}

// addToScheme adds the types that a manager with webhooks needs.
func addToScheme(s *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{admissionregistrationv1.AddToScheme, apiextensionsv1.AddToScheme, storagev1.AddToScheme, alpha.AddToScheme} {
		if err := add(s); err != nil {
			return fmt.Errorf("the types of webhooks: %w", err)
		}
	}
	return nil
}

// caches returns the limits of the cache of a manager with webhooks: only its own Secret and
// webhook configurations.
func caches(o Options) map[client.Object]cache.ByObject {
	named := fields.OneTermEqualSelector(metav1.ObjectNameField, o.Service)
	return map[client.Object]cache.ByObject{
		&corev1.Secret{}: {
			Namespaces: map[string]cache.Config{o.Namespace: {}},
			Field:      fields.OneTermEqualSelector(metav1.ObjectNameField, secretName(o)),
		},
		&admissionregistrationv1.MutatingWebhookConfiguration{}:   {Field: named},
		&admissionregistrationv1.ValidatingWebhookConfiguration{}: {Field: named},
	}
}

func secretName(o Options) string { return o.Service + "-certs" }

// hooks implements the webhooks.
type hooks struct {
	options      Options
	reader       client.Reader // reads from the API server: protection must not use outdated objects
	templates    templates
	certificates *certificates
}

// Serve adds a webhook server to the options of a manager, and replaces their scheme and
// Cache.ByObject. [Add] does the rest once the manager exists. It returns an error if the types
// cannot be added.
func Serve(m *ctrl.Options, o Options) (*Certificates, error) {
	c := &certificates{
		secret: client.ObjectKey{Namespace: o.Namespace, Name: secretName(o)},
		names:  []string{o.Service + "." + o.Namespace + ".svc", o.Service + "." + o.Namespace + ".svc.cluster.local"},
		now:    o.Now, life: o.Lifetime,
	}
	if c.life == 0 {
		c.life = lifetime
	}
	m.Scheme = runtime.NewScheme()
	if err := addToScheme(m.Scheme); err != nil {
		return nil, err
	}
	m.Cache.ByObject = caches(o)
	m.WebhookServer = webhook.NewServer(webhook.Options{Port: o.Port, TLSOpts: []func(*tls.Config){func(t *tls.Config) {
		o.secure(t)
		t.GetCertificate = c.get
	}}})
	return &Certificates{c}, nil
}

// Certificates are the certificates of a webhook server.
type Certificates struct{ is *certificates }

// Ready returns an error while there is no certificate.
func (c *Certificates) Ready() error {
	_, err := c.is.get(nil)
	return err
}

// Add adds the handlers and the certificate controllers to a manager whose options [Serve] has
// set. It returns an error if the client or a controller cannot be built.
func Add(m ctrl.Manager, c *Certificates, o Options) error {
	direct, err := client.New(m.GetConfig(), client.Options{Scheme: m.GetScheme(), Mapper: m.GetRESTMapper(), HTTPClient: m.GetHTTPClient()})
	if err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	c.is.client = direct
	h := &hooks{options: o, reader: m.GetAPIReader(), templates: templates{client: direct, namespace: o.Namespace}, certificates: c.is}
	for path, answer := range h.handlers(m.GetScheme()) {
		m.GetWebhookServer().Register(path, answer)
	}
	if err := h.keep(m); err != nil {
		return err
	}
	return h.spread(m)
}

// one maps every event to the same request.
func one(context.Context, client.Object) []reconcile.Request {
	return []reconcile.Request{{}}
}

// keep adds a controller that keeps the certificates. It runs on every replica, because each
// replica serves.
func (h *hooks) keep(m ctrl.Manager) error {
	begin := make(chan event.GenericEvent, 1)
	begin <- event.GenericEvent{Object: &corev1.Secret{}} // the Secret may not exist, and then no event comes
	err := builder.ControllerManagedBy(m).Named("webhook-certificates").
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(one)).
		WatchesRawSource(source.Channel(begin, handler.EnqueueRequestsFromMapFunc(one))).
		WithOptions(controller.Options{NeedLeaderElection: new(false)}).
		Complete(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			again, err := h.certificates.refresh(ctx)
			return reconcile.Result{RequeueAfter: again}, err
		}))
	if err != nil {
		return fmt.Errorf("keep certificates: %w", err)
	}
	return nil
}

// spread adds a controller that publishes the CA to API servers. Only the leader runs it.
func (h *hooks) spread(m ctrl.Manager) error {
	again := handler.EnqueueRequestsFromMapFunc(one)
	err := builder.ControllerManagedBy(m).Named("webhook-trust").
		Watches(&corev1.Secret{}, again).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, again).
		Watches(&admissionregistrationv1.ValidatingWebhookConfiguration{}, again).
		WatchesMetadata(&apiextensionsv1.CustomResourceDefinition{}, again).
		Complete(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, h.trust(ctx)
		}))
	if err != nil {
		return fmt.Errorf("write the certificate authority for API servers: %w", err)
	}
	return nil
}
