package daemonset

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// nodes holds the nodes of the cluster as the informer last showed them, and when each changed.
// All DaemonSets share it. It is safe for concurrent use.
type nodes struct {
	mu      sync.Mutex
	version int64 // counts changes
	all     map[string]versioned
}

type versioned struct {
	node    *corev1.Node
	version int64
}

func newNodes() *nodes { return &nodes{all: map[string]versioned{}} }

// since calls changed for each node that was added or changed after a version. It then calls
// gone with a function that reports whether a node exists, and returns the current version. A
// version of 0 means all nodes. If the version is current, nothing is called.
func (n *nodes) since(version int64, changed func(*corev1.Node), gone func(there func(string) bool)) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if version == n.version {
		return version
	}
	for _, v := range n.all {
		if v.version > version {
			changed(v.node)
		}
	}
	gone(func(name string) bool { _, is := n.all[name]; return is })
	return n.version
}

func (n *nodes) saw(node *corev1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version++
	n.all[node.Name] = versioned{node, n.version}
}

func (n *nodes) lost(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version++
	delete(n.all, name)
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// eventHandler returns an event handler that records nodes, and enqueues all DaemonSets.
func (n *nodes) eventHandler(all func(context.Context) []reconcile.Request) handler.EventHandler {
	look := func(ctx context.Context, q queue) {
		for _, r := range all(ctx) {
			q.Add(r)
		}
	}
	saw := func(ctx context.Context, o client.Object, q queue) {
		if node, ok := o.(*corev1.Node); ok {
			n.saw(node)
		}
		look(ctx, q)
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { saw(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { saw(ctx, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			n.lost(e.Object.GetName())
			look(ctx, q)
		},
	}
}
