// Package webhook answers what API servers ask about workloads: what stands in for
// fields that aren't there, what is wrong with others, what an object is in another
// version, and whether what is protected may be deleted.
//
// Its certificates are its own: made, renewed and told to API servers by the replicas
// themselves. While nobody answers, all that is asked for goes through, except that what
// is protected isn't deleted: no pod needs a webhook, since the controllers themselves
// give pods their gates, and refuse what they can't follow.
package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
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

// Where each question is answered; the configurations of the chart name these.
const (
	pathComplete = "/complete"
	pathValidate = "/validate"
	pathProtect  = "/protect"
	pathConvert  = "/convert"

	servicePort = 443
	fieldOwner  = "keelson-workloads"
)

// kinds are the CRDs with several versions.
func kinds() []string { return []string{"clonesets.apps.kruise.io", "daemonsets.apps.kruise.io"} }

// Options are the settings of the webhooks.
type Options struct {
	// Port is where the server listens, on all addresses.
	Port int
	// Namespace and Service are how API servers reach it. The configurations of
	// webhooks are named like the Service, and the Secret NAME-certs.
	Namespace, Service string
	Now                func() time.Time
	// Lifetime of a certificate; 0: a year.
	Lifetime time.Duration
	// ClientCAs sign the certificate, of the name ClientName, that API servers show; nil:
	// every client that reaches the port is answered, and is told no names.
	ClientCAs  *x509.CertPool
	ClientName string
}

// addToScheme adds the types that a manager with webhooks has to know.
func addToScheme(s *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{admissionregistrationv1.AddToScheme, apiextensionsv1.AddToScheme, alpha.AddToScheme} {
		if err := add(s); err != nil {
			return fmt.Errorf("the types of webhooks: %w", err)
		}
	}
	return nil
}

// caches are what a manager with webhooks watches: the few objects that are theirs.
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

// hooks answer the questions.
type hooks struct {
	options      Options
	reader       client.Reader // of the API server: protection must not go by what was
	templates    templates
	certificates *certificates
}

// Serve gives the options of a manager what it takes to serve webhooks; Add does the rest
// once there is a manager.
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

// Certificates are those of a server.
type Certificates struct{ is *certificates }

// Ready says whether there are any.
func (c *Certificates) Ready() error {
	_, err := c.is.get(nil)
	return err
}

// Add has a manager, which has the server, answer.
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

// one is what every event here asks for: another look.
func one(context.Context, client.Object) []reconcile.Request {
	return []reconcile.Request{{}}
}

// keep has every replica keep the certificates, whether it leads or not: each serves.
func (h *hooks) keep(m ctrl.Manager) error {
	begin := make(chan event.GenericEvent, 1)
	begin <- event.GenericEvent{Object: &corev1.Secret{}} // there may be none that could tell
	err := builder.ControllerManagedBy(m).Named("webhook-certificates").
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(one)).
		WatchesRawSource(source.Channel(begin, handler.EnqueueRequestsFromMapFunc(one))).
		WithOptions(controller.Options{NeedLeaderElection: new(false)}).
		Complete(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			again, err := h.certificates.look(ctx)
			return reconcile.Result{RequeueAfter: again}, err
		}))
	if err != nil {
		return fmt.Errorf("keep certificates: %w", err)
	}
	return nil
}

// spread has the replica that leads tell API servers what to trust.
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
		return fmt.Errorf("tell API servers what to trust: %w", err)
	}
	return nil
}
