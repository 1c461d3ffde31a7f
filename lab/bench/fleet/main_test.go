package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"

	"github.com/keelson-io/keelson/lab/bench/sim"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
)

// TestRepository: the generated fleet has no error and the requested number of objects; otherwise
// the figures would be wrong. A push changes one component on every cluster.
func TestRepository(t *testing.T) {
	t.Parallel()
	for _, s := range []size{{1, 1, 1}, {3, 4, 10}, {12, 2, 8}, {2, 2, 15}} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			made, err := must.TryGet(func() *repository { return makeRepository(t.Context(), t.TempDir(), s) })
			if err != nil {
				t.Fatal(err)
			}
			repo, err := registry.Open(t.Context(), gitrepo.Options{URL: made.dir, CacheDir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			before := hashes(t, repo, s)
			if err := must.Try(func() { made.push(t.Context(), s.components-1) }); err != nil {
				t.Fatal(err)
			}
			if err := repo.Git().Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
			changed := 0
			for of, hash := range hashes(t, repo, s) {
				if hash != before[of] {
					changed++
				}
			}
			if changed != s.clusters {
				t.Errorf("a push changed %d deliveries of %d clusters", changed, s.clusters)
			}
		})
	}
}

// hashes renders everything and returns the hash of each delivery.
func hashes(t *testing.T, repo *registry.Repo, s size) map[string]string {
	t.Helper()
	fleet, err := repo.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := fleet.Problems.Err(); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	engine := renderer.New()
	for _, c := range fleet.Clusters {
		for _, d := range c.Deliveries {
			target, err := engine.Render(t.Context(), renderer.Request{Version: d.Version, Values: d.Values, Capabilities: renderer.DefaultCapabilities()})
			if err != nil {
				t.Fatal(err)
			}
			if len(target.Objects) != s.objects {
				t.Errorf("%s on %s has %d objects, want %d", d.Component, c.Name, len(target.Objects), s.objects)
			}
			out[c.Name+"/"+d.Component] = target.Hash
		}
	}
	if len(out) != s.deliveries() {
		t.Errorf("%d deliveries, want %d", len(out), s.deliveries())
	}
	return out
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--nope"}, {"extra"}, {"--commits=0"}, {"--sizes=10x50"}, {"--sizes=0x1x1"}, {"--sizes=axbxc"}, {"sim"}, {"sim", "--clusters=0", t.TempDir()}, {"record"},
	} {
		if err := run(t.Context(), args, &bytes.Buffer{}); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

// TestCounts: earlier counts are subtracted kind by kind. Watches, dry runs and failures do not
// count as writes.
func TestCounts(t *testing.T) {
	t.Parallel()
	patch := sim.Count{Verb: "patch", Group: "apps", Resource: "deployments", Code: 200}
	with := func(c sim.Count, n int) sim.Count {
		c.Requests, c.Last = n, time.Unix(int64(n), 0)
		return c
	}
	dry, failed, watch, record := patch, patch, patch, patch
	dry.DryRun, failed.Code, watch.Verb = true, 409, "watch"
	record.Group, record.Resource, record.Namespace = "", "secrets", "keelson-system"
	now := []sim.Count{with(patch, 5), with(dry, 1), with(failed, 1), with(watch, 7), with(record, 2)}
	got := less(now, []sim.Count{with(patch, 3), with(record, 2)})
	if n := writes(got, isObject); n != 2 {
		t.Errorf("%d writes of objects, want 2: %+v", n, got)
	}
	if n := calls(got); n != 4 {
		t.Errorf("%d calls but watches, want 4: %+v", n, got)
	}
}
