package worldtest

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// Offline is the cache of a manager, with the informers of production, of objects that are in no
// cluster. It measures the cost of a reconcile without an API server. Writes fail.
type Offline struct {
	// Client reads from the cache.
	Client client.Client
	Pods   kubernetes.Interface
	cache  cache.Cache
	tb     testing.TB

	mu      sync.Mutex
	sources map[string]*cachetesting.FakeControllerSource // by type
}

// NewOffline returns an empty cache that sends the events of pods to a handler, as a controller
// does. It stops with the test.
func NewOffline(tb testing.TB, pods handler.EventHandler) *Offline {
	tb.Helper()
	o := &Offline{tb: tb, sources: map[string]*cachetesting.FakeControllerSource{}}
	scheme := runtime.NewScheme()
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			tb.Fatal(err)
		}
	}
	for gvk := range scheme.AllKnownTypes() {
		mapper.Add(gvk, meta.RESTScopeNamespace)
	}
	options, err := base.Caches()
	if err != nil {
		tb.Fatal(err)
	}
	options.Scheme, options.Mapper, options.HTTPClient = scheme, mapper, http.DefaultClient
	options.NewInformer = func(_ toolscache.ListerWatcher, like runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		return toolscache.NewSharedIndexInformer(o.of(like), like, resync, indexers)
	}
	c := &rest.Config{Host: "http://offline.invalid"}
	if o.cache, err = cache.New(c, options); err != nil {
		tb.Fatal(err)
	}
	if o.Client, err = client.New(c, client.Options{Scheme: scheme, Mapper: mapper, HTTPClient: http.DefaultClient, Cache: &client.CacheOptions{Reader: o.cache}}); err != nil {
		tb.Fatal(err)
	}
	if o.Pods, err = kubernetes.NewForConfig(c); err != nil {
		tb.Fatal(err)
	}
	if err := o.cache.IndexField(tb.Context(), &corev1.Pod{}, podclient.OrphanIndex, podclient.Orphans); err != nil {
		tb.Fatal(err)
	}
	o.tell(pods)
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan error)
	go func() { ended <- o.cache.Start(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
	return o
}

// tell registers a handler for the events of pods, as the source of a controller does.
func (o *Offline) tell(pods handler.EventHandler) {
	o.tb.Helper()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	o.tb.Cleanup(queue.ShutDown)
	informer, err := o.cache.GetInformer(o.tb.Context(), &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		o.tb.Fatal(err)
	}
	ctx := o.tb.Context()
	as := func(obj any) client.Object {
		p, ok := obj.(*corev1.Pod)
		if !ok {
			o.tb.Errorf("%T is no pod", obj)
		}
		return p
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(is any) { pods.Create(ctx, event.CreateEvent{Object: as(is)}, queue) },
		UpdateFunc: func(was, is any) {
			pods.Update(ctx, event.UpdateEvent{ObjectOld: as(was), ObjectNew: as(is)}, queue)
		},
		DeleteFunc: func(was any) { pods.Delete(ctx, event.DeleteEvent{Object: as(was)}, queue) },
	})
	if err != nil {
		o.tb.Fatal(err)
	}
}

func (o *Offline) of(like runtime.Object) *cachetesting.FakeControllerSource {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := fmt.Sprintf("%T", like)
	if o.sources[key] == nil {
		o.sources[key] = cachetesting.NewFakeControllerSource()
	}
	return o.sources[key]
}

// Add adds objects, with their names as UIDs.
func (o *Offline) Add(objects ...client.Object) {
	for _, object := range objects {
		object.SetUID(types.UID(object.GetName()))
		o.of(object).Add(object.DeepCopyObject())
	}
}

// Revisions adds a revision of the template of a workload for each image of its first container.
// The template keeps the last image.
func (o *Offline) Revisions(owner client.Object, kind string, template *corev1.PodTemplateSpec, images ...string) []*appsv1.ControllerRevision {
	o.tb.Helper()
	var out []*appsv1.ControllerRevision
	for i, image := range images {
		template.Spec.Containers[0].Image = image
		made, err := revision.New(revision.Owner{Object: owner, Kind: v1beta1.GroupVersion.WithKind(kind), Labels: template.Labels}, template, int64(i+1))
		if err != nil {
			o.tb.Fatal(err)
		}
		o.Add(made)
		out = append(out, made)
	}
	return out
}

// Change changes an object, and waits until the cache has the change. It reads the object into
// seen.
func (o *Offline) Change(object, seen client.Object) {
	o.tb.Helper()
	changed, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		o.tb.Fatalf("%T is no object", object)
	}
	o.of(object).Modify(changed)
	o.Until("the change is seen", func() bool {
		err := o.Client.Get(o.tb.Context(), client.ObjectKeyFromObject(object), seen)
		return err == nil && seen.GetResourceVersion() == changed.GetResourceVersion()
	})
}

// Looks measures one reconcile of a workload after each change of a pod.
func (o *Offline) Looks(b *testing.B, r reconcile.Reconciler, at client.Object, changed func(i int) *corev1.Pod) {
	b.Helper()
	look := func() {
		if _, err := r.Reconcile(b.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(at)}); err != nil {
			b.Fatal(err)
		}
	}
	look() // the first reconcile evaluates all pods
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		o.Change(changed(i), &corev1.Pod{})
		b.StartTimer()
		look()
	}
}

// Until waits for a condition, and fails the test after a minute.
func (o *Offline) Until(what string, is func() bool) {
	o.tb.Helper()
	err := wait.PollUntilContextTimeout(o.tb.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return is(), nil })
	if err != nil {
		o.tb.Fatalf("not until %s: %v", what, err)
	}
}
