package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// push publishes a version of coredns and runs it on every cluster.
func push(ctx context.Context, r *run) string {
	const next, images = "v1.12.1", "components/coredns/images.yaml"
	r.repo.replace(images, `tag: \S+`, "tag: "+next)
	r.repo.replaceIfThere(images, `(?m)^\s*digest:.*\n`, "")
	r.repo.push(ctx, "coredns "+next)
	from := r.marks()
	r.repo.tag(ctx, dns, next)
	for _, c := range r.clusters {
		r.repo.setVersion(c, dns, next)
	}
	pushed := time.Now()
	r.repo.push(ctx, "run coredns "+next)
	r.at(ctx, dns, next, r.clusters...)
	took := r.lastWrite(pushed, from)
	fields, patches := changedFields(r, from)
	return fmt.Sprintf("push to last patch %s (the controller polls every 2s); %d patches, and by the audit logs they changed only\n%s",
		took.Round(10*time.Millisecond), patches, strings.Join(fields, "\n"))
}

// changedFields compares each patch with the previous request for the same object, both from the
// audit log. It returns the fields that changed and the number of patches.
func changedFields(r *run, from marks) (_ []string, patches int) {
	fields := map[string]bool{}
	for _, c := range r.clusters {
		all := r.writes(c, nil)
		for _, e := range r.writes(c, from) {
			patches++
			before := lastBefore(all, e)
			if before == nil {
				must.Failf("%s: %s creates what no push asked for", c, e)
			}
			for _, f := range diffBodies(before.Request, e.Request) {
				fields[e.Resource.Resource+" "+e.Resource.Namespace+"/"+e.Resource.Name+" "+f] = true
			}
			if !strings.Contains(e.Resource.Name, dns) {
				must.Failf("%s: %s is not coredns'", c, e)
			}
		}
	}
	if patches == 0 {
		must.Failf("no patch is in the audit logs")
	}
	return slices.Sorted(maps.Keys(fields)), patches
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
