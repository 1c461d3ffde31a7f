package apply

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// deployments is the resource that commits change.
var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"} //nolint:gochecknoglobals // never changed

// kinds returns the resources of a component.
func kinds() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		deployments,
		{Version: "v1", Resource: "serviceaccounts"},
		{Version: "v1", Resource: "services"},
		{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
	}
}

// witness observes the objects of all components, regardless of the writer. It watches only their
// metadata, with one watch per kind, which costs the API server little.
type witness struct {
	names  []string
	stores map[schema.GroupVersionResource]cache.Store
	// generations are the expected generations of the Deployments, by component.
	generations []int64
}

// watch starts the watches. They end with the context.
func (m *measurement) watch(ctx context.Context, admin *rest.Config) *witness {
	client := must.Get(metadata.NewForConfig(admin))
	w := &witness{names: m.names, stores: map[schema.GroupVersionResource]cache.Store{}, generations: slices.Repeat([]int64{1}, m.components)}
	factory := metadatainformer.NewFilteredSharedInformerFactory(client, 0, namespace, nil)
	for _, k := range kinds() {
		w.stores[k] = factory.ForResource(k).Informer().GetStore()
	}
	factory.Start(ctx.Done())
	for k, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			must.Failf("watch %s: %w", k.Resource, context.Cause(ctx))
		}
	}
	return w
}

// changes records that the Deployments of some components will get a new spec.
func (w *witness) changes(of []int) {
	for _, i := range of {
		w.generations[i]++
	}
}

// asGitSays fails unless every component has its objects and each Deployment has been changed
// exactly as often as in git.
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
	return 0 // not an object of a metadata watch
}

// looks is the interval of checks. It does not affect the measured times, which come from the audit
// log.
const looks = 100 * time.Millisecond
