package records

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/pages"
)

// Secrets are Keelson's own Secrets in a cluster.
type Secrets struct {
	client   corev1client.SecretInterface
	metadata metadata.ResourceInterface
}

// NewSecrets returns the Secrets of the cluster of a connection. It reads and writes them in the
// encoding that is cheapest for an API server.
func NewSecrets(config *rest.Config) (Secrets, error) {
	config = rest.CopyConfig(config)
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return Secrets{}, err //nolint:wrapcheck // the caller names the cluster
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c, err := corev1client.NewForConfig(config)
	if err != nil {
		return Secrets{}, err //nolint:wrapcheck // the caller names the cluster
	}
	return Secrets{
		client:   c.Secrets(v1alpha1.Namespace),
		metadata: meta.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(v1alpha1.Namespace),
	}, nil
}

// Get returns one of the Secrets, or nil when there is none.
func (s Secrets) Get(ctx context.Context, name string) (*corev1.Secret, error) {
	found, err := s.client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s: %w", v1alpha1.Namespace, name, err)
	}
	return found, nil
}

// Write creates the Secret, or replaces the one with its resourceVersion. It returns the new
// resourceVersion.
func (s Secrets) Write(ctx context.Context, secret *corev1.Secret) (version string, err error) {
	var answer *corev1.Secret
	if secret.ResourceVersion != "" {
		answer, err = s.client.Update(ctx, secret, metav1.UpdateOptions{FieldManager: v1alpha1.FieldManager})
	} else {
		answer, err = s.client.Create(ctx, secret, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager})
	}
	if err != nil {
		return "", fmt.Errorf("write Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return answer.ResourceVersion, nil
}

// listRecords calls each with the head of every record.
func (s Secrets) listRecords(ctx context.Context, each func(*corev1.Secret)) error {
	return pages.Each("records", recordPage, maxRecords, func(o metav1.ListOptions) (int, string, error) {
		o.LabelSelector = Label
		page, err := s.client.List(ctx, o)
		if err != nil {
			return 0, "", fmt.Errorf("list records: %w", err)
		}
		for i := range page.Items {
			each(&page.Items[i])
		}
		return len(page.Items), page.Continue, nil
	})
}

// listParts calls each with the metadata of every part that a label selector matches. It does not
// read the content, which may be large.
func (s Secrets) listParts(ctx context.Context, selector string, each func(*metav1.PartialObjectMetadata) error) error {
	var errs []error
	err := pages.Each("parts of records", 500, maxParts, func(o metav1.ListOptions) (int, string, error) {
		o.LabelSelector = selector
		page, err := s.metadata.List(ctx, o)
		if err != nil {
			return 0, "", fmt.Errorf("list parts of records: %w", err)
		}
		for i := range page.Items {
			if err := each(&page.Items[i]); err != nil {
				errs = append(errs, err)
			}
		}
		return len(page.Items), page.Continue, nil
	})
	return errors.Join(append(errs, err)...)
}
