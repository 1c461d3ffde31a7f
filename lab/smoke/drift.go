package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// drift scales coredns with kubectl scale, and waits until Keelson reverts the change.
func drift(ctx context.Context, r *run) string {
	want := r.coredns.replicas(ctx, testing)
	started := time.Now()
	r.coredns.scale(ctx, testing, want+5)
	r.coredns.replicasBecome(ctx, testing, want)
	return fmt.Sprintf("kubectl scale deployment coredns --replicas %d was set back to %d after %s", want+5, want,
		time.Since(started).Round(10*time.Millisecond))
}

// autoscaler scales in the same way while a HorizontalPodAutoscaler exists. Keelson must keep the
// replicas until the autoscaler is deleted, also when another field of the Deployment is pushed.
func autoscaler(ctx context.Context, r *run) string {
	hpas := r.admin(canary).Resource(harness.Resource("autoscaling/v2/horizontalpodautoscalers")).Namespace(dnsNamespace)
	hpa := must.Get(harness.Object(`apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: coredns}
spec: {minReplicas: 1, maxReplicas: 9, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: coredns}}
`))
	must.Get(hpas.Create(ctx, hpa, metav1.CreateOptions{}))
	was := r.coredns.replicas(ctx, canary)
	must.Sleep(ctx, time.Second)
	r.coredns.scale(ctx, canary, was+3)
	pushResources(ctx, r)
	if n := r.coredns.replicas(ctx, canary); n != was+3 {
		must.Failf("%d replicas, and not the %d that were set under an autoscaler", n, was+3)
	}
	must.Do(hpas.Delete(ctx, dns, metav1.DeleteOptions{}))
	r.coredns.replicasBecome(ctx, canary, was)
	return fmt.Sprintf("under an autoscaler %d replicas stayed %d, also when another field of the Deployment was pushed; without it they are %d again", was+3, was+3, was)
}

// pushResources changes another field of the same Deployment. It waits 3 seconds longer than the
// change takes.
func pushResources(ctx context.Context, r *run) {
	r.repo.setValue(canary, dns, "resources", map[string]any{"requests": map[string]any{"cpu": "70m", "memory": "48Mi"}})
	r.repo.push(ctx, "canary: other resources for coredns")
	until(ctx, func(ctx context.Context) {
		containers, _, _ := unstructured.NestedSlice(r.coredns.deployment(ctx, canary).Object, "spec", "template", "spec", "containers")
		if !strings.Contains(fmt.Sprint(containers), "cpu:70m") {
			must.Failf("the pushed resources are not there")
		}
	})
	must.Sleep(ctx, 3*time.Second)
}
