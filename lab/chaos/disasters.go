package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/chaos/webhook"
)

// disaster is a failure of the systems around Keelson.
type disaster struct {
	name string
	// begin starts the disaster, and returns the function that ends it.
	begin func(context.Context) (end func(context.Context) error, err error)
	// says are texts that the status message of one component must contain during
	// the disaster. Empty: the fleet must converge in spite of the disaster.
	says []string
	// later: nothing is checked until the disaster has ended.
	later bool
}

// disasterFleet is a fixture fleet with a controller and the means of disasters.
type disasterFleet struct {
	*fixtureFleet
	controller *keelson
	kubeconfig string
	hook       *webhook.Server
	snapshot   string // a copy of etcd's folder, made earlier
	result     result
}

// runDisasters strikes the cluster with one disaster after another while git
// and the cluster change.
func runDisasters(ctx context.Context, w *world) (r result, err error) {
	r = result{did: "outages, restores, broken APIs, webhooks, finalizers, namespaces"}
	g, err := w.newFixtureFleet(ctx, "plot", 8)
	if err != nil {
		return r, err
	}
	s := &disasterFleet{fixtureFleet: g, result: r}
	s.result.must = len(s.disasters())
	if s.kubeconfig, err = w.direct(); err != nil {
		return s.result, err
	}
	if s.kubeconfig, err = s.renamed(s.kubeconfig); err != nil {
		return s.result, err
	}
	if s.hook, err = webhook.New(ctx); err != nil {
		return s.result, err
	}
	defer func() { err = errors.Join(err, s.hook.Close()) }()
	if err := s.restart(ctx); err != nil {
		return s.result, err
	}
	if _, err := g.converged(ctx, hungAfter); err != nil {
		return s.result, fmt.Errorf("before any disaster: %w (its log: %s)", err, s.controller.log)
	}
	for _, d := range s.disasters() {
		s.result.number++
		started := time.Now()
		if err := s.strike(ctx, d); err != nil {
			if ctx.Err() != nil {
				return s.result, ctx.Err()
			}
			s.result.violate("%s: %v (its log: %s)", d.name, err, s.controller.log)
			return s.result, nil
		}
		say("%s: %s: survived, %s in all", w.name, d.name, time.Since(started).Round(10*time.Millisecond))
	}
	return s.result, s.controller.stop(ctx)
}

// restart kills the controller, if one runs, and starts a new controller, which must
// read the state of the cluster again.
func (s *disasterFleet) restart(ctx context.Context) (err error) {
	if s.controller != nil {
		if err := s.controller.kill(); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.controller, err = s.start(launch{name: "controller", repo: s.repo, kubeconfig: s.kubeconfig}, controllerArgs("")...)
	return err
}

// strike begins a disaster, changes the fleet, checks Keelson's statuses, ends the
// disaster, and waits until the fleet has converged.
func (s *disasterFleet) strike(ctx context.Context, d disaster) error {
	end, err := d.begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	during := s.during(ctx, d)
	if err := end(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("end: %w", errors.Join(during, err))
	}
	took, err := s.converged(ctx, recovery)
	if err != nil {
		return fmt.Errorf("not recovered: %w", errors.Join(during, err))
	}
	if during != nil {
		return during
	}
	s.result.recovered(took)
	return nil
}

func (s *disasterFleet) during(ctx context.Context, d disaster) error {
	if d.later {
		return nil
	}
	if err := s.grow(ctx, s.rand, len(s.components)); err != nil {
		return err
	}
	if len(d.says) == 0 {
		_, err := s.converged(ctx, recovery)
		if err != nil {
			err = fmt.Errorf("it should not matter: %w", err)
		}
		return err
	}
	err := until(ctx, recovery, func(ctx context.Context) error { return s.said(ctx, d.says) })
	if err != nil {
		return fmt.Errorf("the status must name the cause: %w", err)
	}
	return nil
}

// said returns nil if the message of a Delivery that is not Synced contains all texts.
func (s *disasterFleet) said(ctx context.Context, texts []string) error {
	all, err := s.deliveries(ctx)
	if err != nil {
		return err
	}
	var others []string
next:
	for name, d := range all {
		if d.sync == "Synced" {
			continue
		}
		for _, text := range texts {
			if !strings.Contains(d.message, text) {
				others = append(others, name+": "+d.String())
				continue next
			}
		}
		return nil
	}
	return fmt.Errorf("no delivery says %q; those that are not synced say %q", texts, others)
}
