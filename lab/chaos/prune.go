package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/chaos/proxy"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// pruneComponents is the number of components that each breakage is tried on.
const pruneComponents = 40

// runPrune breaks Keelson's inputs in many ways, while git has lost objects. Each apply
// of a component in that state is a chance to delete objects that must stay.
func runPrune(ctx context.Context, w *world, r *result) {
	r.did, r.must = "looks at components in git or clusters that can't be read whole", w.Chances
	p := &pruning{world: w, result: r}
	p.slot = w.newProxySlot("prune")
	p.install(ctx)
	for pass := 0; p.result.number < w.Chances; pass++ {
		counted := p.result.number
		for _, b := range breakages() {
			must.Wrap(func() { p.try(ctx, pass, b) }, "%s", b.name)
			if p.result.number >= w.Chances && pass > 0 {
				break
			}
		}
		if p.result.number == counted {
			must.Failf("no component was looked at in %d breakages", len(breakages()))
		}
	}
	p.control(ctx)
}

// breakage is one way in which inputs of Keelson break.
type breakage struct {
	name string
	// edit changes the files of a component, in addition to the loss of objects.
	edit func(c *component, files map[string]string)
	// fault decides about requests to the API server.
	fault func(proxy.Request) proxy.Verdict
}

type pruning struct {
	*world
	slot       *proxySlot
	repo       string
	components []component
	whole      map[string]state // as installed
	result     *result
}

// install delivers the components and records their state.
func (p *pruning) install(ctx context.Context) {
	files := map[string]string{}
	chance := p.rand.Uint64()
	for i := range pruneComponents {
		c := buildComponent(fmt.Sprintf("p%02dx", i), componentInput{seed: chance + uint64(i), with: plain, secret: p.planted.plant("a Secret of the prune chances")}) //nolint:gosec // a small number
		c.allow(p.ledger)
		p.components = append(p.components, c)
		maps.Copy(files, c.files(c.old))
	}
	p.repo = p.repository(ctx, "prune", files)
	p.succeed(ctx, launch{name: "install", repo: p.repo, kubeconfig: p.direct()}, "apply", target, "--yes")
	p.whole = p.states(ctx, "p")
}

// remaining returns the pieces that stay in git.
func (c *component) remaining() []piece {
	return slices.DeleteFunc(slices.Clone(c.old), func(p piece) bool { return strings.HasPrefix(p.Name, "gone-") })
}

// try breaks all components in one way, removes objects from git, runs keelson apply, and
// repairs the components.
func (p *pruning) try(ctx context.Context, pass int, b breakage) {
	files, mended := map[string]string{}, map[string]string{}
	for i := range p.components {
		c := &p.components[i]
		mine := c.files(c.remaining())
		if b.edit != nil {
			b.edit(c, mine)
		}
		maps.Copy(files, mine)
		for name := range mine {
			mended[name] = ""
		}
		maps.Copy(mended, c.files(c.old))
	}
	p.push(ctx, p.repo, files)
	p.slot.proxy.Use(b.fault)
	mark := p.mark()
	name := fmt.Sprintf("%d-%s", pass, strings.ReplaceAll(b.name, " ", "-"))
	k := p.start(launch{name: name, repo: p.repo, kubeconfig: p.slot.kubeconfig}, "apply", target, "--yes", "--no-wait", "--timeout", "5s")
	code := must.Get(k.wait(ctx))
	p.slot.proxy.Use(nil)
	p.count(ctx, b, k.Log, code, mark)
	p.push(ctx, p.repo, mended)
}

// count counts the components that the process names in its log, if it failed. It checks
// that no object was deleted.
func (p *pruning) count(ctx context.Context, b breakage, log string, code int, mark int64) {
	data := must.Get(os.ReadFile(log))
	deleted := map[string]bool{}
	for _, e := range p.since(mark) {
		if e.Verb == "delete" && !e.DryRun {
			deleted[e.Resource.Namespace] = true
			p.result.violate("%s: %s", b.name, e)
		}
	}
	states := p.states(ctx, "p")
	looked := 0
	for i := range p.components {
		name := p.components[i].name
		for key := range p.whole[name] {
			if _, ok := states[name][key]; !ok {
				deleted[name] = true
				p.result.violate("%s: %s of %s is gone", b.name, key, name)
			}
		}
		if code == 0 || !strings.Contains(string(data), name) {
			continue // the component was not processed, or the apply succeeded
		}
		looked++
		p.result.number++
		if !deleted[name] {
			p.result.survived++
		}
	}
	harness.Say("prune: %s: %d of %d components were looked at, exit code %d", b.name, looked, len(p.components), code)
	if looked == 0 {
		p.result.notes = append(p.result.notes, fmt.Sprintf("%s: no component was looked at (exit code %d, %s)", b.name, code, log))
	}
}

// control proves that the chances were real: with nothing broken, the same loss in git
// deletes the objects.
func (p *pruning) control(ctx context.Context) {
	files := map[string]string{}
	now := time.Now()
	for i := range p.components {
		c := &p.components[i]
		maps.Copy(files, c.files(c.remaining()))
		p.ledger.MayDelete(now, "git no longer has it", c.removed...)
	}
	p.push(ctx, p.repo, files)
	p.succeed(ctx, launch{name: "control", repo: p.repo, kubeconfig: p.direct()}, "apply", target, "--yes")
	states := p.states(ctx, "p")
	for i := range p.components {
		c := &p.components[i]
		for _, o := range c.removed {
			if _, ok := states[c.name]["ConfigMap COMPONENT/"+o.Name]; ok {
				must.Failf("the control: %s of %s is still there: the chances proved nothing", o.Name, c.name)
			}
		}
	}
	p.result.notes = append(p.result.notes, fmt.Sprintf("with nothing broken, the same loss in git deleted the objects of all %d components", len(p.components)))
}
