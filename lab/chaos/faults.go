package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/lab/chaos/proxy"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// The limits of a burst: the number of faults, the longest duration, and the share of
// requests that fail.
const (
	burstFaults = 80
	burstTime   = 6 * time.Second
	burstShare  = 0.6
)

// runFaults lets requests fail in bursts while git and the cluster change. After each
// burst it waits until the cluster has converged.
func runFaults(ctx context.Context, w *world, r *result) {
	r.did, r.must = "faults of requests, answers, watches and connections", w.Faults
	g := w.newFixtureFleet(ctx, "fault", 40, fixtureTemplate, target)
	p, kubeconfig := w.proxied("proxied", proxy.Options{})
	k := w.start(launch{name: "controller", repo: g.repo, kubeconfig: kubeconfig}, controllerArgs("")...)
	must.Wrap(func() { g.converged(ctx, hungAfter) }, "before any fault (its log: %s)", k.Log)
	for burst := 1; r.number < w.Faults; burst++ {
		b := &faultGenerator{rand: w.newRand(), left: min(burstFaults, w.Faults-r.number)}
		made := g.runBurst(ctx, p, b)
		r.number += made
		took, err := must.TryGet(func() time.Duration { return g.converged(ctx, recovery) })
		switch {
		case ctx.Err() != nil:
			must.Do(ctx.Err())
		case err != nil:
			r.violate("burst %d of %d faults: not recovered: %v (its log: %s)", burst, made, err, k.Log)
			return
		case k.Ended():
			r.violate("the controller ended in burst %d (its log: %s)", burst, k.Log)
			return
		}
		r.survived += made
		r.worst = max(r.worst, took)
		harness.Say("%s: burst %d: %d faults, %d in all, recovered after %s", w.name, burst, made, r.number, took.Round(10*time.Millisecond))
	}
	r.notes = append(r.notes, "faults: "+counted(p.Counts()))
	k.stop(ctx)
}

// newProxy starts a proxy for the user keelson in front of a cluster's API server. The proxy ends
// with the world.
func (w *world) newProxy(on string, o proxy.Options) *proxy.Proxy {
	o.Upstream = map[string]*rest.Config{cluster.Keelson: must.Get(harness.Config(w.lab, on, cluster.Keelson))}
	p := must.Get(proxy.New(o))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.proxies = append(w.proxies, p)
	return p
}

// proxied starts a proxy in front of the world's own cluster, and returns the kubeconfig for the
// proxy.
func (w *world) proxied(name string, o proxy.Options) (*proxy.Proxy, string) {
	p := w.newProxy(target, o)
	return p, w.kubeconfig(name, must.Get(p.Kubeconfig(cluster.Keelson)))
}

func counted(counts map[proxy.Fault]int) string {
	var parts []string
	for _, f := range slices.Sorted(maps.Keys(counts)) {
		if f != proxy.Pass {
			parts = append(parts, fmt.Sprintf("%s %d", f, counts[f]))
		}
	}
	return strings.Join(parts, ", ")
}

// runBurst runs one burst of faults while git and the cluster change. It returns the
// number of faults after the burst has ended.
func (g *fixtureFleet) runBurst(ctx context.Context, p *proxy.Proxy, s *faultGenerator) int {
	want := s.left
	s.over = make(chan struct{})
	p.Use(s.decide)
	defer p.Use(nil)
	g.changeGit(ctx, g.rand, len(g.components))
	g.drift(ctx, g.rand, len(g.components)/2)
	timer := time.NewTimer(burstTime)
	defer timer.Stop()
	select {
	case <-s.over:
	case <-timer.C:
	case <-ctx.Done():
		must.Do(ctx.Err())
	}
	p.Use(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	return want - s.left
}

// faultGenerator decides at random which requests fail, and how.
type faultGenerator struct {
	mu   sync.Mutex
	rand *rand.Rand
	left int           // number of faults left
	over chan struct{} // closed when no fault is left
}

func (s *faultGenerator) decide(r proxy.Request) proxy.Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == 0 || s.rand.Float64() > burstShare {
		return proxy.Verdict{}
	}
	if s.left--; s.left == 0 {
		close(s.over)
	}
	if r.Watch() {
		return s.watch()
	}
	return s.request(r)
}

// watch draws the verdict of a watch.
func (s *faultGenerator) watch() proxy.Verdict {
	v := proxy.Verdict{For: time.Duration(s.rand.IntN(1500)) * time.Millisecond, Connection: s.rand.IntN(4) == 0}
	v.Fault = []proxy.Fault{proxy.CutWatch, proxy.CutWatch, proxy.Gone410, proxy.ResetBefore, proxy.ResetMidAnswer, proxy.Drip, proxy.Status, proxy.Hang}[s.rand.IntN(8)]
	s.refusal(&v)
	return v
}

// request draws the verdict of a request that isn't a watch.
func (s *faultGenerator) request(r proxy.Request) proxy.Verdict {
	v := proxy.Verdict{For: time.Duration(s.rand.IntN(3000)) * time.Millisecond, Connection: s.rand.IntN(8) == 0}
	kinds := []proxy.Fault{proxy.Status, proxy.Status, proxy.Status, proxy.Hang, proxy.ResetBefore, proxy.ResetMidAnswer, proxy.DropAnswer, proxy.DropAnswer, proxy.Drip}
	if r.Verb == "list" {
		kinds = append(kinds, proxy.Gone410, proxy.Gone410)
	}
	v.Fault = kinds[s.rand.IntN(len(kinds))]
	s.refusal(&v)
	return v
}

// refusal draws the answer of a Status.
func (s *faultGenerator) refusal(v *proxy.Verdict) {
	v.Code = []int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable}[s.rand.IntN(3)]
	v.Plain = s.rand.IntN(3) == 0
	if v.Code != http.StatusInternalServerError {
		v.RetryAfter = time.Duration(s.rand.IntN(3)) * time.Second
	}
}
