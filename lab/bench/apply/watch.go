package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// deployments are what commits change.
var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"} //nolint:gochecknoglobals // never changed

// kinds are the resources of a component.
func kinds() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		deployments,
		{Version: "v1", Resource: "serviceaccounts"},
		{Version: "v1", Resource: "services"},
		{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
	}
}

// witness sees the objects of all components, whoever writes them: their metadata
// alone, by a watch a kind, which costs an API server next to nothing.
type witness struct {
	names  []string
	stores map[schema.GroupVersionResource]cache.Store
	// generations that the Deployments have when all is as git says, by component.
	generations []int64
}

// watch watches until the context ends.
func (m *measurement) watch(ctx context.Context, admin *rest.Config) (*witness, error) {
	client, err := metadata.NewForConfig(admin)
	if err != nil {
		return nil, fmt.Errorf("watch the cluster: %w", err)
	}
	w := &witness{names: m.names, stores: map[schema.GroupVersionResource]cache.Store{}, generations: slices.Repeat([]int64{1}, m.components)}
	factory := metadatainformer.NewFilteredSharedInformerFactory(client, 0, namespace, nil)
	for _, k := range kinds() {
		w.stores[k] = factory.ForResource(k).Informer().GetStore()
	}
	factory.Start(ctx.Done())
	for k, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, fmt.Errorf("watch %s: %w", k.Resource, context.Cause(ctx))
		}
	}
	return w, nil
}

// changes says that the Deployments of some components are about to get a new spec.
func (w *witness) changes(of []int) {
	for _, i := range of {
		w.generations[i]++
	}
}

// asGitSays holds that every component has its objects, and each Deployment has
// been changed exactly as often as git has changed it.
func (w *witness) asGitSays(context.Context) error {
	for k, store := range w.stores {
		missing := 0
		for i, name := range w.names {
			o, there, err := store.GetByKey(namespace + "/" + name)
			if err != nil {
				return fmt.Errorf("look at what was watched: %w", err)
			}
			if there && k == deployments {
				there = generation(o) == w.generations[i]
			}
			if !there {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d %s are not as git says", missing, len(w.names), k.Resource)
		}
	}
	return nil
}

func generation(o any) int64 {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		return m.Generation
	}
	return 0 // no object of a metadata watch
}

// looks is how often what was watched is looked at: often enough for patience, and
// without a say in what is measured, which is the audit log's.
const looks = 100 * time.Millisecond
