package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/audit"
)

// checkPush publishes a version of coredns and runs it on every cluster.
func (s *smoke) checkPush(ctx context.Context) (string, error) {
	const next = "v1.12.1"
	if err := s.repo.replace("components/coredns/images.yaml", `tag: \S+`, "tag: v1.12.1"); err != nil {
		return "", err
	}
	if err := s.repo.replace("components/coredns/images.yaml", `(?m)^\s*digest:.*\n`, ""); err != nil && !strings.Contains(err.Error(), "nothing matches") {
		return "", err
	}
	if err := s.repo.push(ctx, "coredns "+next); err != nil {
		return "", err
	}
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	if err := s.repo.tag(ctx, dns, next); err != nil {
		return "", err
	}
	for _, c := range s.scene.clusters {
		if err := s.repo.setVersion(c, dns, next); err != nil {
			return "", err
		}
	}
	pushed := time.Now()
	if err := s.repo.push(ctx, "run coredns "+next); err != nil {
		return "", err
	}
	if err := s.at(ctx, dns, next, s.scene.clusters...); err != nil {
		return "", err
	}
	took, err := s.lastWrite(pushed, marks)
	if err != nil {
		return "", err
	}
	fields, patches, err := s.changedFields(marks)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("push to last patch %s (the controller polls every 2s); %d patches, and by the audit logs they changed only\n%s",
		took.Round(10*time.Millisecond), patches, strings.Join(fields, "\n")), nil
}

// changedFields compares each patch with the previous request for the same object, both from the
// audit log. It returns the fields that changed and the number of patches.
func (s *smoke) changedFields(marks map[string]int64) ([]string, int, error) {
	fields := map[string]bool{}
	patches := 0
	for _, c := range s.scene.clusters {
		all, err := s.scene.since(c, nil)
		if err != nil {
			return nil, 0, err
		}
		recent, err := s.scene.since(c, marks)
		if err != nil {
			return nil, 0, err
		}
		recent = objectWrites(recent)
		patches += len(recent)
		for _, e := range recent {
			before := lastBefore(objectWrites(all), e)
			if before == nil {
				return nil, 0, fmt.Errorf("%s: %s creates what no push asked for", c, e)
			}
			changed, err := diffBodies(before.Request, e.Request)
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %s: %w", c, e, err)
			}
			for _, f := range changed {
				fields[e.Resource.Resource+" "+e.Resource.Namespace+"/"+e.Resource.Name+" "+f] = true
			}
			if !strings.Contains(e.Resource.Name, dns) {
				return nil, 0, fmt.Errorf("%s: %s is not coredns'", c, e)
			}
		}
	}
	if patches == 0 {
		return nil, 0, errors.New("no patch is in the audit logs")
	}
	return slices.Sorted(maps.Keys(fields)), patches, nil
}

func lastBefore(events []audit.Event, e audit.Event) *audit.Event {
	var last *audit.Event
	for i := range events {
		if events[i].Resource == e.Resource && events[i].Time.Before(e.Time) && events[i].ID != e.ID {
			last = &events[i]
		}
	}
	return last
}
