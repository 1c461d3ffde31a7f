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

// maxParts is how many parts of records a cluster may have, including those that no record names.
const maxParts = 10_000

// missingPartError reports that a record can't be read, because its head names a Secret that does
// not exist.
type missingPartError struct{ name string }

func (e *missingPartError) Error() string {
	return fmt.Sprintf("the Secret %s/%s, a part of the record, is missing", v1alpha1.Namespace, e.name)
}

// litter records whether a component may have parts that no head names.
func (c *Cluster) litter(component string, may bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.littered[component] = may
}

// findLitter searches all components for parts that no head names. A writer leaves them when it is
// killed before it has written its head, or right after.
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

// listParts calls a function with the metadata of each part that a label selector matches. It does
// not read the content, which may be large.
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

// sweepParts deletes the parts that no head names and none will name, after this session replaced
// the head old by next, or deleted it. It compares resourceVersions. The writer of a part older
// than this session's head had read an older head, so its own head will be refused. A later part
// may belong to the next head, and stays. No later head reuses a name: the name depends on the head
// to be replaced.
func (c *Cluster) sweepParts(ctx context.Context, old, next *record) error {
	c.mu.Lock()
	littered := c.littered[next.Component]
	c.mu.Unlock()
	if !littered && len(old.parts) == 0 {
		return nil
	}
	head := next.version
	if head == "" {
		head = old.version // the deleted head
	}
	c.litter(next.Component, true) // until the sweep is done
	err := c.listParts(ctx, partLabel+"="+next.Component, func(part *metav1.PartialObjectMetadata) error {
		if slices.Contains(next.parts, part.Name) {
			return nil
		}
		if order, err := resourceversion.CompareResourceVersion(part.ResourceVersion, head); err != nil || order >= 0 {
			return nil //nolint:nilerr // versions without an order do not tell which head needs the part
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
