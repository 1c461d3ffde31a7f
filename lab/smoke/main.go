// Command smoke demonstrates Keelson on real API servers.
//
// With --demo it starts a hub and three clusters, publishes the example fleet, starts the
// controller, and prints a tour of commands to try. Everything runs until it is interrupted.
// Without --demo it checks the promises of the README unattended, and prints a line per check. Most
// checks use the audit logs of the API servers as evidence. At the end it removes everything.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
)

// Clusters of the example fleet, in the usual order of an upgrade.
const (
	testing    = "testing-eu-01"
	canary     = "canary-eu-01"
	production = "prod-us-01"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "smoke:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context) error {
	binary := flag.String("keelson", "bin/keelson", "the keelson binary")
	var from sources
	flag.StringVar(&from.fleet, "fleet", "examples/fleet", "the fleet repository to copy")
	flag.StringVar(&from.workloads, "workloads", "components/workload-controllers", "the component of Keelson's that the fleet delivers")
	demo := flag.Bool("demo", false, "bring everything up, print a tour, and stay until interrupted")
	only := flag.String("only", "", "run only the checks whose name contains this")
	keep := flag.Bool("keep", false, "leave clusters and files for a look after the checks")
	listen := flag.String("listen", "127.0.0.1:0", "address of the controller's metrics and probes")
	prometheus := flag.String("prometheus", "", "a prometheus binary, which a pipeline then asks, too")
	flag.Parse()
	s, err := prepare(*binary, *demo)
	if err != nil {
		return err
	}
	s.controller.listen, s.prometheus = *listen, *prometheus
	if *demo {
		return s.demo(ctx, from)
	}
	return s.checks(ctx, from, *only, *keep)
}

// smoke is the state of one run.
type smoke struct {
	binary     string
	prometheus string // "": not installed
	scene      *scene
	repo       *repository
	controller *controller
	deliveries int // number in the fleet
	objects    int // number on all clusters
	passed     int
	// takeBack reverts a check's changes to git other than its commits; may be nil.
	takeBack func(context.Context) error
	// wayBack performs what the clusters need to follow the revert in git; may be nil.
	wayBack func(context.Context) error
	failed  []string
}

func prepare(binary string, demo bool) (*smoke, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, fmt.Errorf("find keelson: %w", err)
	}
	set, err := binaries.Find()
	if err != nil {
		return nil, fmt.Errorf("find the control plane: %w", err)
	}
	folder, err := cluster.DefaultDir()
	if err != nil {
		return nil, fmt.Errorf("find a folder: %w", err)
	}
	// A new repository needs a new folder: Keelson remembers the tags of the old one, and would
	// report the new tags as moved.
	parent, name := "", "keelson-smoke-"
	if demo {
		parent, name = filepath.Dir(folder), "demo-"
		if err := os.MkdirAll(parent, 0o700); err != nil {
			return nil, fmt.Errorf("make a folder: %w", err)
		}
	}
	if folder, err = os.MkdirTemp(parent, name); err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	s := &smoke{binary: binary, scene: &scene{
		lab: &cluster.Lab{Dir: filepath.Join(folder, "clusters")}, set: set, folder: folder, keelson: binary,
		clusters: []string{testing, canary, production},
	}}
	s.controller = &controller{
		binary: binary, kubeconfig: s.scene.kubeconfig(), cache: filepath.Join(folder, "cache"),
		log: filepath.Join(folder, "controller.log"),
	}
	return s, nil
}

