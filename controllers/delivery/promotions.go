package delivery

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
)

// Promotions changes versions in git, in the process that decides about rollouts.
type Promotions interface {
	// Fleet sets the current revision. It does not block.
	Fleet(f *registry.Fleet)
	// Look requests a check of the components. It does not block.
	Look()
	// Run works until the context ends. stand returns how far the rollout of a component has come.
	Run(ctx context.Context, stand func(f *registry.Fleet, component string) (rollout.Progress, error))
}

// Promotion writes an event when promotions begin to fail, or work again.
func (c *Controller) Promotion(err error) {
	if err != nil {
		c.writer.Events().Record(corev1.EventTypeWarning, "PromotionFailed", "versions stay as they are in git: "+err.Error())
		return
	}
	c.writer.Events().Record(corev1.EventTypeNormal, "PromotionWorks", "versions are promoted again")
}

// Forge writes an event when the forge of the pull requests becomes unreachable (err) or reachable
// again (nil).
func (c *Controller) Forge(err error) {
	if err != nil {
		c.writer.Events().Record(corev1.EventTypeWarning, "ForgeUnreachable", "pull requests keep the previews that they have: "+err.Error())
		return
	}
	c.writer.Events().Record(corev1.EventTypeNormal, "ForgeReachable", "pull requests get previews again")
}
