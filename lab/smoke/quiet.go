package main

import (
	"context"
	"fmt"
	"time"
)

// checkQuiet listens to a converged fleet while commits come that change
// nothing: each makes Keelson look at every delivery again.
func (s *smoke) checkQuiet(ctx context.Context) (string, error) {
	if err := s.converged(ctx, patience); err != nil {
		return "", err
	}
	// What the last change still causes (status, events) is over after this.
	if err := pause(ctx, 5*time.Second); err != nil {
		return "", err
	}
	marks, err := s.scene.marks()
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
	watches := 0
	for _, c := range append([]string{hub}, s.scene.clusters...) {
		events, err := s.scene.since(c, marks)
		if err != nil {
			return "", err
		}
		for _, e := range events {
			if !e.Watch() {
				return "", fmt.Errorf("%s: %s", c, e)
			}
			watches++
		}
	}
	return fmt.Sprintf("%d passes in %s: 0 writes, 0 reads, %d renewed watches on %d API servers", passes, quietFor, watches, len(s.scene.clusters)+1), nil
}
