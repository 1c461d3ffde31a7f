package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/lab/chaos/proxy"
	"github.com/keelson-io/keelson/lab/cluster"
)

func metaNotFound(err error) bool { return apierrors.IsNotFound(err) }

// The limits of a burst: the number of faults, the longest duration, and the share of
// requests that fail.
const (
	burstFaults = 80
	burstTime   = 6 * time.Second
	burstShare  = 0.6
)

// runFaults lets requests fail in bursts while git and the cluster change. After each
// burst it waits until the cluster has converged.
func runFaults(ctx context.Context, w *world) (result, error) {
	r := result{did: "faults of requests, answers, watches and connections", must: w.Faults}
	g, err := w.newFixtureFleet(ctx, "fault", 40)
	if err != nil {
		return r, err
	}
	p, kubeconfig, err := w.proxied(ctx)
	if err != nil {
		return r, err
	}
	defer func() {
		if err := p.Close(); err != nil {
			say("%s: %v", w.name, err)
		}
	}()
	k, err := w.start(launch{name: "controller", repo: g.repo, kubeconfig: kubeconfig}, controllerArgs("")...)
	if err != nil {
		return r, err
	}
	if _, err := g.converged(ctx, hungAfter); err != nil {
		return r, fmt.Errorf("before any fault: %w (its log: %s)", err, k.log)
	}
	for burst := 1; r.number < w.Faults; burst++ {
		b := &faultGenerator{rand: rand.New(rand.NewPCG(w.rand.Uint64(), 0)), left: min(burstFaults, w.Faults-r.number)} //nolint:gosec // chance to be repeated
		made, err := g.weather(ctx, p, b)
		if err != nil {
			return r, err
		}
		r.number += made
		took, err := g.converged(ctx, recovery)
		switch {
		case ctx.Err() != nil:
			return r, ctx.Err()
		case err != nil:
			r.violate("burst %d of %d faults: not recovered: %v (its log: %s)", burst, made, err, k.log)
			return r, nil
		case k.ended():
			r.violate("the controller ended in burst %d (its log: %s)", burst, k.log)
			return r, nil
		}
		r.survived += made
		r.worst = max(r.worst, took)
		say("%s: burst %d: %d faults, %d in all, recovered after %s", w.name, burst, made, r.number, took.Round(10*time.Millisecond))
	}
	r.notes = append(r.notes, "faults: "+counted(p.Counts()))
	return r, k.stop(ctx)
}

// proxied starts a proxy in front of the API server, and returns the user keelson's
// kubeconfig for the proxy.
func (w *world) proxied(ctx context.Context) (*proxy.Proxy, string, error) {
	config, err := w.client(cluster.Keelson)
	if err != nil {
		return nil, "", err
	}
	p, err := proxy.New(ctx, proxy.Options{Upstream: map[string]*rest.Config{cluster.Keelson: config}})
	if err != nil {
		return nil, "", err
	}
	content, err := p.Kubeconfig(cluster.Keelson)
	if err != nil {
		return nil, "", errors.Join(err, p.Close())
	}
	path, err := w.kubeconfig("proxied", content)
	if err != nil {
		return nil, "", errors.Join(err, p.Close())
	}
	return p, path, nil
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

// weather runs one burst of faults while git and the cluster change. It returns the
// number of faults after the burst has ended.
func (g *fixtureFleet) weather(ctx context.Context, p *proxy.Proxy, s *faultGenerator) (int, error) {
	want := s.left
	s.over = make(chan struct{})
	p.Use(s.decide)
	defer p.Use(nil)
	if err := g.grow(ctx, g.rand, len(g.components)); err != nil {
		return 0, err
	}
	if err := g.drift(ctx, g.rand, len(g.components)/2); err != nil {
		return 0, err
	}
	timer := time.NewTimer(burstTime)
	defer timer.Stop()
	select {
	case <-s.over:
	case <-timer.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	p.Use(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	return want - s.left, nil
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
