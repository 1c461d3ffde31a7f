package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/keelson-io/keelson/lab/prometheus"
)

// gate stops a change before production until it is lifted.
type gate struct {
	name string
	// stage holds the additional lines of the pipeline's stage for production.
	stage string
	// shut creates what the stage needs to be closed; nil: nothing.
	shut func() error
	// says must match the output of keelson rollout explain for production.
	says *regexp.Regexp
	// lift opens the gate. found is the last submatch of says, or the whole match.
	lift func(ctx context.Context, found string) error
}

// checkGates closes production in several ways, one after the other, with a new version each time.
func (s *smoke) checkGates(ctx context.Context) (_ string, err error) {
	gates := []gate{s.window(), s.approval(), s.job()}
	skipped := "; no Prometheus is installed, which would be asked, too"
	if s.prometheus != "" {
		asks, stop, startErr := s.watchErrors(ctx)
		if startErr != nil {
			return "", startErr
		}
		defer func() { err = errors.Join(err, stop()) }()
		gates, skipped = append(gates, asks), ""
	}
	var lines []string
	for i, g := range gates {
		line, err := s.passGate(ctx, g, fmt.Sprintf("v1.4.%d", i))
		if err != nil {
			return "", fmt.Errorf("%s: %w", g.name, err)
		}
		lines = append(lines, line)
	}
	if err := s.writePipeline(""); err != nil {
		return "", err
	}
	return strings.Join(lines, "\n") + "\nlifted, each went on" + skipped, s.repo.push(ctx, "no gates")
}

// passGate rolls a version out up to the gate, checks that production is not written, and lifts the
// gate.
func (s *smoke) passGate(ctx context.Context, g gate, version string) (string, error) {
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	if g.shut != nil {
		if err := g.shut(); err != nil {
			return "", err
		}
	}
	if err := s.writePipeline(g.stage); err != nil {
		return "", err
	}
	if err := s.sail(ctx, version, ""); err != nil {
		return "", err
	}
	if err := s.at(ctx, ferry, version, testing, canary); err != nil {
		return "", err
	}
	var line, found string
	if err := until(ctx, func(ctx context.Context) (err error) {
		if line, err = s.waits(ctx, production); err != nil {
			return err
		}
		match := g.says.FindStringSubmatch(line)
		if match == nil {
			return fmt.Errorf("it does not say why: %s", line)
		}
		found = match[len(match)-1]
		return nil
	}); err != nil {
		return "", err
	}
	if err := pause(ctx, 3*time.Second); err != nil {
		return "", err
	}
	writes, err := s.ferryWrites(production, marks)
	if err != nil {
		return "", err
	}
	if len(writes) > 0 {
		return "", fmt.Errorf("production was written to: %s", writes[0])
	}
	if err := g.lift(ctx, found); err != nil {
		return "", err
	}
	return line, s.at(ctx, ferry, version, production)
}

// window is a gate with a daily window of an hour that opens in 12 hours, so it is closed.
func (s *smoke) window() gate {
	at := time.Now().UTC().Add(12 * time.Hour)
	return gate{
		name: "window", stage: fmt.Sprintf("  windows: [{cron: %d %d * * *, duration: 1h}]\n", at.Minute(), at.Hour()),
		says: regexp.MustCompile(`window`),
		lift: func(ctx context.Context, _ string) error {
			if err := s.writePipeline(""); err != nil {
				return err
			}
			return s.repo.push(ctx, "always open")
		},
	}
}

// approval is a gate that a person approves in git, with the shown hash.
func (s *smoke) approval() gate {
	return gate{
		name: "approval", stage: "  before: [{name: sign-off, approval: {because: look at the error rate}}]\n",
		says: regexp.MustCompile(`hash: ([0-9a-f]{16,})`),
		lift: func(ctx context.Context, hash string) error {
			if err := s.repo.write("approvals/smoke.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Approvals\napprovals:\n"+
				"- {component: ferry, stage: production, hash: "+hash+", because: it looks well}\n"); err != nil {
				return err
			}
			return s.repo.push(ctx, "production may have it")
		},
	}
}

// job is a gate with a Job that fails on production's cluster until its template is fixed.
func (s *smoke) job() gate {
	const file = "checks/trial.yaml"
	write := func(tag string) error {
		return s.repo.write(file, `apiVersion: batch/v1
kind: Job
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers: [{name: trial, image: "registry.example.com/trial:`+tag+`", args: [$(component), $(cluster)]}]
`)
	}
	return gate{
		name: "job", stage: "  before: [{name: trial, job: {template: " + file + "}}]\n",
		shut: func() error { return write("crash") },
		says: regexp.MustCompile(`check trial failed: ` + production + `: Job ferry/\S+`),
		lift: func(ctx context.Context, _ string) error {
			if err := write("v1"); err != nil {
				return err
			}
			if err := s.repo.push(ctx, "mend the trial"); err != nil {
				return err
			}
			return until(ctx, func(ctx context.Context) error {
				// A resume before the controller has read the new file makes the Job fail again. So
				// repeat it.
				if _, _, err := s.keelson(ctx, "rollout", "resume", ferry, "--reason", "the trial is mended"); err != nil {
					return err
				}
				all, err := s.scene.deliveries(ctx)
				if err != nil {
					return err
				}
				if is, want := all[production+"."+ferry], all[canary+"."+ferry].applied; is.applied != want {
					return fmt.Errorf("%s, applied %s, not %s", is, is.applied, want)
				}
				return nil
			})
		},
	}
}

// watchErrors starts a Prometheus that scrapes a metric of this program. The gate queries that
// Prometheus. At first the metric reports errors.
func (s *smoke) watchErrors(ctx context.Context) (_ gate, stop func() error, _ error) {
	var count atomic.Int64
	count.Store(5)
	metrics, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return gate{}, nil, fmt.Errorf("serve a metric: %w", err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "# TYPE ferry_errors gauge\nferry_errors{component=\"ferry\"} %d\n", count.Load())
	})}
	go func() { _ = server.Serve(metrics) }()
	asked, err := prometheus.Start(ctx, s.prometheus, filepath.Join(s.scene.folder, "prometheus"), metrics.Addr().String())
	if err != nil {
		return gate{}, nil, errors.Join(err, server.Close())
	}
	stop = func() error { return errors.Join(asked.Stop(), server.Close()) }
	return gate{
		name: "prometheus",
		stage: "  before:\n  - name: errors\n    for: 2s\n    prometheus: {address: \"" + asked.URL + "\", " +
			"query: 'sum(ferry_errors{component=\"$(component)\"})', operator: <, threshold: 1}\n",
		says: regexp.MustCompile(`gives 5, and not < 1`),
		lift: func(context.Context, string) error { count.Store(0); return nil },
	}, stop, nil
}
