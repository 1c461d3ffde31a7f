package applier

import (
	"context"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/differ"
)

// Diagnose explains why the objects of a plan are not healthy: which object, which condition, which
// pod, and their last events. Empty: all are healthy. It reads pods and events, so call it at the
// end of a wait. The text names what can't be read.
func (c *Cluster) Diagnose(ctx context.Context, p *Prepared) string {
	return c.diagnoser.Diagnose(ctx, p.unhealthy()...)
}

// PodTrouble returns which pod of an unhealthy object does not start, and why: for example a
// missing image, which the object's own status shows only after its deadline. Empty: no such pod is
// known. It only lists pods, so it may be called during a wait. It ignores read errors, which
// Diagnose reports.
func (c *Cluster) PodTrouble(ctx context.Context, p *Prepared) string {
	return c.diagnoser.PodTrouble(ctx, p.unhealthy())
}

// Examine explains why one object is not healthy, as Diagnose does, given its last health and
// content.
func (c *Cluster) Examine(ctx context.Context, h health.Result, live map[string]any) string {
	return c.diagnoser.Diagnose(ctx, health.Unhealthy{Result: h, Live: live})
}

// unhealthy returns the objects of a plan that are not healthy.
func (p *Prepared) unhealthy() []health.Unhealthy {
	live := map[differ.ID]map[string]any{}
	for i := range p.Plan.Changes {
		live[p.Plan.Changes[i].ID] = p.Plan.Changes[i].Live
	}
	var out []health.Unhealthy
	for _, h := range p.Health {
		if h.Health != v1alpha1.HealthHealthy {
			out = append(out, health.Unhealthy{Result: h, Live: live[h.ID]})
		}
	}
	return out
}
