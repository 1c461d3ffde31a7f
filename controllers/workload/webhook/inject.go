package webhook

import (
	"bytes"
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// trust writes the CA bundle of the Secret into both webhook configurations and the CRDs, and
// then promotes the next certificate. Missing objects are skipped.
func (h *hooks) trust(ctx context.Context) error {
	var secret corev1.Secret
	err := h.certificates.client.Get(ctx, h.certificates.secret, &secret)
	if apierrors.IsNotFound(err) {
		return nil // the watch reports its creation
	}
	if err != nil {
		return fmt.Errorf("read the certificates: %w", err)
	}
	bundle := secret.Data[keyTrust]
	if len(bundle) == 0 {
		return nil
	}
	for _, tell := range []func(context.Context, []byte) error{h.patchMutating, h.patchValidating, h.patchConversion} {
		if err := tell(ctx, bundle); err != nil {
			return err
		}
	}
	return h.certificates.promote(ctx, &secret)
}

func (h *hooks) patchMutating(ctx context.Context, bundle []byte) error {
	var c admissionregistrationv1.MutatingWebhookConfiguration
	return h.patch(ctx, &c, h.options.Service, func() (changed bool) {
		for i := range c.Webhooks {
			changed = h.ours(&c.Webhooks[i].ClientConfig, bundle) || changed
		}
		return changed
	})
}

func (h *hooks) patchValidating(ctx context.Context, bundle []byte) error {
	var c admissionregistrationv1.ValidatingWebhookConfiguration
	return h.patch(ctx, &c, h.options.Service, func() (changed bool) {
		for i := range c.Webhooks {
			changed = h.ours(&c.Webhooks[i].ClientConfig, bundle) || changed
		}
		return changed
	})
}

// ours sets the CA bundle of a webhook if our Service serves it. It reports whether the bundle
// changed.
func (h *hooks) ours(c *admissionregistrationv1.WebhookClientConfig, bundle []byte) bool {
	s := c.Service
	if s == nil || s.Name != h.options.Service || s.Namespace != h.options.Namespace || bytes.Equal(c.CABundle, bundle) {
		return false
	}
	c.CABundle = bundle
	return true
}

// patchConversion makes the webhook the converter of our CRDs.
func (h *hooks) patchConversion(ctx context.Context, bundle []byte) error {
	for _, name := range kinds() {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := h.patch(ctx, &crd, name, func() bool {
			is := crd.Spec.Conversion
			if is != nil && is.Webhook != nil && is.Webhook.ClientConfig != nil && bytes.Equal(is.Webhook.ClientConfig.CABundle, bundle) && is.Webhook.ClientConfig.Service != nil &&
				is.Webhook.ClientConfig.Service.Name == h.options.Service && is.Webhook.ClientConfig.Service.Namespace == h.options.Namespace {
				return false
			}
			crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
				Strategy: apiextensionsv1.WebhookConverter,
				Webhook: &apiextensionsv1.WebhookConversion{
					ConversionReviewVersions: []string{"v1"},
					ClientConfig: &apiextensionsv1.WebhookClientConfig{
						CABundle: bundle,
						Service:  &apiextensionsv1.ServiceReference{Namespace: h.options.Namespace, Name: h.options.Service, Path: new(pathConvert), Port: new(int32(servicePort))},
					},
				},
			}
			return true
		}); err != nil {
			return err
		}
	}
	return nil
}

// patch patches an object if it exists and change reports a change. A concurrent update is an
// error.
func (h *hooks) patch(ctx context.Context, o client.Object, name string, change func() bool) error {
	err := h.certificates.client.Get(ctx, client.ObjectKey{Name: name}, o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what calls webhooks: %w", err)
	}
	before := o.DeepCopyObject().(client.Object) //nolint:forcetypeassert // it is one
	if !change() {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := h.certificates.client.Patch(ctx, o, patch, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("write the certificate authority into %s: %w", name, err)
	}
	return nil
}
