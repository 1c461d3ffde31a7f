package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// beaconAt fails unless all clusters but the excepted ones have the push.
func (s *smoke) beaconAt(ctx context.Context, push string, except ...string) error {
	for _, c := range s.scene.clusters {
		if slices.Contains(except, c) {
			continue
		}
		d, err := s.scene.dynamic(c)
		if err != nil {
			return err
		}
		u, err := d.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(beacon).Get(ctx, beacon, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		if v, _, _ := unstructured.NestedString(u.Object, "data", "push"); v != push {
			return fmt.Errorf("%s has push %s", c, v)
		}
	}
	return nil
}

// setBeacon sets a new value of the beacon on all clusters and returns it.
func (s *smoke) setBeacon() (string, error) {
	push := time.Now().Format("150405.000")
	for _, c := range s.scene.clusters {
		if err := s.repo.setValue(c, beacon, "push", push); err != nil {
			return "", err
		}
	}
	return push, nil
}

// arrival returns the time from a push until it has arrived on all clusters but the excepted ones.
func (s *smoke) arrival(ctx context.Context, except ...string) (time.Duration, string, error) {
	started := time.Now()
	push, err := s.setBeacon()
	if err != nil {
		return 0, "", err
	}
	if err := s.repo.push(ctx, "beacon "+push); err != nil {
		return 0, "", err
	}
	err = until(ctx, func(ctx context.Context) error { return s.beaconAt(ctx, push, except...) })
	return time.Since(started).Round(10 * time.Millisecond), push, err
}

// checkDeadGit stops the git server. Keelson must still revert drift meanwhile.
func (s *smoke) checkDeadGit(ctx context.Context) (string, error) {
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	if err := s.repo.close(); err != nil {
		return "", err
	}
	var message string
	err = until(ctx, func(ctx context.Context) (err error) {
		message, err = s.eventMessage(ctx, "RepositoryUnreadable")
		return err
	})
	if err != nil {
		return "", errors.Join(err, s.repo.serve(ctx))
	}
	restored, err := s.checkDrift(ctx)
	if err != nil {
		return "", errors.Join(err, s.repo.serve(ctx))
	}
	for _, c := range []string{canary, production} {
		events, err := s.scene.since(c, marks)
		if err != nil {
			return "", err
		}
		if w := objectWrites(events); len(w) > 0 {
			return "", fmt.Errorf("%s: %s", c, w[0])
		}
	}
	if err := s.repo.serve(ctx); err != nil {
		return "", err
	}
	took, _, err := s.arrival(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s\nno cluster changed; meanwhile %s; when it was back, a push arrived after %s", message, restored, took), nil
}

func (s *smoke) eventMessage(ctx context.Context, reason string) (string, error) {
	d, err := s.scene.dynamic(hub)
	if err != nil {
		return "", err
	}
	list, err := d.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list events: %w", err)
	}
	for i := range list.Items {
		if r, _, _ := unstructured.NestedString(list.Items[i].Object, "reason"); r == reason {
			message, _, _ := unstructured.NestedString(list.Items[i].Object, "message")
			return "event " + reason + ": " + message, nil
		}
	}
	return "", fmt.Errorf("the hub has no event %s", reason)
}

// checkDeadCluster stops one API server. Deliveries to the other clusters must continue.
func (s *smoke) checkDeadCluster(ctx context.Context) (string, error) {
	all, _, err := s.arrival(ctx)
	if err != nil {
		return "", err
	}
	if err := s.scene.lab.Stop(ctx, canary, "kube-apiserver"); err != nil {
		return "", fmt.Errorf("stop the API server: %w", err)
	}
	back := func() error { return s.scene.lab.Start(context.WithoutCancel(ctx), canary, "kube-apiserver") }
	err = until(ctx, func(ctx context.Context) error {
		all, err := s.scene.deliveries(ctx)
		if err != nil {
			return err
		}
		if d := all[canary+"."+beacon]; d.sync != "Unreachable" {
			return fmt.Errorf("%s", d)
		}
		return nil
	})
	if err != nil {
		return "", errors.Join(err, back())
	}
	others, push, err := s.arrival(ctx, canary)
	if err != nil {
		return "", errors.Join(err, back())
	}
	if err := back(); err != nil {
		return "", fmt.Errorf("start the API server: %w", err)
	}
	started := time.Now()
	if err := until(ctx, func(ctx context.Context) error { return s.beaconAt(ctx, push) }); err != nil {
		return "", err
	}
	caught := time.Since(started).Round(10 * time.Millisecond)
	if err := s.converged(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("push to arrival %s with all three, %s on the other two while %s was down; it caught up %s after its return", all, others, canary, caught), nil
}
