package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// maxParts is how many parts of records a cluster may have, those included that no record
// names.
const maxParts = 10_000

// missingPartError says that a record can't be read, since its head names a Secret
// that is not there.
type missingPartError struct{ name string }

func (e *missingPartError) Error() string {
	return fmt.Sprintf("the Secret %s/%s, a part of the record, is missing", v1alpha1.Namespace, e.name)
}

// litter notes whether a component may have parts that no head names.
func (c *Cluster) litter(component string, may bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.littered[component] = may
}

// findLitter looks once for parts that no head names, of all components: writers
// left them that were killed before they wrote their head, or after it.
func (c *Cluster) findLitter(ctx context.Context) error {
	return c.listParts(ctx, partLabel, func(part *metav1.PartialObjectMetadata) error {
		component := part.Labels[partLabel]
		c.mu.Lock()
		defer c.mu.Unlock()
		if r := c.records[component]; r == nil || !slices.Contains(r.parts, part.Name) {
			c.littered[component] = true
		}
		return nil
	})
}

// listParts calls a function with the metadata of each part that a label selector
// matches. Their content may be large.
func (c *Cluster) listParts(ctx context.Context, selector string, each func(*metav1.PartialObjectMetadata) error) error {
	secrets := c.metadata.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(v1alpha1.Namespace)
	var errs []error
	err := eachPage("parts of records", 500, maxParts, func(o metav1.ListOptions) (int, string, error) {
		o.LabelSelector = selector
		page, err := secrets.List(ctx, o)
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

// sweepParts deletes the parts that no head names and none will, after this session
// replaced the head old by next, or deleted it. Which those are, resourceVersions
// tell: who made a part before this session's head was written had read an older
// head, and its own will be refused. A later part may be that of the writer whose
// head comes next, and stays. No later head needs a name again: it holds which
// head it was made to replace.
func (c *Cluster) sweepParts(ctx context.Context, old, next *record) error {
	c.mu.Lock()
	littered := c.littered[next.Component]
	c.mu.Unlock()
	if !littered && len(old.parts) == 0 {
		return nil
	}
	head := next.version
	if head == "" {
		head = old.version // that was deleted
	}
	c.litter(next.Component, true) // until it is done
	err := c.listParts(ctx, partLabel+"="+next.Component, func(part *metav1.PartialObjectMetadata) error {
		if slices.Contains(next.parts, part.Name) {
			return nil
		}
		if order, err := resourceversion.CompareResourceVersion(part.ResourceVersion, head); err != nil || order >= 0 {
			return nil //nolint:nilerr // where versions have no order, nobody knows whose it is
		}
		err := c.deleteRecordSecret(ctx, part.Name, part.UID, "")
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete Secret %s/%s: %w", v1alpha1.Namespace, part.Name, err)
		}
		return nil
	})
	if err == nil {
		c.litter(next.Component, false)
	}
	return err
}
