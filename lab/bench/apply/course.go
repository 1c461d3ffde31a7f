package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/lab/bench/addons"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/gitserver"
	"github.com/keelson-io/keelson/lab/process"
)

// single is the number of commits that change only one component.
const single = 5

// gitInterval is the interval of the polls of git. It is so long that polls do not affect the
// figures: the notification triggers the fetch.
const gitInterval = time.Minute

// contestant is a program that brings a cluster to the state in git.
type contestant struct {
	name string
	// settings are the contestant's own settings that matter, one per line.
	settings []string
	// repeats is true if the contestant applies again at times, even if nothing has changed.
	repeats bool
	repo    *repository
	// levels returns the changed files when some components get other levels.
	levels func(of []int, level func(i int) string) (addons.Files, error)
	// nothing returns a commit that changes no object.
	nothing func() addons.Files
	// install creates the objects that must exist beforehand; nil: none.
	install func(ctx context.Context, admin *rest.Config) error
	// start starts the processes, and tell notifies them of a change in git.
	start func(ctx context.Context, kubeconfig string) ([]*process.Child, error)
	tell  func(ctx context.Context) error
}

// course runs one contestant on its own cluster.
type course struct {
	*measurement
	contestant
	children []*process.Child
	witness  *witness
	level    []string // of each component, in git
	result
}

// result holds the figures of a contestant.
type result struct {
	name                   string
	cold, field, same      phase // same: a commit that changes no object
	steady                 phase
	one                    []time.Duration // push → last object, of one component
	own, held              process.Usage   // at the end; held includes child processes
	reads, writes, watches int             // in the steady state
}

