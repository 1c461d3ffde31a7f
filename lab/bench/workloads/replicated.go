package workloads

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/keelson-io/keelson/lab/harness/must"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// replicated is a workload with replicas, and what a step does to it.
type replicated struct {
	title, name, image string
	bare               bool // the bare loop writes its pods
	object             client.Object
	status             func(context.Context) replicas
	roll               func(image, unavailable string) func(context.Context) int64
	empty              func(context.Context) int64
}

// replicas is the part of the status that the kinds have in common.
type replicas struct {
	generation               int64
	all, ready, updatedReady int32
}

// replicated measures a workload from creation to scale-down. It compares each update with the
// same update of the workload before.
func (b *bench) replicated(ctx context.Context, r replicated) {
	b.start()
	n := int32(b.pods) //nolint:gosec // a flag
	of := func(is func(replicas) (bool, int32)) func(context.Context) seen {
		return func(ctx context.Context) seen {
			status := r.status(ctx)
			done, counts := is(status)
			return seen{status.generation, done, counts}
		}
	}
	updated := of(func(s replicas) (bool, int32) { return s.updatedReady == n && s.ready == n, s.updatedReady })
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(b.out, r.title+"\n", b.pods)
	for _, s := range []step{
		{"created", b.create(r.object), of(func(s replicas) (bool, int32) { return s.all == n && s.ready == n, s.ready }), b.pods},
		{"updated in place, maxUnavailable 100%", r.roll(r.image+":v2", "100%"), updated, b.pods},
		{"updated in place, maxUnavailable 20%", r.roll(r.image+":v3", "20%"), updated, b.pods},
	} {
		clones, measured := b.took[s.name]
		b.step(ctx, w, s)
		if measured {
			fmt.Fprintf(w, "\t%.2f times as long as the CloneSet\n", b.last.Seconds()/clones.Seconds())
		}
	}
	b.usage(w)
	if r.bare {
		b.bare(ctx, w, r.name)
	}
	b.step(ctx, w, step{"scaled to 0", r.empty, of(func(s replicas) (bool, int32) { return s.all == 0, s.all }), b.pods})
	must.Do(w.Flush())
}

func selector(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

// template returns a pod template with one container, at the first version of its image.
func template(name, container string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: container, Image: container + ":v1"}}},
	}
}

// create returns a change that creates an object.
func (b *bench) create(o client.Object) func(context.Context) int64 {
	return func(ctx context.Context) int64 {
		must.Do(b.client.Create(ctx, o))
		return o.GetGeneration()
	}
}

// pointer is the pointer to an object of a kind.
type pointer[T any] interface {
	*T
	client.Object
}

func get[T any, P pointer[T]](ctx context.Context, b *bench, name string) P {
	o := P(new(T))
	must.Do(b.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, o))
	return o
}

// change returns a change that edits an object.
func change[T any, P pointer[T]](b *bench, name string, edit func(P)) func(context.Context) int64 {
	return func(ctx context.Context) int64 {
		o := get[T, P](ctx, b, name)
		before, _ := o.DeepCopyObject().(client.Object)
		edit(o)
		must.Do(b.client.Patch(ctx, o, client.MergeFrom(before)))
		return o.GetGeneration()
	}
}
