package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

const (
	// contendedComponents is the number of fixture components. Each has four objects with concurrent writers,
	// 200 in total, and one object that is created and deleted repeatedly.
	contendedComponents = 50
	// contendPace is the time between two writes of a writer.
	contendPace = 40 * time.Millisecond
	// gitPace is the time between two changes in git.
	gitPace = 3 * time.Second
)

// runContended runs other writers while Keelson changes its objects. They write fields
// that don't belong to Keelson. Each field is a counter that only increases.
func runContended(ctx context.Context, w *world, r *result) {
	r.did, r.must = "writes of others (apply, PUT, patch, scale) to objects that change", 10*int(w.Contend.Seconds())
	// git doesn't set replicas, so that the scaler owns the field.
	g := w.newFixtureFleet(ctx, "busy", contendedComponents, strings.ReplaceAll(fixtureTemplate, "  replicas: 0\n", ""), target)
	g.steady = true // without a controller manager, no garbage is collected
	s := &disasterFleet{fixtureFleet: g, kubeconfig: g.directNamed()}
	s.restart(ctx)
	must.Wrap(func() { g.converged(ctx, hungAfter) }, "before any other writer (its log: %s)", s.controller.Log)
	c := &contention{fixtureFleet: g, last: map[string]int{}}
	c.run(ctx, w.Contend)
	took, err := must.TryGet(func() time.Duration { return g.converged(ctx, recovery) })
	if err != nil {
		r.violate("not as git says: %v (its log: %s)", err, s.controller.Log)
	}
	r.worst, r.number = took, c.writes
	lost := c.lost(ctx)
	reverted, ours, err := revertedFields(must.Get(harness.Audit(w.lab, target, 0)), "busy-")
	must.Do(err)
	for _, line := range append(lost, reverted...) {
		r.violate("%s", line)
	}
	if ours < len(g.components) {
		r.violate("Keelson wrote %d times while others did: nothing was contended", ours)
	}
	if len(r.violations) == 0 {
		r.survived = r.number
	}
	r.notes = append(r.notes, fmt.Sprintf("%d writes of others to %d fields of objects in %s, %d more met a conflict; %d of Keelson's in between; %d lost, %d reverted",
		c.writes, len(c.last), w.Contend, c.conflicts, ours, len(lost), len(reverted)))
	s.controller.stop(ctx)
}

// contention is the state of the other writers.
type contention struct {
	*fixtureFleet

	mu        sync.Mutex
	last      map[string]int // last acknowledged value, by object and field
	writes    int
	conflicts int
}

// competingWriter is a writer of one field of objects.
type competingWriter struct {
	name  string
	kinds []string
	write func(context.Context, dynamic.ResourceInterface, string, int)
}

const (
	ssaField   = "chaos.example/ssa"
	putField   = "chaos.example/put"
	patchField = "chaos.example/patch"
)

func competingWriters() []competingWriter {
	all := slices.Sorted(maps.Keys(fixtureKinds()))
	return []competingWriter{
		{ssaField, all, applyField},
		{putField, all, putAnnotation},
		{patchField, all, patchLabel},
		{"scale", []string{"Deployment"}, scale},
	}
}

// applyField applies its own field with server-side apply.
func applyField(ctx context.Context, objects dynamic.ResourceInterface, name string, n int) {
	live := must.Get(objects.Get(ctx, name, metav1.GetOptions{}))
	// With the UID, the apply can't create an object that was deleted meanwhile.
	u := object(fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: %s, uid: %q, annotations: {%s: %q}}}",
		live.GetAPIVersion(), live.GetKind(), name, live.GetUID(), ssaField, strconv.Itoa(n)))
	must.Get(objects.Apply(ctx, name, u, metav1.ApplyOptions{FieldManager: "other-apply"}))
}

// putAnnotation reads, changes and replaces the whole object.
func putAnnotation(ctx context.Context, objects dynamic.ResourceInterface, name string, n int) {
	live := must.Get(objects.Get(ctx, name, metav1.GetOptions{}))
	notes := live.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes[putField] = strconv.Itoa(n)
	live.SetAnnotations(notes)
	must.Get(objects.Update(ctx, live, metav1.UpdateOptions{FieldManager: "other-put"}))
}

// patchLabel sends a merge patch, as kubectl label does.
func patchLabel(ctx context.Context, objects dynamic.ResourceInterface, name string, n int) {
	body := fmt.Sprintf(`{"metadata":{"labels":{%q:"%d"}}}`, patchField, n)
	must.Get(objects.Patch(ctx, name, "application/merge-patch+json", []byte(body), metav1.PatchOptions{FieldManager: "kubectl-label"}))
}

// scale sets the replicas through the scale subresource, as an autoscaler does.
func scale(ctx context.Context, objects dynamic.ResourceInterface, name string, n int) {
	live := must.Get(objects.Get(ctx, name, metav1.GetOptions{}))
	u := object(fmt.Sprintf("{apiVersion: autoscaling/v1, kind: Scale, metadata: {name: %s, namespace: %s}, spec: {replicas: %d}}", name, live.GetNamespace(), n))
	must.Get(objects.Update(ctx, u, metav1.UpdateOptions{FieldManager: "other-scale"}, "scale"))
}

