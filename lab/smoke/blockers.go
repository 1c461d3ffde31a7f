package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/prometheus"
)

// blocker keeps a change out of production until it is lifted.
type blocker struct {
	name string
	// stage holds the additional lines of the pipeline's stage for production.
	stage string
	// prepare creates what the stage needs to be closed; nil: nothing.
	prepare func()
	// says must match the output of keelson rollout explain for production.
	says *regexp.Regexp
	// lift opens the stage. found is the last submatch of says, or the whole match.
	lift func(ctx context.Context, found string)
}

// blockers closes production in several ways, one after the other, with a new version each time.
func blockers(ctx context.Context, r *run) string {
	all := []blocker{closedWindow(r), missingApproval(r), failingJob(r)}
	skipped := "; no Prometheus is installed, which would be asked, too"
	stop := func() error { return nil }
	if r.prometheus != "" {
		var asks blocker
		asks, stop = badMetric(ctx, r)
		all, skipped = append(all, asks), ""
	}
	var lines []string
	must.Finally(func() {
		for i, b := range all {
			line, err := must.TryGet(func() string { return b.pass(ctx, r, fmt.Sprintf("v1.4.%d", i)) })
			if err != nil {
				must.Failf("%s: %w", b.name, err)
			}
			lines = append(lines, line)
		}
		r.ferry.pipeline("")
		r.repo.push(ctx, "no gates")
	}, stop)
	return strings.Join(lines, "\n") + "\nlifted, each went on" + skipped
}

// pass rolls a version out up to the blocker, checks that production is not written, and lifts the
// blocker. It returns why production waited.
func (b blocker) pass(ctx context.Context, r *run, version string) string {
	from := r.marks()
	if b.prepare != nil {
		b.prepare()
	}
	r.ferry.pipeline(b.stage)
	r.ferry.rollOut(ctx, version, "")
	r.ferry.at(ctx, version, testing, canary)
	line, found := "", ""
	until(ctx, func(ctx context.Context) {
		line = r.ferry.explained(ctx, production)
		match := b.says.FindStringSubmatch(line)
		if match == nil {
			must.Failf("it does not say why: %s", line)
		}
		found = match[len(match)-1]
	})
	must.Sleep(ctx, 3*time.Second)
	r.ferry.untouched(from, "before it was lifted")
	b.lift(ctx, found)
	r.ferry.at(ctx, version, production)
	return line
}

// closedWindow is a daily window of an hour that opens in 12 hours.
func closedWindow(r *run) blocker {
	at := time.Now().UTC().Add(12 * time.Hour)
	return blocker{
		name: "window", stage: fmt.Sprintf("  windows: [{cron: %d %d * * *, duration: 1h}]\n", at.Minute(), at.Hour()),
		says: regexp.MustCompile(`window`),
		lift: func(ctx context.Context, _ string) {
			r.ferry.pipeline("")
			r.repo.push(ctx, "always open")
		},
	}
}

// missingApproval is a check that a person approves in git, with the shown hash.
func missingApproval(r *run) blocker {
	return blocker{
		name: "approval", stage: "  before: [{name: sign-off, approval: {because: look at the error rate}}]\n",
		says: regexp.MustCompile(`hash: ([0-9a-f]{16,})`),
		lift: func(ctx context.Context, hash string) {
			r.repo.write(approvals, apiVersion+"kind: Approvals\napprovals:\n- {component: ferry, stage: production, hash: "+hash+", because: it looks well}\n")
			r.repo.push(ctx, "production may have it")
		},
	}
}

// failingJob is a Job that fails on production's cluster until its template is fixed.
func failingJob(r *run) blocker {
	const file = "checks/trial.yaml"
	write := func(tag string) {
		r.repo.write(file, `apiVersion: batch/v1
kind: Job
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers: [{name: trial, image: "registry.example.com/trial:`+tag+`", args: [$(component), $(cluster)]}]
`)
	}
	return blocker{
		name: "job", stage: "  before: [{name: trial, job: {template: " + file + "}}]\n",
		prepare: func() { write("crash") },
		says:    regexp.MustCompile(`check trial failed: ` + production + `: Job ferry/\S+`),
		lift: func(ctx context.Context, _ string) {
			write("v1")
			r.repo.push(ctx, "mend the trial")
			until(ctx, func(ctx context.Context) {
				// A resume before the controller has read the new file makes the Job fail again. So
				// repeat it.
				r.ferry.resume(ctx, "the trial is mended")
				all := r.deliveries(ctx)
				if is, want := all[production+"."+ferryName], all[canary+"."+ferryName].Applied; is.Applied != want {
					must.Failf("%s, applied %s, not %s", is, is.Applied, want)
				}
			})
		},
	}
}

// badMetric starts a Prometheus that scrapes a metric of this program. The check queries that
// Prometheus. At first the metric reports errors.
func badMetric(ctx context.Context, r *run) (_ blocker, stop func() error) {
	var count atomic.Int64
	count.Store(5)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "# TYPE ferry_errors gauge\nferry_errors{component=\"ferry\"} %d\n", count.Load())
	}))
	asked, err := prometheus.Start(ctx, r.prometheus, filepath.Join(r.folder, "prometheus"), server.Listener.Addr().String())
	if err != nil {
		server.Close()
		must.Do(err)
	}
	return blocker{
		name: "prometheus",
		stage: "  before:\n  - name: errors\n    for: 2s\n    prometheus: {address: \"" + asked.URL + "\", " +
			"query: 'sum(ferry_errors{component=\"$(component)\"})', operator: <, threshold: 1}\n",
		says: regexp.MustCompile(`gives 5, and not < 1`),
		lift: func(context.Context, string) { count.Store(0) },
	}, func() error { server.Close(); return asked.Stop() }
}
