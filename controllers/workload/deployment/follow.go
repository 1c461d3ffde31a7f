package deployment

import (
	"context"
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
)

// followers follow the ReplicaSets and pods of the Deployments whose update is under way. Other
// Deployments cost no memory and no request. It is safe for concurrent use.
type followers struct {
	api    kubernetes.Interface
	events chan event.GenericEvent

	mu sync.Mutex
	by map[types.NamespacedName]*follower
}

// follower has the informers of one Deployment.
type follower struct {
	uid        types.UID
	stop       context.CancelFunc
	sets, pods toolscache.SharedIndexInformer
}

func newFollowers(api kubernetes.Interface) *followers {
	return &followers{api: api, events: make(chan event.GenericEvent), by: map[types.NamespacedName]*follower{}}
}

// of returns the follower of a Deployment, or begins to follow it. It stops with the context.
func (f *followers) of(ctx context.Context, d *appsv1.Deployment) (*follower, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := client.ObjectKeyFromObject(d)
	if one := f.by[name]; one != nil && one.uid == d.UID {
		return one, nil
	}
	f.forget(name)
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.selector of Deployment %s: %w", name, err)
	}
	ctx, stop := context.WithCancel(ctx)
	informer := func(from rest.Interface, resource string, like client.Object) toolscache.SharedIndexInformer {
		lists := toolscache.NewFilteredListWatchFromClient(from, resource, d.Namespace, func(o *metav1.ListOptions) { o.LabelSelector = selector.String() })
		return toolscache.NewSharedIndexInformer(lists, like, 0, toolscache.Indexers{})
	}
	one := &follower{
		uid: d.UID, stop: stop, sets: informer(f.api.AppsV1().RESTClient(), "replicasets", &appsv1.ReplicaSet{}),
		pods: informer(f.api.CoreV1().RESTClient(), "pods", &corev1.Pod{}),
	}
	changed := event.GenericEvent{Object: &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}}}
	tell := func() {
		select {
		case f.events <- changed:
		case <-ctx.Done():
		}
	}
	for _, i := range []toolscache.SharedIndexInformer{one.sets, one.pods} {
		if err := i.SetTransform(slim); err != nil {
			stop()
			return nil, fmt.Errorf("follow Deployment %s: %w", name, err)
		}
		_, err := i.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { tell() }, UpdateFunc: func(any, any) { tell() }, DeleteFunc: func(any) { tell() }})
		if err != nil {
			stop()
			return nil, fmt.Errorf("follow Deployment %s: %w", name, err)
		}
		go i.RunWithContext(ctx)
	}
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), one.sets.HasSynced, one.pods.HasSynced) {
			tell()
		}
	}()
	f.by[name] = one
	return one, nil
}

// stop ends the following of a Deployment.
func (f *followers) stop(name types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(name)
}

func (f *followers) forget(name types.NamespacedName) {
	if one := f.by[name]; one != nil {
		one.stop()
		delete(f.by, name)
	}
}

// observe returns the ReplicaSets of a Deployment, and the pods that may be theirs. known is false until
// both have been read.
func (o *follower) observe(d *appsv1.Deployment) (sets []*appsv1.ReplicaSet, pods []*corev1.Pod, known bool) {
	if !o.sets.HasSynced() || !o.pods.HasSynced() {
		return nil, nil, false
	}
	for _, is := range o.sets.GetStore().List() {
		if s, ok := is.(*appsv1.ReplicaSet); ok && metav1.IsControlledBy(s, d) {
			sets = append(sets, s)
		}
	}
	for _, is := range o.pods.GetStore().List() {
		if p, ok := is.(*corev1.Pod); ok {
			pods = append(pods, p)
		}
	}
	return sets, pods, true
}

// slim removes what no decision needs from a ReplicaSet or pod before an informer keeps it.
func slim(o any) (any, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return o, nil
	}
	kept := metav1.ObjectMeta{
		Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUID(), ResourceVersion: m.GetResourceVersion(), Generation: m.GetGeneration(),
		CreationTimestamp: m.GetCreationTimestamp(), DeletionTimestamp: m.GetDeletionTimestamp(), OwnerReferences: m.GetOwnerReferences(),
	}
	switch o := o.(type) {
	case *appsv1.ReplicaSet:
		if text, has := o.Annotations[v1beta1.AnnotationUpdateBefore]; has {
			kept.Annotations = map[string]string{v1beta1.AnnotationUpdateBefore: text}
		}
		o.ObjectMeta, o.Spec.Selector, o.Status.Conditions = kept, nil, nil
	case *corev1.Pod:
		o.ObjectMeta, o.Spec = kept, corev1.PodSpec{}
	}
	return o, nil
}

// enqueue is the handler of the events of followers. Events come in bursts.
func enqueue() handler.EventHandler {
	return handler.Funcs{GenericFunc: func(_ context.Context, e event.GenericEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)}, podclient.Gather/4)
	}}
}
