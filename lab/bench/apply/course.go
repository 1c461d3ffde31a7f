package apply

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"

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
	levels func(of []int, level func(i int) string) addons.Files
	// nothing returns a commit that changes no object.
	nothing func() addons.Files
	// install creates the objects that must exist beforehand; nil: none.
	install func(ctx context.Context, admin *rest.Config)
	// start starts the processes, and tell notifies them of a change in git.
	start func(ctx context.Context, kubeconfig string) ([]*process.Child, error)
	tell  func(ctx context.Context)
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
	cold, field, same      section // same: a commit that changes no object
	steady                 section
	one                    []time.Duration // push → last object, of one component
	own, held              process.Usage   // at the end; held includes child processes
	reads, writes, watches int             // in the steady state
}

// pushes measures Keelson, and Flux in peer mode, with a git server.
func (m *measurement) pushes(ctx context.Context, objects []unstructured.Unstructured, limit limits) {
	server := must.Get(gitserver.Start(ctx, filepath.Join(m.dir, "git"), ""))
	must.Finally(func() { m.contest(ctx, server, objects, limit) }, server.Stop)
}

// contest measures one contestant after the other.
func (m *measurement) contest(ctx context.Context, server *gitserver.Server, objects []unstructured.Unstructured, limit limits) {
	all := []func(context.Context, *gitserver.Server, []unstructured.Unstructured) contestant{m.asKeelson}
	if m.mode == withPeer {
		all = append(all, m.asFlux)
	}
	var results []result
	for _, as := range all {
		one := as(ctx, server, objects)
		must.Wrap(func() { results = append(results, m.through(ctx, one, limit)) }, "%s", one.name)
	}
	if len(results) > 1 {
		m.sideBySide(results, limit)
	}
}

// through runs one contestant through all sections.
func (m *measurement) through(ctx context.Context, who contestant, limit limits) result {
	c := &course{measurement: m, contestant: who, level: slices.Repeat([]string{"1"}, m.components), result: result{name: who.name}}
	fmt.Fprintf(m.out, "\n%s, by git push over HTTP\n", c.contestant.name)
	for _, line := range c.settings {
		fmt.Fprintf(m.out, "  %s\n", line)
	}
	m.up(ctx, ours)
	must.Finally(func() { c.run(ctx, limit) }, c.end, func() error { return m.lab.Down(context.WithoutCancel(ctx), ours) })
	return c.result
}

// run runs the contestant on its cluster, which is up.
func (c *course) run(ctx context.Context, limit limits) {
	admin := c.client(ours, cluster.Admin)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	c.witness = c.watch(watching, admin)
	if c.install != nil {
		c.install(ctx, admin)
	}
	kubeconfig := c.kubeconfig(ours, cluster.Keelson)
	c.cold = c.measured(ctx, func(time.Time, *section) {
		var err error
		c.children, err = c.start(ctx, kubeconfig)
		must.Do(err)
	})
	c.table("cold", c.cold, limit.cold)
	c.withRecords(c.cold, limit)
	c.follow(ctx, limit.field)
	c.levelsAre(ctx, admin, c.level)
}

// follow measures several kinds of pushes, and a quiet period between them.
func (c *course) follow(ctx context.Context, limit section) {
	everyone := make([]int, c.components)
	for i := range everyone {
		everyone[i] = i
	}
	c.field = c.changed(ctx, "one field of each", everyone...)
	c.table("one field of each", c.field, limit)
	c.healthy(ctx)
	c.same = c.pushed(ctx, "nothing that a cluster runs", c.nothing())
	c.quietly(ctx)
	// These pushes come after the quiet period. They prove that the contestant was still following
	// git.
	for i := range single {
		p := c.changed(ctx, "one field of one", i*c.components/single)
		c.one = append(c.one, p.last)
	}
	slices.Sort(c.one)
	fmt.Fprintf(c.out, "\none field of one component\n  push → object         median %s, worst %s of %d\n", round(c.one[single/2]), round(c.one[single-1]), single)
	c.own = must.Get(c.usage((*process.Child).Usage))
	c.held = must.Get(c.usage((*process.Child).UsageOfAll))
	const mb = 1 << 20
	fmt.Fprintf(c.out, "  memory                peak %d MB, now %d MB; with what it has started, which shares some, %d MB and %d MB\n",
		c.own.Peak/mb, c.own.RSS/mb, c.held.Peak/mb, c.held.RSS/mb)
}

// changed pushes new levels for some components.
func (c *course) changed(ctx context.Context, what string, of ...int) section {
	for _, i := range of {
		n := must.Get(strconv.Atoi(c.level[i]))
		c.level[i] = strconv.Itoa(n + 1)
	}
	files := c.levels(of, func(i int) string { return c.level[i] })
	c.witness.changes(of)
	return c.pushed(ctx, what, files)
}

// pushed pushes files, notifies the contestant, and waits until the cluster matches git.
func (c *course) pushed(ctx context.Context, what string, files addons.Files) section {
	return c.measured(ctx, func(began time.Time, p *section) {
		c.repo.push(ctx, files, what)
		p.pushed = time.Since(began)
		c.tell(ctx)
		p.told = time.Since(began)
	})
}

// measured runs do, waits until the cluster matches git and writes have ended, and returns the
// cost.
func (c *course) measured(ctx context.Context, do func(began time.Time, p *section)) section {
	before := must.Get(c.usage((*process.Child).UsageOfAll))
	var told section
	p := c.timed(ctx, ours, func() {
		do(time.Now(), &told)
		c.until(ctx, c.witness.asGitSays)
		c.settled(ctx, pause)
	})
	after := must.Get(c.usage((*process.Child).UsageOfAll))
	p.by, p.process, p.pushed, p.told = c.contestant.name, after.CPU-before.CPU, told.pushed, told.told
	return p
}

// until waits for check, and fails if a process ends.
func (c *course) until(ctx context.Context, check func(context.Context) error) {
	must.Do(c.children[0].Until(ctx, patience, looks, func(ctx context.Context) error {
		for _, one := range c.children[1:] {
			if _, err := one.Usage(); err != nil {
				return err
			}
		}
		return check(ctx)
	}))
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
