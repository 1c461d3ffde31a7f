package main

import (
	"context"
	"fmt"
	"time"
)

// checkQuiet observes a converged fleet while commits without effect are pushed. Each commit makes
// Keelson check every delivery again.
func (s *smoke) checkQuiet(ctx context.Context) (string, error) {
	if err := s.converged(ctx); err != nil {
		return "", err
	}
	// Wait until the last change causes no more requests (status, events).
	if err := pause(ctx, 5*time.Second); err != nil {
		return "", err
	}
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	before, err := s.controller.Usage()
	if err != nil {
		return "", err
	}
	const passes = 2
	for i := range passes {
		if err := s.repo.push(ctx, fmt.Sprintf("nothing changes (%d)", i+1)); err != nil {
			return "", err
		}
		if err := pause(ctx, quietFor/passes); err != nil {
			return "", err
		}
	}
	watches, err := s.onlyWatchesSince(marks)
	if err != nil {
		return "", err
	}
	after, err := s.controller.Usage()
	if err != nil {
		return "", err
	}
	memory, err := s.memory(ctx, after.RSS)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d passes in %s: 0 writes, 0 reads, %d renewed watches on %d API servers\nthe controller used %s of CPU; %s",
		passes, quietFor, watches, len(s.scene.clusters)+1, (after.CPU - before.CPU).Round(10*time.Millisecond), memory), nil
}

// onlyWatchesSince counts the watches that Keelson started, and fails on any other request of
// Keelson.
func (s *smoke) onlyWatchesSince(marks map[string]int64) (int, error) {
	watches := 0
	for _, c := range append([]string{hub}, s.scene.clusters...) {
		events, err := s.scene.since(c, marks)
		if err != nil {
			return 0, err
		}
		for _, e := range events {
			if !e.Watch() {
				return 0, fmt.Errorf("%s: %s", c, e)
			}
			watches++
		}
	}
	return watches, nil
}

// memory describes the resident memory of the controller and of the clusters.
func (s *smoke) memory(ctx context.Context, ours int64) (string, error) {
	all, err := s.scene.lab.Status(ctx, 0)
	if err != nil {
		return "", fmt.Errorf("status of the lab: %w", err)
	}
	var clusters int64
	for _, c := range all {
		clusters += c.RSSBytes
	}
	const mb = 1 << 20
	return fmt.Sprintf("it holds %d MB, the hub and %d clusters %d MB", ours/mb, len(all)-1, clusters/mb), nil
}
