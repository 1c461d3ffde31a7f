package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// deadGit stops the git server. Keelson must still revert drift meanwhile.
func deadGit(ctx context.Context, r *run) string {
	from := r.marks()
	r.repo.stop()
	message, restored := "", ""
	must.Finally(func() {
		until(ctx, func(ctx context.Context) { message = event(ctx, r, "RepositoryUnreadable") })
		restored = drift(ctx, r)
		for _, c := range []string{canary, production} {
			if w := r.writes(c, from); len(w) > 0 {
				must.Failf("%s: %s", c, w[0])
			}
		}
	}, func() error { return must.Try(func() { r.repo.serve(ctx) }) })
	took, _ := r.beacon.arrival(ctx)
	return fmt.Sprintf("%s\nno cluster changed; meanwhile %s; when it was back, a push arrived after %s", message, restored, took)
}

// event returns the message of an event on the hub.
func event(ctx context.Context, r *run, reason string) string {
	list := must.Get(r.admin(hub).Resource(harness.Resource("v1/events")).List(ctx, metav1.ListOptions{}))
	for i := range list.Items {
		if is, _, _ := unstructured.NestedString(list.Items[i].Object, "reason"); is == reason {
			message, _, _ := unstructured.NestedString(list.Items[i].Object, "message")
			return "event " + reason + ": " + message
		}
	}
	must.Failf("the hub has no event %s", reason)
	return ""
}

// deadCluster stops one API server. Deliveries to the other clusters must continue.
func deadCluster(ctx context.Context, r *run) string {
	all, _ := r.beacon.arrival(ctx)
	must.Do(r.lab.Stop(ctx, canary, "kube-apiserver"))
	var others time.Duration
	push := ""
	must.Finally(func() {
		until(ctx, func(ctx context.Context) {
			if d := r.deliveries(ctx)[canary+"."+beaconName]; d.Sync != "Unreachable" {
				must.Failf("%s", d)
			}
		})
		others, push = r.beacon.arrival(ctx, canary)
	}, func() error { return r.lab.Start(context.WithoutCancel(ctx), canary, "kube-apiserver") })
	started := time.Now()
	r.beacon.arrives(ctx, push)
	caught := time.Since(started).Round(10 * time.Millisecond)
	r.converged(ctx)
	return fmt.Sprintf("push to arrival %s with all three, %s on the other two while %s was down; it caught up %s after its return", all, others, canary, caught)
}