func say(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// demo keeps everything running until it is interrupted.
func (s *smoke) demo(ctx context.Context, from sources) (err error) {
	s.scene.lab.Say = func(line string) { say("%s", line) }
	defer func() { err = errors.Join(err, s.cleanUp(context.WithoutCancel(ctx), true)) }()
	if err := s.scene.up(ctx); err != nil {
		return err
	}
	if s.repo, err = makeRepository(ctx, s.scene.folder, from); err != nil {
		return err
	}
	s.controller.repo = s.repo.url
	say("the fleet repository: %s", s.repo.url)
	started := time.Now()
	if err := s.controller.start(); err != nil {
		return err
	}
	if err := s.converged(ctx); err != nil {
		return err
	}
	say("converged %d deliveries on %d clusters in %s", s.deliveries, len(s.scene.clusters), time.Since(started).Round(100*time.Millisecond))
	out, _, err := s.keelson(ctx, "status")
	if err != nil {
		return err
	}
	fmt.Printf("\n$ keelson status\n%s\n", out)
	s.tour()
	<-ctx.Done()
	say("stopping")
	return nil
}

// tour prints commands to try. Every line works unchanged.
func (s *smoke) tour() {
	bin := filepath.Dir(s.binary)
	fmt.Printf(`It runs until you press Ctrl-C, which removes all of it. In another terminal:

  export PATH=%[1]s:%[2]s:$PATH KUBECONFIG=%[3]s KEELSON_REPO=%[4]s
  cd %[5]s

  # what runs where
  keelson status
  kubectl --context %[6]s -n kube-system get deployments
  keelson explain %[8]s coredns .replicas

  # drift: a person scales, Keelson sets it back
  kubectl --context %[6]s -n kube-system scale deployment coredns --replicas 7
  kubectl --context %[6]s -n kube-system get deployment coredns -w

  # a new version: publish it, then let the testing cluster run it
  sed -i 's/tag: v1.12.0/tag: v1.12.1/' components/coredns/images.yaml
  git commit -qam 'coredns v1.12.1' && git tag coredns/v1.12.1 && git push -q origin main coredns/v1.12.1
  sed -i 's/^version: .*/version: v1.12.1/' clusters/%[6]s/coredns.yaml
  git commit -qam 'testing: coredns v1.12.1'
  keelson diff %[6]s coredns --repo .
  git push -q
  keelson status %[6]s --watch

  # a DaemonSet on five nodes, in place and in partitions: 4 keep the old version; then try 2, and 0
  sed -i 's/tag: v1.0.0/tag: v1.1.0/' components/asi-proxy/images.yaml
  git commit -qam 'asi-proxy v1.1.0' && git tag asi-proxy/v1.1.0 && git push -q origin main asi-proxy/v1.1.0
  sed -i 's/^version: .*/version: v1.1.0/; s/partition: .*/partition: 4/' clusters/%[6]s/asi-proxy.yaml
  git commit -qam 'testing: asi-proxy v1.1.0 on one node' && git push -q
  keelson workload status daemonset/asi-proxy-ds-1 -n kube-system --context %[6]s --watch

  # a mistake: nothing happens but a clear message
  echo 'valeus: {}' >> clusters/%[7]s/coredns.yaml && git commit -qam oops && git push -q
  keelson validate; keelson status %[7]s
  git revert --no-edit HEAD && git push -q

  keelson history %[6]s
  tail -f %[9]s
  curl -s "$(sed -n 's/.*readyz" address=/http:\/\//p' %[9]s | tail -1)/metrics" | grep ^keelson_
`, bin, s.scene.set.Dir, s.scene.kubeconfig(), s.repo.url, s.repo.work, testing, canary, production, s.controller.log)
}

// checks runs all checks and then removes everything, unless keep is set.
func (s *smoke) checks(ctx context.Context, from sources, only string, keep bool) (err error) {
	say("files of this run: %s", s.scene.folder)
	if !keep {
		defer func() { err = errors.Join(err, s.cleanUp(context.WithoutCancel(ctx), err == nil)) }()
	}
	if err := s.publishFleet(ctx, from); err != nil {
		return err
	}
	for _, c := range allChecks() {
		if only != "" && !c.always && !strings.Contains(c.name, only) {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if ok := s.check(ctx, c); !ok && c.always {
			break
		}
	}
	fmt.Printf("%d passed, %d failed\n", s.passed, len(s.failed))
	if len(s.failed) > 0 {
		return fmt.Errorf("failed: %s; the controller's log is %s", strings.Join(s.failed, ", "), s.controller.log)
	}
	return nil
}

// publishFleet creates the repository and starts its git server.
func (s *smoke) publishFleet(ctx context.Context, from sources) (err error) {
	if s.repo, err = makeRepository(ctx, s.scene.folder, from); err != nil {
		return err
	}
	if err := s.addBeacon(ctx); err != nil {
		return err
	}
	if err := s.addFerry(ctx); err != nil {
		return err
	}
	if err := s.repo.serve(ctx); err != nil {
		return err
	}
	s.controller.repo = s.repo.url
	return nil
}

// check runs one check and prints its line.
func (s *smoke) check(ctx context.Context, c check) bool {
	started := time.Now()
	line, err := c.run(s, ctx)
	took := time.Since(started).Round(100 * time.Millisecond)
	if err != nil {
		s.failed = append(s.failed, c.name)
		fmt.Printf("FAIL  %-16s %s (%s)\n", c.name, strings.ReplaceAll(err.Error(), "\n", "\n      "), took)
		return false
	}
	s.passed++
	fmt.Printf("ok    %-16s %s (%s)\n", c.name, strings.ReplaceAll(line, "\n", "\n      "), took)
	return true
}

// cleanUp ends all processes, and removes the files if the run went well.
func (s *smoke) cleanUp(ctx context.Context, well bool) error {
	err := errors.Join(s.controller.stop(), s.scene.down(ctx))
	if s.repo != nil {
		err = errors.Join(err, s.repo.close())
	}
	if well {
		err = errors.Join(err, os.RemoveAll(s.scene.folder))
	}
	return err
}
