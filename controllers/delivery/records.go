package delivery

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
)

// watchRecords looks again at components whose records somebody else wrote: a
// rollback, or its end, need not change any object. Of the Secrets it sees
// metadata alone.
func (a *agent) watchRecords(ctx context.Context, config *rest.Config, c *applier.Cluster) error {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("watch records: %w", err)
	}
	records := metadatainformer.NewFilteredMetadataInformer(client, corev1.SchemeGroupVersion.WithResource("secrets"),
		v1alpha1.Namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) { o.LabelSelector = applier.RecordLabel }).Informer()
	if err := records.SetTransform(func(o any) (any, error) {
		if s, ok := o.(*metav1.PartialObjectMetadata); ok {
			s.ManagedFields, s.Annotations = nil, nil
		}
		return o, nil
	}); err != nil {
		return fmt.Errorf("watch records: %w", err)
	}
	seen := func(o any) {
		if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = unknown.Obj
		}
		s, ok := o.(*metav1.PartialObjectMetadata)
		if !ok {
			return
		}
		component, version := s.Labels[applier.RecordLabel], s.ResourceVersion
		time.AfterFunc(settle, func() { // the answer to a write of our own is there by then
			if ctx.Err() == nil && c.RecordSeen(component, version) {
				a.queue.Add(component)
			}
		})
	}
	if _, err := records.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) }, DeleteFunc: seen,
	}); err != nil {
		return fmt.Errorf("watch records: %w", err)
	}
	go records.RunWithContext(ctx)
	return nil
}
