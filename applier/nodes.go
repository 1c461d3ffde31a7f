package applier

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/differ"
)

const (
	// nodePage is how many nodes one request reads, and nodeLimit the most that are read: twice the
	// limit of a Kubernetes cluster (kubernetes.io, large clusters: 5,000).
	nodePage, nodeLimit = 500, 10_000
	// nodesAge is how long nodes are kept and reused: a held component is planned again with every
	// event.
	nodesAge = time.Minute
)

// readNodes reads the nodes of the cluster if a danger rule counts them, and compares again. If
// Keelson may not list nodes, or there are too many, they are unknown: the conditions read null.
func (c *Cluster) readNodes(ctx context.Context, p *Prepared) error {
	if !slices.ContainsFunc(p.Plan.Changes, func(ch differ.Change) bool { return ch.NodesUnread }) {
		return nil
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		return err
	}
	p.policy.Nodes, p.policy.NodesReadable = nodes, false
	if p.Plan, err = differ.Compare(ctx, p.schemas, p.states, p.policy); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	return c.readOwners(ctx, p) // the rules' decisions may depend on owners
}

// nodes lists the nodes; nil: unknown.
func (c *Cluster) nodes(ctx context.Context) (*differ.Nodes, error) {
	c.mu.Lock()
	last := c.nodesRead
	c.mu.Unlock()
	if last != nil {
		return last, nil
	}
	var objects []map[string]any
	for next := ""; ; {
		page, err := c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).
			List(ctx, metav1.ListOptions{Limit: nodePage, Continue: next})
		if apierrors.IsForbidden(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		for i := range page.Items {
			objects = append(objects, page.Items[i].Object)
		}
		if next = page.GetContinue(); next == "" {
			break
		}
		if len(objects) >= nodeLimit || len(page.Items) == 0 {
			return nil, nil
		}
	}
	nodes, err := differ.NewNodes(objects)
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	c.keepNodes(nodes)
	time.AfterFunc(nodesAge, func() { c.keepNodes(nil) })
	return nodes, nil
}

func (c *Cluster) keepNodes(nodes *differ.Nodes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodesRead = nodes
}
