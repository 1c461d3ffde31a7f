package main

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// begin kills the first apply of a cluster at every point at which the apply prepares the
// cluster for records. Before each trial, the test deletes the namespace of records,
// with the key and all records.
func (m *killMatrix) begin(ctx context.Context) {
	started := time.Now()
	chance, secret := m.rand.Uint64(), m.planted.plant("a Secret of a first apply")
	build := func(name string) component {
		c := buildComponent(name, componentInput{seed: chance, with: few, secret: secret})
		c.allow(m.ledger)
		return c
	}
	whole := build("begin-whole")
	undisturbed := &round{killMatrix: m, prefix: "begin-", whole: map[extra]*component{few: &whole}}
	undisturbed.publishAs(ctx, &whole)
	undisturbed.apply(ctx, "undisturbed")
	for i, p := range m.first {
		t := &trial{point: p, component: build(fmt.Sprintf("begin-%02dx", i))}
		r := &round{killMatrix: m, prefix: "begin-", trials: []*trial{t}, whole: undisturbed.whole}
		must.Wrap(func() { r.beginning(ctx, t) }, "%s", p)
	}
	harness.Say("%s: %d first applies in %s, %d violations until now", m.name, len(m.first), time.Since(started).Round(100*time.Millisecond), len(m.result.violations))
}

// beginning carries out one trial: a killed first apply, the recovery and the checks.
func (r *round) beginning(ctx context.Context, t *trial) {
	r.forget(ctx)
	mark := r.mark()
	r.publishAs(ctx, &t.component)
	r.killAll(ctx, first)
	r.recover(ctx)
	r.check(ctx, first)
	r.quiet(ctx, t)
	r.madeOnce(t, mark)
}

// publishAs commits a component to a new repository.
func (r *round) publishAs(ctx context.Context, c *component) {
	r.repo = r.repository(ctx, c.name, c.files(c.old))
}

// forget deletes the namespace of records, and returns when it no longer exists.
func (r *round) forget(ctx context.Context) {
	namespaces := r.client.Resource(harness.Resource("v1/namespaces"))
	if err := namespaces.Delete(ctx, systemNS, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		must.Failf("delete namespace %s: %w", systemNS, err)
	}
	until(ctx, hungAfter, func(ctx context.Context) {
		if _, err := namespaces.Get(ctx, systemNS, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			must.Failf("namespace %s is there (%v)", systemNS, err)
		}
	})
}

// quiet checks that keelson diff shows no difference. Secrets are compared by hashes, so
// hashes with another key would differ.
func (r *round) quiet(ctx context.Context, t *trial) {
	code, out := r.run(ctx, launch{name: "diff", repo: r.repo, kubeconfig: r.direct()}, "diff", target)
	if code != 0 {
		r.result.violate("%s (%s): what was applied differs, exit code %d:\n%s", t.point, t.component.name, code, tail(out))
	}
}

// madeOnce checks that each of Keelson's own objects was created exactly once since the
// mark in the audit log. With two keys, one would have been lost.
func (r *round) madeOnce(t *trial, mark int64) {
	made := map[string]int{}
	for _, e := range r.since(mark) {
		if o := oracle.ObjectOf(e); e.Verb == "create" && e.Code == 201 && (o.Namespace == systemNS || o.Resource == "namespaces") {
			made[o.Resource+" "+o.Name]++
		}
	}
	for _, what := range []string{"namespaces " + systemNS, "secrets " + maskKey, "secrets record-" + t.component.name} {
		if made[what] != 1 {
			r.result.violate("%s (%s): %s was made %d times, and all that was made is %v", t.point, t.component.name, what, made[what], made)
		}
	}
}
