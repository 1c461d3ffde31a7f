package main

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

const beaconName = "beacon"

// beacon is a component with one ConfigMap, on every cluster. Its value shows which push has
// arrived.
type beacon struct {
	scene *scene
	repo  *repository
}

// add adds the beacon to the fleet.
func (b *beacon) add(ctx context.Context) {
	b.repo.write("components/beacon/component.yaml", apiVersion+"kind: Component\nnamespace: beacon\n")
	b.repo.write("components/beacon/template/Chart.yaml", "apiVersion: v2\nname: beacon\nversion: 1.0.0\n")
	b.repo.write("components/beacon/template/values.yaml", "push: 0\n")
	b.repo.write("components/beacon/template/templates/beacon.yaml",
		"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: beacon\ndata:\n  push: {{ .Values.push | quote }}\n")
	for _, c := range b.scene.clusters {
		b.repo.setVersion(c, beaconName, "v1.0.0")
	}
	b.repo.push(ctx, "a beacon")
	b.repo.tag(ctx, beaconName, "v1.0.0")
}

// set sets a new value on all clusters and returns it.
func (b *beacon) set() string {
	push := time.Now().Format("150405.000")
	for _, c := range b.scene.clusters {
		b.repo.setValue(c, beaconName, "push", push)
	}
	return push
}

// arrives waits until all clusters but the excepted ones have the push.
func (b *beacon) arrives(ctx context.Context, push string, except ...string) {
	until(ctx, func(ctx context.Context) {
		for _, c := range b.scene.clusters {
			if slices.Contains(except, c) {
				continue
			}
			u := must.Get(b.scene.admin(c).Resource(harness.Resource("v1/configmaps")).Namespace(beaconName).Get(ctx, beaconName, metav1.GetOptions{}))
			if v, _, _ := unstructured.NestedString(u.Object, "data", "push"); v != push {
				must.Failf("%s has push %s", c, v)
			}
		}
	})
}

// arrival pushes a value, and returns the time until it has arrived on all clusters but the
// excepted ones.
func (b *beacon) arrival(ctx context.Context, except ...string) (took time.Duration, push string) {
	started := time.Now()
	push = b.set()
	b.repo.push(ctx, "beacon "+push)
	b.arrives(ctx, push, except...)
	return time.Since(started).Round(10 * time.Millisecond), push
}
