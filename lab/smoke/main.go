// Command smoke demonstrates Keelson on real API servers.
//
// With --demo it starts a hub and three clusters, publishes the example fleet, starts the
// controller, and prints a tour of commands to try. Everything runs until it is interrupted.
// Without --demo it checks what docs/evidence/promises.md lists, unattended, and prints a line per step. Most
// steps use the audit logs of the API servers as evidence. At the end it removes everything.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// Clusters of the example fleet, in the usual order of an upgrade.
const (
	testing    = "testing-eu-01"
	canary     = "canary-eu-01"
	production = "prod-us-01"
)

func main() { harness.Main("smoke", command) }

func command(ctx context.Context) error {
	binary := flag.String("keelson", "bin/keelson", "the keelson binary")
	var from sources
	flag.StringVar(&from.fleet, "fleet", "examples/fleet", "the fleet repository to copy")
	flag.StringVar(&from.workloads, "workloads", "components/workload-controllers", "the component of Keelson's that the fleet delivers")
	demo := flag.Bool("demo", false, "bring everything up, print a tour, and stay until interrupted")
	only := flag.String("only", "", "run only the checks whose name contains this")
	keep := flag.Bool("keep", false, "leave clusters and files for a look after the checks")
	listen := flag.String("listen", "127.0.0.1:0", "address of the controller's metrics and health endpoints")
	prometheus := flag.String("prometheus", "", "a prometheus binary, which a pipeline then asks, too")
	flag.Parse()
	r, err := must.TryGet(func() *run { return prepare(*binary, *demo) })
	if err != nil {
		return err
	}
	r.controller.listen, r.prometheus = *listen, *prometheus
	if *demo {
		return r.demo(ctx, from)
	}
	return r.steps(ctx, from, *only, *keep)
}

// run is what the steps of one run share.
type run struct {
	*scene

	repo       *repository
	cli        *cli
	controller *controller
	beacon     *beacon
	coredns    *coredns
	ferry      *ferry
	prometheus string // the program; "": not installed
	components int    // on all clusters together, once the fleet has converged; 0: unknown
}

func prepare(binary string, demo bool) *run {
	binary = must.Get(filepath.Abs(binary))
	// A new repository needs a new folder: Keelson remembers the tags of the old one, and would
	// report the new tags as moved.
	parent, name := "", "keelson-smoke-"
	if demo {
		parent, name = filepath.Dir(must.Get(cluster.DefaultDir())), "demo-"
		must.Do(os.MkdirAll(parent, 0o700))
	}
	set, folder := must.Get(binaries.Find()), must.Get(os.MkdirTemp(parent, name))
	s := &scene{
		lab: &cluster.Lab{Dir: filepath.Join(folder, "clusters")}, set: set, folder: folder, keelson: binary,
		clusters: []string{testing, canary, production},
	}
	repo := &repository{bare: filepath.Join(folder, "fleet.git"), Clone: harness.Clone(filepath.Join(folder, "fleet"))}
	c := &cli{binary: binary, kubeconfig: s.kubeconfig(), repo: repo}
	return &run{
		scene: s, repo: repo, cli: c,
		controller: &controller{cli: c, cache: filepath.Join(folder, "cache"), log: filepath.Join(folder, "controller.log")},
		beacon:     &beacon{scene: s, repo: repo}, coredns: &coredns{scene: s, repo: repo, cli: c}, ferry: &ferry{scene: s, repo: repo, cli: c},
	}
}

// demo keeps everything running until it is interrupted.
func (r *run) demo(ctx context.Context, from sources) error {
	r.lab.Say = func(line string) { harness.Say("%s", line) }
	err := must.Try(func() {
		must.Do(os.RemoveAll(r.environment())) // of a demo that was killed
		r.up(ctx)
		r.repo.publish(ctx, from)
		harness.Say("the fleet repository: %s", r.repo.url())
		started := time.Now()
		r.controller.start()
		r.converged(ctx)
		harness.Say("converged %d deliveries on %d clusters in %s", r.components, len(r.clusters), time.Since(started).Round(100*time.Millisecond))
		out, _ := r.cli.try(ctx, "status")
		fmt.Printf("\n$ keelson status\n%s\n", out)
		must.Do(os.WriteFile(r.environment(), []byte(fmt.Sprintf("export PATH='%s:%s':$PATH KUBECONFIG='%s' KEELSON_REPO='%s' DEMO_FLEET='%s'\n",
			filepath.Dir(r.cli.binary), r.set.Dir, r.kubeconfig(), r.repo.url(), r.repo.Clone)), 0o600))
		r.tour()
		<-ctx.Done()
		harness.Say("stopping")
	})
	return errors.Join(err, r.cleanUp(context.WithoutCancel(ctx), true), os.RemoveAll(r.environment()))
}

