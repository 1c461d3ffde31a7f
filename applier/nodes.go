package applier

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/expr"
	"github.com/keelson-io/keelson/differ/jsonsize"
)

const (
	// nodePage is how many nodes one request reads, and nodeLimit the most that are read: twice the
	// limit of a Kubernetes cluster (kubernetes.io, large clusters: 5,000).
	nodePage, nodeLimit = 250, 10_000
	// nodeMemory bounds what is kept of the nodes, in bytes: labels and taints of 10,000 nodes take
	// about half of it.
	nodeMemory = 32 << 20
	// nodesAge is how long nodes are kept and reused: a held component is planned again with every
	// event.
	nodesAge = time.Minute
)

// nodeReader reads the nodes of a cluster. One component reads them at a time, and all components
// use them for a minute. That they are unknown is remembered as long.
type nodeReader struct {
	client dynamic.Interface

	mu    sync.Mutex
	read  bool
	nodes *expr.Nodes // nil: unknown
}

// get returns the nodes; nil: unknown, because Keelson may not list nodes, or there are too many.
func (r *nodeReader) get(ctx context.Context) (*expr.Nodes, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.read {
		return r.nodes, nil
	}
	nodes, err := readNodePages(ctx, r.list)
	if err != nil && !apierrors.IsForbidden(err) && !errors.Is(err, errManyNodes) {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	r.read, r.nodes = true, nodes
	time.AfterFunc(nodesAge, r.forget)
	return nodes, nil
}

// forget makes the next use read the nodes again.
func (r *nodeReader) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read, r.nodes = false, nil
}

var errManyNodes = errors.New("too many nodes, or too many labels and taints")

// readNodePages keeps what rules read of each page, and no page. An API server that answers without
// end is bounded in requests and memory.
func readNodePages(ctx context.Context, list func(context.Context, string) ([]map[string]any, string, error)) (*expr.Nodes, error) {
	nodes, read, size := &expr.Nodes{}, 0, 0
	for next := ""; ; {
		page, more, err := list(ctx, next)
		if err != nil {
			return nil, err
		}
		for _, o := range page {
			spec, _ := o["spec"].(map[string]any)
			metadata, _ := o["metadata"].(map[string]any)
			size += jsonsize.Memory(metadata["labels"]) + jsonsize.Memory(spec["taints"])
			if size > nodeMemory {
				return nil, errManyNodes
			}
			if err := nodes.Add(o); err != nil {
				return nil, err
			}
		}
		if next = more; next == "" {
			return nodes, nil
		}
		if read += max(1, len(page)); read >= nodeLimit {
			return nil, errManyNodes
		}
	}
}

// list reads a page of nodes.
func (r *nodeReader) list(ctx context.Context, next string) ([]map[string]any, string, error) {
	page, err := r.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).
		List(ctx, metav1.ListOptions{Limit: nodePage, Continue: next})
	if err != nil {
		return nil, "", fmt.Errorf("page: %w", err)
	}
	objects := make([]map[string]any, len(page.Items))
	for i := range page.Items {
		objects[i] = page.Items[i].Object
	}
	return objects, page.GetContinue(), nil
}

// addTo reads the nodes into a policy. If they are unknown, the conditions of rules read null.
func (r *nodeReader) addTo(ctx context.Context, policy *differ.Policy) (err error) {
	policy.NodesReadable = false
	policy.Nodes, err = r.get(ctx)
	return err
}

// judge judges an object outside of a plan, again with the nodes if the rules read them.
func (r *nodeReader) judge(ctx context.Context, policy differ.Policy, judge func(differ.Policy) (*differ.Change, error)) (*differ.Change, error) {
	ch, err := judge(policy)
	if err != nil || !ch.Unread.Nodes {
		return ch, err
	}
	if err := r.addTo(ctx, &policy); err != nil {
		return nil, err
	}
	return judge(policy)
}
