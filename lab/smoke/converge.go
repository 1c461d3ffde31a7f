package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// checkKill kills the controller during the first convergence, and a new controller finishes the
// work. Audit logs show that no object was created twice.
func (s *smoke) checkKill(ctx context.Context) (string, error) {
	if err := s.scene.up(ctx); err != nil {
		return "", err
	}
	before, err := s.killMidway(ctx)
	if err != nil {
		return "", err
	}
	if err := s.controller.start(); err != nil {
		return "", err
	}
	if err := s.converged(ctx); err != nil {
		return "", err
	}
	n, err := s.complete(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range s.scene.clusters {
		if err := s.createdOnce(c); err != nil {
			return "", err
		}
	}
	if before >= n {
		return "", fmt.Errorf("the kill came too late: all %d objects were written", n)
	}
	if err := s.controller.stop(); err != nil {
		return "", err
	}
	return fmt.Sprintf("SIGKILL after %d writes; the next process finished: %d objects, none doubled, none forgotten", before, n), s.scene.down(ctx)
}

// killMidway kills a controller after it has started to write, and returns the number of objects it
// wrote.
func (s *smoke) killMidway(ctx context.Context) (int, error) {
	if err := s.controller.start(); err != nil {
		return 0, err
	}
	const enough = 25
	err := until(ctx, func(context.Context) error {
		n, err := s.written()
		if err == nil && n < enough {
			err = fmt.Errorf("%d objects written", n)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	if err := s.controller.kill(); err != nil {
		return 0, err
	}
	return s.written()
}

// written counts Keelson's writes of objects in all clusters.
func (s *smoke) written() (int, error) {
	n := 0
	for _, c := range s.scene.clusters {
		events, err := s.scene.since(c, nil)
		if err != nil {
			return 0, err
		}
		n += len(objectWrites(events))
	}
	return n, nil
}

// createdOnce fails if an object was created twice or deleted.
func (s *smoke) createdOnce(cluster string) error {
	events, err := s.scene.since(cluster, nil)
	if err != nil {
		return err
	}
	created := map[string]int{}
	for _, e := range objectWrites(events) {
		if e.Code == 201 {
			created[e.Resource.String()]++
		}
		if e.Verb == "delete" {
			return fmt.Errorf("%s: %s", cluster, e)
		}
	}
	for what, n := range created {
		if n > 1 {
			return fmt.Errorf("%s: %s was created %d times", cluster, what, n)
		}
	}
	return nil
}

// checkConverge measures the first convergence of fresh clusters.
func (s *smoke) checkConverge(ctx context.Context) (string, error) {
	if err := s.scene.up(ctx); err != nil {
		return "", err
	}
	started := time.Now()
	if err := s.controller.start(); err != nil {
		return "", err
	}
	if err := s.converged(ctx); err != nil {
		return "", err
	}
	took := time.Since(started).Round(100 * time.Millisecond)
	n, err := s.complete(ctx)
	if err != nil {
		return "", err
	}
	s.objects = n
	applied, err := s.lastWrite(started, nil)
	if err != nil {
		return "", err
	}
	configs, err := s.distinct(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d deliveries on %d clusters, %d objects: all applied after %s, all healthy after %s\n%s",
		s.deliveries, len(s.scene.clusters), n, applied.Round(100*time.Millisecond), took, configs), nil
}

// lastWrite returns the time from a moment to Keelson's last write of an object.
func (s *smoke) lastWrite(from time.Time, marks map[string]int64) (time.Duration, error) {
	last := from
	for _, c := range s.scene.clusters {
		events, err := s.scene.since(c, marks)
		if err != nil {
			return 0, err
		}
		for _, e := range objectWrites(events) {
			if e.Time.After(last) {
				last = e.Time
			}
		}
	}
	return last.Sub(from), nil
}

// distinct checks that each cluster runs its own meta-config, by the replicas of coredns.
func (s *smoke) distinct(ctx context.Context) (string, error) {
	var parts []string
	seen := map[int64]bool{}
	for _, c := range s.scene.clusters {
		n, err := s.replicas(ctx, c)
		if err != nil {
			return "", err
		}
		seen[n] = true
		parts = append(parts, fmt.Sprintf("%s %d", c, n))
	}
	if len(seen) != len(s.scene.clusters) {
		return "", fmt.Errorf("clusters run the same coredns replicas: %s", strings.Join(parts, ", "))
	}
	return "each its own meta-config: coredns replicas are " + strings.Join(parts, ", "), nil
}

// complete compares the objects of the clusters with git: none doubled, none missing. It returns
// the number of objects.
func (s *smoke) complete(ctx context.Context) (int, error) {
	total := 0
	for _, c := range s.scene.clusters {
		want := map[string]bool{}
		objects, err := s.rendered(ctx, c)
		if err != nil {
			return 0, err
		}
		for _, u := range objects {
			want[key(&u)] = true
		}
		have := map[string]bool{}
		live, err := s.scene.managed(ctx, c)
		if err != nil {
			return 0, err
		}
		for _, u := range live {
			// Endpoints copy the labels of their Service.
			if len(u.GetOwnerReferences()) == 0 && u.GetKind() != "Endpoints" {
				have[key(&u)] = true
			}
		}
		if !maps.Equal(want, have) {
			return 0, fmt.Errorf("%s: git says %d objects and the cluster has %d:\n%s", c, len(want), len(have), difference(want, have))
		}
		total += len(have)
	}
	return total, nil
}

func difference(want, have map[string]bool) string {
	var lines []string
	for k := range want {
		if !have[k] {
			lines = append(lines, "missing "+k)
		}
	}
	for k := range have {
		if !want[k] {
			lines = append(lines, "unwanted "+k)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func key(u *unstructured.Unstructured) string {
	return u.GroupVersionKind().GroupKind().String() + " " + u.GetNamespace() + "/" + u.GetName()
}
