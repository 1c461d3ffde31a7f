package main

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

const (
	dns          = "coredns" // name of the component and of its Deployment
	dnsNamespace = "kube-system"
)

// coredns is the component of the example fleet that drifts, and on which mistakes are made. They
// are made on the testing cluster.
type coredns struct {
	scene *scene
	repo  *repository
	cli   *cli
}

func (c *coredns) deployment(ctx context.Context, cluster string) *unstructured.Unstructured {
	all := c.scene.admin(cluster).Resource(harness.Resource("apps/v1/deployments"))
	return must.Get(all.Namespace(dnsNamespace).Get(ctx, dns, metav1.GetOptions{}))
}

func (c *coredns) replicas(ctx context.Context, cluster string) int64 {
	n, _, err := unstructured.NestedInt64(c.deployment(ctx, cluster).Object, "spec", "replicas")
	must.Do(err)
	return n
}

// replicasBecome waits until a cluster has the wanted number of replicas.
func (c *coredns) replicasBecome(ctx context.Context, cluster string, want int64) {
	until(ctx, func(ctx context.Context) {
		if n := c.replicas(ctx, cluster); n != want {
			must.Failf("%d replicas of %s, want %d", n, dns, want)
		}
	})
}

// scale runs the real kubectl scale.
func (c *coredns) scale(ctx context.Context, on string, n int64) {
	kubeconfig := must.Get(c.scene.lab.Kubeconfig(on, cluster.Admin))
	must.Get(harness.Run(ctx, ".", c.scene.set.Path("kubectl"), "--kubeconfig", kubeconfig, "-n", dnsNamespace,
		"scale", "deployment", dns, fmt.Sprintf("--replicas=%d", n)))
}

// publish commits a new version and lets the testing cluster run it.
func (c *coredns) publish(ctx context.Context, version string) {
	c.repo.release(ctx, dns, version)
	c.repo.setVersion(testing, dns, version)
	c.repo.push(ctx, "run "+dns+" "+version)
}

// stops waits until the delivery to the testing cluster has the given sync state and as returns
// true.
func (c *coredns) stops(ctx context.Context, sync string, as func(harness.Delivery) bool) (d harness.Delivery) {
	until(ctx, func(ctx context.Context) {
		if d = c.scene.deliveries(ctx)[testing+"."+dns]; d.Sync != sync || !as(d) {
			must.Failf("want %s: %s", sync, d)
		}
	})
	return d
}

// approve approves the held change on the testing cluster, with the hash from keelson diff.
func (c *coredns) approve(ctx context.Context) {
	var plan struct {
		Objects []struct{ Kind, Name, State, Hash string }
	}
	must.Do(json.Unmarshal([]byte(c.cli.run(ctx, 1, "diff", testing, dns, "-o", "json")), &plan))
	for _, o := range plan.Objects {
		if o.State == "held" {
			c.repo.write("approvals/smoke.yaml", fmt.Sprintf(
				apiVersion+"kind: Approvals\napprovals:\n- {cluster: %s, component: %s, object: %s.apps %s/%s, hash: %q, because: smoke}\n",
				testing, dns, o.Kind, dnsNamespace, o.Name, o.Hash))
		}
	}
	c.repo.push(ctx, "approve the selector")
}

// breakTemplate puts a line into the template of the Deployment, and publishes that as a version.
func (c *coredns) breakTemplate(ctx context.Context, line, version string) {
	c.repo.replace(c.repo.templateWith(dns, "kind: Deployment"), `(?m)^kind: Deployment$`, "kind: Deployment\n"+line)
	c.publish(ctx, version)
}