// environment is the file of the shell variables with which a terminal reaches the demo. It is
// there as long as the demo is ready.
func (r *run) environment() string { return filepath.Join(filepath.Dir(r.cli.binary), "demo.env") }

// tour prints commands to try. Every line works unchanged.
func (r *run) tour() {
	fmt.Printf(`It runs until you press Ctrl-C, which removes all of it. In another terminal:

  . %[1]s; cd "$DEMO_FLEET"

  # what runs where
  keelson status
  kubectl --context %[2]s -n kube-system get deployments
  keelson explain %[4]s coredns .replicas

  # drift: a person scales, Keelson sets it back
  kubectl --context %[2]s -n kube-system scale deployment coredns --replicas 7
  kubectl --context %[2]s -n kube-system get deployment coredns -w

  # a new version: publish it, then let the testing cluster run it
  sed -i 's/tag: v1.12.0/tag: v1.12.1/' components/coredns/images.yaml
  git commit -qam 'coredns v1.12.1' && git tag coredns/v1.12.1 && git push -q origin main coredns/v1.12.1
  sed -i 's/^version: .*/version: v1.12.1/' clusters/%[2]s/coredns.yaml
  git commit -qam 'testing: coredns v1.12.1'
  keelson diff %[2]s coredns --repo .
  git push -q
  keelson status %[2]s --watch

  # a DaemonSet on five nodes, in place and in partitions: 4 keep the old version; then try 2, and 0
  sed -i 's/tag: v1.0.0/tag: v1.1.0/' components/asi-proxy/images.yaml
  git commit -qam 'asi-proxy v1.1.0' && git tag asi-proxy/v1.1.0 && git push -q origin main asi-proxy/v1.1.0
  sed -i 's/^version: .*/version: v1.1.0/; s/partition: .*/partition: 4/' clusters/%[2]s/asi-proxy.yaml
  git commit -qam 'testing: asi-proxy v1.1.0 on one node' && git push -q
  keelson workload status daemonset/asi-proxy-ds-1 -n kube-system --context %[2]s --watch

  # a mistake: nothing happens but a clear message
  echo 'valeus: {}' >> clusters/%[3]s/coredns.yaml && git commit -qam oops && git push -q
  keelson validate; keelson status %[3]s
  git revert --no-edit HEAD && git push -q

  keelson history %[2]s
  tail -f %[5]s
  curl -s "$(sed -n 's/.*readyz" address=/http:\/\//p' %[5]s | tail -1)/metrics" | grep ^keelson_
`, r.environment(), testing, canary, production, r.controller.log)
}

// steps runs all steps and then removes everything, unless keep is set.
func (r *run) steps(ctx context.Context, from sources, only string, keep bool) (err error) {
	harness.Say("files of this run: %s", r.folder)
	if !keep {
		defer func() { err = errors.Join(err, r.cleanUp(context.WithoutCancel(ctx), err == nil)) }()
	}
	if err := must.Try(func() {
		r.repo.publish(ctx, from)
		r.beacon.add(ctx)
		r.ferry.add(ctx)
		r.repo.serve(ctx)
	}); err != nil {
		return err
	}
	passed, failed := 0, []string{}
	for _, s := range allSteps() {
		if only != "" && !s.always && !strings.Contains(s.name, only) {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.do(ctx, r) {
			passed++
			continue
		}
		failed = append(failed, s.name)
		if s.always {
			break
		}
	}
	fmt.Printf("%d passed, %d failed\n", passed, len(failed))
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s; the controller's log is %s", strings.Join(failed, ", "), r.controller.log)
	}
	return nil
}

// cleanUp ends all processes, and removes the files if the run went well.
func (r *run) cleanUp(ctx context.Context, well bool) error {
	err := errors.Join(must.Try(r.controller.stop), must.Try(func() { r.down(ctx) }), must.Try(r.repo.stop))
	if well {
		err = errors.Join(err, os.RemoveAll(r.folder))
	}
	return err
}