// pushes measures Keelson, and Flux in peer mode, with a git server.
func (m *measurement) pushes(ctx context.Context, objects []unstructured.Unstructured, limit limits) (err error) {
	server, err := gitserver.Start(ctx, filepath.Join(m.dir, "git"), "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	all := []func(context.Context, *gitserver.Server, []unstructured.Unstructured) (contestant, error){m.asKeelson}
	if m.mode == withPeer {
		all = append(all, m.asFlux)
	}
	var results []result
	for _, as := range all {
		one, err := as(ctx, server, objects)
		if err != nil {
			return err
		}
		r, err := m.through(ctx, one, limit)
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		results = append(results, r)
	}
	if len(results) > 1 {
		m.sideBySide(results, limit)
	}
	return nil
}

// through runs one contestant through all phases.
func (m *measurement) through(ctx context.Context, who contestant, limit limits) (_ result, err error) {
	c := &course{measurement: m, contestant: who, level: slices.Repeat([]string{"1"}, m.components), result: result{name: who.name}}
	fmt.Fprintf(m.out, "\n%s, by git push over HTTP\n", c.contestant.name)
	for _, line := range c.settings {
		fmt.Fprintf(m.out, "  %s\n", line)
	}
	if _, err := m.up(ctx, ours); err != nil {
		return c.result, err
	}
	defer func() { err = errors.Join(err, m.lab.Down(context.WithoutCancel(ctx), ours)) }()
	admin, err := m.client(ours, cluster.Admin)
	if err != nil {
		return c.result, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	if c.witness, err = m.watch(watching, admin); err != nil {
		return c.result, err
	}
	if c.install != nil {
		if err := c.install(ctx, admin); err != nil {
			return c.result, err
		}
	}
	kubeconfig, err := m.kubeconfig(ours, cluster.Keelson)
	if err != nil {
		return c.result, err
	}
	defer func() { err = errors.Join(err, c.end()) }()
	if c.cold, err = c.measured(ctx, func(time.Time, *phase) error {
		var err error
		c.children, err = c.start(ctx, kubeconfig)
		return err
	}); err != nil {
		return c.result, err
	}
	m.table("cold", c.cold, limit.cold)
	m.withRecords(c.cold, limit)
	if err := c.follow(ctx, limit.field); err != nil {
		return c.result, err
	}
	return c.result, m.levelsAre(ctx, admin, c.level)
}

// follow measures several kinds of pushes, and a quiet period between them.
func (c *course) follow(ctx context.Context, limit phase) (err error) {
	everyone := make([]int, c.components)
	for i := range everyone {
		everyone[i] = i
	}
	if c.field, err = c.changed(ctx, "one field of each", everyone...); err != nil {
		return err
	}
	c.table("one field of each", c.field, limit)
	if err := c.healthy(ctx); err != nil {
		return err
	}
	if c.same, err = c.pushed(ctx, "nothing that a cluster runs", c.nothing()); err != nil {
		return err
	}
	if err := c.quietly(ctx); err != nil {
		return err
	}
	// These pushes come after the quiet period. They prove that the contestant was still following
	// git.
	for i := range single {
		p, err := c.changed(ctx, "one field of one", i*c.components/single)
		if err != nil {
			return err
		}
		c.one = append(c.one, p.last)
	}
	slices.Sort(c.one)
	fmt.Fprintf(c.out, "\none field of one component\n  push → object         median %s, worst %s of %d\n", round(c.one[single/2]), round(c.one[single-1]), single)
	if c.own, err = c.usage((*process.Child).Usage); err != nil {
		return err
	}
	if c.held, err = c.usage((*process.Child).UsageOfAll); err != nil {
		return err
	}
	const mb = 1 << 20
	fmt.Fprintf(c.out, "  memory                peak %d MB, now %d MB; with what it has started, which shares some, %d MB and %d MB\n",
		c.own.Peak/mb, c.own.RSS/mb, c.held.Peak/mb, c.held.RSS/mb)
	return nil
}

// changed pushes new levels for some components.
func (c *course) changed(ctx context.Context, what string, of ...int) (phase, error) {
	for _, i := range of {
		n, err := strconv.Atoi(c.level[i])
		if err != nil {
			return phase{}, fmt.Errorf("level of %s: %w", c.names[i], err)
		}
		c.level[i] = strconv.Itoa(n + 1)
	}
	files, err := c.levels(of, func(i int) string { return c.level[i] })
	if err != nil {
		return phase{}, err
	}
	c.witness.changes(of)
	return c.pushed(ctx, what, files)
}

// pushed pushes files, notifies the contestant, and waits until the cluster matches git.
func (c *course) pushed(ctx context.Context, what string, files addons.Files) (phase, error) {
	return c.measured(ctx, func(began time.Time, p *phase) error {
		if err := c.repo.push(ctx, files, what); err != nil {
			return err
		}
		p.pushed = time.Since(began)
		if err := c.tell(ctx); err != nil {
			return err
		}
		p.told = time.Since(began)
		return nil
	})
}

// measured runs do, waits until the cluster matches git and writes have ended, and returns the
// cost.
func (c *course) measured(ctx context.Context, do func(began time.Time, p *phase) error) (phase, error) {
	before, err := c.usage((*process.Child).UsageOfAll)
	if err != nil {
		return phase{}, err
	}
	var told phase
	p, err := c.timed(ctx, ours, func() error {
		if err := do(time.Now(), &told); err != nil {
			return err
		}
		if err := c.until(ctx, c.witness.asGitSays); err != nil {
			return err
		}
		_, err := c.settled(ctx, pause)
		return err
	})
	if err != nil {
		return p, err
	}
	after, err := c.usage((*process.Child).UsageOfAll)
	p.by, p.process, p.pushed, p.told = c.contestant.name, after.CPU-before.CPU, told.pushed, told.told
	return p, err
}

// until waits for check, and fails if a process ends.
func (c *course) until(ctx context.Context, check func(context.Context) error) error {
	return c.children[0].Until(ctx, patience, looks, func(ctx context.Context) error {
		for _, one := range c.children[1:] {
			if _, err := one.Usage(); err != nil {
				return err
			}
		}
		return check(ctx)
	})
}

// usage returns the summed usage of all processes.
func (c *course) usage(of func(*process.Child) (process.Usage, error)) (process.Usage, error) {
	var sum process.Usage
	for _, one := range c.children {
		u, err := of(one)
		if err != nil {
			return sum, err
		}
		sum.RSS, sum.Peak, sum.CPU = sum.RSS+u.RSS, sum.Peak+u.Peak, sum.CPU+u.CPU
	}
	return sum, nil
}

func (c *course) end() error {
	var errs []error
	for _, one := range c.children {
		errs = append(errs, one.Stop(time.Minute))
	}
	return errors.Join(errs...)
}
