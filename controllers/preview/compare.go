package preview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

// Render renders a delivery of one cluster.
type Render func(context.Context, *registry.Delivery) (*renderer.Target, error)

// Options of a preview.
type Options struct {
	// Base and Head should come from one Repo, whose fleets share what did not change.
	Base, Head *registry.Fleet
	// Render returns the Render of a cluster as it is in Base or Head. A mistake in git is a
	// *[renderer.Error] that is not Transient, or [yamlfile.Problems]. Any other error ends the
	// preview.
	Render func(*registry.Cluster) Render
	// MaskKey keys the hashes that replace the data of Secrets.
	MaskKey []byte
	// Now is when the changes would begin. ClusterTakes is the assumed time of a change on one
	// cluster.
	Now          time.Time
	ClusterTakes time.Duration
	// Workers is the number of clusters that are compared at once.
	Workers int
	// Bytes bounds the memory of the differences, approximately. Above it, the error wraps
	// [ErrTooMuch]. If danger rules take too long, the error wraps [differ.ErrTooMuch]. There is no
	// partial preview: it could hide changes.
	Bytes int64
	// Looked is called with the number of compared clusters; may be nil.
	Looked func(done, all int)
}

// Make compares two revisions of a fleet.
func Make(ctx context.Context, o Options) (*Preview, error) {
	p := &maker{
		Options: o, wants: &applier.DesiredBuilder{}, schemas: &schemas{}, checker: differ.NewChecker(), plans: map[key]*plan{},
		groups: map[group]*Group{}, problems: map[yamlfile.Problem]*Problem{}, left: map[string]*Left{},
		deliveries: map[string]int{},
		out: Preview{
			Base: o.Base.Revision, Head: o.Head.Revision, Policy: policyChanges(o.Base, o.Head),
			Problems: []Problem{}, Groups: []Group{}, Left: []Left{}, Joined: []string{}, Gone: []string{},
		},
	}
	names := map[string]bool{}
	for _, c := range slices.Concat(o.Base.Clusters, o.Head.Clusters) {
		names[c.Name] = true
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, o.Workers))
	for _, name := range slices.Sorted(maps.Keys(names)) {
		g.Go(func() error {
			if err := p.cluster(ctx, o.Base.Cluster(name), o.Head.Cluster(name)); err != nil {
				return err
			}
			p.showProgress(len(names))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err //nolint:wrapcheck // of our own
	}
	return p.result(), nil
}

type maker struct {
	Options

	wants   *applier.DesiredBuilder
	schemas *schemas
	checker *differ.Checker

	mu         sync.Mutex
	looked     int
	plans      map[key]*plan
	kept       int64 // bytes of the plans
	groups     map[group]*Group
	problems   map[yamlfile.Problem]*Problem
	left       map[string]*Left
	deliveries map[string]int // that change, by cluster
	out        Preview
}

func (m *maker) showProgress(all int) {
	if m.Looked == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looked++
	m.Looked(m.looked, all)
}

func (m *maker) result() *Preview {
	for _, p := range m.Head.Problems {
		if m.problems[p] == nil && !slices.Contains(m.Base.Problems, p) {
			m.problems[p] = &Problem{Problem: p, Clusters: []string{}}
		}
	}
	for _, g := range m.groups {
		slices.Sort(g.Clusters)
		m.out.Groups = append(m.out.Groups, *g)
	}
	for _, p := range m.problems {
		slices.Sort(p.Clusters)
		p.Clusters = slices.Compact(p.Clusters)
		m.out.Problems = append(m.out.Problems, *p)
	}
	for _, l := range m.left {
		slices.Sort(l.Clusters)
		m.out.Left = append(m.out.Left, *l)
	}
	slices.Sort(m.out.Joined)
	slices.Sort(m.out.Gone)
	m.out.Clusters = len(m.deliveries)
	for _, n := range m.deliveries {
		m.out.Deliveries += n
	}
	m.out.sort()
	m.out.Estimate = m.estimate()
	return &m.out
}

// cluster compares one cluster. base or head is nil if that side has no such cluster.
func (m *maker) cluster(ctx context.Context, base, head *registry.Cluster) error {
	switch {
	case base == head:
		return nil
	case head == nil:
		m.note(func() { m.out.Gone = append(m.out.Gone, base.Name) })
		return nil
	case base == nil:
		m.note(func() { m.out.Joined = append(m.out.Joined, head.Name) })
		base = &registry.Cluster{Name: head.Name}
	}
	if len(head.Problems) > 0 {
		m.block(head.Name, head.Problems, base.Problems)
		return nil // a missing delivery may be in a broken file
	}
	one := oneCluster{maker: m, base: base, head: head, kinds: map[string]bool{}, spread: map[string]bool{}}
	one.renderBase, one.renderHead = m.Render(base), m.Render(head)
	for _, d := range base.Deliveries {
		if head.Delivery(d.Component) == nil && len(base.Problems) == 0 {
			m.leaves(d)
		}
	}
	all := len(base.Problems) > 0 || !maps.Equal(base.Spec.ImageMirrors, head.Spec.ImageMirrors)
	for _, d := range head.Deliveries {
		if all || !alike(base.Delivery(d.Component), d) {
			if err := one.delivery(ctx, d, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// alike reports whether two deliveries want the same, wherever it is written. False means unknown.
func alike(a, b *registry.Delivery) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil || a.Version == nil || b.Version == nil || len(a.Problems)+len(b.Problems) > 0 {
		return false
	}
	return a.VersionName == b.VersionName && a.Version.Tree != "" && a.Version.Tree == b.Version.Tree &&
		a.Absent == b.Absent && a.Paused == b.Paused &&
		(a.Values.Identity() == b.Values.Identity() || reflect.DeepEqual(a.Values.Map(), b.Values.Map()))
}

func (m *maker) note(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
}

func (m *maker) block(cluster string, now, before yamlfile.Problems) {
	m.problem(cluster, now, before, false)
}

func (m *maker) problem(cluster string, now, before yamlfile.Problems, refused bool) {
	m.note(func() {
		for _, p := range now {
			if m.problems[p] == nil {
				m.problems[p] = &Problem{Problem: p, Before: true, Refused: refused}
			}
			one := m.problems[p]
			one.Clusters = append(one.Clusters, cluster)
			one.Before = one.Before && slices.ContainsFunc(before, func(b yamlfile.Problem) bool {
				return b.At.File == p.At.File && b.Message == p.Message // lines move
			})
		}
	})
}

func (m *maker) leaves(d *registry.Delivery) {
	m.note(func() {
		if m.left[d.Component] == nil {
			m.left[d.Component] = &Left{Component: d.Component}
		}
		m.left[d.Component].Clusters = append(m.left[d.Component].Clusters, d.Cluster)
	})
}

// oneCluster compares the deliveries of one cluster.
type oneCluster struct {
	*maker

	base, head             *registry.Cluster
	renderBase, renderHead Render
	// kinds says of each compared component whether it changes the kinds of the cluster. spread has
	// the components whose dependents were compared for that reason.
	kinds, spread map[string]bool
}

// delivery compares a delivery. If it, or a delivery on which it depends, changes the kinds that
// the cluster serves, its dependents are compared, too.
func (c *oneCluster) delivery(ctx context.Context, head *registry.Delivery, kinds bool) error {
	if _, known := c.kinds[head.Component]; !known {
		changes, err := c.compareDelivery(ctx, head)
		if err != nil {
			return err
		}
		c.kinds[head.Component] = changes
	}
	if !kinds && !c.kinds[head.Component] || c.spread[head.Component] {
		return nil
	}
	c.spread[head.Component] = true
	for _, d := range c.head.Deliveries {
		if d.Version == nil || !slices.Contains(d.Version.Spec.DependsOn, head.Component) {
			continue
		}
		if err := c.delivery(ctx, d, true); err != nil {
			return err
		}
	}
	return nil
}

// compareDelivery compares one delivery, and reports whether it changes the kinds of the cluster.
func (c *oneCluster) compareDelivery(ctx context.Context, head *registry.Delivery) (kinds bool, err error) {
	base := c.base.Delivery(head.Component)
	before := side{problems: c.base.Problems} // with problems, its former state is unknown
	if len(before.problems) == 0 {
		if before, err = made(ctx, c.renderBase, base); err != nil {
			return false, err
		}
	}
	after, err := made(ctx, c.renderHead, head)
	if err != nil {
		return false, err
	}
	switch {
	case len(after.problems) > 0:
		c.block(head.Cluster, after.problems, before.problems)
		return false, nil
	case after.unknown != "" || before.unknown != "" || len(before.problems) > 0:
		why := cmp.Or(after.unknown, before.unknown)
		if why == "" {
			why = before.problems[0].Error()
		}
		c.add(head.Cluster, Group{Component: head.Component, From: version(base), To: version(head), Paused: head.Paused, Unknown: why}, reading{})
		return false, nil
	}
	if err := c.misfits(ctx, base, head, before.target, after.target); err != nil {
		return false, err
	}
	if err := c.compare(ctx, base, head, before.target, after.target); err != nil {
		return false, err
	}
	return !definesAlike(before.target, after.target), nil
}

// misfits reports fields that the schema of their kind rejects. Their changes are shown all the
// same.
func (c *oneCluster) misfits(ctx context.Context, base, head *registry.Delivery, before, after *renderer.Target) error {
	now, err := c.fit(ctx, c.head, c.renderHead, head, after)
	if err != nil || len(now) == 0 {
		return err
	}
	old, err := c.fit(ctx, c.base, c.renderBase, base, before)
	if err == nil {
		c.problem(head.Cluster, now, old, true)
	}
	return err
}

// fit returns the misfits of a delivery, by its own CRDs and the CRDs of its dependencies.
func (c *oneCluster) fit(ctx context.Context, cluster *registry.Cluster, render Render, d *registry.Delivery, is *renderer.Target) (yamlfile.Problems, error) {
	if d == nil || d.Version == nil {
		return nil, nil
	}
	targets := []*renderer.Target{is}
	for _, name := range d.Version.Spec.DependsOn {
		below, err := made(ctx, render, cluster.Delivery(name))
		if err != nil {
			return nil, err
		}
		if below.target != nil {
			targets = append(targets, below.target)
		}
	}
	found, err := c.checker.Cluster(targets).Misfits(is)
	if err != nil {
		return yamlfile.Problems{{At: d.VersionAt, Message: err.Error()}}, nil // a mistake in git, reported as a problem
	}
	var out yamlfile.Problems
	for _, m := range found {
		if !m.Warning {
			out = append(out, m.Blame(d.Values))
		}
	}
	return out, nil
}

// side is the outcome of a delivery at one revision.
type side struct {
	// target has no objects if git wants none.
	target   *renderer.Target
	problems yamlfile.Problems // mistakes in git
	unknown  string            // why there is no target, without a mistake in git
}

func made(ctx context.Context, render Render, d *registry.Delivery) (side, error) {
	switch {
	case d == nil:
		return side{target: &renderer.Target{}}, nil
	case len(d.Problems) > 0:
		return side{problems: d.Problems}, nil
	case d.Absent:
		return side{target: &renderer.Target{}}, nil
	}
	t, err := render(ctx, d)
	var (
		failed   *renderer.Error
		problems yamlfile.Problems // of its dependencies
	)
	switch {
	case err == nil:
		return side{target: t}, nil
	case ctx.Err() == nil && errors.As(err, &problems):
		return side{problems: problems}, nil
	case ctx.Err() != nil || !errors.As(err, &failed) || failed.Transient:
		return side{}, fmt.Errorf("render %s for %s: %w", d.Component, d.Cluster, err)
	case errors.Is(err, renderer.ErrNoKey):
		return side{unknown: failed.Error()}, nil
	}
	return side{problems: yamlfile.Problems{{At: failed.At, Message: failed.Message}}}, nil
}

func version(d *registry.Delivery) string {
	if d == nil || d.Absent {
		return ""
	}
	return d.VersionName
}

// definesAlike reports whether two targets make a cluster serve the same kinds.
func definesAlike(a, b *renderer.Target) bool {
	var none renderer.Capabilities
	return reflect.DeepEqual(none.Including(a), none.Including(b))
}

// key identifies a comparison.
type key struct{ component, before, after, policy, approved string }

func (c *oneCluster) compare(ctx context.Context, base, head *registry.Delivery, before, after *renderer.Target) error {
	from, to := version(base), version(head)
	if base == nil && head.Absent {
		// Base does not mention the component. Its objects may have been left in place when its
		// file was removed, so their former state is unknown.
		c.add(head.Cluster, Group{
			Component: head.Component,
			Unknown:   "it is to be absent, and git did not have it: all that the cluster still has of it is deleted ('keelson diff' shows what that is)",
		}, reading{})
		return nil
	}
	if before.Hash == after.Hash && from == to {
		if base != nil && base.Paused && !head.Paused {
			c.add(head.Cluster, Group{
				Component: head.Component, From: from, To: to,
				Unknown: "it is no longer paused: what came in the meantime is applied",
			}, reading{})
		}
		return nil
	}
	want, err := c.wants.Build(c.Head, head, after)
	if err != nil {
		c.block(head.Cluster, yamlfile.Problems{{At: head.VersionAt, Message: err.Error()}}, nil)
		return nil //nolint:nilerr // git's fault, and told of
	}
	policy := differ.Policy{
		Component: want.Component, Rules: want.Rules, Adopt: want.Adopt, Limits: want.Limits, Drift: want.Drift,
		Approved: want.Approved, Cluster: want.Labels, MaskKey: c.MaskKey, Scaled: map[differ.ID]differ.Scaling{},
	}
	p := c.plan(key{head.Component, before.Hash, after.Hash, policy.Hash(), fmt.Sprint(want.Approved)})
	p.once.Do(func() {
		if p.compute(ctx, c.schemas, before, after, policy); p.err == nil {
			p.err = c.keep(&p.plan)
		}
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(p.err, ErrTooMuch), errors.Is(p.err, differ.ErrTooMuch):
		return fmt.Errorf("compare %s on %s: %w", head.Component, head.Cluster, p.err)
	case p.err != nil: // for example an object that can't be read
		c.add(head.Cluster, Group{Component: head.Component, From: from, To: to, Paused: head.Paused, Unknown: p.err.Error()}, reading{})
		return nil //nolint:nilerr // told of
	}
	g := Group{Component: head.Component, From: from, To: to, Paused: head.Paused, Plan: p.plan, Restarts: p.restarts}
	for _, h := range after.Hooks {
		u := unstructured.Unstructured{Object: h.Content}
		g.Hooks = append(g.Hooks, u.GetKind()+" "+u.GetName())
	}
	c.add(head.Cluster, g, p.reads)
	return nil
}

func (m *maker) plan(k key) *plan {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.plans[k] == nil {
		m.plans[k] = &plan{}
	}
	return m.plans[k]
}

// group identifies a [Group] by all that is shown of it.
type group struct {
	component, from, to, unknown, hooks string
	reads                               reading
	paused                              bool
}

func (m *maker) add(cluster string, g Group, reads reading) {
	k := group{g.Component, g.From, g.To, g.Unknown, strings.Join(g.Hooks, "\n"), reads, g.Paused}
	m.note(func() {
		all := m.groups[k]
		if all == nil {
			all = &Group{Component: g.Component, From: g.From, To: g.To, Paused: g.Paused, Unknown: g.Unknown, Hooks: g.Hooks}
			m.groups[k] = all
		}
		if len(all.Clusters) == 0 || cluster < slices.Min(all.Clusters) { // independent of the order of clusters
			all.Plan = g.Plan
		}
		all.Clusters = append(all.Clusters, cluster)
		all.Restarts.Pods += g.Restarts.Pods
		all.Restarts.DaemonSets += g.Restarts.DaemonSets
		m.deliveries[cluster]++
	})
}
