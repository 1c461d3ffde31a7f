package delivery

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/components"
	"github.com/keelson-io/keelson/controllers/probe"
	"github.com/keelson-io/keelson/registry"
)

// probes holds what a controller needs for black-box tests of its clusters.
type probes struct {
	store   *probe.Store
	metrics *probe.Metrics
}

func (c *Controller) newProbes(o Options) error {
	c.probes.metrics = probe.NewMetrics()
	for _, m := range c.probes.metrics.Collectors() {
		if err := o.Registry.Register(m); err != nil {
			return err //nolint:wrapcheck // it says which
		}
	}
	var err error
	c.probes.store, err = probe.NewStore(probe.StoreOptions{
		Hub: o.Hub, Redactor: o.Redactor, Events: c.writer.Events().Recorder,
		Serve: func(ctx context.Context) error {
			manifest, err := components.CRD("proberesults")
			if err == nil {
				_, err = c.writer.ServeCRD(ctx, manifest)
			}
			return err
		},
	})
	return err
}

// prober creates the prober of an agent's cluster.
func (c *Controller) prober(a *agent) *probe.Prober {
	return probe.New(probe.Options{
		Cluster: a.name, Store: c.probes.store, Metrics: c.probes.metrics, Log: a.log, Now: a.now, Asked: a.askedRuns,
		Chance: rand.Float64, //nolint:gosec // no secret
	})
}

// probe runs the probes until the context ends, in parallel to everything else. It sends one
// request at a time, on the connection of the cluster.
func (a *agent) probe(ctx context.Context) {
	link, _ := a.conn.current()
	if link == nil {
		return // the context ended before there was a connection
	}
	config := link.line.Config()
	config.Wrap(a.conn.observe)
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		a.log.Error("no probe can run", "error", err)
		return
	}
	a.probes.Run(ctx, probe.Cluster{Dynamic: dyn, Mapping: link.cluster.Mapping, Examine: link.cluster.Examine})
}

// askedRuns returns since when a check waits for runs of a probe on the cluster; zero: none does.
// Of several checks the latest counts: runs after that time count for all.
func (a *agent) askedRuns(f *registry.Fleet, c *registry.Cluster, name string) (asked time.Time) {
	if a.board == nil {
		return asked
	}
	for _, d := range c.Deliveries {
		p := f.PipelineOf(d.Component)
		if p == nil {
			continue
		}
		stage := p.StageOf(c.Spec.Labels)
		if stage == nil {
			continue
		}
		r, err := a.board.Of(f, d.Component)
		if err != nil || r == nil {
			continue // known as soon as the hub has answered
		}
		for _, check := range checksOf(r, stage.Spec.Name) {
			if check.Passed == nil && check.Failed == nil && check.Asked.After(asked) && asksProbe(stage, check, name) {
				asked = check.Asked.Time
			}
		}
	}
	return asked
}

// checksOf returns the checks of a stage that were requested.
func checksOf(r *v1alpha1.Rollout, stage string) []v1alpha1.RolloutCheck {
	i := slices.IndexFunc(r.Status.Stages, func(s v1alpha1.RolloutStage) bool { return s.Name == stage })
	if i < 0 {
		return nil
	}
	return r.Status.Stages[i].Checks
}

// asksProbe reports whether a requested check uses the named probe.
func asksProbe(stage *registry.Stage, asked v1alpha1.RolloutCheck, name string) bool {
	specs := stage.Spec.Before
	if asked.After {
		specs = stage.Spec.After
	}
	for _, spec := range specs {
		if spec.Name == asked.Name {
			return spec.Probe != nil && spec.Probe.Name == name
		}
	}
	return false
}