// shownField returns the value of a writer's field, or 0 if the field is missing.
func shownField(field string, u *unstructured.Unstructured) int {
	var text string
	switch field {
	case patchField:
		text = u.GetLabels()[field]
	case "scale":
		n, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "replicas")
		text = fmt.Sprint(n)
	default:
		text = u.GetAnnotations()[field]
	}
	n, _ := strconv.Atoi(text)
	return n
}

// run runs all writers for a time, while git changes.
func (c *contention) run(ctx context.Context, span time.Duration) {
	bounded, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	var writers []func()
	for _, r := range competingWriters() {
		chance := c.newRand()
		writers = append(writers, func() { every(bounded, contendPace, func() { c.write(ctx, r, chance) }) })
	}
	chance, others := c.newRand(), c.newRand()
	writers = append(writers,
		func() { every(bounded, gitPace, func() { c.changeGit(ctx, chance, len(c.components)) }) },
		// A further writer changes Keelson's own fields, which Keelson resets.
		func() { every(bounded, gitPace, func() { c.drift(ctx, others, 5) }) })
	must.All(len(writers), func(i int) { writers[i]() })
	must.Do(ctx.Err())
}

// every calls do at intervals of pace until the context ends, which is not an error.
func every(ctx context.Context, pace time.Duration, do func()) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// write does one write of a writer to a random object. A conflict or a deleted
// object counts as a conflict, not as a write.
func (c *contention) write(ctx context.Context, r competingWriter, chance *rand.Rand) {
	p := c.components[chance.IntN(len(c.components))]
	kind := r.kinds[chance.IntN(len(r.kinds))]
	name := "app"
	if kind == "ConfigMap" {
		name = "settings"
	}
	key := fmt.Sprintf("%s/%s %s: %s", p.name, kind, name, r.name)
	c.mu.Lock()
	n := c.last[key] + 1
	c.mu.Unlock()
	err := must.Try(func() { r.write(ctx, c.client.Resource(fixtureKinds()[kind]).Namespace(p.name), name, n) })
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		c.conflicts++
		return
	case err != nil:
		must.Failf("%s: %w", key, err)
	}
	c.last[key] = n
	c.writes++
}

// lost compares every field with the value that its writer wrote last. It returns a line
// per difference.
func (c *contention) lost(ctx context.Context) []string {
	var out []string
	for kind, gvr := range fixtureKinds() {
		list := must.Get(c.client.Resource(gvr).List(ctx, metav1.ListOptions{LabelSelector: componentLabelOf}))
		for i := range list.Items {
			u := &list.Items[i]
			for _, r := range competingWriters() {
				key := fmt.Sprintf("%s/%s %s: %s", u.GetNamespace(), kind, u.GetName(), r.name)
				if want := c.last[key]; want > 0 && shownField(r.name, u) != want {
					out = append(out, fmt.Sprintf("%s is %d, and its writer was told %d", key, shownField(r.name, u), want))
				}
			}
		}
	}
	return out
}

// revertedFields returns a line for each write that decreased a writer's counter, in the
// order of resource versions, and the number of Keelson's writes. It considers only
// objects in namespaces with a prefix.
func revertedFields(events []audit.Event, prefix string) (reverted []string, ours int, err error) {
	history := map[string][]audit.Event{}
	for _, e := range events {
		if e.Accepted() && e.Verb != "delete" && e.Resource.Name != "" && strings.HasPrefix(e.Resource.Namespace, prefix) && e.ResourceVersion() > 0 {
			key := e.Resource.Resource + " " + e.Resource.Namespace + "/" + e.Resource.Name
			history[key] = append(history[key], e)
			if e.User == cluster.Keelson {
				ours++
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(history)) {
		lines, err := decreased(key, history[key])
		if err != nil {
			return nil, 0, err
		}
		reverted = append(reverted, lines...)
	}
	return reverted, ours, nil
}

// decreased returns a line for each write of one object that decreased a counter.
func decreased(key string, writes []audit.Event) ([]string, error) {
	slices.SortStableFunc(writes, func(a, b audit.Event) int { return cmp.Compare(a.ResourceVersion(), b.ResourceVersion()) })
	var out []string
	seen := map[string]int{}
	for _, e := range writes {
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal(e.Response, &u.Object); err != nil {
			return nil, fmt.Errorf("audit %s: %w", e.ID, err)
		}
		for _, r := range competingWriters() {
			if e.Resource.Subresource != "" && r.name != "scale" {
				continue // a Scale contains no other field of its object
			}
			n := shownField(r.name, u)
			if n < seen[r.name] {
				out = append(out, fmt.Sprintf("%s: %s went from %d to %d by a write of %s: %s, audit %s", key, r.name, seen[r.name], n, e.User, e, e.ID))
			}
			seen[r.name] = n
		}
	}
	return out, nil
}
