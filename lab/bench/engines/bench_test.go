package engines_test

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// engine is one method to find out whether an object matches the wanted state.
type engine struct {
	name string
	// settle applies an object to the API server as the engine's own product does. The engine's
	// check then finds the data that it needs: a record, an annotation, managedFields.
	settle func(context.Context, *unstructured.Unstructured) (check, error)
}

// check reports whether the settled object differs from a wanted one. Each call does all of the
// work; only the remembering engines recognise an object.
type check func(context.Context, *unstructured.Unstructured) (bool, error)

// BenchmarkSettled compares an unchanged object: the constant work of a converged fleet. Keelson's
// goal is 100 µs and 60 KB.
func BenchmarkSettled(b *testing.B) {
	each(b, server(b).engines, settledDeployment)
}

// BenchmarkUnchanged compares an object that has not changed since the last comparison. An engine
// that remembers results may use them. Keelson's goal is 1 µs.
func BenchmarkUnchanged(b *testing.B) {
	each(b, server(b).remembering, settledDeployment)
}

func settledDeployment(b *testing.B, e engine) {
	want := cluster.objects.deployment
	measure(b, settled(b, e, want), want, false)
}

// BenchmarkChanged compares an object after one field was changed in git.
func BenchmarkChanged(b *testing.B) {
	each(b, server(b).engines, func(b *testing.B, e engine) {
		check := settled(b, e, cluster.objects.deployment)
		want := cluster.objects.deployment.DeepCopy()
		if err := unstructured.SetNestedField(want.Object, int64(3), "spec", "replicas"); err != nil {
			b.Fatal(err)
		}
		measure(b, check, want, true)
	})
}

// BenchmarkFleet compares all objects of a cluster, none of which differs.
func BenchmarkFleet(b *testing.B) {
	each(b, server(b).engines, func(b *testing.B, e engine) {
		fleet := cluster.objects.fleet
		checks := make([]check, len(fleet))
		for i, want := range fleet {
			checks[i] = settled(b, e, want)
			expect(b, checks[i], want, false) // as in measure
		}
		b.ReportAllocs()
		for b.Loop() {
			for i, want := range fleet {
				expect(b, checks[i], want, false)
			}
		}
		b.ReportMetric(float64(len(fleet)), "objects/op")
	})
}

// BenchmarkLeaves compares settled objects of several sizes. The time per leaf field should stay
// constant.
func BenchmarkLeaves(b *testing.B) {
	for _, leaves := range []int{10, 100, 1000, 10_000} {
		b.Run(fmt.Sprint("leaves=", leaves), func(b *testing.B) {
			each(b, server(b).engines, func(b *testing.B, e engine) {
				want := widget(leaves)
				measure(b, settled(b, e, want), want, false)
			})
		})
	}
}

func server(b *testing.B) *apiServer {
	if cluster == nil {
		b.Skip("needs an API server: make bench")
	}
	return cluster
}

// each runs a benchmark for several engines, with names in benchstat's format.
func each(b *testing.B, engines []engine, run func(*testing.B, engine)) {
	for _, e := range engines {
		b.Run("engine="+e.name, func(b *testing.B) { run(b, e) })
	}
}

// settled applies an object to the API server, and removes the object when the benchmark ends.
func settled(b *testing.B, e engine, want *unstructured.Unstructured) check {
	b.Helper()
	c, err := e.settle(b.Context(), want)
	ctx := context.WithoutCancel(b.Context())
	b.Cleanup(func() {
		if err := cluster.remove(ctx, want); err != nil {
			b.Errorf("remove %s %s: %v", want.GetKind(), want.GetName(), err)
		}
	})
	if err != nil {
		b.Fatalf("apply %s %s: %v", want.GetKind(), want.GetName(), err)
	}
	return c
}

func measure(b *testing.B, c check, want *unstructured.Unstructured, differs bool) {
	b.Helper()
	expect(b, c, want, differs) // values that are built on first use are built here
	b.ReportAllocs()
	for b.Loop() {
		expect(b, c, want, differs)
	}
}

// expect fails if the answer is wrong: the speed of a wrong answer is worthless.
func expect(b *testing.B, c check, want *unstructured.Unstructured, differs bool) {
	got, err := c(b.Context(), want)
	if err != nil {
		b.Fatalf("%s %s: %v", want.GetKind(), want.GetName(), err)
	}
	if got != differs {
		b.Fatalf("%s %s: differs: %v, want %v", want.GetKind(), want.GetName(), got, differs)
	}
}
