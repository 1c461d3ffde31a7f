package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/chaos/proxy"
)

// pruneComponents is the number of components that each way to go wrong is tried on.
const pruneComponents = 40

// runPrune breaks Keelson's inputs in many ways, while git has lost objects. Each apply
// of a component in that state is a chance to delete objects that must stay.
func runPrune(ctx context.Context, w *world) (result, error) {
	p := &pruning{world: w, result: result{did: "looks at components in git or clusters that can't be read whole", must: w.Chances}}
	l, err := w.newProxySlot(ctx, "prune")
	if err != nil {
		return p.result, err
	}
	defer l.close()
	p.slot = l
	if err := p.install(ctx); err != nil {
		return p.result, err
	}
	for pass := 0; p.result.number < w.Chances; pass++ {
		counted := p.result.number
		for _, way := range waysToGoWrong() {
			if err := p.try(ctx, pass, way); err != nil {
				return p.result, fmt.Errorf("%s: %w", way.name, err)
			}
			if p.result.number >= w.Chances && pass > 0 {
				break
			}
		}
		if p.result.number == counted {
			return p.result, fmt.Errorf("no component was looked at in %d ways", len(waysToGoWrong()))
		}
	}
	return p.result, p.control(ctx)
}

// way is one way to go wrong.
type way struct {
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
	result     result
}

// install delivers the components and records their state.
func (p *pruning) install(ctx context.Context) (err error) {
	files := map[string]string{}
	chance := p.rand.Uint64()
	for i := range pruneComponents {
		c := buildComponent(fmt.Sprintf("p%02dx", i), componentInput{seed: chance + uint64(i), with: plain, secret: p.planted.plant("a Secret of the prune chances")}) //nolint:gosec // a small number
		c.allow(p.ledger)
		p.components = append(p.components, c)
		maps.Copy(files, c.files(c.old))
	}
	if p.repo, err = p.repository(ctx, "prune", files); err != nil {
		return err
	}
	direct, err := p.direct()
	if err != nil {
		return err
	}
	code, out, err := p.run(ctx, launch{name: "install", repo: p.repo, kubeconfig: direct}, "apply", target, "--yes")
	if err != nil || code != 0 {
		return fmt.Errorf("install: exit code %d: %w\n%s", code, err, tail(out))
	}
	p.whole, err = p.states(ctx, "p")
	return err
}

// remaining returns the pieces that stay in git.
func (c *component) remaining() []piece {
	var out []piece
	for _, piece := range c.old {
		if !strings.HasPrefix(piece.Name, "gone-") {
			out = append(out, piece)
		}
	}
	return out
}

// try breaks all components in one way, removes objects from git, runs keelson apply, and
// repairs the components.
func (p *pruning) try(ctx context.Context, pass int, way way) error {
	files, mended := map[string]string{}, map[string]string{}
	for i := range p.components {
		c := &p.components[i]
		mine := c.files(c.remaining())
		if way.edit != nil {
			way.edit(c, mine)
		}
		maps.Copy(files, mine)
		for name := range mine {
			mended[name] = ""
		}
		maps.Copy(mended, c.files(c.old))
	}
	if err := p.push(ctx, p.repo, files); err != nil {
		return err
	}
	p.slot.proxy.Use(way.fault)
	mark, err := p.mark()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d-%s", pass, strings.ReplaceAll(way.name, " ", "-"))
	k, err := p.start(launch{name: name, repo: p.repo, kubeconfig: p.slot.kubeconfig}, "apply", target, "--yes", "--no-wait", "--timeout", "5s")
	if err != nil {
		return err
	}
	code, err := k.wait(ctx)
	if err != nil {
		return err
	}
	p.slot.proxy.Use(nil)
	if err := p.count(ctx, way, k.log, code, mark); err != nil {
		return err
	}
	return p.push(ctx, p.repo, mended)
}

// count counts the components that the process names in its log, if it failed. It checks
// that no object was deleted.
func (p *pruning) count(ctx context.Context, way way, log string, code int, mark int64) error {
	data, err := os.ReadFile(log)
	if err != nil {
		return fmt.Errorf("read the log of keelson: %w", err)
	}
	events, err := p.since(mark)
	if err != nil {
		return err
	}
	deleted := map[string]bool{}
	for _, e := range events {
		if e.Verb == "delete" && !e.DryRun {
			deleted[e.Resource.Namespace] = true
			p.result.violate("%s: %s", way.name, e)
		}
	}
	states, err := p.states(ctx, "p")
	if err != nil {
		return err
	}
	looked := 0
	for i := range p.components {
		name := p.components[i].name
		for key := range p.whole[name] {
			if _, ok := states[name][key]; !ok {
				deleted[name] = true
				p.result.violate("%s: %s of %s is gone", way.name, key, name)
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
	say("prune: %s: %d of %d components were looked at, exit code %d", way.name, looked, len(p.components), code)
	if looked == 0 {
		p.result.notes = append(p.result.notes, fmt.Sprintf("%s: no component was looked at (exit code %d, %s)", way.name, code, log))
	}
	return nil
}

// control proves that the chances were real: with nothing broken, the same loss in git
// deletes the objects.
func (p *pruning) control(ctx context.Context) error {
	files := map[string]string{}
	now := time.Now()
	for i := range p.components {
		c := &p.components[i]
		maps.Copy(files, c.files(c.remaining()))
		for _, o := range c.removed {
			p.ledger.MayDelete(now, "git no longer has it", o)
		}
	}
	if err := p.push(ctx, p.repo, files); err != nil {
		return err
	}
	direct, err := p.direct()
	if err != nil {
		return err
	}
	code, out, err := p.run(ctx, launch{name: "control", repo: p.repo, kubeconfig: direct}, "apply", target, "--yes")
	if err != nil || code != 0 {
		return fmt.Errorf("the control: exit code %d: %w\n%s", code, err, tail(out))
	}
	states, err := p.states(ctx, "p")
	if err != nil {
		return err
	}
	for i := range p.components {
		c := &p.components[i]
		for _, o := range c.removed {
			if _, ok := states[c.name]["ConfigMap COMPONENT/"+o.Name]; ok {
				return fmt.Errorf("the control: %s of %s is still there: the chances proved nothing", o.Name, c.name)
			}
		}
	}
	p.result.notes = append(p.result.notes, fmt.Sprintf("with nothing broken, the same loss in git deleted the objects of all %d components", len(p.components)))
	return nil
}
