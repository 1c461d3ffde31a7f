package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// kill kills the controller during the first convergence, and a new controller finishes the work.
// Audit logs show that no object was created twice.
func kill(ctx context.Context, r *run) string {
	r.up(ctx)
	r.controller.start()
	until(ctx, func(context.Context) {
		if n := r.written(); n < 25 {
			must.Failf("%d objects written", n)
		}
	})
	r.controller.kill()
	before := r.written()
	r.controller.start()
	r.converged(ctx)
	n := r.complete(ctx)
	for _, c := range r.clusters {
		r.createdOnce(c)
	}
	if before >= n {
		must.Failf("the kill came too late: all %d objects were written", n)
	}
	r.controller.stop()
	r.down(ctx)
	return fmt.Sprintf("SIGKILL after %d writes; the next process finished: %d objects, none doubled, none forgotten", before, n)
}

// written counts Keelson's writes of objects in all clusters.
func (r *run) written() (n int) {
	for _, c := range r.clusters {
		n += len(r.writes(c, nil))
	}
	return n
}

// createdOnce fails if an object was created twice or deleted.
func (r *run) createdOnce(cluster string) {
	created := map[string]int{}
	for _, e := range r.writes(cluster, nil) {
		if e.Code == 201 {
			created[e.Resource.String()]++
		}
		if e.Verb == "delete" {
			must.Failf("%s: %s", cluster, e)
		}
	}
	for what, n := range created {
		if n > 1 {
			must.Failf("%s: %s was created %d times", cluster, what, n)
		}
	}
}

// converge measures the first convergence of fresh clusters.
func converge(ctx context.Context, r *run) string {
	r.up(ctx)
	started := time.Now()
	r.controller.start()
	r.converged(ctx)
	took := time.Since(started).Round(100 * time.Millisecond)
	n := r.complete(ctx)
	applied := r.lastWrite(started, nil)
	return fmt.Sprintf("%d deliveries on %d clusters, %d objects: all applied after %s, all healthy after %s\n%s",
		r.components, len(r.clusters), n, applied.Round(100*time.Millisecond), took, distinct(ctx, r))
}

// distinct checks that each cluster runs its own meta-config, by the replicas of coredns.
func distinct(ctx context.Context, r *run) string {
	var parts []string
	seen := map[int64]bool{}
	for _, c := range r.clusters {
		n := r.coredns.replicas(ctx, c)
		seen[n] = true
		parts = append(parts, fmt.Sprintf("%s %d", c, n))
	}
	if len(seen) != len(r.clusters) {
		must.Failf("clusters run the same coredns replicas: %s", strings.Join(parts, ", "))
	}
	return "each its own meta-config: coredns replicas are " + strings.Join(parts, ", ")
}

// complete compares the objects of the clusters with git: none doubled, none missing. It returns
// the number of objects.
func (r *run) complete(ctx context.Context) (total int) {
	for _, c := range r.clusters {
		want, have := sets.Set[string]{}, sets.Set[string]{}
		for _, u := range r.cli.render(ctx, c) {
			want.Insert(key(&u))
		}
		for _, u := range r.managed(ctx, c) {
			// Endpoints copy the labels of their Service.
			if len(u.GetOwnerReferences()) == 0 && u.GetKind() != "Endpoints" {
				have.Insert(key(&u))
			}
		}
		if !want.Equal(have) {
			must.Failf("%s: git says %d objects and the cluster has %d: missing %q, unwanted %q", c, len(want), len(have),
				sets.List(want.Difference(have)), sets.List(have.Difference(want)))
		}
		total += len(have)
	}
	return total
}

func key(u *unstructured.Unstructured) string {
	return u.GroupVersionKind().GroupKind().String() + " " + u.GetNamespace() + "/" + u.GetName()
}
