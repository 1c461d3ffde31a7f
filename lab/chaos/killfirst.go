package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/lab/chaos/oracle"
)

// begin kills the first apply of a cluster at every point at which the apply prepares the
// cluster for records. Before each trial, the test deletes the namespace of records,
// with the key and all records.
func (m *killMatrix) begin(ctx context.Context) error {
	if err := m.connect(); err != nil {
		return err
	}
	started := time.Now()
	chance, secret := m.rand.Uint64(), m.planted.plant("a Secret of a first apply")
	build := func(name string) component {
		c := buildComponent(name, componentInput{seed: chance, with: few, secret: secret})
		c.allow(m.ledger)
		return c
	}
	whole := build("begin-whole")
	undisturbed := &round{killMatrix: m, prefix: "begin-", whole: map[extra]*component{few: &whole}}
	if err := undisturbed.publishAs(ctx, whole.name); err != nil {
		return err
	}
	if err := undisturbed.apply(ctx, "undisturbed"); err != nil {
		return err
	}
	for i, p := range m.first {
		t := &trial{point: p, component: build(fmt.Sprintf("begin-%02dx", i))}
		r := &round{killMatrix: m, prefix: "begin-", trials: []*trial{t}, whole: undisturbed.whole}
		if err := r.beginning(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	say("%s: %d first applies in %s, %d violations until now", m.name, len(m.first), time.Since(started).Round(100*time.Millisecond), len(m.result.violations))
	return nil
}

// beginning carries out one trial: a killed first apply, the recovery and the checks.
func (r *round) beginning(ctx context.Context, t *trial) error {
	if err := r.forget(ctx); err != nil {
		return err
	}
	mark, err := r.mark()
	if err != nil {
		return err
	}
	if err := r.publishAs(ctx, t.component.name, t); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return r.killAll(ctx, first) },
		r.recover,
		func(ctx context.Context) error { return r.check(ctx, first) },
		func(ctx context.Context) error { return r.quiet(ctx, t) },
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return r.madeOnce(t, mark)
}

// publishAs commits the components of the trials to a new repository; without trials, the
// undisturbed components.
func (r *round) publishAs(ctx context.Context, name string, trials ...*trial) (err error) {
	files := map[string]string{}
	add := func(c *component) { maps.Copy(files, c.files(c.old)) }
	for _, t := range trials {
		add(&t.component)
	}
	if len(trials) == 0 {
		for _, c := range r.whole {
			add(c)
		}
	}
	r.repo, err = r.repository(ctx, name, files)
	return err
}

// forget deletes the namespace of records, and returns when it no longer exists.
func (r *round) forget(ctx context.Context) error {
	namespaces := r.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	if err := namespaces.Delete(ctx, systemNS, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete namespace %s: %w", systemNS, err)
	}
	err := until(ctx, hungAfter, func(ctx context.Context) error {
		_, err := namespaces.Get(ctx, systemNS, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil:
			return errors.New("it is there")
		}
		return err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return fmt.Errorf("the end of namespace %s: %w", systemNS, err)
	}
	return nil
}

// quiet checks that keelson diff shows no difference. Secrets are compared by hashes, so
// hashes with another key would differ.
func (r *round) quiet(ctx context.Context, t *trial) error {
	code, out, err := r.run(ctx, launch{name: "diff", repo: r.repo, kubeconfig: r.direct}, "diff", target)
	if err != nil {
		return err
	}
	if code != 0 {
		r.result.violate("%s (%s): what was applied differs, exit code %d:\n%s", t.point, t.component.name, code, tail(out))
	}
	return nil
}

// madeOnce checks that each of Keelson's own objects was created exactly once since the
// mark in the audit log. With two keys, one would have been lost.
func (r *round) madeOnce(t *trial, mark int64) error {
	events, err := r.since(mark)
	if err != nil {
		return err
	}
	made := map[string]int{}
	for _, e := range events {
		if o := oracle.ObjectOf(e); e.Verb == "create" && e.Code == 201 && (o.Namespace == systemNS || o.Resource == "namespaces") {
			made[o.Resource+" "+o.Name]++
		}
	}
	for _, what := range []string{"namespaces " + systemNS, "secrets " + maskKey, "secrets record-" + t.component.name} {
		if made[what] != 1 {
			r.result.violate("%s (%s): %s was made %d times, and all that was made is %v", t.point, t.component.name, what, made[what], made)
		}
	}
	return nil
}
